"""Medians, ratios and yardsticks against numbers worked by hand."""

from __future__ import annotations

import pytest

from glimpse.bench import peer_report
from glimpse.bench.report import section

ENGINES = [
    {"name": "glimpse plain", "is_own": True, "is_speculative": False, "settings": {"threads": 2}},
    {"name": "glimpse fast", "is_own": True, "is_speculative": True, "settings": {}},
    {"name": "rival", "is_own": False, "is_speculative": False, "settings": {"version": "9"}},
    {"name": "rival lookup", "is_own": False, "is_speculative": True, "settings": {}},
    {"name": "absent", "is_own": False, "is_speculative": False,
     "missing": "not installed: pip install absent"},
]  # fmt: skip
FACTS = {
    "engines": ENGINES, "model": "m", "threads": 2, "max_tokens": 11, "weight_bytes": 1000,
    "kv_bytes_per_token": 10, "bandwidth_method": "a sum",
}  # fmt: skip


def runs(engine: str, speeds: list[float], ttft: float, last: int = 10, temperature: float = 0.0):
    return [
        {
            "engine": engine, "context": 94, "temperature": temperature, "repeat": repeat,
            "ttft_s": ttft, "decode_s": 10 / speed, "token_ids": [*range(10), last],
            "drafted": 8 if "fast" in engine else None, "accepted": 6 if "fast" in engine else None,
        }
        for repeat, speed in enumerate(speeds)
    ]  # fmt: skip


RECORDS = [
    FACTS,
    {"bandwidth": 30_000.0},
    {"bandwidth": 40_000.0},
    *runs("rival lookup", [60.0], 4.0),
    *runs("rival", [5.0, 10.0, 20.0], 2.0, last=11),
    *runs("glimpse plain", [20.0], 1.0),
    *runs("glimpse fast", [30.0], 1.0),
    *runs("glimpse plain", [20.0], 1.0, temperature=0.8),
    *runs("rival", [20.0], 1.0, temperature=0.8),
]


def test_a_plain_row_is_held_against_plain_peers_a_speculative_one_against_all() -> None:
    rows = {row.name: row for row in peer_report.rows(RECORDS, (94, 0.0))}
    assert list(rows) == ["glimpse plain", "glimpse fast", "rival", "rival lookup"]
    plain, fast, rival = rows["glimpse plain"], rows["glimpse fast"], rows["rival"]
    assert (plain.over_best_peer, fast.over_best_peer) == pytest.approx((2.0, 0.5))
    assert (rival.over_best_peer, rows["rival lookup"].over_best_peer) == pytest.approx((1.0, 1.0))
    assert (fast.over_own_plain, rival.over_own_plain) == pytest.approx((1.5, 0.5))
    assert (rival.decode_tokens_per_s, rival.spread) == pytest.approx((10.0, 4.0))
    assert (plain.ttft_over_best, rows["rival lookup"].ttft_over_best) == pytest.approx((0.5, 2.0))
    # 1000 bytes of weights, (94 + 11 / 2) positions of 10 bytes, the best of both bandwidths.
    assert plain.limit_ratio == pytest.approx(20 * (1000 + 995) / 40_000)
    assert (fast.acceptance_rate, plain.acceptance_rate) == (0.75, None)
    assert (plain.num_same_tokens, rival.num_same_tokens) == (11, 10)


def test_sampled_tokens_of_peers_are_not_compared() -> None:
    rows = {row.name: row for row in peer_report.rows(RECORDS, (94, 0.8))}
    assert rows["glimpse plain"].num_same_tokens == 11
    assert rows["rival"].num_same_tokens is None


def test_an_interrupted_run_still_has_a_table() -> None:
    (row,) = peer_report.rows([*RECORDS[:3], *runs("glimpse fast", [30.0], 1.0)], (94, 0.0))
    assert (row.over_best_peer, row.over_own_plain, row.ttft_over_best) == (None, None, None)


def test_engines_without_figures_stand_in_the_table_by_name() -> None:
    failed = {"engine": "late", "context": 94, "temperature": 0.0, "repeat": 0,
              "error": "Traceback\n  somewhere\nOSError: gone"}  # fmt: skip
    records = [*RECORDS, failed]
    header, rows = peer_report.cells(records, (94, 0.0), peer_report.NARROW)
    assert [row[0] for row in rows[-2:]] == ["absent", "late"]
    assert all(set(row[1:]) == {"-"} and len(row) == len(header) for row in rows[-2:])
    text = section(records)
    assert "absent: not installed: pip install absent" in text
    assert "late: OSError: gone" in text
    assert "### 94 tokens of context, T = 0.8" in text
    assert (
        "| glimpse plain | 20.0 | 1.00 | 2.00x | 1.00x | 0.50x | 1.00 | 11 | 1.00 | 1.00 | - |"
        in text
    )
