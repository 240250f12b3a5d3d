"""What policies that rank positions from queries and keys have in common."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal
from weakref import WeakKeyDictionary

import torch
import torch.nn.functional as F
from torch import Tensor

from glimpse.types import Sequence

Aggregation = Literal["sum", "mean", "max"]
"""How a KV head's query heads become one score; sum and mean order positions alike."""


def attention(queries: Tensor, keys: Tensor) -> Tensor:
    """Causal attention of the last positions' queries [num_kv_heads, group_size, num_queries,
    head_dim] over keys [num_kv_heads, length, head_dim]: [num_kv_heads, group_size, num_queries,
    length], float32 or wider.
    """
    num_queries, length = queries.shape[2], keys.shape[1]
    # The heads of a group are rows of one product: keys are read once for all of them.
    flat = queries.flatten(1, 2) @ keys.transpose(1, 2)
    scores = flat.mul_(keys.shape[2] ** -0.5).view(*queries.shape[:3], length)
    future = torch.ones(num_queries, length, dtype=torch.bool, device=keys.device)
    future.triu_(length - num_queries + 1)
    dtype = torch.promote_types(scores.dtype, torch.float32)
    return torch.softmax(scores.masked_fill_(future, -torch.inf), -1, dtype=dtype)


def box(pages: Tensor) -> Tensor:
    """The bounding box of each page's keys [.., num_pages, page_size, head_dim]: lower and upper
    corner, [.., num_pages, 2, head_dim].
    """
    return torch.stack([pages.amin(-2), pages.amax(-2)], -2)


def box_bound(queries: Tensor, boxes: Tensor) -> Tensor:
    """The largest product that a key inside each box could have with a query, sum_d max(q_d min_d,
    q_d max_d), summed over queries: [num_kv_heads, num_pages].
    """
    flat = queries.flatten(1, 2)
    lower, upper = boxes.unbind(2)
    bound = flat.clamp(max=0) @ lower.transpose(1, 2) + flat.clamp(min=0) @ upper.transpose(1, 2)
    return bound.sum(1)


def spread(page_scores: Tensor, page_size: int, length: int) -> Tensor:
    """Every position's score is its page's; those behind the last whole page have 0."""
    scores = page_scores.repeat_interleave(page_size, -1)
    return F.pad(scores, (0, length - scores.shape[-1]))


class PageDigests:
    """What is known of each whole page of a text's keys, computed once per page and layer."""

    def __init__(self, page_size: int, digest: Callable[[Tensor], Tensor]) -> None:
        self._page_size, self._digest = page_size, digest
        self._held: WeakKeyDictionary[Sequence, dict[int, Tensor]] = WeakKeyDictionary()

    def __call__(self, sequence: Sequence, layer: int, keys: Tensor) -> Tensor:
        """Digests [num_kv_heads, num_pages, ..] of committed keys [num_kv_heads, length,
        head_dim].
        """
        held = self._held.setdefault(sequence, {})
        num_pages = keys.shape[1] // self._page_size
        num_held = held[layer].shape[1] if layer in held else 0
        if layer not in held or num_pages > num_held:
            new = keys[:, num_held * self._page_size : num_pages * self._page_size]
            pages = new.reshape(len(keys), num_pages - num_held, self._page_size, keys.shape[2])
            digests = self._digest(pages)
            held[layer] = torch.cat([held[layer], digests], 1) if num_held else digests
        return held[layer][:, :num_pages]
