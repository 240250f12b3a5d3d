"""The native runner as a whole: threads, forks, instruction sets, types of weights."""

from __future__ import annotations

import os
import threading
from dataclasses import replace

import pytest
import torch

from glimpse.models import plain_tensor
from glimpse.runners.native.runner import NativeRunner
from glimpse.types import GLIMPSE, IndexSpec, KVView, RaggedBatch, Segment
from tests.conformance.tiny import SHAPES, NaiveDecoder, tiny_tensors
from tests.runners.isa import ISAS

CONFIG = SHAPES["everything"]
TEXT = [1, 4, 9, 16, 25, 36, 2, 3, 5, 7]


def a_runner(**options) -> NativeRunner:
    return NativeRunner(CONFIG, tiny_tensors(CONFIG).items(), **{"threads": 2, **options})


def logits_of(runner: NativeRunner) -> torch.Tensor:
    return runner.forward(RaggedBatch([Segment(runner.open(), TEXT, len(TEXT))])).logits


@pytest.mark.parametrize("threads", [1, 2, 3, 8])
def test_any_number_of_threads_gives_the_same_bits(threads: int) -> None:
    assert torch.equal(logits_of(a_runner(threads=threads)), logits_of(a_runner(threads=1)))


@pytest.mark.parametrize("isa", ISAS)
def test_every_instruction_set_is_right(isa: str) -> None:
    exact = NaiveDecoder(CONFIG, tiny_tensors(CONFIG))(TEXT).logits
    logits = logits_of(a_runner(isa=isa, kv_dtype="float32"))
    torch.testing.assert_close(logits.double(), exact, rtol=5e-4, atol=5e-4)


def test_the_wider_instruction_sets_give_the_same_bits() -> None:
    wide = [logits_of(a_runner(isa=isa)) for isa in ISAS if isa != "portable"]
    assert all(torch.equal(logits, wide[0]) for logits in wide)


def test_an_unknown_instruction_set_is_refused() -> None:
    with pytest.raises(ValueError, match="isa='sse9': must be one of auto, avx512, avx2, portable"):
        a_runner(isa="sse9")


def test_half_precision_weights_are_taken_as_they_are() -> None:
    for dtype in (torch.float16, torch.bfloat16):
        tensors = {name: tensor.to(dtype) for name, tensor in tiny_tensors(CONFIG).items()}
        exact = NaiveDecoder(CONFIG, {name: t.double() for name, t in tensors.items()})(TEXT)
        runner = NativeRunner(CONFIG, tensors.items(), threads=2, kv_dtype="float32")
        torch.testing.assert_close(logits_of(runner).double(), exact.logits, rtol=5e-4, atol=5e-4)


def test_a_forked_process_makes_its_own_threads() -> None:
    runner = a_runner()
    expected = logits_of(runner)
    child = os.fork()
    if child == 0:
        os._exit(0 if torch.equal(logits_of(runner), expected) else 1)
    assert os.waitpid(child, 0)[1] == 0
    assert torch.equal(logits_of(runner), expected)


def resident_bytes() -> int:
    with open("/proc/self/statm") as statm:
        return int(statm.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def test_many_sequences_one_after_the_other_need_the_memory_of_one() -> None:
    config = replace(CONFIG, max_seq_len=400_000)
    runner = NativeRunner(config, tiny_tensors(config).items(), threads=1, kv_dtype="float32")
    after = []
    for _ in range(12):
        handle = runner.open(300_000)  # 34 MB
        runner.forward(RaggedBatch([Segment(handle, TEXT, 0)]))
        child = runner.fork(handle, len(TEXT), capacity=300_000)
        runner.close(handle)
        runner.close(child)
        after.append(resident_bytes())
    assert after[-1] - after[1] < 10_000_000


def test_python_threads_take_turns() -> None:
    runners = [a_runner(), a_runner()]
    expected = logits_of(runners[0])
    wrong: list[int] = []

    def work(runner: NativeRunner) -> None:
        wrong.extend(n for n in range(20) if not torch.equal(logits_of(runner), expected))

    threads = [threading.Thread(target=work, args=(runners[i % 2],)) for i in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_an_early_exit_is_the_first_layers_alone() -> None:
    runner = a_runner()
    handle = runner.open()
    runner.forward(RaggedBatch([Segment(handle, TEXT[:-1], 0)]))
    runner.refresh(handle, IndexSpec(100))
    batch = RaggedBatch([Segment(handle, TEXT[-1:])])
    early = runner.forward(batch, KVView("glimpse", exit_layer=1)).logits
    runner.refresh(handle, IndexSpec(100))
    assert not torch.equal(early, runner.forward(batch, GLIMPSE).logits)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"model.norm.weight": None}, "model.norm.weight is missing"),
        ({"model.more": torch.ones(2, 2)}, "model.more is not expected"),
        ({"model.norm.weight": torch.ones(3)}, r"model.norm.weight has shape \(3,\) instead"),
    ],
)
def test_weights_that_do_not_fit_are_named(change, message: str) -> None:
    tensors = {**tiny_tensors(CONFIG), **change}
    given = [(name, plain_tensor(t)) for name, t in tensors.items() if t is not None]
    with pytest.raises(ValueError, match=message):
        NativeRunner(CONFIG, given)
