"""Read a model's shape from its config.json or GGUF header; refuse by name what cannot be run."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from glimpse.config import ModelConfig
from glimpse.models.architectures import ARCHITECTURES, unsupported
from glimpse.models.errors import ModelError, read_json
from glimpse.models.files import ModelFiles
from glimpse.models.gguf_config import gguf_config
from glimpse.models.rope import max_seq_len, rope_config


def load_config(files: ModelFiles) -> ModelConfig:
    """The shape of a model. Raises ModelError with the name of whatever is not supported."""
    try:
        is_gguf = files.format == "gguf"
        config = gguf_config(files.gguf) if is_gguf else _folder_config(files.folder)
        _check_sizes(config)
    except ModelError as error:
        raise ModelError(f"model {files.name!r}: {error}") from error
    return config


def _folder_config(folder: Path) -> ModelConfig:
    raw = read_json(folder / "config.json")
    name = _architecture(raw)
    config = _normalized(folder)
    _refuse_unsupported(raw, config)
    rope = rope_config(config.rope_parameters)
    num_heads = config.num_attention_heads
    has_bias = bool(getattr(config, "attention_bias", False))
    return ModelConfig(
        architecture=name,
        vocab_size=config.vocab_size,
        hidden_size=config.hidden_size,
        intermediate_size=config.intermediate_size,
        num_layers=config.num_hidden_layers,
        num_query_heads=num_heads,
        num_kv_heads=config.num_key_value_heads,
        head_dim=getattr(config, "head_dim", None) or config.hidden_size // num_heads,
        max_seq_len=max_seq_len(config.max_position_embeddings, rope),
        rms_norm_eps=config.rms_norm_eps,
        rope=rope,
        has_qkv_bias=ARCHITECTURES[name].has_qkv_bias or has_bias,
        has_output_bias=has_bias,
        has_mlp_bias=bool(getattr(config, "mlp_bias", False)),
        has_qk_norm=ARCHITECTURES[name].has_qk_norm,
        has_tied_embeddings=config.tie_word_embeddings,
    )


def _architecture(raw: Mapping[str, Any]) -> str:
    """The supported architecture that a config.json names, or else the one of its model type."""
    stated = raw.get("architectures") or [
        name for name, known in ARCHITECTURES.items() if known.model_type == raw.get("model_type")
    ]
    name = stated[0] if stated else f"model_type={raw.get('model_type')!r}"
    known = ARCHITECTURES.get(name)
    if known is None or known.model_type != raw.get("model_type"):
        features = ", ".join(unsupported(raw).values())
        valid = ", ".join(ARCHITECTURES)
        raise ModelError(
            f"architecture {name}{f' with {features}' if features else ''} is not supported;"
            f" valid: {valid}"
        )
    return str(name)


def _normalized(folder: Path) -> Any:
    """The config as transformers understands it: defaults filled in, old names of keys replaced."""
    from transformers import AutoConfig

    try:
        return AutoConfig.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
    except Exception as error:  # its validation raises errors of many kinds
        raise ModelError(f"cannot read {folder / 'config.json'}: {error}") from error


def _refuse_unsupported(raw: Mapping[str, Any], config: Any) -> None:
    refused = list(unsupported(raw).values())
    if config.hidden_act not in ("silu", "swish"):
        refused.append(f"activation {config.hidden_act!r} (valid: silu)")
    # Qwen says per layer whether the window is used; Mistral has it on every layer.
    layers = getattr(config, "layer_types", None) or ["sliding_attention"]
    window = getattr(config, "sliding_window", None)
    if window and "sliding_attention" in layers and window < config.max_position_embeddings:
        refused.append(f"sliding window attention (sliding_window={window})")
    if others := sorted(set(layers) - {"full_attention", "sliding_attention"}):
        refused.append(f"layers of type {', '.join(others)}")
    if refused:
        raise ModelError(f"not supported: {', '.join(refused)}")


def _check_sizes(config: ModelConfig) -> None:
    if config.num_kv_heads < 1 or config.num_query_heads % config.num_kv_heads:
        raise ModelError(
            f"{config.num_query_heads} query heads cannot share {config.num_kv_heads} KV heads"
            " evenly"
        )
    if config.head_dim % 2:
        raise ModelError(f"head_dim={config.head_dim} must be even for rotary embedding")
