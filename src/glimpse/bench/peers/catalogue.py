"""The rows of ``glimpse bench peers``: each engine with each setting; imports none of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module, metadata
from typing import Any

from glimpse.bench.peers import Peer
from glimpse.models import ModelFiles

OWN = "own"


@dataclass(frozen=True)
class Setup:
    """What every engine is given: the model, threads, and the longest prompt with its answer."""

    files: ModelFiles
    threads: int
    max_length: int
    keeps_prefix: bool = False
    """Whether what was read stays for a next prompt that begins alike, in the engine's own way."""


@dataclass(frozen=True)
class Row:
    """An engine (a module of this package with ``load``) and the options of its ``load``."""

    name: str
    engine: str
    distributions: tuple[str, ...]
    """What pip has to install."""
    options: Mapping[str, Any] = field(default_factory=dict)
    is_speculative: bool = False

    @property
    def is_own(self) -> bool:
        return self.engine == OWN

    @property
    def can_keep_prefix(self) -> bool:
        return self.engine != "transformers"

    @property
    def how_to_install(self) -> str | None:
        """The command that is missing, None if nothing is."""
        missing = [name for name in self.distributions if not _is_installed(name)]
        return f"pip install {' '.join(missing)}" if missing else None


_HUGGING_FACE = ("transformers", ("transformers", "accelerate"))
_LLAMA = ("xllamacpp", ("xllamacpp",))
_LLAMA_SOURCE = ("llama_cpp", ("llama-cpp-python",))
_OPENVINO = ("openvino", ("openvino-genai",))
_Q8 = {"has_flash": True, "kv_type": "q8_0"}

PEERS = (
    Row("transformers plain", *_HUGGING_FACE),
    Row("transformers lookup", *_HUGGING_FACE, {"lookup": 10}, is_speculative=True),
    Row("xllamacpp plain", *_LLAMA),
    Row("xllamacpp flash", *_LLAMA, {"has_flash": True}),
    Row("xllamacpp flash q8", *_LLAMA, _Q8),
    Row("xllamacpp ngram-simple", *_LLAMA, {"speculation": "ngram_simple"}, is_speculative=True),
    Row("xllamacpp ngram-cache", *_LLAMA, {"speculation": "ngram_cache"}, is_speculative=True),
    Row("llama-cpp plain", *_LLAMA_SOURCE),
    Row("llama-cpp flash", *_LLAMA_SOURCE, {"has_flash": True}),
    Row("llama-cpp flash q8", *_LLAMA_SOURCE, _Q8),
    # Its documentation advises two tokens on a CPU.
    Row("llama-cpp lookup", *_LLAMA_SOURCE, {"lookup": 2}, is_speculative=True),
    Row("openvino plain", *_OPENVINO),
    Row("openvino lookup", *_OPENVINO, {"lookup": 5}, is_speculative=True),
)


def own_rows(runner: str) -> tuple[Row, ...]:
    """Plain decoding and SparseSpec-L on one of our runners."""
    return tuple(
        Row(
            f"glimpse {name}",
            OWN,
            ("glimpse-llm",),
            {"runner": runner, "method": method},
            is_speculative=method != "autoregressive",
        )
        for name, method in (("plain", "autoregressive"), ("sparsespec-l", "sparsespec-l"))
    )


def chosen(names: Sequence[str]) -> tuple[Row, ...]:
    """Rows by name or by engine; all if none is named. ValueError lists what there is."""
    valid = {row.name for row in PEERS} | {row.engine for row in PEERS}
    if unknown := sorted(set(names) - valid):
        raise ValueError(f"unknown peer {unknown[0]!r}; valid: {', '.join(sorted(valid))}")
    return tuple(row for row in PEERS if not names or {row.name, row.engine} & set(names))


def load(row: Row, setup: Setup) -> Peer:
    """Import the engine of a row and load the model into it."""
    module = import_module(f"glimpse.bench.peers.{row.engine}")
    peer: Peer = module.load(setup, **row.options)
    return peer


def _is_installed(distribution: str) -> bool:
    try:
        metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return False
    return True
