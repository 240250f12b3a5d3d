"""Rules that stop at a token: against their formulas, and what they learn from."""

from __future__ import annotations

import pytest

from glimpse.controllers import controllers
from glimpse.controllers.confidence import tuned
from glimpse.costs import CostModel
from glimpse.types import Draft, DraftSignal, Outcome
from tests.controllers.simulation import sequence

SURE = DraftSignal(entropy=0.0, top_prob=1.0, margin=9.0, token_prob=1.0)


def draft(*signals: DraftSignal) -> Draft:
    return Draft(token_ids=[0] * len(signals), signals=list(signals))


def with_entropy(entropy: float) -> DraftSignal:
    return DraftSignal(entropy=entropy, top_prob=0.5, margin=1.0, token_prob=0.5)


def with_probability(probability: float) -> DraftSignal:
    return DraftSignal(entropy=1.0, top_prob=probability, margin=1.0, token_prob=probability)


def outcome(drafted: Draft, num_accepted: int) -> Outcome:
    return Outcome(sequence(), drafted, num_accepted, num_accepted + 1, "")


@pytest.mark.parametrize("name", ["svip", "adaedl", "confidence", "disco"])
def test_a_rule_caps_and_goes_on_while_the_draft_is_sure(name: str) -> None:
    rule = controllers.build(f"{name}:max_k=7")
    assert rule.plan([sequence(0), sequence(1)], CostModel()) == [7, 7]
    assert rule.keep_drafting(sequence(), draft(SURE))
    with pytest.raises(ValueError, match="max_k=0: must be at least 1"):
        controllers.build(f"{name}:max_k=0")


@pytest.mark.parametrize(("entropy", "goes_on"), [(0.59, True), (0.61, False), (-1e-9, True)])
def test_svip_stops_where_the_root_passes_its_threshold(entropy: float, goes_on: bool) -> None:
    # sqrt(0.15 H) = 0.3 at H = 0.6.
    assert controllers.build("svip").keep_drafting(sequence(), draft(with_entropy(entropy))) == (
        goes_on
    )


def test_svips_published_cap() -> None:
    assert controllers.build("svip").plan([sequence()], CostModel()) == [40]


@pytest.mark.parametrize(("entropy", "goes_on"), [(0.79, True), (0.81, False)])
def test_adaedl_stops_where_its_bound_is_below_lambda(entropy: float, goes_on: bool) -> None:
    # 1 - sqrt(0.2 H) = 0.6 at H = 0.8.
    rule = controllers.build("adaedl")
    assert rule.keep_drafting(sequence(), draft(with_entropy(entropy))) == goes_on


def test_adaedls_lambda_follows_acceptance() -> None:
    rule = controllers.build("adaedl")
    drafted = draft(*[SURE] * 4)
    rule.learn([outcome(drafted, 4)], 0.1)  # mean 0.95, above the target of 0.9
    assert rule._lambda == pytest.approx(0.9 * 0.6 + 0.1 * 0.59)
    before = rule._lambda
    rule.learn([outcome(drafted, 2)], 0.1)  # mean 0.725
    assert rule._lambda == pytest.approx(0.9 * before + 0.1 * (before + 0.01))
    rule.learn([outcome(Draft(), 0)], 0.1)
    assert rule._mean == pytest.approx(0.725)


def test_confidence_stops_below_its_threshold() -> None:
    rule = controllers.build("confidence")
    assert rule.keep_drafting(sequence(), draft(with_probability(0.4)))
    assert not rule.keep_drafting(sequence(), draft(with_probability(0.39)))


def test_the_tuned_threshold_is_the_best_point_of_the_roc_curve() -> None:
    seen = [(0.9, True)] * 6 + [(0.8, False)] * 2 + [(0.7, True)] * 6 + [(0.2, False)] * 6
    # At 0.9: 0 + 3 * 0.5; at 0.8: 0.25 + 1.5; at 0.7: 0.25 + 0; at 0.2: 1 + 0.
    assert tuned(seen, 0.4) == 0.7
    assert tuned(list(reversed(seen)), 0.4) == 0.7
    assert tuned(seen[:8], 0.4) == 0.4
    assert tuned([(0.9, True)] * 40, 0.4) == 0.4


def test_confidence_learns_from_what_was_put_to_the_test_alone() -> None:
    rule = controllers.build("confidence")
    drafted = draft(*map(with_probability, (0.9, 0.7, 0.3, 0.99)))
    for _ in range(8):
        rule.learn([outcome(drafted, 2)], 0.1)
    assert rule._threshold == 0.7
    assert (0.99, False) not in rule._seen
    fixed = controllers.build("confidence:is_tuned=false")
    fixed.learn([outcome(drafted, 2)] * 20, 0.1)
    assert fixed._threshold == 0.4


def test_disco_learns_what_to_doubt() -> None:
    rule = controllers.build("disco")
    sure, unsure = with_probability(0.9), with_probability(0.5)
    for _ in range(40):
        rule.learn([outcome(draft(sure, sure, unsure), 2)], 0.1)
    assert rule.keep_drafting(sequence(), draft(sure))
    assert not rule.keep_drafting(sequence(), draft(unsure))
    for _ in range(60):  # the text changes: now both are accepted
        rule.learn([outcome(draft(sure, unsure), 2)], 0.1)
    assert rule.keep_drafting(sequence(), draft(unsure))


def test_disco_learns_that_later_tokens_fail() -> None:
    rule = controllers.build("disco")
    signal = with_probability(0.8)
    for _ in range(60):
        rule.learn([outcome(draft(*[signal] * 4), 3)], 0.1)
    first = rule.keep_drafting(sequence(), draft(signal))
    fourth = rule.keep_drafting(sequence(), draft(*[signal] * 4))
    assert (first, fourth) == (True, False)


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ("svip:coefficient=0", "coefficient=0.0: must be above 0"),
        ("svip:threshold=nan", "threshold=nan"),
        ("adaedl:threshold=1.5", "threshold=1.5: must be from 0 to 1"),
        ("adaedl:coefficient=inf", "coefficient=inf"),
        ("confidence:threshold=-1", "threshold=-1.0"),
        ("disco:threshold=2", "threshold=2.0"),
    ],
)
def test_values_that_make_no_sense(spec: str, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        controllers.build(spec)
