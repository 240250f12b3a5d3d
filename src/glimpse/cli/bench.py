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
from glimpse.bench import batch, experiments, peer_report, peer_runs, plain, questions
from glimpse.bench.batch import BatchBench
from glimpse.bench.experiments import EXPERIMENTS, Experiment, Result
from glimpse.bench.harness import summarise
from glimpse.bench.peer_runs import PeerBench
from glimpse.bench.provenance import write_jsonl
from glimpse.bench.questions import QuestionBench
from glimpse.bench.report import Cells, condition_cells, plain_cells
from glimpse.cli import options
from glimpse.llm import LLM

VALID = {
    **dict.fromkeys(EXPERIMENTS, ("documents", "max_tokens", "repeats", "threads")),
    "batch": ("max_tokens", "repeats", "threads"),
    "plain": (),
    "peers": ("peers", "contexts", "temperatures", "max_tokens", "repeats", "threads"),
    "questions": ("peers", "max_tokens", "threads"),
}
"""Which options of an experiment's own each has."""
QUICK = {"documents": 1, "max_tokens": 48, "repeats": 1}
QUICK_TOKENS = 2000
QUICK_PLAIN: dict[str, Any] = {"num_tokens": QUICK_TOKENS, "max_tokens": 48, "repeats": 1}
QUICK_PEERS: dict[str, Any] = {"contexts": (256,), "max_tokens": 32, "repeats": 1}
QUICK_BATCH: dict[str, Any] = {"num_tokens": (800, 700, 900, 750), "max_tokens": 32, "repeats": 1}
QUICK_QUESTIONS: dict[str, Any] = {"context": 500, "max_tokens": 32, "num_questions": 2}
Item = TypeVar("Item")


def bench(
    name: Annotated[str, typer.Argument(help=f"One of: {', '.join(VALID)}.")],
    model: options.Model = "smollm2-135m",
    runner: options.Runner = "auto",
    quick: Annotated[bool, typer.Option("--quick", help="One short document.")] = False,
    output: Annotated[Path, typer.Option(help="Folder of raw results.")] = Path("build/results"),
    json: options.Json = False,
    peer: Annotated[
        list[str] | None,
        typer.Option(help="peers, questions: an engine or one row."),
    ] = None,
    context: Annotated[list[int] | None, typer.Option(help="peers: tokens of the prompt.")] = None,
    temperature: Annotated[list[float] | None, typer.Option(help="peers: 0 is greedy.")] = None,
    documents: Annotated[
        int | None, typer.Option(help="How many of an experiment's documents; default all.")
    ] = None,
    max_tokens: Annotated[int | None, typer.Option(help="Tokens of an answer.")] = None,
    repeats: Annotated[int | None, typer.Option(help="Runs of each condition.")] = None,
    threads: Annotated[int | None, typer.Option(help="Threads of every engine.")] = None,
) -> None:
    """Run an experiment; the raw result goes to a file in OUTPUT, the table to the terminal."""
    if name not in VALID:
        raise ValueError(f"unknown experiment {name!r}; valid: {', '.join(VALID)}")
    lists = {"peers": peer, "contexts": context, "temperatures": temperature}
    numbers = {
        "documents": documents,
        "max_tokens": max_tokens,
        "repeats": repeats,
        "threads": threads,
    }
    given: dict[str, Any] = {key: tuple(values) for key, values in lists.items() if values}
    given |= {key: value for key, value in numbers.items() if value is not None}
    if refused := [option for option in given if option not in VALID[name]]:
        raise ValueError(
            f"experiment {name!r} has no {', '.join(refused)}; "
            f"it has: {', '.join(VALID[name]) or 'no options of its own'}"
        )
    stem = f"{name}-{runners.choose(runner)}" if name in {*EXPERIMENTS, "batch"} else name
    path = output / f"{stem}{'-quick' if quick else ''}.jsonl"
    if name == "peers":
        given = {**(QUICK_PEERS if quick else {}), **given}
        report = _peers(PeerBench(model, runner, **given), path)
    elif name == "questions":
        given = {**(QUICK_QUESTIONS if quick else {}), **given}
        report = _questions(QuestionBench(model, runner, **given), path)
    elif name == "plain":
        report = _plain(model, path, quick)
    elif name == "batch":
        own_threads = given.pop("threads", None)
        given = {**(QUICK_BATCH if quick else {}), **given}
        report = _batch(BatchBench(**given), _load(model, runner, own_threads), path)
    else:
        own_threads = given.pop("threads", None)
        experiment = _sized(EXPERIMENTS[name], {**(QUICK if quick else {}), **given}, quick)
        report = _experiment(experiment, _load(model, runner, own_threads), path)
    options.console.print(f"raw result: {path}", style="dim", highlight=False)
    if json:
        options.print_json(report)


def _load(model: str, runner: str, threads: int | None) -> LLM:
    return options.load(model, [], method="autoregressive", runner=runner, threads=threads)


def _sized(experiment: Experiment, given: dict[str, Any], quick: bool) -> Experiment:
    """The experiment with fewer documents, other answers or, where quick, shorter documents."""
    if (documents := given.pop("documents", None)) is not None:
        if not 1 <= documents <= len(experiment.examples):
            raise ValueError(f"documents={documents}: must be from 1 to {len(experiment.examples)}")
        given["examples"] = experiment.examples[:documents]
    if quick:
        conditions = experiment.conditions
        shorter = [replace(c, num_tokens=min(c.num_tokens, QUICK_TOKENS)) for c in conditions]
        given["conditions"] = tuple(shorter)
    for name in ("max_tokens", "repeats"):
        if given.get(name, 1) < 1:
            raise ValueError(f"{name}={given[name]}: must be at least 1")
    return replace(experiment, **given)


def _experiment(experiment: Experiment, llm: LLM, path: Path) -> dict[str, Any]:
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
    sizes = QUICK_PLAIN if quick else {"num_tokens": 7500, "max_tokens": 64, "repeats": 3}
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


def _batch(bench: BatchBench, llm: LLM, path: Path) -> dict[str, Any]:
    records: list[dict[str, Any]] = []
    with options.progress_bars("runs") as (progress,):
        _write(path, _noted(batch.run(bench, llm, progress), records), records)
    if records:
        Console().print(_table("batch", batch.cells(records)))
    rows = [asdict(row) for row in batch.rows(records)] if records else []
    return {"experiment": "batch", "rows": rows}


def _questions(bench: QuestionBench, path: Path) -> dict[str, Any]:
    records: list[dict[str, Any]] = []
    with options.progress_bars("answers") as (progress,):
        _write(path, _noted(questions.run(bench, progress=progress), records), records)
    if not records:
        return {"experiment": "questions", "missing": {}, "rows": []}
    Console().print(_table("questions", questions.cells(records)))
    missing = dict(questions.missing(records))
    for engine, why in missing.items():
        Console().print(f"{engine}: {why}", markup=False, highlight=False)
    rows = [asdict(row) for row in questions.rows(records)]
    return {"experiment": "questions", "missing": missing, "rows": rows}
