"""Fixtures for the model tests: editing a checkpoint's JSON, writing tiny GGUF files."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest


@pytest.fixture
def edit_json() -> Callable[..., None]:
    """``edit_json(path, key=value, ...)``; a value of None removes the key."""

    def edit(path: Path, **changes: Any) -> None:
        values = json.loads(path.read_text()) if path.exists() else {}
        values |= changes
        path.write_text(
            json.dumps({key: value for key, value in values.items() if value is not None})
        )

    return edit


@pytest.fixture(scope="session")
def tiny_gguf(tmp_path_factory) -> Callable[..., Path]:
    """Factory of GGUF files: ``tiny_gguf("qwen2", settings={...}, tensors={...}, ...)``.

    ``settings`` are header keys without the architecture's prefix (None removes one), ``tensors``
    come on top of random ones.
    """

    def make(
        architecture: str = "llama",
        *,
        settings: dict[str, Any] | None = None,
        tokens: dict[str, int] | None = None,
        tensors: dict[str, Any] | None = None,
        without: str | None = None,
    ) -> Path:
        path = tmp_path_factory.mktemp("gguf") / f"{architecture}.gguf"
        header = {**_SETTINGS, **(settings or {})}
        all_tensors = {**_random_tensors(architecture), **(tensors or {})}
        all_tensors.pop(without, None)
        _write(path, architecture, header, tokens or {}, all_tensors)
        return path

    return make


_SETTINGS: dict[str, Any] = {
    "context_length": 128,
    "embedding_length": 32,
    "block_count": 1,
    "feed_forward_length": 64,
    "attention.head_count": 4,
    "attention.head_count_kv": 2,
    "attention.key_length": 8,
    "attention.layer_norm_rms_epsilon": 1e-5,
    "rope.freq_base": 20000.0,
}


def _random_tensors(architecture: str) -> dict[str, Any]:
    import numpy as np

    shapes = {
        "token_embd.weight": (40, 32),
        "output_norm.weight": (32,),
        "output.weight": (40, 32),
        "blk.0.attn_norm.weight": (32,),
        "blk.0.attn_q.weight": (32, 32),
        "blk.0.attn_k.weight": (16, 32),
        "blk.0.attn_v.weight": (16, 32),
        "blk.0.attn_output.weight": (32, 32),
        "blk.0.ffn_norm.weight": (32,),
        "blk.0.ffn_gate.weight": (64, 32),
        "blk.0.ffn_up.weight": (64, 32),
        "blk.0.ffn_down.weight": (32, 64),
    }
    if architecture == "qwen2":
        shapes |= {"blk.0.attn_q.bias": (32,), "blk.0.attn_k.bias": (16,)}
        shapes |= {"blk.0.attn_v.bias": (16,)}
    if architecture == "qwen3":
        shapes |= {"blk.0.attn_q_norm.weight": (8,), "blk.0.attn_k_norm.weight": (8,)}
    rng = np.random.default_rng(0)
    return {name: rng.standard_normal(shape, np.float32) for name, shape in shapes.items()}


def _write(
    path: Path,
    architecture: str,
    settings: dict[str, Any],
    tokens: dict[str, int],
    tensors: dict[str, Any],
) -> None:
    from gguf import GGUFWriter

    writer = GGUFWriter(path, architecture)
    for key, value in settings.items():
        add = {bool: writer.add_bool, int: writer.add_uint32, float: writer.add_float32}
        add |= {str: writer.add_string, list: writer.add_array}
        if value is not None:
            add[type(value)](f"{architecture}.{key}", value)
    for key, value in tokens.items():
        writer.add_uint32(f"tokenizer.ggml.{key}", value)
    for name, tensor in tensors.items():
        data, kind = tensor if isinstance(tensor, tuple) else (tensor, None)
        writer.add_tensor(name, data, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
