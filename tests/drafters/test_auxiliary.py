"""A second model's drafts, and the KV that follows the target's text."""

from __future__ import annotations

import logging
import math

import pytest
import torch

from glimpse.config import Method, SamplingParams
from glimpse.drafters import Assets
from glimpse.drafters.companion import Companion, fit
from glimpse.engine import Engine
from glimpse.llm import LLM
from glimpse.models import ModelError
from glimpse.types import RaggedBatch, Runner, Sequence
from tests.tiny import PLAIN, decode, prompts, tiny_runner

GREEDY = SamplingParams(max_tokens=24)
AUXILIARY = Method("test", "auxiliary", None, "fixed:k=4")


@pytest.fixture(scope="module")
def runner() -> Runner:
    return tiny_runner()


def generate(runner: Runner, method: Method, drafter: Runner, lengths=(33, 7)) -> list[Sequence]:
    engine = Engine(runner, decode, assets=Assets(drafter))
    opened = [engine.open(ids, GREEDY, method) for ids in prompts(runner, lengths)]
    while running := [sequence for sequence in opened if not sequence.is_finished]:
        engine.round(running)
    return opened


def test_the_target_as_its_own_drafter_is_always_accepted(runner: Runner) -> None:
    drafter = tiny_runner()
    drafted = generate(runner, AUXILIARY, drafter)
    assert all(s.stats.accepted == s.stats.drafted > 0 for s in drafted)
    assert [s.output_ids for s in drafted] == [
        s.output_ids for s in generate(runner, PLAIN, drafter)
    ]


def test_kv_is_freed_with_its_sequence(runner: Runner) -> None:
    drafter = tiny_runner(num_layers=2)
    engine = Engine(runner, decode, assets=Assets(drafter))
    ended, aborted = (engine.open(ids, GREEDY, AUXILIARY) for ids in prompts(runner, (20, 9)))
    while not ended.is_finished:
        engine.round([ended])
    for _ in range(3):
        engine.round([aborted])
    assert len(drafter._sequences) == 1
    engine.forget(aborted)
    engine.forget(aborted)
    assert not drafter._sequences


@pytest.mark.parametrize("limit", [30, 44])
def test_beyond_the_drafters_context_it_drafts_no_more_and_says_so_once(
    runner: Runner, caplog: pytest.LogCaptureFixture, limit: int
) -> None:
    # The prompt alone is longer than 30, prompt and answer are longer than 44.
    drafter = tiny_runner(max_seq_len=limit)
    with caplog.at_level(logging.WARNING):
        (drafted,) = generate(runner, AUXILIARY, drafter, (33,))
    (plain,) = generate(runner, PLAIN, drafter, (33,))
    assert drafted.output_ids == plain.output_ids
    assert (drafted.stats.drafted > 0) == (limit == 44)
    (line,) = [record.getMessage() for record in caplog.records]
    assert f"than the drafter's context of {limit}" in line


def test_a_token_that_the_drafter_does_not_have_ends_drafting(
    runner: Runner, caplog: pytest.LogCaptureFixture
) -> None:
    drafter = tiny_runner(vocab_size=9)
    (drafted,) = generate(runner, AUXILIARY, drafter, (33,))
    assert drafted.stats.drafted == 0
    assert "vocabulary of 9 has no token" in caplog.text
    assert drafted.output_ids == generate(runner, PLAIN, drafter, (33,))[0].output_ids


def test_logits_fit_a_vocabulary_of_another_size() -> None:
    row = torch.tensor([1.0, 3.0, 2.0])
    assert fit(row, 2).tolist() == [1.0, 3.0]
    assert fit(row, 5).tolist() == [1.0, 3.0, 2.0, -math.inf, -math.inf]
    assert fit(row, 3).tolist() == row.tolist()


def test_a_companion_takes_back_only_what_differs(runner: Runner) -> None:
    sequence = Sequence(0, [1, 2, 3, 4], 3, GREEDY, AUXILIARY, "greedy", 0)
    companion = Companion(runner, sequence, [1, 2, 3])
    companion.settle(sequence.token_ids)
    assert companion.segment(sequence, []).token_ids == [4]  # the prompt is read apart
    handle = companion._handle
    for draft_ids in ([], [5], [5, 6]):
        runner.forward(RaggedBatch([companion.segment(sequence, draft_ids)]))
    assert runner.length(handle) == 6  # 1 2 3 4 5 6
    sequence.token_ids += [5, 9]  # 6 was rejected
    companion.settle(sequence.token_ids)
    assert runner.length(handle) == 5
    assert companion.segment(sequence, []).token_ids == [9]
    assert companion.segment(sequence, [7]).token_ids == [9, 7]
    companion.close()


def test_a_method_without_its_second_model_is_refused(runner: Runner) -> None:
    with pytest.raises(ValueError, match="'test' drafts with a second model, which was not given"):
        Engine(runner, decode).open([1, 2, 3], GREEDY, AUXILIARY)


def test_another_tokenizer_is_refused_with_its_first_token(tiny_checkpoint) -> None:
    target, same = (
        tiny_checkpoint("llama", has_tokenizer=True, vocab_size=size) for size in (300, 280)
    )
    params = SamplingParams(max_tokens=8)
    llm = LLM(str(target), runner="torch", method="auxiliary", draft_model=str(same))
    drafted = llm.generate("a text", params)[0]
    assert drafted.stats.drafted > 0
    assert drafted.token_ids == llm.generate("a text", params, method="autoregressive")[0].token_ids
    other = tiny_checkpoint("llama", has_tokenizer=True)
    path = other / "tokenizer.json"
    text = path.read_text(encoding="utf-8")
    assert '"A":' in text
    path.write_text(text.replace('"A":', '"\\u2603":'), encoding="utf-8")
    with pytest.raises(ModelError, match=r"token \d+ is '☃', the target's is 'A'"):
        LLM(str(target), runner="torch", method="auxiliary", draft_model=str(other))
