"""A tiny random model in float64, for tests of logic: rounding is no excuse for a difference."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch

from glimpse.config import Method, ModelConfig
from glimpse.runners.torch.runner import TorchRunner
from glimpse.types import Runner

PLAIN = Method("autoregressive")


def decode(token_ids: Sequence[int]) -> str:
    """One character for each token."""
    return "".join(chr(0x4E00 + token_id) for token_id in token_ids)


def prompts(runner: Runner, lengths: Sequence[int]) -> list[list[int]]:
    """Random prompts, each the same whatever the others are."""
    return [
        torch.randint(
            runner.config.vocab_size, (length,), generator=torch.Generator().manual_seed(number)
        ).tolist()
        for number, length in enumerate(lengths)
    ]


def tiny_runner(**overrides: Any) -> Runner:
    """A torch runner with three layers of six query heads over two KV heads."""
    config = ModelConfig(
        **{
            "architecture": "tiny",
            "vocab_size": 61,
            "hidden_size": 36,
            "intermediate_size": 40,
            "num_layers": 3,
            "num_query_heads": 6,
            "num_kv_heads": 2,
            "head_dim": 6,
            "max_seq_len": 1024,
            **overrides,
        }
    )
    return TorchRunner(config, _tensors(config), torch.device("cpu"), torch.float64)


def _tensors(config: ModelConfig) -> Iterator[tuple[str, torch.Tensor]]:
    """Weights large enough for attention to be peaked and for texts not to loop at once."""
    generator = torch.Generator().manual_seed(5)

    def random(*shape: int) -> torch.Tensor:
        scale = 3.0 if len(shape) == 2 else 1.0
        return (
            scale * torch.randn(shape, generator=generator, dtype=torch.float64) / shape[-1] ** 0.5
        )

    hidden, inner = config.hidden_size, config.intermediate_size
    query, kv = (n * config.head_dim for n in (config.num_query_heads, config.num_kv_heads))
    yield "model.embed_tokens.weight", random(config.vocab_size, hidden)
    yield "model.norm.weight", torch.ones(hidden, dtype=torch.float64)
    yield "lm_head.weight", random(config.vocab_size, hidden)
    shapes = {
        "self_attn.q_proj": (query, hidden),
        "self_attn.k_proj": (kv, hidden),
        "self_attn.v_proj": (kv, hidden),
        "self_attn.o_proj": (hidden, query),
        "mlp.gate_proj": (inner, hidden),
        "mlp.up_proj": (inner, hidden),
        "mlp.down_proj": (hidden, inner),
    }
    for layer in range(config.num_layers):
        for name, shape in shapes.items():
            yield f"model.layers.{layer}.{name}.weight", random(*shape)
        for name in ("input_layernorm", "post_attention_layernorm"):
            yield f"model.layers.{layer}.{name}.weight", torch.ones(hidden, dtype=torch.float64)
