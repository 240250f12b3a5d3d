"""What the machine allows: read bandwidth, bytes of a plain token, and speeds measured by them."""

from __future__ import annotations

import time

import torch

from glimpse.config import ModelConfig
from glimpse.models import ModelFiles

KV_BYTES = 2
"""Per element: the yardstick counts the KV in float16 whatever an engine keeps it in."""
BANDWIDTH_METHOD = "torch.sum of 1 GiB of float32"
"""The fastest of: sums and maxima in torch and numpy, float32 and int64, all with all threads."""


def read_bandwidth(threads: int, num_bytes: int = 2**30, repeats: int = 6) -> float:
    """Bytes per second of reading a buffer beyond all caches, the best of a few times."""
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        # Written, not only reserved: untouched pages would all be the one page of zeros.
        buffer = torch.ones(num_bytes // 4)
        return buffer.nbytes / min(_seconds(buffer) for _ in range(repeats))
    finally:
        torch.set_num_threads(before)


def _seconds(buffer: torch.Tensor) -> float:
    started = time.perf_counter()
    buffer.sum()
    return time.perf_counter() - started


def weight_bytes(files: ModelFiles, config: ModelConfig) -> int:
    """Bytes of the GGUF file's weights that every pass reads: not an untied input embedding."""
    unread = set() if config.has_tied_embeddings else {"token_embd.weight"}
    tensors = files.gguf.tensors.items()
    return sum(int(tensor.n_bytes) for name, tensor in tensors if name not in unread)


def kv_bytes_per_token(config: ModelConfig) -> int:
    return 2 * config.num_layers * config.num_kv_heads * config.head_dim * KV_BYTES


def limit_ratio(tokens_per_s: float, token_bytes: float, bandwidth: float) -> float:
    """Speed over that of reading a plain token's bytes once; of plain decoding this is its mbu."""
    return tokens_per_s * token_bytes / bandwidth
