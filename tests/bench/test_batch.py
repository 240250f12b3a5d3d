"""Batches beside plain decoding of the same batch: figures from known records, and a real run."""

from __future__ import annotations

import pytest

from glimpse import LLM
from glimpse.bench import batch
from glimpse.bench.batch import BatchBench


def record(size: int, method: str, seconds: float, tokens: int = 20, **changes) -> dict:
    base = {"batch": size, "method": method, "seconds": seconds, "tokens": tokens}
    return {**base, "drafted": 0, "accepted": 0, "token_ids": [[1, 2]] * size, **changes}


RECORDS = [
    record(1, "autoregressive", 2.0),
    record(1, "sparsespec-l", 1.0, drafted=10, accepted=9),
    record(2, "autoregressive", 3.0, 40),
    record(2, "sparsespec-l", 2.0, 40, drafted=10, accepted=8, token_ids=[[1, 2], [1, 3]]),
    record(2, "autoregressive", 5.0, 40),
    record(2, "sparsespec-l", 2.0, 40, drafted=10, accepted=7),
]


def test_rows_are_medians_over_the_same_batch() -> None:
    alone, alone_fast, both, both_fast = batch.rows(RECORDS)
    assert (alone.speedup, alone_fast.speedup) == (1.0, 2.0)
    assert both.tokens_per_s == pytest.approx((40 / 3 + 40 / 5) / 2)
    assert both_fast.speedup == pytest.approx(20 / both.tokens_per_s)
    assert both_fast.acceptance_rate == 0.75
    assert [row.is_identical for row in batch.rows(RECORDS)] == [True, True, True, False]


def test_cells_are_relative_to_one_text_alone() -> None:
    _, body = batch.cells(RECORDS)
    assert body[1] == ["1", "sparsespec-l", "2.00x", "2.00x", "90.0%", "yes"]
    assert body[3][2:] == ["2.00x", "1.87x", "75.0%", "no"]


def test_a_run_decodes_every_batch_with_every_method(tiny_checkpoint) -> None:
    folder = tiny_checkpoint("llama", has_tokenizer=True, max_position_embeddings=2048)
    llm = LLM(str(folder), dtype="float64", method="autoregressive")
    steps: list[tuple[int, int]] = []
    bench = BatchBench(sizes=(1, 2), max_tokens=6, repeats=2, num_tokens=(40, 30))
    records = list(batch.run(bench, llm, lambda *step: steps.append(step)))
    assert [(r["batch"], r["repeat"], r["method"]) for r in records] == [
        (size, repeat, method)
        for size in (1, 2)
        for repeat in (0, 1)
        for method in ("autoregressive", "sparsespec-l")
    ]
    assert steps[-1] == (8, 8)
    assert all(r["tokens"] == 6 * r["batch"] and r["seconds"] > 0 for r in records)
    assert all(row.is_identical for row in batch.rows(records))


@pytest.mark.parametrize("wrong", [{"max_tokens": 1}, {"repeats": 0}])
def test_sizes_that_make_no_sense(wrong) -> None:
    with pytest.raises(ValueError, match="must be at least"):
        BatchBench(**wrong)
