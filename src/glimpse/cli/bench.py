"""``glimpse bench``: experiments with their baselines, raw results with provenance."""

from __future__ import annotations

from collections.abc import Iterator, Sized
from dataclasses import asdict, replace
from pathlib import Path
from typing import Annotated, Any, TypeVar

import typer
from rich.box import HEAVY_HEAD, Box
from rich.console import Console
from rich.table import Table

from glimpse import runners
from glimpse.bench import experiments, peer_report, peer_runs, plain
from glimpse.bench.experiments import EXPERIMENTS, Experiment, Result
from glimpse.bench.harness import summarise
from glimpse.bench.peer_runs import PeerBench
from glimpse.bench.provenance import write_jsonl
from glimpse.bench.report import Cells, condition_cells, plain_cells
from glimpse.cli import options

NAMES = (*EXPERIMENTS, "plain", "peers")
QUICK: dict[str, Any] = {"num_tokens": 2000, "max_tokens": 48, "repeats": 1}
QUICK_PEERS: dict[str, Any] = {"contexts": (256,), "max_tokens": 32, "repeats": 1}
Item = TypeVar("Item")


def bench(
    name: Annotated[str, typer.Argument(help=f"One of: {', '.join(NAMES)}.")],
    model: options.Model = "smollm2-135m",
    runner: options.Runner = "auto",
    quick: Annotated[bool, typer.Option("--quick", help="One short document.")] = False,
    output: Annotated[Path, typer.Option(help="Folder of raw results.")] = Path("build/results"),
    json: options.Json = False,
    peer: Annotated[
        list[str] | None, typer.Option(help="peers: an engine or one of its rows; default all.")
    ] = None,
    context: Annotated[list[int] | None, typer.Option(help="peers: tokens of the prompt.")] = None,
    temperature: Annotated[list[float] | None, typer.Option(help="peers: 0 is greedy.")] = None,
    max_tokens: Annotated[int | None, typer.Option(help="peers: tokens of an answer.")] = None,
    repeats: Annotated[int | None, typer.Option(help="peers: runs of each condition.")] = None,
    threads: Annotated[int | None, typer.Option(help="peers: threads of every engine.")] = None,
) -> None:
    """Run an experiment; the raw result goes to a file in OUTPUT, the table to the terminal."""
    if name not in NAMES:
        raise ValueError(f"unknown experiment {name!r}; valid: {', '.join(NAMES)}")
    lists = {"peers": peer, "contexts": context, "temperatures": temperature}
    numbers = {"max_tokens": max_tokens, "repeats": repeats, "threads": threads}
    given: dict[str, Any] = {key: tuple(values) for key, values in lists.items() if values}
    given |= {key: value for key, value in numbers.items() if value is not None}
    if given and name != "peers":
        raise ValueError(f"experiment {name!r} has no {', '.join(given)}: these are for 'peers'")
    stem = f"{name}-{runners.choose(runner)}" if name in EXPERIMENTS else name
    path = output / f"{stem}{'-quick' if quick else ''}.jsonl"
    if name == "peers":
        given = {**(QUICK_PEERS if quick else {}), **given}
        report = _peers(PeerBench(model, runner, **given), path)
    elif name == "plain":
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
        found = _noted(experiments.run(experiment, llm, progress, reading), results)
        _write(path, (_record(result) for result in found), results)
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


def _noted(found: Iterator[Item], seen: list[Item]) -> Iterator[Item]:
    """Each of ``found``, noted in ``seen``."""
    for item in found:
        seen.append(item)
        yield item


def _write(path: Path, records: Iterator[dict[str, Any]], seen: Sized) -> None:
    """Write records as they come; an interrupt keeps those that came."""
    try:
        write_jsonl(path, records)
    except KeyboardInterrupt:
        options.console.print(f"interrupted: {len(seen)} results are kept", style="yellow")


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


def _table(name: str, cells: Cells, box: Box | None = HEAVY_HEAD) -> Table:
    header, rows = cells
    table = Table(title=name, title_justify="left", box=box)
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


def _peers(bench: PeerBench, path: Path) -> dict[str, Any]:
    records: list[dict[str, Any]] = []
    with options.progress_bars("runs") as (progress,):
        _write(path, _noted(peer_runs.run(bench, progress=progress), records), records)
    conditions = []
    for context, temperature in peer_report.conditions(records):
        condition = (context, temperature)
        name = f"{context} tokens, T = {temperature:g}"
        cells = peer_report.cells(records, condition, peer_report.NARROW)
        Console().print(_table(name, cells, box=None))
        rows = [asdict(row) for row in peer_report.rows(records, condition)]
        conditions.append({"context": context, "temperature": temperature, "rows": rows})
    missing = dict(peer_report.missing(records)) if records else {}
    for engine, why in missing.items():
        Console().print(f"{engine}: {why}", markup=False, highlight=False)
    return {"experiment": "peers", "missing": missing, "conditions": conditions}
