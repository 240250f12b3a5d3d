"""The glimpse of the C++ core: exact choices for any scores, drafts of the same bits anywhere."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from glimpse.runners.native.runner import NativeRunner
from glimpse.types import GLIMPSE, IndexSpec, RaggedBatch, Segment, Statistics
from tests.conformance.tiny import SHAPES, tiny_tensors

CONFIG = SHAPES["plain"]
LENGTH = 200
WINDOW = 8


def runner(kv_dtype: str = "float16", threads: int = 1) -> NativeRunner:
    tensors = tiny_tensors(CONFIG).items()
    return NativeRunner(CONFIG, tensors, threads=threads, kv_dtype=kv_dtype)


def text(length: int, seed: int = 0) -> list[int]:
    generator = torch.Generator().manual_seed(seed)
    ids: list[int] = torch.randint(CONFIG.vocab_size, (length,), generator=generator).tolist()
    return ids


def opened(native: NativeRunner, length: int, seed: int = 0) -> int:
    handle = native.open(0, Statistics(WINDOW))
    native.forward(RaggedBatch([Segment(handle, text(length, seed))]))
    return handle


def naive_index(scores: Tensor, sinks: int, best: int, recents: int) -> Tensor:
    """The highest of the middle, the earliest of equals; what is not a number comes last."""
    rows = []
    for head in scores.nan_to_num(-math.inf, math.inf, -math.inf).flatten(0, 1).tolist():
        middle = sorted(range(sinks, LENGTH - recents), key=lambda i: -head[i])[:best]
        rows.append(sorted([*range(sinks), *middle, *range(LENGTH - recents, LENGTH)]))
    return torch.tensor(rows).view(*scores.shape[:2], -1)


def test_any_scores_one_after_the_other() -> None:
    """What was chosen the last time is a hint where to look, and no more than that."""
    native = runner(threads=2)
    handle = opened(native, LENGTH)
    shape = (CONFIG.num_layers, CONFIG.num_kv_heads, LENGTH)
    generator = torch.Generator().manual_seed(1)
    random = torch.rand(shape, generator=generator)
    holes = torch.where(random < 0.5, torch.nan, random)
    many = [random, 1e-6 * random, 1e6 * random, -random, random - 0.5, torch.zeros(shape)]
    many += [(8 * random).round(), -(8 * random).round(), holes, torch.full(shape, torch.nan)]
    many += [torch.where(random < 0.3, -torch.inf, random), torch.full(shape, torch.inf), random]
    for budget in (20, 33):
        for scores in many:
            native.refresh(handle, IndexSpec(budget, 2, 5, scores=scores))
            assert torch.equal(native.index(handle), naive_index(scores, 2, budget - 7, 5))


@pytest.mark.parametrize("kv_dtype", ["float32", "float16", "int16", "int8"])
def test_drafts_have_the_same_bits_beside_any_neighbours(kv_dtype: str) -> None:
    lengths, drafts = [200, 60, 100], [text(n, n) for n in (1, 5, 3)]
    spec = IndexSpec(30, 2, 5, WINDOW)
    alone = []
    for length, draft in zip(lengths, drafts, strict=True):
        native = runner(kv_dtype)
        handle = opened(native, length, length)
        native.refresh(handle, spec)
        one_by_one = [
            native.forward(RaggedBatch([Segment(handle, [token])]), GLIMPSE).logits
            for token in draft
        ]
        alone.append(torch.cat(one_by_one))
    native = runner(kv_dtype, threads=3)
    handles = [opened(native, length, length) for length in lengths]
    for handle in handles:
        native.refresh(handle, spec)
    segments = [Segment(h, draft, len(draft)) for h, draft in zip(handles, drafts, strict=True)]
    assert torch.equal(native.forward(RaggedBatch(segments), GLIMPSE).logits, torch.cat(alone))


def test_what_stays_in_a_glimpse_is_what_a_new_one_would_hold() -> None:
    """Entries that were moved over many rounds, against a glimpse made in one go: equal drafts."""
    native = runner("float32")
    old = opened(native, LENGTH)
    shape = (CONFIG.num_layers, CONFIG.num_kv_heads, LENGTH)
    for seed in range(12):
        scores = torch.rand(shape, generator=torch.Generator().manual_seed(seed))
        spec = IndexSpec(20 + seed % 5, 2, 5, scores=scores)
        native.refresh(old, spec)
        new = native.fork(old, LENGTH, Statistics(WINDOW))
        native.refresh(new, spec)
        draft = text(3, seed)
        first, second = (
            native.forward(RaggedBatch([Segment(handle, draft, 3)]), GLIMPSE).logits
            for handle in (old, new)
        )
        torch.testing.assert_close(first, second, rtol=1e-3, atol=1e-3)  # slots in another order
        native.close(new)


def test_statistics_do_not_depend_on_threads() -> None:
    scores = []
    for threads in (1, 3):
        native = runner(threads=threads)
        handle = opened(native, LENGTH)
        found = [native.attention_scores(handle, WINDOW)]
        for seed in range(4):
            native.forward(RaggedBatch([Segment(handle, text(5, seed), 1, is_observed=True)]))
            native.truncate(handle, LENGTH + 3 * seed + 3)
            found.append(native.attention_scores(handle, WINDOW))
        scores.append(torch.cat([x.flatten() for x in found]))
    assert torch.equal(*scores)
