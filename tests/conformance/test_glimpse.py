"""The glimpse of any runner: which positions it holds, and that drafts see exactly those."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from glimpse.types import GLIMPSE, IndexSpec, KVView, RaggedBatch, Segment, Statistics
from tests.conformance.conftest import WINDOW, Bench, close

SPEC = IndexSpec(budget=14, sink_size=2, recent_size=5, window=WINDOW)


def naive_index(scores: Tensor, sinks: int, best: int, recents: int) -> Tensor:
    """Sinks, the highest of the middle and recents, head by head."""
    num_layers, num_kv_heads, length = scores.shape
    rows = []
    for head in scores.flatten(0, 1):
        middle = sorted(range(sinks, length - recents), key=lambda i: -head[i].item())[:best]
        rows.append(sorted([*range(sinks), *middle, *range(length - recents, length)]))
    return torch.tensor(rows).view(num_layers, num_kv_heads, -1)


def drafted(bench: Bench, text: list[int], index: Tensor, draft: list[int]) -> Tensor:
    """The oracle's logits of ``draft`` after ``text`` of which only ``index`` is seen.

    Rows of the text itself see everything, as they did when the dense KV was written.
    """
    n = len(text) + len(draft)
    visible = torch.ones(*index.shape[:2], n, n, dtype=torch.bool)
    visible[:, :, len(text) :, : len(text)] = False
    chosen = index[:, :, None].expand(-1, -1, len(draft), -1)
    visible[:, :, len(text) :].scatter_(3, chosen, True)
    return bench.oracle(text + draft, visible).logits[len(text) :]


def check_drafts(bench: Bench, handle: int, text: list[int]) -> None:
    """Drafting through the glimpse, in pieces, is attention over index and draft tail alone."""
    draft = bench.text(5, 77)
    expected = drafted(bench, text, bench.runner.index(handle), draft)
    pieces = [bench.read(handle, piece, GLIMPSE) for piece in (draft[:1], draft[1:2], draft[2:])]
    close(torch.cat(pieces), expected)
    assert bench.runner.length(handle) == len(text)


def test_the_index_is_sinks_best_and_recents(bench: Bench) -> None:
    text = bench.text(80)
    handle = bench.open(text)
    bench.runner.refresh(handle, SPEC)
    scores = bench.oracle(text).attention[:, :, -WINDOW:].sum(2)
    index = bench.runner.index(handle)
    assert index.dtype == torch.int64
    assert torch.equal(index, naive_index(scores, 2, 7, 5))
    check_drafts(bench, handle, text)


def test_scores_from_outside(bench: Bench) -> None:
    text = bench.text(60)
    handle = bench.open(text, window=0)
    shape = (bench.config.num_layers, bench.config.num_kv_heads, 60)
    scores = torch.rand(shape, generator=torch.Generator().manual_seed(3))
    bench.runner.refresh(handle, IndexSpec(20, sink_size=0, recent_size=3, scores=scores))
    assert torch.equal(bench.runner.index(handle), naive_index(scores, 0, 17, 3))
    check_drafts(bench, handle, text)


@pytest.mark.parametrize(
    ("spec", "split"),
    [
        (IndexSpec(20, 4, 8), (4, 0, 16)),  # without a ranking recents fill the budget
        (IndexSpec(1, 0, 8), (0, 0, 1)),
        (IndexSpec(1, 4, 64, window=WINDOW), (0, 0, 1)),  # a budget for less than sinks and recents
        (IndexSpec(3, 4, 64, window=WINDOW), (2, 0, 1)),
        (IndexSpec(10, 4, 64, window=WINDOW), (4, 0, 6)),
        (IndexSpec(10, 4, 6, window=WINDOW), (4, 0, 6)),
        (IndexSpec(11, 4, 6, window=WINDOW), (4, 1, 6)),
        (IndexSpec(9, 0, 0, window=WINDOW), (0, 9, 0)),
        (IndexSpec(39, 4, 6, window=WINDOW), (4, 29, 6)),
    ],
)
def test_how_a_budget_is_split(bench: Bench, spec: IndexSpec, split: tuple[int, int, int]) -> None:
    text = bench.text(40)
    handle = bench.open(text)
    bench.runner.refresh(handle, spec)
    scores = bench.oracle(text).attention[:, :, -WINDOW:].sum(2)
    assert torch.equal(bench.runner.index(handle), naive_index(scores, *split))
    check_drafts(bench, handle, text)


@pytest.mark.parametrize("budget", [25, 26, 1000])
def test_a_budget_of_the_whole_length_equals_dense_to_the_bit(bench: Bench, budget: int) -> None:
    text, draft = bench.text(25), bench.text(20, 1)
    handle, other = bench.open(text), bench.open(text)
    bench.runner.refresh(handle, IndexSpec(budget, window=WINDOW))
    whole = torch.arange(25).expand(bench.config.num_layers, bench.config.num_kv_heads, 25)
    assert torch.equal(bench.runner.index(handle), whole)
    for token in draft:
        sparse, dense = bench.read(handle, [token], GLIMPSE), bench.read(other, [token])
        assert torch.equal(sparse, dense)
    assert bench.runner.length(handle) == 25
    bench.read(handle, text[:3])
    close(bench.read(handle, draft), bench.oracle(text + text[:3] + draft).logits[28:])


def test_refresh_over_rounds(bench: Bench) -> None:
    """Growth, rollback, budgets up and down: the index is right, and its KV is what drafts see."""
    text = bench.text(90)
    handle = bench.open(text)
    for number, budget in enumerate((14, 16, 40, 12, 12, 200, 13, 30)):
        bench.runner.refresh(handle, IndexSpec(budget, 2, 5, WINDOW))
        if budget < len(text):
            scores = bench.runner.attention_scores(handle, WINDOW)
            expected = naive_index(scores, 2, budget - 7, 5)
            assert torch.equal(bench.runner.index(handle), expected)
        check_drafts(bench, handle, text)
        rows = bench.text(6, number)
        bench.read(handle, rows, is_observed=True)
        text += rows[:4]
        bench.runner.truncate(handle, len(text))


def test_a_rewritten_text_is_seen_as_it_is_now(bench: Bench) -> None:
    """A rollback below the index, then other tokens at the same positions."""
    text = bench.text(80)
    handle = bench.open(text)
    bench.runner.refresh(handle, SPEC)
    bench.runner.truncate(handle, 60)
    with pytest.raises(RuntimeError, match="refresh it"):
        bench.read(handle, [1], GLIMPSE)
    text = text[:60] + bench.text(20, 1)
    bench.read(handle, text[60:])
    bench.runner.refresh(handle, SPEC)
    check_drafts(bench, handle, text)


@pytest.mark.parametrize("budget", [14, 100])
@pytest.mark.parametrize("what", ["truncate", "refresh", "dense pass"])
def test_the_tail_is_dropped_by(bench: Bench, what: str, budget: int) -> None:
    text = bench.text(60)
    handle = bench.open(text)
    spec = IndexSpec(budget, 2, 5, WINDOW)
    bench.runner.refresh(handle, spec)
    bench.read(handle, bench.text(4, 5), GLIMPSE)
    if what == "dense pass":
        rows = bench.text(3, 6)
        close(bench.read(handle, rows), bench.oracle(text + rows).logits[60:])
        text += rows
        bench.runner.refresh(handle, spec)
    elif what == "truncate":
        bench.runner.truncate(handle, 60)
    else:
        bench.runner.refresh(handle, spec)
    check_drafts(bench, handle, text)


def test_drafting_changes_neither_length_nor_statistics(bench: Bench) -> None:
    text = bench.text(60)
    handle = bench.open(text)
    before = bench.runner.attention_scores(handle, WINDOW)
    bench.runner.refresh(handle, SPEC)
    for token in bench.text(6, 1):
        bench.read(handle, [token], GLIMPSE, is_observed=True)
    assert bench.runner.length(handle) == 60
    assert torch.equal(bench.runner.attention_scores(handle, WINDOW), before)
    bench.read(handle, bench.text(4, 2), is_observed=True)
    bench.runner.truncate(handle, 60)
    assert torch.equal(bench.runner.attention_scores(handle, WINDOW), before)


def test_a_long_draft(bench: Bench) -> None:
    text, draft = bench.text(60), bench.text(75, 1)
    handle = bench.open(text)
    bench.runner.refresh(handle, SPEC)
    expected = drafted(bench, text, bench.runner.index(handle), draft)
    close(bench.read(handle, draft[:40], GLIMPSE), expected[:40])
    for i in range(40, 75):
        close(bench.read(handle, [draft[i]], GLIMPSE), expected[i : i + 1])


@pytest.mark.parametrize("budget", [14, 100])
def test_a_draft_is_taken_back(bench: Bench, budget: int) -> None:
    text, draft, other = bench.text(60), bench.text(6, 1), bench.text(4, 2)
    handle = bench.open(text)
    bench.runner.refresh(handle, IndexSpec(budget, 2, 5, WINDOW))
    index = bench.runner.index(handle)
    bench.read(handle, draft, GLIMPSE)
    bench.runner.truncate_draft(handle, 6)
    bench.runner.truncate_draft(handle, 2)
    expected = drafted(bench, text, index, [*draft[:2], *other])[2:]
    close(bench.read(handle, other, GLIMPSE), expected)
    assert bench.runner.length(handle) == 60
    for num_tokens in (-1, 7):
        with pytest.raises(ValueError, match=f"num_tokens={num_tokens}: must be from 0 to 6"):
            bench.runner.truncate_draft(handle, num_tokens)
    bench.runner.truncate_draft(handle, 0)
    close(bench.read(handle, other, GLIMPSE), drafted(bench, text, index, other))


def test_a_batch_of_drafts_equals_each_alone(bench: Bench) -> None:
    texts = [bench.text(length, length) for length in (30, 64, 10)]
    handles = [bench.open(text) for text in texts]
    rows = [bench.text(count, count) for count in (2, 1, 3)]
    for handle in handles:
        bench.runner.refresh(handle, SPEC)
    batch = RaggedBatch([Segment(h, row, len(row)) for h, row in zip(handles, rows, strict=True)])
    expected = [
        drafted(bench, text, bench.runner.index(handle), row)
        for text, handle, row in zip(texts, handles, rows, strict=True)
    ]
    close(bench.runner.forward(batch, GLIMPSE).logits, torch.cat(expected))


def test_a_fork_has_no_glimpse_and_leaves_that_of_its_parent(bench: Bench) -> None:
    text = bench.text(60)
    parent = bench.open(text)
    bench.runner.refresh(parent, SPEC)
    index = bench.runner.index(parent)
    child = bench.runner.fork(parent, 50, Statistics(WINDOW))
    with pytest.raises(RuntimeError, match="refresh it"):
        bench.runner.index(child)
    bench.read(child, bench.text(10, 3))
    bench.runner.refresh(child, SPEC)
    check_drafts(bench, child, text[:50] + bench.text(10, 3))
    assert torch.equal(bench.runner.index(parent), index)
    check_drafts(bench, parent, text)


@pytest.mark.parametrize("budget", [14, 100])
def test_early_exit(bench: Bench, budget: int) -> None:
    if not bench.runner.capabilities.has_early_exit:
        with pytest.raises(ValueError, match="exit_layer"):
            bench.read(bench.open([1]), [1], KVView("glimpse", exit_layer=1))
        return
    text, draft = bench.text(50), bench.text(4, 1)
    handle = bench.open(text)
    bench.runner.refresh(handle, IndexSpec(budget, 2, 5, WINDOW))
    index = bench.runner.index(handle)
    n = len(text) + len(draft)
    visible = torch.ones(*index.shape[:2], n, n, dtype=torch.bool)
    visible[:, :, 50:, :50] = False
    visible[:, :, 50:].scatter_(3, index[:, :, None].expand(-1, -1, 4, -1), True)
    expected = bench.oracle(text + draft, visible, num_layers=1).logits[50:]
    view = KVView("glimpse", exit_layer=1)
    close(bench.read(handle, draft[:1], view), expected[:1])
    close(bench.read(handle, draft[1:], view), expected[1:])
    with pytest.raises(ValueError, match="must be at most 1"):
        bench.read(handle, [1], GLIMPSE)
    rows = bench.text(3, 4)
    close(bench.read(handle, rows), bench.oracle(text + rows).logits[50:])


def test_bad_exit_layers(bench: Bench) -> None:
    handle = bench.open(bench.text(10))
    bench.runner.refresh(handle, IndexSpec(10))
    for layer in (0, bench.config.num_layers + 1):
        with pytest.raises(ValueError, match=f"exit_layer={layer}"):
            bench.read(handle, [1], KVView("glimpse", exit_layer=layer))


def test_drafting_stops_at_the_context_limit(short: Bench) -> None:
    for budget in (8, 100):
        handle = short.open(short.text(17))
        short.runner.refresh(handle, IndexSpec(budget))
        short.read(handle, [1, 2], GLIMPSE)
        short.read(handle, [3], GLIMPSE)
        with pytest.raises(ValueError, match="1 more than fit"):
            short.read(handle, [4], GLIMPSE)


def test_without_a_refresh_there_is_no_glimpse(bench: Bench) -> None:
    handle = bench.open(bench.text(10))
    with pytest.raises(RuntimeError, match="refresh it before drafting"):
        bench.read(handle, [1], GLIMPSE)
    with pytest.raises(RuntimeError, match="refresh it first"):
        bench.runner.index(handle)


def test_bad_specs(bench: Bench) -> None:
    handle = bench.open(bench.text(10))
    shape = (bench.config.num_layers, bench.config.num_kv_heads, 10)
    bad = {
        "budget=0": IndexSpec(0),
        "sink_size=-1": IndexSpec(5, sink_size=-1),
        "recent_size=-1": IndexSpec(5, recent_size=-1),
        "window=-1": IndexSpec(5, window=-1),
        f"window={WINDOW + 1}": IndexSpec(5, window=WINDOW + 1),
        "window=2: must be 0": IndexSpec(5, window=2, scores=torch.zeros(shape)),
        "scores of shape": IndexSpec(5, scores=torch.zeros(shape)[..., 1:]),
    }
    for message, spec in bad.items():
        with pytest.raises(ValueError, match=message):
            bench.runner.refresh(handle, spec)
    without = bench.open(bench.text(10), window=0)
    for budget in (5, 10):
        with pytest.raises(ValueError, match="window=4"):
            bench.runner.refresh(without, IndexSpec(budget, window=4))
