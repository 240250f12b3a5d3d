"""Prompt lookup: what is copied from where, and at what price."""

from __future__ import annotations

import numpy as np
import pytest

from glimpse.config import Method, SamplingParams
from glimpse.drafters import drafters
from glimpse.drafters.lookup import Lookup
from glimpse.types import Sequence


def sequence(token_ids: list[int]) -> Sequence:
    return Sequence(0, token_ids, 1, SamplingParams(), Method("test"), "greedy", 0)


def copied(token_ids: list[int], cap: int = 10, spec: str = "ngram") -> list[int]:
    drafter = drafters.build(spec)
    (draft,) = drafter.draft(None, [sequence(token_ids)], [cap], None, lambda *_: True)
    assert len(draft.signals) == len(draft.token_ids)
    return draft.token_ids


@pytest.mark.parametrize(
    ("token_ids", "expected"),
    [
        ([1, 2, 3, 4, 5, 1, 2], [3, 4, 5, 1, 2, 3, 4, 5, 1, 2]),  # and on into its own copy
        ([1, 2, 3, 9, 1, 2, 7, 8, 1, 2], [7, 8, 1, 2, 7, 8, 1, 2, 7, 8]),  # the latest place
        ([5, 1, 2, 3, 7, 1, 2, 8, 5, 1, 2], [3, 7, 1, 2, 8, 5, 1, 2, 3, 7]),  # the longer run
        ([1, 1, 1, 1], [1] * 10),
        ([1, 2, 3, 4], []),
        ([1], []),
        ([], []),
    ],
)
def test_what_followed_is_copied(token_ids: list[int], expected: list[int]) -> None:
    assert copied(token_ids) == expected


def test_caps_and_the_controller_end_a_draft() -> None:
    text = [1, 2, 3, 4, 5, 1, 2]
    assert copied(text, cap=2) == [3, 4]
    (draft,) = drafters.build("ngram").draft(
        None, [sequence(text)], [9], None, lambda _, draft: len(draft) < 3
    )
    assert draft.token_ids == [3, 4, 5]


def test_sizes() -> None:
    assert copied([1, 2, 3, 9, 2], spec="ngram:min_size=1") == [3, 9, 2, 3, 9, 2, 3, 9, 2, 3]
    assert copied([1, 2, 3, 9, 1, 2], spec="ngram:min_size=3,max_size=3") == []
    with pytest.raises(ValueError, match="min_size=0"):
        drafters.build("ngram:min_size=0")
    with pytest.raises(ValueError, match="max_size=1: must be at least min_size=2"):
        drafters.build("ngram:max_size=1")


def test_an_index_that_grows_finds_what_a_new_one_finds() -> None:
    token_ids = np.random.default_rng(0).integers(0, 4, 400).tolist()
    growing = Lookup()
    for end in range(0, 390, 7):
        known, draft = token_ids[:end], token_ids[end : end + end % 4]
        assert growing.follow(known, draft, 5) == Lookup().follow(known, draft, 5)


def test_a_draft_is_looked_up_and_leaves_no_trace() -> None:
    lookup, text = Lookup(), [1, 2, 3, 4, 5, 6]
    assert lookup.follow(text, [1, 2], 3) == [3, 4, 5]
    assert lookup.follow(text, [1, 2], 8) == [3, 4, 5, 6, 1, 2, 3, 4]
    assert lookup.follow(text, [9, 2], 3) == []
    assert lookup.follow([*text, 9, 2], [], 3) == []


class CountingList(list):
    """Tokens that count how often slices of them are taken."""

    num_slices = 0

    def __getitem__(self, key):
        self.num_slices += isinstance(key, slice)
        return super().__getitem__(key)


def test_a_step_reads_only_what_is_new() -> None:
    token_ids, lookup = CountingList(range(5000)), Lookup()
    lookup.follow(token_ids, (), 1)
    token_ids.extend([1, 2, 3])
    token_ids.num_slices = 0
    assert lookup.follow(token_ids, (), 2) == [4, 5]
    assert token_ids.num_slices <= 2 * 3 + 1
