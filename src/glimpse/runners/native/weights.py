"""From stored tensors to the core's packed matrices, one tensor in memory at a time."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
from torch import Tensor

from glimpse.config import ModelConfig
from glimpse.models import StoredTensor, dequantized_tensor, plain_tensor, tensor_shapes
from glimpse.runners.native import _core

_MATRICES = (
    "self_attn.q_proj",
    "self_attn.k_proj",
    "self_attn.v_proj",
    "self_attn.o_proj",
    "mlp.gate_proj",
    "mlp.up_proj",
    "mlp.down_proj",
)
Floats = np.ndarray[Any, np.dtype[np.float32]]


class Weights:
    """A decoder's weights as the core takes them: packed matrices, and vectors in float32.

    A type that the core cannot pack is dequantised to float32. Raises ValueError that names what is
    missing, unknown or of the wrong shape.
    """

    def __init__(
        self, config: ModelConfig, tensors: Iterable[tuple[str, StoredTensor | Tensor]]
    ) -> None:
        self._stored: dict[str, StoredTensor] = {}
        self._vectors: dict[str, Floats] = {}
        self.num_bytes = 0
        """Of the matrices that every pass reads."""
        for name, tensor in tensors:
            stored = plain_tensor(tensor) if isinstance(tensor, Tensor) else tensor
            if len(stored.shape) == 1:
                self._vectors[name] = dequantized_tensor(stored).numpy()
            else:
                self._stored[name] = stored
        _check(
            config,
            {name: stored.shape for name, stored in self._stored.items()}
            | {name: vector.shape for name, vector in self._vectors.items()},
        )
        self.embedding = self._pack("model.embed_tokens")
        if not config.has_tied_embeddings:
            self.num_bytes = 0  # of an embedding that is no head a pass reads a row
        self.head = self.embedding if config.has_tied_embeddings else self._pack("lm_head")
        self.final_norm = self._vectors["model.norm.weight"]
        self.layers = [self._layer(f"model.layers.{i}") for i in range(config.num_layers)]

    def _layer(self, prefix: str) -> _core.Layer:
        return _core.layer(
            self._vectors[f"{prefix}.input_layernorm.weight"],
            self._vectors[f"{prefix}.post_attention_layernorm.weight"],
            self._vectors.get(f"{prefix}.self_attn.q_norm.weight"),
            self._vectors.get(f"{prefix}.self_attn.k_norm.weight"),
            [self._pack(f"{prefix}.{name}") for name in _MATRICES],
        )

    def _pack(self, name: str) -> _core.Matrix:
        stored = self._stored.pop(f"{name}.weight")
        if not _core.is_packable(stored.type):
            stored = plain_tensor(dequantized_tensor(stored))
        rows = stored.rows.reshape(-1)
        self.num_bytes += rows.nbytes
        num_outputs, num_inputs = stored.shape
        bias = self._vectors.get(f"{name}.bias")
        return _core.pack(stored.type, num_outputs, num_inputs, rows, stored.row_order, bias)


def _check(config: ModelConfig, found: dict[str, tuple[int, ...]]) -> None:
    expected = tensor_shapes(config)
    problems = [f"{name} is missing" for name in expected if name not in found]
    for name, shape in found.items():
        if name not in expected:
            if not (config.has_tied_embeddings and name == "lm_head.weight"):
                problems.append(f"{name} is not expected")
        elif shape != expected[name]:
            problems.append(f"{name} has shape {shape} instead of {expected[name]}")
    if problems:
        more = f" and {len(problems) - 5} more" if len(problems) > 5 else ""
        raise ValueError(f"weights do not fit the model: {'; '.join(problems[:5])}{more}")
