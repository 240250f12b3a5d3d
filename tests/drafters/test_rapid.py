"""Retrieval for RAPID: scores by hand, and which chunks of a prompt are kept."""

from __future__ import annotations

import math

import numpy as np
import pytest

from glimpse.drafters import drafters
from glimpse.drafters.retrieval import bm25, shorten


def test_bm25_by_hand() -> None:
    chunks = [[1, 1, 2, 3], [4, 5, 6, 7], [1, 4, 8, 9], [2, 2, 2, 2]]
    # Lengths are equal, so a term that occurs t times counts t (1.5 + 1) / (t + 1.5).
    in_two = math.log(1 + (4 - 2 + 0.5) / (2 + 0.5))
    in_one = math.log(1 + (4 - 1 + 0.5) / (1 + 0.5))
    twice = 2 * 2.5 / 3.5
    expected = [in_two * twice, in_one, in_two, 0.0]
    np.testing.assert_allclose(bm25(chunks, [1, 5, 5, 10]), expected)


def test_a_longer_chunk_is_marked_down() -> None:
    short, long = bm25([[1, 2], [1, 2, 3, 4, 5, 6]], [1])
    assert short > long
    norm = 1.5 * (1 - 0.75 + 0.75 * 2 / 4)
    assert short == pytest.approx(math.log(1 + 0.5 / 2.5) * 2.5 / (1 + norm))


def test_the_first_the_best_and_the_last_stay_in_order() -> None:
    prompt = [0, 0, 0, 5, 6, 7, 1, 1, 1, 8, 2, 9, 3, 5, 2]  # chunks of 3, a query of 3
    assert shorten(prompt, 12, 3, 3) == [0, 0, 0, 5, 6, 7, 8, 2, 9, 3, 5, 2]


def test_a_prompt_that_fits_is_left_alone() -> None:
    assert shorten([1, 2, 3], 3, 1, 1) == [1, 2, 3]
    assert shorten([1, 2, 4, 4], 3, 1, 1) == [1, 4, 4]


def test_never_more_than_was_asked_for() -> None:
    prompt = np.random.default_rng(0).integers(0, 50, 997).tolist()
    for num_tokens in (40, 200, 500, 996):
        kept = shorten(prompt, num_tokens, 16, 24)
        assert len(kept) <= num_tokens
        assert len(kept) > num_tokens - 16
        assert kept[:16] == prompt[:16]
        assert kept[-24:] == prompt[-24:]


def test_options_are_checked() -> None:
    with pytest.raises(ValueError, match=r"num_tokens=9: must be at least .* \(640\)"):
        drafters.build("rapid:num_tokens=9")
    with pytest.raises(ValueError, match="chunk_size=0"):
        drafters.build("rapid:chunk_size=0")
    assert drafters.build("rapid").needs_draft_model is False
    assert drafters.build("rapid:model=auxiliary").needs_draft_model is True
