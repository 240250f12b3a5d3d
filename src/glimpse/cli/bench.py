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
from glimpse.bench.harness import Summary, summarise
from glimpse.bench.provenance import write_jsonl
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
        runs = [result.run for result in results if result.condition == condition.name]
        if not runs:
            continue
        summaries = summarise(runs)
        Console().print(_table(condition.name, summaries, results))
        report[condition.name] = {
            name: {**summary.stats.as_dict(), "speedup": summary.speedup}
            for name, summary in summaries.items()
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


def _table(condition: str, summaries: dict[str, Summary], results: list[Result]) -> Table:
    """One row per method: pooled figures, then the acceptance on each example."""
    examples = list(dict.fromkeys(result.example for result in results))
    table = Table(title=condition, title_justify="left")
    table.add_column("method")
    columns = ("speed-up", "same tokens", "accepted", "tokens/round", "mean k", "repetition")
    for column in (*columns, "refresh", "control", *examples):
        table.add_column(column, justify="right")
    for name, summary in summaries.items():
        stats = summary.stats
        rates = [
            f"{result.run.stats.acceptance_rate:.1%} ({result.run.stats.repetition:.0%})"
            for result in results
            if (result.condition, result.run.method, result.run.repeat) == (condition, name, 0)
        ]
        table.add_row(
            name,
            f"{summary.speedup:.2f}x",
            "yes" if summary.is_identical else "no",
            f"{stats.acceptance_rate:.1%}",
            f"{stats.tokens_per_round:.2f}",
            f"{stats.mean_k:.2f}",
            f"{stats.repetition:.0%}",
            f"{stats.seconds.get('refresh', 0.0) / stats.decode_s:.1%}",
            f"{stats.seconds.get('control', 0.0) / stats.decode_s:.2%}",
            *rates,
        )
    return table


def _plain(model: str, path: Path, quick: bool) -> dict[str, Any]:
    sizes = QUICK if quick else {"num_tokens": 7500, "max_tokens": 64, "repeats": 3}
    with options.progress_bars("runs") as (progress,):
        rows, facts = plain.run(model, progress=progress, **sizes)
    write_jsonl(path, plain.as_records(rows, facts))
    theirs = rows[0]
    table = Table()
    table.add_column("engine")
    for column in ("decode speed", "prefill time", "peak memory", "same tokens"):
        table.add_column(column, justify="right")
    for row in rows:
        table.add_row(
            row.name,
            f"{row.decode_tokens_per_s / theirs.decode_tokens_per_s:.2f}x",
            f"{row.prefill_s / theirs.prefill_s:.2f}x",
            f"{row.peak_memory / 2**30:.2f} GiB",
            f"{row.num_same_tokens} of {sizes['max_tokens']}",
        )
    Console().print(table)
    return {"experiment": "plain", **facts, "rows": [asdict(row) for row in rows]}
