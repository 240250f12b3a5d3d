"""Raw results to Markdown: ``python -m glimpse.bench.report > docs/results.md``."""

from __future__ import annotations

import json
import sys
from collections import Counter
from dataclasses import fields
from pathlib import Path
from typing import Any

from glimpse.bench.experiments import EXPERIMENTS
from glimpse.bench.harness import Run, Summary, summarise
from glimpse.stats import Stats

GIB = 2**30
HEADER = """# Results

Generated from the raw files in `benchmarks/results/` by `python -m glimpse.bench.report`; each
table names its command. Speed-ups are over plain decoding of the same runner and run; the machines
are shared and noisy, so ratios only. Repetition is the share of repeated 8-grams: looping text
flatters acceptance."""


def main() -> None:
    """Print a section for each result in the folder that is given."""
    folder = Path(sys.argv[1] if len(sys.argv) > 1 else "benchmarks/results")
    sections = [HEADER]
    for path in sorted(folder.glob("*.jsonl")):
        first, *records = (json.loads(line) for line in path.read_text("utf-8").splitlines())
        is_plain = "kv_bytes" in records[0]
        body = plain_section(records) if is_plain else experiment_section(records)
        sections.append(f"{title(path.stem, first['provenance'])}\n\n{body}")
    sys.stdout.write("\n\n".join(sections) + "\n")


def title(name: str, facts: dict[str, Any]) -> str:
    """Heading of a result, its question, and where it comes from."""
    question = EXPERIMENTS[name].question if name in EXPERIMENTS else "Plain decoding beside peers"
    versions = ", ".join(f"{library} {version}" for library, version in facts["libraries"].items())
    note = f"\n\n**{facts['note']}**" if "note" in facts else ""
    return (
        f"## {name}: {question}\n\n`{facts['command']}`, commit {facts['commit'][:10]}, "
        f"{facts['processor']}, {facts['threads']} threads, {versions}, {facts['time'][:10]}{note}"
    )


Cells = tuple[list[str], list[list[str]]]
"""The header of a table and its rows."""


def plain_section(records: list[dict[str, Any]]) -> str:
    """The table of ``plain_cells`` and what memory should be."""
    sizes = records[0]
    kv = f"{sizes['prompt_tokens']} prompt tokens, KV {sizes['kv_bytes'] / GIB:.2f} GiB in float32."
    return f"{kv}\n\n{markdown(plain_cells(records))}"


def plain_cells(records: list[dict[str, Any]]) -> Cells:
    """Engines side by side: decode speed and prefill relative to the first, memory, tokens."""
    theirs = records[1]
    rows = [
        [
            row["name"],
            f"{row['decode_tokens_per_s'] / theirs['decode_tokens_per_s']:.2f}x",
            f"{row['prefill_s'] / theirs['prefill_s']:.2f}x",
            f"{row['peak_memory'] / GIB:.2f} GiB",
            f"{row['num_same_tokens']} of {len(row['measurements'][0]['token_ids'])}",
        ]
        for row in records[1:]
    ]
    return ["engine", "decode speed", "prefill time", "peak memory", "same tokens"], rows


def experiment_section(records: list[dict[str, Any]]) -> str:
    """A table for each condition."""
    parts = []
    for condition in dict.fromkeys(record["condition"] for record in records):
        own = [record for record in records if record["condition"] == condition]
        examples = list(dict.fromkeys(record["example"] for record in own))
        cells = condition_cells([as_run(record, examples) for record in own], examples)
        parts.append(f"### {condition}\n\n{markdown(cells)}")
    return "\n\n".join(parts)


def condition_cells(runs: list[Run], examples: list[str]) -> Cells:
    """Methods pooled over all prompts, then acceptance (repetition) on each of ``examples``."""
    header = ["method", "speed-up", "same tokens", "accepted", "tokens/round", "mean k",
              "repetition", "refresh", "control", *examples]  # fmt: skip
    rows = [
        pooled_row(name, summary) + acceptance_cells(name, runs, len(examples))
        for name, summary in summarise(runs).items()
    ]
    return header, rows


def as_run(record: dict[str, Any], examples: list[str]) -> Run:
    """A record of the raw file as the run it was."""
    known = {field.name for field in fields(Stats)}
    values = {key: value for key, value in record["stats"].items() if key in known}
    lengths = {int(k): count for k, count in values["draft_lengths"].items()}
    return Run(
        method=record["method"],
        prompt=examples.index(record["example"]),
        repeat=record["repeat"],
        token_ids=record["token_ids"],
        text=record["text"],
        finish_reason=record["finish_reason"],
        seed=record["seed"],
        stats=Stats(**{**values, "draft_lengths": Counter(lengths)}),
    )


def pooled_row(name: str, summary: Summary) -> list[str]:
    stats = summary.stats
    return [
        name,
        f"{summary.speedup:.2f}x",
        "yes" if summary.is_identical else "no",
        f"{stats.acceptance_rate:.1%}" if stats.drafted else "-",
        f"{stats.tokens_per_round:.2f}",
        f"{stats.mean_k:.2f}",
        f"{stats.repetition:.0%}",
        f"{stats.seconds.get('refresh', 0.0) / stats.decode_s:.1%}",
        f"{stats.seconds.get('control', 0.0) / stats.decode_s:.2%}",
    ]


def acceptance_cells(name: str, runs: list[Run], num_examples: int) -> list[str]:
    """Acceptance (repetition) on each example, from the first repeat."""
    stats = {run.prompt: run.stats for run in runs if (run.method, run.repeat) == (name, 0)}
    return [
        f"{stats[i].acceptance_rate:.1%} ({stats[i].repetition:.0%})" if i in stats else ""
        for i in range(num_examples)
    ]


def markdown(cells: Cells) -> str:
    """A Markdown table."""
    header, rows = cells
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


if __name__ == "__main__":
    main()
