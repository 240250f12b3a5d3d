"""Glimpse, measured the way its peers are."""

from __future__ import annotations

from importlib import metadata
from typing import Any

from glimpse.bench.peers import Measurement, Request
from glimpse.bench.peers.catalogue import Setup
from glimpse.config import SamplingParams
from glimpse.llm import LLM


class OwnPeer:
    """``LLM.generate``; kept from run to run are what the controller has learnt and, if asked for,
    what was read."""

    def __init__(
        self, model: str, runner: str, method: str, threads: int, prefix_capacity: int = 0
    ) -> None:
        self._llm = LLM(
            model, runner=runner, method=method, threads=threads, prefix_capacity=prefix_capacity
        )
        self.settings: dict[str, Any] = {
            "version": metadata.version("glimpse-llm"),
            "runner": self._llm.runner.name,
            "method": method,
            "threads": threads,
        }

    def generate(self, request: Request) -> Measurement:
        params = SamplingParams(
            max_tokens=request.max_tokens,
            min_tokens=request.max_tokens,
            temperature=request.temperature,
            seed=request.seed,
        )
        text = self._llm.generate([request.prompt_ids], params)[0]
        stats = text.stats
        after_first = stats.prefill_s + stats.decode_s - stats.ttft_s
        return Measurement(
            stats.ttft_s, after_first, text.token_ids, stats.drafted or None, stats.accepted or None
        )


def load(setup: Setup, runner: str, method: str) -> OwnPeer:
    return OwnPeer(setup.files.name, runner, method, setup.threads, int(setup.keeps_prefix))
