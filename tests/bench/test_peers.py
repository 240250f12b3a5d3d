"""Peers answer from a process of their own, and what goes wrong there is said here."""

from __future__ import annotations

import pytest

from glimpse.bench.peers import PeerProcess, Request
from glimpse.bench.peers.own import OwnPeer
from glimpse.bench.peers.transformers import TransformersPeer
from glimpse.models import resolve


def test_both_engines_give_the_same_tokens(tiny_checkpoint) -> None:
    folder = tiny_checkpoint("qwen2", has_tokenizer=True)
    request = Request(list(range(40)), max_tokens=6)
    with (
        PeerProcess("theirs", TransformersPeer, resolve(str(folder)), "sdpa") as theirs,
        PeerProcess("ours", OwnPeer, str(folder), "torch", "autoregressive") as ours,
    ):
        results = [peer.generate(request) for peer in (theirs, ours)]
        assert results[0].token_ids == results[1].token_ids
        assert len(results[0].token_ids) == 6
        assert all(r.ttft_s > 0 and r.decode_tokens_per_s > 0 for r in results)
        assert ours.peak_memory() > 2**27


def test_a_peer_that_cannot_load_says_why() -> None:
    with pytest.raises(RuntimeError, match=r"(?s)ours.*no-such-model"):
        PeerProcess("ours", OwnPeer, "no-such-model", "torch", "autoregressive")
