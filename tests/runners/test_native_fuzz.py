"""Random shapes and lengths on the native runner, and its tests under the sanitizers."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from pathlib import Path

import nanobind
import pytest
import torch

from glimpse.config import ModelConfig
from glimpse.runners.native.runner import NativeRunner
from glimpse.types import GLIMPSE, IndexSpec, RaggedBatch, Segment, Statistics
from tests.conformance.tiny import NaiveDecoder, tiny_tensors

ROOT = Path(__file__).parents[2]
EDGES = (1, 15, 16, 17, 31, 32, 33, 63, 64, 65, 127, 128, 129, 255, 256, 257)
SANITIZED = """
import importlib.util, sys
import glimpse.runners.native
name = "glimpse.runners.native._core"
spec = importlib.util.spec_from_file_location(name, sys.argv[1])
core = importlib.util.module_from_spec(spec)
spec.loader.exec_module(core)
sys.modules[name] = glimpse.runners.native._core = core
import pytest
sys.exit(pytest.main(["-q", "-p", "no:cacheprovider", "-k", sys.argv[2], *sys.argv[3:]]))
"""


def a_config(draw: random.Random) -> ModelConfig:
    num_kv_heads = draw.choice((1, 2, 3))
    return ModelConfig(
        architecture="tiny",
        vocab_size=draw.randrange(5, 70),
        hidden_size=draw.randrange(3, 90),
        intermediate_size=draw.randrange(3, 140),
        num_layers=draw.choice((1, 2)),
        num_query_heads=num_kv_heads * draw.choice((1, 3, 5, 7, 9, 12)),
        num_kv_heads=num_kv_heads,
        head_dim=draw.choice((2, 10, 64, 80, 96, 128, 256)),
        max_seq_len=400,
        has_qkv_bias=draw.random() < 0.5,
        has_qk_norm=draw.random() < 0.5,
        has_tied_embeddings=draw.random() < 0.5,
    )


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(40))
def test_a_random_shape(seed: int) -> None:
    """Close to the oracle; prefill, a few rows and the whole as a glimpse have equal bits."""
    draw = random.Random(seed)
    config = a_config(draw)
    tensors = tiny_tensors(config, seed)
    runner = NativeRunner(
        config, tensors.items(), threads=draw.choice((1, 2, 3)), kv_dtype="float32"
    )
    text = [draw.randrange(config.vocab_size) for _ in range(draw.choice(EDGES) + 3)]
    whole = runner.forward(RaggedBatch([Segment(runner.open(), text, len(text))])).logits
    exact = NaiveDecoder(config, tensors)(text).logits
    assert (whole - exact).abs().max() <= 1e-3 * exact.abs().max()
    handle = runner.open(0, Statistics(8))
    first = text[:-3]
    runner.forward(RaggedBatch([Segment(handle, first, 0)]))
    runner.refresh(handle, IndexSpec(len(text), window=min(8, len(first))))
    drafted = runner.forward(RaggedBatch([Segment(handle, text[-3:], 3)]), GLIMPSE).logits
    verified = runner.forward(RaggedBatch([Segment(handle, text[-3:], 3, True)])).logits
    assert torch.equal(drafted, whole[-3:])
    assert torch.equal(verified, whole[-3:])


@pytest.mark.slow
def test_nothing_for_the_sanitizers_to_find(tmp_path: Path) -> None:
    """The core built with them passes the tests of its parts. Leaks are the interpreter's own."""
    subprocess.run(
        [
            *("cmake", "-S", ROOT, "-B", tmp_path, "-DGLIMPSE_SANITIZE=ON"),
            f"-DPython_EXECUTABLE={sys.executable}",
            f"-Dnanobind_DIR={nanobind.cmake_dir()}",
        ],
        check=True,
    )
    subprocess.run(["cmake", "--build", tmp_path, "--parallel", "2"], check=True)
    libraries = [
        subprocess.check_output(["g++", f"-print-file-name=lib{name}.so"], text=True).strip()
        for name in ("asan", "ubsan")
    ]
    (core,) = tmp_path.glob("_core*.so")
    environment = {
        **os.environ,
        "LD_PRELOAD": ":".join(libraries),
        "ASAN_OPTIONS": "detect_leaks=0",
        "OMP_NUM_THREADS": "1",
    }
    tests = [f"tests/runners/test_native_{part}.py" for part in ("linear", "attention", "glimpse")]
    command = [sys.executable, "-c", SANITIZED, core, "native and not accurate", *tests]
    subprocess.run(
        [*command, "tests/runners/test_native_runner.py", "tests/conformance"],
        check=True,
        cwd=ROOT,
        env=environment,
    )
