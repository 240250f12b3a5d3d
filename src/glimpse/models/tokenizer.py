"""Text to token ids and back, with the model's own vocabulary and chat template."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import zip_longest
from typing import Any

from glimpse.models.errors import ModelError
from glimpse.models.files import ModelFiles


class Tokenizer:
    """A transformers tokenizer, reduced to what generation needs."""

    def __init__(self, backend: Any) -> None:
        self._backend = backend

    @property
    def vocab_size(self) -> int:
        """Number of tokens, added ones included; the model's may be padded beyond it."""
        return len(self._backend)

    @property
    def eos_token_id(self) -> int | None:
        """The tokenizer's own; what ends a text is in ``GenerationDefaults``."""
        token_id: int | None = self._backend.eos_token_id
        return token_id

    @property
    def has_chat_template(self) -> bool:
        return bool(self._backend.chat_template)

    def tokens(self) -> list[str | None]:
        """Every token by its id; None for an id that has none."""
        by_id = {token_id: token for token, token_id in self._backend.get_vocab().items()}
        return [by_id.get(token_id) for token_id in range(max(by_id, default=-1) + 1)]

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        """Token ids of a text. Raises ValueError for text that is not valid Unicode."""
        try:
            text.encode("utf-8")
        except UnicodeEncodeError as error:
            code = ord(text[error.start])
            raise ValueError(
                f"text must be Unicode; it has a lone surrogate U+{code:04X} at {error.start}"
            ) from error
        # verbose=False: the engine checks the length against the model's real limit.
        encoded = self._backend(text, add_special_tokens=add_special_tokens, verbose=False)
        return list(encoded["input_ids"])

    def decode(self, token_ids: Sequence[int], skip_special_tokens: bool = True) -> str:
        """Text of token ids, unaltered; a character cut in its bytes ends in U+FFFD."""
        text: str = self._backend.decode(
            list(token_ids),
            skip_special_tokens=skip_special_tokens,
            clean_up_tokenization_spaces=False,
        )
        return text

    def chat(
        self, messages: Sequence[Mapping[str, str]], add_generation_prompt: bool = True
    ) -> list[int]:
        """Token ids of a conversation of ``{"role": ..., "content": ...}`` in the model's own form.

        Raises ModelError if the model has no chat template, ValueError if the template refuses
        the messages.
        """
        from jinja2 import TemplateError

        if not self.has_chat_template:
            raise ModelError("the model has no chat template: give a plain prompt instead")
        try:
            text = self._backend.apply_chat_template(
                [dict(message) for message in messages],
                tokenize=False,
                add_generation_prompt=add_generation_prompt,
            )
        except (TemplateError, ValueError, TypeError) as error:
            raise ValueError(f"the chat template refuses these messages: {error}") from error
        # The template writes the BOS itself where the model wants one.
        return self.encode(text, add_special_tokens=False)


def load_tokenizer(files: ModelFiles) -> Tokenizer:
    """The tokenizer of a model. Raises ModelError if its files are missing or not readable."""
    try:
        return Tokenizer(_gguf_backend(files) if files.format == "gguf" else _folder_backend(files))
    except Exception as error:  # readers of many formats, with errors of as many kinds
        raise ModelError(f"model {files.name!r}: cannot read its tokenizer: {error}") from error


def require_same_tokens(target: Tokenizer, other: Tokenizer, name: str) -> None:
    """Raise ModelError that names the first token in which two tokenizers differ."""
    pairs = zip_longest(target.tokens(), other.tokens())
    for token_id, (expected, found) in enumerate(pairs):
        if expected != found:
            raise ModelError(
                f"draft model {name!r}: it has another tokenizer: token {token_id} is {found!r}, "
                f"the target's is {expected!r}"
            )


def _folder_backend(files: ModelFiles) -> Any:
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(
        files.folder, local_files_only=True, trust_remote_code=False
    )


def _gguf_backend(files: ModelFiles) -> Any:
    from transformers import PreTrainedTokenizerFast

    # Not from_pretrained: it prefers any tokenizer.json that lies beside the GGUF file.
    backend = PreTrainedTokenizerFast(
        name_or_path=str(files.folder), gguf_file=files.weights[0].name, local_files_only=True
    )
    # Chat templates use these two, and not every version takes them from the header.
    for name in ("bos_token", "eos_token"):
        token_id = files.gguf.metadata.get(f"tokenizer.ggml.{name}_id")
        if token_id is not None:
            setattr(backend, name, backend.convert_ids_to_tokens(token_id))
    return backend
