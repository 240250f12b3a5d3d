"""``glimpse bench batch``: documents decoded together, SparseSpec-L beside plain decoding."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from statistics import median
from typing import Any

from glimpse import prefill
from glimpse.bench.harness import BASELINE, PREFILL_WINDOW, make_engines, with_baseline
from glimpse.bench.workloads import LANGUAGE_REFERENCE, prompt
from glimpse.config import Method, SamplingParams
from glimpse.engine import Engine
from glimpse.llm import LLM
from glimpse.methods import METHODS
from glimpse.types import Progress, Sequence, Statistics

NUM_TOKENS = (4000, 3700, 4300, 3900)
"""Tokens of the documents of a batch: of about one length, none the same."""

Record = dict[str, Any]


@dataclass(frozen=True)
class BatchBench:
    """What is run: every size of batch, plain and speculative, ``repeats`` times in turns."""

    sizes: tuple[int, ...] = (1, 2, 4)
    max_tokens: int = 128
    repeats: int = 2
    num_tokens: tuple[int, ...] = NUM_TOKENS

    def __post_init__(self) -> None:
        for name, least in (("max_tokens", 2), ("repeats", 1)):
            if (value := getattr(self, name)) < least:
                raise ValueError(f"{name}={value}: must be at least {least}")


def run(bench: BatchBench, llm: LLM, progress: Progress | None = None) -> Iterator[Record]:
    """A record for each batch that was decoded: wall time, tokens, and what was accepted."""
    methods = with_baseline({"sparsespec-l": METHODS["sparsespec-l"]})
    params = llm.sampling_params(
        max_tokens=bench.max_tokens, min_tokens=bench.max_tokens, temperature=0.0
    )
    prompts = [
        prompt(example, llm.tokenizer, num_tokens)
        for example, num_tokens in zip(LANGUAGE_REFERENCE, bench.num_tokens, strict=False)
    ]
    bases = [llm.read(ids, Statistics(window=PREFILL_WINDOW)) for ids in prompts]
    num_done, total = 0, len(bench.sizes) * bench.repeats * len(methods)
    try:
        for size in bench.sizes:
            # What is learnt of costs belongs to one size: a user's batch does not change so often.
            engines = make_engines(llm, methods)
            for repeat in range(bench.repeats):
                together = [
                    _Batch(name, engines[name], method, bases[:size], prompts[:size], params)
                    for name, method in methods.items()
                ]
                for record in _take_turns(together):
                    yield {"batch": size, "repeat": repeat, **record}
                    num_done += 1
                    if progress is not None:
                        progress(num_done, total)
    finally:
        for handle in bases:
            llm.runner.close(handle)


class _Batch:
    """The texts of one method, one batch of the engine."""

    def __init__(
        self,
        name: str,
        engine: Engine,
        method: Method,
        bases: list[int],
        prompts: list[list[int]],
        params: SamplingParams,
    ) -> None:
        self.name, self.engine, self.seconds = name, engine, 0.0
        self.sequences: list[Sequence] = []
        runner = engine.runner
        for base, ids in zip(bases, prompts, strict=True):
            capacity = prefill.capacity(runner, ids, params)
            handle = runner.fork(base, len(ids) - 1, engine.statistics(method), capacity)
            self.sequences.append(engine.open(ids, params, method, handle=handle))

    @property
    def running(self) -> list[Sequence]:
        return [sequence for sequence in self.sequences if not sequence.is_finished]

    @property
    def num_tokens(self) -> int:
        return sum(sequence.num_output_tokens for sequence in self.sequences)

    def round(self) -> None:
        started = time.perf_counter()
        self.engine.round(self.running)
        self.seconds += time.perf_counter() - started

    def close(self) -> None:
        for sequence in self.sequences:
            self.engine.forget(sequence)
            self.engine.runner.close(sequence.handle)

    def record(self) -> Record:
        stats = [sequence.stats for sequence in self.sequences]
        return {
            "method": self.name,
            "seconds": self.seconds,
            "tokens": self.num_tokens,
            "drafted": sum(s.drafted for s in stats),
            "accepted": sum(s.accepted for s in stats),
            "rounds": max(s.rounds for s in stats),
            "token_ids": [sequence.output_ids for sequence in self.sequences],
        }


def _take_turns(together: list[_Batch]) -> Iterator[Record]:
    """Rounds of the method that is furthest behind, until all are through."""
    try:
        while waiting := [batch for batch in together if batch.running]:
            min(waiting, key=lambda batch: batch.num_tokens).round()
        yield from (batch.record() for batch in together)
    finally:
        for batch in together:
            batch.close()


@dataclass(frozen=True)
class BatchRow:
    """One method at one size: medians over the repeats."""

    batch: int
    method: str
    tokens_per_s: float
    """Of all texts together."""
    speedup: float
    """Over plain decoding of the same batch."""
    acceptance_rate: float | None
    is_identical: bool
    """Whether every token of every run equals plain decoding's."""


def rows(records: list[Record]) -> list[BatchRow]:
    """A row for each size and method, in the order of the run."""
    keys = dict.fromkeys((record["batch"], record["method"]) for record in records)
    return [_row(records, *key) for key in keys]


def _row(records: list[Record], batch: int, method: str) -> BatchRow:
    def of(name: str) -> list[Record]:
        return [r for r in records if (r["batch"], r["method"]) == (batch, name)]

    def speed(name: str) -> float:
        return float(median(r["tokens"] / r["seconds"] for r in of(name)))

    own, expected = of(method), of(BASELINE)[0]["token_ids"]
    drafted = sum(r["drafted"] for r in own)
    return BatchRow(
        batch,
        method,
        speed(method),
        speed(method) / speed(BASELINE),
        sum(r["accepted"] for r in own) / drafted if drafted else None,
        all(r["token_ids"] == expected for r in own),
    )


def cells(records: list[Record]) -> tuple[list[str], list[list[str]]]:
    """A table: speed of each batch relative to plain decoding of one text, and of as many."""
    found = rows(records)
    first = found[0].tokens_per_s
    header = ["batch", "method", "of plain alone", "speed-up", "accepted", "same tokens"]
    return header, [
        [
            str(row.batch),
            row.method,
            f"{row.tokens_per_s / first:.2f}x",
            f"{row.speedup:.2f}x",
            "-" if row.acceptance_rate is None else f"{row.acceptance_rate:.1%}",
            "yes" if row.is_identical else "no",
        ]
        for row in found
    ]
