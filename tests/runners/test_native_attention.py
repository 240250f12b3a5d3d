"""Attention of the C++ core: against its definition, and the same bits whatever is beside a row."""

from __future__ import annotations

from collections.abc import Sequence as SequenceOf
from dataclasses import dataclass
from itertools import pairwise

import pytest
import torch
from torch import Tensor

from glimpse.runners.native import _core
from tests.runners.isa import ISAS

KV_DTYPES = ["float32", "float16", "int16", "int8"]
# Query heads, KV heads, head size: groups of 1 to 16, sizes with and without a remainder.
SHAPES = [(9, 3, 64), (5, 1, 6), (14, 2, 80), (12, 1, 128), (2, 2, 96), (16, 1, 256), (3, 3, 10)]
LENGTH = 530  # more than two splits of the keys
HALF_PRECISION = 2**-11  # largest relative rounding; attention statistics have two


@dataclass
class Case:
    """A text's rotated queries, keys and values, and ways to compute their attention."""

    num_query_heads: int
    num_kv_heads: int
    head_dim: int
    length: int = LENGTH
    seed: int = 0

    def __post_init__(self) -> None:
        generator = torch.Generator().manual_seed(self.seed)
        heads = (self.num_query_heads, self.num_kv_heads, self.num_kv_heads)
        self.q, self.k, self.v = (
            torch.randn(self.length, n, self.head_dim, generator=generator) for n in heads
        )
        self.q *= 2

    def attention(self, kv_dtype: str, isa: str = "auto", threads: int = 1) -> _core.Attention:
        return _core.Attention(
            num_query_heads=self.num_query_heads,
            num_kv_heads=self.num_kv_heads,
            head_dim=self.head_dim,
            kv_dtype=kv_dtype,
            isa=isa,
            num_threads=threads,
        )

    def read(
        self,
        attention: _core.Attention,
        cache: _core.KVCache,
        start: int,
        end: int,
        observed: Tensor | None = None,
    ) -> Tensor:
        """Rows [start, end), whose KV follows what the cache holds of the rows before."""
        q, k, v = (x[start:end].contiguous() for x in (self.q, self.k, self.v))
        out = torch.empty_like(q)
        attention.attend(
            [(cache, start, end - start)],
            *(x.numpy() for x in (q, k, v, out)),
            observed=None if observed is None else observed.numpy(),
        )
        return out

    def in_chunks(self, attention: _core.Attention, sizes: SequenceOf[int]) -> Tensor:
        """All rows in chunks of these sizes, over and over."""
        cache, start, chunks = attention.cache(), 0, []
        while start < self.length:
            end = min(start + sizes[len(chunks) % len(sizes)], self.length)
            chunks.append(self.read(attention, cache, start, end))
            start = end
        return torch.cat(chunks)

    def weights(self, kv_dtype: str, dtype: torch.dtype) -> Tensor:
        """By the definition: [num_query_heads, length, length]."""
        keys = self._per_query_head(rounded(self.k, kv_dtype), dtype)
        scores = torch.einsum("rhd,shd->hrs", self.q.to(dtype), keys) / self.head_dim**0.5
        hidden = torch.ones(self.length, self.length, dtype=torch.bool).triu(1)
        return scores.masked_fill(hidden, -torch.inf).softmax(-1)

    def definition(self, kv_dtype: str, dtype: torch.dtype) -> Tensor:
        values = self._per_query_head(rounded(self.v, kv_dtype), dtype)
        return torch.einsum("hrs,shd->rhd", self.weights(kv_dtype, dtype), values)

    def _per_query_head(self, kv: Tensor, dtype: torch.dtype) -> Tensor:
        return kv.to(dtype).repeat_interleave(self.num_query_heads // self.num_kv_heads, 1)


def rounded(x: Tensor, kv_dtype: str) -> Tensor:
    """What a cache of this precision holds of x [length, heads, head_dim]."""
    if kv_dtype == "int16":
        return x  # finer than what is asked of it
    if kv_dtype != "int8":
        return x.to(getattr(torch, kv_dtype)).float()
    scale = x.abs().amax(-1, keepdim=True) / 127
    return (x / scale).round() * scale


def rms(x: Tensor) -> float:
    return x.double().square().mean().sqrt().item()


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("kv_dtype", ["float32", "float16"])
@pytest.mark.parametrize("shape", SHAPES)
def test_at_most_twice_the_error_of_torch(
    shape: tuple[int, int, int], kv_dtype: str, isa: str
) -> None:
    case = Case(*shape)
    exact = case.definition(kv_dtype, torch.float64)
    found = case.in_chunks(case.attention(kv_dtype, isa), [100])
    reference = case.definition(kv_dtype, torch.float32)
    assert rms(found - exact) <= 2 * rms(reference - exact)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize(("kv_dtype", "other"), [("int16", "float16"), ("int8", "int8")])
@pytest.mark.parametrize("shape", SHAPES)
def test_integers_are_as_good_as_halves_or_as_their_own_rounding(
    shape: tuple[int, int, int], kv_dtype: str, other: str, isa: str
) -> None:
    """Beside what halves round, and what 8 bits round."""
    case = Case(*shape)
    exact = case.definition("int16", torch.float64)
    found = case.in_chunks(case.attention(kv_dtype, isa), [100])
    assert rms(found - exact) <= 1.25 * rms(case.definition(other, torch.float64) - exact)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("kv_dtype", KV_DTYPES)
@pytest.mark.parametrize("shape", SHAPES)
def test_the_same_bits_for_any_number_of_rows_and_threads(
    shape: tuple[int, int, int], kv_dtype: str, isa: str
) -> None:
    case = Case(*shape)
    expected = case.in_chunks(case.attention(kv_dtype, isa), [1])
    for sizes, threads in [([2, 3, 17, 1, 9], 2), ([33, 5, 64], 3), ([LENGTH], 1), ([512], 2)]:
        found = case.in_chunks(case.attention(kv_dtype, isa, threads), sizes)
        assert torch.equal(found, expected), (sizes, threads)


@pytest.mark.parametrize("kv_dtype", ["float16", "int16"])
@pytest.mark.parametrize("length", [15, 16, 17, 255, 256, 257, 511, 512, 513, 1024])
def test_lengths_around_the_edges_of_blocks_and_splits(length: int, kv_dtype: str) -> None:
    case = Case(3, 1, 64, length + 2)
    attention = case.attention(kv_dtype, threads=2)
    expected = case.in_chunks(attention, [1])
    assert torch.equal(case.in_chunks(attention, [length, 2]), expected)
    exact = case.definition(kv_dtype, torch.float64)
    atol = 1e-3 if kv_dtype == "int16" else 1e-5
    torch.testing.assert_close(expected.double(), exact, rtol=0, atol=atol)


@pytest.mark.parametrize("kv_dtype", KV_DTYPES)
def test_the_same_bits_beside_any_neighbours(kv_dtype: str) -> None:
    """Sequences of other lengths and numbers of rows, in any order."""
    cases = [Case(6, 2, 64, length, length) for length in (70, 530, 300, 5)]
    num_rows = [1, 40, 7, 5]
    attention = cases[0].attention(kv_dtype, threads=2)
    expected, parts = [], []
    for case, rows in zip(cases, num_rows, strict=True):
        start = case.length - rows
        alone, shared = attention.cache(), attention.cache()
        for cache in (alone, shared):
            if start:
                case.read(attention, cache, 0, start)
        expected.append(case.read(attention, alone, start, case.length))
        parts.append((shared, start, rows))
    for order in ([0, 1, 2, 3], [3, 1, 0, 2]):
        q, k, v = (
            torch.cat([getattr(cases[i], name)[-num_rows[i] :] for i in order]) for name in "qkv"
        )
        out = torch.empty_like(q)
        attention.attend([parts[i] for i in order], *(x.numpy() for x in (q, k, v, out)))
        assert torch.equal(out, torch.cat([expected[i] for i in order]))


@pytest.mark.parametrize("kv_dtype", KV_DTYPES)
@pytest.mark.parametrize("keep", [3, 16, 100, 260])
def test_rows_taken_back_leave_no_trace(keep: int, kv_dtype: str) -> None:
    """Not even where they were beyond what the cache can hold."""
    case, other = Case(6, 2, 64), Case(6, 2, 64, seed=1)
    other.k *= 1e30
    other.v *= 1e30
    attention = case.attention(kv_dtype, threads=2)
    expected = case.in_chunks(attention, [1])
    cache = attention.cache()
    case.read(attention, cache, 0, keep)
    other.read(attention, cache, keep, LENGTH)
    starts = [keep, keep + 1, keep + 6, keep + 40, LENGTH]
    for start, end in pairwise(starts):
        assert torch.equal(case.read(attention, cache, start, end), expected[start:end])


def test_a_cache_grows_by_doubling() -> None:
    case = Case(3, 1, 64)
    attention = case.attention("float16")
    cache = attention.cache()
    capacities = set()
    for row in range(LENGTH):
        case.read(attention, cache, row, row + 1)
        capacities.add(cache.capacity)
    assert sorted(capacities) == [64, 128, 256, 512, 1024]


@pytest.mark.parametrize("kv_dtype", KV_DTYPES)
@pytest.mark.parametrize("num_rows", [1, 5, 32])
def test_observed_attention_is_the_softmax_summed_over_rows(num_rows: int, kv_dtype: str) -> None:
    case = Case(14, 2, 80)
    attention = case.attention(kv_dtype, threads=2)
    start = LENGTH - num_rows
    plain, cache = attention.cache(), attention.cache()
    for c in (plain, cache):
        case.read(attention, c, 0, start)
    bits = torch.full((2, num_rows, 544), torch.nan, dtype=torch.float16).view(torch.uint16)
    out = case.read(attention, cache, start, LENGTH, bits)
    observed = bits.view(torch.float16)
    assert torch.equal(out, case.read(attention, plain, start, LENGTH))
    exact = case.weights(kv_dtype, torch.float64)[:, start:].unflatten(0, (2, 7)).sum(1).cumsum(1)
    tolerance = {"int8": 1e-3, "int16": 1e-4}.get(kv_dtype, 1e-5)
    for row in range(num_rows):
        seen = start + row + 1
        torch.testing.assert_close(
            observed[:, row, :seen].double(),
            exact[:, row, :seen],
            rtol=tolerance + 2 * HALF_PRECISION,
            atol=tolerance,
        )


def test_large_scores_do_not_overflow() -> None:
    case = Case(6, 2, 64)
    case.q *= 1e3
    case.k *= 1e2
    found = case.in_chunks(case.attention("float16", threads=2), [64])
    exact = case.definition("float16", torch.float64)
    torch.testing.assert_close(found.double(), exact, rtol=0, atol=1e-2)


@pytest.mark.parametrize("head_dim", [0, 257])
def test_head_sizes_that_cannot_be_had(head_dim: int) -> None:
    case = Case(1, 1, head_dim, length=1)
    with pytest.raises(ValueError, match=f"head_dim={head_dim}: must be from 1 to 256"):
        case.attention("float16")


def test_an_unknown_precision() -> None:
    with pytest.raises(
        ValueError, match="kv_dtype='bf8': must be one of float32, float16, int16, int8"
    ):
        Case(1, 1, 8).attention("bf8")
