"""Rows of ``glimpse bench peers``: medians, spread, ratios to the best peer, the yardsticks."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import takewhile
from statistics import median
from typing import Any

from glimpse.bench.yardsticks import limit_ratio

Record = dict[str, Any]
Condition = tuple[int, float]
"""Context and temperature."""

NARROW = ("engine", "tokens/s", "spread", "/ peer", "/ plain", "ttft", "limit", "same")
"""Columns that fit a terminal; ttft is a ratio to the shortest peer's."""
WIDE = (*NARROW, "ttft s", "mbu", "accepted")


@dataclass(frozen=True)
class PeerRow:
    """One engine under one condition: medians over the repeats."""

    name: str
    is_own: bool
    is_speculative: bool
    decode_tokens_per_s: float
    spread: float
    """Fastest over slowest repeat."""
    ttft_s: float
    over_best_peer: float | None
    """Of the peers without lookup for a plain row, of all for a speculative one; None without."""
    over_own_plain: float | None
    ttft_over_best: float | None
    """Over the shortest among all peers."""
    limit_ratio: float
    """Tokens per second over those of reading weights and float16 KV once; of a plain row, mbu."""
    acceptance_rate: float | None
    num_same_tokens: int | None
    """Leading tokens equal to our plain decoding's, which is also where the first difference is.
    None if they cannot be compared: a peer's sampled ones, drawn from other noise.
    """


def conditions(records: list[Record]) -> list[Condition]:
    """In the order they were run."""
    return list(dict.fromkeys((r["context"], r["temperature"]) for r in _measured(records)))


def missing(records: list[Record]) -> list[tuple[str, str]]:
    """Engines that could not be had or failed on the way, and why."""
    absent = [(e["name"], e["missing"]) for e in records[0]["engines"] if "missing" in e]
    failed = [(r["engine"], f"failed: {r['error']}") for r in records if "error" in r]
    # Of an error its last line is the message; the rest is where it came from.
    return [(name, why.strip().splitlines()[-1]) for name, why in absent + failed]


def bandwidth(records: list[Record]) -> float:
    """The best of the run, bytes per second."""
    return max(float(record["bandwidth"]) for record in records if "bandwidth" in record)


def rows(records: list[Record], condition: Condition) -> list[PeerRow]:
    """A row for each engine that ran, in the order of the catalogue."""
    run = _Run(records, condition)
    return [run.row(name) for name in run.found]


class _Run:
    """What the engines did under one condition."""

    def __init__(self, records: list[Record], condition: Condition) -> None:
        self.condition, self.facts = condition, records[0]
        self.bandwidth = bandwidth(records)
        self.engines = {engine["name"]: engine for engine in self.facts["engines"]}
        self.found: dict[str, list[Record]] = {}
        for record in _measured(records):
            if (record["context"], record["temperature"]) == condition:
                self.found.setdefault(record["engine"], []).append(record)
        self.found = {name: self.found[name] for name in self.engines if name in self.found}
        self.speeds = {name: median(map(_speed, runs)) for name, runs in self.found.items()}
        self.ttfts = {name: median(r["ttft_s"] for r in runs) for name, runs in self.found.items()}
        self.peers = [name for name in self.found if not self.engines[name]["is_own"]]

    def row(self, name: str) -> PeerRow:
        engine, runs, speed = self.engines[name], self.found[name], self.speeds[name]
        rivals = self.peers
        if not engine["is_speculative"]:
            rivals = [peer for peer in rivals if not self.engines[peer]["is_speculative"]]
        best = max((self.speeds[peer] for peer in rivals), default=None)
        shortest = min((self.ttfts[peer] for peer in self.peers), default=None)
        plain = self.plain
        return PeerRow(
            name=name,
            is_own=engine["is_own"],
            is_speculative=engine["is_speculative"],
            decode_tokens_per_s=speed,
            spread=max(map(_speed, runs)) / min(map(_speed, runs)),
            ttft_s=self.ttfts[name],
            over_best_peer=speed / best if best else None,
            over_own_plain=speed / self.speeds[plain] if plain else None,
            ttft_over_best=self.ttfts[name] / shortest if shortest else None,
            limit_ratio=limit_ratio(speed, self.token_bytes, self.bandwidth),
            acceptance_rate=_acceptance_rate(runs),
            num_same_tokens=self._num_same_tokens(name),
        )

    @property
    def plain(self) -> str | None:
        """Our own plain decoding; None before its first run of an interrupted experiment."""
        own = (name for name in self.found if self.engines[name]["is_own"])
        return next((name for name in own if not self.engines[name]["is_speculative"]), None)

    @property
    def token_bytes(self) -> float:
        """While the answer grows the KV has, on average, half of it beside the prompt."""
        length = self.condition[0] + self.facts["max_tokens"] / 2
        return float(self.facts["weight_bytes"] + self.facts["kv_bytes_per_token"] * length)

    def _num_same_tokens(self, name: str) -> int | None:
        is_greedy = self.condition[1] == 0
        if self.plain is None or not (is_greedy or self.engines[name]["is_own"]):
            return None
        pairs = zip(
            self.found[name][0]["token_ids"], self.found[self.plain][0]["token_ids"], strict=True
        )
        return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))


def cells(
    records: list[Record], condition: Condition, columns: tuple[str, ...] = WIDE
) -> tuple[list[str], list[list[str]]]:
    """The table of one condition; engines without figures stand in it by name."""
    body = [_cells(row) for row in rows(records, condition)]
    present = {cell["engine"] for cell in body}
    body += [{"engine": name} for name, _ in missing(records) if name not in present]
    return list(columns), [[cell.get(column, "-") for column in columns] for cell in body]


def _cells(row: PeerRow) -> dict[str, str]:
    shown = {
        "engine": row.name,
        "tokens/s": f"{row.decode_tokens_per_s:.1f}",
        "spread": f"{row.spread:.2f}",
        "/ peer": _ratio(row.over_best_peer),
        "/ plain": _ratio(row.over_own_plain),
        "ttft": _ratio(row.ttft_over_best),
        "limit": f"{row.limit_ratio:.2f}",
        "ttft s": f"{row.ttft_s:.2f}",
    }
    if not row.is_speculative:
        shown["mbu"] = shown["limit"]
    if row.acceptance_rate is not None:
        shown["accepted"] = f"{row.acceptance_rate:.0%}"
    if row.num_same_tokens is not None:
        shown["same"] = str(row.num_same_tokens)
    return shown


def _ratio(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}x"


def _measured(records: list[Record]) -> Iterable[Record]:
    return (record for record in records if "token_ids" in record)


def _speed(record: Record) -> float:
    """Tokens per second, the first token excluded."""
    return float((len(record["token_ids"]) - 1) / record["decode_s"])


def _acceptance_rate(found: list[Record]) -> float | None:
    """Accepted over drafted of all repeats; None if nothing was drafted, or the engine is mute."""
    drafted = sum(record["drafted"] or 0 for record in found)
    return sum(record["accepted"] or 0 for record in found) / drafted if drafted else None
