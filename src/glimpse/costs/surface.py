"""Times of forward passes over rows, batch and context, learned from few and noisy observations."""

from __future__ import annotations

import math
from bisect import bisect_left
from dataclasses import dataclass, field
from typing import Annotated

from pydantic import Field

UNKNOWN_PLAIN_S = 0.05
"""A plain pass before anything was seen; only ratios of such predictions mean something."""
RECENT = 5
"""Observations kept of each point."""
NEAR = 1.3
"""Observations further than this factor from the lower median are outliers."""
MIN_REFERENCE = 1024
"""Contexts are counted in units of the first one seen, or of this many positions."""
FORGET = 0.97
"""What an observation keeps of its weight in the linear model with each later one."""
SWEEPS = 2
"""Rounds of coordinate descent with each observation; the fit starts from the last one."""
MAX_SURPRISE = 1.5
"""Slower than expected by more than this factor, an observation is not believed at once."""

MAX_CURVES = 16

PRIOR = (0.45, 0.05, 0.45, 0.05)
"""Before anything was seen, shares of a plain pass: once, per row, per position, per both."""
RIDGE = (0.1, 1.0, 0.1, 1.0)
"""What the prior of each share weighs, in observations."""

Vector = tuple[float, float, float, float]
"""Vector of a pass: 1, rows, context, and context times rows per sequence."""
Weights = Annotated[list[float], Field(min_length=4, max_length=4)]
Line = tuple[float, float]
"""The linear model along one axis: intercept and slope."""


@dataclass
class Surface:
    """Times over (rows, batch, context): a non-negative linear model, corrected at known points."""

    weights: Weights = field(default_factory=lambda: [w * UNKNOWN_PLAIN_S for w in PRIOR])
    prior: Weights = field(default_factory=lambda: [w * UNKNOWN_PLAIN_S for w in PRIOR])
    gram: Annotated[list[Weights], Field(min_length=4, max_length=4)] = field(
        default_factory=lambda: [[0.0] * 4 for _ in range(4)]
    )
    moment: Weights = field(default_factory=lambda: [0.0] * 4)
    points: dict[int, Annotated[list[tuple[Vector, float]], Field(min_length=1)]] = field(
        default_factory=dict
    )
    """The recent observations, features and seconds, by rows per sequence or by batch."""
    reference: Annotated[float, Field(gt=0)] = MIN_REFERENCE
    """The context that counts as 1."""
    context: float = MIN_REFERENCE
    """Positions per sequence at the latest observation."""

    def __post_init__(self) -> None:
        # Derived from the fields when needed: times along a line, and at each point.
        self._curves: dict[Line, tuple[list[int], list[float]]] = {}
        self._typical: dict[int, tuple[Vector, float]] = {}

    def features(self, rows: float, batch: float, context: float) -> Vector:
        size = context / self.reference
        return (1.0, rows, size, size * rows / batch)

    def base(self, x: Vector) -> float:
        """The linear model alone."""
        w = self.weights
        return w[0] * x[0] + w[1] * x[1] + w[2] * x[2] + w[3] * x[3]

    def correction(self, point: int) -> float:
        """By how much observations differ from the model; the more of them, the more they count.

        One that is far too slow waits for a second: most likely something disturbed it.
        """
        if point not in self.points:
            return 1.0
        if point not in self._typical:
            seen = self.points[point]
            latest = seen[-1][0]
            ratios = [seconds / self.base(x) for x, seconds in seen]
            self._typical[point] = (latest, self.base(latest) * typical(ratios))
        x, seconds = self._typical[point]
        ratio, count = seconds / self.base(x), len(self.points[point])
        return 1.0 if count == 1 and ratio > MAX_SURPRISE else math.pow(ratio, count / (count + 1))

    def is_refuted(self, point: int, seconds: float) -> bool:
        """Whether all that is known is one observation, and more work took far less time."""
        if len(self.points) != 1:
            return False
        ((known, seen),) = self.points.items()
        return len(seen) == 1 and known < point and MAX_SURPRISE * seconds < seen[0][1]

    def forget(self) -> None:
        self.points.clear()
        self._typical.clear()
        self.gram = [[0.0] * 4 for _ in range(4)]
        self.moment = [0.0] * 4

    def rescale(self, seconds: float, x: Vector) -> None:
        """Let the prior, and with it the model, predict ``seconds`` at ``x``."""
        factor = seconds / self.base(x)
        self.weights = [factor * weight for weight in self.weights]
        self.prior = list(self.weights)

    def observe(self, point: int, x: Vector, seconds: float, expected: float) -> None:
        seen = self.points.setdefault(point, [])
        seen.append((x, seconds))
        del seen[:-RECENT]
        self._typical.pop(point, None)
        if len(seen) > 1 or seconds <= MAX_SURPRISE * expected:
            self._fit(x, min(seconds, MAX_SURPRISE * expected))
        self._curves.clear()

    def predict(self, point: float, line: Line) -> float:
        """Seconds at a point, known or not, where the linear model is ``line`` along the points."""
        intercept, slope = line
        if not self.points:
            return intercept + slope * point
        if line not in self._curves:
            if len(self._curves) > MAX_CURVES:
                self._curves.clear()
            self._curves[line] = self._curve(line)
        points, values = self._curves[line]
        i = bisect_left(points, point)
        if 0 < i < len(points):
            left, right = points[i - 1], points[i]
            share = (point - left) / (right - left)
            return values[i - 1] + share * (values[i] - values[i - 1])
        i = min(i, len(points) - 1)
        known = intercept + slope * points[i]
        return values[i] * (intercept + slope * point) / known if known > 0 else values[i]

    def _curve(self, line: Line) -> tuple[list[int], list[float]]:
        """Times at the known points, made non-decreasing by pooling neighbours in their weight."""
        points, (intercept, slope) = sorted(self.points), line
        pools: list[tuple[float, int, int]] = []
        for point in points:
            value = (intercept + slope * point) * self.correction(point)
            # Squared: of two that contradict each other, the one seen once is the outlier.
            weight, size = len(self.points[point]) ** 2, 1
            while pools and pools[-1][0] > value:
                left, left_weight, left_size = pools.pop()
                value = (value * weight + left * left_weight) / (weight + left_weight)
                weight, size = weight + left_weight, size + left_size
            pools.append((value, weight, size))
        return points, [value for value, _, size in pools for _ in range(size)]

    def _fit(self, x: Vector, seconds: float) -> None:
        """Least squares on relative errors by coordinate descent, weights kept at 0 or above."""
        scale = 1.0 / self.base(x) ** 2
        weights, stiffness = self.weights, 1.0 / sum(self.prior) ** 2
        x0, x1, x2, x3 = x
        for i, row in enumerate(self.gram):
            xi = scale * x[i]
            row[0] = FORGET * row[0] + xi * x0
            row[1] = FORGET * row[1] + xi * x1
            row[2] = FORGET * row[2] + xi * x2
            row[3] = FORGET * row[3] + xi * x3
            self.moment[i] = FORGET * self.moment[i] + xi * seconds
        for _ in range(SWEEPS):
            for i, row in enumerate(self.gram):
                w0, w1, w2, w3 = weights
                rest = row[0] * w0 + row[1] * w1 + row[2] * w2 + row[3] * w3 - row[i] * weights[i]
                ridge = stiffness * RIDGE[i]
                best = (self.moment[i] - rest + ridge * self.prior[i]) / (row[i] + ridge)
                weights[i] = best if best > 0 else 0.0


def typical(values: list[float]) -> float:
    """Mean of the values near the lower median: disturbances only ever make things slower."""
    middle = sorted(values)[(len(values) - 1) // 2]
    near = [value for value in values if middle <= NEAR * value and value <= NEAR * middle]
    return sum(near) / len(near)
