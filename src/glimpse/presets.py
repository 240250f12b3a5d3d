"""Models and machines that can be planned for by name; figures are published specifications.

Models: the ``config.json`` that each publisher ships (HuggingFaceTB, Qwen, Meta). Contexts of
Qwen2.5-7B and 14B are the extended ones of their model cards. Machines: NVIDIA's data sheets,
memory bandwidth and dense bf16 tensor throughput (no sparsity, fp32 accumulation), boost clocks.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable

import torch

from glimpse.config import ModelConfig
from glimpse.efficiency import Machine

BYTES_PER_ELEMENT = {
    "f32": 4.0,
    "bf16": 2.0,
    "f16": 2.0,
    "int8": 1.0,
    "q8_0": 34 / 32,
    "q4_1": 20 / 32,
    "q4_0": 18 / 32,
    "int4": 0.5,
}
"""GGUF types hold blocks of 32 with their scales."""


def _model(
    architecture: str,
    vocab_size: int,
    hidden_size: int,
    intermediate_size: int,
    num_layers: int,
    heads: tuple[int, int],
    head_dim: int,
    max_seq_len: int,
    has_tied_embeddings: bool,
) -> ModelConfig:
    return ModelConfig(
        architecture=architecture,
        vocab_size=vocab_size,
        hidden_size=hidden_size,
        intermediate_size=intermediate_size,
        num_layers=num_layers,
        num_query_heads=heads[0],
        num_kv_heads=heads[1],
        head_dim=head_dim,
        max_seq_len=max_seq_len,
        has_tied_embeddings=has_tied_embeddings,
    )


MODELS = {
    "smollm2-135m": _model("llama", 49152, 576, 1536, 30, (9, 3), 64, 8192, True),
    "qwen2.5-0.5b": _model("qwen2", 151936, 896, 4864, 24, (14, 2), 64, 32768, True),
    "qwen2.5-1.5b": _model("qwen2", 151936, 1536, 8960, 28, (12, 2), 128, 32768, True),
    "qwen2.5-7b": _model("qwen2", 152064, 3584, 18944, 28, (28, 4), 128, 131072, False),
    "qwen2.5-14b": _model("qwen2", 152064, 5120, 13824, 48, (40, 8), 128, 131072, False),
    "llama-3.2-3b": _model("llama", 128256, 3072, 8192, 28, (24, 8), 128, 131072, True),
    "llama-3.1-8b": _model("llama", 128256, 4096, 14336, 32, (32, 8), 128, 131072, False),
}

MACHINES = {
    machine.name: machine
    for machine in (
        Machine("a40", bandwidth=696e9, flops=149.7e12, memory=48e9),
        Machine("a100-80gb", bandwidth=2039e9, flops=312e12, memory=80e9),
        Machine("h100", bandwidth=3.35e12, flops=989.4e12, memory=80e9),
        Machine("h200", bandwidth=4.8e12, flops=989.4e12, memory=141e9),
        Machine("rtx-4090", bandwidth=1008e9, flops=165.2e12, memory=24e9),
    )
}
THIS = "this"


def model_config(name: str) -> ModelConfig:
    """The shape of a model. ValueError lists the names."""
    if name not in MODELS:
        raise ValueError(f"unknown model {name!r}; valid: {', '.join(MODELS)}")
    return MODELS[name]


def machine(name: str, progress: Callable[[str], None] = lambda _: None) -> Machine:
    """A machine by name; ``this`` is measured now (about a second). ValueError lists the names."""
    if name == THIS:
        progress("measuring this machine: memory bandwidth and fp32 matrix products")
        return measure()
    if name not in MACHINES:
        raise ValueError(f"unknown machine {name!r}; valid: {', '.join(MACHINES)}, {THIS}")
    return MACHINES[name]


def precision(name: str) -> float:
    """Bytes per element of a precision. ValueError lists the names."""
    if name not in BYTES_PER_ELEMENT:
        raise ValueError(f"unknown precision {name!r}; valid: {', '.join(BYTES_PER_ELEMENT)}")
    return BYTES_PER_ELEMENT[name]


def measure(megabytes: int = 256, size: int = 1024) -> Machine:
    """This CPU: the best of a few reads of a buffer too large for caches, and of a few sgemms."""
    buffer = torch.ones(megabytes * 2**20 // 4)
    left, right = torch.ones(size, size), torch.ones(size, size)
    read = _fastest(lambda: buffer.sum())
    product = _fastest(lambda: left @ right)
    return Machine(
        THIS,
        bandwidth=buffer.nbytes / read,
        flops=2 * size**3 / product,
        memory=float(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")),
    )


def _fastest(work: Callable[[], object], repeats: int = 8) -> float:
    times = []
    for _ in range(repeats):
        started = time.perf_counter()
        work()
        times.append(time.perf_counter() - started)
    return min(times)
