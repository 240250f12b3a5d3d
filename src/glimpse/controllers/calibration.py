"""How likely drafted tokens are to be accepted: from their signals, and from what happened."""

from __future__ import annotations

import math
from typing import Protocol
from weakref import WeakKeyDictionary

from glimpse.types import DraftSignal, Outcome, Sequence

Vector = tuple[float, float, float]

PRIOR_ACCEPTANCE = 0.85
"""Of a token whose predecessors were accepted, before anything was seen."""
PRIOR_WEIGHT = 3.0
"""What that weighs, in tokens."""
POSITION_WEIGHT = 20.0
"""What the rate over all positions weighs in that of one position, in tokens."""
SEQUENCE_WEIGHT = 8.0
"""What the rate over all sequences weighs in that of one sequence, in tokens."""
FORGET = 0.97
"""What a count keeps with each round that drafted."""
RECENT = 0.8
"""What the latest rounds' count keeps with each round."""
CHANGED = 0.7
"""What counts keep when the latest rounds differ from them by ``NUM_DEVIATIONS``."""
NUM_DEVIATIONS = 2.5
MAX_PROBABILITY = 0.999

MAX_MARGIN = 4.0
"""Nats; beyond, a larger margin says nothing more."""
GREEDY_PRIOR = (1.2, -0.2, 1.6)
SAMPLED_PRIOR = (3.4, -0.7, 0.1)
"""Weights of 1, sqrt(entropy) and margin in the logit of acceptance: near those fitted to 1,151
drafts of SmolLM2-135M on four texts that no benchmark uses (verification, budget 10 %), a little
closer to even. In greedy decoding the margin decides; when sampling it says little."""
GREEDY_VARIANCE = (2.0, 0.1, 0.5)
SAMPLED_VARIANCE = (1.0, 0.1, 0.05)
PROCESS_NOISE = (1e-3, 1e-4, 3e-4)
"""Added to the variances with each token, so that the weights can follow a change."""


class Calibration(Protocol):
    """Acceptance probabilities, each given that all drafts before the token are accepted."""

    def probability(self, sequence: Sequence, signal: DraftSignal) -> float:
        """Of a drafted token."""

    def profile(self, sequence: Sequence) -> list[float]:
        """Of tokens not drafted yet, by position in the draft."""

    def learn(self, outcome: Outcome) -> None:
        """Note which drafts were accepted."""


class PaperCalibration:
    """SparseSpec-L, Eq. 6 and 7, literally: distances of an entropy from two moving centres.

    Entropies exist only for drafted tokens, so those to come get the mean probability of the latest
    drafted ones. Every drafted token that was not accepted counts as rejected. The paper does not
    say where the centres start.
    """

    def __init__(self, max_k: int, beta: float) -> None:
        self.beta = beta
        self.accepted_entropy = 0.5
        self.rejected_entropy = 2.0
        self._max_k = max_k
        self._recent = self._closeness(self.accepted_entropy)

    def probability(self, sequence: Sequence, signal: DraftSignal) -> float:  # noqa: ARG002
        return self._closeness(signal.entropy)

    def profile(self, sequence: Sequence) -> list[float]:  # noqa: ARG002
        return [self._recent] * self._max_k

    def learn(self, outcome: Outcome) -> None:
        beta, rest = self.beta, 1 - self.beta
        for i, signal in enumerate(outcome.draft.signals):
            self._recent = beta * self._recent + rest * self._closeness(signal.entropy)
            if i < outcome.num_accepted:
                self.accepted_entropy = beta * self.accepted_entropy + rest * signal.entropy
            else:
                self.rejected_entropy = beta * self.rejected_entropy + rest * signal.entropy

    def _closeness(self, entropy: float) -> float:
        """Eq. 7."""
        to_accepted = abs(entropy - self.accepted_entropy)
        to_rejected = abs(entropy - self.rejected_entropy)
        return 1.0 / (1.0 + math.exp(to_accepted - to_rejected))


class OnlineCalibration:
    """What was observed: logistic regression on signals, and acceptance counts by position.

    A count leans on the rate over all positions, and that on a prior. A sequence that does better
    or worse than all together moves its probabilities in proportion. Finished ones are forgotten.
    """

    def __init__(self, max_k: int) -> None:
        self._counts = [[0.0, 0.0] for _ in range(max_k)]
        self._recent = [0.0, 0.0]
        self._mean, self._profile = self._smooth()
        self._by_sequence: WeakKeyDictionary[Sequence, list[float]] = WeakKeyDictionary()
        self._greedy = LogisticFilter(GREEDY_PRIOR, GREEDY_VARIANCE)
        self._sampled = LogisticFilter(SAMPLED_PRIOR, SAMPLED_VARIANCE)

    def probability(self, sequence: Sequence, signal: DraftSignal) -> float:
        probability = self._filter(sequence).predict(_features(signal))
        return min(MAX_PROBABILITY, self._ratio(sequence) * probability)

    def profile(self, sequence: Sequence) -> list[float]:
        ratio = self._ratio(sequence)
        return [min(MAX_PROBABILITY, ratio * value) for value in self._profile]

    def learn(self, outcome: Outcome) -> None:
        # What follows the first rejected token was never put to the test.
        reached = outcome.draft.signals[: outcome.num_accepted + 1]
        own = self._by_sequence.setdefault(outcome.sequence, [0.0, 0.0])
        own[:] = (FORGET * own[0] + outcome.num_accepted, FORGET * own[1] + len(reached))
        if not reached:
            return
        keep = self._keep(outcome.num_accepted, len(reached))
        for count in self._counts:
            count[0] *= keep
            count[1] *= keep
        for i, signal in enumerate(reached):
            is_accepted = i < outcome.num_accepted
            self._filter(outcome.sequence).update(_features(signal), is_accepted)
            self._counts[i][0] += is_accepted
            self._counts[i][1] += 1.0
        self._mean, self._profile = self._smooth()

    def _keep(self, num_accepted: int, num_reached: int) -> float:
        """What counts keep of their weight: less where the latest rounds are unlike them."""
        recent = self._recent
        recent[:] = (RECENT * recent[0] + num_accepted, RECENT * recent[1] + num_reached)
        rate, mean = recent[0] / recent[1], self._mean
        deviation = math.sqrt(mean * (1 - mean) / recent[1])
        return CHANGED if abs(rate - mean) > NUM_DEVIATIONS * deviation else FORGET

    def _filter(self, sequence: Sequence) -> LogisticFilter:
        return self._greedy if sequence.params.is_greedy else self._sampled

    def _smooth(self) -> tuple[float, list[float]]:
        """Acceptance over all positions, and by position."""
        accepted = sum(count[0] for count in self._counts)
        reached = sum(count[1] for count in self._counts)
        mean = (accepted + PRIOR_WEIGHT * PRIOR_ACCEPTANCE) / (reached + PRIOR_WEIGHT)
        weight = POSITION_WEIGHT
        return mean, [(a + weight * mean) / (n + weight) for a, n in self._counts]

    def _ratio(self, sequence: Sequence) -> float:
        """Acceptance of a sequence relative to that of all."""
        if len(self._by_sequence) < 2 or sequence not in self._by_sequence:
            return 1.0
        accepted, reached = self._by_sequence[sequence]
        own = (accepted + SEQUENCE_WEIGHT * self._mean) / (reached + SEQUENCE_WEIGHT)
        return own / self._mean


class LogisticFilter:
    """Bayesian logistic regression, one observation at a time (an extended Kalman filter)."""

    def __init__(self, weights: Vector, variances: Vector) -> None:
        self.weights = weights
        a, b, c = variances
        self._covariance: list[Vector] = [(a, 0.0, 0.0), (0.0, b, 0.0), (0.0, 0.0, c)]

    def predict(self, x: Vector) -> float:
        return 1.0 / (1.0 + math.exp(-max(-30.0, min(30.0, _dot(self.weights, x)))))

    def update(self, x: Vector, is_accepted: bool) -> None:
        probability = self.predict(x)
        information = probability * (1 - probability)
        row0, row1, row2 = self._covariance
        towards = step0, step1, step2 = _dot(row0, x), _dot(row1, x), _dot(row2, x)
        gain = 1.0 / (1.0 + information * _dot(towards, x))
        error = gain * (is_accepted - probability)
        w0, w1, w2 = self.weights
        self.weights = (w0 + error * step0, w1 + error * step1, w2 + error * step2)
        shrink = gain * information
        noise0, noise1, noise2 = PROCESS_NOISE
        c01, c02, c12 = (
            row0[1] - shrink * step0 * step1,
            row0[2] - shrink * step0 * step2,
            row1[2] - shrink * step1 * step2,
        )
        self._covariance = [
            (row0[0] - shrink * step0 * step0 + noise0, c01, c02),
            (c01, row1[1] - shrink * step1 * step1 + noise1, c12),
            (c02, c12, row2[2] - shrink * step2 * step2 + noise2),
        ]


def _dot(a: Vector, b: Vector) -> float:
    return a[0] * b[0] + a[1] * b[1] + a[2] * b[2]


def _features(signal: DraftSignal) -> Vector:
    entropy = max(0.0, signal.entropy)
    return 1.0, math.sqrt(entropy), max(0.0, min(MAX_MARGIN, signal.margin))
