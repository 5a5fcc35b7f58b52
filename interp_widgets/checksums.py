"""Checksums inside files: a change of any byte is noticed when the file is read, and other programs read it as before.

A text in a file's metadata has room for its checksum, `ROOM`. `sealed` computes the SHA-256 of the whole file with
zeros there, as tar does, and puts it in their place.
"""

from __future__ import annotations

import hashlib
import re

_LABEL = b"interp_widgets sha256 "
_ROOM = _LABEL + b"0" * 64
ROOM = _ROOM.decode()
"""Goes into the metadata of a file that will be sealed."""
_CHECKSUM = re.compile(re.escape(_LABEL) + rb"([0-9a-f]{64})")


def sealed(content: bytes) -> bytes:
    """The content of a file, which has `ROOM`, with its checksum."""
    digest = hashlib.sha256(content).hexdigest().encode()
    return content.replace(_ROOM, _LABEL + digest, 1)


def is_sealed(content: bytes) -> bool:
    """Whether the content of a file has a checksum; ValueError if it is not that of the content.

    >>> content = sealed(f"some text, {ROOM}".encode())
    >>> is_sealed(content), is_sealed(b"some text")
    (True, False)
    >>> is_sealed(content.replace(b"some", b"same"))
    Traceback (most recent call last):
    ValueError: its checksum differs
    """
    checksums = list(_CHECKSUM.finditer(content))
    for checksum in checksums:
        start, end = checksum.span(1)
        digest = hashlib.sha256(content[:start])
        digest.update(b"0" * (end - start))
        digest.update(content[end:])
        if digest.hexdigest().encode() == checksum[1]:
            return True
    if checksums:
        raise ValueError("its checksum differs")
    return False
