"""The runner for CPUs: the decoder as a C++ core; a row is the same bits in any batch."""

from __future__ import annotations

import os

import torch

from glimpse.config import RunnerOptions
from glimpse.models import ModelFiles, load_config, stored_tensors
from glimpse.runners.native.capabilities import CAPABILITIES
from glimpse.types import Runner

__all__ = ["CAPABILITIES", "describe", "load", "why_unavailable"]


def why_unavailable() -> str | None:
    """Why the compiled core cannot be used, in one line; None if it can."""
    try:
        from glimpse.runners.native import _core  # noqa: F401
    except ImportError as error:
        return f"the native core cannot be loaded ({str(error).splitlines()[0]})"
    return None


def load(files: ModelFiles, options: RunnerOptions) -> Runner:
    """Read a model, its weights as they are stored.

    Defaults: a thread per core, KV in int16, activations in int8 for quantised weights. From here
    on torch itself uses one thread in this process. Raises ValueError that says why if the core is
    not there.
    """
    reason = why_unavailable()
    if reason is not None:
        raise ValueError(f"runner native: {reason}")
    if options.device not in (None, "cpu"):
        raise ValueError(f"device={options.device!r}: the native runner has only cpu")
    options.refuse("native", "dtype")
    from glimpse.runners.native.runner import NativeRunner

    # torch does small work between passes. After each piece of it a second thread of its own would
    # spin for milliseconds on a core that the next pass needs: plain decoding was 1.45x slower.
    torch.set_num_threads(1)
    return NativeRunner(
        load_config(files),
        stored_tensors(files),
        threads=default_threads() if options.threads is None else options.threads,
        kv_dtype=options.kv_dtype or "int16",
        activations=options.activations or "int8",
    )


def describe() -> str:
    reason = why_unavailable()
    if reason is not None:
        return f"not available: {reason}"
    from glimpse.runners.native import _core

    isa, why = _core.choose_isa("auto")
    return f"{isa} ({why}), {default_threads()} threads"


def default_threads() -> int:
    """One for each core that this process may use."""
    return len(os.sched_getaffinity(0))
