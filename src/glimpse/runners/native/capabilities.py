"""What the native runner can do; known without its compiled core."""

from __future__ import annotations

from glimpse.types import Capabilities

CAPABILITIES = Capabilities(
    views=frozenset({"dense", "glimpse"}),
    statistics=frozenset({"window"}),
    has_hidden_states=True,
    has_early_exit=True,
)
