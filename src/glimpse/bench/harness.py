"""Runs methods side by side: one shared prefill for each prompt, then interleaved decoding.

Every speed-up has plain decoding of the same run, runner and prompt below it. Methods take turns
round by round, so that a machine that slows down for a while slows all of them alike.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from collections.abc import Sequence as SequenceOf
from dataclasses import dataclass, replace
from itertools import count

from glimpse import prefill
from glimpse.config import Method, SamplingParams
from glimpse.costs import CostModel
from glimpse.engine import Engine
from glimpse.llm import LLM
from glimpse.methods import METHODS
from glimpse.stats import Stats, repetition
from glimpse.types import Progress, Sequence, Statistics

BASELINE = "autoregressive"
PREFILL_WINDOW = 64
"""Least statistics window of a shared prefill, so that methods of several runs can share it."""


@dataclass(frozen=True)
class Run:
    """One method's text for one prompt."""

    method: str
    prompt: int
    repeat: int
    token_ids: list[int]
    text: str
    finish_reason: str | None
    seed: int
    stats: Stats


def with_baseline(methods: Mapping[str, Method]) -> dict[str, Method]:
    """The methods with plain decoding among them, first."""
    return {BASELINE: METHODS[BASELINE], **methods}


def side_by_side(
    llm: LLM,
    prompts: SequenceOf[list[int]],
    methods: Mapping[str, Method],
    params: SamplingParams,
    *,
    repeats: int = 1,
    seed: int = 0,
    engines: Mapping[str, Engine] | None = None,
    progress: Progress | None = None,
    reading: Progress | None = None,
) -> list[Run]:
    """Run every method ``repeats`` times on every prompt, in turns.

    Each method has its own copy of the prompt's KV meanwhile. ``engines`` keeps what methods learn
    from call to call. Prompts that begin alike (questions on one document) share the reading of
    that part. ``progress`` counts finished texts.
    """
    engines = engines or make_engines(llm, methods)
    runs: list[Run] = []
    finished, total = count(1), len(prompts) * repeats * len(methods)

    def report() -> None:
        if progress is not None:
            progress(next(finished), total)

    for number, prompt in enumerate(prompts):
        started = time.perf_counter()
        base = llm.read(prompt, shared_statistics(engines, methods), reading)
        prefill_s = time.perf_counter() - started
        for repeat in range(repeats):
            sequences = _take_turns(llm, engines, base, prompt, methods, params, seed, report)
            for name, sequence in sequences.items():
                sequence.stats.prefill_s += prefill_s
                sequence.stats.ttft_s += prefill_s
                runs.append(_record(name, number, repeat, sequence))
        llm.prefixes.put(base, prompt)
    return runs


def shared_statistics(engines: Mapping[str, Engine], methods: Mapping[str, Method]) -> Statistics:
    """What a prefill must record for each of the methods to fork off it."""
    wanted = [engines[name].statistics(method) for name, method in methods.items()]
    return Statistics(
        max([PREFILL_WINDOW, *(kept.window for kept in wanted)]),
        any(kept.is_cumulative for kept in wanted),
    )


def make_engines(
    llm: LLM, methods: Mapping[str, Method], costs: CostModel | None = None
) -> dict[str, Engine]:
    """An engine for each method, so that none learns from another's rounds.

    ``costs``, where given, is a pinned table for all of them.
    """
    return {
        name: Engine(llm.runner, llm.tokenizer.decode, costs or CostModel(), llm.assets)
        for name in methods
    }


def _take_turns(
    llm: LLM,
    engines: Mapping[str, Engine],
    base: int,
    prompt: list[int],
    methods: Mapping[str, Method],
    params: SamplingParams,
    seed: int,
    report: Callable[[], None],
) -> dict[str, Sequence]:
    """One finished text per method, from copies of the KV that was read once for all."""
    sequences: dict[str, Sequence] = {}
    try:
        for name, method in methods.items():
            sequences[name] = _open(llm, engines[name], base, prompt, method, params, seed)
        waiting = dict(sequences)
        while waiting:
            # The one that is furthest behind in its text: all are at about the same place.
            name = min(waiting, key=lambda name: waiting[name].num_output_tokens)
            engines[name].round([waiting[name]])
            if waiting[name].is_finished:
                del waiting[name]
                report()
    finally:
        for name, sequence in sequences.items():
            engines[name].forget(sequence)
            llm.runner.close(sequence.handle)
    for sequence in sequences.values():
        sequence.stats.repetition = repetition(sequence.output_ids)
    return sequences


def _open(
    llm: LLM,
    engine: Engine,
    base: int,
    prompt: list[int],
    method: Method,
    params: SamplingParams,
    seed: int,
) -> Sequence:
    handle = llm.runner.fork(
        base,
        len(prompt) - 1,
        engine.statistics(method),
        prefill.capacity(llm.runner, prompt, params),
    )
    return engine.open(
        prompt, params, method, seed=seed, eos_token_ids=llm.defaults.eos_token_ids, handle=handle
    )


def _record(name: str, prompt: int, repeat: int, sequence: Sequence) -> Run:
    stats = replace(sequence.stats, method=name)
    return Run(
        name, prompt, repeat, sequence.output_ids, sequence.text, sequence.finish_reason,
        sequence.seed, stats,
    )  # fmt: skip


@dataclass(frozen=True)
class Summary:
    """A method over all prompts: counts summed, times of the median repeat of each prompt."""

    stats: Stats
    speedup: float
    """Decode tokens per second over the baseline's."""
    spread: float
    """Largest over smallest decode time among the repeats of a prompt, the worst prompt's."""
    is_identical: bool
    """Whether every token of every run equals plain decoding's."""


def summarise(runs: list[Run]) -> dict[str, Summary]:
    """One summary per method, in the order of the runs."""
    names = list(dict.fromkeys(run.method for run in runs))
    return {name: _summary(name, runs) for name in names}


def _summary(name: str, runs: list[Run]) -> Summary:
    stats = pooled(name, runs)
    baseline = pooled(BASELINE, runs)
    expected = {run.prompt: run.token_ids for run in runs if run.method == BASELINE}
    own = [run for run in runs if run.method == name]
    times = [[run.stats.decode_s for run in own if run.prompt == prompt] for prompt in expected]
    return Summary(
        stats,
        stats.decode_tokens_per_s / baseline.decode_tokens_per_s,
        max(max(column) / min(column) for column in times),
        all(run.token_ids == expected[run.prompt] for run in own),
    )


def pooled(name: str, runs: list[Run]) -> Stats:
    """A method's statistics over all prompts: the repeat with the median decode time of each."""
    chosen = []
    for prompt in dict.fromkeys(run.prompt for run in runs):
        repeats = [run.stats for run in runs if run.method == name and run.prompt == prompt]
        by_time = sorted(repeats, key=lambda stats: stats.decode_s)
        chosen.append(by_time[(len(by_time) - 1) // 2])
    return sum(chosen[1:], start=chosen[0])
