"""One decoder for Llama, Mistral, Qwen2 and Qwen3, driven by the config.

It works on a flat list of tokens and knows nothing of sequences or KV: attention is a function that
the caller gives.
"""

from __future__ import annotations

from collections.abc import Callable, Collection

import torch
import torch.nn.functional as F
from torch import Tensor

from glimpse.config import ModelConfig
from glimpse.runners.torch.placement import wide
from glimpse.runners.torch.rope import RotaryTable, rotate
from glimpse.runners.torch.weights import LayerWeights, Weights

FEW_ROWS = 64
"""Up to so many rows a product on a CPU is faster with the weights on the left."""

Attend = Callable[[int, Tensor, Tensor, Tensor], Tensor]
"""(layer, q [num_tokens, num_query_heads, head_dim], k and v [num_tokens, num_kv_heads, head_dim])
-> [num_tokens, num_query_heads * head_dim]. Stores k and v, which are rotated already."""


class Decoder:
    """Embedding, layers, final norm and head."""

    def __init__(self, config: ModelConfig, weights: Weights) -> None:
        self.config = config
        self.weights = weights
        device, dtype = weights.embedding.device, weights.embedding.dtype
        self._rotary = RotaryTable(config.head_dim, config.rope, device, wide(dtype))

    def hidden(
        self,
        token_ids: Tensor,
        positions: Tensor,
        end: int,
        attend: Attend,
        num_layers: int,
        kept_layers: Collection[int] = (),
    ) -> tuple[Tensor, dict[int, Tensor]]:
        """Output of the first ``num_layers`` layers [num_tokens, hidden_size], before the final
        norm, and the inputs of ``kept_layers``; the head counts as the layer after the last. All
        ``positions`` are below ``end``.
        """
        factors = self._rotary(positions, end)
        kept: dict[int, Tensor] = {}
        x = self.weights.embedding.index_select(0, token_ids)
        for number, layer in enumerate(self.weights.layers[:num_layers]):
            if number in kept_layers:
                kept[number] = x
            q, k, v = self._project(layer, self._norm(x, layer.attention_norm), factors)
            attended = attend(number, q, k, v)
            x = x + linear(attended, layer.output, layer.output_bias)
            x = x + self._mlp(layer, self._norm(x, layer.mlp_norm))
        if num_layers in kept_layers:
            kept[num_layers] = self._norm(x, self.weights.final_norm)
        return x, kept

    def logits(self, x: Tensor) -> Tensor:
        """Final norm and head: [num_tokens, vocab_size], float32 or wider."""
        logits = linear(self._norm(x, self.weights.final_norm), self.weights.head)
        return logits.to(wide(x.dtype))

    def _norm(self, x: Tensor, weight: Tensor) -> Tensor:
        return rms_norm(x, self.config.rms_norm_eps) * weight

    def _project(
        self, layer: LayerWeights, x: Tensor, factors: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        config = self.config
        num_qk = config.num_query_heads + config.num_kv_heads
        qkv = linear(x, layer.qkv, layer.qkv_bias).view(x.shape[0], -1, config.head_dim)
        qk, v = qkv[:, :num_qk], qkv[:, num_qk:]
        if layer.qk_norm is not None:
            qk = rms_norm(qk, config.rms_norm_eps) * layer.qk_norm
        qk = rotate(qk, factors)
        return qk[:, : config.num_query_heads], qk[:, config.num_query_heads :], v

    def _mlp(self, layer: LayerWeights, x: Tensor) -> Tensor:
        gate, up = linear(x, layer.gate_up, layer.gate_up_bias).chunk(2, 1)
        return linear(F.silu(gate) * up, layer.down, layer.down_bias)


def rms_norm(x: Tensor, eps: float) -> Tensor:
    """x over its root mean square, computed in float32 or wider. For a few rows on a CPU this is
    several times as fast as ``F.rms_norm``, which takes more and slower steps.
    """
    x32 = x.to(wide(x.dtype))
    # Not mean(): it makes a tensor of the number it divides by, which takes longer than the rest.
    mean_square = x32.square().sum(-1, keepdim=True).mul_(1 / x.shape[-1])
    return (x32 * mean_square.add_(eps).rsqrt_()).to(x.dtype)


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """``x @ weight.T + bias`` for x [num_tokens, num_inputs]."""
    num_rows = x.shape[0]
    if weight.device.type != "cpu" or num_rows > FEW_ROWS:
        return F.linear(x, weight, bias)
    # With the weights on the left and contiguous rows, MKL reads the weights once for a few rows,
    # up to 3 times as fast as F.linear. Its path for a single row is slower than two rows.
    rows = torch.cat([x, x]) if num_rows == 1 else x.contiguous()
    out = (weight @ rows.t()).t()[:num_rows]
    return out if bias is None else out + bias
