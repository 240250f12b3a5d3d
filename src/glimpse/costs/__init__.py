"""What a draft step and a verify pass cost on this machine: learned while running, or pinned."""

from __future__ import annotations

import math
import os
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, TypeAdapter, ValidationError

from glimpse.costs.surface import MAX_SURPRISE, MIN_REFERENCE, RECENT, Surface, typical

DRAFT_SHARE = 0.5
"""Of a plain pass: what a draft step is taken to cost where nothing else is known."""
RoundKind = Literal["plain", "resuming", "drafting"]
"""A round without drafts, the first one with drafts after such rounds, or a later one. One that
resumes has more to do: attention statistics are scored afresh, and most of the glimpse is moved."""
LASTING = 0.2
"""Twice in three observations off by this factor's logarithm: the machine's speed has changed."""


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
        self.draft_share = DRAFT_SHARE
        """What a draft step is taken to cost of a plain pass before one was seen."""
        self._table = _Table()
        self._accounted = 0.0
        self._was_drafting = False
        self._surprises: list[float] = []

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
            resumed: RoundKind = "drafting" if self._was_drafting else "resuming"
            overheads = self._table.overheads[resumed if is_drafting else "plain"]
            overheads.append(max(0.0, seconds - self._accounted))
            del overheads[: -2 * RECENT]
        self._accounted, self._was_drafting = 0.0, is_drafting

    def draft(self, batch: int = 1, context: int | None = None) -> float:
        """Seconds of one draft step; by default with glimpses as large as the latest ones.

        Before any was observed: ``draft_share`` of a plain pass over the same batch.
        """
        draft = self._table.draft
        if not draft.points:
            return self.draft_share * self.verify(batch, batch)
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

    def overhead(self, kind: RoundKind) -> float:
        """Seconds of a round outside draft steps and verify pass; 0 before one was observed."""
        overheads = self._table.overheads[kind]
        return typical(overheads) if overheads else 0.0

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
        self, surface: Surface, point: int, size: tuple[int, int, int], seconds: float
    ) -> None:
        if self.is_pinned or not 0 < seconds < math.inf:
            return
        table, (_, batch, context) = self._table, size
        seconds /= table.speed
        surface.context = context / batch
        if not surface.points or surface.is_refuted(point, seconds):
            surface.forget()
            self._begin(surface, size, seconds)
        x = surface.features(*size)
        expected = surface.base(x) * surface.correction(point)
        if len(surface.points.get(point, ())) > 1:
            self._follow(math.log(seconds / expected))
        surface.observe(point, x, seconds, expected)

    def _begin(self, surface: Surface, size: tuple[int, int, int], seconds: float) -> None:
        """Give a surface its scale before its first observation."""
        _, batch, context = size
        verify = self._table.verify
        plain = verify.features(batch, batch, verify.context * batch)
        surface.reference = max(MIN_REFERENCE, context / batch)
        if surface is not verify and not verify.points:
            verify.rescale(seconds / self.draft_share, plain)
        elif surface is not verify:
            seconds = min(seconds, MAX_SURPRISE * self.draft_share * verify.base(plain))
        surface.rescale(seconds, surface.features(*size))

    def _follow(self, surprise: float) -> None:
        """Let the common speed follow a lasting change soon, a small one slowly, an outlier not."""
        self._surprises = [*self._surprises[-2:], surprise]
        lasting = sorted(self._surprises)[len(self._surprises) // 2]
        if len(self._surprises) == 3 and abs(lasting) > LASTING:
            step, self._surprises = lasting, []
        else:
            step = max(-LASTING, min(LASTING, surprise)) / 20
        table = self._table
        table.speed = max(0.1, min(10.0, table.speed**0.99 * math.exp(step)))


@dataclass
class _Table:
    """All that is learned, in the form in which it is saved."""

    format: Literal["glimpse-costs-1"] = "glimpse-costs-1"
    speed: Annotated[float, Field(gt=0)] = 1.0
    """How much slower than at first everything is now."""
    verify: Surface = field(default_factory=Surface)
    draft: Surface = field(default_factory=Surface)
    overheads: dict[RoundKind, list[float]] = field(
        default_factory=lambda: {"plain": [], "resuming": [], "drafting": []}
    )


_ADAPTER = TypeAdapter(_Table)
