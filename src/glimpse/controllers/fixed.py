"""The same number of drafts in every round."""

from __future__ import annotations

from collections.abc import Sequence as SequenceOf
from dataclasses import dataclass

from glimpse.controllers import controllers
from glimpse.costs import CostModel
from glimpse.types import Draft, Outcome, Sequence


@controllers.register
@dataclass
class Fixed:
    """A fixed speculation length, as in Leviathan et al. 2023; ``k=0`` is plain decoding."""

    k: int = 4

    def __post_init__(self) -> None:
        if self.k < 0:
            raise ValueError(f"k={self.k}: must be at least 0")

    def plan(self, sequences: SequenceOf[Sequence], costs: CostModel) -> list[int]:  # noqa: ARG002
        return [self.k] * len(sequences)

    def keep_drafting(self, sequence: Sequence, draft: Draft) -> bool:  # noqa: ARG002
        return True

    def learn(self, outcomes: SequenceOf[Outcome], seconds: float) -> None:
        """Nothing to learn."""
