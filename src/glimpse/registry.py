"""A registry of plugin classes: one file, one name, built from ``"name:key=value,..."``."""

from __future__ import annotations

import dataclasses
import importlib
import pkgutil
from typing import Any, Generic, TypeVar, get_type_hints

from pydantic import TypeAdapter, ValidationError

PluginT = TypeVar("PluginT")


class Registry(Generic[PluginT]):
    """Plugin classes of one kind, keyed by the name of the file that defines them."""

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self._classes: dict[str, type[PluginT]] = {}

    def register(self, cls: type[PluginT], name: str | None = None) -> type[PluginT]:
        """Add a dataclass (usable as a decorator); the default name is that of its module.

        Raises ValueError for a name that is taken.
        """
        name = name or cls.__module__.rpartition(".")[2]
        if self._classes.get(name, cls) is not cls:
            raise ValueError(f"{self.kind} {name!r} is taken by {self._classes[name].__qualname__}")
        self._classes[name] = cls
        return cls

    def discover(self, package: str) -> None:
        """Import every module of ``package`` so that the plugins in it register themselves."""
        for module in pkgutil.iter_modules(importlib.import_module(package).__path__):
            importlib.import_module(f"{package}.{module.name}")

    def names(self) -> list[str]:
        return sorted(self._classes)

    def get(self, name: str) -> type[PluginT]:
        if name not in self._classes:
            raise ValueError(f"unknown {self.kind} {name!r}; valid: {', '.join(self.names())}")
        return self._classes[name]

    def options(self, name: str) -> dict[str, Any]:
        """The hyper-parameters of a plugin and their defaults."""
        return {field.name: field.default for field in _fields(self.get(name))}

    def build(self, spec: str, **overrides: Any) -> PluginT:
        """Build a plugin from ``"name"`` or ``"name:key=value,..."``; ``overrides`` win.

        Raises ValueError for an unknown name, an unknown key or a value of the wrong type.
        """
        name, options = parse_spec(spec)
        cls = self.get(name)
        hints = get_type_hints(cls)
        valid = [field.name for field in _fields(cls)]
        values: dict[str, Any] = {}
        for key, value in {**options, **overrides}.items():
            if key not in valid:
                listed = ", ".join(valid) or "none"
                raise ValueError(f"{self.kind} {name!r} has no option {key!r}; valid: {listed}")
            try:
                values[key] = TypeAdapter(hints[key]).validate_python(value)
            except ValidationError as error:
                reason = error.errors()[0]["msg"]
                raise ValueError(f"{self.kind} {name!r}: {key}={value!r}: {reason}") from None
        return cls(**values)


def parse_spec(spec: str) -> tuple[str, dict[str, str]]:
    """Split ``"name:key=value,..."`` into the name and its options."""
    name, _, tail = spec.partition(":")
    options: dict[str, str] = {}
    for item in filter(None, tail.split(",")):
        key, equals, value = item.partition("=")
        if not equals:
            raise ValueError(f"option {item!r} in {spec!r} is not of the form key=value")
        if key.strip() in options:
            raise ValueError(f"option {key.strip()!r} is given twice in {spec!r}")
        options[key.strip()] = value.strip()
    return name.strip(), options


def _fields(cls: type[Any]) -> list[dataclasses.Field[Any]]:
    return [field for field in dataclasses.fields(cls) if field.init]
