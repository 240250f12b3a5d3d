"""Prefill: KV of all of a prompt but its last token, which the first round reads."""

from __future__ import annotations

from collections.abc import Sequence as SequenceOf

from glimpse.config import SamplingParams
from glimpse.types import Progress, RaggedBatch, Runner, Segment, Statistics

CHUNK_SIZE = 512
"""Prompt tokens per pass; chunk edges lie at absolute multiples of it, wherever reading begins."""


def capacity(runner: Runner, prompt_ids: SequenceOf[int], params: SamplingParams) -> int:
    """Tokens that a prompt and the longest answer to it take, within the model's context."""
    return min(runner.config.max_seq_len, len(prompt_ids) + params.max_tokens)


def read(
    runner: Runner,
    prompt_ids: SequenceOf[int],
    statistics: Statistics,
    *,
    handle: int | None = None,
    capacity: int = 0,
    progress: Progress | None = None,
) -> int:
    """Read a prompt and return its KV, with room for ``capacity`` tokens.

    ``handle`` is KV that already holds a beginning of this prompt: only the rest is read. Raises
    ValueError for an empty prompt or one beyond the context; whatever is raised, the KV is freed.
    """
    limit = runner.config.max_seq_len
    try:
        if not prompt_ids:
            raise ValueError("the prompt is empty: it must have at least one token")
        if len(prompt_ids) >= limit:
            raise ValueError(
                f"the prompt has {len(prompt_ids)} tokens: {len(prompt_ids) - limit + 1} more than "
                f"fit into the model's context of {limit} with room for an answer"
            )
        if handle is None:
            handle = runner.open(max(capacity, len(prompt_ids)), statistics)
        fill(runner, handle, prompt_ids[:-1], statistics.window, progress)
    except BaseException:
        if handle is not None:
            runner.close(handle)
        raise
    return handle


def fill(
    runner: Runner,
    handle: int,
    token_ids: SequenceOf[int],
    window: int = 0,
    progress: Progress | None = None,
) -> None:
    """Read what the KV lacks of ``token_ids``, chunk by chunk."""
    start = runner.length(handle)
    while start < len(token_ids):
        stop = min(len(token_ids), (start // CHUNK_SIZE + 1) * CHUNK_SIZE)
        # The last rows' attention ranks the first glimpse. A last chunk shorter than the window
        # leaves that to their queries.
        is_observed = stop == len(token_ids) and 0 < window <= stop - start
        chunk = Segment(handle, token_ids[start:stop], 0, is_observed)
        runner.forward(RaggedBatch([chunk]))
        start = stop
        if progress is not None:
            progress(stop, len(token_ids))
