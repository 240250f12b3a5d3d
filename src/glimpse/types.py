"""The vocabulary shared by every part: sequences, batches, drafts, and the Runner protocol."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from collections.abc import Sequence as SequenceOf
from dataclasses import dataclass, field
from functools import cached_property
from itertools import accumulate
from typing import Any, Literal, Protocol

import numpy as np
from torch import Tensor

from glimpse.config import Method, ModelConfig, SamplingParams
from glimpse.index import IndexSpec as IndexSpec
from glimpse.index import Rank as Rank
from glimpse.index import Statistics as Statistics
from glimpse.stats import Stats

FinishReason = Literal["stop", "length", "abort"]


@dataclass(eq=False)
class Sequence:
    """One text being generated: the mutable object that travels through the engine.

    The runner holds KV for all of ``token_ids`` but the last one, which the next pass reads.
    """

    handle: int
    """The runner's KV of this sequence."""
    token_ids: list[int]
    num_prompt_tokens: int
    params: SamplingParams
    method: Method
    acceptance: str
    """Name of the rule in force: the method's, with ``auto`` resolved."""
    seed: int
    choice: int = 0
    """Which of ``params.n`` texts this is; keys its noise, together with the seed."""
    eos_token_ids: frozenset[int] = frozenset()
    finish_reason: FinishReason | None = None
    stop_reason: int | str | None = None
    """The token id or the string that stopped it, where one did."""
    text: str = ""
    """Text of the output so far, cut before a stop string. Filled by the engine."""
    output_text: object = None
    """The state behind ``text`` while tokens arrive; belongs to ``stopping``."""
    logprobs: list[TokenLogprobs] = field(default_factory=list)
    stats: Stats = field(default_factory=Stats)
    rng: np.random.Generator = field(init=False)
    """The sequence's own random stream, for rejection sampling."""

    def __post_init__(self) -> None:
        # An explicit dtype: numpy takes a list with a seed of 2**63 or more through float.
        key = np.array([self.seed, self.choice], dtype=np.uint64)
        self.rng = np.random.Generator(np.random.Philox(key=key))

    @cached_property
    def prompt_token_set(self) -> frozenset[int]:
        """The different tokens of the prompt, for the repetition penalty."""
        return frozenset(self.token_ids[: self.num_prompt_tokens])

    def extended(self, token_ids: SequenceOf[int]) -> Sequence:
        """The same text with more tokens, for a drafter to think on; it shares all but those."""
        longer = copy.copy(self)
        longer.token_ids = [*self.token_ids, *token_ids]
        return longer

    @property
    def output_ids(self) -> list[int]:
        return self.token_ids[self.num_prompt_tokens :]

    @property
    def num_output_tokens(self) -> int:
        return len(self.token_ids) - self.num_prompt_tokens

    @property
    def is_finished(self) -> bool:
        return self.finish_reason is not None


@dataclass(frozen=True)
class TokenLogprobs:
    """Log-probability of an emitted token under the target's raw logits, and the likeliest ones."""

    token_id: int
    logprob: float
    top: dict[int, float]


# ------------------------------------------------------------------------------------- batches


@dataclass(frozen=True)
class Segment:
    """The new tokens of one sequence in a forward pass; they follow what its KV already holds."""

    handle: int
    token_ids: SequenceOf[int]
    num_logits: int = 1
    """Logits are returned for this many of the last tokens; 0 for all but the end of a prefill."""
    is_observed: bool = False
    """Keep these rows' attention, to enter the statistics once ``truncate`` has kept the rows."""


@dataclass(frozen=True)
class RaggedBatch:
    """Tokens of many sequences, one after the other without padding."""

    segments: SequenceOf[Segment]

    @property
    def token_ids(self) -> list[int]:
        return [token for segment in self.segments for token in segment.token_ids]

    @property
    def cu_seqlens(self) -> list[int]:
        """Cumulative token counts, from 0: segment i is ``[cu_seqlens[i], cu_seqlens[i + 1])``."""
        return [0, *accumulate(len(segment.token_ids) for segment in self.segments)]

    @property
    def cu_logits(self) -> list[int]:
        """The same for the rows of logits that come back."""
        return [0, *accumulate(segment.num_logits for segment in self.segments)]


@dataclass(frozen=True)
class KVView:
    """What a forward pass sees: the whole KV or the glimpse, and how many of the layers."""

    kv: Literal["dense", "glimpse"] = "dense"
    exit_layer: int | None = None
    """Stop after this many layers, then final norm and head; needs the early-exit capability."""


DENSE = KVView("dense")
GLIMPSE = KVView("glimpse")


# -------------------------------------------------------------------------------------- drafts


@dataclass(frozen=True)
class DraftSignal:
    """What a drafter knew about a token when it proposed it, from its raw distribution."""

    entropy: float
    """In nats."""
    top_prob: float
    margin: float
    """Difference of the two largest log-probabilities, in nats."""
    token_prob: float


@dataclass
class Draft:
    """Tokens proposed for one sequence, a signal each and, for rejection sampling, their law."""

    token_ids: list[int] = field(default_factory=list)
    signals: list[DraftSignal] = field(default_factory=list)
    log_probs: list[Tensor] = field(default_factory=list)
    """Log-probabilities [vocab_size] each token was really sampled from; empty if not needed."""
    num_passes: int = 0
    """Passes of a model that wrote it, where that is fewer than its tokens; else 0."""
    is_next_ready: bool = False
    """Whether the pass that wrote the last token has also read it: the next one needs none."""

    def __len__(self) -> int:
        return len(self.token_ids)


@dataclass(frozen=True)
class DraftHead:
    """Trained layers that draft from the target's hidden states, as their checkpoint has them."""

    kind: Literal["medusa", "eagle3"]
    tensors: Mapping[str, Tensor]
    settings: Mapping[str, Any] = field(default_factory=dict)
    """What the shapes do not tell: the checkpoint's config."""


@dataclass(frozen=True)
class Outcome:
    """What became of a draft: how many of its tokens were accepted, how many committed."""

    sequence: Sequence
    draft: Draft
    num_accepted: int
    num_committed: int
    text: str
    """What the committed tokens add to the sequence's text."""


# -------------------------------------------------------------------------------------- runner


@dataclass(frozen=True)
class Capabilities:
    """What a runner can do beyond dense decoding; asked for before anything is loaded."""

    views: frozenset[str] = frozenset({"dense"})
    statistics: frozenset[str] = frozenset()
    """Of ``window`` and ``cumulative``."""
    index: frozenset[str] = frozenset()
    """What an ``IndexSpec`` may have: of ``layers`` (a budget for each) and ``ranking``."""
    has_hidden_states: bool = False
    has_early_exit: bool = False


@dataclass(frozen=True)
class ForwardOutput:
    """Result of a pass: logits [sum of num_logits, vocab_size], float32 or wider."""

    logits: Tensor
    hidden_states: dict[int, Tensor] = field(default_factory=dict)
    """Inputs of the layers asked for, [num_tokens, hidden_size]. The head counts as the layer after
    the last, and its input is behind the final norm."""


class Runner(Protocol):
    """A model and the KV of its sequences. Everything above a runner knows only this.

    A sequence is a handle. Its KV has a ``length``; a dense pass appends to it and ``truncate``
    takes back. A glimpse pass reads the glimpse and appends to a draft tail behind it, visible to
    later glimpse passes, taken back by ``truncate_draft`` and dropped by the next dense pass,
    ``refresh`` or ``truncate``; it changes neither the length nor the statistics.
    """

    @property
    def name(self) -> str: ...

    @property
    def config(self) -> ModelConfig: ...

    @property
    def capabilities(self) -> Capabilities: ...

    def pass_bytes(self, num_positions: int) -> int:
        """Bytes that a pass over one token reads, about: weights, and KV of so many positions."""

    def open(self, capacity: int = 0, statistics: Statistics | None = None) -> int:
        """A new empty sequence with room for ``capacity`` tokens (it grows beyond by doubling)."""

    def close(self, handle: int) -> None:
        """Free a sequence."""

    def fork(
        self,
        handle: int,
        length: int,
        statistics: Statistics | None = None,
        capacity: int = 0,
    ) -> int:
        """A new sequence that begins as a copy of the first ``length`` positions of another, with
        room for ``capacity`` tokens in all.
        """

    def length(self, handle: int) -> int:
        """Number of positions with dense KV."""

    def forward(
        self, batch: RaggedBatch, view: KVView = DENSE, hidden_layers: SequenceOf[int] = ()
    ) -> ForwardOutput:
        """One pass over a ragged batch. A row's result does not depend on its neighbours."""

    def truncate(self, handle: int, length: int) -> None:
        """Keep the first ``length`` positions. Observed rows below it enter the statistics; all
        else is forgotten: KV, draft tail, attention of rejected rows.
        """

    def truncate_draft(self, handle: int, num_tokens: int) -> None:
        """Keep the first ``num_tokens`` of the draft tail."""

    def attention_scores(self, handle: int, window: int) -> Tensor:
        """Attention from the last ``window`` committed queries, summed over them and over the query
        heads of each KV head: [num_layers, num_kv_heads, length], float32.
        """

    def refresh(self, handle: int, spec: IndexSpec) -> None:
        """Rebuild the glimpse of a sequence; what stays of the old one is not moved."""

    def index(self, handle: int) -> Tensor:
        """Positions in the glimpse, ascending: [num_layers, num_kv_heads, size], int64. Layers
        with a smaller budget end in -1. A stepwise glimpse has none: RuntimeError.
        """


class Progress(Protocol):
    """Told about long work: ``progress(done, total)`` in units the caller names."""

    def __call__(self, done: int, total: int, /) -> Any: ...
