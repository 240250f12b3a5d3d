"""SnapKV with more positions for lower layers."""

from __future__ import annotations

from dataclasses import dataclass, replace

from glimpse.selection import selections
from glimpse.selection.snapkv import Snapkv
from glimpse.types import IndexSpec, Runner, Sequence


@selections.register
@dataclass
class Pyramidkv(Snapkv):
    """PyramidKV (Cai et al. 2024, arXiv 2406.02069): SnapKV's scores, budgets that fall linearly.

    Beyond the window, the last layer has a ``beta``-th of the mean budget and the first what makes
    the mean right. The paper's beta of 20.
    """

    beta: int = 20

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.beta < 1:
            raise ValueError(f"beta={self.beta}: must be at least 1")

    @property
    def needs(self) -> frozenset[str]:
        return super().needs | {"layers"}

    def select(self, runner: Runner, sequence: Sequence) -> IndexSpec:
        spec = super().select(runner, sequence)
        length = runner.length(sequence.handle)
        budgets = self.layer_budgets(spec.mean_budget, length, runner.config.num_layers)
        return replace(spec, budget=budgets)

    def layer_budgets(self, budget: int, length: int, num_layers: int) -> tuple[int, ...]:
        """Budgets of the layers whose mean is ``budget``, each at most ``length``."""
        beyond = budget - self.window
        if beyond <= 0 or num_layers == 1:
            return (budget,) * num_layers
        last = beyond // self.beta
        first = 2 * beyond - last
        if first > length - self.window:
            first = length - self.window
            last = 2 * beyond - first
        step = (first - last) / (num_layers - 1)
        return tuple(self.window + round(first - step * layer) for layer in range(num_layers))
