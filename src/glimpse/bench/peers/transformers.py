"""Hugging Face ``generate`` as a peer."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import torch
from transformers import AutoModelForCausalLM, GenerationConfig
from transformers.generation.streamers import BaseStreamer

from glimpse.bench.peers import Measurement
from glimpse.models import ModelFiles


class TransformersPeer:
    """``AutoModelForCausalLM.generate`` in float32 with its own cache, greedy."""

    def __init__(self, files: ModelFiles, attention: str) -> None:
        gguf = files.weights[0].name if files.format == "gguf" else None
        self._model = AutoModelForCausalLM.from_pretrained(
            files.folder, gguf_file=gguf, dtype=torch.float32, attn_implementation=attention
        )

    def generate(self, prompt_ids: Sequence[int], max_tokens: int) -> Measurement:
        clock = _Clock()
        config = GenerationConfig(
            max_new_tokens=max_tokens, min_new_tokens=max_tokens, do_sample=False, use_cache=True
        )
        with torch.inference_mode():
            output = self._model.generate(
                torch.tensor([list(prompt_ids)]), generation_config=config, streamer=clock
            )
        started, first, *_, last = clock.times
        return Measurement(first - started, last - first, output[0, len(prompt_ids) :].tolist())


class _Clock(BaseStreamer):  # type: ignore[misc]
    """Notes the time of the prompt and of every token."""

    def __init__(self) -> None:
        self.times: list[float] = []

    def put(self, value: Any) -> None:  # noqa: ARG002  the base class's signature
        self.times.append(time.perf_counter())

    def end(self) -> None:
        pass
