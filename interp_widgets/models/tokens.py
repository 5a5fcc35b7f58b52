"""Readable tokens: the string of each id, its span in the text, and whether it is special."""

from __future__ import annotations

import codecs
import functools
import re
from collections.abc import Sequence
from typing import Any, Literal

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


def piece_kind(tokenizer: Any) -> Literal["bytes", "metaspace"]:
    """How a tokenizer writes its vocabulary: characters for bytes (GPT-2) or text with ▁ for spaces (SentencePiece)."""
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is not None and backend.decoder is not None:
        return "bytes" if b"ByteLevel" in backend.decoder.__getstate__() else "metaspace"
    byte_characters = _byte_of_character()
    sample = tokenizer.convert_ids_to_tokens(tokenizer.encode(" a", add_special_tokens=False))
    return "bytes" if any("Ġ" in piece for piece in sample) and "Ġ" in byte_characters else "metaspace"


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


def special_ids(tokenizer: Any) -> frozenset[int]:
    """Ids that stand for no text: BOS, EOS, padding and added special tokens."""
    added = getattr(tokenizer, "added_tokens_decoder", {})
    return frozenset(tokenizer.all_special_ids) | {index for index, token in added.items() if token.special}


def _piece_bytes(piece: str, kind: str) -> bytes:
    if kind == "bytes":
        table = _byte_of_character()
        if all(character in table for character in piece):
            return bytes(table[character] for character in piece)
        return piece.encode("utf8")
    if match := _BYTE_PIECE.match(piece):
        return bytes([int(match.group(1), 16)])
    return piece.replace(_SPACE_PIECE, " ").encode("utf8")


def token_strings(tokenizer: Any, ids: Sequence[int], kind: str, whole: frozenset[int]) -> tuple[str, ...]:
    """One readable string per id.

    A character that spans several tokens is shown at the token where it begins; a token with only later bytes is shown
    as ``⋯``. The joined strings without ``⋯`` are the text. Bytes that are no character are shown as ``�``.

    Args:
        tokenizer: a transformers tokenizer.
        ids: token ids.
        kind: from `piece_kind`.
        whole: ids shown as written in the vocabulary (special and added tokens).
    """
    pieces = [f"[{token}]" if piece is None else piece for token, piece in _pieces(tokenizer, ids)]
    strings = [""] * len(pieces)
    decoder = codecs.getincrementaldecoder("utf8")("replace")
    begun = 0  # the token where the character now being decoded began
    for index, (token, piece) in enumerate(zip(ids, pieces, strict=True)):
        if token in whole:
            strings[begun] += decoder.decode(b"", final=True)
            decoder.reset()
            strings[index] = piece
            continue
        for byte in _piece_bytes(piece, kind):
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


def single_token_strings(tokenizer: Any, ids: Sequence[int], kind: str, whole: frozenset[int]) -> tuple[str, ...]:
    """`token_strings` of every id separately, for ids that are not a sequence, such as the likeliest next tokens."""
    return tuple(
        f"[{token}]" if piece is None
        else piece if token in whole
        else _piece_bytes(piece, kind).decode("utf8", "replace")
        for token, piece in _pieces(tokenizer, ids)
    )  # fmt: skip


def _pieces(tokenizer: Any, ids: Sequence[int]) -> list[tuple[int, str | None]]:
    return list(zip(ids, tokenizer.convert_ids_to_tokens(list(ids)), strict=True))


def fast_token_spans(tokenizer: Any, text: str) -> list[tuple[int, int]]:
    """Character span [start, end) of each token of ``text``, from a tokenizer that provides offsets."""
    encoded = tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)
    return [(int(start), int(end)) for start, end in encoded["offset_mapping"]]


def token_spans(text: str, strings: Sequence[str]) -> list[tuple[int, int]]:
    """The same from the tokens' strings; tokens that share a character share its span."""
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
