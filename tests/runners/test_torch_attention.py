"""The ways to compute attention agree with each other and with the definition."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from glimpse.runners.torch.attention import (
    attend_in_two_parts,
    attend_masked,
    attention_weights,
    causal_mask,
    weighted_sum,
)

SHAPES = [(1, 1), (1, 40), (7, 7), (5, 40), (33, 33), (64, 200), (40, 41)]


def inputs(num_rows: int, seq_len: int, dtype: torch.dtype = torch.float64) -> list[Tensor]:
    generator = torch.Generator().manual_seed(num_rows + seq_len)
    shapes = [(2, 3, num_rows, 6), (2, seq_len, 6), (2, seq_len, 6)]
    return [torch.randn(shape, generator=generator, dtype=dtype) for shape in shapes]


def weights_of(q: Tensor, keys: Tensor) -> Tensor:
    return attention_weights(q, keys, causal_mask(q.shape[2], q.device))


def definition(q: Tensor, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
    num_rows, seq_len = q.shape[2], keys.shape[1]
    scores = torch.einsum("hgrd,hsd->hgrs", q, keys) / math.sqrt(q.shape[3])
    rows = torch.arange(seq_len - num_rows, seq_len)[:, None]
    weights = scores.masked_fill(torch.arange(seq_len) > rows, -math.inf).softmax(-1)
    return weights, torch.einsum("hgrs,hsd->hgrd", weights, values)


@pytest.mark.parametrize(("num_rows", "seq_len"), SHAPES)
def test_all_ways_agree(num_rows: int, seq_len: int) -> None:
    q, keys, values = inputs(num_rows, seq_len)
    weights, expected = definition(q, keys, values)
    found = weights_of(q, keys)
    torch.testing.assert_close(found, weights)
    torch.testing.assert_close(weighted_sum(found, values), expected)
    torch.testing.assert_close(attend_masked(q, keys, values), expected)
    torch.testing.assert_close(attend_in_two_parts(q, keys, values), expected)


def test_any_memory_layout_of_the_queries() -> None:
    """What comes out of a projection has its rows innermost."""
    q, keys, values = inputs(40, 100)
    strided = q.permute(0, 1, 3, 2).contiguous().permute(0, 1, 3, 2)
    assert not strided.is_contiguous()
    torch.testing.assert_close(
        attend_in_two_parts(strided, keys, values), attend_in_two_parts(q, keys, values)
    )
    torch.testing.assert_close(weights_of(strided, keys), weights_of(q, keys))


def test_large_scores_do_not_overflow() -> None:
    q, keys, values = inputs(40, 100, torch.float32)
    for attended in (
        attend_in_two_parts(1e3 * q, 1e3 * keys, values),
        weights_of(q, keys),
    ):
        assert attended.isfinite().all()


def test_weights_are_float32_for_lower_precision() -> None:
    q, keys, values = inputs(3, 50, torch.bfloat16)
    weights = weights_of(q, keys)
    assert weights.dtype == torch.float32
    assert weighted_sum(weights, values).dtype == torch.bfloat16
    torch.testing.assert_close(weights.sum(-1), torch.ones(2, 3, 3))
