"""Where a result comes from: written beside every raw figure."""

from __future__ import annotations

import json
import platform
import subprocess
import sys
from collections.abc import Iterable
from datetime import UTC, datetime
from importlib import metadata
from itertools import chain
from pathlib import Path
from typing import Any

import torch

LIBRARIES = ("torch", "transformers", "numpy")
CODE = (":/", ":(exclude,top)benchmarks/results")


def provenance() -> dict[str, Any]:
    """Commit, versions, processor, threads, command line and time of this run."""
    return {
        "command": " ".join(["glimpse", *sys.argv[1:]]),
        "commit": _git("rev-parse", "HEAD"),
        # Results are what a run writes: one of them changed says nothing about the code.
        "is_dirty": bool(_git("status", "--porcelain", "--untracked-files=no", "--", *CODE)),
        "time": datetime.now(UTC).isoformat(timespec="seconds"),
        "python": platform.python_version(),
        "libraries": {name: metadata.version(name) for name in LIBRARIES},
        "processor": processor(),
        "threads": torch.get_num_threads(),
        "gpus": [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())],
    }


def processor() -> str:
    """The processor's own name, which ``platform`` does not give on Linux."""
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as lines:
            names = [line.partition(":")[2].strip() for line in lines if "model name" in line]
    except OSError:
        names = []
    return names[0] if names else platform.processor() or platform.machine()


def write_jsonl(path: Path, records: Iterable[dict[str, Any]]) -> None:
    """Write a result: provenance on the first line, then each record as it comes.

    Where ``records`` raises, Ctrl-C included, the file has those that came before.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", encoding="utf-8") as file:
        for record in chain([{"provenance": provenance()}], records):
            file.write(json.dumps(record) + "\n")
            file.flush()


def _git(*arguments: str) -> str | None:
    try:
        done = subprocess.run(["git", *arguments], capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return None
    return done.stdout.strip()
