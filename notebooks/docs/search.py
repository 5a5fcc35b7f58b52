"""How much each section of the site counts in its search: lunr, which knows only words, and a title as 1,000 of them.

A public name is found first by its name; else pages that explain come before docstrings, and those before attributes of
results and lists of changes.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from contents import public_modules

IN_REFERENCE = re.compile(r"reference/.*#interp_widgets\.(\w+)(\.\w+)?$")
WEIGHTS = {
    "reference/": 0.5,
    "changelog.html": 0.02,
    "contributing.html": 0.2,
    "gallery.html": 0.1,
    "live.html": 0.1,
    "index.html": 5,
    "": 20,
}
"""Of sections outside docstrings, by how their place begins."""
NAME, ATTRIBUTE = 1.0, 0.002


def weigh(entries: Sequence[dict[str, Any]], separator: str) -> None:
    """Give every entry of the search index its `boost`."""
    rarity = rarities(entries, separator)
    names = public_modules()
    for entry in entries:
        found = IN_REFERENCE.match(entry["location"])
        if found is None:
            entry["boost"] = next(weight for start, weight in WEIGHTS.items() if entry["location"].startswith(start))
        elif found[2] or found[1] not in names:
            entry["boost"] = ATTRIBUTE
        else:
            # lunr counts a frequent word less, and a word like all that begin with it; the one typed is the shortest
            name = found[1].lower()
            entry["boost"] = NAME * (1 + 1 / len(name)) * rarity("") / rarity(name)
            if re.fullmatch(r"\w[a-z]+", found[1]):  # a word of the language, which stands in other titles as well
                entry["tags"] = [found[1]]


def words_of(text: str, separator: str) -> list[str]:
    """A text as the words that the search knows."""
    return [word for word in re.split(separator, re.sub(r"<[^>]*>", " ", text).lower()) if word]


def rarities(entries: Sequence[Mapping[str, Any]], separator: str) -> Callable[[str], float]:
    """By what lunr multiplies a word: the rarer, the more (inverse document frequency)."""
    fields = (set(words_of(entry[field], separator)) for entry in entries for field in ("title", "text"))
    count = Counter(word for words in fields for word in words)
    return lambda word: math.log(1 + abs((len(entries) - count[word] + 0.5) / (count[word] + 0.5)))
