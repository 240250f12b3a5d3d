"""``glimpse plan``: will speculation pay for a model, a machine, a context and a batch?"""

from __future__ import annotations

import math
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer
from rich.box import SIMPLE
from rich.console import Console
from rich.table import Table

from glimpse import models, presets
from glimpse.bench.figures import plan_figure
from glimpse.cli import options
from glimpse.config import ModelConfig
from glimpse.efficiency import PAPER_ACCEPTANCE_RATES, Prediction, Roofline, fit_token_acceptance


def plan(
    model: Annotated[
        str, typer.Option("--model", "-m", help="Preset, or a model as for generate.")
    ] = "llama-3.1-8b",
    machine: Annotated[str, typer.Option(help="Preset, or `this` to measure this CPU.")] = "a40",
    context: Annotated[str, typer.Option(help="4k:64k (doubling), or 8k,60k.")] = "4k:64k",
    batch: Annotated[str, typer.Option(help="Batch sizes, with commas.")] = "1,2,4,8",
    budget: Annotated[float, typer.Option(help="Share of the KV that the draft sees.")] = 0.1,
    weights: Annotated[str, typer.Option(help="Precision of the weights.")] = "bf16",
    kv: Annotated[str, typer.Option(help="Precision of the KV.")] = "bf16",
    kv_traffic: Annotated[
        float, typer.Option(help="Bytes moved per byte of KV read; 1 is an ideal fused kernel.")
    ] = 1.0,
    max_k: Annotated[int, typer.Option(min=1, help="Longest draft considered.")] = 20,
    acceptance: Annotated[
        float | None,
        typer.Option(help="Probability that a drafted token is accepted; default: the paper's."),
    ] = None,
    plot: Annotated[Path | None, typer.Option(help="Write a figure (png, svg, pdf).")] = None,
    json: options.Json = False,
) -> None:
    """Predict draft length and speed-up from shapes and machine figures alone (a roofline)."""
    if not 0 < budget <= 1:
        raise ValueError(f"budget={budget}: must be above 0 and at most 1")
    if acceptance is not None and not 0 <= acceptance <= 1:
        raise ValueError(f"acceptance={acceptance}: must be from 0 to 1")
    token_acceptance = (
        fit_token_acceptance(PAPER_ACCEPTANCE_RATES) if acceptance is None else acceptance
    )
    if not (math.isfinite(kv_traffic) and kv_traffic >= 1):
        raise ValueError(f"kv_traffic={kv_traffic}: must be at least 1")
    contexts, batches = parse_contexts(context), parse_sizes(batch, "batch")
    roofline = Roofline(
        _config(model),
        presets.machine(machine, lambda text: options.console.print(text, style="dim")),
        weight_bytes=presets.precision(weights),
        kv_bytes=presets.precision(kv),
        budget=budget,
        kv_traffic=kv_traffic,
    )
    limit = roofline.model.max_seq_len
    if max(contexts) > limit:
        raise ValueError(f"context={max(contexts)}: {model} has a context of {limit} at most")
    predictions = [
        roofline.predict(length, size, token_acceptance, max_k)
        for size in batches
        for length in contexts
    ]
    title = (
        f"{model} on {machine}, {weights} weights, {kv} KV, budget {budget:.0%}, "
        f"{token_acceptance:.1%} per drafted token accepted"
    )
    if plot is not None:
        plan_figure(plot, title, predictions)
    if json:
        rows = [{**asdict(row), "cost_ratio": row.cost_ratio} for row in predictions]
        options.print_json({"plan": title, "token_acceptance": token_acceptance, "rows": rows})
    else:
        Console().print(_table(title, predictions))


def parse_contexts(text: str) -> list[int]:
    """``4k:64k`` is every doubling from the one to the other, ``8k,60k`` is those two."""
    if ":" not in text:
        return parse_sizes(text, "context")
    first, *rest = (parse_sizes(part, "context") for part in text.split(":"))
    if len(rest) != 1 or len(first) != 1 or len(rest[0]) != 1 or first[0] > rest[0][0]:
        raise ValueError(f"context={text!r}: must be FIRST:LAST with FIRST at most LAST")
    num_doublings = int(math.log2(rest[0][0] / first[0]))
    return [first[0] << i for i in range(num_doublings + 1)]


def parse_sizes(text: str, what: str) -> list[int]:
    """Whole numbers above 0, with commas between them; a ``k`` behind one is times 1024."""
    sizes = []
    for part in text.lower().split(","):
        digits, factor = (part.strip()[:-1], 1024) if part.strip().endswith("k") else (part, 1)
        if not digits.strip().isdecimal() or int(digits) == 0:
            raise ValueError(f"{what}={text!r}: must be whole numbers above 0, such as 4k or 4096")
        sizes.append(int(digits) * factor)
    return sizes


def _config(model: str) -> ModelConfig:
    if model in presets.MODELS:
        return presets.MODELS[model]
    try:
        return models.load_config(models.resolve(model))
    except models.ModelError as error:
        raise ValueError(f"{error}; presets: {', '.join(presets.MODELS)}") from None


def _table(title: str, predictions: list[Prediction]) -> Table:
    caption = "limit: every draft accepted; inv.: the inversion point, where longer drafts lose"
    table = Table(
        title=title, title_justify="left", caption=caption, box=SIMPLE, collapse_padding=True
    )
    columns = ("batch", "context", "best k", "speed-up", "limit", "inv.", "Cd/Cv", "KV GiB")
    for column in (*columns, "fits", "bound"):
        table.add_column(column, justify="right", no_wrap=True)
    previous = None
    for row in predictions:
        if previous not in (None, row.batch):
            table.add_section()
        previous = row.batch
        table.add_row(
            str(row.batch),
            f"{row.context / 1024:g}k",
            str(row.k),
            f"{row.speedup:.2f}x",
            f"{row.limit:.2f}x",
            "-" if row.inversion_point is None else str(row.inversion_point),
            f"{row.cost_ratio:.2f}",
            f"{row.kv_bytes / 2**30:.2f}",
            "yes" if row.fits else "no",
            row.bound,
        )
    return table
