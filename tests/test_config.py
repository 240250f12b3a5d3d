"""Sampling parameters: what is valid, and errors that say the value and the valid range."""

from __future__ import annotations

import math
from dataclasses import FrozenInstanceError

import pytest

from glimpse.config import Method, ModelConfig, SamplingParams

BAD = [
    ("max_tokens", 0),
    ("max_tokens", -1),
    ("min_tokens", -1),
    ("min_tokens", 257),
    ("temperature", -0.1),
    ("temperature", math.nan),
    ("temperature", math.inf),
    ("top_k", -1),
    ("top_p", 0.0),
    ("top_p", 1.1),
    ("top_p", math.nan),
    ("min_p", -0.1),
    ("min_p", 1.0),
    ("min_p", math.nan),
    ("repetition_penalty", 0.0),
    ("repetition_penalty", -1.0),
    ("repetition_penalty", math.inf),
    ("repetition_penalty", math.nan),
    ("presence_penalty", 2.1),
    ("presence_penalty", math.nan),
    ("frequency_penalty", -2.1),
    ("n", 0),
    ("stop", ("a", "")),
    ("stop", ""),
    ("seed", -1),
    ("seed", 2**64),
    ("logprobs", -1),
]


@pytest.mark.parametrize(("name", "value"), BAD)
def test_a_bad_value_is_named_with_the_valid_range(name: str, value: object) -> None:
    with pytest.raises(ValueError, match=rf"^{name}=.*: must be \S+"):
        SamplingParams(**{name: value})


@pytest.mark.parametrize(
    ("bias", "message"),
    [
        ({3: math.nan}, r"logit_bias\[3\]=nan: must be a number below infinity"),
        ({3: math.inf}, r"logit_bias\[3\]=inf: must be a number below infinity"),
        ({-1: 1.0}, "logit_bias: token id=-1: must be at least 0"),
    ],
)
def test_a_bad_bias_is_an_error(bias: dict[int, float], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        SamplingParams(logit_bias=bias)


def test_the_edges_are_valid() -> None:
    SamplingParams(max_tokens=1, min_tokens=1, top_p=1.0, min_p=0.0, seed=0, logprobs=0)
    SamplingParams(seed=2**64 - 1, presence_penalty=2, frequency_penalty=-2)
    SamplingParams(logit_bias={0: -math.inf}, temperature=1e-9, top_p=1e-9, min_p=0.999)


def test_a_single_stop_string_and_lists_become_tuples() -> None:
    assert SamplingParams(stop="ab").stop == ("ab",)
    params = SamplingParams(stop=["a", "b"], stop_token_ids=[1, 2])
    assert (params.stop, params.stop_token_ids) == (("a", "b"), (1, 2))


def test_greedy_is_temperature_zero() -> None:
    assert SamplingParams().is_greedy
    assert not SamplingParams(temperature=1e-9).is_greedy


def test_replace_checks_again_and_leaves_the_original() -> None:
    params = SamplingParams(top_k=5)
    assert params.replace(top_k=7, stop="x") == SamplingParams(top_k=7, stop=("x",))
    assert params.top_k == 5
    with pytest.raises(ValueError, match="top_k=-1"):
        params.replace(top_k=-1)


def test_configurations_are_frozen() -> None:
    with pytest.raises(FrozenInstanceError):
        SamplingParams().top_k = 3


def test_group_size_is_query_heads_per_kv_head() -> None:
    config = ModelConfig("LlamaForCausalLM", 100, 576, 1536, 30, 9, 3, 64, 8192)
    assert config.group_size == 3


def test_a_method_can_be_a_key() -> None:
    assert {Method("a", "ngram"): 1}[Method("a", "ngram")] == 1
