"""The weights of a model one by one, under the hub's names, from safetensors or GGUF."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import gguf
import numpy as np
import torch
from gguf import MODEL_ARCH_NAMES, GGMLQuantizationType, get_tensor_name_map
from safetensors import SafetensorError, safe_open
from torch import Tensor

from glimpse.config import ModelConfig
from glimpse.models.architectures import ARCHITECTURES
from glimpse.models.config import load_config
from glimpse.models.errors import ModelError
from glimpse.models.files import ModelFiles
from glimpse.models.gguf_config import FREQUENCY_FACTORS
from glimpse.models.gguf_file import GGUFFile

_FLOATS = ("F64", "F32", "F16", "BF16")
_FLOAT_NAMES = {torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16"}


def tensor_shapes(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    """Every tensor of a model and its shape (output features first), in the order of the layers."""
    hidden = config.hidden_size
    shapes: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (config.vocab_size, hidden)}
    for layer in range(config.num_layers):
        for name, shape in _layer_shapes(config).items():
            shapes[f"model.layers.{layer}.{name}"] = shape
    shapes["model.norm.weight"] = (hidden,)
    if not config.has_tied_embeddings:
        shapes["lm_head.weight"] = (config.vocab_size, hidden)
    return shapes


def read_tensors(files: ModelFiles, dtype: torch.dtype) -> Iterator[tuple[str, Tensor]]:
    """The tensors of ``tensor_shapes``, each with its name and converted to ``dtype``.

    With tied embeddings there is no ``lm_head.weight``. Raises ModelError, at once, for files that
    are cut short and for tensors that are missing, unknown or of another shape than the config's.
    """
    config = load_config(files)
    weights = _weights(files, config)
    return ((name, weights.read(name).to(dtype)) for name in tensor_shapes(config))


@dataclass(frozen=True)
class StoredTensor:
    """A tensor as its file holds it: rows of blocks, or of plain values."""

    shape: tuple[int, ...]
    type: str
    """As GGUF names it: F32, F16, BF16, Q8_0, ..."""
    rows: np.ndarray[Any, np.dtype[np.uint8]]
    """The bytes."""
    row_order: np.ndarray[Any, np.dtype[np.int64]] | None = None
    """The stored row of each row in the hub's order; None where they are the same."""


def stored_tensors(files: ModelFiles) -> Iterator[tuple[str, StoredTensor]]:
    """As ``read_tensors``, without a conversion, save that float64 becomes float32."""
    config = load_config(files)
    weights = _weights(files, config)
    return ((name, weights.stored(name)) for name in tensor_shapes(config))


def plain_tensor(tensor: Tensor) -> StoredTensor:
    """A float tensor in its own precision; float64 becomes float32."""
    values = tensor.to(torch.float32) if tensor.dtype == torch.float64 else tensor
    bytes_ = values.contiguous().view(torch.uint8).numpy()
    return StoredTensor(tuple(tensor.shape), _FLOAT_NAMES[values.dtype], bytes_)


def dequantized_tensor(stored: StoredTensor) -> Tensor:
    """The values, float32, rows in the hub's order. Raises ModelError as ``GGUFFile`` does."""
    kind = GGMLQuantizationType[stored.type]
    shape = gguf.quant_shape_to_byte_shape(stored.shape, kind)
    try:
        values = gguf.dequantize(stored.rows.reshape(shape), kind)
    except NotImplementedError as error:
        raise ModelError(
            f"weights of type {stored.type}, which the gguf package cannot dequantise"
        ) from error
    # A copy: unquantised values are a view of the read-only file.
    tensor = torch.from_numpy(values.astype(np.float32)).reshape(stored.shape)
    return tensor if stored.row_order is None else tensor[torch.from_numpy(stored.row_order)]


class _Weights(Protocol):
    shapes: dict[str, tuple[int, ...]]

    def read(self, name: str) -> Tensor: ...

    def stored(self, name: str) -> StoredTensor: ...


def _weights(files: ModelFiles, config: ModelConfig) -> _Weights:
    """The checked weights of a model."""
    weights = _GGUFWeights(files.gguf, config) if files.format == "gguf" else _Safetensors(files)
    expected = tensor_shapes(config)
    _check(files.name, expected, weights.shapes, has_tied_embeddings=config.has_tied_embeddings)
    return weights


class _Safetensors:
    """Tensors of one or more safetensors files."""

    def __init__(self, files: ModelFiles) -> None:
        self._handles: dict[str, Any] = {}
        self.shapes: dict[str, tuple[int, ...]] = {}
        for path in files.weights:
            handle = _open(path)
            for name in handle.keys():  # noqa: SIM118 (not a dict)
                header = handle.get_slice(name)
                if header.get_dtype() not in _FLOATS:
                    raise ModelError(
                        f"{path}: quantized weights ({name} is {header.get_dtype()}) are not"
                        f" supported; valid: {', '.join(_FLOATS)}"
                    )
                self._handles[name] = handle
                self.shapes[name] = tuple(header.get_shape())

    def read(self, name: str) -> Tensor:
        tensor: Tensor = self._handles[name].get_tensor(name)
        return tensor

    def stored(self, name: str) -> StoredTensor:
        return plain_tensor(self.read(name))


def _open(path: Path) -> Any:
    try:
        return safe_open(path, framework="pt")
    except (OSError, SafetensorError) as error:
        raise ModelError(f"cannot read {path} as safetensors (cut short?): {error}") from error


class _GGUFWeights:
    """Tensors of a GGUF file, dequantised, with llama.cpp's reordering of q and k undone."""

    def __init__(self, file: GGUFFile, config: ModelConfig) -> None:
        self._file = file
        self._config = config
        self._is_permuted = ARCHITECTURES[config.architecture].has_permuted_gguf
        names = gguf_names(config)
        self._stored = {name: names[name] for name in names if names[name] in file.tensors}
        known = {FREQUENCY_FACTORS, *self._stored.values()}
        self.shapes = {name: file.shape(stored) for name, stored in self._stored.items()}
        self.shapes |= {name: file.shape(name) for name in file.tensors if name not in known}

    def read(self, name: str) -> Tensor:
        tensor = torch.from_numpy(self._file.dequantized(self._stored[name]))
        num_heads = self._num_permuted_heads(name)
        return _unpermute(tensor, num_heads) if num_heads else tensor

    def stored(self, name: str) -> StoredTensor:
        kind, data = self._file.stored(self._stored[name])
        shape, num_heads = self.shapes[name], self._num_permuted_heads(name)
        order = _unpermute(torch.arange(shape[0]), num_heads).numpy() if num_heads else None
        return StoredTensor(shape, kind, np.ascontiguousarray(data).view(np.uint8), order)

    def _num_permuted_heads(self, name: str) -> int:
        """Heads whose rows llama.cpp reordered; 0 for a tensor that it left alone."""
        if self._is_permuted and ".q_proj." in name:
            return self._config.num_query_heads
        return self._config.num_kv_heads if self._is_permuted and ".k_proj." in name else 0


def gguf_names(config: ModelConfig) -> dict[str, str]:
    """The GGUF name of every tensor, by its hub name."""
    known = ARCHITECTURES[config.architecture].gguf
    arch = next(key for key, value in MODEL_ARCH_NAMES.items() if value == known)
    names = get_tensor_name_map(arch, config.num_layers)
    return {
        name: f"{names.get_name(name.rpartition('.')[0])}.{name.rpartition('.')[2]}"
        for name in tensor_shapes(config)
    }


def _unpermute(tensor: Tensor, num_heads: int) -> Tensor:
    """Rows from llama.cpp's order, rotated pairs adjacent, to the hub's, first halves first."""
    pairs = tensor.reshape(num_heads, -1, 2, *tensor.shape[1:])
    return pairs.transpose(1, 2).reshape(tensor.shape)


def _layer_shapes(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    hidden, inner = config.hidden_size, config.intermediate_size
    q_size = config.num_query_heads * config.head_dim
    kv_size = config.num_kv_heads * config.head_dim
    linears = {
        "self_attn.q_proj": (q_size, hidden, config.has_qkv_bias),
        "self_attn.k_proj": (kv_size, hidden, config.has_qkv_bias),
        "self_attn.v_proj": (kv_size, hidden, config.has_qkv_bias),
        "self_attn.o_proj": (hidden, q_size, config.has_output_bias),
        "mlp.gate_proj": (inner, hidden, config.has_mlp_bias),
        "mlp.up_proj": (inner, hidden, config.has_mlp_bias),
        "mlp.down_proj": (hidden, inner, config.has_mlp_bias),
    }
    shapes: dict[str, tuple[int, ...]] = {
        "input_layernorm.weight": (hidden,),
        "post_attention_layernorm.weight": (hidden,),
    }
    if config.has_qk_norm:
        shapes["self_attn.q_norm.weight"] = (config.head_dim,)
        shapes["self_attn.k_norm.weight"] = (config.head_dim,)
    for name, (num_out, num_in, has_bias) in linears.items():
        shapes[f"{name}.weight"] = (num_out, num_in)
        if has_bias:
            shapes[f"{name}.bias"] = (num_out,)
    return shapes


def _check(
    model: str,
    expected: dict[str, tuple[int, ...]],
    found: dict[str, tuple[int, ...]],
    has_tied_embeddings: bool,
) -> None:
    for name, shape in expected.items():
        if name not in found:
            raise ModelError(f"model {model!r}: tensor {name} is missing")
        if found[name] != shape:
            raise ModelError(
                f"model {model!r}: {name} has shape {found[name]}, its config says {shape}"
            )
    for name in sorted(set(found) - set(expected)):
        # Old checkpoints carry what is computed or, with tied embeddings, the same matrix twice.
        is_redundant = has_tied_embeddings and name == "lm_head.weight"
        if not is_redundant and not name.endswith("rotary_emb.inv_freq"):
            raise ModelError(f"model {model!r}: tensor {name} does not belong to its architecture")
