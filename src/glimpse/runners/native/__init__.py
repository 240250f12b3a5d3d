"""The runner for CPUs: the decoder as a C++ core; a row is the same bits in any batch."""

from __future__ import annotations

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

    Defaults: a thread per core, KV in float16, activations in int8 for quantised weights. Raises
    ValueError that says why if the core is not there.
    """
    reason = why_unavailable()
    if reason is not None:
        raise ValueError(f"runner native: {reason}")
    if options.device not in (None, "cpu"):
        raise ValueError(f"device={options.device!r}: the native runner has only cpu")
    options.refuse("native", "dtype")
    from glimpse.runners.native.runner import NativeRunner

    return NativeRunner(
        load_config(files),
        stored_tensors(files),
        threads=options.threads,
        kv_dtype=options.kv_dtype or "float16",
        activations=options.activations or "int8",
    )


def describe() -> str:
    reason = why_unavailable()
    if reason is not None:
        return f"not available: {reason}"
    from glimpse.runners.native import _core

    isa, why = _core.choose_isa("auto")
    return f"{isa} ({why}), {torch.get_num_threads()} threads"
