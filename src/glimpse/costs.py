"""What a draft step and a verify pass cost on this machine: learned while running, or pinned."""

from __future__ import annotations

import math
import os
import tempfile
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from pydantic import TypeAdapter, ValidationError

DRAFT_SHARE = 0.5
"""Before a draft step was seen it is taken to cost this share of a plain pass."""
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

PRIOR = (0.45, 0.05, 0.45, 0.05)
"""Before anything was seen, shares of a plain pass: once, per row, per position, per both."""
RIDGE = (0.1, 1.0, 0.1, 1.0)
"""What the prior of each share weighs, in observations."""

Features = Sequence[float]
Line = tuple[float, float]
"""The linear model along one axis: intercept and slope."""


class CostModel:
    """Seconds of draft steps, verify passes and rounds, as functions of rows, batch and context.

    A linear model with non-negative weights gives the shape (weights once, KV per position,
    arithmetic per row and per row and position); the recent observations at each number of rows per
    sequence correct it. So predictions never fall as rows, batch or context grow. One factor common
    to all predictions follows a machine that slows down or speeds up as a whole.

    ``context`` is the number of positions read, summed over the batch. A pinned model ignores
    observations: its predictions, and the draft lengths chosen from them, can be reproduced.
    """

    def __init__(self) -> None:
        self.is_pinned = False
        self._table = _Table()
        self._accounted = 0.0

    def observe_draft(self, batch: int, context: int, seconds: float, num_steps: int = 1) -> None:
        """One draft step of ``batch`` sequences with ``context`` positions in their glimpses.

        With ``num_steps`` it stands for so many alike, of ``seconds`` each.
        """
        self._accounted += num_steps * seconds
        self._observe(self._table.draft, batch, (batch, batch, context), seconds)

    def observe_verify(self, rows: int, batch: int, context: int, seconds: float) -> None:
        """One dense pass over ``rows`` tokens, last ones and drafts, of ``batch`` sequences."""
        point = max(1, round(rows / batch))
        self._accounted += seconds
        self._observe(self._table.verify, point, (rows, batch, context), seconds)

    def observe_round(self, is_drafting: bool, seconds: float) -> None:
        """The whole round whose parts were observed since the last call: the rest is overhead."""
        if not self.is_pinned and self._accounted > 0:
            overheads = self._table.overheads[_kind(is_drafting)]
            overheads.append(max(0.0, seconds - self._accounted))
            del overheads[: -2 * RECENT]
        self._accounted = 0.0

    def draft(self, batch: int = 1, context: int | None = None) -> float:
        """Seconds of one draft step; by default with glimpses as large as the latest ones.

        Before any was observed: ``DRAFT_SHARE`` of a plain pass over the same batch.
        """
        draft = self._table.draft
        if not draft.points:
            return DRAFT_SHARE * self.verify(batch, batch)
        each = draft.context if context is None else context / batch
        size = each / draft.reference
        w = draft.weights
        return self._table.speed * draft.predict(batch, (w[0], w[1] + (w[2] + w[3]) * size))

    def verify(self, rows: float, batch: int = 1, context: int | None = None) -> float:
        """Seconds of a dense pass over ``rows`` tokens of ``batch`` sequences; by default with
        contexts as long as the latest ones. ``rows == batch`` is a plain pass.

        Before any was observed: the prior shape, to the scale of the draft steps if there were any.
        """
        verify = self._table.verify
        size = (verify.context * batch if context is None else context) / verify.reference
        w = verify.weights
        line = (w[0] + w[2] * size, w[1] * batch + w[3] * size)
        return self._table.speed * verify.predict(rows / batch, line)

    def overhead(self, is_drafting: bool) -> float:
        """Seconds of a round outside draft steps and verify pass; 0 before any was observed."""
        return _typical(self._table.overheads[_kind(is_drafting)] or [0.0])

    def num_drafts(self, batch: int = 1) -> int:
        """Draft steps observed with this batch, counted up to ``RECENT``."""
        return len(self._table.draft.points.get(batch, ()))

    def num_verifies(self, rows: int, batch: int = 1) -> int:
        """Dense passes observed with about these rows per sequence, counted up to ``RECENT``."""
        return len(self._table.verify.points.get(max(1, round(rows / batch)), ()))

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the table as JSON; the file is replaced whole or not at all."""
        path = Path(path)
        text = _ADAPTER.dump_json(self._table, indent=1)
        handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}-")
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(text + b"\n")
            os.replace(temporary, path)
        except BaseException:
            os.unlink(temporary)
            raise

    @classmethod
    def load(cls, path: str | os.PathLike[str], *, is_pinned: bool = True) -> CostModel:
        """Read a saved table. Raises ValueError if it is not one, OSError if it cannot be read."""
        model = cls()
        try:
            model._table = _ADAPTER.validate_json(Path(path).read_bytes())
        except ValidationError as error:
            reason = error.errors()[0]
            where = ".".join(map(str, reason["loc"])) or "the file"
            raise ValueError(f"{path} is not a cost table: {where}: {reason['msg']}") from None
        model.is_pinned = is_pinned
        return model

    def _observe(
        self, surface: _Surface, point: int, size: tuple[int, int, int], seconds: float
    ) -> None:
        if self.is_pinned or not 0 < seconds < math.inf:
            return
        table, (_, batch, context) = self._table, size
        seconds /= table.speed
        surface.context = context / batch
        if not surface.points:
            self._begin(surface, size, seconds)
        x = surface.features(*size)
        expected = surface.base(x) * surface.correction(point)
        if len(surface.points.get(point, ())) > 1:
            table.drift(seconds / expected)
        surface.observe(point, x, seconds, expected)

    def _begin(self, surface: _Surface, size: tuple[int, int, int], seconds: float) -> None:
        """Give a surface its scale before its first observation."""
        _, batch, context = size
        verify = self._table.verify
        plain = verify.features(batch, batch, verify.context * batch)
        surface.reference = max(MIN_REFERENCE, context / batch)
        if surface is not verify and not verify.points:
            verify.rescale(seconds / DRAFT_SHARE, plain)
        elif surface is not verify:
            seconds = min(seconds, MAX_SURPRISE * DRAFT_SHARE * verify.base(plain))
        surface.rescale(seconds, surface.features(*size))


@dataclass
class _Surface:
    """Times over (rows, batch, context): a non-negative linear model, corrected at known points."""

    weights: list[float] = field(default_factory=lambda: [w * UNKNOWN_PLAIN_S for w in PRIOR])
    prior: list[float] = field(default_factory=lambda: [w * UNKNOWN_PLAIN_S for w in PRIOR])
    gram: list[list[float]] = field(default_factory=lambda: [[0.0] * 4 for _ in range(4)])
    moment: list[float] = field(default_factory=lambda: [0.0] * 4)
    points: dict[int, list[tuple[tuple[float, ...], float]]] = field(default_factory=dict)
    """The recent observations, features and seconds, by rows per sequence or by batch."""
    reference: float = MIN_REFERENCE
    context: float = MIN_REFERENCE
    """Positions per sequence at the latest observation."""

    def __post_init__(self) -> None:
        # Derived from the fields when needed: times along a line, and at each point.
        self._curves: dict[Line, tuple[list[int], list[float]]] = {}
        self._typical: dict[int, tuple[Features, float]] = {}

    def features(self, rows: float, batch: float, context: float) -> tuple[float, ...]:
        size = context / self.reference
        return (1.0, rows, size, size * rows / batch)

    def base(self, x: Features) -> float:
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
            self._typical[point] = (latest, self.base(latest) * _typical(ratios))
        x, seconds = self._typical[point]
        ratio, count = seconds / self.base(x), len(self.points[point])
        return 1.0 if count == 1 and ratio > MAX_SURPRISE else math.pow(ratio, count / (count + 1))

    def rescale(self, seconds: float, x: Features) -> None:
        """Let the prior, and with it the model, predict ``seconds`` at ``x``."""
        factor = seconds / self.base(x)
        self.weights = [factor * weight for weight in self.weights]
        self.prior = list(self.weights)

    def observe(self, point: int, x: tuple[float, ...], seconds: float, expected: float) -> None:
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
            self._curves[line] = self._curve(line)
        points, values = self._curves[line]
        i = bisect_left(points, point)
        if 0 < i < len(points):
            left, right = points[i - 1], points[i]
            share = (point - left) / (right - left)
            return values[i - 1] + share * (values[i] - values[i - 1])
        i = min(i, len(points) - 1)
        return values[i] * (intercept + slope * point) / (intercept + slope * points[i])

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

    def _fit(self, x: Features, seconds: float) -> None:
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


@dataclass
class _Table:
    """All that is learned, in the form in which it is saved."""

    format: Literal["glimpse-costs-1"] = "glimpse-costs-1"
    speed: float = 1.0
    """How much slower than at first everything is now."""
    verify: _Surface = field(default_factory=_Surface)
    draft: _Surface = field(default_factory=_Surface)
    overheads: dict[Literal["plain", "drafting"], list[float]] = field(
        default_factory=lambda: {"plain": [], "drafting": []}
    )

    def drift(self, surprise: float) -> None:
        """Follow a change of the machine's speed, a tenth of it at a time and never far."""
        step = max(-0.1, min(0.1, math.log(surprise)))
        self.speed = max(0.2, min(5.0, self.speed**0.99 * math.exp(0.1 * step)))


_ADAPTER = TypeAdapter(_Table)


def _kind(is_drafting: bool) -> Literal["plain", "drafting"]:
    return "drafting" if is_drafting else "plain"


def _typical(values: list[float]) -> float:
    """Mean of the values near the lower median: disturbances only ever make things slower."""
    middle = sorted(values)[(len(values) - 1) // 2]
    near = [value for value in values if middle <= NEAR * value and value <= NEAR * middle]
    return sum(near) / len(near)
