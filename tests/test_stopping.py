"""Stops at every place of a block, and text that streams in whole characters."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from collections.abc import Sequence as SequenceOf
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import decoders

from glimpse.config import Method, SamplingParams
from glimpse.stopping import MAX_WINDOW, IncrementalDetokenizer, OutputText, cut, finish
from glimpse.types import Sequence

EOS, STOP_ID = 0, 1
PIECES = ["", "", *"abcdefghijklmnopqrstuvwxyz "]
"""Token 0 and 1 are special; the others are letters and a space."""


def letters(ids: SequenceOf[int]) -> str:
    return "".join(PIECES[i] for i in ids)


def encode(text: str) -> list[int]:
    return [PIECES.index(letter, 2) for letter in text]


def make_sequence(prompt: str = "p", **options: object) -> Sequence:
    prompt_ids = encode(prompt)
    return Sequence(
        handle=0,
        token_ids=prompt_ids,
        num_prompt_tokens=len(prompt_ids),
        params=SamplingParams(**{"max_tokens": 100, **options}),
        method=Method("test"),
        acceptance="greedy",
        seed=1,
        eos_token_ids=frozenset({EOS}),
    )


def run(
    sequence: Sequence, tokens: list[int], block_size: int, max_seq_len: int = 1000
) -> list[int]:
    """Feed tokens in blocks as rounds do; returns the output."""
    for start in range(0, len(tokens), block_size):
        block = tokens[start : start + block_size]
        sequence.token_ids += cut(sequence, block, letters, max_seq_len)
        if sequence.is_finished:
            break
    return sequence.output_ids


BLOCK_SIZES = (1, 2, 3, 5, 8, 40)
blocks = pytest.mark.parametrize("block_size", BLOCK_SIZES)


# ---------------------------------------------------------------------------- one reason at a time


@blocks
@pytest.mark.parametrize("place", range(9))
@pytest.mark.parametrize("stop_id", [EOS, STOP_ID])
def test_a_stop_id_at_every_place(stop_id: int, place: int, block_size: int) -> None:
    tokens = encode("abcdefghi")
    tokens.insert(place, stop_id)
    sequence = make_sequence(stop_token_ids=(STOP_ID,))
    assert run(sequence, tokens, block_size) == tokens[: place + 1]
    assert sequence.text == "abcdefghi"[:place]
    assert (sequence.finish_reason, sequence.stop_reason) == ("stop", stop_id)


@blocks
@pytest.mark.parametrize("place", range(8))
@pytest.mark.parametrize("stop", ["x", "xy", "xyz"])
def test_a_stop_string_at_every_place(stop: str, place: int, block_size: int) -> None:
    text = "abcdefgh"[:place] + "xyz" + "ijk"
    sequence = make_sequence(stop=("qq", stop))
    assert run(sequence, encode(text), block_size) == encode(text[: place + len(stop)])
    assert sequence.text == text[:place]
    assert (sequence.finish_reason, sequence.stop_reason) == ("stop", stop)


@blocks
@pytest.mark.parametrize("limit", range(1, 10))
def test_max_tokens_at_every_place(limit: int, block_size: int) -> None:
    sequence = make_sequence(max_tokens=limit)
    assert run(sequence, encode("abcdefghij"), block_size) == encode("abcdefghij"[:limit])
    assert sequence.text == "abcdefghij"[:limit]
    assert (sequence.finish_reason, sequence.stop_reason) == ("length", None)


@blocks
@pytest.mark.parametrize("room", range(1, 10))
def test_the_context_limit_at_every_place(room: int, block_size: int) -> None:
    sequence = make_sequence(prompt="ppp")
    run(sequence, encode("abcdefghij"), block_size, max_seq_len=3 + room)
    assert sequence.text == "abcdefghij"[:room]
    assert len(sequence.token_ids) == 3 + room
    assert (sequence.finish_reason, sequence.stop_reason) == ("length", None)


@blocks
def test_nothing_stops_before_its_time(block_size: int) -> None:
    sequence = make_sequence(stop=("xyz",), max_tokens=11)
    assert run(sequence, encode("abcdefghix"), block_size) == encode("abcdefghix")
    assert sequence.finish_reason is None
    assert sequence.text == "abcdefghi"  # The x may be the beginning of a stop string.


# -------------------------------------------------------------------------------- several at once


@blocks
@pytest.mark.parametrize("id_at", range(7))
@pytest.mark.parametrize("string_at", range(6))
def test_the_first_of_several_wins(id_at: int, string_at: int, block_size: int) -> None:
    tokens = encode("abcdef"[:string_at] + "xy" + "ghij")
    tokens.insert(id_at, EOS)
    string_end = string_at + 2 + (id_at < string_at + 2)
    reasons = {"eos": ("stop", EOS), "xy": ("stop", "xy"), "length": ("length", None)}
    for limit in range(1, 8):
        ends = {"eos": id_at + 1, "xy": string_end, "length": limit}
        # A tie goes to the stop: a limit on the same token must not hide it.
        end, _, first = min((end, name == "length", name) for name, end in ends.items())
        sequence = make_sequence(stop=("xy",), max_tokens=limit)
        assert run(sequence, tokens, block_size) == tokens[:end]
        assert (sequence.finish_reason, sequence.stop_reason) == reasons[first]
        kept = letters(tokens[:end])
        assert sequence.text == (kept.removesuffix("xy") if first == "xy" else kept)


@blocks
def test_a_stop_on_the_last_token_of_the_context_is_a_stop(block_size: int) -> None:
    sequence = make_sequence(prompt="pp")
    run(sequence, [*encode("abc"), EOS], block_size, max_seq_len=6)
    assert (sequence.finish_reason, sequence.text) == ("stop", "abc")


@blocks
def test_ignored_eos_goes_on_and_adds_no_text(block_size: int) -> None:
    tokens = [*encode("ab"), EOS, EOS, *encode("cd")]
    sequence = make_sequence(ignore_eos=True, max_tokens=6)
    assert run(sequence, tokens, block_size) == tokens
    assert (sequence.finish_reason, sequence.text) == ("length", "abcd")


@blocks
def test_without_eos_ids_nothing_stops_at_them(block_size: int) -> None:
    sequence = make_sequence()
    sequence.eos_token_ids = frozenset()
    assert len(run(sequence, [*encode("ab"), EOS, *encode("c")], block_size)) == 4
    assert sequence.finish_reason is None


@blocks
@pytest.mark.parametrize("min_tokens", range(8))
def test_stops_wait_for_min_tokens(min_tokens: int, block_size: int) -> None:
    tokens = [*encode("axb"), EOS, *encode("cxd"), EOS]
    sequence = make_sequence(stop=("x",), min_tokens=min_tokens)
    ends = {0: 2, 1: 2, 2: 2, 3: 4, 4: 4, 5: 6, 6: 6, 7: 8}
    assert run(sequence, tokens, block_size) == tokens[: ends[min_tokens]]
    texts = {2: "a", 4: "axb", 6: "axbc", 8: "axbcxd"}
    assert sequence.text == texts[ends[min_tokens]]
    assert sequence.finish_reason == "stop"


@blocks
def test_a_stop_string_may_begin_before_min_tokens(block_size: int) -> None:
    sequence = make_sequence(stop=("xy", "xyxyz"), min_tokens=4)
    run(sequence, encode("axyxyb"), block_size)
    assert (sequence.text, sequence.stop_reason) == ("axy", "xy")


@blocks
def test_a_stop_string_that_begins_in_the_prompt_does_not_count(block_size: int) -> None:
    sequence = make_sequence(prompt="ax", stop=("xy",))
    run(sequence, encode("yb"), block_size)
    assert (sequence.text, sequence.finish_reason) == ("yb", None)


# ------------------------------------------------------------------------------------ stop strings


def final_text(pieces: Iterable[str], stop: SequenceOf[str]) -> tuple[str, str | None]:
    table = list(pieces)
    output = OutputText(lambda ids: "".join(table[i] for i in ids), stop)
    for i in range(len(table)):
        if found := output.push(i):
            return output.text, found
    output.flush()
    return output.text, None


@pytest.mark.parametrize(
    ("text", "stop", "expected"),
    [
        ("abcd", ("bc", "abc"), ("", "abc")),  # Both end at c: the one that begins first.
        ("abcd", ("b", "abc"), ("a", "b")),  # b is complete first.
        ("aab", ("ab",), ("a", "ab")),
        ("aaab", ("aab",), ("a", "aab")),
        ("ababac", ("abac",), ("ab", "abac")),
        ("abab", ("abac",), ("abab", None)),
        ("x\nUser:", ("\nUser:",), ("x", "\nUser:")),
        ("", ("a",), ("", None)),
    ],
)
def test_where_stop_strings_cut(
    text: str, stop: tuple[str, ...], expected: tuple[str, str | None]
) -> None:
    assert final_text(text, stop) == expected
    assert final_text([text], stop) == expected


@given(st.data(), st.text("ab", max_size=30), st.lists(st.text("ab", min_size=1, max_size=4)))
def test_the_cut_does_not_depend_on_tokens(data: st.DataObject, text: str, stop: list[str]) -> None:
    assert final_text(split(data, text), stop) == final_text(text, stop)


@given(st.text("abc", max_size=40), st.lists(st.text("abc", min_size=1, max_size=5), max_size=3))
def test_what_is_shown_stays(text: str, stop: list[str]) -> None:
    output = OutputText(lambda ids: "".join(text[i] for i in ids), stop)
    for i in range(len(text)):
        before = output.text
        found = output.push(i)
        assert output.text.startswith(before)
        ends = {text.find(s) + len(s) for s in stop if s in text[: i + 1]}
        assert (found is None) == (not ends)
        if found:
            return
        held = (text[: i + 1]).removeprefix(output.text)
        assert not held or any(s.startswith(held) for s in stop)


def split(data: st.DataObject, text: SequenceOf[str] | str | bytes) -> list:
    """Cut into pieces at random places."""
    places = st.sets(st.integers(1, max(1, len(text) - 1)))
    edges = [0, *sorted(data.draw(places)), len(text)]
    return [text[a:b] for a, b in pairwise(edges)]


# -------------------------------------------------------------------------------------- characters

FFFD = "\N{REPLACEMENT CHARACTER}"
DecodeTokens = Callable[[SequenceOf[int]], str]


def byte_level(pieces: SequenceOf[bytes]) -> DecodeTokens:
    """Like the byte-level tokenizers of GPT-2, Llama 3 and Qwen."""
    return lambda ids: b"".join(pieces[i] for i in ids).decode(errors="replace")


def byte_fallback(pieces: SequenceOf[str]) -> DecodeTokens:
    """The decoder of Llama 2 and Mistral: a space is a mark, rare characters are byte tokens.

    An empty piece stands for a special token, left out before decoding.
    """
    decoder = decoders.Sequence(
        [
            decoders.Replace("▁", " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(" ", 1, 0),
        ]
    )
    return lambda ids: decoder.decode([pieces[i] for i in ids if pieces[i]])


def stream(decode: DecodeTokens, num_tokens: int) -> list[str]:
    detokenizer = IncrementalDetokenizer(decode)
    return [*(detokenizer.push(i) for i in range(num_tokens)), detokenizer.flush()]


TEXT = st.text(st.sampled_from("ab é好\U0001f600\N{COMBINING ACUTE ACCENT}"), max_size=60)


@given(st.data(), TEXT)
def test_byte_level_text_streams_in_whole_characters(data: st.DataObject, text: str) -> None:
    pieces = split(data, text.encode())
    shown = stream(byte_level(pieces), len(pieces))
    assert "".join(shown) == text
    assert FFFD not in "".join(shown)
    assert shown[-1] == ""


@given(TEXT)
def test_single_bytes_are_shown_as_soon_as_a_character_is_whole(text: str) -> None:
    pieces = [bytes([byte]) for byte in text.encode()]
    shown = stream(byte_level(pieces), len(pieces))
    ends = [len(text[: i + 1].encode()) - 1 for i in range(len(text))]
    assert [i for i, piece in enumerate(shown) if piece] == ends


@given(st.data(), st.binary(max_size=200))
def test_bytes_that_are_not_text_decode_as_they_do_at_once(data: st.DataObject, raw: bytes) -> None:
    pieces = split(data, raw)
    assert "".join(stream(byte_level(pieces), len(pieces))) == raw.decode(errors="replace")


@given(st.text(st.sampled_from("ab é好\U0001f600"), max_size=60))
def test_byte_fallback_text_streams_in_whole_characters(text: str) -> None:
    pieces: list[str] = []
    for letter in "▁" + text.replace(" ", "▁"):
        rare = letter in "é好\U0001f600"
        pieces += [f"<0x{byte:02X}>" for byte in letter.encode()] if rare else [letter]
    decode = byte_fallback(pieces)
    shown = stream(decode, len(pieces))
    assert "".join(shown) == text == decode(range(len(pieces)))
    assert FFFD not in "".join(shown)


def test_a_real_replacement_character_is_text() -> None:
    text = f"a{FFFD}b{FFFD}"
    pieces = [letter.encode() for letter in text]
    assert stream(byte_level(pieces), 4) == ["a", "", f"{FFFD}b", "", FFFD]


def test_an_unfinished_character_is_shown_at_the_end_only() -> None:
    assert stream(byte_level([b"a", b"\xe5\xa5"]), 2) == ["a", "", FFFD]


def test_text_before_an_unfinished_character_is_not_held() -> None:
    assert stream(byte_level([b"END\xe5", b"\xa5\xbd"]), 2) == ["END", "好", ""]


def test_a_stop_string_before_an_unfinished_character_stops_at_once() -> None:
    sequence = make_sequence(stop=("END",))
    sequence.eos_token_ids = frozenset()
    decode = byte_level([b"a", b" END\xe5", b"\xa5\xbd"])
    assert cut(sequence, [0, 1, 2], decode, 1000) == [0, 1]
    assert (sequence.text, sequence.stop_reason) == ("a ", "END")


def test_special_tokens_do_not_hide_what_a_space_mark_follows() -> None:
    pieces = ["▁Hi", *[""] * (2 * MAX_WINDOW), "▁you", "<0xC3>", "", "<0xA9>"]
    shown = stream(byte_fallback(pieces), len(pieces))
    assert [piece for piece in shown if piece] == ["Hi", " you", "é"]


@pytest.mark.parametrize(
    "piece",
    [b"ab", b"", b"\x80", b"\xe5", b"\xa5\xbd\xe5", "好".encode(), b"\xff\xff\xff\xff"],
    ids=repr,
)
def test_work_per_token_does_not_grow_with_the_output(piece: bytes) -> None:
    sizes: list[int] = []
    whole = byte_level([piece])

    def decode(ids: SequenceOf[int]) -> str:
        sizes.append(len(ids))
        return whole(ids)

    detokenizer = IncrementalDetokenizer(decode)
    text = "".join(detokenizer.push(0) for _ in range(500)) + detokenizer.flush()
    assert text == (piece * 500).decode(errors="replace")
    assert max(sizes) <= 2 * MAX_WINDOW
    assert sum(sizes) <= 500 * 2 * MAX_WINDOW


# ------------------------------------------------------------------------------------------ finish


def test_abort_releases_what_was_held() -> None:
    sequence = make_sequence(stop=("xyz",))
    run(sequence, encode("abxy"), 2)
    assert sequence.text == "ab"
    finish(sequence, "abort")
    assert (sequence.finish_reason, sequence.text) == ("abort", "abxy")


def test_abort_before_the_first_token() -> None:
    sequence = make_sequence()
    finish(sequence, "abort")
    assert (sequence.finish_reason, sequence.text) == ("abort", "")


@blocks
def test_a_length_limit_releases_what_was_held(block_size: int) -> None:
    sequence = make_sequence(stop=("xyz",), max_tokens=4)
    run(sequence, encode("abxyz"), block_size)
    assert (sequence.finish_reason, sequence.text) == ("length", "abxy")
