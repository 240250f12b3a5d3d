"""What the last queries attend to, smoothed over neighbouring positions."""

from __future__ import annotations

import math
from dataclasses import dataclass
from weakref import WeakKeyDictionary

import torch
import torch.nn.functional as F
from torch import Tensor

from glimpse.selection import BudgetedSelection, selections
from glimpse.types import IndexSpec, Runner, Sequence, Statistics


@selections.register
@dataclass
class Snapkv(BudgetedSelection):
    """SnapKV (Li et al. 2024, arXiv 2404.14469) per KV head, scores summed over its query heads.

    The attention of the last ``window`` queries, summed, averaged over ``kernel_size`` neighbouring
    positions; the best are kept, and the window itself. The paper's window of 32 and kernel of 5;
    it has no sinks of their own. It chooses again whenever drafting begins, unless ``is_static``:
    then, as in MagicDec (Chen et al. 2024, arXiv 2408.11049), once after the prompt, and what is
    generated since is added.
    """

    sink_size: int = 0
    window: int = 32
    kernel_size: int = 5
    is_static: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.window < 1:
            raise ValueError(f"window={self.window}: must be at least 1")
        if self.kernel_size < 1 or self.kernel_size % 2 == 0:
            raise ValueError(f"kernel_size={self.kernel_size}: must be odd and at least 1")
        self._chosen: WeakKeyDictionary[Sequence, tuple[int, Tensor]] = WeakKeyDictionary()

    @property
    def statistics(self) -> Statistics:
        return Statistics(window=self.window)

    def select(self, runner: Runner, sequence: Sequence) -> IndexSpec:
        length = runner.length(sequence.handle)
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
        return pooled(scores, self.kernel_size)

    def _spec(self, budget: int, scores: Tensor) -> IndexSpec:
        return IndexSpec(
            budget=min(budget, scores.shape[2]),
            sink_size=self.sink_size,
            recent_size=self.window,
            scores=scores,
        )


def pooled(scores: Tensor, kernel_size: int) -> Tensor:
    """Means over ``kernel_size`` neighbouring positions, fewer at the ends: same shape."""
    pad = kernel_size // 2
    means: Tensor = F.avg_pool1d(
        scores.to(torch.float32), kernel_size, stride=1, padding=pad, count_include_pad=False
    )
    return means
