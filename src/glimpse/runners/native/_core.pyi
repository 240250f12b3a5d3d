"""Types of the compiled module."""

from collections.abc import Sequence as SequenceOf
from typing import Any

import numpy as np

Floats = np.ndarray[Any, np.dtype[np.float32]]
Halves = np.ndarray[Any, np.dtype[np.uint16]]
"""The bits of half precision numbers."""
Longs = np.ndarray[Any, np.dtype[np.int64]]

class Matrix: ...
class Layer: ...

class Sequence:
    @property
    def length(self) -> int: ...
    @property
    def capacity(self) -> int: ...
    @property
    def index_size(self) -> int: ...
    def check_length(self, length: int) -> None: ...
    def truncate(self, length: int) -> None: ...
    def truncate_draft(self, num_rows: int) -> None: ...
    def copy_from(self, other: Sequence, length: int) -> None: ...
    def scores(self, window: int, out: Floats) -> None: ...
    def refresh(
        self,
        budget: int,
        sink_size: int,
        recent_size: int,
        window: int,
        scores: Floats | None,
    ) -> None: ...
    def index(self, out: Longs) -> None: ...

class Model:
    @property
    def isa(self) -> str: ...
    @property
    def num_threads(self) -> int: ...
    def open(self, capacity: int, window: int) -> Sequence: ...
    def forward(
        self,
        sequences: SequenceOf[Sequence],
        num_rows: SequenceOf[int],
        is_observed: SequenceOf[bool],
        token_ids: np.ndarray[Any, np.dtype[np.int32]],
        is_dense: bool,
        num_layers: int,
        logit_rows: SequenceOf[int],
        logits: Floats,
        hidden: SequenceOf[tuple[int, Floats]],
    ) -> None: ...

def choose_isa(wanted: str) -> tuple[str, str]: ...
def is_packable(type: str) -> bool: ...  # noqa: A002
def pack(
    type: str,  # noqa: A002
    num_outputs: int,
    num_inputs: int,
    rows: np.ndarray[Any, np.dtype[np.uint8]],
    row_order: Longs | None,
    bias: Floats | None,
) -> Matrix: ...
def multiply(
    matrix: Matrix, x: Floats, out: Floats, isa: str, activations: str, num_threads: int
) -> None: ...
def unpack(matrix: Matrix, out: Floats, isa: str) -> None: ...
def layer(
    attention_norm: Floats,
    mlp_norm: Floats,
    q_norm: Floats | None,
    k_norm: Floats | None,
    matrices: SequenceOf[Matrix],
) -> Layer: ...
def model(
    *,
    num_query_heads: int,
    num_kv_heads: int,
    head_dim: int,
    max_seq_len: int,
    rms_norm_eps: float,
    embedding: Matrix,
    layers: SequenceOf[Layer],
    final_norm: Floats,
    head: Matrix,
    frequencies: Floats,
    rotary_factor: float,
    num_threads: int,
    isa: str,
    activations: str,
    kv_dtype: str,
) -> Model: ...

class KVCache:
    @property
    def capacity(self) -> int: ...

class Attention:
    def __init__(
        self,
        *,
        num_query_heads: int,
        num_kv_heads: int,
        head_dim: int,
        kv_dtype: str,
        isa: str,
        num_threads: int,
    ) -> None: ...
    def cache(self) -> KVCache: ...
    def attend(
        self,
        parts: SequenceOf[tuple[KVCache, int, int]],
        q: Floats,
        k: Floats,
        v: Floats,
        out: Floats,
        observed: Halves | None = None,
    ) -> None: ...
