"""Logits of the torch runner against transformers, family by family and rope by rope."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import AutoModelForCausalLM

from glimpse.config import RunnerOptions
from glimpse.models import ModelFiles, resolve
from glimpse.runners import load_runner
from glimpse.types import RaggedBatch, Runner, Segment

TOLERANCE = 1e-3
"""Of the largest logit."""
NUM_TOKENS = 150


def logits(runner: Runner, token_ids: list[int], chunk: int) -> Tensor:
    handle = runner.open()
    chunks = [token_ids[i : i + chunk] for i in range(0, len(token_ids), chunk)]
    rows = [runner.forward(RaggedBatch([Segment(handle, ids, len(ids))])).logits for ids in chunks]
    runner.close(handle)
    return torch.cat(rows)


def random_ids(vocab_size: int, num_tokens: int = NUM_TOKENS) -> list[int]:
    generator = torch.Generator().manual_seed(0)
    ids: list[int] = torch.randint(vocab_size, (num_tokens,), generator=generator).tolist()
    return ids


def check(model: Any, runner: Runner, token_ids: list[int]) -> None:
    with torch.inference_mode():
        expected = model(torch.tensor([token_ids])).logits[0]
    for chunk in (len(token_ids), 64, 7):
        difference = (logits(runner, token_ids, chunk) - expected).abs().max()
        assert difference <= TOLERANCE * expected.abs().max()


def check_folder(folder: Path) -> None:
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    runner = load_runner("torch", resolve(str(folder)), RunnerOptions(device="cpu"))
    check(model, runner, random_ids(runner.config.vocab_size))


@pytest.mark.parametrize("rope", ["default", "linear", "llama3", "yarn"])
@pytest.mark.parametrize("family", ["llama", "mistral", "qwen2", "qwen3"])
def test_families_and_ropes(tiny_checkpoint: Callable[..., Path], family: str, rope: str) -> None:
    check_folder(tiny_checkpoint(family, rope=rope))


@pytest.mark.parametrize(
    ("family", "overrides"),
    [
        ("llama", {"tie_word_embeddings": True}),
        ("llama", {"attention_bias": True, "mlp_bias": True}),
        ("llama", {"num_attention_heads": 8, "num_key_value_heads": 1, "head_dim": 6}),
        ("llama", {"num_key_value_heads": 4, "rms_norm_eps": 0.5}),
        ("qwen2", {"tie_word_embeddings": True}),
        ("qwen3", {"tie_word_embeddings": True, "attention_bias": True, "head_dim": 10}),
    ],
)
def test_options(
    tiny_checkpoint: Callable[..., Path], family: str, overrides: dict[str, Any]
) -> None:
    check_folder(tiny_checkpoint(family, **overrides))


@pytest.mark.parametrize(
    "yarn",
    [
        {"attention_factor": 0.7},
        {"mscale": 0.8, "mscale_all_dim": 0.5},
        {"beta_fast": 16, "beta_slow": 2, "truncate": False},
        {"factor": 1.0},
    ],
)
def test_yarn_parameters(tiny_checkpoint: Callable[..., Path], yarn: dict[str, Any]) -> None:
    parameters = {
        "rope_type": "yarn",
        "rope_theta": 5000.0,
        "factor": 4.0,
        "original_max_position_embeddings": 64,
        **yarn,
    }
    check_folder(tiny_checkpoint("llama", rope_parameters=parameters, head_dim=16))


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_lower_precision_stays_close(tiny_checkpoint: Callable[..., Path], dtype: str) -> None:
    files = resolve(str(tiny_checkpoint("qwen3")))
    exact = load_runner("torch", files, RunnerOptions(device="cpu", dtype="float64"))
    lower = load_runner("torch", files, RunnerOptions(device="cpu", dtype=dtype))
    token_ids = random_ids(exact.config.vocab_size)
    expected = logits(exact, token_ids, 64)
    for chunk in (64, 7):
        found = logits(lower, token_ids, chunk)
        assert found.dtype == torch.float32
        assert (found - expected).abs().mean() <= 0.02 * expected.abs().mean()


def test_smollm2(smollm2_files: ModelFiles, smollm2_reference: Any) -> None:
    runner = load_runner("torch", smollm2_files, RunnerOptions(device="cpu"))
    check(smollm2_reference, runner, random_ids(runner.config.vocab_size, 120))
