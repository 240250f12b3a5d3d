"""Acceptance probabilities: Eq. 6 and 7 by hand; what is observed online is what is predicted."""

from __future__ import annotations

import math
import random

import pytest

from glimpse.controllers.calibration import LogisticFilter, OnlineCalibration, PaperCalibration
from glimpse.types import Draft, DraftSignal, Outcome, Sequence
from tests.controllers.simulation import Text, sequence


def signal(entropy: float = 1.0, margin: float = 1.0) -> DraftSignal:
    return DraftSignal(entropy, 0.5, margin, 0.5)


def outcome(seq: Sequence, signals: list[DraftSignal], num_accepted: int) -> Outcome:
    draft = Draft([0] * len(signals), signals)
    return Outcome(seq, draft, num_accepted, num_accepted + 1, "")


def feed(calibration: OnlineCalibration, seq: Sequence, text: Text, k: int, rounds: int) -> None:
    place = 0
    for _ in range(rounds):
        fate = text.is_accepted[place : place + k]
        accepted = fate.index(False) if False in fate else k
        calibration.learn(outcome(seq, text.signals[place : place + k], accepted))
        place += accepted + 1


def test_eq_7_is_a_softmax_of_distances() -> None:
    paper = PaperCalibration(max_k=4, beta=0.9)
    paper.accepted_entropy, paper.rejected_entropy = 1.0, 2.0
    for entropy in (0.0, 1.0, 1.4, 3.0):
        near, far = math.exp(-abs(entropy - 1.0)), math.exp(-abs(entropy - 2.0))
        expected = near / (near + far)
        assert paper.probability(sequence(), signal(entropy)) == pytest.approx(expected)
    assert paper.probability(sequence(), signal(0.0)) == pytest.approx(1 / (1 + math.exp(-1)))


def test_eq_6_moves_each_centre_by_its_own_class() -> None:
    paper = PaperCalibration(max_k=4, beta=0.9)
    accepted, rejected = paper.accepted_entropy, paper.rejected_entropy
    paper.learn(outcome(sequence(), [signal(0.2), signal(4.0), signal(3.0)], num_accepted=1))
    assert paper.accepted_entropy == pytest.approx(0.9 * accepted + 0.1 * 0.2)
    assert paper.rejected_entropy == pytest.approx(0.9 * (0.9 * rejected + 0.4) + 0.3)


@pytest.mark.parametrize("acceptance", [0.95, 0.7, 0.3])
@pytest.mark.parametrize("is_mute", [True, False])
def test_predictions_match_what_happens(acceptance: float, is_mute: bool) -> None:
    calibration, seq = OnlineCalibration(max_k=8), sequence()
    feed(calibration, seq, Text(acceptance, 1, 3000, is_mute), k=4, rounds=150)
    assert calibration.profile(seq)[0] == pytest.approx(acceptance, abs=0.1)
    fresh = Text(acceptance, 2, 400, is_mute)
    predicted = [calibration.probability(seq, each) for each in fresh.signals]
    assert sum(predicted) / 400 == pytest.approx(sum(fresh.is_accepted) / 400, abs=0.12)


def test_tokens_behind_the_first_rejected_one_teach_nothing() -> None:
    short, long = OnlineCalibration(max_k=8), OnlineCalibration(max_k=8)
    short.learn(outcome(sequence(), [signal()] * 2, num_accepted=1))
    long.learn(outcome(sequence(), [signal()] * 6, num_accepted=1))
    assert short.profile(sequence()) == long.profile(sequence())


def test_positions_are_told_apart() -> None:
    calibration, seq = OnlineCalibration(max_k=4), sequence()
    for i in range(100):
        calibration.learn(outcome(seq, [signal()] * 3, num_accepted=3 if i % 3 == 0 else 2))
    first, second, third, unseen = calibration.profile(seq)
    assert first > 0.9
    assert second > 0.9
    assert third < 0.65
    assert third < unseen < first


def test_sequences_are_told_apart() -> None:
    calibration, good, bad = OnlineCalibration(max_k=4), sequence(0), sequence(1)
    for _ in range(30):
        calibration.learn(outcome(good, [signal()] * 3, num_accepted=3))
        calibration.learn(outcome(bad, [signal()], num_accepted=0))
    assert calibration.profile(good)[0] > 2 * calibration.profile(bad)[0]
    assert calibration.probability(good, signal()) > 2 * calibration.probability(bad, signal())
    assert max(calibration.profile(good)) < 1


def test_greedy_and_sampled_texts_are_learned_apart() -> None:
    calibration = OnlineCalibration(max_k=4)
    greedy, sampled = sequence(0), sequence(1, temperature=1.0)
    before = calibration.probability(sampled, signal(margin=0.1))
    feed(calibration, greedy, Text(0.7, 1, 3000), k=2, rounds=200)
    assert calibration.probability(sequence(2, temperature=1.0), signal(margin=0.1)) == before
    sure, unsure = (calibration.probability(greedy, signal(0.1, m)) for m in (4.0, 0.1))
    assert sure > 0.85
    assert unsure < 0.5


def test_the_filter_finds_the_weights_of_a_logistic_model() -> None:
    rng = random.Random(0)
    logistic = LogisticFilter((0.0, 0.0, 0.0), (4.0, 4.0, 4.0))
    for _ in range(4000):
        x = (1.0, rng.gauss(0, 1), rng.gauss(0, 1))
        p = 1 / (1 + math.exp(-(0.5 - 1.0 * x[1] + 2.0 * x[2])))
        logistic.update(x, rng.random() < p)
    assert logistic.weights == pytest.approx((0.5, -1.0, 2.0), abs=0.5)
