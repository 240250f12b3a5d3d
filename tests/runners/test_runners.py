"""Runners by name: what is there, what can be asked before loading, what is refused."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from glimpse import runners
from glimpse.models import resolve
from glimpse.types import RaggedBatch, Segment


def test_auto_is_one_of_the_names() -> None:
    assert runners.choose("auto") in runners.names()
    assert runners.choose("torch") == "torch"


def test_capabilities_and_description_need_no_model() -> None:
    for name in runners.names():
        assert "dense" in runners.capabilities(name).views
        assert runners.describe(name)


@pytest.mark.parametrize("ask", [runners.choose, runners.capabilities, runners.describe])
def test_an_unknown_name_lists_the_valid_ones(ask: Callable[[str], object]) -> None:
    with pytest.raises(ValueError, match=r"unknown runner 'tensorflow'; valid: auto, torch"):
        ask("tensorflow")


@pytest.mark.parametrize("name", ["auto", "torch"])
def test_loads_a_folder(tiny_checkpoint: Callable[..., Path], name: str) -> None:
    runner = runners.load_runner(name, resolve(str(tiny_checkpoint("llama"))), device="cpu")
    assert runner.capabilities == runners.capabilities(runner.name)
    handle = runner.open()
    logits = runner.forward(RaggedBatch([Segment(handle, [1, 2, 3])])).logits
    assert logits.shape == (1, runner.config.vocab_size)
    assert logits.dtype == torch.float32


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"device": "tpu"}, "device='tpu': must be one of cpu"),
        ({"device": "cuda:99"}, "device='cuda:99'"),
        ({"device": "cpu", "dtype": "int8"}, "dtype='int8': must be one of float32, bfloat16"),
        ({"device": "cpu", "dtype": torch.int64}, "dtype=torch.int64"),
    ],
)
def test_places_that_cannot_be_had(
    tiny_checkpoint: Callable[..., Path], options: dict[str, str], message: str
) -> None:
    files = resolve(str(tiny_checkpoint("llama")))
    with pytest.raises(ValueError, match=message):
        runners.load_runner("torch", files, **options)
