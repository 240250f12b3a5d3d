"""The experiments on the default model: what is run, stated before anything is measured."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from glimpse.bench.harness import Run, make_engines, side_by_side, with_baseline
from glimpse.bench.workloads import LANGUAGE_REFERENCE, Example, prompt
from glimpse.config import Method
from glimpse.llm import LLM
from glimpse.methods import get_method
from glimpse.types import Progress

BUDGET = 0.1
FIXED_K = (1, 2, 3, 4, 6, 8)


@dataclass(frozen=True)
class Condition:
    """Methods that are compared under the same sampling."""

    name: str
    methods: Mapping[str, Method]
    sampling: Mapping[str, Any]
    num_tokens: int = 7500
    """Of the document, to which the question is added."""


@dataclass(frozen=True)
class Experiment:
    """Conditions, each run on every example: a document and a question."""

    name: str
    question: str
    """What it is to find out."""
    conditions: tuple[Condition, ...]
    examples: tuple[Example, ...] = LANGUAGE_REFERENCE
    max_tokens: int = 96
    repeats: int = 1


@dataclass(frozen=True)
class Result:
    """A run, and where in its experiment it belongs."""

    condition: str
    example: str
    run: Run


def sparse_self(selection: str, controller: str, acceptance: str = "auto") -> Method:
    """SparseSpec-L with another selection or controller."""
    return get_method(
        "sparsespec-l",
        selection=f"{selection}:budget={BUDGET}",
        controller=controller,
        acceptance=acceptance,
    )


def _fixed(selections: tuple[str, ...], ks: tuple[int, ...], acceptance: str) -> dict[str, Method]:
    return {
        f"{selection} k={k}": sparse_self(selection, f"fixed:k={k}", acceptance)
        for selection in selections
        for k in ks
    }


ACCEPTANCE = Experiment(
    "acceptance",
    "How many drafted tokens are accepted at a fixed draft length, greedy and sampled?",
    (
        Condition(
            "greedy", _fixed(("verification", "streaming"), (4, 8), "greedy"), {"temperature": 0.0}
        ),
        *(
            Condition(
                f"T={temperature} {rule}",
                _fixed(("verification",), (4,), rule),
                {"temperature": temperature, "seed": 0},
            )
            for temperature in (0.8, 1.0)
            for rule in ("coupled", "rejection")
        ),
    ),
)

CONTROLLER = Experiment(
    "controller",
    "Does the controller reach the best fixed draft length, and what does it cost?",
    (
        Condition(
            "greedy",
            {
                "online": sparse_self("verification", "efficiency"),
                "paper": sparse_self("verification", "efficiency:calibration=paper"),
                **{f"k={k}": sparse_self("verification", f"fixed:k={k}") for k in FIXED_K},
            },
            {"temperature": 0.0},
        ),
    ),
    repeats=2,
)

CONTEXTS = Experiment(
    "contexts",
    "Is SparseSpec-L slower than plain decoding at any length of context?",
    tuple(
        Condition(
            f"{num_tokens} tokens",
            {"sparsespec-l": sparse_self("verification", "efficiency")},
            {"temperature": 0.0},
            num_tokens,
        )
        for num_tokens in (256, 1024, 2048, 4096, 7500)
    ),
    max_tokens=128,
    repeats=2,
)

TRAINING_FREE = (
    "verification",
    "streaming",
    "snapkv",
    "pillar",
    "vegas",
    "h2o",
    "scissorhands",
    "pyramidkv",
    "quest",
    "arkvale",
    "chunk",
    "infinigen",
)
"""Every selection with a budget. Most need the torch runner."""


def _at_budget(selection: str, budget: float, k: int) -> Method:
    """A selection with so much and no more: least budgets differ from paper to paper."""
    spec = f"{selection}:budget={budget},min_budget=1"
    return get_method("sparsespec-l", selection=spec, controller=f"fixed:k={k}")


SELECTIONS = Experiment(
    "selections",
    "Which selection has most of its drafts accepted, at the same budget and draft length?",
    tuple(
        Condition(
            f"budget {budget:.0%}, k={k}",
            {selection: _at_budget(selection, budget, k) for selection in TRAINING_FREE},
            {"temperature": 0.0},
            4000,
        )
        for budget in (0.05, 0.1)
        for k in (4, 8)
    ),
)

EXPERIMENTS = {
    experiment.name: experiment for experiment in (ACCEPTANCE, CONTROLLER, CONTEXTS, SELECTIONS)
}


def run(
    experiment: Experiment,
    llm: LLM,
    progress: Progress | None = None,
    reading: Progress | None = None,
) -> Iterator[Result]:
    """Run an experiment; within a condition, methods keep what they learn from text to text."""
    num_done = 0
    arms = {condition.name: with_baseline(condition.methods) for condition in experiment.conditions}
    engines = {name: make_engines(llm, methods) for name, methods in arms.items()}
    total = len(experiment.examples) * experiment.repeats * sum(map(len, arms.values()))
    for example in experiment.examples:
        for condition in experiment.conditions:
            prompt_ids = prompt(example, llm.tokenizer, condition.num_tokens)
            params = llm.sampling_params(
                max_tokens=experiment.max_tokens,
                min_tokens=experiment.max_tokens,
                **condition.sampling,
            )
            runs = side_by_side(
                llm,
                [prompt_ids],
                arms[condition.name],
                params,
                repeats=experiment.repeats,
                engines=engines[condition.name],
                reading=reading,
            )
            for done in runs:
                yield Result(condition.name, example.name, done)
            num_done += len(runs)
            if progress is not None:
                progress(num_done, total)
