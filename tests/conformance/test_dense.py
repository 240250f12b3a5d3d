"""Dense passes of any runner: chunks, batches, rollback, forks, growth, limits."""

from __future__ import annotations

import pytest
import torch

from glimpse.types import DENSE, KVView, RaggedBatch, Segment, Statistics
from tests.conformance.conftest import Bench, close


@pytest.mark.parametrize("num_tokens", [1, 2, 31, 32, 33, 90])
def test_one_pass_equals_the_oracle(bench: Bench, num_tokens: int) -> None:
    text = bench.text(num_tokens)
    close(bench.read(bench.runner.open(), text), bench.oracle(text).logits)


@pytest.mark.parametrize("chunk", [1, 3, 32, 40])
def test_chunks_equal_one_pass(bench: Bench, chunk: int) -> None:
    text = bench.text(110)
    handle = bench.runner.open()
    chunks = [bench.read(handle, text[i : i + chunk]) for i in range(0, len(text), chunk)]
    close(torch.cat(chunks), bench.oracle(text).logits)


def test_several_rows_equal_one_by_one(bench: Bench) -> None:
    text = bench.text(60)
    for num_rows in range(1, 18):
        handle = bench.open(text[:-num_rows])
        close(bench.read(handle, text[-num_rows:]), bench.oracle(text).logits[-num_rows:])


def test_logits_of_the_last_rows_alone(bench: Bench) -> None:
    text = bench.text(50)
    expected = bench.oracle(text).logits
    for num_logits in (0, 1, 5):
        batch = RaggedBatch([Segment(bench.runner.open(), text, num_logits)])
        close(bench.runner.forward(batch).logits, expected[50 - num_logits :])


def test_logits_may_be_changed_by_the_caller(bench: Bench) -> None:
    logits = bench.read(bench.runner.open(), bench.text(5))
    assert logits.is_contiguous()
    logits /= 2


def test_a_batch_equals_its_sequences_alone(bench: Bench) -> None:
    texts = [bench.text(length, seed) for seed, length in enumerate((5, 70, 1, 33))]
    handles = [bench.open(text) for text in texts]
    rows = [bench.text(n, 9 + n) for n in (1, 40, 3, 2)]
    batch = RaggedBatch(
        [Segment(h, row, len(row), True) for h, row in zip(handles, rows, strict=True)]
    )
    expected = [
        bench.oracle(text + row).logits[len(text) :] for text, row in zip(texts, rows, strict=True)
    ]
    close(bench.runner.forward(batch).logits, torch.cat(expected))
    for handle, text, row in zip(handles, texts, rows, strict=True):
        assert bench.runner.length(handle) == len(text) + len(row)


def test_truncation_is_forgotten(bench: Bench) -> None:
    text = bench.text(80)
    handle = bench.open(text[:60])
    bench.read(handle, bench.text(15, 1))
    bench.runner.truncate(handle, 60)
    close(bench.read(handle, text[60:]), bench.oracle(text).logits[60:])
    bench.runner.truncate(handle, 10)
    close(bench.read(handle, text[10:]), bench.oracle(text).logits[10:])


@pytest.mark.parametrize("capacity", [0, 1, 31, 64])
def test_growth_across_every_boundary(bench: Bench, capacity: int) -> None:
    text = bench.text(140)
    handle = bench.runner.open(capacity)
    logits = [bench.read(handle, [token]) for token in text]
    close(torch.cat(logits), bench.oracle(text).logits)


def test_a_fork_leaves_its_parent_alone(bench: Bench) -> None:
    text, other = bench.text(60), bench.text(30, 1)
    parent = bench.open(text[:50])
    child = bench.runner.fork(parent, 40, Statistics(4))
    assert bench.runner.length(child) == 40
    close(bench.read(child, other), bench.oracle(text[:40] + other).logits[40:])
    close(bench.read(parent, text[50:]), bench.oracle(text).logits[50:])
    bench.runner.close(parent)
    close(bench.read(child, text[:5]), bench.oracle(text[:40] + other + text[:5]).logits[70:])


def test_inputs_of_layers(bench: Bench) -> None:
    texts = [bench.text(12), bench.text(3, 1)]
    batch = RaggedBatch([Segment(bench.runner.open(), text) for text in texts])
    layers = range(bench.config.num_layers + 1)  # and the head
    hidden = bench.runner.forward(batch, DENSE, [*layers]).hidden_states
    assert list(hidden) == list(layers)
    for layer in layers:
        close(hidden[layer], torch.cat([bench.oracle(text).inputs[layer] for text in texts]))


def test_the_context_limit(short: Bench) -> None:
    text = short.text(20)
    handle = short.open(text[:15])
    with pytest.raises(ValueError, match="1 more than fit"):
        short.read(handle, text[:6])
    close(short.read(handle, text[15:]), short.oracle(text).logits[15:])
    with pytest.raises(ValueError, match="context of 20"):
        short.read(handle, text[:1])


def test_what_cannot_be_run_changes_nothing(bench: Bench) -> None:
    text = bench.text(20)
    handle = bench.open(text[:10])
    bad = {
        "no tokens": [Segment(handle, [], 0)],
        "num_logits=3": [Segment(handle, [1, 2], 3)],
        "num_logits=-1": [Segment(handle, [1, 2], -1)],
        "token id -1": [Segment(handle, [3, -1])],
        f"from 0 to {bench.config.vocab_size - 1}": [Segment(handle, [bench.config.vocab_size])],
        "only once": [Segment(handle, [1]), Segment(handle, [1])],
        "unknown handle": [Segment(handle, [1]), Segment(handle + 1, [1])],
        "empty": [],
    }
    for message, segments in bad.items():
        with pytest.raises(ValueError, match=message):
            bench.runner.forward(RaggedBatch(segments))
    for layer in (-1, bench.config.num_layers + 1):
        with pytest.raises(ValueError, match=f"hidden layer {layer}"):
            bench.runner.forward(RaggedBatch([Segment(handle, [1])]), DENSE, [layer])
    with pytest.raises(ValueError, match="glimpse view"):
        bench.read(handle, [1], KVView("dense", exit_layer=1))
    close(bench.read(handle, text[10:]), bench.oracle(text).logits[10:])


def test_bad_handles_lengths_and_options(bench: Bench) -> None:
    handle = bench.open(bench.text(10))
    for length in (-1, 11):
        with pytest.raises(ValueError, match=f"length={length}"):
            bench.runner.truncate(handle, length)
        with pytest.raises(ValueError, match=f"length={length}"):
            bench.runner.fork(handle, length)
    with pytest.raises(ValueError, match="capacity=-1"):
        bench.runner.open(-1)
    with pytest.raises(ValueError, match="window=-1"):
        bench.runner.open(0, Statistics(-1))
    bench.runner.close(handle)
    for call in (bench.runner.close, bench.runner.length, bench.runner.index):
        with pytest.raises(ValueError, match=f"unknown handle {handle}; open: none"):
            call(handle)


def test_statistics_that_are_not_kept_are_refused(bench: Bench) -> None:
    if "cumulative" in bench.runner.capabilities.statistics:
        bench.runner.open(0, Statistics(is_cumulative=True))
    else:
        with pytest.raises(ValueError, match="cumulative"):
            bench.runner.open(0, Statistics(is_cumulative=True))


def test_the_bytes_of_a_pass(bench: Bench) -> None:
    size = {"torch": 8, "native": 4}[bench.runner.name]
    config = bench.config
    num_read = config.num_linear_weights + 10 * config.num_kv_elements
    assert bench.runner.pass_bytes(10) == size * num_read
