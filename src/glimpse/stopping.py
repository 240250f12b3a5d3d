"""Where an output ends, and its text: whole characters only, cut before a stop string."""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence as SequenceOf

from glimpse.types import FinishReason, Sequence

Decode = Callable[[SequenceOf[int]], str]
"""Token ids to text, special tokens left out, spaces left alone (no clean-up)."""

REPLACEMENT = "\N{REPLACEMENT CHARACTER}"
MAX_WINDOW = 16
"""Tokens decoded at once; twice as many where no character ends with a token."""
MAX_INCOMPLETE = 3
"""An unfinished UTF-8 character has at most 3 bytes, shown as at most 3 replacement characters."""


def cut(sequence: Sequence, tokens: SequenceOf[int], decode: Decode, max_seq_len: int) -> list[int]:
    """The tokens of an accepted block up to and including the one that ends the output.

    Tokens are taken one by one. In order of precedence at one token: an eos or stop id, a stop
    string (neither of them before ``min_tokens``), then ``max_tokens`` and the context limit. Sets
    ``text``, ``finish_reason`` and ``stop_reason`` of the sequence, and leaves appending the result
    to its ``token_ids`` to the caller. An eos or stop id is kept as a token but adds no text.
    """
    params = sequence.params
    output = _output_text(sequence, decode)
    eos_ids = frozenset() if params.ignore_eos else sequence.eos_token_ids
    for i, token_id in enumerate(tokens):
        num_output = sequence.num_output_tokens + i + 1
        may_stop = num_output >= params.min_tokens
        if may_stop and (token_id in eos_ids or token_id in params.stop_token_ids):
            finish(sequence, "stop", token_id)
        elif stop := output.push(token_id, may_stop):
            finish(sequence, "stop", stop)
        elif (
            num_output >= params.max_tokens
            or sequence.num_prompt_tokens + num_output >= max_seq_len
        ):
            finish(sequence, "length")
        if sequence.is_finished:
            return list(tokens[: i + 1])
    sequence.text = output.text
    return list(tokens)


def finish(sequence: Sequence, reason: FinishReason, stop_reason: int | str | None = None) -> None:
    """End a sequence and release the text that was held back; for "abort" too."""
    sequence.finish_reason = reason
    sequence.stop_reason = stop_reason
    if isinstance(sequence.output_text, OutputText):
        if not isinstance(stop_reason, str):
            sequence.output_text.flush()
        sequence.text = sequence.output_text.text


def _output_text(sequence: Sequence, decode: Decode) -> OutputText:
    if not isinstance(sequence.output_text, OutputText):
        sequence.output_text = OutputText(decode, sequence.params.stop)
    return sequence.output_text


class OutputText:
    """Text of one output as it may be shown: nothing that could still become a stop string."""

    def __init__(self, decode: Decode, stop: SequenceOf[str] = ()) -> None:
        self.text = ""
        self._stop = stop
        self._held = ""
        self._detokenizer = IncrementalDetokenizer(decode)

    def push(self, token_id: int, may_stop: bool = True) -> str | None:
        """Take the next token. Returns the stop string that it completes, if it does.

        Of several, the one that is complete first, and of those the one that begins first: the cut
        depends on the text, not on how it falls into tokens.
        """
        new = self._detokenizer.push(token_id)
        if not new:
            return None
        num_old = len(self._held)
        self._held += new
        if may_stop and (found := self._find(num_old)):
            start, stop = found
            self._release(start)
            self._held = ""
            return stop
        self._release(len(self._held) - self._num_ambiguous())
        return None

    def flush(self) -> None:
        """Release everything held back; an unfinished character becomes U+FFFD."""
        self._held += self._detokenizer.flush()
        self._release(len(self._held))

    def _find(self, num_old: int) -> tuple[int, str] | None:
        """Start and stop string of the first match that ends in the new text."""
        matches = []
        for stop in self._stop:
            start = self._held.find(stop, max(0, num_old - len(stop) + 1))
            if start >= 0:
                matches.append((start + len(stop), start, stop))
        return min(matches)[1:] if matches else None

    def _num_ambiguous(self) -> int:
        """Length of the longest end of the held text that begins a stop string."""
        lengths = (
            n
            for stop in self._stop
            for n in range(1, min(len(stop), len(self._held) + 1))
            if self._held.endswith(stop[:n])
        )
        return max(lengths, default=0)

    def _release(self, length: int) -> None:
        self.text += self._held[:length]
        self._held = self._held[length:]


class IncrementalDetokenizer:
    """Tokens one by one to whole characters, by decoding a short window instead of the output.

    The pieces add up to the decoding of all tokens. The window begins with tokens whose text is
    out already, because decoders treat the first token of a text differently.
    """

    def __init__(self, decode: Decode) -> None:
        self._decode = decode
        self._window: list[int] = []
        self._shown = ""
        """The beginning of the window's text that is out already."""
        self._boundary = 0
        """Where in the window the last whole character ended with a token."""

    def push(self, token_id: int) -> str:
        """The text that has become certain with this token, often empty."""
        self._window.append(token_id)
        text = self._decode(self._window)
        if text and text == self._shown:
            self._window.pop()  # A special token, without text.
            return ""
        is_whole = not text.endswith(REPLACEMENT)
        end = len(text) if is_whole else self._certain(text)
        new = text[len(self._shown) : end]
        self._shown = text[: max(end, len(self._shown))]
        self._shorten(text, is_whole)
        return new

    def flush(self) -> str:
        """The rest, which no token will complete."""
        text = self._decode(self._window) if self._window else ""
        new, self._shown = text[len(self._shown) :], text
        return new

    def _certain(self, text: str) -> int:
        """How much of a text that ends with an unfinished character will not change any more."""
        if len(self._window) >= 2 * MAX_WINDOW:
            return len(text) - MAX_INCOMPLETE
        # All at the end, not the last alone: some decoders show a run of bytes as one replacement
        # each, whole characters included, until its last character is whole.
        return len(text.rstrip(REPLACEMENT))

    def _shorten(self, text: str, is_whole: bool) -> None:
        """Drop tokens from a long window, at a boundary of characters if there is one."""
        limit = MAX_WINDOW if is_whole else 2 * MAX_WINDOW
        if len(self._window) >= limit:
            num_pending = len(text) - len(self._shown)
            start = self._boundary if is_whole else len(self._window) - MAX_WINDOW // 2
            self._window = self._window[start:]
            text = self._decode(self._window)
            self._shown = text[: max(0, len(text) - num_pending)]
            self._boundary = 0
        if is_whole:
            self._boundary = len(self._window)
