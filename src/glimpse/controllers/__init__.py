"""How many tokens to draft: one controller per file, named after it."""

from __future__ import annotations

from collections.abc import Sequence as SequenceOf
from typing import Protocol

from glimpse.costs import CostModel
from glimpse.registry import Registry
from glimpse.types import Draft, Outcome, Sequence


class Controller(Protocol):
    """Chooses draft lengths. One instance serves all sequences of a method and learns from all."""

    def plan(self, sequences: SequenceOf[Sequence], costs: CostModel) -> list[int]:
        """A cap on the draft length of each sequence of the coming round; 0 is a plain round."""

    def keep_drafting(self, sequence: Sequence, draft: Draft) -> bool:
        """Asked after each drafted token (``draft.signals[-1]``) below the cap: one more?"""

    def learn(self, outcomes: SequenceOf[Outcome], seconds: float) -> None:
        """What became of the round's drafts, and the wall time it took."""


controllers: Registry[Controller] = Registry("controller")
controllers.discover(__name__)
