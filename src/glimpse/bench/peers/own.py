"""Glimpse, measured the way its peers are."""

from __future__ import annotations

from collections.abc import Sequence

from glimpse.bench.peers import Measurement
from glimpse.config import SamplingParams
from glimpse.llm import LLM


class OwnPeer:
    """``LLM.generate``, greedy, nothing kept from run to run."""

    def __init__(self, model: str, runner: str, method: str) -> None:
        self._llm = LLM(model, runner=runner, method=method, prefix_capacity=0)

    def generate(self, prompt_ids: Sequence[int], max_tokens: int) -> Measurement:
        params = SamplingParams(max_tokens=max_tokens, min_tokens=max_tokens)
        text = self._llm.generate([prompt_ids], params)[0]
        stats = text.stats
        after_first = stats.prefill_s + stats.decode_s - stats.ttft_s
        return Measurement(stats.ttft_s, after_first, text.token_ids)
