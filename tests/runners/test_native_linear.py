"""The core's matrices: packed values are the file's, products exact in their order and accurate."""

from __future__ import annotations

import gguf
import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType as Kind

from glimpse.models import StoredTensor, dequantized_tensor, plain_tensor
from glimpse.runners.native import _core
from tests.runners.isa import ISAS

FLOATS = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}
# Where a block of each kind has its half-precision scales, in units of two bytes.
SCALES = {
    "Q4_0": [0],
    "Q4_1": [0, 1],
    "Q5_0": [0],
    "Q5_1": [0, 1],
    "Q8_0": [0],
    "Q2_K": [40, 41],
    "Q3_K": [54],
    "Q4_K": [0, 1],
    "Q5_K": [0, 1],
    "Q6_K": [104],
}
KINDS = [*FLOATS, *SCALES]


def stored(kind: str, num_outputs: int, num_inputs: int) -> StoredTensor:
    """Random weights: of quantised kinds every bit, with scales of ordinary size."""
    draw = np.random.default_rng(3)
    values = draw.standard_normal((num_outputs, num_inputs), dtype=np.float32)
    if kind in FLOATS:
        return plain_tensor(torch.from_numpy(values).to(FLOATS[kind]))
    block, size = gguf.GGML_QUANT_SIZES[Kind[kind]]
    rows = draw.integers(256, size=(num_outputs * num_inputs // block, size), dtype=np.uint8)
    scales = draw.uniform(-0.1, 0.1, (len(rows), len(SCALES[kind]))).astype(np.float16)
    rows.view(np.float16)[:, SCALES[kind]] = scales
    return StoredTensor((num_outputs, num_inputs), kind, rows.reshape(-1))


def pack(weights: StoredTensor, bias: torch.Tensor | None = None) -> _core.Matrix:
    return _core.pack(
        weights.type,
        *weights.shape,
        weights.rows.reshape(-1),
        weights.row_order,
        None if bias is None else bias.numpy(),
    )


def multiply(
    matrix: _core.Matrix,
    x: torch.Tensor,
    num_outputs: int,
    *,
    isa: str = ISAS[0],
    activations: str = "int8",
    threads: int = 1,
) -> torch.Tensor:
    out = torch.empty(len(x), num_outputs)
    _core.multiply(matrix, x.numpy(), out.numpy(), isa, activations, threads)
    return out


def rows_of(num_rows: int, num_inputs: int) -> torch.Tensor:
    return torch.randn(num_rows, num_inputs, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("kind", KINDS)
def test_packed_values_are_those_of_the_file(kind: str, isa: str) -> None:
    weights = stored(kind, 19, 512)
    unpacked = torch.empty(19, 512)
    _core.unpack(pack(weights), unpacked.numpy(), isa)
    expected = dequantized_tensor(weights)
    # K types have two factors and a minimum, which may be rounded in another order.
    torch.testing.assert_close(unpacked, expected, rtol=0, atol=1e-6 if "_K" in kind else 0)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("activations", ["int8", "float32"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_row_is_the_same_bits_in_any_company(kind: str, activations: str, isa: str) -> None:
    num_outputs, num_inputs = 75, 768
    matrix = pack(stored(kind, num_outputs, num_inputs), torch.ones(num_outputs))
    x = rows_of(130, num_inputs)
    options = {"isa": isa, "activations": activations}
    alone = torch.cat([multiply(matrix, row[None], num_outputs, **options) for row in x])
    for num_rows in (*range(2, 18), 31, 32, 33, 130):
        for threads in (1, 3):
            together = multiply(matrix, x[:num_rows], num_outputs, threads=threads, **options)
            assert torch.equal(together, alone[:num_rows])


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("num_inputs", [7, 64, 576, 4096])
def test_float_products_are_as_accurate_as_torchs(num_inputs: int, isa: str) -> None:
    """The largest error is at most twice that of torch in the same precision."""
    weights, x = torch.randn(300, num_inputs), rows_of(20, num_inputs)
    exact = x.double() @ weights.double().T
    error = (multiply(pack(plain_tensor(weights)), x, 300, isa=isa) - exact).abs().max()
    assert error <= 2 * (x @ weights.T - exact).abs().max()


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("kind", list(SCALES))
def test_integer_products_are_those_of_rounded_activations(kind: str, isa: str) -> None:
    """One scale for 32 inputs, largest over 127; then only float32 rounding is left."""
    weights, x = stored(kind, 40, 1024), rows_of(9, 1024)
    blocks = x.view(9, -1, 32)
    scales = blocks.abs().amax(2, keepdim=True) / 127
    rounded = ((blocks / scales).round() * scales).view(9, -1).double()
    expected = rounded @ dequantized_tensor(weights).double().T
    actual = multiply(pack(weights), x, 40, isa=isa).double()
    size = (rounded.abs() @ dequantized_tensor(weights).double().abs().T).max()
    assert (actual - expected).abs().max() <= 1e-5 * size


@pytest.mark.parametrize("isa", ISAS)
def test_a_bias_and_an_order_of_rows(isa: str) -> None:
    weights, bias = torch.randn(11, 32), torch.randn(11)
    order = torch.randperm(11)
    plain = plain_tensor(weights)
    matrix = pack(StoredTensor(plain.shape, plain.type, plain.rows, order.numpy()), bias)
    x = rows_of(3, 32)
    torch.testing.assert_close(multiply(matrix, x, 11, isa=isa), x @ weights[order].T + bias)


def test_what_cannot_be_packed_is_refused() -> None:
    with pytest.raises(ValueError, match="33 inputs in Q8_0: must be a multiple of 32"):
        _core.pack("Q8_0", 1, 33, np.zeros(34, dtype=np.uint8), None, None)
    with pytest.raises(ValueError, match="weights of type 'IQ2_S' cannot be packed"):
        _core.pack("IQ2_S", 1, 256, np.zeros(82, dtype=np.uint8), None, None)
    assert not _core.is_packable("IQ2_S")
