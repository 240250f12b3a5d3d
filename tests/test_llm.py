"""The library's face on a tiny checkpoint: batches, streams, forks, chats, seeds."""

from __future__ import annotations

import pytest

from glimpse import LLM, SamplingParams
from glimpse.methods import get_method

TINY_GLIMPSE = get_method(
    "sparsespec-l",
    selection="verification:budget=0.05,min_budget=6,recent_size=3",
    controller="fixed:k=4",
)
PROMPTS = ["A short one.", "A prompt that is a good deal longer than the other one is.", "x"]


@pytest.fixture(scope="module")
def folder(tiny_checkpoint):
    return tiny_checkpoint("llama", has_tokenizer=True, max_position_embeddings=512)


@pytest.fixture(scope="module")
def llm(folder) -> LLM:
    return LLM(str(folder), method=TINY_GLIMPSE, dtype="float64")


@pytest.mark.parametrize("temperature", [0.0, 0.9])
def test_a_batch_gives_what_each_prompt_gives_alone(llm: LLM, temperature: float) -> None:
    params = SamplingParams(max_tokens=20, temperature=temperature, seed=3)
    together = llm.generate(PROMPTS, params)
    for prompt, generation in zip(PROMPTS, together, strict=True):
        alone = llm.generate(prompt, params, method="autoregressive")[0]
        assert generation.token_ids == alone.token_ids
        assert generation.text == alone.text
        assert (generation.stats.method, alone.stats.method) == ("sparsespec-l", "autoregressive")


def test_more_prompts_than_places(folder, llm: LLM) -> None:
    narrow = LLM(str(folder), method=TINY_GLIMPSE, dtype="float64", max_num_seqs=2)
    prompts = [f"Prompt number {i}" for i in range(5)]
    params = SamplingParams(max_tokens=8)
    texts = [generation.text for generation in narrow.generate(prompts, params)]
    assert texts == [generation.text for generation in llm.generate(prompts, params)]


def test_token_ids_are_a_prompt(llm: LLM) -> None:
    ids = llm.tokenizer.encode(PROMPTS[0])
    from_ids = llm.generate(ids, max_tokens=8)[0]
    assert from_ids.token_ids == llm.generate(PROMPTS[0], max_tokens=8)[0].token_ids
    assert from_ids.stats.prompt_tokens == len(ids)


def test_n_texts_share_one_prefill(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    llm.prefixes.clear()
    read: list[int] = []
    forward = llm.runner.forward

    def counting(batch, *rest, **options):
        read.extend(len(s.token_ids) for s in batch.segments if s.num_logits == 0)
        return forward(batch, *rest, **options)

    monkeypatch.setattr(llm.runner, "forward", counting)
    params = SamplingParams(max_tokens=12, temperature=1.0, seed=1, n=3)
    texts = llm.generate(PROMPTS[1], params)
    num_prompt = texts[0].stats.prompt_tokens
    window = 16
    # The whole prompt once, and of each further text the last window's queries.
    assert sum(read) == num_prompt - 1 + 2 * window
    assert len({tuple(text.token_ids) for text in texts}) == 3
    monkeypatch.undo()
    again = llm.generate(PROMPTS[1], params, method="autoregressive")
    assert [text.token_ids for text in again] == [text.token_ids for text in texts]


def test_a_drawn_seed_is_reported_and_reproduces(llm: LLM) -> None:
    first = llm.generate(PROMPTS[0], max_tokens=12, temperature=1.0)[0]
    second = llm.generate(PROMPTS[0], max_tokens=12, temperature=1.0)[0]
    assert first.seed != second.seed
    again = llm.generate(PROMPTS[0], max_tokens=12, temperature=1.0, seed=first.seed)[0]
    assert again.token_ids == first.token_ids


def test_a_large_seed_keys_the_rejection_stream(llm: LLM) -> None:
    method = get_method("sparsespec-l", acceptance="rejection")
    texts = {
        tuple(
            llm.generate(PROMPTS[0], method=method, max_tokens=12, temperature=1.0, seed=seed)[
                0
            ].token_ids
        )
        for seed in (2**63, 2**64 - 1, 2**63 + 12345)
    }
    assert len(texts) == 3


def test_a_stream_adds_up_to_the_text(llm: LLM) -> None:
    events = list(llm.stream(PROMPTS[1], max_tokens=20))
    generation = events[-1].generation
    assert "".join(event.text for event in events) == generation.text
    assert [i for event in events for i in event.token_ids] == generation.token_ids
    assert sum(event.num_accepted for event in events) == generation.stats.accepted
    assert generation.finish_reason == "length"
    assert events[0].generation.stats.ttft_s > 0


def test_an_abandoned_stream_keeps_what_it_has_and_frees_the_rest(llm: LLM) -> None:
    stream = llm.stream(PROMPTS[:2], max_tokens=40)
    event = next(stream)
    stream.close()
    assert event.generation.finish_reason == "abort"
    assert event.generation.token_ids
    expected = llm.generate(PROMPTS[0], max_tokens=40, method="autoregressive")[0]
    assert llm.generate(PROMPTS[0], max_tokens=40)[0].token_ids == expected.token_ids


def test_a_conversation_is_read_once(llm: LLM) -> None:
    document = "All of the facts. " * 12
    llm.prefixes.clear()
    messages = [{"role": "user", "content": document + "What is it about?"}]
    first = llm.chat(messages, max_tokens=10)
    messages += [
        {"role": "assistant", "content": first.text},
        {"role": "user", "content": "And what else?"},
    ]
    seen: list[tuple[int, int]] = []
    second = llm.chat(messages, max_tokens=10, progress=lambda *step: seen.append(step))
    num_read = second.stats.prompt_tokens - first.stats.prompt_tokens
    assert num_read < second.stats.prompt_tokens / 2
    llm.prefixes.clear()
    cold = llm.chat(messages, max_tokens=10)
    assert cold.token_ids == second.token_ids
    # The glimpse after a reused prefix is that of a cold start: so are the drafts.
    assert cold.stats.drafted == second.stats.drafted
    assert cold.stats.accepted == second.stats.accepted


def test_the_models_own_defaults_hold_unless_overridden(llm: LLM) -> None:
    params = llm.sampling_params(max_tokens=5)
    assert params.max_tokens == 5
    for name, value in llm.defaults.sampling.items():
        assert getattr(params, name) == value
        assert llm.sampling_params(temperature=0.3).temperature == 0.3


@pytest.mark.parametrize(
    ("prompt", "options", "words"),
    [
        ("", {}, "empty"),
        ("word " * 600, {}, "more than fit"),
        ("x", {"temperature": float("nan")}, "temperature=nan"),
        ("x", {"max_tokens": 0}, "max_tokens=0"),
        ("x", {"method": "warp"}, "unknown method 'warp'; valid: autoregressive"),
        ("x", {"method": get_method("sparsespec-l", acceptance="greedy"), "temperature": 1.0}, "0"),
    ],
)
def test_bad_requests_are_one_clear_error(llm: LLM, prompt: str, options, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        llm.generate(prompt, **options)
    assert llm.generate("x", max_tokens=2)[0].finish_reason == "length"
