"""``glimpse compare``: methods side by side on one document, token identity checked."""

from __future__ import annotations

from typing import Annotated, Any

import typer
from rich.box import SIMPLE
from rich.console import Console
from rich.table import Table

from glimpse.bench.harness import (
    BASELINE,
    Run,
    Summary,
    make_engines,
    side_by_side,
    summarise,
    with_baseline,
)
from glimpse.cli import options
from glimpse.config import Method
from glimpse.costs import CostModel
from glimpse.methods import get_method


def compare(
    model: options.Model = "smollm2-135m",
    prompt: options.Prompt = None,
    file: options.File = None,
    ask: Annotated[
        list[str] | None, typer.Option(help="A question; repeat it: the document is read once.")
    ] = None,
    methods: Annotated[str, typer.Option(help="Names, with commas; plain decoding is added.")] = (
        "autoregressive,sparsespec-l"
    ),
    repeats: Annotated[int, typer.Option(min=1, help="Runs of each method, interleaved.")] = 3,
    max_tokens: options.MaxTokens = 128,
    temperature: options.Temperature = None,
    seed: options.Seed = None,
    controller: options.Controller = None,
    acceptance: options.Acceptance = None,
    budget: options.Budget = None,
    runner: options.Runner = "auto",
    device: options.Device = None,
    dtype: options.Dtype = None,
    threads: options.Threads = None,
    kv_dtype: options.KVDtype = None,
    activations: options.Activations = None,
    draft_model: options.DraftModel = None,
    draft_head: options.DraftHead = None,
    cost_table: options.CostTable = None,
    show_text: Annotated[bool, typer.Option("--show-text", help="Print the answers.")] = False,
    json: options.Json = False,
) -> None:
    """Compare methods: speed against plain decoding, acceptance, the same tokens or not."""
    chosen = _methods(methods, controller, acceptance, budget)
    sampling = options.sampling(max_tokens=max_tokens, temperature=temperature, seed=seed)
    questions: list[str | None] = [*ask] if ask else [None]
    texts = [options.text_of(prompt, file, question) for question in questions]
    llm = options.load(
        model,
        chosen.values(),
        method=BASELINE,
        runner=runner,
        device=device,
        dtype=dtype,
        threads=threads,
        kv_dtype=kv_dtype,
        activations=activations,
        draft_model=draft_model,
        draft_head=draft_head,
    )
    prompts = [options.token_ids(llm, text, is_chat=bool(ask)) for text in texts]
    costs = CostModel.load(cost_table) if cost_table else None
    with options.progress_bars("reading", "runs") as (reading, progress):
        runs = side_by_side(
            llm,
            prompts,
            chosen,
            llm.sampling_params(**sampling),
            repeats=repeats,
            seed=seed or 0,
            engines=make_engines(llm, chosen, costs),
            progress=progress,
            reading=reading,
        )
    summaries = summarise(runs)
    if json:
        options.print_json({"methods": {name: _as_dict(s) for name, s in summaries.items()}})
        return
    if show_text:
        _print_texts(ask or [prompt or str(file)], runs)
    Console().print(_table(summaries))


def _methods(
    names: str, controller: str | None, acceptance: str | None, budget: float | None
) -> dict[str, Method]:
    """The methods asked for, options given to those they mean something to."""
    found = {}
    for name in filter(None, (part.strip() for part in names.split(","))):
        plain = get_method(name).drafter is None
        found[name] = get_method(
            name,
            acceptance=acceptance,
            controller=None if plain else controller,
            budget=None if get_method(name).selection in (None, "full") else budget,
        )
    return with_baseline(found)


def _as_dict(summary: Summary) -> dict[str, Any]:
    return {
        **summary.stats.as_dict(),
        "speedup": summary.speedup,
        "identical_tokens": summary.is_identical,
        "spread": summary.spread,
    }


def _print_texts(questions: list[str], runs: list[Run]) -> None:
    console = Console()
    for number, question in enumerate(questions):
        console.print(f"\n[bold]{question}[/bold]", highlight=False)
        texts = {run.method: run.text for run in runs if run.prompt == number}
        for name, text in texts.items():
            same = name != BASELINE and text == texts[BASELINE]
            console.print(f"[dim]{name}:[/dim]", "(the same text)" if same else text, markup=True)


def _table(summaries: dict[str, Summary]) -> Table:
    caption = "acc.: accepted of drafted; rep.: repeated 8-grams; prefill and total in seconds"
    table = Table(box=SIMPLE, collapse_padding=True, caption=caption)
    table.add_column("method", no_wrap=True)
    columns = ("tok/s", "speed-up", "same", "acc.", "tok/round", "rep.", "prefill", "total")
    for column in columns:
        table.add_column(column, justify="right", no_wrap=True)
    for name, summary in summaries.items():
        stats = summary.stats
        table.add_row(
            name,
            f"{stats.decode_tokens_per_s:.1f}",
            f"{summary.speedup:.2f}x",
            "yes" if summary.is_identical else "no",
            f"{stats.acceptance_rate:.0%}" if stats.drafted else "-",
            f"{stats.tokens_per_round:.2f}",
            f"{stats.repetition:.0%}",
            f"{stats.prefill_s:.1f}",
            f"{stats.total_s:.1f}",
        )
    return table
