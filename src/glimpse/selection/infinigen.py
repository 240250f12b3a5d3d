"""Scores from a part of the query and of the keys, at every draft step."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from weakref import WeakKeyDictionary

from torch import Tensor

from glimpse.selection import BudgetedSelection, selections
from glimpse.types import IndexSpec, Runner, Sequence, Statistics


@selections.register
@dataclass
class Infinigen(BudgetedSelection):
    """InfiniGen (Lee et al. 2024, OSDI) over a resident cache, per KV head.

    Positions are ranked by products over ``partial_ratio`` of the dimensions, the paper's 0.3,
    summed over a group's query heads. The dimensions are those with the largest sum of absolute
    values in query and keys, chosen when a text first drafts. The first layer sees everything. The
    paper guesses a layer's query from the layer before, to hide a transfer; here the query itself
    is at hand. Not here: the rotation of the weights that makes few dimensions tell more.
    """

    sink_size: int = 0
    partial_ratio: float = 0.3
    num_dense_layers: int = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 < self.partial_ratio <= 1:
            raise ValueError(f"partial_ratio={self.partial_ratio}: must be above 0 and at most 1")
        if self.num_dense_layers < 0:
            raise ValueError(f"num_dense_layers={self.num_dense_layers}: must be at least 0")
        self._dims: WeakKeyDictionary[Sequence, dict[int, Tensor]] = WeakKeyDictionary()

    @property
    def statistics(self) -> Statistics:
        return Statistics()

    @property
    def needs(self) -> frozenset[str]:
        return frozenset({"ranking", "layers"} if self.num_dense_layers else {"ranking"})

    def select(self, runner: Runner, sequence: Sequence) -> IndexSpec:
        length = runner.length(sequence.handle)
        budget, num_layers = self.num_positions(length), runner.config.num_layers
        num_dense = min(self.num_dense_layers, num_layers)
        budgets = (length,) * num_dense + (budget,) * (num_layers - num_dense)
        return IndexSpec(
            budget=budgets if num_dense else budget,
            sink_size=self.sink_size,
            recent_size=0,
            rank=partial(self._rank, self._dims.setdefault(sequence, {})),
            is_stepwise=True,
        )

    def _rank(self, dims: dict[int, Tensor], layer: int, queries: Tensor, keys: Tensor) -> Tensor:
        flat = queries.flatten(1, 2)
        if layer not in dims:
            weight = keys.abs().sum(1) + flat.abs().sum(1)
            num_dims = max(1, round(self.partial_ratio * keys.shape[2]))
            dims[layer] = weight.topk(num_dims).indices[:, None]
        chosen = dims[layer]
        part = keys.gather(2, chosen.expand(-1, keys.shape[1], -1))
        query = flat.gather(2, chosen.expand(-1, flat.shape[1], -1))
        return (query @ part.transpose(1, 2)).sum(1)
