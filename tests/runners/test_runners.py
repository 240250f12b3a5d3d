"""Runners by name: what is there, what can be asked before loading, what is refused."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from glimpse import runners
from glimpse.config import RunnerOptions
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
    with pytest.raises(
        ValueError, match=r"unknown runner 'tensorflow'; valid: auto, native, torch"
    ):
        ask("tensorflow")


@pytest.mark.parametrize("name", ["auto", "native", "torch"])
def test_loads_a_folder(tiny_checkpoint: Callable[..., Path], name: str) -> None:
    files = resolve(str(tiny_checkpoint("llama")))
    runner = runners.load_runner(name, files, RunnerOptions(device="cpu"))
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
        ({"threads": 0}, "threads=0: must be at least 1"),
        ({"kv_dtype": "int8"}, "kv_dtype='int8': the torch runner has no such option"),
    ],
)
def test_places_that_cannot_be_had(
    tiny_checkpoint: Callable[..., Path], options: dict[str, str], message: str
) -> None:
    files = resolve(str(tiny_checkpoint("llama")))
    with pytest.raises(ValueError, match=message):
        runners.load_runner("torch", files, RunnerOptions(**options))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"device": "cuda"}, "device='cuda': the native runner has only cpu"),
        ({"dtype": "float32"}, "dtype='float32': the native runner has no such option"),
        ({"threads": 0}, "threads=0: must be at least 1"),
        ({"kv_dtype": "int4"}, "kv_dtype='int4': must be one of float32, float16, int16, int8"),
        ({"activations": "int4"}, "activations='int4': must be one of float32, int8"),
    ],
)
def test_what_the_native_runner_refuses(
    tiny_checkpoint: Callable[..., Path], options: dict[str, Any], message: str
) -> None:
    files = resolve(str(tiny_checkpoint("llama")))
    with pytest.raises(ValueError, match=message):
        runners.load_runner("native", files, RunnerOptions(**options))


def test_without_its_core_native_says_why_and_auto_takes_torch(
    tiny_checkpoint: Callable[..., Path],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setitem(sys.modules, "glimpse.runners.native._core", None)
    monkeypatch.delattr(runners.native, "_core", raising=False)
    files = resolve(str(tiny_checkpoint("llama")))
    with pytest.raises(ValueError, match="runner native: the native core cannot be loaded"):
        runners.load_runner("native", files)
    assert "not available" in runners.describe("native")
    assert runners.choose("auto", RunnerOptions(device="cpu")) == "torch"
    assert [record.getMessage().split(" (")[0] for record in caplog.records] == [
        "runner auto takes torch: the native core cannot be loaded"
    ]


@pytest.mark.parametrize("options", [{"device": "cuda"}, {"device": "cpu", "dtype": "bfloat16"}])
def test_auto_takes_torch_for_what_native_has_not(options: dict[str, str]) -> None:
    assert runners.choose("auto", RunnerOptions(**options)) == "torch"
