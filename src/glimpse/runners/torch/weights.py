"""The weights of a decoder as plain tensors, filled one by one from the hub's names."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from glimpse.config import ModelConfig


@dataclass(frozen=True)
class LayerWeights:
    """One layer. Matrices are [num_outputs, num_inputs]; q, k, v and gate, up are fused."""

    attention_norm: Tensor
    qkv: Tensor
    qkv_bias: Tensor | None
    qk_norm: Tensor | None
    """[num_query_heads + num_kv_heads, head_dim]: the q norm for each query head, then k's."""
    output: Tensor
    output_bias: Tensor | None
    mlp_norm: Tensor
    gate_up: Tensor
    gate_up_bias: Tensor | None
    down: Tensor
    down_bias: Tensor | None


@dataclass(frozen=True)
class Weights:
    """A whole decoder; with tied embeddings ``head`` is ``embedding``."""

    embedding: Tensor
    layers: list[LayerWeights]
    final_norm: Tensor
    head: Tensor


@dataclass(frozen=True)
class _Slot:
    """Where a tensor of the checkpoint goes, and the shape it must have."""

    target: Tensor
    shape: tuple[int, ...]


def load_weights(
    config: ModelConfig,
    tensors: Iterable[tuple[str, Tensor]],
    device: torch.device,
    dtype: torch.dtype,
) -> Weights:
    """Copy ``tensors`` into fused matrices; peak memory is the weights and one tensor.

    A tied ``lm_head.weight`` is ignored. Raises ValueError that names what is missing, unknown or
    of the wrong shape.
    """
    weights = _allocate(config, device, dtype)
    slots = dict(_slots(config, weights))
    problems = []
    for name, tensor in tensors:
        slot = slots.pop(name, None)
        if slot is None:
            if not (config.has_tied_embeddings and name == "lm_head.weight"):
                problems.append(f"{name} is not expected")
        elif tuple(tensor.shape) != slot.shape:
            problems.append(f"{name} has shape {tuple(tensor.shape)} instead of {slot.shape}")
        else:
            slot.target.copy_(tensor)
    problems += [f"{name} is missing" for name in slots]
    if problems:
        more = f" and {len(problems) - 5} more" if len(problems) > 5 else ""
        raise ValueError(f"weights do not fit the model: {'; '.join(problems[:5])}{more}")
    return weights


def _allocate(config: ModelConfig, device: torch.device, dtype: torch.dtype) -> Weights:
    def empty(*shape: int) -> Tensor:
        return torch.empty(shape, device=device, dtype=dtype)

    def bias(has_bias: bool, size: int) -> Tensor | None:
        return empty(size) if has_bias else None

    hidden, inner = config.hidden_size, config.intermediate_size
    num_qk = config.num_query_heads + config.num_kv_heads
    qkv_size = (num_qk + config.num_kv_heads) * config.head_dim
    layers = [
        LayerWeights(
            attention_norm=empty(hidden),
            qkv=empty(qkv_size, hidden),
            qkv_bias=bias(config.has_qkv_bias, qkv_size),
            qk_norm=empty(num_qk, config.head_dim) if config.has_qk_norm else None,
            output=empty(hidden, config.num_query_heads * config.head_dim),
            output_bias=bias(config.has_output_bias, hidden),
            mlp_norm=empty(hidden),
            gate_up=empty(2 * inner, hidden),
            gate_up_bias=bias(config.has_mlp_bias, 2 * inner),
            down=empty(hidden, inner),
            down_bias=bias(config.has_mlp_bias, hidden),
        )
        for _ in range(config.num_layers)
    ]
    embedding = empty(config.vocab_size, hidden)
    head = embedding if config.has_tied_embeddings else empty(config.vocab_size, hidden)
    return Weights(embedding, layers, empty(hidden), head)


def _slots(config: ModelConfig, weights: Weights) -> Iterator[tuple[str, _Slot]]:
    yield "model.embed_tokens.weight", _slot(weights.embedding)
    yield "model.norm.weight", _slot(weights.final_norm)
    if not config.has_tied_embeddings:
        yield "lm_head.weight", _slot(weights.head)
    for number, layer in enumerate(weights.layers):
        for name, slot in _layer_slots(config, layer):
            yield f"model.layers.{number}.{name}", slot


def _layer_slots(config: ModelConfig, layer: LayerWeights) -> Iterator[tuple[str, _Slot]]:
    num_q, num_kv = config.num_query_heads, config.num_kv_heads
    q, kv = num_q * config.head_dim, num_kv * config.head_dim
    fused: list[tuple[Tensor, Tensor | None, dict[str, int]]] = [
        (
            layer.qkv,
            layer.qkv_bias,
            {"self_attn.q_proj": q, "self_attn.k_proj": kv, "self_attn.v_proj": kv},
        ),
        (layer.output, layer.output_bias, {"self_attn.o_proj": config.hidden_size}),
        (
            layer.gate_up,
            layer.gate_up_bias,
            {"mlp.gate_proj": config.intermediate_size, "mlp.up_proj": config.intermediate_size},
        ),
        (layer.down, layer.down_bias, {"mlp.down_proj": config.hidden_size}),
    ]
    for weight, bias, parts in fused:
        sizes = list(parts.values())
        for name, rows in zip(parts, torch.split(weight, sizes), strict=True):
            yield f"{name}.weight", _slot(rows)
        if bias is not None:
            for name, rows in zip(parts, torch.split(bias, sizes), strict=True):
                yield f"{name}.bias", _slot(rows)
    yield "input_layernorm.weight", _slot(layer.attention_norm)
    yield "post_attention_layernorm.weight", _slot(layer.mlp_norm)
    if layer.qk_norm is not None:
        heads = torch.split(layer.qk_norm, [num_q, num_kv])
        for name, rows in zip(("self_attn.q_norm", "self_attn.k_norm"), heads, strict=True):
            yield f"{name}.weight", _Slot(rows, (config.head_dim,))


def _slot(target: Tensor) -> _Slot:
    return _Slot(target, tuple(target.shape))
