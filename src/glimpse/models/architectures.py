"""What can be run: the table of architectures, and the names of the features that are refused."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Architecture:
    """What sets one member of the Llama family apart from another."""

    model_type: str
    """As config.json names it."""
    gguf: str
    """As a GGUF header names it."""
    has_qkv_bias: bool = False
    has_qk_norm: bool = False
    has_permuted_gguf: bool = False
    """In GGUF the rows of q and k are reordered so that rotated pairs are neighbours."""


ARCHITECTURES = {
    "LlamaForCausalLM": Architecture("llama", "llama", has_permuted_gguf=True),
    "MistralForCausalLM": Architecture("mistral", "llama", has_permuted_gguf=True),
    "Qwen2ForCausalLM": Architecture("qwen2", "qwen2", has_qkv_bias=True),
    "Qwen3ForCausalLM": Architecture("qwen3", "qwen3", has_qk_norm=True),
}
"""Supported architectures. A Mistral GGUF calls itself llama, and computes the same."""

# Keys of config.json and, without the architecture's prefix, of GGUF headers.
_FEATURE_KEYS = {
    "mixture of experts": (
        "num_experts",
        "num_local_experts",
        "n_routed_experts",
        "num_experts_per_tok",
        "expert_count",
        "expert_used_count",
    ),
    "multi-head latent attention": (
        "kv_lora_rank",
        "q_lora_rank",
        "attention.kv_lora_rank",
        "attention.q_lora_rank",
    ),
    "attention softcap": ("attn_logit_softcapping", "attn_logit_softcap"),
    "logits softcap": ("final_logit_softcapping", "final_logit_softcap"),
    "logits scaling": ("logits_scaling", "logit_scale"),
    "embedding scaling": ("embedding_multiplier", "embedding_scale", "scale_emb"),
    "residual scaling": ("residual_multiplier", "residual_scale", "scale_depth"),
    "attention scaling": ("attention_multiplier", "query_pre_attn_scalar", "attention.scale"),
    "partial rotary embedding": ("partial_rotary_factor", "rotary_pct"),
    "layers without rotary embedding": ("no_rope_layers", "no_rope_layer_interval"),
    "clipped queries, keys and values": ("clip_qkv", "attention.clamp_kqv"),
    "quantized weights": ("quantization_config", "compression_config"),
}


def is_neutral(value: object) -> bool:
    """Whether a config's value switches nothing on: none, false, empty, zero or a factor of one."""
    return value is None or value in (0, 1) or value in ([], {}, "")


def unsupported(settings: Mapping[str, Any]) -> dict[str, str]:
    """The settings that switch on a feature that is refused: its name and the value, by key."""
    return {
        key: f"{feature} ({key}={_short(settings[key])})"
        for feature, keys in _FEATURE_KEYS.items()
        for key in keys
        if not is_neutral(settings.get(key))
    }


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
