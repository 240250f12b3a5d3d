"""The ``torch`` runner: a config-driven decoder with dense KV, a glimpse and window statistics."""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Sequence as SequenceOf
from itertools import count, pairwise

import torch
from torch import Tensor

from glimpse.config import ModelConfig
from glimpse.runners import checks
from glimpse.runners.torch.decoder import Attend, Decoder
from glimpse.runners.torch.sequence import SequenceState
from glimpse.runners.torch.span import Span
from glimpse.runners.torch.weights import load_weights
from glimpse.types import (
    DENSE,
    Capabilities,
    ForwardOutput,
    IndexSpec,
    KVView,
    RaggedBatch,
    Statistics,
)

CAPABILITIES = Capabilities(
    views=frozenset({"dense", "glimpse"}),
    statistics=frozenset({"window", "cumulative"}),
    index=frozenset({"layers", "ranking"}),
    has_hidden_states=True,
    has_early_exit=True,
)


class TorchRunner:
    """The ``Runner`` protocol on plain PyTorch operations.

    ``tensors`` are the model's weights under the hub's names. Raises ValueError that names what is
    missing, unknown or of the wrong shape. Attention of observed rows counts as committed when the
    next dense pass begins and nobody has taken the rows back.
    """

    def __init__(
        self,
        config: ModelConfig,
        tensors: Iterable[tuple[str, Tensor]],
        device: torch.device,
        dtype: torch.dtype,
    ) -> None:
        self._config = config
        self._device, self._dtype = device, dtype
        with torch.inference_mode():
            self._decoder = Decoder(config, load_weights(config, tensors, device, dtype))
        self._sequences: dict[int, SequenceState] = {}
        self._handles = count()

    @property
    def name(self) -> str:
        return "torch"

    @property
    def config(self) -> ModelConfig:
        return self._config

    @property
    def capabilities(self) -> Capabilities:
        return CAPABILITIES

    def pass_bytes(self, num_positions: int) -> int:
        config = self._config
        num_read = config.num_linear_weights + num_positions * config.num_kv_elements
        return num_read * self._dtype.itemsize

    # --------------------------------------------------------------------------------- sequences

    @torch.inference_mode()
    def open(self, capacity: int = 0, statistics: Statistics | None = None) -> int:
        checks.window_of(self.name, capacity, statistics, has_cumulative=True)
        handle = next(self._handles)
        self._sequences[handle] = SequenceState(
            self._config, capacity, statistics or Statistics(), self._device, self._dtype
        )
        return handle

    def close(self, handle: int) -> None:
        self._state(handle)
        del self._sequences[handle]

    @torch.inference_mode()
    def fork(
        self,
        handle: int,
        length: int,
        statistics: Statistics | None = None,
        capacity: int = 0,
    ) -> int:
        parent = self._state(handle)
        parent.check_length(length)
        child = self.open(max(length, capacity), statistics)
        self._sequences[child].copy_from(parent, length)
        return child

    def length(self, handle: int) -> int:
        return self._state(handle).length

    @torch.inference_mode()
    def truncate(self, handle: int, length: int) -> None:
        self._state(handle).truncate(length)

    def truncate_draft(self, handle: int, num_tokens: int) -> None:
        self._state(handle).truncate_draft(num_tokens)

    # ------------------------------------------------------------------------ statistics and index

    def attention_scores(self, handle: int, window: int) -> Tensor:
        with torch.inference_mode():
            scores = self._state(handle).scores(window)
        return scores.to(torch.float32, copy=True)

    @torch.inference_mode()
    def refresh(self, handle: int, spec: IndexSpec) -> None:
        self._state(handle).refresh(spec)

    def index(self, handle: int) -> Tensor:
        with torch.inference_mode():
            index = self._state(handle).index()
        return index.clone()

    # ----------------------------------------------------------------------------------- a pass

    def forward(
        self, batch: RaggedBatch, view: KVView = DENSE, hidden_layers: SequenceOf[int] = ()
    ) -> ForwardOutput:
        num_layers = checks.num_layers(self._config, view, CAPABILITIES, hidden_layers)
        states = self._check(batch, view, num_layers)
        with torch.inference_mode():
            logits, kept = self._run(batch, states, view, num_layers, hidden_layers)
        # Copies made out here are ordinary tensors, which callers may change.
        return ForwardOutput(
            logits.clone(memory_format=torch.contiguous_format),
            {layer: x.clone(memory_format=torch.contiguous_format) for layer, x in kept.items()},
        )

    def _run(
        self,
        batch: RaggedBatch,
        states: list[SequenceState],
        view: KVView,
        num_layers: int,
        hidden_layers: SequenceOf[int],
    ) -> tuple[Tensor, dict[int, Tensor]]:
        is_dense = view.kv == "dense"
        spans = [
            state.begin_dense(len(segment.token_ids), segment.is_observed)
            if is_dense
            else state.begin_draft(len(segment.token_ids))
            for state, segment in zip(states, batch.segments, strict=True)
        ]
        x, kept = self._decoder.hidden(
            self._tensor(batch.token_ids),
            self._tensor([span.position + i for span in spans for i in range(span.num_rows)]),
            max(span.position + span.num_rows for span in spans),
            _attention(spans, batch.cu_seqlens),
            num_layers,
            hidden_layers,
        )
        logits = self._decoder.logits(x.index_select(0, self._tensor(checks.logit_rows(batch))))
        for state, span in zip(states, spans, strict=True):
            if is_dense:
                state.end_dense(span)
            else:
                state.end_draft(span, num_layers)
        return logits, kept

    def _check(self, batch: RaggedBatch, view: KVView, num_layers: int) -> list[SequenceState]:
        """The states of a batch that can be run. Nothing is changed."""
        checks.check_batch(self._config, batch)
        states = [self._state(segment.handle) for segment in batch.segments]
        for segment, state in zip(batch.segments, states, strict=True):
            if view.kv == "dense":
                state.check_dense(len(segment.token_ids))
            else:
                state.check_draft(len(segment.token_ids), num_layers)
        return states

    def _state(self, handle: int) -> SequenceState:
        return checks.find(self._sequences, handle)

    def _tensor(self, values: list[int]) -> Tensor:
        return torch.tensor(values, dtype=torch.int64, device=self._device)


def _attention(spans: list[Span], cu_seqlens: list[int]) -> Attend:
    """Attention of a flat list of tokens, one sequence at a time."""
    if len(spans) == 1:
        return spans[0].attend

    def attend(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return torch.cat(
            [
                span.attend(layer, q[start:end], k[start:end], v[start:end])
                for span, (start, end) in zip(spans, pairwise(cu_seqlens), strict=True)
            ]
        )

    return attend
