"""How many tokens to draft: one controller per file, named after it."""

from __future__ import annotations

from collections.abc import Sequence as SequenceOf
from dataclasses import dataclass
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


@dataclass
class StoppingRule:
    """What controllers share that look at each drafted token and know nothing of costs."""

    max_k: int = 16

    def __post_init__(self) -> None:
        if self.max_k < 1:
            raise ValueError(f"max_k={self.max_k}: must be at least 1")

    def plan(self, sequences: SequenceOf[Sequence], costs: CostModel) -> list[int]:  # noqa: ARG002
        return [self.max_k] * len(sequences)

    def learn(self, outcomes: SequenceOf[Outcome], seconds: float) -> None:
        """Nothing to learn, unless a rule says otherwise."""


def require_share(rule: object, *names: str) -> None:
    """Raise ValueError unless each of these fields lies from 0 to 1."""
    for name in names:
        if not 0 <= (value := getattr(rule, name)) <= 1:
            raise ValueError(f"{name}={value}: must be from 0 to 1")


controllers: Registry[Controller] = Registry("controller")
controllers.discover(__name__)
