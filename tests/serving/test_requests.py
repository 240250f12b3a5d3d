"""Bodies of requests: what they ask for, and what is refused in OpenAI's form."""

from __future__ import annotations

from typing import Any

import pytest

from glimpse import LLM
from glimpse.serving.errors import RequestError
from glimpse.serving.requests import parse, translate
from glimpse.serving.responses import response

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
TURNS = [{"role": "user", "content": "x"}]


@pytest.fixture(scope="module")
def llm(tiny_checkpoint) -> LLM:
    folder = tiny_checkpoint("llama", has_tokenizer=True, max_position_embeddings=512)
    return LLM(str(folder), dtype="float64")


def test_fields_become_parameters(llm: LLM) -> None:
    body = {
        "model": "m", "prompt": "Once", "max_tokens": 7, "temperature": 1, "top_p": 0.5, "seed": 3,
        "stop": "z", "logit_bias": {"5": -1}, "logprobs": 2, "num_draft_tokens": 3,
    }  # fmt: skip
    work = translate(llm, parse(COMPLETIONS, body))
    params = work.params
    assert (params.max_tokens, params.temperature, params.top_p, params.seed) == (7, 1.0, 0.5, 3)
    assert (params.stop, params.logit_bias, params.logprobs) == (("z",), {5: -1.0}, 2)
    assert work.method.name == llm.method.name
    assert work.method.controller == "fixed:k=3"
    assert work.prompts == [llm.tokenizer.encode("Once")]


def test_choices_are_the_texts_of_each_prompt(llm: LLM) -> None:
    body = {"model": "m", "prompt": [[5, 6, 7], [8, 9]], "n": 2, "seed": 1, "temperature": 1.0}
    work = translate(llm, parse(COMPLETIONS, {**body, "max_tokens": 4, "ignore_eos": True}))
    texts = llm.generate(work.prompts, work.params, method=work.method)
    answer = response(work.body, texts, llm.tokenizer.decode)
    assert [choice["text"] for choice in answer["choices"]] == [text.text for text in texts]
    assert [choice["index"] for choice in answer["choices"]] == [0, 1, 2, 3]
    usage = answer["usage"]
    assert (usage["prompt_tokens"], usage["completion_tokens"], usage["total_tokens"]) == (
        5,
        16,
        21,
    )


@pytest.mark.parametrize(
    ("url", "fields", "param"),
    [
        (COMPLETIONS, {"prompt": "x", "tools": []}, "tools"),
        (COMPLETIONS, {"prompt": "x", "best_of": 3}, "best_of"),
        (COMPLETIONS, {"prompt": "x", "temperature": -1}, "temperature"),
        (COMPLETIONS, {"prompt": "x", "temperature": "1"}, "temperature"),
        (COMPLETIONS, {"prompt": "x", "logit_bias": {"99999999": 1}}, "logit_bias"),
        (COMPLETIONS, {"prompt": "x", "logit_bias": {"a": 1}}, "logit_bias"),
        (COMPLETIONS, {"prompt": "x", "stream_options": {}}, None),
        (COMPLETIONS, {"prompt": "x", "method": "nope"}, None),
        (COMPLETIONS, {"prompt": [[99999999]]}, "prompt"),
        (COMPLETIONS, {"prompt": [True]}, "prompt"),
        (COMPLETIONS, {"prompt": []}, "prompt"),
        (COMPLETIONS, {"prompt": [[]]}, "prompt"),
        (COMPLETIONS, {"prompt": [5] * 600}, "prompt"),
        (COMPLETIONS, {}, "prompt"),
        (CHAT, {"messages": TURNS, "top_logprobs": 2}, None),
        (CHAT, {"messages": [{"role": "user", "content": 5}]}, "messages.0"),
        (CHAT, {"messages": []}, "messages"),
        ("/v1/embeddings", {"input": "x"}, "url"),
    ],
)
def test_what_cannot_be_done_is_an_error(
    llm: LLM, url: str, fields: dict[str, Any], param: str | None
) -> None:
    with pytest.raises(RequestError) as caught:
        translate(llm, parse(url, {"model": "m", **fields}))
    error = caught.value.as_dict()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert error["param"] == param
