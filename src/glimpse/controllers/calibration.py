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
    """What was observed sets the level, by position and sequence; a token's signal moves it.

    The level is a decayed acceptance count, shrunk towards coarser ones and in the end a prior. The
    effect of entropy and margin, as they differ from their running means, is a Bayesian logistic
    regression (extended Kalman filter) whose prior is what one model showed in greedy decoding.
    """

    def __init__(self, max_k: int) -> None:
        self._counts = [[0.0, 0.0] for _ in range(max_k)]
        self._by_sequence: WeakKeyDictionary[Sequence, list[float]] = WeakKeyDictionary()
        self._means = [SQRT_ENTROPY, LOG_MARGIN]
        self._weights = [0.0, ENTROPY_SLOPE, MARGIN_SLOPE]
        self._covariance = [[V0, 0.0, 0.0], [0.0, V1, 0.0], [0.0, 0.0, V2]]

    def probability(self, sequence: Sequence, position: int, signal: DraftSignal) -> float:
        level = self._logits(sequence)[position]
        return _sigmoid(level + _dot(self._weights, self._features(signal)))

    def profile(self, sequence: Sequence) -> list[float]:
        return [_sigmoid(level) for level in self._logits(sequence)]

    def learn(self, outcome: Outcome) -> None:
        levels = self._logits(outcome.sequence)
        for count in self._counts:
            count[0] *= FORGET
            count[1] *= FORGET
        for i, signal in enumerate(outcome.draft.signals[: outcome.num_accepted + 1]):
            is_accepted = i < outcome.num_accepted
            x = self._features(signal)
            self._update(x, levels[i], is_accepted)
            self._counts[i][0] += is_accepted
            self._counts[i][1] += 1.0
            self._means[0] += MEAN_RATE * x[1]
            self._means[1] += MEAN_RATE * x[2]

    def _logits(self, sequence: Sequence) -> list[float]:
        accepted = sum(c[0] for c in self._counts)
        reached = sum(c[1] for c in self._counts)
        mean = (accepted + PRIOR_WEIGHT * PRIOR_ACCEPTANCE) / (reached + PRIOR_WEIGHT)
        return [_logit((a + POSITION_WEIGHT * mean) / (n + POSITION_WEIGHT)) for a, n in self._counts]

    def _features(self, signal: DraftSignal) -> list[float]:
        return [
            1.0,
            math.sqrt(max(signal.entropy, 0.0)) - self._means[0],
            math.log(signal.margin + 0.02) - self._means[1],
        ]

    def _update(self, x: list[float], level: float, is_accepted: bool) -> None:
        p = _sigmoid(level + _dot(self._weights, x))
        cov = self._covariance
        towards = [_dot(row, x) for row in cov]
        variance = p * (1 - p)
        gain = 1.0 / (1.0 + variance * _dot(towards, x))
        for i in range(3):
            self._weights[i] += gain * towards[i] * (is_accepted - p)
            for j in range(3):
                cov[i][j] -= gain * variance * towards[i] * towards[j]
            cov[i][i] += Q * (PV[i] - cov[i][i])

SQRT_ENTROPY, LOG_MARGIN = 0.8, 0.5
ENTROPY_SLOPE, MARGIN_SLOPE = -0.6, 0.6
V0, V1, V2 = PV = 0.1, 0.5, 0.25
Q = 0.02
MEAN_RATE = 0.03


def _dot(a: list[float], b: list[float]) -> float:
    return a[0] * b[0] + a[1] * b[1] + a[2] * b[2]


def _sigmoid(x: float) -> float:
    return 1.0 / (1.0 + math.exp(-max(-30.0, min(30.0, x))))


def _logit(p: float) -> float:
    return math.log(p / (1 - p))
