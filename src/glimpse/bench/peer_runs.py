"""``glimpse bench peers``: ours beside other engines on one GGUF file, interleaved, in one run."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from importlib import metadata
from typing import Any

from glimpse import runners
from glimpse.bench.peers import PeerProcess, Request
from glimpse.bench.peers.catalogue import Row, Setup, chosen, load, own_rows
from glimpse.bench.workloads import LANGUAGE_REFERENCE, prompt
from glimpse.bench.yardsticks import (
    BANDWIDTH_METHOD,
    kv_bytes_per_token,
    read_bandwidth,
    weight_bytes,
)
from glimpse.models import ModelFiles, Tokenizer, load_config, load_tokenizer, resolve
from glimpse.types import Progress

WARM_UP = Request(list(range(100, 132)), max_tokens=4)
"""First calls compile and allocate; this one is not counted."""

Record = dict[str, Any]
Start = Callable[[Row, Setup], PeerProcess]


@dataclass(frozen=True)
class PeerBench:
    """What is run: every context with every temperature, ``repeats`` times on every engine."""

    model: str
    runner: str = "auto"
    peers: tuple[str, ...] = ()
    """Rows or engines of the catalogue; empty for all."""
    contexts: tuple[int, ...] = (256, 2048, 7400)
    """Tokens of the prompt."""
    temperatures: tuple[float, ...] = (0.0, 0.8)
    max_tokens: int = 128
    repeats: int = 3
    threads: int = 2

    def __post_init__(self) -> None:
        for name, least in (("max_tokens", 3), ("repeats", 1), ("threads", 1)):
            if (value := getattr(self, name)) < least:
                raise ValueError(f"{name}={value}: must be at least {least}")
        for temperature in self.temperatures:
            if not (math.isfinite(temperature) and temperature >= 0):
                raise ValueError(f"temperature={temperature}: must be 0 (greedy) or more")

    @property
    def num_runs(self) -> int:
        """Of one engine."""
        return len(self.contexts) * len(self.temperatures) * self.repeats


def start(row: Row, setup: Setup) -> PeerProcess:
    """The engine of a row in its own process, warmed up. RuntimeError says what failed."""
    peer = PeerProcess(row.name, load, row, setup, threads=setup.threads)
    try:
        peer.generate(WARM_UP)
    except RuntimeError:
        peer.close()
        raise
    return peer


def run(
    bench: PeerBench, start: Start = start, progress: Progress | None = None
) -> Iterator[Record]:
    """Records as they come: the engines, then bandwidths and measurements, then peak memory.

    An engine that is not installed, or fails, is named with the reason; one of ours that does not
    start raises RuntimeError. Raises ValueError for a model that is not a GGUF file.
    """
    files = resolve(bench.model)
    if files.format != "gguf":
        raise ValueError(f"{bench.model} is not a GGUF file: no format is read by all engines else")
    rows = (*own_rows(runners.choose(bench.runner)), *chosen(bench.peers))
    tokenizer = load_tokenizer(files)
    prompts = {length: prompt_of(length, tokenizer) for length in bench.contexts}
    setup = Setup(files, bench.threads, max(bench.contexts) + bench.max_tokens)
    with ExitStack() as stack:
        peers: dict[str, PeerProcess] = {}
        engines = [_engine(row, setup, start, stack, peers) for row in rows]
        yield {"engines": engines, **_facts(files, bench)}
        yield from _measurements(bench, peers, prompts, progress)
        yield {"peak_memory": {name: peer.peak_memory() for name, peer in peers.items()}}


def prompt_of(length: int, tokenizer: Tokenizer) -> list[int]:
    """A document and a question of ``length`` tokens in all. ValueError if that is too few."""
    example = LANGUAGE_REFERENCE[0]
    size = length
    # Two ends of text may make one token where they meet: correct until the length is right.
    for _ in range(8):
        if size < 1:
            raise ValueError(f"context={length}: too short for the question and its template")
        if not (excess := len(token_ids := prompt(example, tokenizer, size)) - length):
            return token_ids
        size -= excess
    raise ValueError(f"context={length}: no document gives exactly this length")


def _engine(
    row: Row, setup: Setup, start: Start, stack: ExitStack, peers: dict[str, PeerProcess]
) -> Record:
    """Start one engine; what is known about it, or why it is not there."""
    facts: Record = {"name": row.name, "is_own": row.is_own, "is_speculative": row.is_speculative}
    if command := row.how_to_install:
        return {**facts, "missing": f"not installed: {command}"}
    try:
        peer = start(row, setup)
    except RuntimeError as error:
        if row.is_own:
            raise
        return {**facts, "missing": f"failed: {error}"}
    peers[row.name] = stack.enter_context(peer)
    return {**facts, "settings": dict(peer.settings)}


def _facts(files: ModelFiles, bench: PeerBench) -> Record:
    config = load_config(files)
    return {
        "model": bench.model,
        "max_tokens": bench.max_tokens,
        "threads": bench.threads,
        "weight_bytes": weight_bytes(files, config),
        "kv_bytes_per_token": kv_bytes_per_token(config),
        "bandwidth_method": BANDWIDTH_METHOD,
        "glimpse": metadata.version("glimpse-llm"),
    }


def _measurements(
    bench: PeerBench,
    peers: dict[str, PeerProcess],
    prompts: dict[int, list[int]],
    progress: Progress | None,
) -> Iterator[Record]:
    """Every condition, every repeat, every engine in rotating order; one that fails is left out."""
    num_done, total = 0, bench.num_runs * len(peers)
    for context, prompt_ids in prompts.items():
        for temperature in bench.temperatures:
            for repeat in range(bench.repeats):
                yield {"bandwidth": read_bandwidth(bench.threads)}
                names = list(peers)
                shift = repeat % len(names)
                request = Request(prompt_ids, bench.max_tokens, temperature, seed=repeat)
                for name in names[shift:] + names[:shift]:
                    yield {
                        "engine": name,
                        "context": context,
                        "temperature": temperature,
                        "repeat": repeat,
                        **_measure(name, peers, request),
                    }
                    num_done += 1
                    if progress is not None:
                        progress(num_done, total)


def _measure(name: str, peers: dict[str, PeerProcess], request: Request) -> Record:
    try:
        return asdict(peers[name].generate(request))
    except RuntimeError as error:
        del peers[name]
        return {"error": str(error)}
