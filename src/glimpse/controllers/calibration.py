"""How likely drafted tokens are to be accepted, from their signals and from what happened so far."""

from __future__ import annotations

import math
from typing import Protocol
from weakref import WeakKeyDictionary

from glimpse.types import DraftSignal, Outcome, Sequence

PRIOR_ACCEPTANCE = 0.9
"""Of a token whose predecessors were accepted, before anything was seen."""
PRIOR_WEIGHT = 3.0
"""What that prior weighs, in tokens."""
POSITION_WEIGHT = 8.0
"""What the mean over all positions weighs in the estimate for one position, in tokens."""
SEQUENCE_WEIGHT = 8.0
"""What the estimate over all sequences weighs in that for one sequence, in tokens."""
FORGET = 0.97
"""What counts keep with each round that drafted."""


class Calibration(Protocol):
    """Acceptance probabilities, each given that all drafts before the token are accepted."""

    def probability(self, sequence: Sequence, position: int, signal: DraftSignal) -> float:
        """Of a drafted token, the ``position``-th of its draft from 0."""

    def profile(self, sequence: Sequence) -> list[float]:
        """Of tokens not drafted yet, by position in the draft."""

    def learn(self, outcome: Outcome) -> None:
        """Note which drafts were accepted."""


class PaperCalibration:
    """SparseSpec-L, Eq. 6 and 7, literally: distances of an entropy from two moving centres.

    Entropies exist only for drafted tokens, so those to come get the mean probability of the latest
    drafted ones. Every drafted token that was not accepted counts as rejected. The centres before
    anything was seen are not the paper's, which gives none.
    """

    def __init__(self, max_k: int, beta: float) -> None:
        self.beta = beta
        self.accepted_entropy = 0.5
        self.rejected_entropy = 2.0
        self._length = max_k
        self._recent = self._distance_softmax(self.accepted_entropy)

    def probability(self, sequence: Sequence, position: int, signal: DraftSignal) -> float:  # noqa: ARG002
        return self._distance_softmax(signal.entropy)

    def profile(self, sequence: Sequence) -> list[float]:  # noqa: ARG002
        return [self._recent] * self._length

    def learn(self, outcome: Outcome) -> None:
        beta, rest = self.beta, 1 - self.beta
        for i, signal in enumerate(outcome.draft.signals):
            self._recent = beta * self._recent + rest * self._distance_softmax(signal.entropy)
            if i < outcome.num_accepted:
                self.accepted_entropy = beta * self.accepted_entropy + rest * signal.entropy
            else:
                self.rejected_entropy = beta * self.rejected_entropy + rest * signal.entropy

    def _distance_softmax(self, entropy: float) -> float:
        """Eq. 7."""
        to_accepted = abs(entropy - self.accepted_entropy)
        to_rejected = abs(entropy - self.rejected_entropy)
        return 1.0 / (1.0 + math.exp(to_accepted - to_rejected))


class OnlineCalibration:
    """..."""

    def __init__(self, max_k: int) -> None:
        self._counts = [[0.0, 0.0] for _ in range(max_k)]
        self._regressions = {True: _Regression(GREEDY), False: _Regression(SAMPLED)}
        self._levels = self._smooth()

    def probability(self, sequence: Sequence, position: int, signal: DraftSignal) -> float:
        return self._regressions[sequence.params.is_greedy].predict(_features(signal))

    def profile(self, sequence: Sequence) -> list[float]:
        return self._levels

    def learn(self, outcome: Outcome) -> None:
        for count in self._counts:
            count[0] *= FORGET
            count[1] *= FORGET
        regression = self._regressions[outcome.sequence.params.is_greedy]
        for i, signal in enumerate(outcome.draft.signals[: outcome.num_accepted + 1]):
            is_accepted = i < outcome.num_accepted
            regression.update(_features(signal), is_accepted)
            self._counts[i][0] += is_accepted
            self._counts[i][1] += 1.0
        self._levels = self._smooth()

    def _smooth(self) -> list[float]:
        accepted = sum(c[0] for c in self._counts)
        reached = sum(c[1] for c in self._counts)
        mean = (accepted + PRIOR_WEIGHT * PRIOR_ACCEPTANCE) / (reached + PRIOR_WEIGHT)
        return [(a + POSITION_WEIGHT * mean) / (n + POSITION_WEIGHT) for a, n in self._counts]

class _Regression:
    def __init__(self, prior):
        self.weights = list(prior[0])
        self.covariance = [[prior[1][i] if i == j else 0.0 for j in range(3)] for i in range(3)]

    def predict(self, x):
        return _sigmoid(_dot(self.weights, x))

    def update(self, x: list[float], is_accepted: bool) -> None:
        p = self.predict(x)
        cov = self.covariance
        for i in range(3): cov[i][i] += Q[i]
        towards = [_dot(row, x) for row in cov]
        variance = p * (1 - p)
        gain = 1.0 / (1.0 + variance * _dot(towards, x))
        for i in range(3):
            self.weights[i] += gain * towards[i] * (is_accepted - p)
            for j in range(3):
                cov[i][j] -= gain * variance * towards[i] * towards[j]

Q=(.005,.0005,.002)
GREEDY = ((1.0, -0.6, 1.5), (1.0, 0.1, 0.5))
SAMPLED = ((2.9, -0.5, 0.2), (1.0, 0.1, 0.05))

def _features(signal):
    return (1.0, math.sqrt(max(signal.entropy, 0.0)), min(signal.margin, 4.0))


def _dot(a: list[float], b: list[float]) -> float:
    return a[0] * b[0] + a[1] * b[1] + a[2] * b[2]


def _sigmoid(x: float) -> float:
    return 1.0 / (1.0 + math.exp(-max(-30.0, min(30.0, x))))


def _logit(p: float) -> float:
    return math.log(p / (1 - p))
