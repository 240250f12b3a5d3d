"""What the runner holds of one sequence."""

from __future__ import annotations

import torch
from torch import Tensor

from glimpse.config import ModelConfig
from glimpse.runners.torch.attention import MAX_WEIGHTED_ROWS
from glimpse.runners.torch.cumulative import CumulativeStatistics
from glimpse.runners.torch.glimpse import Glimpse, check_spec, choose
from glimpse.runners.torch.kv import KVBuffer
from glimpse.runners.torch.placement import wide
from glimpse.runners.torch.span import Span, StepwiseSpan
from glimpse.runners.torch.statistics import WindowStatistics
from glimpse.types import IndexSpec, Statistics


class SequenceState:
    """Dense KV of the first ``length`` positions, the glimpse and the statistics."""

    def __init__(
        self,
        config: ModelConfig,
        capacity: int,
        kept: Statistics,
        device: torch.device,
        dtype: torch.dtype,
    ) -> None:
        self.config = config
        self.length = 0
        self.kv = KVBuffer(config, min(capacity, config.max_seq_len), device, dtype)
        self.statistics = (
            WindowStatistics(config, kept.window, device, dtype) if kept.window else None
        )
        self.cumulative = (
            CumulativeStatistics(config, device, wide(dtype)) if kept.is_cumulative else None
        )
        self.glimpse = Glimpse(config, device, dtype)

    @property
    def shape(self) -> tuple[int, int, int]:
        """Of scores: [num_layers, num_kv_heads, length]."""
        return self.config.num_layers, self.config.num_kv_heads, self.length

    # ------------------------------------------------------------------------------------ passes

    def check_dense(self, num_rows: int) -> None:
        """Raises ValueError for rows beyond the model's context."""
        self._check_room(self.length, num_rows)

    def begin_dense(self, num_rows: int, is_observed: bool) -> Span:
        self.glimpse.tail_length = 0
        self._reserve(self.length + num_rows)
        span = Span(
            self.kv,
            self.length,
            self.length,
            num_rows,
            statistics=self.statistics,
            cumulative=self.cumulative,
        )
        if self.cumulative is not None:
            self.cumulative.begin(self.length, num_rows)
        if self.statistics is not None:
            self.statistics.commit(self.length)
            span.query_slots = self.statistics.begin(self.length, num_rows)
            if is_observed and num_rows <= MAX_WEIGHTED_ROWS:
                span.observed = self.statistics.room(num_rows, self.length + num_rows)
        return span

    def end_dense(self, span: Span) -> None:
        self.length += span.num_rows
        if self.statistics is not None and span.observed is not None:
            self.statistics.expect(span.start, span.observed)

    def check_draft(self, num_rows: int, num_layers: int) -> None:
        """Raises RuntimeError without a glimpse, ValueError for rows that cannot follow it."""
        glimpse = self.glimpse
        if not glimpse.exists:
            raise RuntimeError("the sequence has no glimpse: refresh it before drafting")
        if glimpse.tail_length and num_layers > glimpse.tail_layers:
            raise ValueError(
                f"exit_layer={num_layers}: must be at most {glimpse.tail_layers}, where the draft "
                "tail stopped; refresh drops it"
            )
        self._check_room(self.length + glimpse.tail_length, num_rows)

    def begin_draft(self, num_rows: int) -> Span:
        glimpse = self.glimpse
        position = self.length + glimpse.tail_length
        if glimpse.is_whole:
            self._reserve(position + num_rows)
            return Span(self.kv, position, position, num_rows)
        sizes = [0] if glimpse.stepwise else glimpse.sizes
        start = max(sizes) + glimpse.tail_length
        glimpse.kv.reserve(start + num_rows, start)
        if glimpse.stepwise:
            return StepwiseSpan(
                glimpse.kv,
                start,
                position,
                num_rows,
                spec=glimpse.stepwise,
                dense=self.kv,
                length=glimpse.length,
            )
        starts = [size + glimpse.tail_length for size in sizes]
        return Span(glimpse.kv, start, position, num_rows, starts)

    def end_draft(self, span: Span, num_layers: int) -> None:
        self.glimpse.tail_length += span.num_rows
        self.glimpse.tail_layers = num_layers

    # ----------------------------------------------------------------------------- between passes

    def truncate(self, length: int) -> None:
        self.check_length(length)
        self.length = length
        self.glimpse.truncate(length)
        if self.statistics is not None:
            self.statistics.commit(length)
        if self.cumulative is not None:
            self.cumulative.commit(length)

    def truncate_draft(self, num_tokens: int) -> None:
        if not 0 <= num_tokens <= self.glimpse.tail_length:
            raise ValueError(
                f"num_tokens={num_tokens}: must be from 0 to {self.glimpse.tail_length}, "
                "the draft tail"
            )
        self.glimpse.tail_length = num_tokens

    def check_length(self, length: int) -> None:
        if not 0 <= length <= self.length:
            raise ValueError(f"length={length}: must be from 0 to {self.length}")

    def scores(self, window: int) -> Tensor:
        """As ``WindowStatistics.scores``. Raises ValueError for a window that is not kept."""
        statistics = self._statistics_of(window)
        statistics.commit(self.length)
        return statistics.scores(self.kv, window, self.length)

    def refresh(self, spec: IndexSpec) -> None:
        check_spec(spec, self.shape)
        if spec.window:
            self._statistics_of(spec.window)
        if spec.is_cumulative and self.cumulative is None:
            raise ValueError("is_cumulative: the sequence was not opened to keep such statistics")
        self.glimpse.tail_length = 0
        if min(spec.budgets(self.config.num_layers)) >= self.length:
            self.glimpse.is_whole = True
        elif spec.is_stepwise:
            self.glimpse.follow(spec, self.length)
        else:
            chosen = choose(spec, self._ranking(spec), self.shape, self.kv.keys.device)
            self.glimpse.refresh(self.kv, chosen)

    def _ranking(self, spec: IndexSpec) -> Tensor | None:
        """What ranks the middle: [num_layers, num_kv_heads, length], or None."""
        if spec.rank is not None:
            statistics = self._statistics_of(spec.window)
            statistics.commit(self.length)
            queries = statistics.queries(spec.window, self.length)
            keys = self.kv.keys[:, :, : self.length]
            return torch.stack(
                [
                    spec.rank(layer, q, k)
                    for layer, (q, k) in enumerate(zip(queries, keys, strict=True))
                ]
            )
        if spec.is_cumulative and self.cumulative is not None:
            return self.cumulative.scores(self.length)
        return self.scores(spec.window) if spec.window else spec.scores

    def index(self) -> Tensor:
        """Positions in the glimpse, ascending. Raises RuntimeError without one."""
        if self.glimpse.is_whole:
            return torch.arange(self.length, device=self.kv.keys.device).expand(self.shape).clone()
        if self.glimpse.stepwise is not None:
            raise RuntimeError(
                "the glimpse is stepwise: each draft step chooses an index of its own"
            )
        if self.glimpse.index is None:
            raise RuntimeError("the sequence has no glimpse: refresh it first")
        index = self.glimpse.index.sort(dim=2).values
        return index.masked_fill_(index == self.glimpse.length, -1)

    def copy_from(self, other: SequenceState, length: int) -> None:
        """Become a copy of the first ``length`` positions of ``other``."""
        self.kv.copy_from(other.kv, length)
        self.length = length
        if self.statistics is not None:
            self.statistics.copy_from(other.statistics, length)
        if self.cumulative is not None:
            self.cumulative.copy_from(other.cumulative, length)

    def _statistics_of(self, window: int) -> WindowStatistics:
        statistics = self.statistics
        if statistics is None or not 1 <= window <= statistics.window:
            kept = 0 if statistics is None else statistics.window
            raise ValueError(
                f"window={window}: must be from 1 to the {kept} queries that the sequence was "
                "opened to keep"
            )
        return statistics

    def _reserve(self, num_positions: int) -> None:
        used = self.length + self.glimpse.tail_length * self.glimpse.is_whole
        self.kv.reserve(num_positions, used, self.config.max_seq_len)

    def _check_room(self, start: int, num_rows: int) -> None:
        excess = start + num_rows - self.config.max_seq_len
        if excess > 0:
            raise ValueError(
                f"{num_rows} tokens from position {start} on: {excess} more than fit into the "
                f"model's context of {self.config.max_seq_len}"
            )
