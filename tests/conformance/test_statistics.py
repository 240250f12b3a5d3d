"""Attention statistics of any runner against explicit attention matrices."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from glimpse.types import RaggedBatch, Segment, Statistics
from tests.conformance.conftest import WINDOW, Bench


def last_rows(bench: Bench, text: list[int], num_rows: int) -> Tensor:
    """What the last ``num_rows`` queries of a text attend to."""
    return bench.oracle(text).attention[:, :, -num_rows:].sum(2).float()


def is_close(bench: Bench, a: Tensor, b: Tensor) -> bool:
    return a.shape == b.shape and torch.allclose(a, b, **bench.score_tolerance)


def check(bench: Bench, handle: int, text: list[int], max_extra: int = 0) -> None:
    """The scores are the sums of the window's rows, or of up to ``max_extra`` older ones too."""
    scores = bench.runner.attention_scores(handle, WINDOW)
    assert scores.dtype == torch.float32
    counts = range(min(WINDOW, len(text)), min(WINDOW + max_extra, len(text)) + 1)
    matching = [n for n in counts if is_close(bench, scores, last_rows(bench, text, n))]
    assert matching, "not the sum of the last rows of any count"
    close_sum = scores.sum(2) / bench.config.group_size
    torch.testing.assert_close(
        close_sum, torch.full_like(close_sum, matching[0]), **bench.score_tolerance
    )


@pytest.mark.parametrize("length", [1, 3, WINDOW, 9, 80])
@pytest.mark.parametrize("chunk", [1, 5, 64])
def test_after_prefill(bench: Bench, length: int, chunk: int) -> None:
    text = bench.text(length)
    check(bench, bench.open(text, chunk=chunk), text)


def test_smaller_windows(bench: Bench) -> None:
    text = bench.text(70)
    handle = bench.open(text)
    for window in (1, 3, WINDOW):
        scores = bench.runner.attention_scores(handle, window)
        assert is_close(bench, scores, last_rows(bench, text, window))


def verify(bench: Bench, handle: int, text: list[int], drafted: list[int], kept: int) -> None:
    """One round: rows are observed, some are kept; ``text`` grows by those."""
    bench.read(handle, drafted, is_observed=True)
    text += drafted[:kept]
    bench.runner.truncate(handle, len(text))


@pytest.mark.parametrize("kept", [[1] * 12, [5, 1, 4, 2, 5, 3], [9, 9], [1, 9, 1, 1, 9, 1]])
def test_over_rounds(bench: Bench, kept: list[int]) -> None:
    """Rejected rows leave no trace, and no row counts twice."""
    text = bench.text(60)
    handle = bench.open(text)
    check(bench, handle, text)
    for number, count in enumerate(kept):
        verify(bench, handle, text, bench.text(max(6, count), number), count)
        check(bench, handle, text, max_extra=2 * WINDOW)


def test_old_rows_leave_the_window(bench: Bench) -> None:
    text = bench.text(60)
    handle = bench.open(text)
    for number in range(3 * WINDOW):
        verify(bench, handle, text, bench.text(2, number), 1)
        bench.runner.attention_scores(handle, WINDOW)
    check(bench, handle, text, max_extra=WINDOW // 2)


def test_plain_rounds_between(bench: Bench) -> None:
    text = bench.text(50)
    handle = bench.open(text)
    verify(bench, handle, text, bench.text(5), 4)
    for token in bench.text(6, 1):
        bench.read(handle, [token])
        text.append(token)
    check(bench, handle, text)
    verify(bench, handle, text, bench.text(5, 2), 5)
    check(bench, handle, text, max_extra=WINDOW)


def test_rows_that_nobody_takes_back_count(bench: Bench) -> None:
    text = bench.text(50)
    handle = bench.open(text)
    check(bench, handle, text)
    for number in range(3):
        rows = bench.text(4, number)
        bench.read(handle, rows, is_observed=True)
        text += rows
    check(bench, handle, text, max_extra=WINDOW)


def test_a_rollback_equals_a_run_without_the_rows(bench: Bench) -> None:
    first, second = (bench.open(bench.text(60)) for _ in range(2))
    text, same = bench.text(60), bench.text(60)
    for number in range(4):
        drafted = bench.text(6, number)
        verify(bench, first, text, drafted, 3)
        verify(bench, second, same, drafted[:3], 3)
    scores = [bench.runner.attention_scores(handle, WINDOW) for handle in (first, second)]
    torch.testing.assert_close(*scores, **bench.score_tolerance)


@pytest.mark.parametrize("length", [59, 40, 30])
def test_a_long_rollback(bench: Bench, length: int) -> None:
    text = bench.text(60)
    handle = bench.open(text)
    verify(bench, handle, text, bench.text(6, 1), 6)
    bench.runner.truncate(handle, length)
    check(bench, handle, text[:length])


def test_a_rollback_beyond_memory(bench: Bench) -> None:
    text = bench.text(200)
    handle = bench.open(text)
    bench.runner.truncate(handle, 20)
    with pytest.raises(RuntimeError, match="run the last tokens again"):
        bench.runner.attention_scores(handle, WINDOW)
    text = text[:20]
    for number, token in enumerate(bench.text(12, 1)):
        bench.read(handle, [token])
        text.append(token)
        scores = bench.runner.attention_scores(handle, WINDOW)
        assert is_close(bench, scores, last_rows(bench, text, min(number + 1, WINDOW)))


def test_a_fork_brings_its_queries(bench: Bench) -> None:
    text = bench.text(60)
    parent = bench.open(text)
    child = bench.runner.fork(parent, 50, Statistics(WINDOW))
    check(bench, child, text[:50])
    check(bench, parent, text)
    wider = bench.runner.fork(parent, 50, Statistics(WINDOW + 3))
    scores = bench.runner.attention_scores(wider, WINDOW + 3)
    assert is_close(bench, scores, last_rows(bench, text[:50], WINDOW + 3))


def test_a_fork_of_one_without_queries(bench: Bench) -> None:
    text = bench.text(40)
    child = bench.runner.fork(bench.open(text[:30], window=0), 30, Statistics(WINDOW))
    with pytest.raises(RuntimeError, match="run the last tokens again"):
        bench.runner.attention_scores(child, WINDOW)
    bench.read(child, text[30:])
    check(bench, child, text)


def test_a_batch_keeps_each_sequences_own(bench: Bench) -> None:
    texts = [bench.text(length, length) for length in (3, 64, 20)]
    handles = [bench.open(text) for text in texts]
    rows = [bench.text(count, count) for count in (9, 12, 10)]
    bench.runner.forward(
        RaggedBatch([Segment(h, row, 1, True) for h, row in zip(handles, rows, strict=True)])
    )
    for handle, text, row in zip(handles, texts, rows, strict=True):
        bench.runner.truncate(handle, len(text) + len(row))
        check(bench, handle, text + row, max_extra=WINDOW)


def test_more_observed_rows_than_memory(bench: Bench) -> None:
    text = bench.text(30)
    handle = bench.open(text)
    rows = bench.text(100, 1)
    bench.read(handle, rows, is_observed=True)
    bench.runner.truncate(handle, 125)
    check(bench, handle, text + rows[:95])


def test_windows_that_are_not_kept(bench: Bench) -> None:
    handle = bench.open(bench.text(20))
    for window in (0, -1, WINDOW + 1):
        with pytest.raises(ValueError, match=f"window={window}: must be from 1 to the {WINDOW}"):
            bench.runner.attention_scores(handle, window)
    without = bench.open(bench.text(20), window=0)
    with pytest.raises(ValueError, match="from 1 to the 0"):
        bench.runner.attention_scores(without, 1)


def test_scores_are_the_callers_own(bench: Bench) -> None:
    text = bench.text(30)
    handle = bench.open(text)
    bench.runner.attention_scores(handle, WINDOW).zero_()
    check(bench, handle, text)


def test_an_empty_sequence_has_none(bench: Bench) -> None:
    handle = bench.runner.open(0, Statistics(WINDOW))
    with pytest.raises(RuntimeError, match="run the last tokens again"):
        bench.runner.attention_scores(handle, WINDOW)
