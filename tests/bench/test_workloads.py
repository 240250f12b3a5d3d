"""Documents have the length they say, and questions come after them."""

from __future__ import annotations

import pytest

from glimpse.bench.experiments import EXPERIMENTS
from glimpse.bench.workloads import LANGUAGE_REFERENCE, document, prompt
from glimpse.methods import build
from glimpse.models import load_tokenizer


@pytest.fixture(scope="module")
def tokenizer(smollm2_files):
    return load_tokenizer(smollm2_files)


@pytest.mark.parametrize("example", LANGUAGE_REFERENCE, ids=lambda example: example.name)
def test_a_prompt_is_a_document_of_real_prose_and_a_question(example, tokenizer) -> None:
    token_ids = prompt(example, tokenizer, 7500)
    # Cutting at a token can change how the last few characters are split.
    assert 7500 - 8 <= len(token_ids) <= 7500 + 80
    text = tokenizer.decode(token_ids)
    assert text.index(example.question) > len(text) - 400
    assert "\ufffd" not in text


def test_documents_differ(tokenizer) -> None:
    beginnings = {document(example.topic, tokenizer, 50) for example in LANGUAGE_REFERENCE}
    assert len(beginnings) == len(LANGUAGE_REFERENCE)


def test_a_document_longer_than_the_reference_is_refused(tokenizer) -> None:
    with pytest.raises(ValueError, match="num_tokens=500000"):
        document("types", tokenizer, 500_000)


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_experiments_name_methods_that_exist(name: str) -> None:
    for condition in EXPERIMENTS[name].conditions:
        for method in condition.methods.values():
            build(method)
