"""What every runner refuses, in the same words; nothing here changes a sequence."""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Sequence as SequenceOf
from typing import TypeVar

from glimpse.config import ModelConfig
from glimpse.types import Capabilities, IndexSpec, KVView, RaggedBatch, Segment, Statistics

T = TypeVar("T")


def window_of(
    runner: str, capacity: int, statistics: Statistics | None, *, has_cumulative: bool = False
) -> int:
    """The window of a sequence to be opened. Raises ValueError for what cannot be kept."""
    wanted = statistics or Statistics()
    if wanted.is_cumulative and not has_cumulative:
        raise ValueError(f"cumulative statistics: the {runner} runner keeps those of a window only")
    if wanted.window < 0:
        raise ValueError(f"window={wanted.window}: must be at least 0")
    if capacity < 0:
        raise ValueError(f"capacity={capacity}: must be at least 0")
    return wanted.window


def check_index(runner: str, capabilities: Capabilities, spec: IndexSpec) -> None:
    """Raises ValueError for an index of a kind that a runner cannot hold."""
    if spec.is_cumulative and "cumulative" not in capabilities.statistics:
        raise ValueError(f"is_cumulative: the {runner} runner keeps statistics of a window only")
    missing = spec.needs - capabilities.index
    if missing:
        raise ValueError(
            f"the {runner} runner has no index by {', '.join(sorted(missing))}; valid: "
            f"{', '.join(sorted(capabilities.index)) or 'none'}"
        )


def find(sequences: Mapping[int, T], handle: int) -> T:
    """The open sequence of a handle. Raises ValueError that lists the open ones."""
    if handle not in sequences:
        open_ones = ", ".join(map(str, sequences)) or "none"
        raise ValueError(f"unknown handle {handle}; open: {open_ones}")
    return sequences[handle]


def num_layers(
    config: ModelConfig, view: KVView, capabilities: Capabilities, hidden_layers: SequenceOf[int]
) -> int:
    """How many layers a pass has. Raises ValueError for a view or layers that it cannot have."""
    if view.kv not in capabilities.views:
        raise ValueError(f"view {view.kv!r}: must be one of {sorted(capabilities.views)}")
    count = config.num_layers if view.exit_layer is None else view.exit_layer
    if not 1 <= count <= config.num_layers:
        raise ValueError(f"exit_layer={count}: must be from 1 to {config.num_layers}")
    if view.exit_layer is not None and view.kv == "dense":
        raise ValueError(
            f"exit_layer={view.exit_layer} with the dense view would leave holes in the KV: "
            "use the glimpse view, refreshed with a budget of the whole length"
        )
    for layer in hidden_layers:
        if not 0 <= layer <= count:
            raise ValueError(f"hidden layer {layer}: must be from 0 to {count}, the head")
    return count


def check_batch(config: ModelConfig, batch: RaggedBatch) -> None:
    """Raises ValueError for a batch that no runner could run."""
    if not batch.segments:
        raise ValueError("the batch is empty: it must have at least one segment")
    handles = [segment.handle for segment in batch.segments]
    if len(set(handles)) < len(handles):
        raise ValueError(f"handles {handles}: a sequence may be in a batch only once")
    for segment in batch.segments:
        _check_segment(segment, config.vocab_size - 1)


def logit_rows(batch: RaggedBatch) -> list[int]:
    """Which rows of the flat list logits are asked for."""
    ends = batch.cu_seqlens[1:]
    return [
        row
        for segment, end in zip(batch.segments, ends, strict=True)
        for row in range(end - segment.num_logits, end)
    ]


def _check_segment(segment: Segment, last_token_id: int) -> None:
    num_tokens = len(segment.token_ids)
    if num_tokens == 0:
        raise ValueError(f"the segment of handle {segment.handle} has no tokens")
    if not 0 <= segment.num_logits <= num_tokens:
        raise ValueError(f"num_logits={segment.num_logits}: must be from 0 to {num_tokens}")
    for token_id in (min(segment.token_ids), max(segment.token_ids)):
        if not 0 <= token_id <= last_token_id:
            raise ValueError(f"token id {token_id}: must be from 0 to {last_token_id}")
