"""The equations by hand, against the paper's own figures, and the roofline against arithmetic."""

from __future__ import annotations

import pytest

from glimpse.efficiency import (
    PAPER_ACCEPTANCE_RATES,
    Machine,
    Roofline,
    acceptance_rate,
    best_length,
    efficiency,
    expected_tokens,
    fit_token_acceptance,
    inversion_point,
    speedup,
    speedup_slope,
    token_acceptance,
)
from glimpse.presets import MACHINES, MODELS


def test_speedup_by_hand() -> None:
    assert speedup(0.5, 4, 0.25) == pytest.approx(3 / 2)
    assert speedup(0.5, 4, 0.25, verify_ratio=2.0) == pytest.approx(1.0)
    assert speedup(0.9, 0, 0.3) == 1.0


@pytest.mark.parametrize("rate", [0.2, 0.5, 0.9])
@pytest.mark.parametrize("k", [1, 4, 12])
def test_the_slope_is_the_derivative_and_changes_sign_where_acceptance_meets_cost(
    rate: float, k: int
) -> None:
    step = 1e-6
    numeric = (speedup(rate, k + step, 0.5) - speedup(rate, k - step, 0.5)) / (2 * step)
    assert speedup_slope(rate, k, 0.5) == pytest.approx(numeric, abs=1e-6)
    assert (speedup_slope(rate, k, 0.5) > 0) == (rate > 0.5)


def test_eq_1_links_the_papers_figures_for_magicdec() -> None:
    """Its k = 2 (80.1 %, 1.74x) gives the cost ratio that its k = 16 (6.3 %, 0.36x) must obey."""
    cost_ratio = ((0.801 * 2 + 1) / 1.74 - 1) / 2
    assert cost_ratio == pytest.approx(0.248, abs=0.001)
    assert speedup(0.063, 16, cost_ratio) == pytest.approx(0.36, rel=0.15)
    assert 0.063 < cost_ratio < 0.801


def test_eq_1_links_the_papers_figures_for_sparsespec_l() -> None:
    """Adaptive (11.26 accepted, 72.9 %, 2.79x) gives a cost ratio; fixed k = 12 reached 2.69x."""
    drafted = 11.26 / 0.729
    cost_ratio = ((11.26 + 1) / 2.79 - 1) / drafted
    assert cost_ratio == pytest.approx(0.22, abs=0.005)
    fitted = fit_token_acceptance(PAPER_ACCEPTANCE_RATES)
    # One acceptance for all positions is a rough fit: 7 % above what was measured.
    assert speedup(acceptance_rate(fitted, 12), 12, cost_ratio) == pytest.approx(2.69, rel=0.08)


def test_expected_tokens_are_the_sum_of_prefix_products() -> None:
    assert expected_tokens([]) == 1.0
    assert expected_tokens([0.5, 0.5, 1.0]) == pytest.approx(1 + 0.5 + 0.25 + 0.25)
    assert efficiency([0.5, 0.5], draft_cost=1.0, verify_cost=2.0) == pytest.approx(1.75 / 4)


def test_best_length_weighs_a_verify_pass_that_grows() -> None:
    probabilities = [0.9] * 8
    assert best_length(probabilities, 0.1, [1.0] * 9)[0] == 8
    assert best_length(probabilities, 0.1, [1.0 + k for k in range(9)])[0] == 0
    assert best_length(probabilities, 0.9, [1.0] * 9, candidates=[2, 4, 8])[0] == 2
    k, rate = best_length([0.0] * 4, 0.1, [1.0] * 5)
    assert (k, rate) == (0, 1.0)
    with pytest.raises(ValueError, match=r"candidates=\[9\]"):
        best_length(probabilities, 0.1, [1.0] * 9, candidates=[9])


def test_the_inversion_point_is_where_one_more_draft_costs_more_than_it_brings() -> None:
    costs = [1.0] * 21
    k = inversion_point(0.8, 0.3, costs)
    assert k == best_length([0.8] * 20, 0.3, costs)[0]
    assert inversion_point(0.2, 0.5, costs) == 0
    assert inversion_point(1.0, 0.1, costs) is None


@pytest.mark.parametrize("k", [1, 4, 20])
def test_the_two_acceptances_convert_into_each_other(k: int) -> None:
    assert token_acceptance(acceptance_rate(0.9, k), k) == pytest.approx(0.9, abs=1e-4)
    assert acceptance_rate(0.9, 1) == pytest.approx(0.9)


def test_one_acceptance_per_token_fits_the_papers_rates() -> None:
    fitted = fit_token_acceptance(PAPER_ACCEPTANCE_RATES)
    for k, rate in PAPER_ACCEPTANCE_RATES.items():
        assert acceptance_rate(fitted, k) == pytest.approx(rate, abs=0.03)
    with pytest.raises(ValueError, match="rates from 0 to 1"):
        fit_token_acceptance({4: 1.5})


@pytest.mark.parametrize(
    ("name", "billions"),
    [
        ("smollm2-135m", 0.1345),
        ("qwen2.5-0.5b", 0.494),
        ("llama-3.1-8b", 8.03),
        ("qwen2.5-14b", 14.8),
    ],
)
def test_presets_have_the_published_number_of_weights(name: str, billions: float) -> None:
    roofline = Roofline(MODELS[name], MACHINES["a40"])
    assert roofline.num_weights / 1e9 == pytest.approx(billions, rel=0.005)


def test_the_roofline_by_hand() -> None:
    machine = Machine("toy", bandwidth=1e9, flops=1e12, memory=1e10, overhead=0.001)
    roofline = Roofline(MODELS["smollm2-135m"], machine, weight_bytes=4, kv_bytes=4)
    kv = 2 * 30 * 3 * 64 * 4 * 7500
    weights = 4 * (30 * (2 * 576 * 64 * 12 + 3 * 576 * 1536) + 49152 * 576)
    assert roofline.seconds(1, 1, 7500) == pytest.approx((kv + weights) / 1e9 + 0.001)
    draft = roofline.seconds(1, 1, roofline.glimpse_size(7500))
    assert draft == pytest.approx((kv / 10 + weights) / 1e9 + 0.001)
    # Enough rows make arithmetic the bound.
    assert roofline.seconds(4000, 1, 7500) > 3 * roofline.seconds(1, 1, 7500)


def test_predictions_rise_with_batch_and_context_as_the_papers_do() -> None:
    """Llama-3.1-8B on an A40 at 16K: the paper has 1.10x, 1.52x and 2.45x at batch 1, 2 and 4."""
    roofline = Roofline(MODELS["llama-3.1-8b"], MACHINES["a40"])
    acceptance = fit_token_acceptance(PAPER_ACCEPTANCE_RATES)
    by_batch = [roofline.predict(16384, batch, acceptance).speedup for batch in (1, 2, 4)]
    assert by_batch == sorted(by_batch)
    assert by_batch[0] == pytest.approx(1.10, rel=0.10)
    # A lower bound on costs: the paper's stack moves KV several times, so it gains more.
    assert by_batch[2] < 2.45
    by_context = [roofline.predict(n, 1, acceptance).speedup for n in (8192, 16384, 65536)]
    assert by_context == sorted(by_context)


def test_a_draft_as_dear_as_a_plain_pass_is_not_made() -> None:
    machine = Machine("slow", bandwidth=1e9, flops=1e15, memory=1e12)
    roofline = Roofline(MODELS["smollm2-135m"], machine)
    prediction = roofline.predict(200, 1, token_acceptance=0.95)
    assert (prediction.k, prediction.speedup) == (0, 1.0)
    assert not Roofline(MODELS["llama-3.1-8b"], MACHINES["rtx-4090"]).predict(131072, 1).fits


def test_eq_8_peaks_at_the_papers_best_fixed_length() -> None:
    """Among its lengths the paper found 12 the best, at the cost ratio that its 2.79x implies."""
    fitted = fit_token_acceptance(PAPER_ACCEPTANCE_RATES)
    best, _ = best_length([fitted] * 20, 0.22, [1.0] * 21, candidates=[4, 8, 12, 16, 20])
    assert best == 12


def test_one_figure_for_an_eager_stacks_traffic_explains_the_papers_60k_run() -> None:
    """KV moved 13 times (see docs/efficiency.md): speed of plain decoding, best k and speed-up."""
    machine = MACHINES["a40"]
    eager = Roofline(MODELS["llama-3.1-8b"], machine, kv_traffic=13)
    fitted = fit_token_acceptance(PAPER_ACCEPTANCE_RATES)
    prediction = eager.predict(60 * 1024, token_acceptance=fitted)
    # InfiniteBench: 14.81 tokens/s at 2.60x.
    assert 1 / prediction.plain_s == pytest.approx(14.81 / 2.60, rel=0.03)
    assert prediction.cost_ratio == pytest.approx(0.22, abs=0.01)
    assert prediction.k == 12
    assert prediction.speedup == pytest.approx(2.69, rel=0.1)
