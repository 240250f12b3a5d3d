"""llama.cpp as a peer, compiled for this machine by ``llama-cpp-python``."""

from __future__ import annotations

import time
from importlib import metadata
from typing import Any

import llama_cpp
from llama_cpp.llama_speculative import LlamaPromptLookupDecoding

from glimpse.bench.peers import Measurement, Request
from glimpse.bench.peers.catalogue import Setup

MARGIN = 64
"""Room for a draft that reaches beyond the answer."""
MAX_NGRAM = 2


class LlamaCppPeer:
    """``Llama.generate``, token by token; it goes on after an end-of-text token.

    ``lookup`` is the number of tokens that prompt lookup proposes; 0 is plain decoding.
    """

    def __init__(self, setup: Setup, has_flash: bool, kv_type: str, lookup: int) -> None:
        self._keeps_prefix = setup.keeps_prefix
        kv = getattr(llama_cpp, f"GGML_TYPE_{kv_type.upper()}")
        self._model = llama_cpp.Llama(
            str(setup.files.weights[0]),
            n_ctx=setup.max_length + MARGIN,
            n_threads=setup.threads,
            n_threads_batch=setup.threads,
            flash_attn=has_flash,
            type_k=kv,
            type_v=kv,
            draft_model=LlamaPromptLookupDecoding(MAX_NGRAM, lookup) if lookup else None,
            # A draft model writes the logits of all positions, but only this makes room for them.
            logits_all=lookup > 0,
            verbose=False,
        )
        self.settings: dict[str, Any] = {
            "version": metadata.version("llama-cpp-python"),
            "flash_attention": has_flash,
            "weights": "as stored",
            "kv": kv_type,
            "lookup": lookup,
            "threads": setup.threads,
        }

    def generate(self, request: Request) -> Measurement:
        # Else a prompt that begins like the last one would not be read again.
        if not self._keeps_prefix:
            self._model.reset()
        self._model.set_seed(request.seed)
        started = time.perf_counter()
        tokens, times = [], []
        for token in self._model.generate(
            request.prompt_ids, temp=request.temperature, top_k=0, top_p=1.0, min_p=0.0
        ):
            tokens.append(token)
            times.append(time.perf_counter())
            if len(tokens) == request.max_tokens:
                break
        return Measurement(times[0] - started, times[-1] - times[0], tokens)


def load(
    setup: Setup, has_flash: bool = False, kv_type: str = "f16", lookup: int = 0
) -> LlamaCppPeer:
    return LlamaCppPeer(setup, has_flash, kv_type, lookup)
