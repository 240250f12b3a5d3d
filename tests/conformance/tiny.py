"""Tiny random models, and a naive decoder over them: the oracle of the conformance suite.

The oracle shares no code with any runner: one text at a time, explicit attention matrices, float64.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from glimpse.config import ModelConfig

SHAPES = {
    "plain": ModelConfig(
        architecture="tiny",
        vocab_size=53,
        hidden_size=30,
        intermediate_size=44,
        num_layers=3,
        num_query_heads=6,
        num_kv_heads=2,
        head_dim=10,
        max_seq_len=300,
    ),
    "everything": ModelConfig(
        architecture="tiny",
        vocab_size=47,
        hidden_size=24,
        intermediate_size=36,
        num_layers=2,
        num_query_heads=5,
        num_kv_heads=1,
        head_dim=6,
        max_seq_len=300,
        has_qkv_bias=True,
        has_output_bias=True,
        has_mlp_bias=True,
        has_qk_norm=True,
        has_tied_embeddings=True,
    ),
    "multi-head": ModelConfig(
        architecture="tiny",
        vocab_size=41,
        hidden_size=20,
        intermediate_size=28,
        num_layers=2,
        num_query_heads=3,
        num_kv_heads=3,
        head_dim=14,
        max_seq_len=300,
        has_qkv_bias=True,
    ),
}
"""Odd group sizes and head sizes that are no powers of two; with and without each option."""


def tiny_tensors(config: ModelConfig, seed: int = 0) -> dict[str, Tensor]:
    """Random weights under the hub's names, large enough for peaked attention."""
    generator = torch.Generator().manual_seed(seed)

    def random(*shape: int) -> Tensor:
        values = torch.randn(shape, generator=generator, dtype=torch.float64)
        return 2.5 * values / math.sqrt(shape[-1]) if len(shape) == 2 else 1 + 0.3 * values

    return {name: random(*shape) for name, shape in _shapes(config)}


def _shapes(config: ModelConfig) -> Iterator[tuple[str, tuple[int, ...]]]:
    hidden, inner = config.hidden_size, config.intermediate_size
    query, kv = (heads * config.head_dim for heads in (config.num_query_heads, config.num_kv_heads))
    linears = {
        "self_attn.q_proj": (query, hidden, config.has_qkv_bias),
        "self_attn.k_proj": (kv, hidden, config.has_qkv_bias),
        "self_attn.v_proj": (kv, hidden, config.has_qkv_bias),
        "self_attn.o_proj": (hidden, query, config.has_output_bias),
        "mlp.gate_proj": (inner, hidden, config.has_mlp_bias),
        "mlp.up_proj": (inner, hidden, config.has_mlp_bias),
        "mlp.down_proj": (hidden, inner, config.has_mlp_bias),
    }
    yield "model.embed_tokens.weight", (config.vocab_size, hidden)
    for layer in range(config.num_layers):
        prefix = f"model.layers.{layer}"
        yield f"{prefix}.input_layernorm.weight", (hidden,)
        yield f"{prefix}.post_attention_layernorm.weight", (hidden,)
        for name, (num_out, num_in, has_bias) in linears.items():
            yield f"{prefix}.{name}.weight", (num_out, num_in)
            if has_bias:
                yield f"{prefix}.{name}.bias", (num_out,)
        if config.has_qk_norm:
            yield f"{prefix}.self_attn.q_norm.weight", (config.head_dim,)
            yield f"{prefix}.self_attn.k_norm.weight", (config.head_dim,)
    yield "model.norm.weight", (hidden,)
    if not config.has_tied_embeddings:
        yield "lm_head.weight", (config.vocab_size, hidden)


@dataclass
class Naive:
    """What the oracle says of one text of n tokens, read at once."""

    logits: Tensor
    """[n, vocab_size]"""
    attention: Tensor
    """[num_layers, num_kv_heads, n, n]: per query and key, summed over a group's query heads."""
    inputs: list[Tensor]
    """Of each layer, and the output of the last: [n, hidden_size]."""


class NaiveDecoder:
    """A Llama-like decoder written for clarity alone."""

    def __init__(self, config: ModelConfig, tensors: dict[str, Tensor]) -> None:
        self.config = config
        self.tensors = tensors

    def __call__(
        self,
        token_ids: list[int],
        visible: Tensor | None = None,
        num_layers: int | None = None,
    ) -> Naive:
        """``visible`` [num_layers, num_kv_heads, n, n] narrows what each query sees."""
        config = self.config
        n = len(token_ids)
        mask = torch.ones(n, n, dtype=torch.bool).tril()
        mask = mask.expand(config.num_layers, config.num_kv_heads, n, n)
        if visible is not None:
            mask = mask & visible
        x = self.tensors["model.embed_tokens.weight"][torch.tensor(token_ids)]
        inputs, attention = [x], []
        for layer in range(config.num_layers if num_layers is None else num_layers):
            attended, weights = self._attention(layer, x, mask[layer])
            x = x + attended
            x = x + self._mlp(layer, x)
            inputs.append(x)
            attention.append(weights)
        final = self._norm(x, "model.norm.weight")
        inputs[-1] = final  # the head's
        head = "model.embed_tokens.weight" if config.has_tied_embeddings else "lm_head.weight"
        return Naive(final @ self.tensors[head].T, torch.stack(attention), inputs)

    def _attention(self, layer: int, x: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        config = self.config
        prefix = f"model.layers.{layer}"
        h = self._norm(x, f"{prefix}.input_layernorm.weight")
        q, k, v = (
            self._linear(f"{prefix}.self_attn.{name}_proj", h).unflatten(1, (-1, config.head_dim))
            for name in "qkv"
        )
        if config.has_qk_norm:
            q = self._norm(q, f"{prefix}.self_attn.q_norm.weight")
            k = self._norm(k, f"{prefix}.self_attn.k_norm.weight")
        q, k = self._rotate(q), self._rotate(k)
        sums = torch.zeros(config.num_kv_heads, len(x), len(x), dtype=x.dtype)
        outputs = []
        for head in range(config.num_query_heads):
            kv_head = head // config.group_size
            scores = q[:, head] @ k[:, kv_head].T / math.sqrt(config.head_dim)
            weights = scores.masked_fill(~mask[kv_head], -math.inf).softmax(-1)
            sums[kv_head] += weights
            outputs.append(weights @ v[:, kv_head])
        return self._linear(f"{prefix}.self_attn.o_proj", torch.cat(outputs, 1)), sums

    def _mlp(self, layer: int, x: Tensor) -> Tensor:
        prefix = f"model.layers.{layer}"
        h = self._norm(x, f"{prefix}.post_attention_layernorm.weight")
        gate = self._linear(f"{prefix}.mlp.gate_proj", h)
        up = self._linear(f"{prefix}.mlp.up_proj", h)
        return self._linear(f"{prefix}.mlp.down_proj", gate * torch.sigmoid(gate) * up)

    def _linear(self, name: str, x: Tensor) -> Tensor:
        out = x @ self.tensors[f"{name}.weight"].T
        bias = self.tensors.get(f"{name}.bias")
        return out if bias is None else out + bias

    def _norm(self, x: Tensor, name: str) -> Tensor:
        scale = (x.square().mean(-1, keepdim=True) + self.config.rms_norm_eps).rsqrt()
        return x * scale * self.tensors[name]

    def _rotate(self, x: Tensor) -> Tensor:
        """Pairs (i, i + half) as complex numbers, turned by position times frequency."""
        half = x.shape[2] // 2
        # Frequencies are rounded to float32, as everywhere.
        exponents = torch.arange(half, dtype=torch.float32) / half
        frequencies = (1.0 / self.config.rope.theta**exponents).double()
        angles = torch.arange(len(x), dtype=torch.float64)[:, None] * frequencies
        turned = (
            torch.complex(x[..., :half], x[..., half:])
            * torch.polar(torch.ones_like(angles), angles)[:, None]
        )
        return torch.cat([turned.real, turned.imag], -1)
