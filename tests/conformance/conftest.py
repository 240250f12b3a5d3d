"""Runners under test: each factory makes one from a tiny model's shape and weights."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from glimpse.config import ModelConfig
from glimpse.runners.native.runner import NativeRunner
from glimpse.runners.torch import TorchRunner
from glimpse.types import DENSE, KVView, RaggedBatch, Runner, Segment, Statistics
from tests.conformance.tiny import SHAPES, NaiveDecoder, tiny_tensors


def torch_runner(config: ModelConfig, tensors: dict[str, Tensor]) -> Runner:
    return TorchRunner(config, tensors.items(), torch.device("cpu"), torch.float64)


def native_runner(config: ModelConfig, tensors: dict[str, Tensor]) -> Runner:
    return NativeRunner(config, tensors.items(), threads=2, kv_dtype="float32")


FACTORIES: dict[str, Callable[[ModelConfig, dict[str, Tensor]], Runner]] = {
    "native": native_runner,
    "torch": torch_runner,
}
WINDOW = 8
_TOLERANCES = {torch.float64: (1e-7, 1e-7), torch.float32: (5e-4, 5e-4)}
"""Relative and absolute, by the precision that a runner computes in."""
_SCORE_TOLERANCES = {"native": {"rtol": 2**-10, "atol": 1e-4}}
"""Of attention statistics, by runner: native keeps weights, and sums of rows, in half precision."""


def close(actual: Tensor, expected: Tensor) -> None:
    """Equal to the oracle's value, but for rounding in the runner's own precision."""
    rtol, atol = _TOLERANCES[actual.dtype]
    torch.testing.assert_close(actual.double(), expected.double(), rtol=rtol, atol=atol)


class Bench:
    """A runner, the oracle of the same model, and shorthands for what tests do all the time."""

    def __init__(self, factory: str, config: ModelConfig) -> None:
        tensors = tiny_tensors(config)
        self.config = config
        self.oracle = NaiveDecoder(config, tensors)
        self.runner = FACTORIES[factory](config, tensors)
        self.score_tolerance = _SCORE_TOLERANCES.get(factory, {"rtol": 1e-5, "atol": 1e-6})

    def text(self, length: int, seed: int = 0) -> list[int]:
        generator = torch.Generator().manual_seed(seed)
        ids: list[int] = torch.randint(
            self.config.vocab_size, (length,), generator=generator
        ).tolist()
        return ids

    def open(self, token_ids: list[int], window: int = WINDOW, chunk: int = 37) -> int:
        """A sequence that has read ``token_ids`` in chunks."""
        handle = self.runner.open(0, Statistics(window))
        for start in range(0, len(token_ids), chunk):
            self.read(handle, token_ids[start : start + chunk])
        return handle

    def read(
        self,
        handle: int,
        token_ids: list[int],
        view: KVView = DENSE,
        *,
        is_observed: bool = False,
    ) -> Tensor:
        """Logits of all of ``token_ids``."""
        segment = Segment(handle, token_ids, len(token_ids), is_observed)
        return self.runner.forward(RaggedBatch([segment]), view).logits


@pytest.fixture(params=[(name, shape) for name in FACTORIES for shape in SHAPES], ids="-".join)
def bench(request: pytest.FixtureRequest) -> Bench:
    name, shape = request.param
    return Bench(name, SHAPES[shape])


@pytest.fixture(params=list(FACTORIES))
def short(request: pytest.FixtureRequest) -> Bench:
    """A model with a context of only 20 positions."""
    return Bench(request.param, replace(SHAPES["plain"], max_seq_len=20))
