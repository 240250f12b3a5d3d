"""A small classifier decides after each token whether the next one would be accepted."""

from __future__ import annotations

import math
from collections.abc import Sequence as SequenceOf
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from glimpse.controllers import StoppingRule, controllers, require_share
from glimpse.types import Draft, DraftSignal, Outcome, Sequence

Vector = NDArray[np.float64]

PRIOR = (0.0, 3.0, -0.5, -0.05)
"""Weights of 1, the top probability, the root of the entropy and the position before anything was
seen: a sure first token is taken, an even choice is not."""
VARIANCE = (1.0, 2.0, 0.5, 0.01)
PROCESS_NOISE = 1e-4
"""Added to the variances with each token, so that the weights can follow a change of text."""


@controllers.register
@dataclass
class Disco(StoppingRule):
    """DISCO (Mamou et al. 2024, arXiv 2405.04304): stop where a classifier on the draft's top
    probability, entropy and position holds acceptance for less likely than ``threshold``.

    The paper trains its classifier beforehand; this one is a logistic regression that learns from
    each round (an extended Kalman filter), and stops after the token that it doubts.
    """

    threshold: float = 0.6

    def __post_init__(self) -> None:
        super().__post_init__()
        require_share(self, "threshold")
        self._weights: Vector = np.array(PRIOR)
        self._covariance = np.diag(VARIANCE)

    def keep_drafting(self, sequence: Sequence, draft: Draft) -> bool:  # noqa: ARG002
        features = _features(draft.signals[-1], len(draft) - 1)
        return self._probability(features) >= self.threshold

    def learn(self, outcomes: SequenceOf[Outcome], seconds: float) -> None:  # noqa: ARG002
        for outcome in outcomes:
            reached = outcome.draft.signals[: outcome.num_accepted + 1]
            for position, signal in enumerate(reached):
                self._update(_features(signal, position), position < outcome.num_accepted)

    def _probability(self, features: Vector) -> float:
        logit = float(self._weights @ features)
        return 1.0 / (1.0 + math.exp(-max(-30.0, min(30.0, logit))))

    def _update(self, features: Vector, is_accepted: bool) -> None:
        probability = self._probability(features)
        information = probability * (1 - probability)
        towards = self._covariance @ features
        gain = towards / (1.0 + information * float(features @ towards))
        self._weights = self._weights + gain * (is_accepted - probability)
        self._covariance = self._covariance - information * np.outer(gain, towards)
        self._covariance += PROCESS_NOISE * np.eye(len(features))


def _features(signal: DraftSignal, position: int) -> Vector:
    root = math.sqrt(max(0.0, signal.entropy))
    return np.array([1.0, signal.top_prob, root, float(position)])
