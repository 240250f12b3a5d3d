"""A sequence's part in a forward pass: where its rows' KV goes, and what they see."""

from __future__ import annotations

from collections.abc import Sequence as SequenceOf
from dataclasses import dataclass, field

import torch
from torch import Tensor

from glimpse.runners.torch.attention import (
    MAX_WEIGHTED_ROWS,
    attend_many,
    attention_weights,
    causal_mask,
    weighted_sum,
)
from glimpse.runners.torch.cumulative import CumulativeStatistics
from glimpse.runners.torch.glimpse import choose_best
from glimpse.runners.torch.kv import KVBuffer
from glimpse.runners.torch.statistics import RingPart, WindowStatistics
from glimpse.types import IndexSpec


@dataclass
class Span:
    """The rows of one sequence in a pass: where their KV goes, and what is noted about them."""

    kv: KVBuffer
    start: int
    """Where in ``kv`` the rows' own KV goes; they see everything before it."""
    position: int
    """Of the first row in the text."""
    num_rows: int
    layer_starts: SequenceOf[int] | None = None
    """``start`` of each layer, where they differ."""
    statistics: WindowStatistics | None = None
    cumulative: CumulativeStatistics | None = None
    query_slots: list[RingPart] = field(default_factory=list)
    observed: Tensor | None = None
    """Filled with the rows' attention [num_layers, num_kv_heads, num_rows, start + num_rows]."""
    mask: Tensor | None = field(init=False)

    def __post_init__(self) -> None:
        self.mask = causal_mask(self.num_rows, self.kv.keys.device)

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """``decoder.Attend`` for these rows."""
        start = self.start if self.layer_starts is None else self.layer_starts[layer]
        keys, values = self.kv.write(layer, start, k, v)
        q = q.view(q.shape[0], keys.shape[0], -1, q.shape[2]).permute(1, 2, 0, 3)
        if self.statistics is not None:
            self.statistics.record(layer, q, self.query_slots)
        return self._attend(layer, q, keys, values).permute(2, 0, 1, 3).flatten(1)

    def _attend(self, layer: int, q: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        """Attention of q [num_kv_heads, group_size, num_rows, head_dim], and of its shape."""
        if self.num_rows > MAX_WEIGHTED_ROWS:
            if self.cumulative is not None:
                self._accumulate(self.cumulative, layer, q, keys)
            return attend_many(q, keys, values)
        weights = attention_weights(q, keys, self.mask)
        if self.observed is not None:
            torch.sum(weights, 1, out=self.observed[layer])
        if self.cumulative is not None:
            self.cumulative.add(layer, 0, weights)
        return weighted_sum(weights, values)

    def _accumulate(
        self, cumulative: CumulativeStatistics, layer: int, q: Tensor, keys: Tensor
    ) -> None:
        """The weights of many rows, so many at a time as are held in memory."""
        for row, rows in enumerate(torch.split(q, MAX_WEIGHTED_ROWS, 2)):
            first = row * MAX_WEIGHTED_ROWS
            num_rows = rows.shape[2]
            seen = keys[:, : self.start + first + num_rows]
            mask = causal_mask(num_rows, keys.device)
            cumulative.add(layer, first, attention_weights(rows, seen, mask))


@dataclass(kw_only=True)
class StepwiseSpan(Span):
    """Drafted rows that each choose for themselves what they see of the dense KV."""

    spec: IndexSpec
    dense: KVBuffer
    length: int
    """Positions of ``dense`` to choose from."""

    def _attend(self, layer: int, q: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        attended = []
        for row, query in enumerate(torch.split(q, 1, 2)):
            end = self.start + row + 1
            chosen_keys, chosen_values = self._chosen(layer, query)
            seen = torch.cat([chosen_keys, keys[:, :end]], 1)
            weights = attention_weights(query, seen, None)
            attended.append(weighted_sum(weights, torch.cat([chosen_values, values[:, :end]], 1)))
        return torch.cat(attended, 2)

    def _chosen(self, layer: int, query: Tensor) -> tuple[Tensor, Tensor]:
        """Keys and values [num_kv_heads, budget, head_dim] that one row sees of the dense KV."""
        keys = self.dense.keys[layer, :, : self.length]
        values = self.dense.values[layer, :, : self.length]
        budget = self.spec.budgets(self.dense.keys.shape[0])[layer]
        if budget >= self.length or self.spec.rank is None:
            return keys, values
        chosen = torch.zeros(len(keys), self.length + 1, dtype=torch.bool, device=keys.device)
        choose_best(self.spec, budget, self.spec.rank(layer, query, keys), chosen)
        index = chosen.nonzero()[:, 1].view(len(keys), -1, 1).expand(-1, -1, keys.shape[2])
        return keys.gather(1, index), values.gather(1, index)
