"""Which release wrote a file: the stamp in its header, and what is said of one that only a newer release reads."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from interp_widgets.version import __version__

STAMP = "interp_widgets"
"""The entry of a header that holds the release; earlier releases wrote none."""
_RELEASE = re.compile(r"\d{1,6}(\.\d{1,6}){0,3}([a-z.+-][a-z0-9.+-]{0,20})?")


def stamped(header: Mapping[str, Any]) -> dict[str, Any]:
    """A header with the release that writes it.

    >>> list(stamped({"version": 1}))
    ['version', 'interp_widgets']
    """
    return {**header, STAMP: __version__}


def refusal(source: Any, header: Any, otherwise: str) -> str:
    """What to say of a file that cannot be read: that a newer release wrote it, if so, else what is given.

    >>> refusal("a.npz", {}, "a.npz is damaged: compute it again")
    'a.npz is damaged: compute it again'
    >>> refusal("a.npz", {"interp_widgets": "999.1"}, "a.npz is damaged: compute it again").partition(", which")[0]
    'a.npz was written by interp_widgets 999.1'
    """
    release = header.get(STAMP) if isinstance(header, Mapping) else None
    if not (isinstance(release, str) and _RELEASE.fullmatch(release) and _order(release) > _order(__version__)):
        return otherwise
    return (
        f"{source} was written by interp_widgets {release}, which is newer than this one, {__version__}, and cannot be "
        "read by it: update interp_widgets"
    )


def _order(release: str) -> list[int]:
    """The numbers of a release, by which releases follow each other."""
    numbers = [int(number) for number in re.findall(r"\d+", release)[:3]]
    return numbers + [0] * (3 - len(numbers))
