"""Options that several commands share, each defined once, and what they turn into."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import fields
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeRemainingColumn,
)

from glimpse import runners
from glimpse.config import Method, RunnerOptions, SamplingParams
from glimpse.costs import CostModel
from glimpse.llm import LLM
from glimpse.methods import check_assets, check_runner, needs_draft_model, needs_head
from glimpse.types import Progress as ProgressCallback

Model = Annotated[
    str, typer.Option("--model", "-m", help="Alias, hub id, folder or .gguf file.", metavar="MODEL")
]
Runner = Annotated[str, typer.Option(help="auto, native or torch.")]
Device = Annotated[str | None, typer.Option(help="cpu, cuda, cuda:1, ...")]
Dtype = Annotated[str | None, typer.Option(help="float32, bfloat16, float16 or float64.")]
Threads = Annotated[int | None, typer.Option(help="Threads; by default one per core.")]
KVDtype = Annotated[
    str | None, typer.Option(help="Native runner: int16, int8, float16 or float32.")
]
Activations = Annotated[
    str | None,
    typer.Option(help="Native runner, for quantised weights: int8 (default) or float32."),
]
DraftModel = Annotated[
    str | None,
    typer.Option(help="Smaller model for methods that draft with one; the same tokenizer."),
]
DraftHead = Annotated[
    str | None, typer.Option(help="Folder of a Medusa or EAGLE-3 head trained for the model.")
]
MethodName = Annotated[str, typer.Option("--method", help="See `glimpse methods`.")]
Prompt = Annotated[str | None, typer.Option(help="Text to continue, as it is.")]
File = Annotated[Path | None, typer.Option("--file", help="A document to ask about (UTF-8).")]
MaxTokens = Annotated[int, typer.Option(help="Tokens to generate at most.")]
Temperature = Annotated[
    float | None, typer.Option(help="0 is greedy; the default is the model's own.")
]
Seed = Annotated[int | None, typer.Option(help="Reproduces a sampled text; drawn if not given.")]
Selection = Annotated[str | None, typer.Option(help="Selection spec, e.g. streaming:budget=0.05.")]
Controller = Annotated[str | None, typer.Option(help="Controller spec, e.g. fixed:k=4.")]
Acceptance = Annotated[str | None, typer.Option(help="auto, greedy, coupled or rejection.")]
Budget = Annotated[float | None, typer.Option(help="Share of the KV that the draft sees.")]
CostTable = Annotated[
    Path | None,
    typer.Option(help="Costs measured before: pinned if the file exists, else saved to it."),
]
Json = Annotated[bool, typer.Option("--json", help="One JSON object as the last line of stdout.")]

console = Console(stderr=True)


@contextmanager
def progress_bars(*names: str) -> Iterator[tuple[ProgressCallback, ...]]:
    """Progress bars on standard error, each shown from the first step of its work on."""
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console, transient=True) as bar:
        yield tuple(_updater(bar, bar.add_task(name, visible=False)) for name in names)


def _updater(bar: Progress, task: TaskID) -> ProgressCallback:
    def update(done: int, total: int) -> None:
        bar.update(task, completed=done, total=total, visible=done < total)

    return update


def sampling(**given: Any) -> dict[str, Any]:
    """The sampling options that were given, checked before anything is loaded."""
    options = {name: value for name, value in given.items() if value is not None}
    SamplingParams(**options)
    return options


def load(
    model: str, methods: Iterable[Method], cost_table: Path | None = None, **options: Any
) -> LLM:
    """Load a model, showing what is fetched; not before it is clear that ``methods`` can run."""
    names = [field.name for field in fields(RunnerOptions)]
    options["runner"] = runners.choose(
        options["runner"], RunnerOptions(**{name: options.get(name) for name in names})
    )
    _check([*methods], options["runner"], options.get("draft_model"), options.get("draft_head"))
    costs = CostModel.load(cost_table) if cost_table and cost_table.exists() else None
    console.print(f"loading {model}", style="dim", highlight=False)
    with progress_bars("fetching") as (progress,):
        return LLM(model, costs=costs, progress=progress, **options)


def _check(
    methods: list[Method], runner: str, draft_model: str | None, draft_head: str | None
) -> None:
    """Raise ValueError, before anything is loaded, if a method lacks what it needs, or none of them
    needs the draft model or the head that is given.
    """
    for method in methods:
        check_runner(method, runner, runners.capabilities(runner))
        check_assets(
            method, has_draft_model=draft_model is not None, has_head=draft_head is not None
        )
    if draft_model is not None and not any(map(needs_draft_model, methods)):
        raise ValueError(f"draft_model={draft_model!r}: none of the methods drafts with one")
    if draft_head is not None and not any(map(needs_head, methods)):
        raise ValueError(f"draft_head={draft_head!r}: none of the methods drafts with one")


def save_costs(llm: LLM, cost_table: Path | None) -> None:
    """Keep the measured costs where a pinned table was asked for and did not exist."""
    if cost_table is not None and not cost_table.exists():
        llm.engine.costs.save(cost_table)


def read_document(path: Path) -> str:
    """A document's text. ValueError if it is not UTF-8, OSError if it cannot be read."""
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        byte = f"byte {error.object[error.start]:#04x} at offset {error.start}"
        raise ValueError(f"{path} is not UTF-8 text ({byte}): convert it first") from None


def text_of(prompt: str | None, file: Path | None, ask: str | None) -> str:
    """What the model shall read: ``prompt`` as it is, or a document, a question, or both."""
    if prompt is None and file is None and ask is None:
        raise ValueError("nothing to do: give --prompt, --ask, or --file with or without --ask")
    if prompt is not None and (file is not None or ask is not None):
        raise ValueError("--prompt is taken as it is: not together with --ask or --file")
    parts = [prompt, read_document(file) if file else None, ask]
    text = "\n\n".join(part.strip() if ask else part for part in parts if part is not None)
    if not text.strip():
        raise ValueError("the prompt is empty: it must have at least one token")
    return text


def token_ids(llm: LLM, text: str, *, is_chat: bool) -> list[int]:
    """The text as a user's message in the model's chat template, or as it is."""
    return (
        llm.render([{"role": "user", "content": text}]) if is_chat else llm.tokenizer.encode(text)
    )


def print_json(value: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(value, ensure_ascii=False) + "\n")
