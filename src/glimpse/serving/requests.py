"""Bodies of OpenAI-style requests, checked, as prompts, ``SamplingParams`` and a ``Method``.

A field that is not supported is an error, never ignored. Fields of OpenAI's that would change
nothing are taken with their neutral value alone. Extensions: vLLM's sampling fields, and the
method, its parts and its draft length for each request.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from glimpse.config import Method, SamplingParams
from glimpse.llm import LLM
from glimpse.methods import check_runner, get_method, live
from glimpse.models import ModelError
from glimpse.serving.errors import RequestError

MAX_COMPLETION_TOKENS = 16
"""OpenAI's default of /v1/completions."""
MAX_TOP_LOGPROBS = 20

_SAMPLING = (
    "max_tokens", "min_tokens", "temperature", "top_p", "top_k", "min_p", "repetition_penalty",
    "presence_penalty", "frequency_penalty", "seed", "n", "stop_token_ids", "ignore_eos",
)  # fmt: skip


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)


class StreamOptions(_Strict):
    include_usage: bool = False


class Body(_Strict):
    """What both kinds of request may have. None leaves a field to the model's own default."""

    model: str
    max_tokens: int | None = None
    min_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    logit_bias: dict[str, float] | None = None
    seed: int | None = None
    n: int | None = None
    stop: str | list[str] | None = None
    stop_token_ids: list[int] | None = None
    ignore_eos: bool | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    user: str | None = None
    """A name for the sender's own records."""
    method: str | None = None
    num_draft_tokens: int | None = None
    """A fixed draft length: short for ``controller="fixed:k=N"``."""
    selection: str | None = None
    controller: str | None = None
    acceptance: str | None = None
    budget: float | None = None

    @field_validator("logit_bias")
    @classmethod
    def _keys_are_token_ids(cls, value: dict[str, float] | None) -> dict[str, float] | None:
        wrong = next((key for key in value or () if not key.isdecimal()), None)
        if wrong is not None:
            raise ValueError(f"key {wrong!r} is not a token id")
        return value

    @model_validator(mode="after")
    def _options_have_a_stream(self) -> Self:
        if self.stream_options is not None and not self.stream:
            raise ValueError("stream_options needs stream to be true")
        return self

    @property
    def num_top_logprobs(self) -> int | None:
        """Alternatives to report for each token; None reports no log-probabilities."""
        raise NotImplementedError

    def overrides(self) -> dict[str, Any]:
        """The fields of ``SamplingParams`` that were given."""
        given = {name: getattr(self, name) for name in _SAMPLING}
        given["stop"] = (self.stop,) if isinstance(self.stop, str) else self.stop
        given["logprobs"] = self.num_top_logprobs
        if self.logit_bias is not None:
            given["logit_bias"] = {int(key): bias for key, bias in self.logit_bias.items()}
        return {
            name: tuple(value) if isinstance(value, list) else value
            for name, value in given.items()
            if value is not None
        }

    def chosen_method(self, default: Method) -> Method:
        """The method asked for, or the default; its parts replaced. Raises ValueError."""
        parts = (
            self.num_draft_tokens, self.selection, self.controller, self.acceptance, self.budget,
        )  # fmt: skip
        if self.method is None and all(part is None for part in parts):
            return default
        controller = self.controller
        if self.num_draft_tokens is not None:
            if controller is not None:
                raise ValueError("num_draft_tokens and controller: only one of them may be given")
            controller = f"fixed:k={self.num_draft_tokens}"
        return get_method(
            self.method or default.name,
            selection=self.selection,
            controller=controller,
            acceptance=self.acceptance,
            budget=self.budget,
        )


class TextPart(_Strict):
    type: Literal["text"]
    text: str


class ChatMessage(_Strict):
    role: Literal["system", "developer", "user", "assistant"]
    content: str | list[TextPart]
    name: str | None = None

    def as_turn(self) -> dict[str, str]:
        """In the form of chat templates, which know no developers."""
        parts = [self.content] if isinstance(self.content, str) else [p.text for p in self.content]
        role = "system" if self.role == "developer" else self.role
        return {"role": role, "content": "\n".join(parts)}

    @field_validator("name")
    @classmethod
    def _has_no_name(cls, value: str | None) -> None:
        if value is not None:
            raise ValueError("names of participants are not supported")


class ResponseFormat(_Strict):
    type: Literal["text"]


class ChatBody(Body):
    """/v1/chat/completions"""

    messages: list[ChatMessage] = Field(min_length=1)
    max_completion_tokens: int | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = Field(None, ge=0, le=MAX_TOP_LOGPROBS)
    response_format: ResponseFormat | None = None

    @property
    def num_top_logprobs(self) -> int | None:
        if not self.logprobs:
            if self.top_logprobs is not None:
                raise ValueError("top_logprobs needs logprobs to be true")
            return None
        return self.top_logprobs or 0

    def overrides(self) -> dict[str, Any]:
        given = super().overrides()
        if self.max_completion_tokens is not None:
            if self.max_tokens is not None:
                raise ValueError("max_tokens and max_completion_tokens: only one may be given")
            given["max_tokens"] = self.max_completion_tokens
        return given


class CompletionBody(Body):
    """/v1/completions"""

    prompt: str | list[str] | list[int] | list[list[int]]
    logprobs: int | None = Field(None, ge=0, le=MAX_TOP_LOGPROBS)
    echo: Literal[False] | None = None
    best_of: Literal[1] | None = None
    suffix: Literal[""] | None = None

    @property
    def num_top_logprobs(self) -> int | None:
        return self.logprobs

    @property
    def prompts(self) -> list[str] | list[list[int]]:
        """One prompt is a string or a list of token ids; more are a list of those."""
        if isinstance(self.prompt, str):
            return [self.prompt]
        if self.prompt and isinstance(self.prompt[0], int):
            return [self.prompt]
        return self.prompt  # type: ignore[return-value]


BODIES: dict[str, type[ChatBody] | type[CompletionBody]] = {
    "/v1/chat/completions": ChatBody,
    "/v1/completions": CompletionBody,
}


@dataclass(frozen=True)
class Work:
    """What a request asks an ``LLM`` to do: ``params.n`` texts for each prompt."""

    body: ChatBody | CompletionBody
    prompts: list[list[int]]
    params: SamplingParams
    method: Method


def parse(url: str, body: object) -> ChatBody | CompletionBody:
    """A body that has the right shape. Raises RequestError."""
    if url not in BODIES:
        raise RequestError(
            f"url {url!r}: must be one of {', '.join(BODIES)}", param="url", status=404
        )
    kind = BODIES[url]
    try:
        return kind.model_validate(body)
    except ValidationError as error:
        raise RequestError.of_validation(error, sorted(kind.model_fields)) from None


def translate(llm: LLM, body: ChatBody | CompletionBody) -> Work:
    """Prompts as token ids, and how to go on from them. Raises RequestError."""
    try:
        prompts = _checked_prompts(llm, body)
        overrides = body.overrides()
        room = llm.runner.config.max_seq_len - max(map(len, prompts))
        default = room if isinstance(body, ChatBody) else min(room, MAX_COMPLETION_TOKENS)
        overrides.setdefault("max_tokens", default)
        params = llm.sampling_params(**overrides)
        method = body.chosen_method(llm.method)
        check_runner(method, llm.runner.name, llm.runner.capabilities)
        live(method, llm.assets)
    except (ValueError, ModelError) as error:
        raise RequestError.of_value(error) from None
    return Work(body, prompts, params, method)


def _checked_prompts(llm: LLM, body: ChatBody | CompletionBody) -> list[list[int]]:
    if isinstance(body, ChatBody):
        prompts, field = [llm.render([message.as_turn() for message in body.messages])], "messages"
    else:
        texts = body.prompts
        if not texts or not all(texts):
            raise RequestError(
                "the prompt is empty: it must have at least one token", param="prompt"
            )
        prompts, field = (
            [llm.tokenizer.encode(text) if isinstance(text, str) else text for text in texts],
            "prompt",
        )
    for prompt_ids in prompts:
        _check_prompt(llm, prompt_ids, field)
    _check_token_ids(llm, [int(key) for key in body.logit_bias or ()], "logit_bias")
    return prompts


def _check_prompt(llm: LLM, prompt_ids: list[int], field: str) -> None:
    config = llm.runner.config
    if not prompt_ids:
        raise RequestError("the prompt is empty: it must have at least one token", param=field)
    if len(prompt_ids) >= config.max_seq_len:
        raise RequestError(
            f"the prompt has {len(prompt_ids)} tokens; the model's context holds "
            f"{config.max_seq_len}, with room for an answer",
            param=field,
            code="context_length_exceeded",
        )
    _check_token_ids(llm, prompt_ids, field)


def _check_token_ids(llm: LLM, token_ids: list[int], field: str) -> None:
    last = llm.runner.config.vocab_size - 1
    wrong = next((token_id for token_id in token_ids if not 0 <= token_id <= last), None)
    if wrong is not None:
        raise RequestError(f"{field}: token id {wrong}: must be from 0 to {last}", param=field)
