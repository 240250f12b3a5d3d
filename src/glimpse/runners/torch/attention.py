"""Causal attention of a sequence's last rows over its KV, without repeating KV per query head.

The queries are the last ``num_rows`` of the ``seq_len`` positions: row i sees all but the
``num_rows - 1 - i`` after it. Shapes: q [num_kv_heads, group_size, num_rows, head_dim], keys and
values [num_kv_heads, seq_len, head_dim].
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from glimpse.runners.torch.placement import wide

MAX_WEIGHTED_ROWS = 32
"""Most rows for which the attention weights [.., num_rows, seq_len] are held in memory."""


def causal_mask(num_rows: int, device: torch.device) -> Tensor | None:
    """Which of the rows' own positions each row does not see; None for a single row."""
    if num_rows == 1:
        return None
    return torch.ones(num_rows, num_rows, dtype=torch.bool, device=device).triu_(1)


def attention_weights(q: Tensor, keys: Tensor, mask: Tensor | None) -> Tensor:
    """Softmax weights [num_kv_heads, group_size, num_rows, seq_len] in float32 or wider.

    ``mask`` is the ``causal_mask`` of so many rows, made once for all layers.
    """
    num_kv_heads, group_size, num_rows, head_dim = q.shape
    seq_len = keys.shape[1]
    scores = q.new_empty(num_kv_heads, group_size * num_rows, seq_len)
    queries = q.reshape(num_kv_heads, -1, head_dim)
    torch.baddbmm(scores, queries, keys.transpose(1, 2), beta=0, alpha=head_dim**-0.5, out=scores)
    scores = scores.view(num_kv_heads, group_size, num_rows, seq_len)
    if mask is not None:
        scores[..., -num_rows:].masked_fill_(mask, -torch.inf)
    if scores.dtype == wide(scores.dtype):
        return torch.softmax(scores, -1, out=scores)
    return torch.softmax(scores, -1, dtype=wide(scores.dtype))


def weighted_sum(weights: Tensor, values: Tensor) -> Tensor:
    """Values averaged with ``attention_weights``, of the shape of q."""
    flat = weights.to(values.dtype).flatten(1, 2)
    return torch.bmm(flat, values).view(*weights.shape[:3], values.shape[2])


def attend_many(q: Tensor, keys: Tensor, values: Tensor) -> Tensor:
    """Attention for any number of rows, never holding their weights; of the shape of q."""
    if q.device.type == "cpu":
        return attend_in_two_parts(q, keys, values)
    return attend_masked(q, keys, values)


def attend_masked(q: Tensor, keys: Tensor, values: Tensor) -> Tensor:
    """One call of PyTorch's own attention with the causal mask [num_rows, seq_len]."""
    num_rows, seq_len = q.shape[2], keys.shape[1]
    visible = torch.ones(num_rows, seq_len, dtype=torch.bool, device=q.device)
    visible.tril_(seq_len - num_rows)
    keys, values = _per_query_head(q, keys), _per_query_head(q, values)
    return F.scaled_dot_product_attention(q, keys, values, attn_mask=visible)


def attend_in_two_parts(q: Tensor, keys: Tensor, values: Tensor) -> Tensor:
    """The rows' own square with a causal mask and all before it without, joined by their sums.

    Without a mask the query heads of a group are rows of one matrix product, which reads the KV
    once for all of them.
    """
    flash: Callable[..., tuple[Tensor, Tensor]] = (
        torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
    )
    q = q.contiguous()  # the kernel reads head_dim with stride 1, and does not check
    start = keys.shape[1] - q.shape[2]
    own_keys, own_values = (_per_query_head(q, kv[:, start:]) for kv in (keys, values))
    own, own_lse = flash(q, own_keys, own_values, is_causal=True)
    if start == 0:
        return own
    past, past_lse = flash(
        q.reshape(len(q), 1, -1, q.shape[3]), keys[:, None, :start], values[:, None, :start]
    )
    share = torch.sigmoid(past_lse.view(own_lse.shape) - own_lse)[..., None]
    return own.lerp(past.view(own.shape), share.to(own.dtype))


def _per_query_head(q: Tensor, kv: Tensor) -> Tensor:
    """A view of keys or values [num_kv_heads, group_size, seq_len, head_dim]; nothing is copied."""
    return kv[:, None].expand(-1, q.shape[1], -1, -1)
