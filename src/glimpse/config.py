"""What users and models configure: the shape of a model, and how text is sampled and stopped."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal


@dataclass(frozen=True)
class RopeConfig:
    """Rotary position embedding: its kind, base frequency and the kind's own parameters."""

    kind: Literal["default", "linear", "llama3", "yarn"] = "default"
    theta: float = 10000.0
    parameters: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class ModelConfig:
    """The shape of a decoder of the Llama family; sizes in elements."""

    architecture: str
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_query_heads: int
    num_kv_heads: int
    head_dim: int
    max_seq_len: int
    rms_norm_eps: float = 1e-6
    rope: RopeConfig = RopeConfig()
    has_qkv_bias: bool = False
    has_output_bias: bool = False
    has_mlp_bias: bool = False
    has_qk_norm: bool = False
    has_tied_embeddings: bool = False

    @property
    def group_size(self) -> int:
        """Query heads per KV head."""
        return self.num_query_heads // self.num_kv_heads

    @property
    def num_linear_weights(self) -> int:
        """Weights that every pass reads: all layers and the head, not the input embedding."""
        attention = (
            2 * self.hidden_size * self.head_dim * (self.num_query_heads + self.num_kv_heads)
        )
        mlp = 3 * self.hidden_size * self.intermediate_size
        return self.num_layers * (attention + mlp) + self.vocab_size * self.hidden_size

    @property
    def num_kv_elements(self) -> int:
        """Of the keys and values of one position, in all layers."""
        return 2 * self.num_layers * self.num_kv_heads * self.head_dim


@dataclass(frozen=True, kw_only=True)
class RunnerOptions:
    """How a model is loaded; None leaves the choice to the runner, which refuses what it lacks."""

    device: str | None = None
    dtype: str | None = None
    """Precision of weights and arithmetic, where it is not that of the files."""
    threads: int | None = None
    kv_dtype: str | None = None
    activations: str | None = None
    """Precision in which activations meet quantised weights."""

    def refuse(self, runner: str, *names: str) -> None:
        """Raises ValueError if one of ``names`` is given."""
        for name in names:
            if getattr(self, name) is not None:
                raise ValueError(
                    f"{name}={getattr(self, name)!r}: the {runner} runner has no such option"
                )


@dataclass(frozen=True)
class Method:
    """A named combination of plugins, each as ``"name:key=value,..."``."""

    name: str
    drafter: str | None = None
    """Who proposes tokens; None is plain decoding."""
    selection: str | None = None
    """Which KV the draft sees; only for drafters that use a view."""
    controller: str = "fixed:k=0"
    acceptance: str = "auto"
    """``auto`` is ``greedy`` at temperature 0 and ``coupled`` above."""
    paper: str = ""


@dataclass(frozen=True, kw_only=True)
class SamplingParams:
    """How one request is sampled and stopped. ``temperature=0`` is greedy decoding.

    Penalties follow their usual definitions: repetition over prompt and output, presence and
    frequency over the output only. ``seed=None`` draws a seed, which the result reports.
    Raises ValueError with the offending value and the valid range.
    """

    max_tokens: int = 256
    min_tokens: int = 0
    temperature: float = 0.0
    top_k: int = 0
    """Keep the k most likely tokens; 0 keeps all."""
    top_p: float = 1.0
    min_p: float = 0.0
    """Drop tokens less likely than ``min_p`` times the most likely one."""
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    seed: int | None = None
    n: int = 1
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    logprobs: int | None = None
    """Report the log-probability of each emitted token and of this many alternatives."""

    def __post_init__(self) -> None:
        stop = (self.stop,) if isinstance(self.stop, str) else tuple(self.stop)
        object.__setattr__(self, "stop", stop)
        object.__setattr__(self, "stop_token_ids", tuple(self.stop_token_ids))
        _require(self.max_tokens >= 1, "max_tokens", self.max_tokens, "at least 1")
        bounds = f"from 0 to max_tokens ({self.max_tokens})"
        _require(0 <= self.min_tokens <= self.max_tokens, "min_tokens", self.min_tokens, bounds)
        finite = math.isfinite(self.temperature) and self.temperature >= 0
        _require(finite, "temperature", self.temperature, "a finite number, at least 0")
        _require(self.top_k >= 0, "top_k", self.top_k, "at least 0 (0 keeps all)")
        _require(0 < self.top_p <= 1, "top_p", self.top_p, "above 0 and at most 1")
        _require(0 <= self.min_p < 1, "min_p", self.min_p, "from 0 to below 1")
        positive = math.isfinite(self.repetition_penalty) and self.repetition_penalty > 0
        _require(positive, "repetition_penalty", self.repetition_penalty, "a finite number above 0")
        for name in ("presence_penalty", "frequency_penalty"):
            value = getattr(self, name)
            _require(-2 <= value <= 2, name, value, "from -2 to 2")
        for token_id, bias in self.logit_bias.items():
            _require(token_id >= 0, "logit_bias: token id", token_id, "at least 0")
            # +inf would leave a law of inf - inf; -inf forbids a token.
            _require(bias < math.inf, f"logit_bias[{token_id}]", bias, "a number below infinity")
        _require(self.n >= 1, "n", self.n, "at least 1")
        _require(all(self.stop), "stop", self.stop, "non-empty strings")
        if self.seed is not None:
            _require(0 <= self.seed < 2**64, "seed", self.seed, "from 0 to 2**64 - 1")
        if self.logprobs is not None:
            _require(self.logprobs >= 0, "logprobs", self.logprobs, "at least 0")

    @property
    def is_greedy(self) -> bool:
        return self.temperature == 0.0

    def replace(self, **changes: Any) -> SamplingParams:
        return replace(self, **changes)


def _require(valid: bool, name: str, value: object, expected: str) -> None:
    if not valid:
        raise ValueError(f"{name}={value!r}: must be {expected}")
