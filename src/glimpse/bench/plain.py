"""Plain decoding on our runner beside ``transformers.generate``: speed, prefill, memory, tokens."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from statistics import median
from typing import Any

import torch

from glimpse.bench.peers import Measurement, PeerProcess, Request
from glimpse.bench.peers.own import OwnPeer
from glimpse.bench.peers.transformers import TransformersPeer
from glimpse.bench.workloads import LANGUAGE_REFERENCE, prompt
from glimpse.models import load_config, load_tokenizer, resolve
from glimpse.types import Progress

FLOAT32_BYTES = 4


@dataclass(frozen=True)
class PlainRow:
    """One engine: medians over the repeats; ``memory_limit`` is weights + 1.3 x KV + 1 GiB."""

    name: str
    decode_tokens_per_s: float
    prefill_s: float
    peak_memory: int
    num_same_tokens: int
    """Leading tokens equal to transformers' own."""
    measurements: tuple[Measurement, ...]


def run(
    model: str, *, num_tokens: int, max_tokens: int, repeats: int, progress: Progress | None = None
) -> tuple[list[PlainRow], dict[str, Any]]:
    """Interleaved runs, each engine in its own process; rows, and what memory should be."""
    files = resolve(model)
    prompt_ids = prompt(LANGUAGE_REFERENCE[0], load_tokenizer(files), num_tokens)
    request, threads = Request(prompt_ids, max_tokens), torch.get_num_threads()
    with (
        PeerProcess("transformers sdpa", TransformersPeer, files, "sdpa") as theirs,
        PeerProcess("glimpse torch", OwnPeer, model, "torch", "autoregressive", threads) as ours,
    ):
        measured: dict[str, list[Measurement]] = {theirs.name: [], ours.name: []}
        for repeat in range(repeats):
            for number, peer in enumerate((theirs, ours)):
                measured[peer.name].append(peer.generate(request))
                if progress is not None:
                    progress(2 * repeat + number + 1, 2 * repeats)
        expected = measured[theirs.name][0].token_ids
        rows = [
            _row(peer.name, measured[peer.name], peer.peak_memory(), expected)
            for peer in (theirs, ours)
        ]
    config = load_config(files)
    num_positions = len(prompt_ids) + max_tokens
    kv = 2 * config.num_layers * config.num_kv_heads * config.head_dim * FLOAT32_BYTES
    return rows, {"prompt_tokens": len(prompt_ids), "kv_bytes": kv * num_positions}


def _row(
    name: str, measurements: list[Measurement], peak_memory: int, expected: list[int]
) -> PlainRow:
    own = measurements[0].token_ids
    differing = [i for i, pair in enumerate(zip(own, expected, strict=True)) if pair[0] != pair[1]]
    return PlainRow(
        name,
        median(m.decode_tokens_per_s for m in measurements),
        median(m.ttft_s for m in measurements),
        peak_memory,
        differing[0] if differing else len(own),
        tuple(measurements),
    )


def as_records(rows: list[PlainRow], facts: dict[str, Any]) -> list[dict[str, Any]]:
    """Rows for the raw result file."""
    return [facts, *(asdict(row) for row in rows)]
