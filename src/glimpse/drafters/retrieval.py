"""Which chunks of a long prompt have most to do with its end: BM25 over token ids."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence as SequenceOf

import numpy as np
from numpy.typing import NDArray

K1, B = 1.5, 0.75
"""How fast a repeated term stops to count, and how much longer chunks are marked down (Robertson &
Zaragoza 2009, the usual values)."""


def bm25(chunks: SequenceOf[SequenceOf[int]], query: SequenceOf[int]) -> NDArray[np.float64]:
    """The score of each chunk for a query, tokens being the terms.

    The inverse document frequency is log(1 + (N - n + 0.5) / (n + 0.5)), which is never negative.
    """
    counts = [Counter(chunk) for chunk in chunks]
    lengths = np.array([len(chunk) for chunk in chunks], dtype=np.float64)
    norms = K1 * (1 - B + B * lengths / lengths.mean())
    scores = np.zeros(len(chunks))
    for term in set(query):
        times = np.array([count[term] for count in counts], dtype=np.float64)
        num_with = np.count_nonzero(times)
        weight = np.log1p((len(chunks) - num_with + 0.5) / (num_with + 0.5))
        scores += weight * times * (K1 + 1) / (times + norms)
    return scores


def shorten(
    prompt_ids: SequenceOf[int], num_tokens: int, chunk_size: int, query_size: int
) -> list[int]:
    """At most ``num_tokens`` of a prompt, in its order: its last ``query_size`` tokens, its first
    chunk, where templates and instructions are, and the chunks most like those last tokens.
    """
    if len(prompt_ids) <= num_tokens:
        return list(prompt_ids)
    body, query = prompt_ids[:-query_size], prompt_ids[-query_size:]
    chunks = [body[i : i + chunk_size] for i in range(0, len(body), chunk_size)]
    scores = bm25(chunks, query)
    scores[0] = np.inf
    room, kept = num_tokens - len(query), set()
    for number in np.argsort(-scores, kind="stable").tolist():
        if len(chunks[number]) <= room:
            room -= len(chunks[number])
            kept.add(number)
    return [token for number in sorted(kept) for token in chunks[number]] + list(query)
