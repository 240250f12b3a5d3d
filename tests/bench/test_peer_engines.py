"""Every engine that is installed, on the default model and a short prompt: the protocol holds."""

from __future__ import annotations

import os

import pytest

from glimpse.bench.peer_runs import prompt_of, start
from glimpse.bench.peers import Measurement, PeerProcess, Request
from glimpse.bench.peers.catalogue import PEERS, Setup, own_rows
from glimpse.models import load_tokenizer

pytestmark = pytest.mark.peers
NUM_TOKENS = 16
INSTALLED = [*own_rows("auto"), *(row for row in PEERS if row.how_to_install is None)]


@pytest.fixture(scope="module")
def prompt_ids(smollm2_files) -> list[int]:
    return prompt_of(64, load_tokenizer(smollm2_files))


@pytest.fixture(scope="module", params=INSTALLED, ids=lambda row: row.name)
def peer(request, smollm2_files):
    threads = os.cpu_count() or 1
    with start(request.param, Setup(smollm2_files, threads, 512 + NUM_TOKENS)) as peer:
        yield peer


def check(measurement: Measurement, vocab_size: int = 49152) -> None:
    assert len(measurement.token_ids) == NUM_TOKENS
    assert all(type(token) is int and 0 <= token < vocab_size for token in measurement.token_ids)
    assert measurement.ttft_s > 0
    assert measurement.decode_tokens_per_s > 0
    assert (measurement.drafted is None) == (measurement.accepted is None)


def test_greedy_text_is_the_same_twice(peer: PeerProcess, prompt_ids) -> None:
    first, second = (peer.generate(Request(prompt_ids, NUM_TOKENS)) for _ in range(2))
    check(first)
    check(second)
    assert first.token_ids == second.token_ids
    assert {"version", "threads"} <= set(peer.settings)
    assert peer.peak_memory() > 2**27


def test_seeds_and_temperature_are_heeded(peer: PeerProcess, prompt_ids) -> None:
    runs = [peer.generate(Request(prompt_ids, NUM_TOKENS, 1.5, seed)) for seed in (1, 2, 1)]
    for measurement in runs:
        check(measurement)
    assert runs[0].token_ids != runs[1].token_ids
    assert runs[0].token_ids == runs[2].token_ids


def test_a_prompt_is_read_again_every_time(peer: PeerProcess, smollm2_files) -> None:
    prompt_ids = prompt_of(512, load_tokenizer(smollm2_files))
    first, second = (peer.generate(Request(prompt_ids, NUM_TOKENS)).ttft_s for _ in range(2))
    # A cached prompt takes a fiftieth.
    assert second > first / 4
