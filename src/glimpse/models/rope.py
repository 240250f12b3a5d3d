"""Rotary embedding settings: which kinds and parameters hold, under transformers' names."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from glimpse.config import RopeConfig
from glimpse.models.errors import ModelError

_LLAMA3 = {"factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"}
_YARN = {"factor", "original_max_position_embeddings"}
_YARN_OPTIONS = {
    "attention_factor",
    "beta_fast",
    "beta_slow",
    "mscale",
    "mscale_all_dim",
    "truncate",
}
_KINDS: dict[str, tuple[set[str], set[str]]] = {
    "default": (set(), set()),
    "linear": ({"factor"}, set()),
    "llama3": (_LLAMA3, set()),
    "yarn": (_YARN, _YARN_OPTIONS),
}
"""Supported kinds, with the parameters each must and may have."""


def rope_config(parameters: Mapping[str, Any]) -> RopeConfig:
    """From ``rope_type``, ``rope_theta`` and the kind's own parameters; None stands for unstated.

    Raises ModelError for a kind or parameter that is not supported, or one that is missing.
    """
    stated = {key: value for key, value in parameters.items() if value is not None}
    stated.pop("type", None)  # the old name of the next, kept beside it
    kind = stated.pop("rope_type", "default")
    theta = float(stated.pop("rope_theta", RopeConfig.theta))
    rotated = float(stated.pop("partial_rotary_factor", 1.0))
    if rotated != 1.0:
        raise ModelError(
            f"partial rotary embedding (partial_rotary_factor={rotated}) is not supported"
        )
    if kind not in _KINDS:
        valid = ", ".join(_KINDS)
        raise ModelError(f"rotary embedding of type {kind!r} is not supported; valid: {valid}")
    required, optional = _KINDS[kind]
    for name in sorted(required - set(stated)):
        raise ModelError(f"rotary embedding of type {kind!r} has no {name}")
    for name in sorted(set(stated) - required - optional):
        valid = ", ".join(sorted(required | optional)) or "none"
        raise ModelError(
            f"rotary embedding of type {kind!r} has no parameter {name!r}; valid: {valid}"
        )
    return RopeConfig(kind=kind, theta=theta, parameters=stated)


def max_seq_len(max_position_embeddings: int, rope: RopeConfig) -> int:
    """The context limit in tokens. YaRN may leave the stated one at what training began with."""
    if rope.kind != "yarn":
        return max_position_embeddings
    original = rope.parameters["original_max_position_embeddings"]
    return max(max_position_embeddings, int(original * rope.parameters["factor"]))


def llama3_parameters(
    theta: float, head_dim: int, frequency_factors: Sequence[float]
) -> dict[str, Any]:
    """Parameters of the llama3 kind from the divisors of its frequencies [head_dim / 2].

    GGUF files store these divisors (``rope_freqs.weight``) in place of the parameters. All Llama 3
    models share every parameter but the factor. Raises ModelError if the divisors are not theirs.
    """
    parameters: dict[str, Any] = {
        "factor": float(max(frequency_factors)),
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    }
    for i, stored in enumerate(frequency_factors):
        wavelength = 2 * math.pi * theta ** (2 * i / head_dim)
        if not math.isclose(stored, _llama3_divisor(wavelength, **parameters), rel_tol=1e-4):
            raise ModelError(
                f"rotary frequency factors (rope_freqs.weight[{i}]={stored:.6g}) are not supported;"
                " valid: those of Llama 3"
            )
    return parameters


def _llama3_divisor(
    wavelength: float,
    factor: float,
    low_freq_factor: float,
    high_freq_factor: float,
    original_max_position_embeddings: int,
) -> float:
    """By what Llama 3.1 divides a frequency: 1 if fast, ``factor`` if slow, smooth between."""
    turns = original_max_position_embeddings / wavelength
    smooth = (turns - low_freq_factor) / (high_freq_factor - low_freq_factor)
    smooth = min(max(smooth, 0.0), 1.0)
    return 1.0 / ((1.0 - smooth) / factor + smooth)
