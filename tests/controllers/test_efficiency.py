"""The efficiency controller in a simulated decode loop: against every fixed length, and off."""

from __future__ import annotations

from dataclasses import replace

import pytest

from glimpse.controllers import Controller, controllers
from glimpse.controllers.efficiency import Efficiency
from glimpse.controllers.fixed import Fixed
from glimpse.costs import CostModel
from glimpse.types import Draft, DraftSignal, Outcome
from tests.controllers.simulation import (
    CONTEXT,
    CPU,
    GPU,
    MACHINES,
    NATIVE,
    Machine,
    Text,
    sequence,
    simulate,
    write,
)

FIXED = (0, 1, 2, 3, 4, 6, 8)
NUM_TEXTS = 12
SURE = DraftSignal(entropy=0.01, top_prob=0.99, margin=6.0, token_prob=0.99)
UNSURE = DraftSignal(entropy=4.0, top_prob=0.1, margin=0.05, token_prob=0.1)


def mean_speed(
    make: type[Controller], machine: Machine, acceptance: float, tokens: int, **options: object
) -> float:
    """Tokens per millisecond over several texts, a new controller and cost model for each."""
    runs = [
        simulate(make(**options), machine, Text(acceptance, seed), tokens, seed=seed)
        for seed in range(NUM_TEXTS)
    ]
    return sum(run.tokens for run in runs) / sum(run.ms for run in runs)


@pytest.mark.parametrize("acceptance", [0.95, 0.7, 0.2])
@pytest.mark.parametrize("machine", MACHINES.values(), ids=MACHINES)
def test_as_fast_as_the_best_fixed_length_from_a_cold_start(
    machine: Machine, acceptance: float
) -> None:
    best = max(mean_speed(Fixed, machine, acceptance, 100, k=k) for k in FIXED)
    assert mean_speed(Efficiency, machine, acceptance, 100) > 0.96 * best


@pytest.mark.parametrize("machine", [CPU, NATIVE], ids=["cpu", "native"])
def test_hardly_slower_than_plain_decoding_where_nothing_pays(machine: Machine) -> None:
    plain = mean_speed(Fixed, machine, 0.2, 400, k=0)
    assert mean_speed(Efficiency, machine, 0.2, 400) > 0.98 * plain


@pytest.mark.parametrize("machine", MACHINES.values(), ids=MACHINES)
def test_drafting_is_given_up_and_taken_up_again(machine: Machine) -> None:
    shares = []
    for seed in range(6):
        text = Text(0.2, seed, 400) + Text(0.95, seed, 400) + Text(0.2, seed + 9, 400)
        run = simulate(Efficiency(), machine, text, 1100, seed=seed)
        shares.append([run.drafting_share(end - 200, end) for end in (400, 800, 1100)])
    off, on, off_again = (sum(share) / len(shares) for share in zip(*shares, strict=True))
    assert max(off, off_again) < 0.25
    assert on > 0.75


@pytest.mark.parametrize("calibration", ["online", "paper"])
@pytest.mark.parametrize("machine", [CPU, NATIVE], ids=["cpu", "native"])
def test_no_draft_length_is_a_trap_where_resuming_is_dear(
    machine: Machine, calibration: str
) -> None:
    """One round that resumes costs as much as three plain ones: probes are rare, but go on."""
    dear = replace(machine, resuming=3 * machine.pass_ms(1))
    hopeless = Text(0.0, length=3000, is_mute=True)
    run = simulate(Efficiency(calibration=calibration), dear, hopeless, 2000)
    assert 1 <= sum(k > 0 for k, _ in run.rounds[500:]) < 0.02 * 1500
    assert run.speed > 0.95 / machine.pass_ms(1)


@pytest.mark.parametrize("machine", [CPU, NATIVE], ids=["cpu", "native"])
def test_drafting_is_taken_up_again_where_resuming_is_dear(machine: Machine) -> None:
    dear = replace(machine, resuming=2 * machine.pass_ms(1))
    text = Text(0.2, 1, 300) + Text(0.98, 2, 2200)
    run = simulate(Efficiency(), dear, text, 2400)
    assert run.drafting_share(2000, 2400) > 0.75


def test_probes_lose_at_most_their_share_of_the_time() -> None:
    hopeless = Text(0.0, length=3000, is_mute=True)
    run = simulate(Efficiency(), NATIVE, hopeless, 2900, noise=0, outliers=0)
    late = run.rounds[100:]
    assert 0 < sum(k for k, _ in late) <= 2 * len(late) // 60
    plain = NATIVE.pass_ms(1)
    lost = sum(k * NATIVE.draft + NATIVE.pass_ms(k + 1) - plain for k, _ in late)
    assert lost < 0.011 * plain * len(late)


def test_without_probes_there_is_no_way_back() -> None:
    text = Text(0.0, length=300, is_mute=True) + Text(1.0, length=300, is_mute=True)
    run = simulate(Efficiency(probe_share=0.0), NATIVE, text, 500, noise=0, outliers=0)
    assert all(k == 0 for k, _ in run.rounds[20:])


def test_mute_signals_do_no_great_harm() -> None:
    """An adversary: margins as in greedy decoding that say nothing about acceptance."""
    runs = {
        name: [
            simulate(make(), NATIVE, Text(0.85, seed, is_mute=True), 200, seed=seed)
            for seed in range(NUM_TEXTS)
        ]
        for name, make in (("best", lambda: Fixed(k=2)), ("online", Efficiency))
    }
    speed = {name: sum(run.speed for run in group) for name, group in runs.items()}
    assert speed["online"] > 0.93 * speed["best"]


def test_drafts_are_longer_where_signals_are_sure() -> None:
    controller, costs = warmed()
    lengths = {}
    for name, signal in (("sure", SURE), ("unsure", UNSURE)):
        text = Text(1.0, length=100)
        text.signals = [signal] * 100
        seq = sequence()
        cap = controller.plan([seq], costs)[0]
        lengths[name] = len(write(controller, seq, text, 0, cap)[0])
    assert lengths["unsure"] <= 2
    assert lengths["sure"] >= lengths["unsure"] + 3


def test_a_pinned_cost_table_makes_draft_lengths_reproducible(tmp_path) -> None:
    costs = CostModel()
    simulate(Efficiency(), NATIVE, Text(0.9), 100, costs)
    costs.save(tmp_path / "costs.json")
    runs = [
        simulate(
            Efficiency(),
            NATIVE,
            Text(0.9, seed=3),
            200,
            CostModel.load(tmp_path / "costs.json"),
            seed=seed,
            noise=0.5,
        ).rounds
        for seed in (1, 2)
    ]
    assert runs[0] == runs[1]


def test_in_a_batch_each_sequence_has_its_own_length() -> None:
    controller, costs = Efficiency(), CostModel()
    texts = [Text(0.97, 1, 3000), Text(0.05, 2, 3000, is_mute=True)]
    sequences = [sequence(handle) for handle in range(2)]
    costs.observe_verify(2, 2, 2 * CONTEXT, 0.022)
    places, drafted = [0, 0], [0, 0]
    for _ in range(60):
        caps = controller.plan(sequences, costs)
        outcomes = []
        for i, (seq, text) in enumerate(zip(sequences, texts, strict=True)):
            draft, accepted = write(controller, seq, text, places[i], caps[i])
            outcomes.append(Outcome(seq, draft, accepted, accepted + 1, ""))
            places[i] += accepted + 1
            drafted[i] += len(draft)
        lengths = [len(outcome.draft) for outcome in outcomes]
        if max(lengths):
            costs.observe_draft(2, 2 * CONTEXT // 10, 0.005, num_steps=max(lengths))
        costs.observe_verify(sum(lengths) + 2, 2, 2 * CONTEXT, 0.022 + 0.0005 * sum(lengths))
        controller.learn(outcomes, 0.1)
    assert drafted[0] > 4 * drafted[1]
    assert places[0] > 150


def test_finished_sequences_are_forgotten() -> None:
    controller, costs = warmed()
    for handle in range(50):
        seq = sequence(handle)
        cap = controller.plan([seq], costs)[0]
        draft, accepted = write(controller, seq, Text(0.9, handle, 60), 0, cap)
        controller.learn([Outcome(seq, draft, accepted, accepted + 1, "")], 0.1)
    del seq
    assert len(controller._calibration._by_sequence) <= 1


def test_a_round_that_was_not_planned_teaches_nothing() -> None:
    seq = sequence()
    controller = Efficiency()
    controller.learn([Outcome(seq, Draft(), 0, 1, "")], 0.1)
    assert controller.plan([seq], CostModel()) == [2]


@pytest.mark.parametrize("machine", [NATIVE, GPU], ids=["native", "gpu"])
def test_the_paper_form_drafts_where_entropies_are_low(machine: Machine) -> None:
    text = Text(0.97, seed=5)
    run = simulate(Efficiency(calibration="paper"), machine, text, 300)
    assert run.speed > 1.02 / machine.pass_ms(1)
    # Eq. 7 cannot exceed sigmoid(H_rej - H_acc): drafts stay short of what acceptance would bear.
    assert run.speed < simulate(Efficiency(), machine, text, 300).speed


def test_the_paper_form_is_off_where_it_sees_no_gain() -> None:
    run = simulate(Efficiency(calibration="paper"), CPU, Text(0.2, seed=5), 300)
    assert run.speed > 0.96 / CPU.pass_ms(1)


def test_specs_build_and_wrong_options_are_named() -> None:
    controllers.discover("glimpse.controllers")
    built = controllers.build("efficiency:calibration=paper,max_k=8,beta=0.8")
    assert (built.calibration, built.max_k, built.beta) == ("paper", 8, 0.8)
    assert controllers.build("fixed:k=3").k == 3
    for spec, words in (
        ("efficiency:calibration=none", "calibration='none'"),
        ("efficiency:max_k=0", "max_k=0"),
        ("efficiency:beta=1", "beta=1"),
        ("efficiency:probe_share=-1", "probe_share=-1"),
        ("fixed:k=-1", "k=-1"),
    ):
        with pytest.raises(ValueError, match=words):
            controllers.build(spec)


def warmed() -> tuple[Efficiency, CostModel]:
    """A controller and costs that have seen a text."""
    controller, costs = Efficiency(), CostModel()
    simulate(controller, NATIVE, Text(0.9, seed=7), 300, costs)
    return controller, costs
