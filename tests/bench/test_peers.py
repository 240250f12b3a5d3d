"""Peers answer from a process of their own, and what goes wrong there is said here."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from glimpse.bench.peers import PeerProcess, Request
from glimpse.bench.peers.catalogue import PEERS, chosen
from glimpse.bench.peers.own import OwnPeer
from glimpse.bench.peers.transformers import TransformersPeer
from glimpse.models import resolve
from tests.bench.fakes import FakePeer


def test_both_engines_give_the_same_tokens(tiny_checkpoint) -> None:
    folder = tiny_checkpoint("qwen2", has_tokenizer=True)
    request = Request(list(range(40)), max_tokens=6)
    with (
        PeerProcess("theirs", TransformersPeer, resolve(str(folder)), "sdpa") as theirs,
        PeerProcess("ours", OwnPeer, str(folder), "torch", "autoregressive", 1) as ours,
    ):
        results = [peer.generate(request) for peer in (theirs, ours)]
        assert results[0].token_ids == results[1].token_ids
        assert len(results[0].token_ids) == 6
        assert all(r.ttft_s > 0 and r.decode_tokens_per_s > 0 for r in results)
        assert ours.peak_memory() > 2**27


def test_a_peer_that_cannot_load_says_why() -> None:
    with pytest.raises(RuntimeError, match=r"(?s)ours.*no-such-model"):
        PeerProcess("ours", OwnPeer, "no-such-model", "torch", "autoregressive", 1)


def test_an_error_in_the_middle_arrives_with_the_name_of_the_engine() -> None:
    with PeerProcess("fake", FakePeer, 10.0, None, 2) as peer:
        peer.generate(Request([1, 2], 3))
        with pytest.raises(RuntimeError, match=r"(?s)^fake: .*out of tokens"):
            peer.generate(Request([1, 2], 3))


def test_threads_reach_the_process_and_only_it(monkeypatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    with PeerProcess("fake", FakePeer, threads=3) as peer:
        assert peer.settings["omp"] == "3"
    assert os.environ["OMP_NUM_THREADS"] == "1"
    monkeypatch.delenv("OMP_NUM_THREADS")
    with PeerProcess("fake", FakePeer, threads=3):
        assert "OMP_NUM_THREADS" not in os.environ


def test_rows_are_chosen_by_name_or_engine() -> None:
    assert chosen([]) == PEERS
    assert [row.name for row in chosen(["xllamacpp flash", "openvino"])] == [
        "xllamacpp flash",
        "openvino plain",
        "openvino lookup",
    ]


def test_the_catalogue_imports_no_engine() -> None:
    code = (
        "import sys, glimpse.bench.peers.catalogue; "
        "print({'xllamacpp', 'llama_cpp', 'openvino', 'openvino_genai'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "set()\n"
