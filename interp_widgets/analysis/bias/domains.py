"""The rows of each domain of a data set, and of all of them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

OVERALL = "overall"


def by_domain(domains: Sequence[str]) -> Iterator[tuple[str, list[int]]]:
    """Yield each domain with the indices of its rows, in order of first occurrence, then ``overall`` with all rows.

    >>> list(by_domain(["race", "age", "race"]))
    [('race', [0, 2]), ('age', [1]), ('overall', [0, 1, 2])]
    """
    for domain in dict.fromkeys(domains):
        yield domain, [i for i, name in enumerate(domains) if name == domain]
    yield OVERALL, list(range(len(domains)))
