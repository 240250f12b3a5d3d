"""``glimpse bench questions``: one document, several questions, long answers.

Each engine keeps what it has read of the document in its own way."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from itertools import takewhile
from typing import Any

from glimpse import runners
from glimpse.bench.peer_runs import start
from glimpse.bench.peers import PeerProcess, Request
from glimpse.bench.peers.catalogue import Row, Setup, chosen, own_rows
from glimpse.bench.workloads import LANGUAGE_REFERENCE, document
from glimpse.models import Tokenizer, load_tokenizer, resolve
from glimpse.types import Progress

QUESTIONS = (
    LANGUAGE_REFERENCE[0].question,
    "How does the text say that an attribute of an object is looked up?",
    "What are coroutines and asynchronous generators? Summarise what the text says.",
    "Which special methods customise the creation of classes? Describe each.",
    "Write a list of the ten most important terms of the text, each with a definition.",
)

Record = dict[str, Any]
Start = Callable[[Row, Setup], PeerProcess]


@dataclass(frozen=True)
class QuestionBench:
    """What is run: every engine answers all questions, one after the other."""

    model: str
    runner: str = "auto"
    peers: tuple[str, ...] = ()
    """Rows or engines of the catalogue; empty for all that can keep what they have read."""
    context: int = 7400
    """Tokens of the document."""
    max_tokens: int = 512
    threads: int = 2
    num_questions: int = len(QUESTIONS)

    def __post_init__(self) -> None:
        for name, least in (("max_tokens", 3), ("threads", 1), ("context", 1)):
            if (value := getattr(self, name)) < least:
                raise ValueError(f"{name}={value}: must be at least {least}")


def prompts(bench: QuestionBench, tokenizer: Tokenizer) -> list[list[int]]:
    """The document with each question, as a user's message in the chat template."""
    text = document(LANGUAGE_REFERENCE[0].topic, tokenizer, bench.context)
    return [
        tokenizer.chat([{"role": "user", "content": f"{text}\n\n{question}"}])
        for question in QUESTIONS[: bench.num_questions]
    ]


def run(
    bench: QuestionBench, start: Start = start, progress: Progress | None = None
) -> Iterator[Record]:
    """A record for each engine and question; an engine that cannot be had is named."""
    files = resolve(bench.model)
    asked = prompts(bench, load_tokenizer(files))
    setup = Setup(files, bench.threads, max(map(len, asked)) + bench.max_tokens, keeps_prefix=True)
    peers = [row for row in chosen(bench.peers) if row.can_keep_prefix]
    engines = (*own_rows(runners.choose(bench.runner)), *peers)
    num_done, total = 0, len(engines) * len(asked)
    yield {"questions": len(asked), "context": len(asked[0]), "max_tokens": bench.max_tokens,
           "threads": bench.threads, "model": bench.model}  # fmt: skip
    for row in engines:
        facts: Record = {"engine": row.name, "is_own": row.is_own}
        if command := row.how_to_install:
            yield {**facts, "missing": f"not installed: {command}"}
            continue
        # One after the other: each has the machine, and the memory for its cache, to itself.
        with ExitStack() as stack:
            try:
                peer = stack.enter_context(start(row, setup))
                for number, ids in enumerate(asked):
                    found = asdict(peer.generate(Request(ids, bench.max_tokens)))
                    yield {**facts, "question": number, **found}
                    num_done += 1
                    if progress is not None:
                        progress(num_done, total)
            except RuntimeError as error:
                yield {**facts, "missing": f"failed: {str(error).strip().splitlines()[-1]}"}


@dataclass(frozen=True)
class QuestionRow:
    """One engine over all questions. Seconds are of the whole dialogue, reading included."""

    name: str
    is_own: bool
    first_ttft_s: float
    later_ttft_s: float
    """Mean over the questions after the first."""
    total_s: float
    over_best_peer: float | None
    """The best peer's total time over this one's."""
    num_same_tokens: int
    """Leading tokens of our plain decoding's, summed over the answers."""


def rows(records: list[Record]) -> list[QuestionRow]:
    """A row for each engine that answered all questions, in the order of the run."""
    answers: dict[str, list[Record]] = {}
    for record in records[1:]:
        if "token_ids" in record:
            answers.setdefault(record["engine"], []).append(record)
    whole = {n: found for n, found in answers.items() if len(found) == records[0]["questions"]}
    totals = {n: sum(r["ttft_s"] + r["decode_s"] for r in found) for n, found in whole.items()}
    best = min((totals[n] for n, found in whole.items() if not found[0]["is_own"]), default=None)
    expected = next(iter(whole.values()), [])
    return [
        QuestionRow(
            name,
            found[0]["is_own"],
            found[0]["ttft_s"],
            sum(r["ttft_s"] for r in found[1:]) / max(1, len(found) - 1),
            totals[name],
            best / totals[name] if best else None,
            sum(map(_num_same, found, expected)),
        )
        for name, found in whole.items()
    ]


def missing(records: list[Record]) -> list[tuple[str, str]]:
    """Engines that could not be had or failed, and why."""
    return [(r["engine"], r["missing"]) for r in records[1:] if "missing" in r]


def _num_same(one: Record, other: Record) -> int:
    pairs = zip(one["token_ids"], other["token_ids"], strict=True)
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))


def cells(records: list[Record]) -> tuple[list[str], list[list[str]]]:
    """A table: total time against the best peer's, and the waits for a first token."""
    header = ["engine", "total", "/ peer", "first ttft", "later ttft", "same"]
    body = [
        [
            row.name,
            f"{row.total_s:.1f} s",
            "-" if row.over_best_peer is None else f"{row.over_best_peer:.2f}x",
            f"{row.first_ttft_s:.1f} s",
            f"{row.later_ttft_s:.2f} s",
            str(row.num_same_tokens),
        ]
        for row in rows(records)
    ]
    return header, body + [[name, *["-"] * (len(header) - 1)] for name, _ in missing(records)]
