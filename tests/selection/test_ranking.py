"""Policies that rank by queries and keys, budgets by layer: small cases worked by hand."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from glimpse.config import Method
from glimpse.methods import check_runner
from glimpse.selection import selections
from glimpse.selection.ranking import attention, box, box_bound
from glimpse.types import Capabilities, IndexSpec, Sequence, Statistics
from tests.selection.test_policies import FakeRunner, select, sequence

LOW = math.log(2)
"""Products with unit keys; exp(LOW) is 2."""


def ranked(spec: IndexSpec, queries: Tensor, keys: Tensor, layer: int = 0) -> list[list[float]]:
    """Scores of each KV head, rounded."""
    assert spec.rank is not None
    return [[round(x, 4) for x in head] for head in spec.rank(layer, queries, keys).tolist()]


def with_keys(spec: str, length: int) -> tuple[IndexSpec, Sequence]:
    text = sequence()
    return selections.build(spec).select(FakeRunner(torch.zeros(2, 1, length)), text), text


def test_attention_is_causal_and_scaled() -> None:
    """Four dimensions halve a product: query 2 log 2 x key 1 weighs 2 against 1."""
    keys = torch.zeros(1, 3, 4)
    keys[0, 0, 0] = 1.0
    queries = torch.zeros(1, 1, 2, 4)
    queries[0, 0, :, 0] = 2 * LOW
    expected = torch.tensor([[[[2 / 3, 1 / 3, 0.0], [0.5, 0.25, 0.25]]]])
    torch.testing.assert_close(attention(queries, keys), expected)


def test_h2o_is_half_heavy_hitters_half_recents() -> None:
    spec = select("h2o:budget=0.2", torch.zeros(2, 1, 2000))
    assert spec == IndexSpec(400, sink_size=0, recent_size=200, is_cumulative=True)
    assert selections.build("h2o").statistics == Statistics(is_cumulative=True)


def test_scissorhands_counts_what_is_below_average() -> None:
    """Two queries that see 2 and 3 positions: averages 1/2 and 1/3."""
    keys = torch.tensor([[[1.0, 0, 0, 0], [0, 0, 0, 0], [1.0, 0, 0, 0]]])
    queries = torch.zeros(1, 1, 2, 4)
    queries[0, 0, :, 0] = 2 * LOW
    spec, _ = with_keys("scissorhands:min_budget=1", 3)
    # Weights (2/3, 1/3, unseen) and (2/5, 1/5, 2/5): position 1 is low twice, the others never.
    expected = [[(2 / 3 + 2 / 5) / 2, (1 / 3 + 1 / 5) / 2 - 2, (2 / 5) / 2]]
    assert ranked(spec, queries, keys) == [[round(x, 4) for x in expected[0]]]
    assert (spec.recent_size, spec.window) == (10, 64)


def test_the_pyramid_falls_linearly_about_its_mean() -> None:
    policy = selections.build("pyramidkv")
    # 200 beyond the window: 10 for the last layer, 390 for the first, 95 less from layer to layer.
    assert policy.layer_budgets(232, 8000, 5) == (422, 327, 232, 137, 42)
    # No more than there is: 268 beyond the window, and 132 for the last.
    assert policy.layer_budgets(232, 300, 5) == (300, 266, 232, 198, 164)
    assert policy.layer_budgets(32, 300, 5) == (32,) * 5
    spec = select("pyramidkv:budget=0.232,min_budget=1", torch.zeros(2, 1, 1000))
    assert (spec.budget, spec.recent_size) == ((422, 42), 32)


def test_vegas_averages_the_ends_over_all_heads() -> None:
    """Queries of head 0 prefer key 0, those of head 1 key 1; the middle query is left out."""
    keys = torch.zeros(2, 4, 4)
    keys[0, 0, 0] = keys[1, 1, 0] = 1.0
    queries = torch.zeros(2, 1, 3, 4)
    queries[:, 0, [0, 2], 0] = 2 * LOW
    queries[:, 0, 1, 0] = -50.0
    spec, _ = with_keys("vegas", 4000)
    first = (torch.tensor([2 / 3, 1 / 3, 0, 0]) + torch.tensor([1 / 3, 2 / 3, 0, 0])) / 2
    last = (torch.tensor([2 / 5, 1 / 5, 1 / 5, 1 / 5]) + torch.tensor([1, 2, 1, 1]) / 5) / 2
    expected = [round(x, 4) for x in ((first + last) / 2).tolist()]
    assert ranked(spec, queries, keys) == [expected, expected]
    assert (spec.budget, spec.sink_size, spec.recent_size) == (256, 0, 0)


def test_vegas_asks_for_the_queries_of_the_last_round() -> None:
    policy, text = selections.build("vegas:window=8"), sequence()
    windows = [
        policy.select(FakeRunner(torch.zeros(2, 1, length)), text).window
        for length in (100, 105, 106, 120)
    ]
    assert windows == [1, 5, 1, 8]


def test_a_box_bounds_what_a_key_inside_could_have() -> None:
    keys = torch.tensor([[[1.0, -2.0], [3.0, 1.0], [0.0, 0.0], [-1.0, 5.0]]])
    boxes = box(keys.view(1, 2, 2, 2))
    assert boxes.tolist() == [[[[1, -2], [3, 1]], [[-1, 0], [0, 5]]]]
    queries = torch.tensor([[[[1.0, -1.0]], [[0.0, 2.0]]]])
    # (1, -1): 3 + 2 and 0 + 0; (0, 2): 2 and 10; the group's heads are summed.
    assert box_bound(queries, boxes).tolist() == [[7.0, 10.0]]


def test_quest_keeps_whole_pages_the_last_and_two_dense_layers() -> None:
    policy = selections.build("quest:budget=0.1")
    runner = FakeRunner(torch.zeros(2, 1, 1003))
    runner.config = type(runner.config)(num_layers=4)
    spec = policy.select(runner, sequence())
    # 100 positions are 6 pages; the last one has 11 positions.
    assert spec.budget == (1003, 1003, 5 * 16 + 11, 5 * 16 + 11)
    assert (spec.sink_size, spec.recent_size, spec.is_stepwise, spec.window) == (0, 11, True, 0)
    assert policy.select(FakeRunner(torch.zeros(2, 1, 48)), sequence()).mean_budget == 48
    short = selections.build("quest:num_dense_layers=0").select(
        FakeRunner(torch.zeros(2, 1, 100)), sequence()
    )
    assert short.budget == 2 * 16 + 4  # three pages at least


def test_quest_ranks_by_the_query_of_the_step_and_keeps_its_digests() -> None:
    policy, text = selections.build("quest:page_size=2,num_dense_layers=0,min_budget=1"), sequence()
    keys = torch.tensor([[[1.0, -2.0], [3.0, 1.0], [0.0, 0.0], [-1.0, 5.0], [9.0, 9.0]]])
    query = torch.tensor([[[[1.0, -1.0]]]])
    spec = policy.select(FakeRunner(torch.zeros(2, 1, 5)), text)
    assert ranked(spec, query, keys) == [[5.0, 5.0, 0.0, 0.0, 0.0]]
    assert ranked(spec, -query, keys) == [[0.0, 0.0, 6.0, 6.0, 0.0]]
    longer = torch.cat([keys, torch.tensor([[[9.0, 7.0]]])], 1)
    later = policy.select(FakeRunner(torch.zeros(2, 1, 6)), text)
    assert ranked(later, query, longer) == [[5.0, 5.0, 0.0, 0.0, 2.0, 2.0]]


def test_arkvale_has_pages_of_32_two_sink_pages_and_two_recent_ones() -> None:
    spec, _ = with_keys("arkvale", 4000)
    # 400 positions are 12 pages, and 4000 is a whole number of pages.
    assert (spec.budget, spec.sink_size, spec.recent_size) == (12 * 32, 64, 64)
    assert spec.is_stepwise


def test_chunks_are_ranked_by_their_mean_key() -> None:
    spec, _ = with_keys("chunk:chunk_size=2", 5)
    keys = torch.tensor([[[1.0, 0.0], [3.0, 0.0], [0.0, 1.0], [0.0, 2.0], [9.0, 9.0]]])
    queries = torch.tensor([[[[1.0, 0.0]], [[1.0, 2.0]]]])
    assert ranked(spec, queries, keys) == [[4.0, 4.0, 3.0, 3.0, 0.0]]
    spec, _ = with_keys("chunk", 4003)
    assert (spec.budget, spec.sink_size, spec.recent_size, spec.window) == (403, 8, 3, 1)


def test_infinigen_looks_at_the_largest_dimensions_only() -> None:
    policy = selections.build("infinigen:partial_ratio=0.5,min_budget=1")
    text = sequence()
    spec = policy.select(FakeRunner(torch.zeros(2, 1, 1000)), text)
    assert spec.budget == (1000, 100)
    assert spec.is_stepwise
    keys = torch.tensor([[[5.0, 0.1], [-4.0, 9.0], [3.0, 0.0]]])[..., [0, 1, 1, 0]]
    keys[..., 2:] *= 0.01
    query = torch.tensor([[[[1.0, 1.0, 100.0, 0.0]], [[1.0, 0.0, 0.0, 0.0]]]])
    # The query is largest in dimension 2, which so is one of two; dimension 0 has the largest keys.
    expected = [(2 * key[0] + 100 * key[2]).item() for key in keys[0]]
    assert ranked(spec, query, keys, layer=1) == [[round(x, 4) for x in expected]]
    # The dimensions stay those of the text's first draft.
    again = policy.select(FakeRunner(torch.zeros(2, 1, 1000)), text)
    query = torch.tensor([[[[1.0, 500.0, 0.0, 0.0]], [[0.0, 0.0, 0.0, 0.0]]]])
    assert ranked(again, query, keys, layer=1) == [[5.0, -4.0, 3.0]]


def test_snapkv_by_maximum_pools_each_query_head_first() -> None:
    """Two query heads: one looks at key 0 alone, the other at nothing in particular."""
    spec, _ = with_keys("snapkv:aggregation=max,kernel_size=1,window=1", 4)
    keys = torch.zeros(1, 4, 4)
    keys[0, 0, 0] = 1.0
    queries = torch.zeros(1, 2, 1, 4)
    queries[0, 0, 0, 0] = 2 * LOW
    assert ranked(spec, queries, keys) == [[0.4, 0.25, 0.25, 0.25]]
    assert (spec.window, spec.recent_size, spec.needs) == (1, 1, {"ranking"})


def test_snapkv_by_mean_and_pooling_by_maximum() -> None:
    scores = torch.tensor([[[0.0, 3.0, 0.0, 0.0, 6.0]]]).expand(2, 1, 5)
    spec = select("snapkv:aggregation=mean,kernel_size=3,pooling=max,min_budget=1", scores)
    assert spec.scores is not None
    assert spec.scores[0, 0].tolist() == [1.0, 1.0, 1.0, 2.0, 2.0]


@pytest.mark.parametrize("name", selections.names())
def test_what_a_policy_needs_is_what_its_index_takes(name: str) -> None:
    policy = selections.build(name)
    spec = policy.select(FakeRunner(torch.rand(2, 1, 3000)), sequence())
    assert spec.needs == policy.needs
    assert spec.is_cumulative == policy.statistics.is_cumulative
    assert spec.window <= policy.statistics.window


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ("snapkv:aggregation=max,is_static=true", "aggregation=max"),
        ("snapkv:aggregation=median", "aggregation='median'"),
        ("scissorhands:window=0", "window=0"),
        ("scissorhands:recent_size=-1", "recent_size=-1"),
        ("pyramidkv:beta=0", "beta=0"),
        ("vegas:window=0", "window=0"),
        ("quest:page_size=0", "page_size=0"),
        ("quest:num_dense_layers=-1", "num_dense_layers=-1"),
        ("arkvale:num_recent_pages=0", "num_recent_pages=0"),
        ("chunk:chunk_size=0", "chunk_size=0"),
        ("infinigen:partial_ratio=0", "partial_ratio=0"),
        ("infinigen:num_dense_layers=-1", "num_dense_layers=-1"),
    ],
)
def test_values_that_make_no_sense(spec: str, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        selections.build(spec)


def test_methods_of_the_table_name_what_a_runner_lacks() -> None:
    poor = Capabilities(frozenset({"dense", "glimpse"}), frozenset({"window"}))
    for selection, words in (
        ("h2o", "needs cumulative statistics, which runner 'poor'"),
        ("pyramidkv", "needs a budget for each layer, which"),
        ("quest", "needs a budget for each layer and an index by queries, which"),
        ("snapkv:aggregation=max", "needs an index by queries, which"),
    ):
        with pytest.raises(ValueError, match=words):
            check_runner(Method("m", "sparse_self", selection, "fixed:k=4"), "poor", poor)
    check_runner(Method("m", "sparse_self", "snapkv", "fixed:k=4"), "poor", poor)
