"""The table of methods, and what may be combined."""

from __future__ import annotations

import pytest

from glimpse.methods import METHODS, build, check_runner, get_method
from glimpse.types import Capabilities


@pytest.mark.parametrize("name", METHODS)
def test_every_method_builds_and_names_its_paper(name: str) -> None:
    plugins = build(get_method(name))
    assert METHODS[name].paper
    assert (plugins.drafter is None) == (name == "autoregressive")


@pytest.mark.parametrize(
    ("name", "options", "words"),
    [
        ("warp", {}, "unknown method 'warp'; valid: autoregressive, sparsespec-l"),
        (
            "sparsespec-l",
            {"selection": "warp"},
            "unknown selection 'warp'; valid: arkvale, chunk, full",
        ),
        ("sparsespec-l", {"selection": "verification:x=1"}, "no option 'x'; valid: budget"),
        ("sparsespec-l", {"controller": "fixed:k=-1"}, "k=-1"),
        ("sparsespec-l", {"controller": "fixed:k=many"}, "k='many'"),
        ("sparsespec-l", {"acceptance": "warp"}, "unknown acceptance 'warp'"),
        ("sparsespec-l", {"budget": 0}, "budget=0"),
        ("sparsespec-l", {"budget": 1.5}, "budget=1.5"),
        ("autoregressive", {"budget": 0.1}, "no selection"),
        ("autoregressive", {"controller": "fixed:k=4"}, "drafts nothing"),
        ("autoregressive", {"selection": "full"}, "selection has no effect"),
        ("full", {"budget": 0.1}, "no option 'budget'"),
    ],
)
def test_what_does_not_fit_is_refused(name: str, options, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        get_method(name, **options)


def test_a_budget_replaces_the_selections_own() -> None:
    method = get_method("sparsespec-l", selection="streaming:budget=0.3,sink_size=2", budget=0.05)
    selection = build(method).selection
    assert (selection.budget, selection.sink_size) == (0.05, 2)


def test_a_runner_without_a_view_is_refused_before_loading() -> None:
    with pytest.raises(ValueError, match=r"a glimpse view and window statistics.*'bare'"):
        check_runner(get_method("sparsespec-l"), "bare", Capabilities())
    check_runner(get_method("autoregressive"), "bare", Capabilities())
