"""The native runner on real weights: drafting, batches, threads, chunks change not one token."""

from __future__ import annotations

import random
from collections.abc import Iterable

import gguf
import numpy as np
import pytest
import torch

from glimpse import LLM, SamplingParams
from glimpse.bench.workloads import LANGUAGE_REFERENCE, document
from glimpse.engine import Engine
from glimpse.methods import get_method
from glimpse.models import StoredTensor, load_config, read_tensors, stored_tensors
from glimpse.prefix import PrefixCache
from glimpse.runners.native.runner import NativeRunner
from glimpse.types import RaggedBatch, Segment
from tests import alone

KV_DTYPES = ("float32", "float16", "int16", "int8")
WEIGHT_TYPES = ("F32", "F16", "BF16", "Q8_0", "Q4_0", "Q5_1")
MIN_TOKENS = 1024


def an_llm(files, tensors: Iterable[tuple[str, StoredTensor | torch.Tensor]], **options) -> LLM:
    """The default model's tokenizer and engine on a native runner with weights of our own."""
    llm = LLM("smollm2-135m", runner="native", prefix_capacity=0)
    llm.runner = NativeRunner(load_config(files), tensors, **options)
    llm.engine = Engine(llm.runner, llm.tokenizer.decode, None)
    llm.prefixes = PrefixCache(llm.runner, 0)
    return llm


def weights_as(files, kind: str) -> Iterable[tuple[str, StoredTensor | torch.Tensor]]:
    """The default model's weights in another type; vectors stay float32."""
    plain = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}
    for name, tensor in read_tensors(files, torch.float32):
        if tensor.ndim == 1:
            yield name, tensor
        elif kind in plain:
            yield name, tensor.to(plain[kind])
        else:
            rows = gguf.quantize(tensor.numpy(), gguf.GGMLQuantizationType[kind])
            yield name, StoredTensor(tuple(tensor.shape), kind, rows.view(np.uint8))


@pytest.fixture(scope="module")
def llms(smollm2_files) -> dict[int, LLM]:
    """The model as it is, by number of threads."""
    return {
        threads: LLM("smollm2-135m", runner="native", threads=threads, prefix_capacity=0)
        for threads in (1, 2, 3)
    }


def prompts_of(llm: LLM, count: int) -> list[list[int]]:
    """``count`` different stretches of the language reference, each of at least MIN_TOKENS."""
    reference = [
        llm.tokenizer.encode(document(example.topic, llm.tokenizer, 16 * MIN_TOKENS))
        for example in LANGUAGE_REFERENCE
    ]
    draw = random.Random(5)
    prompts = []
    for number in range(count):
        start = draw.randrange(14 * MIN_TOKENS)
        text = reference[number % len(reference)]
        prompts.append(text[start : start + MIN_TOKENS + draw.randrange(200)])
    return prompts


def check(llms: dict[int, LLM], num_prompts: int, num_tokens: int) -> None:
    """Plain decoding, one text at a time, against drafting with everything drawn per prompt."""
    draw = random.Random(7)
    prompts = prompts_of(llms[1], num_prompts)
    rejected = 0
    while prompts:
        together = [prompts.pop() for _ in range(min(draw.choice((1, 2, 3)), len(prompts)))]
        temperature = draw.choice((0.0, 0.8))
        params = SamplingParams(
            max_tokens=num_tokens, temperature=temperature, seed=draw.randrange(99), ignore_eos=True
        )
        method = get_method("sparsespec-l", controller=f"fixed:k={draw.randint(1, 9)}", budget=0.05)
        drafted = llms[draw.choice(list(llms))].generate(together, params, method=method)
        for prompt, generation in zip(together, drafted, strict=True):
            plain = llms[1].generate(prompt, params, method="autoregressive")[0]
            assert generation.token_ids == plain.token_ids
            rejected += generation.stats.drafted - generation.stats.accepted
    assert rejected > 0


def test_drafting_leaves_every_text_as_it_is(llms: dict[int, LLM]) -> None:
    check(llms, 8, 32)


@pytest.mark.parametrize("temperature", [0.0, 0.8], ids=["greedy", "coupled"])
@pytest.mark.parametrize("name", alone.parameters("native"))
def test_every_method_alone_and_in_a_batch(
    llms: dict[int, LLM], name: str, temperature: float
) -> None:
    params = SamplingParams(max_tokens=24, temperature=temperature, seed=3, ignore_eos=True)
    prompts = prompts_of(llms[2], 3)
    method = get_method(name, controller="fixed:k=4")
    expected = [llms[2].generate(p, params, method="autoregressive")[0] for p in prompts]
    for drafted in (
        llms[2].generate(prompts[0], params, method=method),
        llms[2].generate(prompts, params, method=method),
    ):
        for plain, generation in zip(expected, drafted, strict=False):
            assert generation.token_ids == plain.token_ids
            assert generation.stats.drafted > 0


def test_rows_alone_and_together_have_the_same_bits(llms: dict[int, LLM]) -> None:
    """One by one, in chunks of any size, on any number of threads, with and without neighbours."""
    text = prompts_of(llms[1], 1)[0][:300]
    handle = llms[1].runner.open()
    expected = [
        llms[1].runner.forward(RaggedBatch([Segment(handle, [token])])).logits for token in text
    ]
    for threads, chunk in ((1, 300), (2, 7), (3, 64), (2, 33)):
        runner = llms[threads].runner
        handle, neighbour = runner.open(), runner.open()
        for start in range(0, len(text), chunk):
            rows = text[start : start + chunk]
            batch = RaggedBatch([Segment(neighbour, rows[:3], 0), Segment(handle, rows, len(rows))])
            logits = runner.forward(batch).logits
            assert torch.equal(logits, torch.cat(expected[start : start + chunk]))


@pytest.mark.slow
def test_drafting_leaves_many_texts_as_they_are(llms: dict[int, LLM]) -> None:
    check(llms, 64, 128)


@pytest.mark.slow
@pytest.mark.parametrize("kv_dtype", KV_DTYPES)
def test_drafting_with_every_kv_type(smollm2_files, kv_dtype: str) -> None:
    llms = {
        threads: LLM(
            "smollm2-135m", runner="native", threads=threads, kv_dtype=kv_dtype, prefix_capacity=0
        )
        for threads in (1, 2)
    }
    check(llms, 64, 128)


@pytest.mark.slow
@pytest.mark.parametrize("kind", WEIGHT_TYPES)
def test_drafting_with_every_weight_type(smollm2_files, kind: str) -> None:
    llms = {
        threads: an_llm(smollm2_files, weights_as(smollm2_files, kind), threads=threads)
        for threads in (1, 2)
    }
    check(llms, 64, 128)


@pytest.mark.slow
def test_drafting_with_float_activations(smollm2_files) -> None:
    llms = {
        threads: LLM("smollm2-135m", runner="native", threads=threads, activations="float32")
        for threads in (1, 2)
    }
    check(llms, 64, 128)


def test_stored_weights_are_those_of_the_file(smollm2_files) -> None:
    """Q and k rows are back in the hub's order, and unpacked values are the dequantised ones."""
    from glimpse.models import dequantized_tensor

    expected = dict(read_tensors(smollm2_files, torch.float32))
    for name, stored in stored_tensors(smollm2_files):
        if ".layers.0." in name:
            assert torch.equal(dequantized_tensor(stored), expected[name])
