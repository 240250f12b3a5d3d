"""Raw results to Markdown: ``python -m glimpse.bench.report > docs/results.md``."""

from __future__ import annotations

import json
import sys
from collections import Counter
from dataclasses import fields
from pathlib import Path
from typing import Any

from glimpse.bench import batch, peer_report, questions
from glimpse.bench.experiments import EXPERIMENTS
from glimpse.bench.harness import Run, Summary, summarise
from glimpse.stats import Stats

GIB = 2**30
HEADER = """# Results

Generated from the raw files in `benchmarks/results/` by `python -m glimpse.bench.report`; each
table names its command. Speed-ups are over plain decoding of the same runner and run; the machines
are shared and noisy, so ratios only. Repetition is the share of repeated 8-grams: looping text
flatters acceptance."""


OTHER_QUESTIONS = {
    "plain": "Plain decoding beside peers",
    "peers": "How fast are other engines on the same file, prompt and threads?",
    "batch": "What does speculation gain where several documents are decoded together?",
    "questions": "One document, several questions, long answers: how long does all of it take?",
}


def main() -> None:
    """Print a section for each result in the folder that is given."""
    folder = Path(sys.argv[1] if len(sys.argv) > 1 else "benchmarks/results")
    sections = [HEADER]
    for path in sorted(folder.glob("*.jsonl")):
        first, *records = (json.loads(line) for line in path.read_text("utf-8").splitlines())
        if not records:
            sys.exit(f"{path}: holds no results, only where they were to come from; run it again")
        sections.append(f"{title(path.stem, first['provenance'])}\n\n{section(records)}")
    sys.stdout.write("\n\n".join(sections) + "\n")


def section(records: list[dict[str, Any]]) -> str:
    """A result's tables; what kind it is shows in its first record."""
    if "engines" in records[0]:
        return peers_section(records)
    if "questions" in records[0]:
        return questions_section(records)
    if "batch" in records[0]:
        return markdown(batch.cells(records))
    return plain_section(records) if "kv_bytes" in records[0] else experiment_section(records)


def title(name: str, facts: dict[str, Any]) -> str:
    """Heading of a result, its question, and where it comes from."""
    questions = OTHER_QUESTIONS | {name: e.question for name, e in EXPERIMENTS.items()}
    versions = ", ".join(f"{library} {version}" for library, version in facts["libraries"].items())
    note = f"\n\n**{facts['note']}**" if "note" in facts else ""
    return (
        f"## {name}: {questions[name.split('-')[0]]}\n\n`{facts['command']}`, "
        f"commit {facts['commit'][:10]}, {facts['processor']}, {facts['threads']} torch threads, "
        f"{versions}, {facts['time'][:10]}{note}"
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


def peers_section(records: list[dict[str, Any]]) -> str:
    """What the machine allows, a table for each condition, and the settings of the engines."""
    facts = records[0]
    weights, bandwidth = facts["weight_bytes"] / 1e6, peer_report.bandwidth(records) / 1e9
    parts = [
        f"{facts['model']}, {facts['threads']} threads, answers of {facts['max_tokens']} tokens. "
        f"Weights {weights:.0f} MB, {facts['kv_bytes_per_token'] / 1e3:.1f} kB of KV a token in "
        f"float16; reading {bandwidth:.1f} GB/s ({facts['bandwidth_method']}). A plain row is held "
        "against the best peer without lookup, a speculative one against the best of all; `spread` "
        "is fastest over slowest repeat, `same` the leading tokens of our own plain decoding."
    ]
    for context, temperature in peer_report.conditions(records):
        sampling = f"T = {temperature:g}" if temperature else "greedy"
        table = markdown(peer_report.cells(records, (context, temperature)))
        parts.append(f"### {context} tokens of context, {sampling}\n\n{table}")
    lines = [
        f"- {engine['name']}: {', '.join(f'{k} {v}' for k, v in engine['settings'].items())}"
        for engine in facts["engines"]
        if "settings" in engine
    ]
    lines += [f"- {name}: {why}" for name, why in peer_report.missing(records)]
    return "\n\n".join([*parts, "\n".join(lines)])


def questions_section(records: list[dict[str, Any]]) -> str:
    """The dialogue's size, its table, and who could not take part."""
    facts = records[0]
    size = (
        f"{facts['model']}, {facts['threads']} threads, a document of {facts['context']} tokens "
        f"with its question, {facts['questions']} questions, answers of {facts['max_tokens']} "
        "tokens, greedy; `same` are the leading tokens of our own plain decoding, over all answers."
    )
    lines = [f"- {name}: {why}" for name, why in questions.missing(records)]
    parts = [size, markdown(questions.cells(records)), "\n".join(lines)]
    return "\n\n".join(part for part in parts if part)


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
