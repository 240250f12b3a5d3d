"""The ``native`` runner: handles, checks and tensors around the C++ core, which does the rest."""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Sequence as SequenceOf
from itertools import count

import numpy as np
import torch
from torch import Tensor

from glimpse.config import ModelConfig
from glimpse.models import StoredTensor
from glimpse.runners import checks
from glimpse.runners.frequencies import inverse_frequencies
from glimpse.runners.native import _core
from glimpse.runners.native.capabilities import CAPABILITIES
from glimpse.runners.native.weights import Weights
from glimpse.types import (
    DENSE,
    Capabilities,
    ForwardOutput,
    IndexSpec,
    KVView,
    RaggedBatch,
    Statistics,
)

KV_BYTES = {"float32": 4, "float16": 2, "int16": 2, "int8": 1}


class NativeRunner:
    """The ``Runner`` protocol on the C++ core.

    ``tensors`` are the model's weights under the hub's names, as stored or as plain tensors.
    ``activations`` is their precision where they meet quantised weights: int8 or float32. Every
    row's result is the same bits whatever else is in the batch and however many threads there are.
    """

    def __init__(
        self,
        config: ModelConfig,
        tensors: Iterable[tuple[str, StoredTensor | Tensor]],
        *,
        threads: int = 1,
        kv_dtype: str = "int16",
        activations: str = "int8",
        isa: str = "auto",
    ) -> None:
        self._config = config
        weights = Weights(config, tensors)
        frequencies, factor = inverse_frequencies(config.head_dim, config.rope)
        self._model = _core.model(
            num_query_heads=config.num_query_heads,
            num_kv_heads=config.num_kv_heads,
            head_dim=config.head_dim,
            max_seq_len=config.max_seq_len,
            rms_norm_eps=config.rms_norm_eps,
            embedding=weights.embedding,
            layers=weights.layers,
            final_norm=weights.final_norm,
            head=weights.head,
            frequencies=frequencies.numpy(),
            rotary_factor=factor,
            num_threads=threads,
            isa=isa,
            activations=activations,
            kv_dtype=kv_dtype,
        )
        self._weight_bytes = weights.num_bytes
        self._kv_bytes = KV_BYTES[kv_dtype] * config.num_kv_elements
        self._sequences: dict[int, _core.Sequence] = {}
        self._handles = count()

    @property
    def name(self) -> str:
        return "native"

    @property
    def config(self) -> ModelConfig:
        return self._config

    @property
    def capabilities(self) -> Capabilities:
        return CAPABILITIES

    def pass_bytes(self, num_positions: int) -> int:
        return self._weight_bytes + num_positions * self._kv_bytes

    # --------------------------------------------------------------------------------- sequences

    def open(self, capacity: int = 0, statistics: Statistics | None = None) -> int:
        window = checks.window_of(self.name, capacity, statistics)
        handle = next(self._handles)
        self._sequences[handle] = self._model.open(capacity, window)
        return handle

    def close(self, handle: int) -> None:
        self._sequence(handle)
        del self._sequences[handle]

    def fork(
        self,
        handle: int,
        length: int,
        statistics: Statistics | None = None,
        capacity: int = 0,
    ) -> int:
        parent = self._sequence(handle)
        parent.check_length(length)
        child = self.open(max(length, capacity), statistics)
        self._sequences[child].copy_from(parent, length)
        return child

    def length(self, handle: int) -> int:
        return self._sequence(handle).length

    def truncate(self, handle: int, length: int) -> None:
        self._sequence(handle).truncate(length)

    def truncate_draft(self, handle: int, num_tokens: int) -> None:
        self._sequence(handle).truncate_draft(num_tokens)

    # ------------------------------------------------------------------------ statistics and index

    def attention_scores(self, handle: int, window: int) -> Tensor:
        sequence = self._sequence(handle)
        scores = torch.empty(self._config.num_layers, self._config.num_kv_heads, sequence.length)
        sequence.scores(window, scores.numpy())
        return scores

    def refresh(self, handle: int, spec: IndexSpec) -> None:
        checks.check_index(self.name, CAPABILITIES, spec)
        scores = None if spec.scores is None else spec.scores.float().contiguous().cpu().numpy()
        self._sequence(handle).refresh(
            spec.mean_budget, spec.sink_size, spec.recent_size, spec.window, scores
        )

    def index(self, handle: int) -> Tensor:
        sequence = self._sequence(handle)
        shape = (self._config.num_layers, self._config.num_kv_heads, sequence.index_size)
        index = torch.empty(shape, dtype=torch.int64)
        sequence.index(index.numpy())
        return index

    # ----------------------------------------------------------------------------------- a pass

    def forward(
        self, batch: RaggedBatch, view: KVView = DENSE, hidden_layers: SequenceOf[int] = ()
    ) -> ForwardOutput:
        num_layers = checks.num_layers(self._config, view, CAPABILITIES, hidden_layers)
        checks.check_batch(self._config, batch)
        segments = batch.segments
        token_ids = np.array(batch.token_ids, dtype=np.int32)
        logit_rows = checks.logit_rows(batch)
        logits = torch.empty(len(logit_rows), self._config.vocab_size)
        hidden = {
            layer: torch.empty(len(token_ids), self._config.hidden_size) for layer in hidden_layers
        }
        self._model.forward(
            sequences=[self._sequence(segment.handle) for segment in segments],
            num_rows=[len(segment.token_ids) for segment in segments],
            is_observed=[segment.is_observed for segment in segments],
            token_ids=token_ids,
            is_dense=view.kv == "dense",
            num_layers=num_layers,
            logit_rows=logit_rows,
            logits=logits.numpy(),
            hidden=[(layer, x.numpy()) for layer, x in hidden.items()],
        )
        return ForwardOutput(logits, hidden)

    def _sequence(self, handle: int) -> _core.Sequence:
        return checks.find(self._sequences, handle)
