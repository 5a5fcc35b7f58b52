"""Text as tokens and tokens as text: ids, the BOS, prompt and response, readable strings, and spans of characters."""

from __future__ import annotations

import codecs
import functools
import json
import re
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

CONTINUATION = "⋯"
"""Shown for a token that holds only later bytes of a character that an earlier token began."""

_BYTE_PIECE = re.compile(r"<0x([0-9A-Fa-f]{2})>$")
_SPACE_PIECE = "▁"


@functools.cache
def _byte_of_character() -> dict[str, int]:
    """Maps the printable characters that byte-level vocabularies use for the 256 bytes back to bytes."""
    printable = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    table = {chr(byte): byte for byte in printable}
    rest = [byte for byte in range(256) if byte not in set(printable)]
    return {**table, **{chr(256 + index): byte for index, byte in enumerate(rest)}}


@dataclass(frozen=True)
class Vocabulary:
    """How a tokenizer writes text as the pieces of its vocabulary.

    Byte-level vocabularies (GPT-2) write bytes as characters; SentencePiece writes spaces as ``▁`` and unknown bytes as
    ``<0xNN>``; WordPiece (BERT) marks the pieces that continue a word (``##``); others mark the last piece of a word
    (``</w>``).
    """

    byte_level: bool = False
    """Whether characters stand for bytes."""
    spaces: bool = True
    """Whether ``▁`` stands for a space."""
    ends: str = ""
    """Suffix of the last piece of a word; "" if there is none."""
    decoder: Any = None
    """WordPiece's decoder, if pieces that continue a word have a prefix."""
    marks_left: bool = False
    """Whether the tokenizer's own decoder leaves the marks of words in the text."""
    special: frozenset[int] = frozenset()
    """Ids that stand for no text: BOS, EOS, padding and added special tokens."""
    added: Mapping[int, str] = field(default_factory=dict)
    """The texts of added tokens, which no rule of the vocabulary applies to."""

    @classmethod
    def of(cls, tokenizer: Any) -> Vocabulary:
        """The vocabulary of a transformers tokenizer."""
        added = getattr(tokenizer, "added_tokens_decoder", {})
        special = frozenset(tokenizer.all_special_ids) | {index for index, token in added.items() if token.special}
        texts = {index: token.content for index, token in added.items()}
        core = getattr(tokenizer, "backend_tokenizer", None)
        if core is None:
            sample = tokenizer.convert_ids_to_tokens(tokenizer.encode(" a", add_special_tokens=False))
            return cls(byte_level=any("Ġ" in piece for piece in sample), special=special, added=texts)
        steps = [step for part in (core.normalizer, core.pre_tokenizer, core.decoder) for step in _steps(part)]
        kinds = {step["type"]: step for step in steps}
        continues = getattr(core.model, "continuing_subword_prefix", None)
        ends = kinds.get("BPEDecoder", {}).get("suffix") or getattr(core.model, "end_of_word_suffix", None) or ""
        return cls(
            byte_level="ByteLevel" in kinds,
            spaces=any(_SPACE_PIECE in str(step) for step in steps),
            ends=ends,
            decoder=core.decoder if "WordPiece" in kinds else _wordpiece(continues) if continues else None,
            marks_left=bool((ends and "BPEDecoder" not in kinds) or (continues and "WordPiece" not in kinds)),
            special=special,
            added=texts,
        )

    @staticmethod
    def key(tokenizer: Any) -> Hashable:
        """What changes when tokens are added to a tokenizer, or made special."""
        added = getattr(tokenizer, "added_tokens_decoder", {})
        return (
            tuple((index, token.content, token.special) for index, token in added.items()),
            tuple(tokenizer.all_special_ids),
        )

    def text_of(self, token: int, piece: str) -> bytes:
        """The text of a piece in UTF-8, with the spaces that the vocabulary marks; may be part of a character."""
        if token in self.special or (self.byte_level and token in self.added):
            return piece.encode("utf8")
        if self.decoder is not None:
            return str(self.decoder.decode(["a", piece]))[1:].encode("utf8")
        space = b""
        if self.ends and piece.endswith(self.ends):
            piece, space = piece[: -len(self.ends)], b" "
        if self.byte_level:
            table = _byte_of_character()
            known = all(character in table for character in piece)
            return (bytes(table[character] for character in piece) if known else piece.encode("utf8")) + space
        if match := _BYTE_PIECE.match(piece):
            return bytes([int(match.group(1), 16)])
        return (piece.replace(_SPACE_PIECE, " ") if self.spaces else piece).encode("utf8") + space


def _steps(part: Any) -> list[dict[str, Any]]:
    """The steps of a normalizer, pre-tokenizer or decoder of the tokenizers library."""
    if part is None:
        return []
    waiting, steps = [json.loads(part.__getstate__())], []
    while waiting:
        step = waiting.pop()
        inner = step.get("normalizers") or step.get("pretokenizers") or step.get("decoders")
        if inner:
            waiting += inner
        else:
            steps.append(step)
    return steps


def _wordpiece(prefix: str) -> Any:
    """The decoder for a vocabulary that marks continued words but has no decoder of its own."""
    from tokenizers import decoders

    return decoders.WordPiece(prefix=prefix, cleanup=False)


def check_text(text: object) -> None:
    """Raise a TypeError unless a text is a str, and a ValueError if it is not valid Unicode."""
    if not isinstance(text, str):
        raise TypeError(f"text must be a str, got {type(text).__name__}")
    try:
        text.encode("utf8")
    except UnicodeEncodeError as error:
        raise ValueError(
            f"text must be valid Unicode, but its character {error.start} is {text[error.start]!a}, one half of a "
            "surrogate pair: remove it, or read the text again with the right encoding"
        ) from error


def token_lists(tokenizer: Any, texts: Sequence[str]) -> list[list[int]]:
    """Ids of each text without added special tokens; TypeError or ValueError as `check_text`."""
    for text in texts:
        check_text(text)
    core = getattr(tokenizer, "backend_tokenizer", None)
    if core is not None and core.padding is None and core.truncation is None:
        # without the masks and character offsets that transformers makes for every text
        return [list(encoding.ids) for encoding in core.encode_batch_fast(list(texts), add_special_tokens=False)]
    return [list(ids) for ids in tokenizer(list(texts), add_special_tokens=False)["input_ids"]]


def encoded(tokenizer: Any, text: str) -> tuple[list[int], list[tuple[int, int]]]:
    """Ids of a text without added special tokens, and the characters [start, end) of each."""
    check_text(text)
    if not getattr(tokenizer, "is_fast", False):
        (ids,) = token_lists(tokenizer, [text])
        return ids, spans_of_strings(text, token_strings(tokenizer, ids, Vocabulary.of(tokenizer)))
    both = tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)
    return list(both["input_ids"]), [(int(start), int(end)) for start, end in both["offset_mapping"]]


def tokens_before(spans: Sequence[tuple[int, int]], boundary: int) -> int:
    """How many tokens lie before a boundary in the text; a token that straddles it lies after it."""
    return next((number for number, (_, end) in enumerate(spans) if end > boundary), len(spans))


def following(tokenizer: Any, ids: Sequence[int], text: str, vocabulary: Vocabulary) -> list[int]:
    """Ids of a text that continues other text, whose ids are fixed.

    The text is tokenized behind the text of these ids, so that a tokenizer which begins every text with a space adds
    none. Where a token would straddle the boundary, it is tokenized behind a line break, else alone: the first that
    reads as both texts together.
    """
    before, choice = decode(tokenizer, ids, vocabulary), list[int]()
    for start in (before, "\n", ""):
        joined, spans = encoded(tokenizer, start + text)
        choice = joined[tokens_before(spans, len(start)) :]
        if decode(tokenizer, [*ids, *choice], vocabulary) == before + text:
            break
    return choice


def decode(tokenizer: Any, ids: Sequence[int], vocabulary: Vocabulary, *, skip_special: bool = False) -> str:
    """The text of ids; special tokens are written out unless ``skip_special``."""
    garbled = vocabulary.byte_level and any(not vocabulary.added.get(i, "").isascii() for i in ids)
    if garbled or vocabulary.marks_left:  # the tokenizers library reads the letters of added tokens as bytes
        pieces = [(i, piece) for i, piece in _pieces(tokenizer, ids) if not (skip_special and i in vocabulary.special)]
        text = b"".join(vocabulary.text_of(i, piece or "") for i, piece in pieces).decode("utf8", "replace")
        return text.removesuffix(" ").removeprefix(" ") if vocabulary.marks_left else text
    return str(tokenizer.decode(ids, skip_special_tokens=skip_special, clean_up_tokenization_spaces=False))


def token_strings(tokenizer: Any, ids: Sequence[int], vocabulary: Vocabulary) -> tuple[str, ...]:
    """One readable string per id.

    A character that spans several tokens is shown at the token where it begins; a token with only later bytes is shown
    as ``⋯``. The joined strings without ``⋯`` are the text. Bytes that are no character are shown as ``�``.
    """
    pieces = [f"[{token}]" if piece is None else piece for token, piece in _pieces(tokenizer, ids)]
    strings = [""] * len(pieces)
    decoder = codecs.getincrementaldecoder("utf8")("replace")
    begun = 0  # the token where the character now being decoded began
    for index, (token, piece) in enumerate(zip(ids, pieces, strict=True)):
        if token in vocabulary.special:
            strings[begun] += decoder.decode(b"", final=True)
            decoder.reset()
            strings[index] = piece
            continue
        for byte in vocabulary.text_of(token, piece):
            pending = bool(decoder.getstate()[0])
            begun = begun if pending else index
            text = decoder.decode(bytes([byte]))
            if pending and text.startswith("�"):  # the earlier bytes were no character: this byte begins anew
                strings[begun] += text[0]
                text, begun = text[1:], index
            strings[begun] += text
    if strings:
        strings[begun] += decoder.decode(b"", final=True)
    return tuple(string or (CONTINUATION if piece else "") for string, piece in zip(strings, pieces, strict=True))


def single_token_strings(tokenizer: Any, ids: Sequence[int], vocabulary: Vocabulary) -> tuple[str, ...]:
    """`token_strings` of every id separately, for ids that are not a sequence, such as the likeliest next tokens."""
    return tuple(
        f"[{token}]" if piece is None else vocabulary.text_of(token, piece).decode("utf8", "replace")
        for token, piece in _pieces(tokenizer, ids)
    )


def _pieces(tokenizer: Any, ids: Sequence[int]) -> list[tuple[int, str | None]]:
    return list(zip(ids, tokenizer.convert_ids_to_tokens(list(ids)), strict=True))


def spans_of_strings(text: str, strings: Sequence[str]) -> list[tuple[int, int]]:
    """Character span [start, end) of each token, from the tokens' strings; tokens that share a character share its
    span."""
    spans: list[tuple[int, int]] = []
    cursor = 0
    for string in strings:
        wanted = "" if string == CONTINUATION else string
        if not wanted:
            spans.append(spans[-1] if string == CONTINUATION and spans else (cursor, cursor))
            continue
        start = text.find(wanted, cursor)
        if start < 0:  # a space that the tokenizer put in front of the text
            wanted = wanted.lstrip()
            start = max(text.find(wanted, cursor), cursor)
        spans.append((start, min(start + len(wanted), len(text))))
        cursor = spans[-1][1]
    return spans
