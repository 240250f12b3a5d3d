"""Every drafter x selection x controller, from the registries: the text is plain decoding's.

On tiny random models in float64, where rounding is no excuse. Budgets are so small that drafts are
rejected, and that they were is asserted.
"""

from __future__ import annotations

import functools
import itertools
from typing import Any

import pytest

from glimpse.config import Method, SamplingParams
from glimpse.controllers import controllers
from glimpse.drafters import Assets, drafters
from glimpse.engine import Engine
from glimpse.selection import selections
from glimpse.types import Runner, Sequence
from tests.heads import tiny_head
from tests.tiny import PLAIN, decode, prompts, tiny_runner

SMALL = {
    "budget": 0.05,
    "min_budget": 6,
    "sink_size": 1,
    "recent_size": 3,
    "window": 4,
    "page_size": 4,
    "chunk_size": 2,
    "num_dense_layers": 1,
}
LENGTHS = (33, 7, 64, 20)
GREEDY = SamplingParams(max_tokens=24)
SAMPLED = SamplingParams(max_tokens=24, temperature=1.0)


def spec(selection: str) -> str:
    """The selection with a tiny budget, where it has one."""
    valid = selections.options(selection)
    chosen = [f"{key}={value}" for key, value in SMALL.items() if key in valid]
    return f"{selection}:{','.join(chosen)}" if chosen else selection


OPTIONS = {
    "layerskip": ":exit_layer=2",
    "rapid": ":num_tokens=12,chunk_size=4,query_size=5",
}
"""What the tiny model needs."""
FORMS = {"hierarchical": ["hierarchical:inner_k=2", "hierarchical:inner=auxiliary,inner_k=2"]}
"""Drafters that come in several forms."""
DRAFTERS = [
    form for name in drafters.names() for form in FORMS.get(name, [name + OPTIONS.get(name, "")])
]
CONTROLLERS = [name for name in controllers.names() if name != "fixed"] + ["fixed:k=5"]


def views(drafter: str) -> list[Any]:
    """The selections that a drafter can be given."""
    uses_view = drafters.get(drafter.partition(":")[0]).uses_view
    return selections.names() if uses_view else [None]


def combinations() -> list[Any]:
    """All that may be combined. Every pair is in the default tier, the rest is slow."""
    found = []
    for drafter, controller in itertools.product(DRAFTERS, CONTROLLERS):
        for selection in views(drafter):
            is_common = (
                selection in (None, "verification")
                or (controller.startswith("fixed") and drafter == "sparse_self")
                or (controller.startswith("fixed") and selection == "full")
            )
            marks = () if is_common else pytest.mark.slow
            found.append(pytest.param(drafter, selection, controller, marks=marks))
    return found


@pytest.fixture(scope="module")
def runner() -> Runner:
    return tiny_runner()


@functools.cache
def assets(drafter: str | None) -> Assets:
    """A second model, which is the first two of the target's three layers, and a random head."""
    kind = drafter and drafters.build(drafter).needs_head
    config = tiny_runner().config
    return Assets(tiny_runner(num_layers=2), None if kind is None else tiny_head(kind, config))


def generate(
    runner: Runner, method: Method, params: SamplingParams, lengths: tuple[int, ...], seed: int = 7
) -> list[Sequence]:
    """Texts for prompts of these lengths, in one batch."""
    engine = Engine(runner, decode, assets=assets(method.drafter))
    opened = [engine.open(ids, params, method, seed=seed) for ids in prompts(runner, lengths)]
    running = list(opened)
    while running:
        engine.round(running)
        running = [sequence for sequence in running if not sequence.is_finished]
    for sequence in opened:
        assert runner.length(sequence.handle) == len(sequence.token_ids) - 1
        runner.close(sequence.handle)
    return opened


def texts(sequences: list[Sequence]) -> list[list[int]]:
    return [sequence.output_ids for sequence in sequences]


@pytest.mark.parametrize("params", [GREEDY, SAMPLED], ids=["greedy", "coupled"])
@pytest.mark.parametrize(("drafter", "selection", "controller"), combinations())
def test_the_text_is_plain_decodings(
    runner: Runner, drafter: str, selection: str | None, controller: str, params: SamplingParams
) -> None:
    expected = texts(generate(runner, PLAIN, params, LENGTHS))
    view = None if selection is None else spec(selection)
    method = Method("test", drafter, view, controller)
    drafted = generate(runner, method, params, LENGTHS)
    assert texts(drafted) == expected
    num_rejected = sum(s.stats.drafted - s.stats.accepted for s in drafted)
    assert sum(s.stats.drafted for s in drafted) > 0
    if selection == "full" and not drafter.startswith("layerskip"):
        assert num_rejected == 0
    elif controller.startswith("fixed"):
        assert num_rejected > 0
    if controller.startswith("fixed") and drafter == "sparse_self":
        assert sum(s.stats.accepted for s in drafted) > 0


@pytest.mark.parametrize("params", [GREEDY, SAMPLED], ids=["greedy", "coupled"])
@pytest.mark.parametrize("k", range(17))
def test_any_draft_length(runner: Runner, k: int, params: SamplingParams) -> None:
    method = Method("test", "sparse_self", spec("verification"), f"fixed:k={k}")
    expected = texts(generate(runner, PLAIN, params, LENGTHS[:2]))
    drafted = generate(runner, method, params, LENGTHS[:2])
    assert texts(drafted) == expected
    assert max(max(s.stats.draft_lengths) for s in drafted) == min(k, GREEDY.max_tokens - 2)


@pytest.mark.parametrize("params", [GREEDY, SAMPLED], ids=["greedy", "coupled"])
@pytest.mark.parametrize("num_sequences", [1, 2, 3, 4])
def test_any_batch(runner: Runner, num_sequences: int, params: SamplingParams) -> None:
    method = Method("test", "sparse_self", spec("verification"), "fixed:k=4")
    alone = [generate(runner, PLAIN, params, LENGTHS[: i + 1])[i] for i in range(num_sequences)]
    together = generate(runner, method, params, LENGTHS[:num_sequences])
    assert texts(together) == texts(alone)


def test_a_seed_fixes_a_coupled_text_and_another_seed_changes_it(runner: Runner) -> None:
    method = Method("test", "sparse_self", spec("streaming"), "fixed:k=3")
    first, again, other = (texts(generate(runner, method, SAMPLED, (20,), s)) for s in (1, 1, 2))
    assert first == again
    assert first != other


def test_methods_mix_in_one_batch(runner: Runner) -> None:
    engine = Engine(runner, decode)
    methods = [
        PLAIN,
        Method("a", "sparse_self", spec("verification"), "fixed:k=3"),
        Method("b", "sparse_self", spec("streaming"), "efficiency"),
    ]
    expected = texts(generate(runner, PLAIN, GREEDY, LENGTHS[:3]))
    opened = [
        engine.open(ids, GREEDY, method)
        for ids, method in zip(prompts(runner, LENGTHS[:3]), methods, strict=True)
    ]
    while not all(sequence.is_finished for sequence in opened):
        engine.round([sequence for sequence in opened if not sequence.is_finished])
    assert texts(opened) == expected


def test_rejection_runs_everywhere(runner: Runner) -> None:
    """Its law is tested in test_acceptance; here, that the engine gives it what it needs."""
    for drafter in DRAFTERS:
        for selection in views(drafter):
            view = None if selection is None else spec(selection)
            method = Method("test", drafter, view, "fixed:k=4", "rejection")
            drafted = generate(runner, method, SAMPLED, LENGTHS)
            assert all(len(s.output_ids) == SAMPLED.max_tokens for s in drafted)
            if selection == "full" and not drafter.startswith("layerskip"):
                assert all(s.stats.acceptance_rate == 1 for s in drafted)
