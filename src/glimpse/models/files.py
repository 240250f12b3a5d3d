"""From what a user names to the files of a model: alias, folder, .gguf file or hub id."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from glimpse.models.errors import ModelError, read_json
from glimpse.models.fetch import ALIASES, fetch
from glimpse.types import Progress

if TYPE_CHECKING:
    from glimpse.models.gguf_file import GGUFFile

_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*(@[\w./-]+)?")
_SINGLE = "model.safetensors"
_INDEX = "model.safetensors.index.json"
_HUB_PATTERNS = [
    "config.json",
    "generation_config.json",
    _SINGLE,
    "model-*.safetensors",
    _INDEX,
    "tokenizer*",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.*",
    "merges.txt",
    "chat_template*",
]


@dataclass(frozen=True)
class ModelFiles:
    """A model on disk: the handle that everything else here reads from."""

    name: str
    """As the user gave it."""
    folder: Path
    format: Literal["safetensors", "gguf"]
    weights: tuple[Path, ...]
    """The safetensors files, or the one GGUF file."""

    @cached_property
    def gguf(self) -> GGUFFile:
        """The parsed header of the GGUF file. Raises ModelError if it is not readable."""
        from glimpse.models.gguf_file import GGUFFile

        return GGUFFile(self.weights[0])


def resolve(model: str, *, progress: Progress | None = None) -> ModelFiles:
    """The files of ``model``, fetched if need be.

    ``model`` is a built-in alias, a folder in the hub's layout, a ``.gguf`` file or a hub id
    ``org/name[@revision]``. ``progress`` counts the bytes of a built-in model's download; the hub's
    client shows its own. Raises ModelError.
    """
    if model in ALIASES:
        path = fetch(model, progress)
        return ModelFiles(model, path.parent, "gguf", (path,))
    path = Path(model).expanduser()
    if path.is_dir():
        return _folder(model, path)
    if path.is_file():
        return _file(model, path)
    if _HUB_ID.fullmatch(model) and path.suffix != ".gguf":
        return _folder(model, _snapshot(model))
    raise ModelError(f"model {model!r}: no such file or folder; {_valid()}")


def _valid() -> str:
    aliases = ", ".join(ALIASES)
    return f"valid: {aliases}, a model folder, a .gguf file or a hub id org/name[@revision]"


def _file(model: str, path: Path) -> ModelFiles:
    if path.suffix != ".gguf":
        raise ModelError(
            f"model {model!r} is a {path.suffix or 'plain'} file; valid: a .gguf file, or the"
            " folder that holds config.json and the safetensors files"
        )
    return ModelFiles(model, path.parent, "gguf", (path,))


def _folder(model: str, folder: Path) -> ModelFiles:
    """Check that a folder in the hub's layout is complete."""
    if not (folder / "config.json").is_file():
        inside = sorted(path.name for path in folder.glob("*.gguf"))
        hint = f"; name the GGUF file in it: {folder / inside[0]}" if inside else ""
        raise ModelError(f"model {model!r}: no config.json in {folder}{hint}")
    names = [_SINGLE]
    if not (folder / _SINGLE).is_file() and (folder / _INDEX).is_file():
        names = _shards(folder / _INDEX)
    missing = [name for name in names if not (folder / name).is_file()]
    if missing:
        raise ModelError(f"model {model!r}: {missing[0]} is missing in {folder}")
    return ModelFiles(model, folder, "safetensors", tuple(folder / name for name in names))


def _shards(index: Path) -> list[str]:
    weight_map = read_json(index).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise ModelError(f"cannot read {index}: it has no weight_map")
    return sorted(set(map(str, weight_map.values())))


def _snapshot(model: str) -> Path:
    """A hub model's folder in the hub's own cache; an interrupted download resumes."""
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import LocalEntryNotFoundError

    repo_id, _, revision = model.partition("@")
    try:
        folder = snapshot_download(repo_id, revision=revision or None, allow_patterns=_HUB_PATTERNS)
    except LocalEntryNotFoundError as error:
        raise ModelError(
            f"model {model!r}: no such file or folder, not in the hub's cache, and the hub cannot"
            f" be reached; {_valid()}"
        ) from error
    except Exception as error:  # the client lets errors of several libraries through
        raise ModelError(f"model {model!r}: cannot fetch it from the hub: {error}") from error
    return Path(folder)
