"""Imports point downward only, and heavy libraries stay in their rooms."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[1] / "src" / "glimpse"

LAYERS = (
    {"config", "registry", "stats", "index"},
    {"types"},
    {"efficiency", "sampling", "stopping"},
    {"acceptance", "costs", "prefill", "presets"},
    {"selection", "drafters", "controllers"},
    {"methods"},
    {"prefix"},
    {"engine"},
    {"llm"},
    {"bench", "serving"},
    {"cli"},
    {"__main__"},
)
RANK = {name: rank for rank, names in enumerate(LAYERS) for name in names}
BESIDE = {
    "models": {"config", "models", "types"},
    "runners": {"config", "models", "types", "runners"},
}
ROOMS = {
    "transformers": ("runners/transformers", "models", "bench/peers"),
    "triton": ("runners/torch/kernels",),
    "fastapi": ("serving",),
    "ray": ("serving",),
    "matplotlib": ("bench/figures.py",),
    "llama_cpp": ("bench/peers",),
    "openvino": ("bench/peers",),
    "openvino_genai": ("bench/peers",),
    "xllamacpp": ("bench/peers",),
}

MODULES = sorted(path.relative_to(SOURCE) for path in SOURCE.rglob("*.py"))


def imports(path: Path) -> set[str]:
    """Full names of the modules a file imports, wherever in the file."""
    found = set()
    for node in ast.walk(ast.parse((SOURCE / path).read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found.add(node.module)
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
    return found


def part(path: Path) -> str:
    return path.parts[0].removesuffix(".py")


@pytest.mark.parametrize("path", MODULES, ids=str)
def test_imports_point_downward(path: Path) -> None:
    own = part(path)
    if own == "__init__":
        return
    names = (name.split(".") for name in imports(path) if name.startswith("glimpse."))
    targets = {name[1] for name in names} - {"__version__"}
    if own in BESIDE:
        assert targets <= BESIDE[own]
        return
    allowed = {name for name, rank in RANK.items() if rank < RANK[own]} | {own}
    if RANK[own] > RANK["engine"]:
        allowed |= {"models", "runners"}
    assert targets <= allowed


@pytest.mark.parametrize("path", MODULES, ids=str)
def test_heavy_libraries_stay_in_their_rooms(path: Path) -> None:
    for name in imports(path):
        rooms = ROOMS.get(name.split(".")[0], ("",))
        assert str(path).startswith(rooms), f"{name} belongs in {rooms}"
