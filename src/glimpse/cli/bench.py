"""``glimpse bench``: experiments with their baselines, raw results with provenance."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from glimpse.bench import experiments, plain
from glimpse.bench.experiments import EXPERIMENTS, Experiment, Result
from glimpse.bench.harness import summarise
from glimpse.bench.provenance import write_jsonl
from glimpse.bench.report import Cells, condition_cells, plain_cells
from glimpse.cli import options

NAMES = (*EXPERIMENTS, "plain")
QUICK: dict[str, Any] = {"num_tokens": 2000, "max_tokens": 48, "repeats": 1}


def bench(
    name: Annotated[str, typer.Argument(help=f"One of: {', '.join(NAMES)}.")],
    model: options.Model = "smollm2-135m",
    runner: options.Runner = "auto",
    quick: Annotated[bool, typer.Option("--quick", help="One short document.")] = False,
    output: Annotated[Path, typer.Option(help="Folder of raw results.")] = Path("build/results"),
    json: options.Json = False,
) -> None:
    """Run an experiment; the raw result goes to OUTPUT/NAME.jsonl, the table to the terminal."""
    if name not in NAMES:
        raise ValueError(f"unknown experiment {name!r}; valid: {', '.join(NAMES)}")
    path = output / f"{name}{'-quick' if quick else ''}.jsonl"
    if name == "plain":
        report = _plain(model, path, quick)
    else:
        experiment = EXPERIMENTS[name]
        if quick:
            experiment = replace(experiment, examples=experiment.examples[:1], **QUICK)
        report = _experiment(experiment, model, runner, path)
    options.console.print(f"raw result: {path}", style="dim", highlight=False)
    if json:
        options.print_json(report)


def _experiment(experiment: Experiment, model: str, runner: str, path: Path) -> dict[str, Any]:
    llm = options.load(model, method="autoregressive", runner=runner)
    results: list[Result] = []
    with options.progress_bars("reading", "runs") as (reading, progress):
        try:
            write_jsonl(
                path, _records(experiments.run(experiment, llm, progress, reading), results)
            )
        except KeyboardInterrupt:
            options.console.print(f"interrupted: {len(results)} runs are kept", style="yellow")
    report: dict[str, Any] = {}
    for condition in experiment.conditions:
        examples = list(dict.fromkeys(result.example for result in results))
        runs = [
            replace(result.run, prompt=examples.index(result.example))
            for result in results
            if result.condition == condition.name
        ]
        if not runs:
            continue
        # A terminal has no room for a column per example: the Markdown report does.
        Console().print(_table(condition.name, condition_cells(runs, [])))
        report[condition.name] = {
            name: {**summary.stats.as_dict(), "speedup": summary.speedup}
            for name, summary in summarise(runs).items()
        }
    return {"experiment": experiment.name, "conditions": report}


def _records(results: Iterator[Result], seen: list[Result]) -> Iterator[dict[str, Any]]:
    """Each result for the file, noted in ``seen``."""
    for result in results:
        seen.append(result)
        yield _record(result)


def _record(result: Result) -> dict[str, Any]:
    run = result.run
    return {
        "condition": result.condition,
        "example": result.example,
        "method": run.method,
        "repeat": run.repeat,
        "seed": run.seed,
        "finish_reason": run.finish_reason,
        "stats": run.stats.as_dict(),
        "token_ids": run.token_ids,
        "text": run.text,
    }


def _table(name: str, cells: Cells) -> Table:
    header, rows = cells
    table = Table(title=name, title_justify="left")
    table.add_column(header[0])
    for column in header[1:]:
        table.add_column(column, justify="right")
    for row in rows:
        table.add_row(*row)
    return table


def _plain(model: str, path: Path, quick: bool) -> dict[str, Any]:
    sizes = QUICK if quick else {"num_tokens": 7500, "max_tokens": 64, "repeats": 3}
    with options.progress_bars("runs") as (progress,):
        rows, facts = plain.run(model, progress=progress, **sizes)
    records = plain.as_records(rows, facts)
    write_jsonl(path, records)
    Console().print(_table("plain", plain_cells(records)))
    return {"experiment": "plain", **facts, "rows": [asdict(row) for row in rows]}
