"""The one exception for everything that is wrong with a model, and a JSON reader that raises it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any


class ModelError(ValueError):
    """A model that cannot be found, fetched, read or run, in one line."""

    def __init__(self, message: str) -> None:
        # Reasons quoted from other libraries may span lines.
        super().__init__(" ".join(message.split()))


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object from a model's folder."""
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ModelError(f"cannot read {path}: {error}") from error
    if not isinstance(value, dict):
        raise ModelError(f"cannot read {path}: it holds a {type(value).__name__}, not an object")
    return value
