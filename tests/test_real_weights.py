"""The default model itself, on real prose: the text is transformers', and drafting leaves it so."""

from __future__ import annotations

import pytest
import torch

from glimpse import LLM, SamplingParams
from glimpse.bench import workloads
from glimpse.bench.workloads import LANGUAGE_REFERENCE, document
from glimpse.methods import get_method
from tests import alone
from tests.near_ties import assert_same_tokens

LENGTHS = (200, 600, 1200, 2500, 4000)
NUM_TOKENS = 24


@pytest.fixture(scope="module")
def llm(all_threads, smollm2_files) -> LLM:
    return LLM("smollm2-135m", runner="torch", device="cpu")


@pytest.fixture(scope="module")
def prompts(llm: LLM) -> list[list[int]]:
    """The beginnings of five different stretches of the language reference."""
    return [
        llm.tokenizer.encode(document(example.topic, llm.tokenizer, length))[:length]
        for example, length in zip(LANGUAGE_REFERENCE, LENGTHS, strict=True)
    ]


@pytest.mark.parametrize("number", range(len(LENGTHS)), ids=map(str, LENGTHS))
def test_greedy_text_is_transformers_and_drafting_leaves_it_so(
    llm: LLM, smollm2_reference, prompts: list[list[int]], number: int
) -> None:
    prompt = prompts[number]
    params = SamplingParams(max_tokens=NUM_TOKENS, ignore_eos=True, logprobs=2)
    plain = llm.generate(prompt, params, method="autoregressive")[0]
    drafted = llm.generate(
        prompt, params, method=get_method("sparsespec-l", controller="fixed:k=4")
    )[0]
    assert_same_tokens(plain, drafted.token_ids, f"sparsespec-l at {len(prompt)}")
    assert drafted.stats.drafted > 0
    with torch.inference_mode():
        reference = smollm2_reference.generate(
            torch.tensor([prompt]),
            max_new_tokens=NUM_TOKENS,
            do_sample=False,
            eos_token_id=None,
            pad_token_id=0,
        )
    expected = reference[0, len(prompt) :].tolist()
    assert_same_tokens(plain, expected, f"transformers at {len(prompt)}")


def test_logits_are_transformers(llm: LLM, smollm2_reference, prompts: list[list[int]]) -> None:
    from glimpse.types import RaggedBatch, Segment

    prompt = prompts[1]
    handle = llm.runner.open(len(prompt))
    logits = llm.runner.forward(RaggedBatch([Segment(handle, prompt, len(prompt))])).logits
    llm.runner.close(handle)
    with torch.inference_mode():
        expected = smollm2_reference(torch.tensor([prompt])).logits[0]
    assert (logits - expected).abs().max() <= 1e-3 * expected.abs().max()


@pytest.mark.parametrize("temperature", [0.8, 1.0])
def test_a_seed_fixes_a_sampled_text_however_it_is_drafted(
    llm: LLM, prompts: list[list[int]], temperature: float
) -> None:
    params = SamplingParams(
        max_tokens=NUM_TOKENS, temperature=temperature, seed=11, ignore_eos=True
    )
    plain = llm.generate(prompts[2], params, method="autoregressive")[0]
    rejected = 0
    for controller in ("fixed:k=2", "fixed:k=7"):
        method = get_method("sparsespec-l", controller=controller, budget=0.02)
        drafted = llm.generate(prompts[2], params, method=method)[0]
        assert drafted.token_ids == plain.token_ids
        rejected += drafted.stats.drafted - drafted.stats.accepted
    assert rejected > 0


@pytest.mark.parametrize("name", alone.parameters("torch"))
def test_a_ragged_batch_gives_each_text_as_alone(
    llm: LLM, prompts: list[list[int]], name: str
) -> None:
    params = SamplingParams(max_tokens=NUM_TOKENS, ignore_eos=True, logprobs=2)
    method = get_method(name, controller="fixed:k=3")
    together = llm.generate(prompts[:3], params, method=method)
    for prompt, generation in zip(prompts, together, strict=False):
        plain = llm.generate(prompt, params, method="autoregressive")[0]
        assert_same_tokens(plain, generation.token_ids, f"{name}, batch of 3, {len(prompt)} tokens")
        assert generation.stats.drafted > 0


@pytest.mark.slow
@pytest.mark.parametrize("example", LANGUAGE_REFERENCE, ids=lambda example: example.name)
def test_long_documents_under_every_method(llm: LLM, example) -> None:
    token_ids = workloads.prompt(example, llm.tokenizer, 7500)
    params = SamplingParams(max_tokens=96, min_tokens=96, logprobs=2)
    plain = llm.generate(token_ids, params, method="autoregressive")[0]
    for name in alone.names("torch"):
        method = get_method(name, controller="fixed:k=4")
        drafted = llm.generate(token_ids, params, method=method)[0]
        assert_same_tokens(plain, drafted.token_ids, f"{name} on {example.name} at 7.5k")
        assert drafted.stats.drafted > 0
