"""EAGLE-3's head: one decoder layer over the target's features, with KV of its own."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from glimpse.types import DraftHead

ROPE_THETA, RMS_NORM_EPS = 10000.0, 1e-6
"""Of the official heads, where their config does not say."""
_ATTENTION = "midlayer.self_attn"


class EagleHead:
    """The weights and the equations of an EAGLE-3 checkpoint (Li et al. 2025, arXiv 2503.01840)."""

    def __init__(self, head: DraftHead) -> None:
        settings: Mapping[str, Any] = head.settings
        self._tensors = dict(head.tensors)
        self._num_heads = int(settings["num_attention_heads"])
        self._head_dim = len(self._tensors[f"{_ATTENTION}.q_proj.weight"]) // self._num_heads
        self._theta = float(settings.get("rope_theta") or ROPE_THETA)
        self._eps = float(settings.get("rms_norm_eps") or RMS_NORM_EPS)
        d2t = self._tensors.pop("d2t")
        self._target_ids = torch.arange(len(d2t)) + d2t.long()

    def fuse(self, features: Tensor) -> Tensor:
        """Hidden states of three layers, side by side [rows, 3 H] -> [rows, H]."""
        return self._linear("fc", features)

    def forward(self, h: Tensor, token_ids: list[int], kv: HeadKV) -> Tensor:
        """Output of the layer [rows, H] before the norm, for features and the tokens after them."""
        ids = torch.tensor(token_ids, device=h.device)
        embedded = self._weight("model.embed_tokens", h)[ids]
        before = self._norm("midlayer.input_layernorm", embedded)
        x = torch.cat([before, self._norm("midlayer.hidden_norm", h)], -1)
        h = h + self._linear(f"{_ATTENTION}.o_proj", self._attend(x, kv))
        x = self._norm("midlayer.post_attention_layernorm", h)
        gate, up = (self._linear(f"midlayer.mlp.{name}_proj", x) for name in ("gate", "up"))
        return h + self._linear("midlayer.mlp.down_proj", F.silu(gate) * up)

    def logits(self, h: Tensor, vocab_size: int) -> Tensor:
        """Over the target's tokens [vocab_size], -inf for those that the head does not know."""
        own = self._linear("lm_head", self._norm("norm", h))
        logits = own.new_full((vocab_size,), -torch.inf)
        return logits.index_copy_(0, self._target_ids.to(own.device), own)

    def _attend(self, x: Tensor, kv: HeadKV) -> Tensor:
        q, k, v = (
            self._linear(f"{_ATTENTION}.{name}_proj", x).view(len(x), -1, self._head_dim)
            for name in ("q", "k", "v")
        )
        start = kv.length
        cos, sin = self._rotary(start, len(x), x)
        keys, values = kv.append(_rotate(k, cos, sin), v)
        group = q.shape[1] // k.shape[1]
        visible = torch.ones(len(x), kv.length, dtype=torch.bool, device=x.device).tril(start)
        out = F.scaled_dot_product_attention(
            _rotate(q, cos, sin).transpose(0, 1),
            keys.repeat_interleave(group, 0),
            values.repeat_interleave(group, 0),
            attn_mask=visible,
        )
        return out.transpose(0, 1).flatten(1)

    def _rotary(self, start: int, num_rows: int, like: Tensor) -> tuple[Tensor, Tensor]:
        """Cosines and sines of so many positions: of any, the head has no table that could end."""
        exponents = torch.arange(0, self._head_dim, 2, device=like.device) / self._head_dim
        positions = torch.arange(start, start + num_rows, device=like.device)
        angles = positions[:, None] / self._theta**exponents
        angles = torch.cat([angles, angles], -1)[:, None].to(like.dtype)
        return angles.cos(), angles.sin()

    def _norm(self, name: str, x: Tensor) -> Tensor:
        return F.rms_norm(x, (x.shape[-1],), self._weight(name, x), self._eps)

    def _linear(self, name: str, x: Tensor) -> Tensor:
        return F.linear(x, self._weight(name, x))

    def _weight(self, name: str, like: Tensor) -> Tensor:
        """A weight where the features are, and as precise; moved once."""
        key = f"{name}.weight"
        self._tensors[key] = self._tensors[key].to(like)
        return self._tensors[key]


class HeadKV:
    """Keys and values of the head for one text, [num_kv_heads, length, head_dim], grown by
    doubling.
    """

    def __init__(self) -> None:
        self.length = 0
        self._kv: Tensor | None = None

    def append(self, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """Add rows [rows, num_kv_heads, head_dim]; all there are by now."""
        new = torch.stack([keys, values]).transpose(1, 2)
        end = self.length + new.shape[2]
        if self._kv is None or self._kv.shape[2] < end:
            grown = new.new_empty(*new.shape[:2], max(64, 2 * end), new.shape[3])
            if self._kv is not None:
                grown[:, :, : self.length] = self._kv[:, :, : self.length]
            self._kv = grown
        self._kv[:, :, self.length : end] = new
        self.length = end
        return self._kv[0, :, :end], self._kv[1, :, :end]

    def truncate(self, length: int) -> None:
        self.length = min(self.length, length)


def _rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    first, second = x.chunk(2, -1)
    return x * cos + torch.cat([-second, first], -1) * sin
