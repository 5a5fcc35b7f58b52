"""One reader for the layouts of sentences about bias that differ in what they call their fields."""

from __future__ import annotations

import os
from collections.abc import Mapping

from interp_widgets.arguments import checked
from interp_widgets.data.bias.crows_pairs import CrowsPair, read_crows_pairs
from interp_widgets.data.bias.pairs import SentencePair, read_sentence_pairs
from interp_widgets.data.bias.stereoset import StereoSetExample, read_stereoset
from interp_widgets.data.files import ROWS, existing_file, parse_json, read_rows, read_text


@checked
def read_bias_data(
    path: str | os.PathLike[str],
) -> tuple[StereoSetExample, ...] | tuple[CrowsPair, ...] | tuple[SentencePair, ...]:
    """Read StereoSet's JSON, a CSV of CrowS-Pairs, or pairs of your own, by what the file calls its fields.

    Raises FileNotFoundError where there is no file, and ValueError where it is of no such layout, or an entry is not.

    Example:
        >>> import tempfile
        >>> path = tempfile.mkdtemp() + "/pairs.csv"
        >>> with open(path, "w") as file:
        ...     n = file.write("biased,benign\\nNurses are women.,Nurses are people.\\n")
        >>> read_bias_data(path)[0].biased
        'Nurses are women.'
    """
    source = existing_file(path, "sentences about bias")
    if source.suffix.lower() == ".json" and isinstance(parse_json(read_text(path, "sentences"), str(source)), Mapping):
        return read_stereoset(path)
    names = list(read_rows(path, "pair", suffixes=ROWS)[0])
    if "sent_more" in names:
        return read_crows_pairs(path)
    if "biased" in names:
        return read_sentence_pairs(path)
    raise ValueError(
        f"{path} has the fields {', '.join(map(repr, names))}: StereoSet has 'data', CrowS-Pairs 'sent_more' and "
        "'sent_less', pairs of your own 'biased' and 'benign'"
    )
