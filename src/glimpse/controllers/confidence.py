"""Stop at a token that the draft itself does not believe in."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence as SequenceOf
from dataclasses import dataclass

import numpy as np

from glimpse.controllers import StoppingRule, controllers, require_share
from glimpse.types import Draft, Outcome, Sequence

NUM_KEPT = 512
"""Tokens whose fate the threshold is tuned on: the latest ones."""
MIN_SEEN = 16
"""Before as many were seen the threshold stays where it began."""
MISS_WEIGHT = 3.0
"""How much worse it is to stop before a token that would be accepted than to go on after one that
will not: Transformers' weight."""


@controllers.register
@dataclass
class Confidence(StoppingRule):
    """Transformers' dynamic speculation (Mamou et al. 2024, arXiv 2405.04304): stop after a token
    of probability below a threshold, tuned on what became of earlier ones.

    The threshold is the one with the smallest false positive rate plus three false negative rates
    (a point of the ROC curve), if ``is_tuned``.
    """

    max_k: int = 20
    threshold: float = 0.4
    is_tuned: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        require_share(self, "threshold")
        self._threshold = self.threshold
        self._seen: deque[tuple[float, bool]] = deque(maxlen=NUM_KEPT)

    def keep_drafting(self, sequence: Sequence, draft: Draft) -> bool:  # noqa: ARG002
        return draft.signals[-1].token_prob >= self._threshold

    def learn(self, outcomes: SequenceOf[Outcome], seconds: float) -> None:  # noqa: ARG002
        if not self.is_tuned:
            return
        for outcome in outcomes:
            # What follows the first rejected token was never put to the test.
            reached = outcome.draft.signals[: outcome.num_accepted + 1]
            self._seen.extend(
                (signal.token_prob, i < outcome.num_accepted) for i, signal in enumerate(reached)
            )
        self._threshold = tuned(self._seen, self._threshold)


def tuned(seen: SequenceOf[tuple[float, bool]], threshold: float) -> float:
    """The best threshold among the probabilities seen; the given one where they cannot tell."""
    accepted = np.array([is_accepted for _, is_accepted in seen], dtype=bool)
    num_accepted, num_rejected = int(accepted.sum()), int((~accepted).sum())
    if len(seen) < MIN_SEEN or not num_accepted or not num_rejected:
        return threshold
    probabilities = np.array([probability for probability, _ in seen])
    order = np.argsort(-probabilities, kind="stable")
    # Tokens from the likeliest down: what a threshold at each of them lets through.
    true_rate = np.cumsum(accepted[order]) / num_accepted
    false_rate = np.cumsum(~accepted[order]) / num_rejected
    last_of_equals = np.append(np.diff(probabilities[order]) != 0, True)
    costs = np.where(last_of_equals, false_rate + MISS_WEIGHT * (1 - true_rate), np.inf)
    return float(probabilities[order][int(costs.argmin())])
