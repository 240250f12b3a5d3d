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


def begin(
    runner: Runner,
    prompt_ids: SequenceOf[int],
    statistics: Statistics,
    *,
    handle: int | None = None,
    capacity: int = 0,
) -> int:
    """KV for a prompt, with room for ``capacity`` tokens; ``read_chunk`` fills it.

    ``handle`` is KV that already holds a beginning of this prompt: only the rest is to be read.
    Raises ValueError for an empty prompt or one beyond the context; ``handle`` is then freed.
    """
    limit = runner.config.max_seq_len
    if 0 < len(prompt_ids) < limit:
        if handle is None:
            return runner.open(max(capacity, len(prompt_ids)), statistics)
        return handle
    if handle is not None:
        runner.close(handle)
    if not prompt_ids:
        raise ValueError("the prompt is empty: it must have at least one token")
    raise ValueError(
        f"the prompt has {len(prompt_ids)} tokens: {len(prompt_ids) - limit + 1} more than "
        f"fit into the model's context of {limit} with room for an answer"
    )


def read(
    runner: Runner,
    prompt_ids: SequenceOf[int],
    statistics: Statistics,
    *,
    handle: int | None = None,
    progress: Progress | None = None,
) -> int:
    """Read a prompt whole and return its KV; as ``begin``, and whatever is raised frees the KV."""
    handle = begin(runner, prompt_ids, statistics, handle=handle)
    try:
        fill(runner, handle, prompt_ids[:-1], statistics.window, progress)
    except BaseException:
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
    is_read = False
    while not is_read:
        is_read = read_chunk(runner, handle, token_ids, window)
        if progress is not None:
            progress(runner.length(handle), len(token_ids))


def read_chunk(runner: Runner, handle: int, token_ids: SequenceOf[int], window: int = 0) -> bool:
    """Read what the KV lacks of ``token_ids`` up to the next edge; whether that is all of it."""
    start = runner.length(handle)
    stop = min(len(token_ids), (start // CHUNK_SIZE + 1) * CHUNK_SIZE)
    if start < stop:
        # The last rows' attention ranks the first glimpse. A last chunk shorter than the window
        # leaves that to their queries.
        is_observed = stop == len(token_ids) and 0 < window <= stop - start
        chunk = Segment(handle, token_ids[start:stop], 0, is_observed)
        runner.forward(RaggedBatch([chunk]))
    return stop >= len(token_ids)
