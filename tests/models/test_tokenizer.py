"""Encoding, decoding and chat templates."""

import pytest

from glimpse.models import ModelError, load_tokenizer, resolve

MESSAGES = [{"role": "user", "content": "Hello!"}]


@pytest.fixture(scope="module")
def smollm2(smollm2_files):
    return load_tokenizer(smollm2_files)


@pytest.fixture(scope="module")
def tiny(tiny_checkpoint):
    return load_tokenizer(resolve(str(tiny_checkpoint("llama", has_tokenizer=True))))


@pytest.mark.parametrize(
    "text", ["", "Hello, world!", " a  b\n\n\tc .", "héllo 日本語 🤗", "don't ."]
)
def test_round_trip(smollm2, tiny, text):
    for tokenizer in (smollm2, tiny):
        assert tokenizer.decode(tokenizer.encode(text)) == text


def test_special_tokens(tiny):
    assert tiny.encode("a") == [256, *tiny.encode("a", add_special_tokens=False)]
    assert tiny.decode(tiny.encode("a"), skip_special_tokens=False) == "<s>a"
    assert (tiny.eos_token_id, tiny.vocab_size) == (257, 258)


def test_cut_character_ends_in_the_replacement_character(smollm2):
    token_ids = smollm2.encode("🤗")
    assert len(token_ids) > 1
    assert smollm2.decode(token_ids[:-1]).endswith("\ufffd")
    assert smollm2.decode(token_ids) == "🤗"


def test_lone_surrogate(smollm2):
    with pytest.raises(ValueError, match=r"lone surrogate U\+D800 at 1"):
        smollm2.encode("a\ud800")


def test_default_model_chat(smollm2):
    assert smollm2.has_chat_template
    text = smollm2.decode(smollm2.chat(MESSAGES), skip_special_tokens=False)
    assert text.endswith("<|im_start|>user\nHello!<|im_end|>\n<|im_start|>assistant\n")
    assert smollm2.eos_token_id == smollm2.encode("<|im_end|>")[0] == 2


def test_default_model_encodes_like_transformers(smollm2, smollm2_files):
    import pydoc_data.topics

    from transformers import PreTrainedTokenizerFast

    reference = PreTrainedTokenizerFast.from_pretrained(
        smollm2_files.folder, gguf_file=smollm2_files.weights[0].name
    )
    text = pydoc_data.topics.topics["numbers"] + pydoc_data.topics.topics["formatstrings"]
    assert smollm2.encode(text) == reference.encode(text)


def test_chat_has_one_bos(tiny):
    token_ids = tiny.chat(MESSAGES)
    assert token_ids.count(256) == 1
    assert tiny.decode(token_ids) == "[user] Hello!\n[assistant] "
    assert tiny.decode(tiny.chat(MESSAGES, add_generation_prompt=False)) == "[user] Hello!\n"


@pytest.mark.parametrize("messages", [[], [{"role": "user"}]])
def test_messages_that_the_template_refuses(smollm2, messages):
    with pytest.raises(ValueError, match="the chat template refuses"):
        smollm2.chat(messages)


def test_no_chat_template(tiny_checkpoint):
    folder = tiny_checkpoint("llama", has_tokenizer=True)
    (folder / "chat_template.jinja").unlink()
    tokenizer = load_tokenizer(resolve(str(folder)))
    assert not tokenizer.has_chat_template
    with pytest.raises(ModelError, match="no chat template: give a plain prompt"):
        tokenizer.chat(MESSAGES)


def test_missing_tokenizer(tiny_checkpoint):
    with pytest.raises(ModelError, match="cannot read its tokenizer"):
        load_tokenizer(resolve(str(tiny_checkpoint("llama"))))


def test_broken_tokenizer(tiny_checkpoint):
    folder = tiny_checkpoint("llama", has_tokenizer=True)
    (folder / "tokenizer.json").write_text("{")
    with pytest.raises(ModelError, match="cannot read its tokenizer"):
        load_tokenizer(resolve(str(folder)))


def test_gguf_tokenizer_is_not_the_one_that_lies_beside(smollm2, smollm2_files, tiny_checkpoint):
    folder = tiny_checkpoint("llama", has_tokenizer=True)
    path = folder / "model.gguf"
    path.symlink_to(smollm2_files.weights[0])
    assert load_tokenizer(resolve(str(path))).vocab_size == smollm2.vocab_size == 49152


def test_gguf_without_tokenizer(tiny_gguf):
    with pytest.raises(ModelError, match="cannot read its tokenizer"):
        load_tokenizer(resolve(str(tiny_gguf())))
