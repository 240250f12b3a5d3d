"""Presets against the sizes that publishers state, and this machine's measurement."""

from __future__ import annotations

import pytest

from glimpse import presets
from glimpse.efficiency import Roofline

BILLIONS = {
    "smollm2-135m": 0.1345,
    "qwen2.5-0.5b": 0.494,
    "qwen2.5-1.5b": 1.544,
    "qwen2.5-7b": 7.616,
    "qwen2.5-14b": 14.77,
    "llama-3.2-3b": 3.213,
    "llama-3.1-8b": 8.030,
}


@pytest.mark.parametrize("name", presets.MODELS)
def test_number_of_weights_is_the_published_one(name: str) -> None:
    roofline = Roofline(presets.model_config(name), presets.machine("a40"))
    assert roofline.num_weights / 1e9 == pytest.approx(BILLIONS[name], rel=2e-3)


def test_unknown_names_list_the_valid_ones() -> None:
    for look_up in (presets.model_config, presets.machine, presets.precision):
        with pytest.raises(ValueError, match=r"unknown \w+ 'no-such'; valid: \w+"):
            look_up("no-such")


def test_this_machine_is_measured() -> None:
    said: list[str] = []
    measured = presets.machine("this", said.append)
    assert "measuring" in said[0]
    assert measured.bandwidth > 1e8
    assert measured.flops > 1e8
    assert measured.memory > 2**28
