"""``glimpse doctor``: the machine, the runners and why, the versions."""

from __future__ import annotations

import os
import platform
from importlib import metadata
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

import glimpse
from glimpse import runners
from glimpse.bench.provenance import processor
from glimpse.cli import options

LIBRARIES = ("torch", "transformers", "tokenizers", "safetensors", "gguf", "numpy")


def doctor(json: options.Json = False) -> None:
    """Show what Glimpse runs on here."""
    facts = _facts()
    if json:
        options.print_json(facts)
        return
    table = Table(show_header=False)
    for section, values in facts.items():
        table.add_row(f"[bold]{section}[/bold]", "")
        for name, value in values.items():
            table.add_row(name, str(value))
    Console().print(table)


def _facts() -> dict[str, dict[str, Any]]:
    return {
        "machine": {
            "system": platform.platform(),
            "processor": processor(),
            "cores": os.cpu_count(),
            "memory_gib": round(
                os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1
            ),
            "gpus": [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())],
        },
        "torch": {
            "threads": torch.get_num_threads(),
            "cpu_capability": torch.backends.cpu.get_cpu_capability(),
            "cuda": torch.version.cuda,
        },
        "runners": {
            **{name: runners.describe(name) for name in runners.names()},
            "auto": runners.choose("auto"),
        },
        "versions": {
            "python": platform.python_version(),
            "glimpse": glimpse.__version__,
            **{name: metadata.version(name) for name in LIBRARIES},
        },
    }
