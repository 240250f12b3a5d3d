"""Hugging Face ``generate`` as a peer."""

from __future__ import annotations

import time
from importlib import metadata
from typing import Any

import torch
from transformers import AutoModelForCausalLM, GenerationConfig
from transformers.generation.streamers import BaseStreamer
from transformers.utils import logging

from glimpse.bench.peers import Measurement, Request
from glimpse.bench.peers.catalogue import Setup
from glimpse.models import ModelFiles


class TransformersPeer:
    """``AutoModelForCausalLM.generate`` in float32 with its own cache.

    ``lookup`` is the number of tokens that prompt lookup proposes; 0 is plain decoding.
    """

    def __init__(self, files: ModelFiles, attention: str, lookup: int = 0) -> None:
        gguf = files.weights[0].name if files.format == "gguf" else None
        self._model = AutoModelForCausalLM.from_pretrained(
            files.folder, gguf_file=gguf, dtype=torch.float32, attn_implementation=attention
        )
        self._lookup = {"prompt_lookup_num_tokens": lookup} if lookup else {}
        self.settings: dict[str, Any] = {
            "version": metadata.version("transformers"),
            "torch": metadata.version("torch"),
            "attention": attention,
            "weights": "float32",
            "kv": "float32",
            "threads": torch.get_num_threads(),
            **self._lookup,
        }

    def generate(self, request: Request) -> Measurement:
        clock = _Clock()
        prompt = torch.tensor([request.prompt_ids])
        torch.manual_seed(request.seed)
        with torch.inference_mode():
            output = self._model.generate(
                prompt, generation_config=self._config(request), streamer=clock
            )
        started, first, *_, last = clock.times
        return Measurement(first - started, last - first, output[0, prompt.shape[1] :].tolist())

    def _config(self, request: Request) -> Any:
        sampling: dict[str, Any] = {"do_sample": False}
        if request.temperature:
            sampling = {
                "do_sample": True,
                "temperature": request.temperature,
                "top_k": 0,
                "top_p": 1.0,
            }
        return GenerationConfig(
            max_new_tokens=request.max_tokens,
            min_new_tokens=request.max_tokens,
            use_cache=True,
            **sampling,
            **self._lookup,
        )


class _Clock(BaseStreamer):  # type: ignore[misc]
    """Notes the time of the prompt and of every token."""

    def __init__(self) -> None:
        self.times: list[float] = []

    def put(self, value: Any) -> None:  # noqa: ARG002  the base class's signature
        self.times.append(time.perf_counter())

    def end(self) -> None:
        pass


def load(setup: Setup, attention: str = "sdpa", lookup: int = 0) -> TransformersPeer:
    torch.set_num_threads(setup.threads)
    logging.disable_progress_bar()
    return TransformersPeer(setup.files, attention, lookup)
