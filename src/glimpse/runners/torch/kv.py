"""KV of one sequence: preallocated, grown by doubling; what is beyond its length is free space."""

from __future__ import annotations

import torch
from torch import Tensor

from glimpse.config import ModelConfig

_MIN_CAPACITY = 64


class KVBuffer:
    """Keys and values [num_layers, num_kv_heads, capacity, head_dim]."""

    def __init__(
        self, config: ModelConfig, capacity: int, device: torch.device, dtype: torch.dtype
    ) -> None:
        shape = (config.num_layers, config.num_kv_heads, capacity, config.head_dim)
        self.keys = torch.empty(shape, device=device, dtype=dtype)
        self.values = torch.empty(shape, device=device, dtype=dtype)

    @property
    def capacity(self) -> int:
        return self.keys.shape[2]

    def reserve(self, capacity: int, used: int, limit: int | None = None) -> None:
        """Make room for ``capacity`` positions, keeping the first ``used``; at most ``limit``."""
        if capacity <= self.capacity:
            return
        doubled = max(capacity, 2 * self.capacity, _MIN_CAPACITY)
        grown = doubled if limit is None else max(capacity, min(doubled, limit))
        self.keys = _grown(self.keys, grown, used)
        self.values = _grown(self.values, grown, used)

    def write(self, layer: int, start: int, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """Store k and v [num_rows, num_kv_heads, head_dim] from position ``start`` on.

        Returns keys and values [num_kv_heads, start + num_rows, head_dim] up to and with them.
        """
        end = start + k.shape[0]
        keys, values = self.keys[layer, :, :end], self.values[layer, :, :end]
        keys[:, start:] = k.transpose(0, 1)
        values[:, start:] = v.transpose(0, 1)
        return keys, values

    def copy_from(self, other: KVBuffer, length: int) -> None:
        self.keys[:, :, :length] = other.keys[:, :, :length]
        self.values[:, :, :length] = other.values[:, :, :length]


def _grown(old: Tensor, capacity: int, used: int) -> Tensor:
    new = old.new_empty(*old.shape[:2], capacity, old.shape[3])
    new[:, :, :used] = old[:, :, :used]
    return new
