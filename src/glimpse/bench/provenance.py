"""Where a result comes from: written beside every raw figure."""

from __future__ import annotations

import json
import platform
import subprocess
import sys
from collections.abc import Iterable
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

import torch

LIBRARIES = ("torch", "transformers", "numpy")


def provenance() -> dict[str, Any]:
    """Commit, versions, processor, threads, command line and time of this run."""
    return {
        "command": " ".join(["glimpse", *sys.argv[1:]]),
        "commit": _git("rev-parse", "HEAD"),
        "is_dirty": bool(_git("status", "--porcelain", "--untracked-files=no")),
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
    """Write a result: provenance on the first line, one record on each of the others."""
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = [json.dumps(record) for record in ({"provenance": provenance()}, *records)]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")


def _git(*arguments: str) -> str | None:
    try:
        done = subprocess.run(["git", *arguments], capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return None
    return done.stdout.strip()
