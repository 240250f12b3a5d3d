"""Chunks whose mean key is closest to the last query."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from torch import Tensor

from glimpse.selection import BudgetedSelection, selections
from glimpse.selection.ranking import PageDigests, spread
from glimpse.types import IndexSpec, Runner, Sequence, Statistics


@selections.register
@dataclass
class Chunk(BudgetedSelection):
    """TriForce's retrieval cache (Sun et al. 2024, arXiv 2404.11912), per KV head.

    Chunks of 8 positions, ranked when drafting begins by the product of their mean key and the last
    query, summed over a group's query heads; the first chunk always, and what is behind the last
    whole one. The paper's budget is 4096 positions of 120k.
    """

    sink_size: int = 8
    chunk_size: int = 8

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.chunk_size < 1:
            raise ValueError(f"chunk_size={self.chunk_size}: must be at least 1")
        self._digests = PageDigests(self.chunk_size, lambda chunks: chunks.mean(-2))

    @property
    def statistics(self) -> Statistics:
        return Statistics(window=1)

    @property
    def needs(self) -> frozenset[str]:
        return frozenset({"ranking"})

    def select(self, runner: Runner, sequence: Sequence) -> IndexSpec:
        length = runner.length(sequence.handle)
        rest = length % self.chunk_size
        whole = max(1, self.num_positions(length) // self.chunk_size) * self.chunk_size
        return IndexSpec(
            budget=min(length, whole + rest),
            sink_size=self.sink_size,
            recent_size=rest,
            window=1,
            rank=partial(self._rank, sequence),
        )

    def _rank(self, sequence: Sequence, layer: int, queries: Tensor, keys: Tensor) -> Tensor:
        means = self._digests(sequence, layer, keys)
        scores = (queries.flatten(1, 2) @ means.transpose(1, 2)).sum(1)
        return spread(scores, self.chunk_size, keys.shape[1])
