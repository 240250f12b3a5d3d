"""Finished texts as the bodies of OpenAI-style responses."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable
from collections.abc import Sequence as SequenceOf
from typing import Any

from glimpse.llm import Generation
from glimpse.serving.requests import ChatBody, CompletionBody
from glimpse.types import TokenLogprobs

Decode = Callable[[SequenceOf[int]], str]


def response(
    body: ChatBody | CompletionBody, generations: SequenceOf[Generation], decode: Decode
) -> dict[str, Any]:
    """The body of a whole answer; ``generations`` are the choices, prompt by prompt."""
    is_chat = isinstance(body, ChatBody)
    choice = _chat_choice if is_chat else _completion_choice
    return {
        "id": f"{'chatcmpl' if is_chat else 'cmpl'}-{uuid.uuid4().hex}",
        "object": "chat.completion" if is_chat else "text_completion",
        "created": int(time.time()),
        "model": body.model,
        "choices": [
            {"index": index, **choice(generation, decode)}
            for index, generation in enumerate(generations)
        ],
        "usage": usage(generations, body),
        "seed": generations[0].seed,
        "metrics": {"speculative_decoding": speculation(generations)},
    }


def usage(generations: SequenceOf[Generation], body: ChatBody | CompletionBody) -> dict[str, Any]:
    """Tokens read and written; a prompt counts once, however many texts it has."""
    num_choices = body.n or 1
    read = sum(generation.stats.prompt_tokens for generation in generations[::num_choices])
    written = sum(generation.stats.generated_tokens for generation in generations)
    cached = sum(generation.stats.cached_tokens for generation in generations[::num_choices])
    return {
        "prompt_tokens": read,
        "completion_tokens": written,
        "total_tokens": read + written,
        "prompt_tokens_details": {"cached_tokens": cached},
    }


def speculation(generations: SequenceOf[Generation]) -> dict[str, Any]:
    """What speculation did for a request, over all its texts."""
    stats = sum((generation.stats for generation in generations[1:]), generations[0].stats)
    return {
        "method": stats.method,
        "rounds": stats.rounds,
        "drafted": stats.drafted,
        "accepted": stats.accepted,
        "acceptance_rate": stats.acceptance_rate,
        "mean_accepted": stats.mean_accepted,
        "tokens_per_round": stats.tokens_per_round,
        "mean_k": stats.mean_k,
        "decode_tokens_per_s": stats.decode_tokens_per_s,
    }


def _chat_choice(generation: Generation, decode: Decode) -> dict[str, Any]:
    return {
        "message": {"role": "assistant", "content": generation.text},
        "logprobs": chat_logprobs(generation.logprobs, decode) if generation.logprobs else None,
        "finish_reason": generation.finish_reason,
        "stop_reason": generation.stop_reason,
    }


def _completion_choice(generation: Generation, decode: Decode) -> dict[str, Any]:
    return {
        "text": generation.text,
        "logprobs": completion_logprobs(generation.logprobs, decode)
        if generation.logprobs
        else None,
        "finish_reason": generation.finish_reason,
        "stop_reason": generation.stop_reason,
    }


def chat_logprobs(entries: SequenceOf[TokenLogprobs], decode: Decode) -> dict[str, Any]:
    """In the form of /v1/chat/completions."""

    def token(token_id: int, logprob: float) -> dict[str, Any]:
        text = decode([token_id])
        return {"token": text, "logprob": logprob, "bytes": list(text.encode())}

    return {
        "content": [
            {
                **token(entry.token_id, entry.logprob),
                "top_logprobs": [token(*alternative) for alternative in entry.top.items()],
            }
            for entry in entries
        ]
    }


def completion_logprobs(
    entries: SequenceOf[TokenLogprobs], decode: Decode, offset: int = 0
) -> dict[str, Any]:
    """In the form of /v1/completions; ``offset`` counts the characters before."""
    tokens = [decode([entry.token_id]) for entry in entries]
    offsets = []
    for token in tokens:
        offsets.append(offset)
        offset += len(token)
    return {
        "tokens": tokens,
        "token_logprobs": [entry.logprob for entry in entries],
        "top_logprobs": [
            {decode([token_id]): logprob for token_id, logprob in entry.top.items()}
            for entry in entries
        ],
        "text_offset": offsets,
    }
