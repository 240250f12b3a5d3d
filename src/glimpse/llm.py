"""``LLM``: a model, ready to generate. One generator, ``stream``, feeds everything else."""

from __future__ import annotations

import secrets
from collections import deque
from collections.abc import Iterator, Mapping
from collections.abc import Sequence as SequenceOf
from dataclasses import dataclass
from typing import Any, cast

from glimpse import models, prefill, runners
from glimpse.config import Method, RunnerOptions, SamplingParams
from glimpse.costs import CostModel
from glimpse.drafters import Assets
from glimpse.engine import Engine
from glimpse.methods import check_assets, check_runner, get_method, live
from glimpse.prefix import PrefixCache
from glimpse.stats import Stats, repetition
from glimpse.stopping import finish
from glimpse.types import FinishReason, Progress, Runner, Sequence, Statistics, TokenLogprobs

Prompt = str | SequenceOf[int]
"""Text, or token ids."""


Message = Mapping[str, str]
"""One turn of a conversation: its ``role`` (system, user or assistant) and its ``content``."""


@dataclass(frozen=True)
class Generation:
    """One generated text. ``seed`` reproduces it; ``finish_reason`` is None while it is running."""

    text: str
    token_ids: list[int]
    finish_reason: FinishReason | None
    stop_reason: int | str | None
    seed: int
    logprobs: list[TokenLogprobs]
    stats: Stats


@dataclass(frozen=True)
class Event:
    """What a round added to a text: ``index`` counts prompts, ``choice`` texts of a prompt."""

    index: int
    choice: int
    text: str
    """New text, whole characters only."""
    token_ids: list[int]
    num_accepted: int
    """How many of the new tokens were drafted."""
    sequence: Sequence

    @property
    def generation(self) -> Generation:
        """All of the text so far."""
        sequence = self.sequence
        return Generation(
            sequence.text,
            sequence.output_ids,
            sequence.finish_reason,
            sequence.stop_reason,
            sequence.seed,
            sequence.logprobs,
            sequence.stats,
        )


@dataclass(frozen=True)
class _Request:
    index: int
    choice: int
    prompt_ids: list[int]
    seed: int


class LLM:
    """A model with its tokenizer, runner and engine.

    >>> llm = LLM("smollm2-135m")
    >>> llm.generate("The capital of France is", max_tokens=8)[0].text

    ``model`` is an alias, a hub id, a folder or a ``.gguf`` file. Raises ModelError where it
    cannot be had or is not supported, ValueError for options that are not valid. ``draft_model`` is
    for methods that draft with a second model; it must have the same tokenizer. ``draft_head`` is
    the folder of a Medusa or EAGLE-3 checkpoint.
    """

    def __init__(
        self,
        model: str = "smollm2-135m",
        *,
        runner: str = "auto",
        method: str | Method = "sparsespec-l",
        device: str | None = None,
        dtype: str | None = None,
        threads: int | None = None,
        kv_dtype: str | None = None,
        activations: str | None = None,
        draft_model: str | None = None,
        draft_head: str | None = None,
        max_num_seqs: int = 8,
        prefix_capacity: int = 1,
        costs: CostModel | None = None,
        progress: Progress | None = None,
    ) -> None:
        if max_num_seqs < 1:
            raise ValueError(f"max_num_seqs={max_num_seqs}: must be at least 1")
        self.method = get_method(method) if isinstance(method, str) else method
        options = RunnerOptions(
            device=device, dtype=dtype, threads=threads, kv_dtype=kv_dtype, activations=activations
        )
        runner_name = runners.choose(runner, options)
        check_runner(self.method, runner_name, runners.capabilities(runner_name))
        check_assets(
            self.method, has_draft_model=draft_model is not None, has_head=draft_head is not None
        )
        self.files = models.resolve(model, progress=progress)
        self.tokenizer = models.load_tokenizer(self.files)
        self.defaults = models.load_generation_defaults(self.files)
        # These first: what does not fit is refused before the target is read.
        self.assets = Assets(
            draft_runner=None
            if draft_model is None
            else self._load_drafter(draft_model, runner_name, options, progress),
            head=None if draft_head is None else models.load_head(draft_head, self.files),
        )
        live(self.method, self.assets)
        self.runner = runners.load_runner(runner_name, self.files, options)
        self.engine = Engine(self.runner, self.tokenizer.decode, costs, self.assets)
        self.max_num_seqs = max_num_seqs
        self.prefixes = PrefixCache(self.runner, prefix_capacity)

    def _load_drafter(
        self, model: str, runner_name: str, options: RunnerOptions, progress: Progress | None
    ) -> Runner:
        files = models.resolve(model, progress=progress)
        models.require_same_tokens(self.tokenizer, models.load_tokenizer(files), model)
        return runners.load_runner(runner_name, files, options)

    def sampling_params(self, **overrides: Any) -> SamplingParams:
        """The model's own generation defaults with ``overrides`` on top."""
        return SamplingParams(**{**self.defaults.sampling, **overrides})

    def generate(
        self,
        prompts: Prompt | SequenceOf[Prompt],
        params: SamplingParams | None = None,
        *,
        method: str | Method | None = None,
        progress: Progress | None = None,
        **overrides: Any,
    ) -> list[Generation]:
        """Generate for one prompt or many; ``params.n`` texts for each, in order.

        Without ``params`` the model's own defaults hold, with ``overrides`` (fields of
        SamplingParams) on top. Raises ValueError for an empty or over-long prompt.
        """
        last: dict[tuple[int, int], Event] = {}
        for event in self.stream(prompts, params, method=method, progress=progress, **overrides):
            last[event.index, event.choice] = event
        return [last[key].generation for key in sorted(last)]

    def chat(
        self, messages: SequenceOf[Message], params: SamplingParams | None = None, **options: Any
    ) -> Generation:
        """Answer a conversation; what it shares with the one before is not read again."""
        return self.generate([self.render(messages)], params, **options)[0]

    def render(self, messages: SequenceOf[Message]) -> list[int]:
        """A conversation as token ids, by the model's chat template, ready for the answer."""
        return self.tokenizer.chat(messages)

    def stream(
        self,
        prompts: Prompt | SequenceOf[Prompt],
        params: SamplingParams | None = None,
        *,
        method: str | Method | None = None,
        progress: Progress | None = None,
        **overrides: Any,
    ) -> Iterator[Event]:
        """As ``generate``, yielding after every round; closing the iterator ends all texts."""
        if params is None:
            params = self.sampling_params(**overrides)
        elif overrides:
            params = params.replace(**overrides)
        chosen = self.method if method is None else method
        if isinstance(chosen, str):
            chosen = get_method(chosen)
        check_runner(chosen, self.runner.name, self.runner.capabilities)
        live(chosen, self.assets)
        requests = deque(self._requests(prompts, params))
        return self._run(requests, params, chosen, progress)

    def read(
        self,
        prompt_ids: SequenceOf[int],
        statistics: Statistics | None = None,
        progress: Progress | None = None,
    ) -> int:
        """Read a prompt ahead; its KV is for ``runner.fork``, ``prefixes.put`` or ``close``.

        ``statistics`` defaults to what the LLM's method records.
        """
        statistics = statistics or self.engine.statistics(self.method)
        handle = self.prefixes.take(prompt_ids, statistics, [])
        return prefill.read(self.runner, prompt_ids, statistics, handle=handle, progress=progress)

    def begin(
        self,
        prompt_ids: SequenceOf[int],
        params: SamplingParams,
        method: Method,
        *,
        seed: int,
        choice: int = 0,
        running: SequenceOf[Sequence] = (),
    ) -> Sequence:
        """A sequence for ``engine.read_chunk`` and ``engine.round``; end it with ``retire``.

        It begins with the KV of what was read before: by texts that have ended, or are ``running``.
        """
        statistics = self.engine.statistics(method)
        capacity = prefill.capacity(self.runner, prompt_ids, params)
        return self.engine.begin(
            prompt_ids,
            params,
            method,
            seed=seed,
            choice=choice,
            eos_token_ids=self.defaults.eos_token_ids,
            handle=self.prefixes.take(prompt_ids, statistics, running, capacity),
        )

    def retire(self, sequence: Sequence) -> None:
        """End a sequence, finished or not, and hand its KV on for the prompts to come."""
        if not sequence.is_finished:
            finish(sequence, "abort")
        self.engine.forget(sequence)
        sequence.stats.repetition = repetition(sequence.output_ids)
        self.prefixes.put(sequence.handle, sequence.token_ids)

    def _run(
        self,
        requests: deque[_Request],
        params: SamplingParams,
        method: Method,
        progress: Progress | None,
    ) -> Iterator[Event]:
        """Continuous batching: requests join as others end."""
        running: dict[Sequence, _Request] = {}
        try:
            while requests or running:
                while requests and len(running) < self.max_num_seqs:
                    request = requests.popleft()
                    sequence = self._open(request, params, method, list(running), progress)
                    running[sequence] = request
                for outcome in self.engine.round(list(running)):
                    sequence = outcome.sequence
                    request = running[sequence]
                    if sequence.is_finished:
                        del running[sequence]
                        self.retire(sequence)
                    yield Event(
                        request.index,
                        request.choice,
                        outcome.text,
                        sequence.token_ids[-outcome.num_committed :],
                        min(outcome.num_accepted, outcome.num_committed),
                        sequence,
                    )
        finally:
            for sequence in running:
                self.retire(sequence)

    def _open(
        self,
        request: _Request,
        params: SamplingParams,
        method: Method,
        running: list[Sequence],
        progress: Progress | None,
    ) -> Sequence:
        sequence = self.begin(
            request.prompt_ids,
            params,
            method,
            seed=request.seed,
            choice=request.choice,
            running=running,
        )
        self.engine.read(sequence, progress)
        return sequence

    def _requests(
        self, prompts: Prompt | SequenceOf[Prompt], params: SamplingParams
    ) -> Iterator[_Request]:
        seed = secrets.randbits(63) if params.seed is None else params.seed
        for index, prompt in enumerate(_as_list(prompts)):
            if not prompt:  # The tokenizer may add a token of its own, but that is no prompt.
                raise ValueError("the prompt is empty: it must have at least one token")
            prompt_ids = self.tokenizer.encode(prompt) if isinstance(prompt, str) else list(prompt)
            for choice in range(params.n):
                yield _Request(index, choice, prompt_ids, seed)


def _as_list(prompts: Prompt | SequenceOf[Prompt]) -> list[Prompt]:
    """One prompt is a string or a list of token ids; anything else is a list of prompts."""
    if isinstance(prompts, str):
        return [prompts]
    items = list(prompts)
    if items and all(isinstance(item, int) for item in items):
        return [cast(SequenceOf[int], items)]
    return cast(list[Prompt], items)
