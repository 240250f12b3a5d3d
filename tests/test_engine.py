"""The loop: blocks cut at every kind of stop, rollback, interrupts, limits."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence as SequenceOf
from dataclasses import dataclass, replace
from typing import ClassVar

import pytest

from glimpse.config import Method, SamplingParams
from glimpse.controllers import controllers
from glimpse.drafters import Drafter, KeepDrafting, Propose
from glimpse.engine import Engine
from glimpse.methods import Plugins
from glimpse.types import Draft, DraftSignal, RaggedBatch, Runner, Sequence
from tests.tiny import PLAIN, decode, prompts, tiny_runner

SIGNAL = DraftSignal(entropy=0.0, top_prob=1.0, margin=1.0, token_prob=1.0)
SCRIPTED = Method("scripted", drafter="scripted")
SPARSE = Method(
    "sparse", "sparse_self", "verification:budget=0.05,min_budget=6,recent_size=3", "fixed:k=4"
)
NUM_TOKENS = 20


@dataclass
class Scripted(Drafter):
    """Proposes the continuation of a known text, or anything but it at the ``wrong`` places."""

    text: list[int]
    wrong: frozenset[int] = frozenset()
    uses_view: ClassVar[bool] = False
    needs_early_exit: ClassVar[bool] = False

    def draft(
        self,
        runner: Runner,
        sequences: SequenceOf[Sequence],
        caps: SequenceOf[int],
        propose: Propose,
        keep_drafting: KeepDrafting,
    ) -> list[Draft]:
        return [
            self._draft(runner, sequence.num_output_tokens, cap)
            for sequence, cap in zip(sequences, caps, strict=True)
        ]

    def _draft(self, runner: Runner, start: int, cap: int) -> Draft:
        positions = range(start, min(start + cap, len(self.text)))
        vocab_size = runner.config.vocab_size
        tokens = [(self.text[i] + (i in self.wrong)) % vocab_size for i in positions]
        return Draft(tokens, [SIGNAL] * len(tokens))


@pytest.fixture(scope="module")
def runner() -> Runner:
    return tiny_runner()


@pytest.fixture(scope="module")
def prompt(runner: Runner) -> list[int]:
    return prompts(runner, (12,))[0]


def run(engine: Engine, sequence: Sequence) -> Sequence:
    while not sequence.is_finished:
        engine.round([sequence])
    engine.runner.close(sequence.handle)
    return sequence


def plain(runner: Runner, prompt: list[int], params: SamplingParams, **options) -> Sequence:
    engine = Engine(runner, decode)
    return run(engine, engine.open(prompt, params, PLAIN, **options))


def scripted(
    runner: Runner, prompt: list[int], params: SamplingParams, drafter: Scripted, k: int, **options
) -> Sequence:
    engine = Engine(runner, decode)
    engine._plugins[SCRIPTED] = Plugins(drafter, None, controllers.build(f"fixed:k={k}"))
    return run(engine, engine.open(prompt, params, SCRIPTED, **options))


@pytest.fixture(scope="module")
def text(runner: Runner, prompt: list[int]) -> list[int]:
    return plain(runner, prompt, SamplingParams(max_tokens=NUM_TOKENS)).output_ids


GREEDY = SamplingParams(max_tokens=NUM_TOKENS)


def test_never_accepted(runner: Runner, prompt: list[int], text: list[int]) -> None:
    drafter = Scripted(text, frozenset(range(NUM_TOKENS)))
    sequence = scripted(runner, prompt, GREEDY, drafter, 3)
    assert sequence.output_ids == text
    assert sequence.stats.accepted == 0
    assert sequence.stats.drafted > 0
    assert sequence.stats.rounds == NUM_TOKENS


def test_always_accepted(runner: Runner, prompt: list[int], text: list[int]) -> None:
    sequence = scripted(runner, prompt, GREEDY, Scripted(text), 4)
    assert sequence.output_ids == text
    assert sequence.stats.acceptance_rate == 1
    # The first token, three rounds of five, and a last round cut to the four that are left.
    assert sequence.stats.draft_lengths == {0: 1, 4: 3, 3: 1}
    assert sequence.stats.tokens_per_round == NUM_TOKENS / 5


def test_sometimes_accepted(runner: Runner, prompt: list[int], text: list[int]) -> None:
    sequence = scripted(runner, prompt, GREEDY, Scripted(text, frozenset({2, 7, 11})), 4)
    assert sequence.output_ids == text
    assert 0 < sequence.stats.acceptance_rate < 1


@pytest.mark.parametrize("length", range(1, NUM_TOKENS))
def test_the_length_limit_at_every_place_of_a_block(
    runner: Runner, prompt: list[int], text: list[int], length: int
) -> None:
    params = SamplingParams(max_tokens=length)
    sequence = scripted(runner, prompt, params, Scripted(text), 5)
    assert sequence.output_ids == text[:length]
    assert sequence.finish_reason == "length"


def first_occurrences(text: list[int]) -> list[int]:
    return [i for i in range(1, len(text)) if text[i] not in text[:i]]


def test_eos_at_every_place_of_a_block(runner: Runner, prompt: list[int], text: list[int]) -> None:
    places = first_occurrences(text)
    assert {(place - 1) % 6 for place in places} >= {0, 1, 2, 5}
    for place in places:
        eos = frozenset({text[place], 10**6})
        sequence = scripted(runner, prompt, GREEDY, Scripted(text), 5, eos_token_ids=eos)
        assert sequence.output_ids == text[: place + 1]
        assert (sequence.finish_reason, sequence.stop_reason) == ("stop", text[place])
        assert sequence.text == decode(text[:place])


def test_stop_string_at_every_place_of_a_block(
    runner: Runner, prompt: list[int], text: list[int]
) -> None:
    for place in first_occurrences(text):
        params = replace(GREEDY, stop=(decode(text[place - 1 : place + 1]),))
        expected = plain(runner, prompt, params)
        sequence = scripted(runner, prompt, params, Scripted(text), 5)
        assert sequence.output_ids == expected.output_ids
        assert sequence.text == expected.text
        assert sequence.finish_reason == "stop"
        assert params.stop[0] not in sequence.text


def test_the_context_limit_at_every_place_of_a_block() -> None:
    for room in range(1, 12):
        runner = tiny_runner(max_seq_len=12 + room)
        prompt = prompts(runner, (12,))[0]
        expected = plain(runner, prompt, SamplingParams(max_tokens=50))
        sequence = scripted(
            runner, prompt, SamplingParams(max_tokens=50), Scripted(expected.output_ids), 5
        )
        assert len(sequence.token_ids) == runner.config.max_seq_len
        assert sequence.output_ids == expected.output_ids
        assert sequence.finish_reason == "length"


def test_a_length_limit_does_not_hide_a_stop(
    runner: Runner, prompt: list[int], text: list[int]
) -> None:
    place = first_occurrences(text)[-1]
    params = SamplingParams(max_tokens=place + 1)
    eos = frozenset({text[place]})
    sequence = scripted(runner, prompt, params, Scripted(text), 5, eos_token_ids=eos)
    assert sequence.finish_reason == "stop"


@pytest.mark.parametrize("when", range(1, 8))
@pytest.mark.parametrize("verb", ["forward", "truncate", "refresh"])
def test_an_interrupted_round_leaves_no_trace(
    runner: Runner,
    prompt: list[int],
    text: list[int],
    verb: str,
    when: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Ctrl-C at every call of the runner in turn: the text goes on as if nothing had happened."""
    engine = Engine(runner, decode)
    sequence = engine.open(prompt, GREEDY, SPARSE)
    engine.round([sequence])
    countdown = iter(range(when - 1, -1, -1))
    original = getattr(runner, verb)

    def interrupt(*args, **kwargs):
        if next(countdown, -1) == 0:
            raise KeyboardInterrupt
        return original(*args, **kwargs)

    with monkeypatch.context() as patch, contextlib.suppress(KeyboardInterrupt):
        patch.setattr(runner, verb, interrupt)
        while not sequence.is_finished:
            engine.round([sequence])
    assert next(countdown, None) is None, "the call was never reached"
    assert runner.length(sequence.handle) == len(sequence.token_ids) - 1
    assert run(engine, sequence).output_ids == text


def test_logprobs_are_the_targets_own(runner: Runner, prompt: list[int]) -> None:
    params = SamplingParams(max_tokens=9, logprobs=2)
    expected = plain(runner, prompt, params).logprobs
    engine = Engine(runner, decode)
    drafted = run(engine, engine.open(prompt, params, SPARSE)).logprobs
    assert [entry.token_id for entry in drafted] == [entry.token_id for entry in expected]
    for ours, theirs in zip(drafted, expected, strict=True):
        assert ours.logprob == pytest.approx(theirs.logprob, abs=1e-9)
        assert list(ours.top) == list(theirs.top)
        assert max(ours.top.values()) == pytest.approx(ours.logprob)


def test_min_tokens_forbids_eos_in_drafts_too(
    runner: Runner, prompt: list[int], text: list[int]
) -> None:
    params = SamplingParams(max_tokens=12, min_tokens=9)
    eos = frozenset(text[:5])
    expected = plain(runner, prompt, params, eos_token_ids=eos)
    engine = Engine(runner, decode)
    drafted = run(engine, engine.open(prompt, params, SPARSE, eos_token_ids=eos))
    assert drafted.output_ids == expected.output_ids
    assert not eos & set(drafted.output_ids[:8])


def test_penalties_see_each_positions_own_history(runner: Runner, prompt: list[int]) -> None:
    params = SamplingParams(
        max_tokens=16, repetition_penalty=1.3, presence_penalty=0.5, frequency_penalty=0.4
    )
    expected = plain(runner, prompt, params)
    drafted = scripted(runner, prompt, params, Scripted(expected.output_ids), 5)
    assert drafted.output_ids == expected.output_ids
    assert drafted.stats.acceptance_rate == 1
    assert drafted.output_ids != plain(runner, prompt, SamplingParams(max_tokens=16)).output_ids


@pytest.mark.parametrize(("length", "words"), [(0, "empty"), (65, "2 more than"), (64, "1 more")])
def test_bad_prompts(length: int, words: str) -> None:
    runner = tiny_runner(max_seq_len=64)
    with pytest.raises(ValueError, match=words):
        Engine(runner, decode).open([1] * length, GREEDY, PLAIN)


def test_prefill_reports_progress_and_an_interrupt_frees_the_kv(
    runner: Runner, monkeypatch: pytest.MonkeyPatch
) -> None:
    closed: list[int] = []
    monkeypatch.setattr(runner, "close", closed.append)
    engine = Engine(runner, decode)

    def stop_halfway(done: int, total: int) -> None:
        assert (done, total) == (512, 599)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        engine.open(prompts(runner, (600,))[0], GREEDY, PLAIN, progress=stop_halfway)
    assert len(closed) == 1


def test_rounds_report_where_time_went(runner: Runner, prompt: list[int]) -> None:
    engine = Engine(runner, decode)
    stats = run(engine, engine.open(prompt, GREEDY, SPARSE)).stats
    assert set(stats.seconds) == {"control", "refresh", "draft", "verify", "accept", "commit"}
    assert stats.ttft_s > stats.prefill_s > 0
    assert stats.decode_s > sum(stats.seconds[verb] for verb in ("draft", "verify"))


def test_a_plain_round_observes_nothing(
    runner: Runner, prompt: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    batches: list[RaggedBatch] = []
    forward = runner.forward
    monkeypatch.setattr(
        runner, "forward", lambda batch, **rest: (batches.append(batch), forward(batch, **rest))[1]
    )
    plain(runner, prompt, GREEDY)
    assert not any(segment.is_observed for batch in batches for segment in batch.segments)


def test_a_prompt_may_be_read_between_the_rounds_of_others(runner: Runner) -> None:
    engine = Engine(runner, decode)
    short, long = prompts(engine.runner, (40, 600))
    params = SamplingParams(max_tokens=40)
    alone = [run(engine, engine.open(ids, params, SPARSE)).output_ids for ids in (short, long)]
    first = engine.open(short, params, SPARSE)
    second = engine.begin(long, params, SPARSE)
    lengths = []
    is_read = False
    while not is_read:
        is_read = engine.read_chunk(second)
        lengths.append(engine.runner.length(second.handle))
        engine.round([first])
    assert lengths == [512, 599]
    assert not first.is_finished
    while running := [text for text in (first, second) if not text.is_finished]:
        engine.round(running)
    assert [first.output_ids, second.output_ids] == alone
