"""Indices of any runner beyond window statistics: cumulative, by layer, by queries, stepwise.

A runner that declares one has it; one that does not refuses it by name.
"""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from glimpse.types import GLIMPSE, IndexSpec, Statistics
from tests.conformance.conftest import WINDOW, Bench, close
from tests.conformance.test_glimpse import SPEC, check_drafts, naive_index


def has_cumulative(bench: Bench) -> bool:
    return "cumulative" in bench.runner.capabilities.statistics


def has_index(bench: Bench, *names: str) -> bool:
    return bench.runner.capabilities.index >= set(names)


def read_cumulative(bench: Bench, text: list[int], chunk: int) -> int:
    handle = bench.runner.open(0, Statistics(is_cumulative=True))
    for start in range(0, len(text), chunk):
        bench.read(handle, text[start : start + chunk])
    return handle


CUMULATIVE = IndexSpec(budget=14, sink_size=0, recent_size=5, is_cumulative=True)


def check_cumulative(bench: Bench, handle: int, text: list[int]) -> None:
    bench.runner.refresh(handle, CUMULATIVE)
    scores = bench.oracle(text).attention.sum(2)
    assert torch.equal(bench.runner.index(handle), naive_index(scores, 0, 9, 5))


def test_cumulative_statistics_are_refused_where_there_are_none(bench: Bench) -> None:
    if has_cumulative(bench):
        handle = bench.open(bench.text(60))
        with pytest.raises(ValueError, match="is_cumulative: the sequence was not opened"):
            bench.runner.refresh(handle, CUMULATIVE)
        return
    with pytest.raises(ValueError, match="cumulative statistics"):
        bench.runner.open(0, Statistics(is_cumulative=True))
    with pytest.raises(ValueError, match="is_cumulative"):
        bench.runner.refresh(bench.open(bench.text(60)), CUMULATIVE)


@pytest.mark.parametrize("chunk", [1, 5, 40, 300])
def test_cumulative_statistics_through_a_prompt(bench: Bench, chunk: int) -> None:
    """Chunks of one row, of a few, of more than are weighted at once, and of more than are kept."""
    if has_cumulative(bench):
        text = bench.text(200)
        check_cumulative(bench, read_cumulative(bench, text, chunk), text)


def test_cumulative_statistics_over_rounds(bench: Bench) -> None:
    """Rejected rows leave no trace; those of plain rounds and of long drafts count."""
    if not has_cumulative(bench):
        return
    text = bench.text(60)
    handle = read_cumulative(bench, text, 37)
    check_cumulative(bench, handle, text)
    for number, (drafted, kept) in enumerate([(5, 2), (1, 1), (9, 9), (40, 35), (4, 1)]):
        rows = bench.text(drafted, number)
        bench.read(handle, rows, is_observed=drafted > 1)
        text += rows[:kept]
        bench.runner.truncate(handle, len(text))
        check_cumulative(bench, handle, text)


def test_forks_and_cumulative_statistics(bench: Bench) -> None:
    """A fork at the end has them all; sums cannot be taken back below that, and say so."""
    if not has_cumulative(bench):
        return
    text = bench.text(60)
    parent = read_cumulative(bench, text, 37)
    child = bench.runner.fork(parent, 60, Statistics(is_cumulative=True))
    rows = bench.text(6, 1)
    bench.read(child, rows)
    check_cumulative(bench, child, text + rows)
    check_cumulative(bench, parent, text)
    shorter = bench.runner.fork(parent, 30, Statistics(is_cumulative=True))
    without = bench.runner.fork(bench.open(text), 60, Statistics(is_cumulative=True))
    bench.runner.truncate(parent, 40)
    for handle in (shorter, without, parent):
        with pytest.raises(RuntimeError, match="cumulative statistics do not survive"):
            bench.runner.refresh(handle, CUMULATIVE)
    bench.runner.truncate(parent, 0)
    bench.read(parent, text)
    check_cumulative(bench, parent, text)


def last_key(layer: int, queries: Tensor, keys: Tensor) -> Tensor:
    """Scores that depend on all a rank is given: products with the mean query, turned by layer."""
    scores = (keys @ queries.mean((1, 2))[..., None])[..., 0]
    return scores if layer % 2 else -scores


RANKED = IndexSpec(budget=14, sink_size=2, recent_size=5, window=3, rank=last_key)
STEPWISE = IndexSpec(budget=14, sink_size=2, recent_size=5, rank=last_key, is_stepwise=True)


def test_an_index_that_a_runner_cannot_hold_is_refused(bench: Bench) -> None:
    handle = bench.open(bench.text(60))
    layers = IndexSpec((14,) * bench.config.num_layers, window=WINDOW)
    for name, spec in (("ranking", RANKED), ("ranking", STEPWISE), ("layers", layers)):
        if not has_index(bench, name):
            with pytest.raises(ValueError, match=f"no index by {name}; valid: "):
                bench.runner.refresh(handle, spec)


def test_a_budget_for_each_layer(bench: Bench) -> None:
    if not has_index(bench, "layers"):
        return
    text = bench.text(60)
    handle = bench.open(text)
    for budgets in ((14, 30, 9), (9, 60, 100), (60, 8, 8)):
        budget = budgets[: bench.config.num_layers]
        bench.runner.refresh(handle, IndexSpec(budget, 2, 5, WINDOW))
        index = bench.runner.index(handle)
        scores = bench.oracle(text).attention[:, :, -WINDOW:].sum(2)
        for layer, size in enumerate(min(size, 60) for size in budget):
            best = max(0, size - 7)
            expected = naive_index(scores[layer : layer + 1], 2, best, 5)[0]
            kept = [sorted(head[head >= 0].tolist()) for head in index[layer]]
            assert kept == (expected.tolist() if size < 60 else [list(range(60))] * len(kept))
        check_layer_drafts(bench, handle, text, index)


def test_budgets_by_layer_over_rounds(bench: Bench) -> None:
    """The text grows between refreshes, and so do some layers; others shrink."""
    if not has_index(bench, "layers"):
        return
    text = bench.text(60)
    handle = bench.open(text)
    for number, budgets in enumerate([(30, 9, 14), (32, 12, 9), (12, 40, 20), (41, 40, 41)]):
        budget = budgets[: bench.config.num_layers]
        bench.runner.refresh(handle, IndexSpec(budget, 2, 5, WINDOW))
        index = bench.runner.index(handle)
        assert (index >= 0).sum(2).unique(dim=1).flatten().tolist() == list(budget)
        check_layer_drafts(bench, handle, text, index)
        rows = bench.text(4, number)
        bench.read(handle, rows, is_observed=True)
        text += rows
        bench.runner.truncate(handle, len(text))


def check_layer_drafts(bench: Bench, handle: int, text: list[int], index: Tensor) -> None:
    """Drafts see each layer's own positions; -1 stands for none."""
    draft = bench.text(4, 77)
    n = len(text) + len(draft)
    seen = torch.zeros(*index.shape[:2], n + 1, dtype=torch.bool)
    seen.scatter_(2, index.where(index >= 0, n), True)
    visible = torch.ones(*index.shape[:2], n, n, dtype=torch.bool)
    visible[:, :, len(text) :, : len(text)] = seen[:, :, None, : len(text)]
    expected = bench.oracle(text + draft, visible).logits[len(text) :]
    pieces = [bench.read(handle, piece, GLIMPSE) for piece in (draft[:1], draft[1:])]
    close(torch.cat(pieces), expected)


def test_an_index_by_the_last_queries(bench: Bench) -> None:
    """Queries and keys are those of the text's last positions, of the layer that is ranked."""
    if not has_index(bench, "ranking"):
        return
    text = bench.text(60)
    handle = bench.open(text)
    given: dict[int, Tensor] = {}

    def rank(layer: int, queries: Tensor, keys: Tensor) -> Tensor:
        future = torch.ones(3, 60, dtype=torch.bool).triu_(58)
        products = queries @ keys[:, None].transpose(2, 3) * bench.config.head_dim**-0.5
        given[layer] = products.masked_fill(future, -torch.inf).softmax(-1).sum((1, 2))
        return given[layer]

    spec = IndexSpec(budget=14, sink_size=2, recent_size=5, window=3, rank=rank)
    bench.runner.refresh(handle, spec)
    # Their attention, computed from what was given, is the oracle's.
    scores = bench.oracle(text).attention[:, :, -3:].sum(2)
    close(torch.stack([given[layer] for layer in range(len(scores))]), scores)
    assert torch.equal(bench.runner.index(handle), naive_index(scores, 2, 7, 5))
    check_drafts(bench, handle, text)


@pytest.mark.parametrize("budget", [14, 60])
def test_each_draft_step_chooses_for_itself(bench: Bench, budget: int) -> None:
    """Every drafted row sees what its own query ranked, whatever rows it came with."""
    if not has_index(bench, "ranking", "layers"):
        return
    text, draft = bench.text(60), bench.text(4, 77)
    handle, num_layers = bench.open(text), bench.config.num_layers
    ranked: list[list[Tensor]] = [[] for _ in range(num_layers)]

    def rank(layer: int, queries: Tensor, keys: Tensor) -> Tensor:
        ranked[layer].append(last_key(layer, queries, keys))
        return ranked[layer][-1]

    # The first layer sees everything; a rank need not be asked then.
    budgets = (60, *[budget] * (num_layers - 1))
    bench.runner.refresh(handle, IndexSpec(budgets, 2, 5, rank=rank, is_stepwise=True))
    drafted = [bench.read(handle, piece, GLIMPSE) for piece in (draft[:1], draft[1:2], draft[2:])]
    n = len(text) + len(draft)
    visible = torch.ones(num_layers, bench.config.num_kv_heads, n, n, dtype=torch.bool)
    for layer in range(num_layers):
        assert len(ranked[layer]) == (0 if layer == 0 or budget == 60 else len(draft))
        for row, scores in enumerate(ranked[layer]):
            index = naive_index(scores[None], 2, 7, 5)[0]
            visible[layer, :, 60 + row, :60] = False
            visible[layer, :, 60 + row].scatter_(1, index, True)
    close(torch.cat(drafted), bench.oracle(text + draft, visible).logits[60:])
    assert bench.runner.length(handle) == 60


def test_the_life_of_a_stepwise_glimpse(bench: Bench) -> None:
    if not has_index(bench, "ranking"):
        return
    text, draft = bench.text(60), bench.text(3, 5)
    handle = bench.open(text)
    bench.runner.refresh(handle, STEPWISE)
    with pytest.raises(RuntimeError, match="stepwise"):
        bench.runner.index(handle)
    first = bench.read(handle, draft, GLIMPSE)
    bench.runner.truncate_draft(handle, 1)
    close(bench.read(handle, draft[1:], GLIMPSE), first[1:])
    # Another index takes its place, and it takes another's.
    bench.runner.refresh(handle, SPEC)
    check_drafts(bench, handle, text)
    bench.runner.refresh(handle, STEPWISE)
    close(bench.read(handle, draft, GLIMPSE), first)
    bench.runner.truncate(handle, 50)
    with pytest.raises(RuntimeError, match="refresh it"):
        bench.read(handle, draft, GLIMPSE)


def test_rankings_that_contradict_themselves(bench: Bench) -> None:
    if not has_index(bench, "ranking"):
        return
    handle = bench.open(bench.text(20))
    scores = torch.zeros(bench.config.num_layers, bench.config.num_kv_heads, 20)
    num_layers = bench.config.num_layers
    bad = {
        "window=0: must be at least 1": IndexSpec(5, rank=last_key),
        "is_stepwise: must come with a rank": IndexSpec(5, is_stepwise=True),
        "without a window": IndexSpec(5, window=2, rank=last_key, is_stepwise=True),
        "scores and rank": IndexSpec(5, scores=scores, rank=last_key, is_stepwise=True),
        "is_cumulative and window": IndexSpec(5, window=2, is_cumulative=True),
        f"one for each of the {num_layers} layers": IndexSpec((5,) * (num_layers + 1)),
        "must be at least 1 position": IndexSpec((5,) * (num_layers - 1) + (0,)),
    }
    for message, spec in bad.items():
        with pytest.raises(ValueError, match=message):
            bench.runner.refresh(handle, spec)
