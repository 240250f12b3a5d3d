"""llama.cpp as a peer, through the server that the ``xllamacpp`` wheel runs in its process."""

from __future__ import annotations

import json
import time
import urllib.request
from importlib import metadata
from typing import Any

import xllamacpp

from glimpse.bench.peers import Measurement, Request
from glimpse.bench.peers.catalogue import Setup

MARGIN = 64
"""Room for a draft that reaches beyond the answer."""


class XLlamaCppPeer:
    """One slot; times are llama.cpp's own counters."""

    def __init__(self, setup: Setup, has_flash: bool, kv_type: str, speculation: str) -> None:
        self._keeps_prefix = setup.keeps_prefix
        self._server = xllamacpp.Server(_parameters(setup, has_flash, kv_type, speculation))
        self.settings: dict[str, Any] = {
            "version": metadata.version("xllamacpp"),
            "flash_attention": has_flash,
            "weights": "as stored",
            "kv": kv_type,
            "speculation": speculation,
            "threads": setup.threads,
        }

    def generate(self, request: Request) -> Measurement:
        started = time.perf_counter()
        answer = self._post(
            {
                "prompt": request.prompt_ids,
                "n_predict": request.max_tokens,
                "temperature": request.temperature,
                "samplers": ["temperature"],
                "seed": request.seed,
                "ignore_eos": True,
                "cache_prompt": self._keeps_prefix,
                "return_tokens": True,
            }
        )
        total_s = time.perf_counter() - started
        # ``predicted_ms`` begins when the first token has been sampled.
        timings = answer["timings"]
        decode_s = timings["predicted_ms"] / 1000
        return Measurement(
            total_s - decode_s,
            decode_s,
            answer["tokens"],
            timings.get("draft_n"),
            timings.get("draft_n_accepted"),
        )

    def _post(self, body: dict[str, Any]) -> dict[str, Any]:
        # The functions of the Python class return text only; the server's own route has token ids.
        request = urllib.request.Request(
            f"{self._server.listening_address}/completion",
            json.dumps(body).encode(),
            {"Content-Type": "application/json"},
        )
        with urllib.request.urlopen(request) as response:
            answer: dict[str, Any] = json.load(response)
        return answer


def _parameters(setup: Setup, has_flash: bool, kv_type: str, speculation: str) -> Any:
    flash, kinds = xllamacpp.llama_flash_attn_type, xllamacpp.common_speculative_type
    parameters = xllamacpp.CommonParams()
    parameters.model.path = str(setup.files.weights[0])
    parameters.n_ctx = setup.max_length + MARGIN
    parameters.n_gpu_layers = 0
    parameters.n_parallel = 1
    parameters.cpuparams.n_threads = parameters.cpuparams_batch.n_threads = setup.threads
    parameters.flash_attn_type = (
        flash.LLAMA_FLASH_ATTN_TYPE_ENABLED if has_flash else flash.LLAMA_FLASH_ATTN_TYPE_DISABLED
    )
    kv = getattr(xllamacpp.ggml_type, f"GGML_TYPE_{kv_type.upper()}")
    parameters.cache_type_k = parameters.cache_type_v = kv
    parameters.speculative.types = [
        getattr(kinds, f"COMMON_SPECULATIVE_TYPE_{speculation.upper()}")
    ]
    # No copies of old prompts, no guesses at a smaller context, errors only in the log.
    parameters.cache_ram_mib = 0
    parameters.fit_params = False
    parameters.verbosity = 1
    return parameters


def load(
    setup: Setup, has_flash: bool = False, kv_type: str = "f16", speculation: str = "none"
) -> XLlamaCppPeer:
    return XLlamaCppPeer(setup, has_flash, kv_type, speculation)
