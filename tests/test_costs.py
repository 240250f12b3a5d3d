"""The cost model: quick to learn, robust, monotone, adaptive; saved and pinned."""

from __future__ import annotations

import json
import math
import random
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from glimpse.costs import DRAFT_SHARE, CostModel

PLAIN, DRAFT = 0.060, 0.042
CONTEXT = 7500
OBSERVATION = st.tuples(
    st.integers(1, 12), st.integers(1, 4), st.integers(16, 40_000), st.floats(1e-3, 10)
)


def verify_seconds(k: int) -> float:
    """A CPU's: a tenth to a seventh of a plain pass per further row."""
    return PLAIN + 0.0087 * k


def run(model: CostModel, lengths: list[int], noise: float = 0.0, outliers: float = 0.0) -> None:
    rng = random.Random(0)

    def seconds(true: float) -> float:
        disturbed = rng.uniform(2, 5) if rng.random() < outliers else 1.0
        return true * math.exp(rng.gauss(0, noise)) * disturbed

    for i, k in enumerate(lengths):
        if k:
            model.observe_draft(1, CONTEXT // 10, seconds(DRAFT), num_steps=k)
        model.observe_verify(k + 1, 1, CONTEXT + i, seconds(verify_seconds(k)))


def test_before_anything_was_seen_a_draft_step_is_a_share_of_a_plain_pass() -> None:
    model = CostModel()
    assert model.draft() == pytest.approx(DRAFT_SHARE * model.verify(1))
    assert model.verify(5) > model.verify(1) > 0
    model.observe_verify(1, 1, CONTEXT, PLAIN)
    assert model.verify(1) == pytest.approx(PLAIN)
    assert model.draft() == pytest.approx(DRAFT_SHARE * PLAIN)


def test_a_draft_step_alone_gives_the_plain_pass_its_scale() -> None:
    model = CostModel()
    model.observe_draft(1, 750, DRAFT)
    assert model.draft() == pytest.approx(DRAFT)
    assert model.verify(1) == pytest.approx(DRAFT / DRAFT_SHARE)


def test_one_observation_of_each_is_enough_to_be_useful() -> None:
    model = CostModel()
    run(model, [0, 4])
    assert model.draft() == pytest.approx(DRAFT, rel=0.15)
    for k in (0, 1, 2, 4, 6):
        assert model.verify(k + 1) == pytest.approx(verify_seconds(k), rel=0.1)


def test_noise_and_outliers_average_out() -> None:
    model = CostModel()
    run(model, [0, 4, 2, 4, 0, 1, 4, 2, 0, 4, 1, 4] * 3, noise=0.08, outliers=0.05)
    assert model.draft() / model.verify(1) == pytest.approx(DRAFT / PLAIN, rel=0.12)
    for k in (1, 2, 4, 6):
        expected = verify_seconds(k) / PLAIN
        assert model.verify(k + 1) / model.verify(1) == pytest.approx(expected, rel=0.12)


def test_a_lone_observation_that_is_far_too_slow_waits_for_a_second() -> None:
    model = CostModel()
    run(model, [0, 0])
    model.observe_verify(5, 1, CONTEXT, 5 * verify_seconds(4))
    assert model.verify(5) == pytest.approx(verify_seconds(4), rel=0.15)
    model.observe_verify(5, 1, CONTEXT, 5 * verify_seconds(4))
    model.observe_verify(5, 1, CONTEXT, 5 * verify_seconds(4))
    assert model.verify(5) > 3 * verify_seconds(4)


def test_an_outlier_among_the_first_plain_passes_is_put_right_by_longer_ones() -> None:
    model = CostModel()
    model.observe_verify(1, 1, CONTEXT, 4 * PLAIN)
    run(model, [4] * 4)
    assert model.verify(1) < 1.5 * PLAIN


@settings(max_examples=60, deadline=None)
@given(st.lists(OBSERVATION, min_size=1, max_size=30), st.integers(1, 4))
def test_more_rows_and_more_context_are_never_predicted_cheaper(
    observations: list[tuple[int, int, int, float]], batch: int
) -> None:
    model = CostModel()
    for k, size, context, seconds in observations:
        model.observe_verify((k + 1) * size, size, context * size, seconds)
        model.observe_draft(size, context * size // 10 + 1, seconds / 3)
    by_rows = [model.verify(rows, batch, 5000 * batch) for rows in range(batch, 20 * batch)]
    by_context = [model.verify(5 * batch, batch, n) for n in range(1000, 60_000, 5000)]
    by_batch = [model.draft(size) for size in range(1, 6)]
    for predictions in (by_rows, by_context, by_batch):
        assert all(math.isfinite(value) and value > 0 for value in predictions)
        assert all(b >= a * (1 - 1e-9) for a, b in pairwise(predictions))


def test_costs_that_go_with_the_context_are_followed() -> None:
    model = CostModel()
    for context in range(2000, 30_000, 500):
        model.observe_verify(1, 1, context, 0.01 + 2e-6 * context)
        model.observe_verify(5, 1, context, 0.02 + 2e-6 * context)
    assert model.verify(1, 1, 30_000) == pytest.approx(0.07, rel=0.05)
    assert model.verify(5, 1, 40_000) == pytest.approx(0.10, rel=0.1)
    assert model.verify(1, 1, 40_000) > 1.2 * model.verify(1, 1, 30_000)


def test_batches_share_what_is_read_once() -> None:
    model = CostModel()
    for batch in (1, 2, 4) * 6:
        model.observe_verify(batch, batch, CONTEXT * batch, 0.040 + 0.010 * batch)
    assert model.verify(8, 8, CONTEXT * 8) == pytest.approx(0.120, rel=0.25)
    assert model.verify(3, 3, CONTEXT * 3) == pytest.approx(0.070, rel=0.1)


def test_a_machine_that_slows_down_does_so_for_all_predictions() -> None:
    model = CostModel()
    run(model, [0, 4, 2, 4] * 4)
    ratio = model.draft() / model.verify(1)
    for _ in range(12):
        model.observe_verify(1, 1, CONTEXT, 2 * PLAIN)
    assert model.verify(1) == pytest.approx(2 * PLAIN, rel=0.1)
    assert model.verify(5) == pytest.approx(2 * verify_seconds(4), rel=0.25)
    assert model.draft() / model.verify(1) == pytest.approx(ratio, rel=0.25)


def test_overhead_is_what_steps_and_passes_leave_of_a_round() -> None:
    model = CostModel()
    for overhead in (0.030, 0.005, 0.005):  # the first round that drafts has more to do
        model.observe_draft(1, 750, DRAFT, num_steps=4)
        model.observe_verify(5, 1, CONTEXT, 0.1)
        model.observe_round(True, 4 * DRAFT + 0.1 + overhead)
    model.observe_verify(1, 1, CONTEXT, PLAIN)
    model.observe_round(False, PLAIN + 0.001)
    assert model.overhead("resuming") == pytest.approx(0.030)
    assert model.overhead("drafting") == pytest.approx(0.005)
    assert model.overhead("plain") == pytest.approx(0.001)


def test_counts_say_what_is_not_known() -> None:
    model = CostModel()
    assert (model.num_drafts(), model.num_verifies(1)) == (0, 0)
    run(model, [0, 4])
    assert (model.num_drafts(), model.num_drafts(2)) == (1, 0)
    assert (model.num_verifies(5), model.num_verifies(10, batch=2), model.num_verifies(3)) == (
        1,
        1,
        0,
    )


@pytest.mark.parametrize("seconds", [0.0, -1.0, math.inf, math.nan])
def test_impossible_times_are_ignored(seconds: float) -> None:
    model = CostModel()
    run(model, [0, 2])
    before = model.verify(3)
    model.observe_verify(3, 1, CONTEXT, seconds)
    assert model.verify(3) == before


# -------------------------------------------------------------------------------- saved tables


def test_a_loaded_table_predicts_the_same_and_is_pinned(tmp_path: Path) -> None:
    model = CostModel()
    run(model, [0, 4, 2, 4, 1], noise=0.1)
    model.observe_round(True, 1.0)
    model.save(tmp_path / "costs.json")
    pinned = CostModel.load(tmp_path / "costs.json")
    sizes = [(1, 1, CONTEXT), (5, 1, CONTEXT), (9, 3, 9000)]
    expected = [model.verify(*size) for size in sizes]
    assert [pinned.verify(*size) for size in sizes] == expected
    assert pinned.draft() == model.draft()
    run(pinned, [0, 1, 2, 3] * 5, noise=1.0)
    pinned.observe_round(True, 100.0)
    assert [pinned.verify(*size) for size in sizes] == expected
    assert pinned.overhead("resuming") == model.overhead("resuming")


def test_a_loaded_table_can_learn_on(tmp_path: Path) -> None:
    model = CostModel()
    run(model, [0, 4, 2])
    model.save(tmp_path / "costs.json")
    learning = CostModel.load(tmp_path / "costs.json", is_pinned=False)
    for each in (model, learning):
        run(each, [1, 3, 4])
    assert learning.verify(4) == model.verify(4)


def test_saving_replaces_the_file_whole(tmp_path: Path) -> None:
    path = tmp_path / "costs.json"
    path.write_text("old")
    CostModel().save(path)
    assert json.loads(path.read_text())["format"] == "glimpse-costs-1"
    assert [file.name for file in tmp_path.iterdir()] == ["costs.json"]


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "Invalid JSON"),
        ("[]", "the file"),
        ('{"format": "other"}', "format"),
        ('{"verify": {"weights": [1]}}', "verify.weights"),
        ('{"speed": 0}', "speed"),
        ('{"draft": {"points": {"1": []}}}', "draft.points.1"),
    ],
)
def test_what_is_not_a_table_is_refused_by_name(tmp_path: Path, text: str, reason: str) -> None:
    path = tmp_path / "costs.json"
    path.write_text(text)
    with pytest.raises(ValueError, match=rf"costs\.json is not a cost table: .*{reason}"):
        CostModel.load(path)
