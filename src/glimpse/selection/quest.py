"""Pages that could matter to the query at hand, chosen anew at every draft step."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from torch import Tensor

from glimpse.selection import BudgetedSelection, selections
from glimpse.selection.ranking import PageDigests, box, box_bound, spread
from glimpse.types import IndexSpec, Runner, Sequence, Statistics


@selections.register
@dataclass
class Quest(BudgetedSelection):
    """Quest (Tang et al. 2024, arXiv 2406.10774), per KV head, scores summed over its query heads.

    A page of 16 positions scores the most that a key within the bounds of its keys could have with
    the query: sum_d max(q_d min_d, q_d max_d). Whole pages are kept, three at least, the last one
    always; the first two layers see everything, outside the budget.
    """

    min_budget: int = 48
    sink_size: int = 0
    page_size: int = 16
    num_dense_layers: int = 2
    num_recent_pages: int = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        for name, least in (("page_size", 1), ("num_dense_layers", 0), ("num_recent_pages", 1)):
            if getattr(self, name) < least:
                raise ValueError(f"{name}={getattr(self, name)}: must be at least {least}")
        self._digests = PageDigests(self.page_size, box)

    @property
    def statistics(self) -> Statistics:
        return Statistics()

    @property
    def needs(self) -> frozenset[str]:
        return frozenset({"ranking", "layers"} if self.num_dense_layers else {"ranking"})

    def select(self, runner: Runner, sequence: Sequence) -> IndexSpec:
        length = runner.length(sequence.handle)
        num_pages = max(1, self.num_positions(length) // self.page_size)
        last = (length - 1) % self.page_size + 1
        budget = min(length, (num_pages - 1) * self.page_size + last)
        num_layers = runner.config.num_layers
        num_dense = min(self.num_dense_layers, num_layers)
        budgets = (length,) * num_dense + (budget,) * (num_layers - num_dense)
        return IndexSpec(
            budget=budgets if num_dense else budget,
            sink_size=self.sink_size,
            recent_size=(self.num_recent_pages - 1) * self.page_size + last,
            rank=partial(self._rank, sequence),
            is_stepwise=True,
        )

    def _rank(self, sequence: Sequence, layer: int, queries: Tensor, keys: Tensor) -> Tensor:
        boxes = self._digests(sequence, layer, keys)
        return spread(box_bound(queries, boxes), self.page_size, keys.shape[1])
