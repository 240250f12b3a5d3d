"""Metrics by their definitions."""

from __future__ import annotations

import json
from collections import Counter

import pytest

from glimpse.stats import Stats, repetition


def test_metrics_of_a_run() -> None:
    stats = Stats(
        prompt_tokens=100,
        generated_tokens=30,
        rounds=10,
        drafted=40,
        accepted=20,
        prefill_s=1.5,
        decode_s=2.0,
    )
    assert stats.acceptance_rate == 20 / 40
    assert stats.mean_accepted == 20 / 10
    assert stats.tokens_per_round == 30 / 10
    assert stats.mean_k == 40 / 10
    assert stats.decode_tokens_per_s == 30 / 2.0
    assert stats.total_s == 3.5


def test_nothing_done_is_zero_not_an_error() -> None:
    values = Stats().as_dict()
    assert {value for value in values.values() if isinstance(value, float)} == {0.0}


def test_the_dictionary_has_every_name_and_is_json() -> None:
    stats = Stats(runner="torch", method="m", draft_lengths=Counter({4: 2, 0: 1, 10: 1}))
    stats.seconds["draft"] = 0.5
    values = json.loads(json.dumps(stats.as_dict()))
    promised = (
        "prompt_tokens generated_tokens ttft_s prefill_s decode_s decode_tokens_per_s rounds "
        "drafted accepted acceptance_rate mean_accepted tokens_per_round mean_k runner method"
    )
    assert set(promised.split()) <= values.keys()
    assert list(values["draft_lengths"].items()) == [("0", 1), ("4", 2), ("10", 1)]
    assert values["seconds"] == {"draft": 0.5}
    fields = set(Stats.__dataclass_fields__)
    properties = {name for name, value in vars(Stats).items() if isinstance(value, property)}
    assert values.keys() == fields | properties


def test_pooling_adds_counts_and_weighs_repetition_by_tokens() -> None:
    one = Stats("torch", "m", generated_tokens=10, rounds=5, drafted=20, accepted=5, repetition=0.4)
    two = Stats("torch", "m", generated_tokens=30, rounds=5, drafted=20, accepted=15)
    one.draft_lengths, two.draft_lengths = Counter({4: 5}), Counter({4: 4, 0: 1})
    one.seconds, two.seconds = {"draft": 1.0}, {"draft": 0.5, "verify": 2.0}
    pooled = one + two
    assert (pooled.generated_tokens, pooled.rounds) == (40, 10)
    assert pooled.acceptance_rate == 20 / 40
    assert pooled.repetition == pytest.approx(0.1)
    assert pooled.draft_lengths == {4: 9, 0: 1}
    assert pooled.seconds == {"draft": 1.5, "verify": 2.0}
    assert (one.generated_tokens, one.seconds) == (10, {"draft": 1.0})


@pytest.mark.parametrize(
    ("tokens", "n", "expected"),
    [
        ([], 8, 0.0),
        ([1] * 7, 8, 0.0),
        ([1] * 9, 8, 0.5),
        (list(range(50)), 8, 0.0),
        ([1, 2, 1, 2, 1], 2, 0.5),
        (list(range(10)) * 3, 8, 13 / 23),
    ],
)
def test_repetition_is_the_share_of_repeated_ngrams(
    tokens: list[int], n: int, expected: float
) -> None:
    assert repetition(tokens, n) == pytest.approx(expected)
