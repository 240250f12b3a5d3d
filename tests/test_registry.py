"""Plugins by name: building, options, and errors that list what is valid."""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar, Literal

import pytest

from glimpse.registry import Registry, parse_spec


@dataclass
class Plugin:
    kind: ClassVar[str] = "test"
    budget: float = 0.1
    window: int = 16
    is_fast: bool = False
    mode: Literal["paper", "online"] = "online"
    name: str | None = None
    state: int = field(default=0, init=False)

    def __post_init__(self) -> None:
        if not 0 < self.budget <= 1:
            raise ValueError(f"budget={self.budget}: must be above 0 and at most 1")


@pytest.fixture
def registry() -> Registry[Plugin]:
    registry: Registry[Plugin] = Registry("selection")
    registry.register(Plugin, "plugin")
    return registry


def test_a_name_alone_builds_the_defaults(registry: Registry[Plugin]) -> None:
    assert registry.build("plugin") == Plugin()


def test_options_are_parsed_to_their_types(registry: Registry[Plugin]) -> None:
    spec = "plugin: budget=0.25 ,window=8,is_fast=true,mode=paper,name=x"
    built = registry.build(spec)
    assert built == Plugin(budget=0.25, window=8, is_fast=True, mode="paper", name="x")
    assert type(built.window) is int


def test_overrides_win(registry: Registry[Plugin]) -> None:
    assert registry.build("plugin:budget=0.2,window=8", budget=0.5) == Plugin(0.5, 8)


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("plugins", "unknown selection 'plugins'; valid: plugin"),
        ("", "unknown selection ''; valid: plugin"),
        ("plugin:size=3", "'plugin' has no option 'size'; valid: budget, window, is_fast, mode"),
        ("plugin:state=3", "has no option 'state'"),
        ("plugin:kind=x", "has no option 'kind'"),
        ("plugin:window=few", "window='few': Input should be a valid integer"),
        ("plugin:window=0.5", "window='0.5': Input should be a valid integer"),
        ("plugin:is_fast=2", "is_fast='2'"),
        ("plugin:mode=other", "mode='other': Input should be 'paper' or 'online'"),
        ("plugin:budget", "option 'budget' in 'plugin:budget' is not of the form key=value"),
        ("plugin:budget=0.1,budget=0.2", "option 'budget' is given twice"),
        ("plugin:budget=2", r"budget=2.0: must be above 0"),
        ("plugin:budget=nan", r"budget=nan: must be above 0"),
    ],
)
def test_errors_name_the_value_and_what_is_valid(
    registry: Registry[Plugin], spec: str, message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        registry.build(spec)


def test_an_unknown_override_is_an_error_too(registry: Registry[Plugin]) -> None:
    with pytest.raises(ValueError, match="has no option 'size'"):
        registry.build("plugin", size=3)


def test_options_and_names(registry: Registry[Plugin]) -> None:
    assert registry.names() == ["plugin"]
    assert registry.options("plugin") == {
        "budget": 0.1,
        "window": 16,
        "is_fast": False,
        "mode": "online",
        "name": None,
    }


def test_the_default_name_is_that_of_the_file() -> None:
    registry: Registry[Plugin] = Registry("selection")
    assert registry.register(Plugin) is Plugin
    assert registry.names() == [__name__.rpartition(".")[2]]


def test_a_name_can_be_taken_once(registry: Registry[Plugin]) -> None:
    @dataclass
    class Other(Plugin):
        pass

    registry.register(Plugin, "plugin")
    with pytest.raises(ValueError, match="selection 'plugin' is taken by Plugin"):
        registry.register(Other, "plugin")


def test_discovery_imports_every_module_of_a_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "found_plugins"
    package.mkdir()
    (package / "__init__.py").write_text(
        "from glimpse.registry import Registry\nitems = Registry('item')\n"
    )
    code = "from dataclasses import dataclass\nfrom found_plugins import items\n"
    for name in ("one", "two"):
        (package / f"{name}.py").write_text(
            f"{code}@items.register\n@dataclass\nclass A:\n    x: int = 1\n"
        )
    monkeypatch.syspath_prepend(tmp_path)
    import found_plugins

    found_plugins.items.discover("found_plugins")
    found_plugins.items.discover("found_plugins")
    assert found_plugins.items.names() == ["one", "two"]
    for name in [name for name in sys.modules if name.startswith("found_plugins")]:
        del sys.modules[name]


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        ("a", ("a", {})),
        ("a:", ("a", {})),
        ("a:x=1", ("a", {"x": "1"})),
        (" a : x = 1 , y = b=c ,", ("a", {"x": "1", "y": "b=c"})),
    ],
)
def test_parse_spec(spec: str, expected: tuple[str, dict[str, str]]) -> None:
    assert parse_spec(spec) == expected
