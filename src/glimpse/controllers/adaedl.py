"""Stop when a bound on the acceptance probability falls below a threshold that adapts."""

from __future__ import annotations

import math
from collections.abc import Sequence as SequenceOf
from dataclasses import dataclass

from glimpse.controllers import StoppingRule, controllers, require_share
from glimpse.types import Draft, Outcome, Sequence


@controllers.register
@dataclass
class Adaedl(StoppingRule):
    """AdaEDL (Agrawal et al. 2024, arXiv 2410.18351): stop where 1 - sqrt(c H) is below lambda.

    With the draft's entropy H and c = 0.2 that bounds the probability of acceptance from below.
    Lambda follows the rule of Draft & Verify (Zhang et al. 2023, arXiv 2309.08168): a mean of the
    acceptance rates (half of it the latest round's) above ``target`` lets it sink, one below lets
    it rise, by ``step``, smoothed by ``momentum``.
    """

    coefficient: float = 0.2
    threshold: float = 0.6
    """Lambda before anything was seen."""
    target: float = 0.9
    step: float = 0.01
    momentum: float = 0.9

    def __post_init__(self) -> None:
        super().__post_init__()
        require_share(self, "threshold", "target", "step", "momentum")
        if not 0 < self.coefficient < math.inf:
            raise ValueError(f"coefficient={self.coefficient}: must be above 0")
        self._lambda = self.threshold
        self._mean = self.target

    def keep_drafting(self, sequence: Sequence, draft: Draft) -> bool:  # noqa: ARG002
        entropy = max(0.0, draft.signals[-1].entropy)
        return 1.0 - math.sqrt(self.coefficient * entropy) >= self._lambda

    def learn(self, outcomes: SequenceOf[Outcome], seconds: float) -> None:  # noqa: ARG002
        for outcome in outcomes:
            if not outcome.draft:
                continue
            rate = outcome.num_accepted / len(outcome.draft)
            self._mean = 0.5 * self._mean + 0.5 * rate
            moved = self._lambda + (self.step if self._mean <= self.target else -self.step)
            smoothed = self.momentum * self._lambda + (1 - self.momentum) * moved
            self._lambda = min(1.0, max(0.0, smoothed))
