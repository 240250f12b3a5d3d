"""What a model says about stopping and sampling."""

import logging

import pytest

from glimpse.models import (
    GenerationDefaults,
    ModelError,
    load_generation_defaults,
    resolve,
)

GREEDY = {"temperature": 0.0}
SAMPLED = {"temperature": 1.0, "top_k": 50, "top_p": 1.0, "min_p": 0.0}


@pytest.fixture
def folder(tiny_checkpoint):
    folder = tiny_checkpoint("llama")
    (folder / "generation_config.json").unlink()
    return folder


def _defaults(path):
    return load_generation_defaults(resolve(str(path)))


@pytest.mark.parametrize(
    ("config", "generation", "expected"),
    [
        (None, None, set()),
        (2, None, {2}),
        ([2, 3], None, {2, 3}),
        (2, 5, {5}),
        (2, [5, 6], {5, 6}),
        (None, 5, {5}),
    ],
)
def test_eos(folder, edit_json, config, generation, expected):
    edit_json(folder / "config.json", eos_token_id=config)
    edit_json(folder / "generation_config.json", eos_token_id=generation)
    assert _defaults(folder).eos_token_ids == expected


def test_eos_of_config_holds_without_generation_config(folder, edit_json):
    edit_json(folder / "config.json", eos_token_id=[7])
    assert _defaults(folder) == GenerationDefaults(frozenset({7}), {})


@pytest.mark.parametrize(
    ("stated", "expected"),
    [
        ({}, {}),
        ({"do_sample": False}, GREEDY),
        ({"do_sample": False, "temperature": 0.6, "top_k": 20}, GREEDY),
        ({"do_sample": True}, SAMPLED),
        ({"do_sample": True, "top_k": 0, "top_p": 0.9}, {**SAMPLED, "top_k": 0, "top_p": 0.9}),
        (
            {"do_sample": True, "temperature": 0.7, "min_p": 0.1, "repetition_penalty": 1.1},
            {**SAMPLED, "temperature": 0.7, "min_p": 0.1, "repetition_penalty": 1.1},
        ),
        ({"do_sample": False, "repetition_penalty": 1.3}, {**GREEDY, "repetition_penalty": 1.3}),
        ({"repetition_penalty": 1.3, "temperature": 0.5}, {"repetition_penalty": 1.3}),
    ],
)
def test_sampling(folder, edit_json, stated, expected):
    edit_json(folder / "generation_config.json", **stated)
    assert _defaults(folder).sampling == expected


def test_silent_fields_are_filled_as_transformers_does():
    from transformers import GenerationConfig

    defaults = GenerationConfig._get_default_generation_params()
    assert {name: defaults[name] for name in ("temperature", "top_k", "top_p")} == {
        name: SAMPLED[name] for name in ("temperature", "top_k", "top_p")
    }


def test_value_out_of_range(folder, edit_json):
    edit_json(folder / "generation_config.json", do_sample=True, top_p=1.5)
    with pytest.raises(ModelError, match=r"generation defaults: top_p=1\.5: must be"):
        _defaults(folder)


def test_value_of_wrong_type(folder, edit_json):
    edit_json(folder / "generation_config.json", do_sample=True, temperature="warm")
    with pytest.raises(ModelError, match="generation defaults"):
        _defaults(folder)


@pytest.mark.parametrize("eos", ["</s>", [2, None], 2.5])
def test_eos_of_wrong_type(folder, edit_json, eos):
    edit_json(folder / "generation_config.json", eos_token_id=eos)
    with pytest.raises(ModelError, match=r"eos_token_id=.* must be one id or a list"):
        _defaults(folder)


def test_settings_without_equivalent_are_logged(folder, edit_json, caplog):
    edit_json(folder / "generation_config.json", no_repeat_ngram_size=3, typical_p=1.0)
    with caplog.at_level(logging.WARNING):
        _defaults(folder)
    assert "no_repeat_ngram_size=3" in caplog.text
    assert "typical_p" not in caplog.text


def test_broken_file(folder):
    (folder / "generation_config.json").write_text("{")
    with pytest.raises(ModelError, match=r"generation_config\.json"):
        _defaults(folder)


def test_default_model(smollm2_files):
    assert load_generation_defaults(smollm2_files) == GenerationDefaults(frozenset({2}), {})


@pytest.mark.parametrize(
    ("tokens", "expected"),
    [
        ({}, set()),
        ({"eos_token_id": 3}, {3}),
        ({"eos_token_id": 3, "eot_token_id": 4, "bos_token_id": 5}, {3, 4}),
    ],
)
def test_gguf(tiny_gguf, tokens, expected):
    assert _defaults(tiny_gguf(tokens=tokens)) == GenerationDefaults(frozenset(expected), {})
