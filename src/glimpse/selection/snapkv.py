"""What the last queries attend to, smoothed over neighbouring positions."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial
from typing import Literal
from weakref import WeakKeyDictionary

import torch
import torch.nn.functional as F
from torch import Tensor

from glimpse.selection import BudgetedSelection, selections
from glimpse.selection.ranking import Aggregation, attention
from glimpse.types import IndexSpec, Runner, Sequence, Statistics

Pooling = Literal["avg", "max"]


@selections.register
@dataclass
class Snapkv(BudgetedSelection):
    """SnapKV (Li et al. 2024, arXiv 2404.14469) per KV head.

    The attention of the last ``window`` queries, summed, pooled over ``kernel_size`` neighbouring
    positions; the best are kept, and the window itself. The paper's window of 32 and average over
    5 (its LongBench runs take the maximum over 7); it has no sinks of its own. A group's query
    heads count by their sum (as in MagicDec) or their mean (as in kvpress), which order positions
    alike, or by their maximum. It chooses again whenever drafting begins, unless ``is_static``:
    then, as in MagicDec (Chen et al. 2024, arXiv 2408.11049), once after the prompt, and what is
    generated since is added.
    """

    sink_size: int = 0
    window: int = 32
    kernel_size: int = 5
    pooling: Pooling = "avg"
    aggregation: Aggregation = "sum"
    is_static: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.window < 1:
            raise ValueError(f"window={self.window}: must be at least 1")
        if self.kernel_size < 1 or self.kernel_size % 2 == 0:
            raise ValueError(f"kernel_size={self.kernel_size}: must be odd and at least 1")
        if self.is_static and self.aggregation == "max":
            raise ValueError("aggregation=max: must be sum or mean where is_static")
        self._chosen: WeakKeyDictionary[Sequence, tuple[int, Tensor]] = WeakKeyDictionary()

    @property
    def statistics(self) -> Statistics:
        return Statistics(window=self.window)

    @property
    def needs(self) -> frozenset[str]:
        # Runners sum over a group; its maximum needs the queries themselves.
        return frozenset({"ranking"} if self.aggregation == "max" else ())

    def select(self, runner: Runner, sequence: Sequence) -> IndexSpec:
        length = runner.length(sequence.handle)
        if self.aggregation == "max":
            return IndexSpec(
                budget=self.num_positions(length),
                sink_size=self.sink_size,
                recent_size=self.window,
                window=self.window,
                rank=partial(rank_by_maximum, self.kernel_size, self.pooling),
            )
        if not self.is_static:
            return self._spec(self.num_positions(length), self._scores(runner, sequence))
        if sequence not in self._chosen:
            scores = self._scores(runner, sequence)
            # What is recent now must stay when it is recent no more.
            scores[..., -self.window :] = math.inf
            self._chosen[sequence] = (self.num_positions(length), scores)
        budget, scores = self._chosen[sequence]
        since = length - scores.shape[2]
        return self._spec(budget + since, F.pad(scores, (0, since), value=math.inf))

    def _scores(self, runner: Runner, sequence: Sequence) -> Tensor:
        scores = runner.attention_scores(sequence.handle, self.window)
        if self.aggregation == "mean":
            scores /= runner.config.group_size
        return pooled(scores, self.kernel_size, self.pooling)

    def _spec(self, budget: int, scores: Tensor) -> IndexSpec:
        return IndexSpec(
            budget=min(budget, scores.shape[2]),
            sink_size=self.sink_size,
            recent_size=self.window,
            scores=scores,
        )


def rank_by_maximum(
    kernel_size: int,
    pooling: Pooling,
    layer: int,  # noqa: ARG001
    queries: Tensor,
    keys: Tensor,
) -> Tensor:
    """The largest of a group's pooled scores, which keeps what matters to one query head only."""
    scores = attention(queries, keys).sum(2)
    return pooled(scores, kernel_size, pooling).amax(1)


def pooled(scores: Tensor, kernel_size: int, pooling: Pooling = "avg") -> Tensor:
    """Means or maxima over ``kernel_size`` neighbours, fewer at the ends: same shape."""
    pad, scores = kernel_size // 2, scores.to(torch.float32)
    if pooling == "max":
        return F.max_pool1d(scores, kernel_size, stride=1, padding=pad)
    means: Tensor = F.avg_pool1d(
        scores, kernel_size, stride=1, padding=pad, count_include_pad=False
    )
    return means
