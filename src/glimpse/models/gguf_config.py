"""A model's shape from a GGUF header; key names are those of the GGUF specification."""

from __future__ import annotations

from typing import Any

from glimpse.config import ModelConfig, RopeConfig
from glimpse.models.architectures import ARCHITECTURES, is_neutral, unsupported
from glimpse.models.errors import ModelError
from glimpse.models.gguf_file import GGUFFile
from glimpse.models.rope import llama3_parameters, max_seq_len, rope_config

FREQUENCY_FACTORS = "rope_freqs.weight"

_ROPE_KEYS = {
    "rope.freq_base": "rope_theta",
    "rope.scaling.type": "rope_type",
    "rope.scaling.factor": "factor",
    "rope.scaling.original_context_length": "original_max_position_embeddings",
    "rope.scaling.yarn_beta_fast": "beta_fast",
    "rope.scaling.yarn_beta_slow": "beta_slow",
}
_KNOWN_KEYS = {
    "context_length",
    "embedding_length",
    "block_count",
    "feed_forward_length",
    "vocab_size",
    "attention.head_count",
    "attention.head_count_kv",
    "attention.key_length",
    "attention.value_length",
    "attention.layer_norm_rms_epsilon",
    "attention.sliding_window",
    "rope.dimension_count",
    "rope.scaling.finetuned",
    *_ROPE_KEYS,
}


def gguf_config(file: GGUFFile) -> ModelConfig:
    """Raises ModelError with the name of whatever is missing or not supported."""
    name = _architecture(file)
    settings = _Settings(file)
    num_heads = settings.integer("attention.head_count")
    hidden_size = settings.integer("embedding_length")
    head_dim = settings.integer("attention.key_length", hidden_size // max(num_heads, 1))
    _refuse_unsupported(settings, head_dim)
    rope = _rope(file, settings, head_dim)
    return ModelConfig(
        architecture=name,
        vocab_size=_vocab_size(file),
        hidden_size=hidden_size,
        intermediate_size=settings.integer("feed_forward_length"),
        num_layers=settings.integer("block_count"),
        num_query_heads=num_heads,
        num_kv_heads=settings.integer("attention.head_count_kv", num_heads),
        head_dim=head_dim,
        max_seq_len=max_seq_len(settings.integer("context_length"), rope),
        rms_norm_eps=float(settings.value("attention.layer_norm_rms_epsilon")),
        rope=rope,
        has_qkv_bias="blk.0.attn_q.bias" in file.tensors,
        has_output_bias="blk.0.attn_output.bias" in file.tensors,
        has_mlp_bias="blk.0.ffn_up.bias" in file.tensors,
        has_qk_norm=ARCHITECTURES[name].has_qk_norm,
        has_tied_embeddings="output.weight" not in file.tensors,
    )


class _Settings:
    """The header's keys of this architecture, without their prefix."""

    def __init__(self, file: GGUFFile) -> None:
        prefix = f"{file.architecture}."
        self.values: dict[str, Any] = {
            key.removeprefix(prefix): value
            for key, value in file.metadata.items()
            if key.startswith(prefix)
        }

    def value(self, key: str) -> Any:
        if key not in self.values:
            raise ModelError(f"the GGUF header has no {key}")
        return self.values[key]

    def integer(self, key: str, default: int | None = None) -> int:
        value = self.value(key) if default is None else self.values.get(key, default)
        if isinstance(value, list):
            raise ModelError(f"layers that differ in {key} ({value}) are not supported")
        return int(value)


def _refuse_unsupported(settings: _Settings, head_dim: int) -> None:
    refused = unsupported(settings.values)
    for key, value in settings.values.items():
        if key not in _KNOWN_KEYS and not is_neutral(value):
            refused.setdefault(key, f"{key}={value!r}")
    window = settings.integer("attention.sliding_window", 0)
    if 0 < window < settings.integer("context_length"):
        refused["window"] = f"sliding window attention (attention.sliding_window={window})"
    rotated = settings.integer("rope.dimension_count", head_dim)
    if rotated != head_dim:
        refused["rotated"] = f"partial rotary embedding ({rotated} of {head_dim} dimensions)"
    value_dim = settings.integer("attention.value_length", head_dim)
    if value_dim != head_dim:
        refused["value_dim"] = f"values of {value_dim} dimensions with keys of {head_dim}"
    if refused:
        raise ModelError(f"not supported: {', '.join(refused.values())}")


def _architecture(file: GGUFFile) -> str:
    for name, architecture in ARCHITECTURES.items():
        if architecture.gguf == file.architecture:
            return name
    valid = ", ".join(sorted({architecture.gguf for architecture in ARCHITECTURES.values()}))
    raise ModelError(f"GGUF architecture {file.architecture!r} is not supported; valid: {valid}")


def _vocab_size(file: GGUFFile) -> int:
    # The header's own vocab_size is optional, and padding makes it differ from the tokenizer's.
    if "token_embd.weight" not in file.tensors:
        raise ModelError("tensor token_embd.weight is missing")
    return file.shape("token_embd.weight")[0]


def _rope(file: GGUFFile, settings: _Settings, head_dim: int) -> RopeConfig:
    stated = {
        name: settings.values[key] for key, name in _ROPE_KEYS.items() if key in settings.values
    }
    if is_neutral(stated.get("factor")):  # 0 stands for none here
        stated.pop("factor", None)
    kind = stated.pop("rope_type", "linear" if "factor" in stated else "none")
    if kind == "none":
        stated = {"rope_theta": stated.get("rope_theta")}
    elif kind == "yarn":
        stated.setdefault("original_max_position_embeddings", settings.integer("context_length"))
    else:
        stated.pop("original_max_position_embeddings", None)
    rope = rope_config({"rope_type": "default" if kind == "none" else kind, **stated})
    if FREQUENCY_FACTORS not in file.tensors:
        return rope
    factors = [float(factor) for factor in file.dequantized(FREQUENCY_FACTORS)]
    return RopeConfig("llama3", rope.theta, llama3_parameters(rope.theta, head_dim, factors))
