"""OpenVINO GenAI as a peer, from the same GGUF file."""

from __future__ import annotations

import time
from importlib import metadata
from typing import Any

import numpy as np
import openvino
import openvino_genai

from glimpse.bench.peers import Measurement, Request
from glimpse.bench.peers.catalogue import Setup

MAX_NGRAM = 3


class OpenVINOPeer:
    """``LLMPipeline`` on its default back end (paged attention).

    ``lookup`` is the number of tokens that prompt lookup proposes; 0 is plain decoding.
    """

    def __init__(self, setup: Setup, lookup: int) -> None:
        scheduler = openvino_genai.SchedulerConfig()
        scheduler.enable_prefix_caching = setup.keeps_prefix
        options: dict[str, Any] = {"INFERENCE_NUM_THREADS": setup.threads}
        if lookup:
            options["prompt_lookup"] = True
        self._pipeline = openvino_genai.LLMPipeline(
            str(setup.files.weights[0]), "CPU", scheduler_config=scheduler, **options
        )
        self._lookup = lookup
        kv = openvino.Core().get_property("CPU", "KV_CACHE_PRECISION")
        self.settings: dict[str, Any] = {
            "version": metadata.version("openvino-genai"),
            "weights": "converted from the file",
            "kv": kv.get_type_name(),
            "lookup": lookup,
            "threads": setup.threads,
        }

    def generate(self, request: Request) -> Measurement:
        clock = _Clock()
        prompt = openvino.Tensor(np.array([request.prompt_ids], dtype=np.int64))
        started = time.perf_counter()
        tokens = self._pipeline.generate(prompt, self._config(request), clock).tokens[0]
        first, *_, last = clock.times
        return Measurement(first - started, last - first, list(tokens))

    def _config(self, request: Request) -> Any:
        config = openvino_genai.GenerationConfig(
            max_new_tokens=request.max_tokens,
            min_new_tokens=request.max_tokens,
            ignore_eos=True,
            apply_chat_template=False,
        )
        if request.temperature:
            config.do_sample = True
            config.temperature = request.temperature
            config.rng_seed = request.seed
        if self._lookup:
            config.num_assistant_tokens = self._lookup
            config.max_ngram_size = MAX_NGRAM
        return config


class _Clock(openvino_genai.StreamerBase):  # type: ignore[misc]
    """Notes the time of every token, or group of tokens that were accepted together."""

    def __init__(self) -> None:
        super().__init__()
        self.times: list[float] = []

    def write(self, token: Any) -> Any:  # noqa: ARG002  the base class's signature
        self.times.append(time.perf_counter())
        return openvino_genai.StreamingStatus.RUNNING

    def end(self) -> None:
        pass


def load(setup: Setup, lookup: int = 0) -> OpenVINOPeer:
    return OpenVINOPeer(setup, lookup)
