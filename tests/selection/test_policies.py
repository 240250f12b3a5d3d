"""Which positions each policy keeps: small cases worked by hand, per layer and KV head."""

from __future__ import annotations

import math
from types import SimpleNamespace

import pytest
import torch
from torch import Tensor

from glimpse.config import Method, SamplingParams
from glimpse.selection import selections
from glimpse.selection.snapkv import pooled
from glimpse.types import IndexSpec, Sequence


class FakeRunner:
    """A runner of two layers whose statistics are given."""

    config = SimpleNamespace(num_layers=2, group_size=3)

    def __init__(self, scores: Tensor) -> None:
        self.scores = scores
        self.windows: list[int] = []

    def length(self, handle: int) -> int:
        return self.scores.shape[2]

    def attention_scores(self, handle: int, window: int) -> Tensor:
        self.windows.append(window)
        return self.scores.clone()


def sequence() -> Sequence:
    return Sequence(0, [0], 1, SamplingParams(), Method("test"), "greedy", 0)


def select(spec: str, scores: Tensor) -> IndexSpec:
    return selections.build(spec).select(FakeRunner(scores), sequence())


def test_pooling_averages_neighbours_and_counts_only_those_there_are() -> None:
    scores = torch.tensor([[[0.0, 3.0, 0.0, 0.0, 0.0, 6.0]]])
    assert pooled(scores, 3).tolist() == [[[1.5, 1.0, 1.0, 0.0, 2.0, 3.0]]]
    assert pooled(scores, 1).tolist() == scores.tolist()


def test_snapkv_keeps_the_window_and_the_best_smoothed() -> None:
    scores = torch.zeros(1, 2, 100)
    scores[0, 0, 20], scores[0, 1, 60] = 5.0, 5.0
    runner = FakeRunner(scores)
    spec = selections.build("snapkv:budget=0.4,min_budget=1").select(runner, sequence())
    assert runner.windows == [32]
    assert (spec.budget, spec.sink_size, spec.recent_size, spec.window) == (40, 0, 32, 0)
    # A kernel of 5: what is best, and two on each side, share one score.
    assert spec.scores[0, 0].nonzero().flatten().tolist() == [18, 19, 20, 21, 22]
    assert spec.scores[0, 1].nonzero().flatten().tolist() == [58, 59, 60, 61, 62]


def test_a_static_snapkv_chooses_once_and_keeps_what_came_since() -> None:
    policy, text = selections.build("snapkv:budget=0.4,min_budget=1,is_static=true"), sequence()
    runner = FakeRunner(torch.rand(1, 1, 100, generator=torch.Generator().manual_seed(0)))
    first = policy.select(runner, text)
    best = first.scores[0, 0, :68].topk(8).indices.sort().values
    runner.scores = torch.rand(1, 1, 110, generator=torch.Generator().manual_seed(1))
    second = policy.select(runner, text)
    assert runner.windows == [32]
    assert (first.budget, second.budget) == (40, 50)
    # 50 positions: 32 recents, and of the 78 before them 18, ten of which are the old window's.
    kept = second.scores[0, 0, :78].topk(18).indices.sort().values
    assert kept.tolist() == [*best.tolist(), *range(68, 78)]
    assert (second.scores[0, 0, 100:] == math.inf).all()
    other = policy.select(runner, sequence())
    assert other.budget == 44


def test_pillar_has_its_papers_budget_and_neither_sinks_nor_recents() -> None:
    for length, budget in ((100, 100), (1000, 128), (4000, 200)):
        spec = select("pillar", torch.zeros(1, 1, length))
        assert spec == IndexSpec(budget, sink_size=0, recent_size=0, window=8)


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ("snapkv:window=0", "window=0: must be at least 1"),
        ("snapkv:kernel_size=4", "kernel_size=4: must be odd"),
        ("pillar:window=0", "window=0: must be at least 1"),
        ("pillar:budget=0", "budget=0.0"),
    ],
)
def test_values_that_make_no_sense(spec: str, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        selections.build(spec)
