"""Random draft heads in the official layouts, for a model of any shape."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from glimpse.config import ModelConfig
from glimpse.types import DraftHead

EAGLE_SETTINGS: dict[str, Any] = {
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 6,
    "intermediate_size": 20,
    "rms_norm_eps": 1e-5,
}


def _random(*shape: int, seed: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)) / shape[-1] ** 0.5


def medusa_tensors(config: ModelConfig, num_heads: int = 3) -> dict[str, Tensor]:
    hidden = config.hidden_size
    tensors = {}
    for i in range(num_heads):
        tensors[f"{i}.0.linear.weight"] = _random(hidden, hidden, seed=3 * i)
        tensors[f"{i}.0.linear.bias"] = _random(hidden, seed=3 * i + 1)
        tensors[f"{i}.1.weight"] = _random(config.vocab_size, hidden, seed=3 * i + 2)
    return tensors


def eagle_tensors(config: ModelConfig, draft_vocab_size: int) -> dict[str, Tensor]:
    """Every other token is in the head's vocabulary."""
    hidden, dim = config.hidden_size, EAGLE_SETTINGS["head_dim"]
    query, kv = (EAGLE_SETTINGS[f"num_{n}_heads"] * dim for n in ("attention", "key_value"))
    inner = EAGLE_SETTINGS["intermediate_size"]
    shapes = {
        "fc.weight": (hidden, 3 * hidden),
        "midlayer.self_attn.q_proj.weight": (query, 2 * hidden),
        "midlayer.self_attn.k_proj.weight": (kv, 2 * hidden),
        "midlayer.self_attn.v_proj.weight": (kv, 2 * hidden),
        "midlayer.self_attn.o_proj.weight": (hidden, query),
        "midlayer.hidden_norm.weight": (hidden,),
        "midlayer.input_layernorm.weight": (hidden,),
        "midlayer.post_attention_layernorm.weight": (hidden,),
        "midlayer.mlp.gate_proj.weight": (inner, hidden),
        "midlayer.mlp.up_proj.weight": (inner, hidden),
        "midlayer.mlp.down_proj.weight": (hidden, inner),
        "norm.weight": (hidden,),
        "lm_head.weight": (draft_vocab_size, hidden),
    }
    tensors = {name: 2 * _random(*shape, seed=i) for i, (name, shape) in enumerate(shapes.items())}
    tensors["d2t"] = torch.arange(draft_vocab_size)  # token i stands for 2 i
    tensors["t2d"] = torch.arange(config.vocab_size) % 2 == 0
    return tensors


def tiny_head(kind: str, config: ModelConfig) -> DraftHead:
    """A head as it is once it was loaded."""
    if kind == "medusa":
        return DraftHead("medusa", medusa_tensors(config))
    embedding = _random(config.vocab_size, config.hidden_size, seed=99)
    tensors = eagle_tensors(config, config.vocab_size // 2)
    return DraftHead("eagle3", tensors | {"model.embed_tokens.weight": embedding}, EAGLE_SETTINGS)
