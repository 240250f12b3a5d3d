"""The compact copy: entries that stay are not moved, and an interrupt leaves no half of one."""

from __future__ import annotations

from unittest.mock import patch

import pytest
import torch
from torch import Tensor

from glimpse.runners.torch.glimpse import Glimpse, choose
from glimpse.runners.torch.kv import KVBuffer
from glimpse.types import IndexSpec
from tests.conformance.tiny import SHAPES

CONFIG = SHAPES["plain"]
CPU = torch.device("cpu")
LENGTH = 50
COPY = Tensor.index_copy_


@pytest.fixture
def dense() -> KVBuffer:
    kv = KVBuffer(CONFIG, 2 * LENGTH, CPU, torch.float64)
    generator = torch.Generator().manual_seed(0)
    kv.keys.normal_(generator=generator)
    kv.values.normal_(generator=generator)
    return kv


def mask(budget: int, seed: int, length: int = LENGTH) -> Tensor:
    shape = (CONFIG.num_layers, CONFIG.num_kv_heads, length)
    scores = torch.rand(shape, generator=torch.Generator().manual_seed(seed))
    return choose(IndexSpec(budget, 2, 4, scores=scores), scores, shape, CPU)


def check(glimpse: Glimpse, dense: KVBuffer, chosen: Tensor) -> None:
    """Each slot holds the KV of its position, and the positions are the chosen ones."""
    assert glimpse.index is not None
    held = torch.zeros_like(chosen).scatter_(2, glimpse.index, True)
    assert torch.equal(held, chosen)
    for compact, full in ((glimpse.kv.keys, dense.keys), (glimpse.kv.values, dense.values)):
        rows = glimpse.index[..., None].expand(-1, -1, -1, CONFIG.head_dim)
        assert torch.equal(compact[:, :, : max(glimpse.sizes)], full.gather(2, rows))


def test_what_stays_keeps_its_slot(dense: KVBuffer, monkeypatch: pytest.MonkeyPatch) -> None:
    moved: list[int] = []

    def copy(self: Tensor, dim: int, targets: Tensor, rows: Tensor) -> Tensor:
        moved.append(len(targets))
        return COPY(self, dim, targets, rows)

    monkeypatch.setattr(Tensor, "index_copy_", copy)
    glimpse = Glimpse(CONFIG, CPU, torch.float64)
    glimpse.refresh(dense, mask(12, seed=0))
    for number, (budget, length) in enumerate([(12, 50), (15, 60), (30, 70), (9, 70), (12, 100)]):
        old = glimpse.index
        assert old is not None
        chosen = mask(budget, number, length)
        moved.clear()
        glimpse.refresh(dense, chosen)
        check(glimpse, dense, chosen)
        assert glimpse.index is not None
        size = min(old.shape[2], budget)
        stays = chosen.gather(2, old[..., :size])
        assert torch.equal(glimpse.index[..., :size][stays], old[..., :size][stays])
        num_moved = chosen.sum() - stays.sum()
        assert moved == [num_moved, num_moved]


def test_a_refresh_with_the_same_index_copies_nothing(dense: KVBuffer) -> None:
    glimpse = Glimpse(CONFIG, CPU, torch.float64)
    glimpse.refresh(dense, mask(12, seed=0))
    glimpse.kv.keys.zero_()
    glimpse.refresh(dense, mask(12, seed=0))
    assert not glimpse.kv.keys[:, :, :12].any()


def test_an_interrupt_leaves_no_half_of_a_glimpse(dense: KVBuffer) -> None:
    glimpse = Glimpse(CONFIG, CPU, torch.float64)
    glimpse.refresh(dense, mask(12, seed=0))
    interrupted = patch.object(Tensor, "index_copy_", side_effect=KeyboardInterrupt)
    with interrupted, pytest.raises(KeyboardInterrupt):
        glimpse.refresh(dense, mask(12, seed=1))
    assert not glimpse.exists
    glimpse.refresh(dense, mask(12, seed=2))
    check(glimpse, dense, mask(12, seed=2))
