"""Methods that need nothing but the target, for tests on real weights."""

from __future__ import annotations

from typing import Any

import pytest

from glimpse.methods import METHODS, check_runner, needs_draft_model, needs_head
from glimpse.runners import capabilities

COMMON = ("sparsespec-l", "magicdec-snapkv", "ngram")
"""One of each kind; real weights take seconds, so the others are in the slow tier."""


def names(runner: str) -> list[str]:
    """Of those that a runner can run; plain decoding is not among them."""
    return [name for name in METHODS if name != "autoregressive" and _can_run(name, runner)]


def parameters(runner: str) -> list[Any]:
    """The same for ``pytest.mark.parametrize``."""
    return [
        pytest.param(name, marks=() if name in COMMON else pytest.mark.slow)
        for name in names(runner)
    ]


def _can_run(name: str, runner: str) -> bool:
    method = METHODS[name]
    if needs_draft_model(method) or needs_head(method):
        return False
    try:
        check_runner(method, runner, capabilities(runner))
    except ValueError:
        return False
    return True
