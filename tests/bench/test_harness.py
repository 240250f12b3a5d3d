"""Runs side by side: what is shared, what is pooled, what counts as the same text."""

from __future__ import annotations

from dataclasses import replace

import pytest

from glimpse import LLM, SamplingParams
from glimpse.bench.harness import Run, pooled, side_by_side, summarise, with_baseline
from glimpse.methods import get_method
from glimpse.stats import Stats

PARAMS = SamplingParams(max_tokens=10, ignore_eos=True)
METHODS = {
    "a": get_method("sparsespec-l", controller="fixed:k=2"),
    "b": get_method("full", controller="fixed:k=3"),
}


@pytest.fixture(scope="module")
def llm(tiny_checkpoint) -> LLM:
    folder = tiny_checkpoint("llama", has_tokenizer=True, max_position_embeddings=512)
    return LLM(str(folder), dtype="float64", method="autoregressive")


def test_every_method_runs_on_every_prompt_from_one_prefill(llm: LLM) -> None:
    prompts = [llm.tokenizer.encode("A document. " * 9 + question) for question in ("Why?", "Who?")]
    steps: list[tuple[int, int]] = []
    read: list[tuple[int, int]] = []
    runs = side_by_side(
        llm,
        prompts,
        with_baseline(METHODS),
        PARAMS,
        repeats=2,
        progress=lambda *step: steps.append(step),
        reading=lambda *step: read.append(step),
    )
    assert steps == [(i, 12) for i in range(1, 13)]
    # Each prompt is read once, and the second only where it differs from the first.
    assert len(read) == 2
    assert [run.method for run in runs] == 4 * ["autoregressive", "a", "b"]
    summaries = summarise(runs)
    assert all(summary.is_identical for summary in summaries.values())
    assert summaries["autoregressive"].speedup == 1.0
    assert summaries["b"].stats.acceptance_rate == 1.0
    assert summaries["a"].stats.generated_tokens == 20
    assert all(run.stats.method == run.method for run in runs)


def test_a_different_token_anywhere_is_not_the_same_text() -> None:
    run = Run(
        "autoregressive",
        0,
        0,
        [1, 2, 3],
        "abc",
        "length",
        0,
        Stats(decode_s=1.0, generated_tokens=3),
    )
    same = replace(run, method="a")
    other = replace(run, method="a", repeat=1, token_ids=[1, 2, 4])
    assert summarise([run, same])["a"].is_identical
    assert not summarise([run, same, other])["a"].is_identical


def test_times_are_those_of_the_median_repeat_of_each_prompt() -> None:
    def run(method: str, prompt: int, seconds: float) -> Run:
        stats = Stats(generated_tokens=10, decode_s=seconds, rounds=5, drafted=8, accepted=5)
        return Run(method, prompt, 0, [1], "", "length", 0, stats)

    plain = [run("autoregressive", prompt, 2.0) for prompt in (0, 1)]
    runs = plain + [run("a", 0, s) for s in (9.0, 1.0, 0.5)] + [run("a", 1, s) for s in (3.0, 0.1)]
    stats = pooled("a", runs)
    assert stats.decode_s == pytest.approx(1.0 + 0.1)
    assert (stats.generated_tokens, stats.drafted, stats.accepted) == (20, 16, 10)
    summary = summarise(runs)["a"]
    assert summary.speedup == pytest.approx(4.0 / 1.1)
    assert summary.spread == pytest.approx(30.0)
