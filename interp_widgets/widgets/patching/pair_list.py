"""The list of prompt pairs that several tabs share: its box, and what is read from it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Annotated, Any

from interp_widgets.analysis._core.prompts import read_prompt, single_token
from interp_widgets.analysis.patching.pairs import Alignment, PromptPair, check_lengths
from interp_widgets.data.prompt_pairs import ContrastPair, capital_pairs, pair_of_line
from interp_widgets.models import Model

from ..base.fields import Lines, field, hint_at

PAIRS = field(
    Annotated[list, Lines(6)], [pair.line for pair in capital_pairs()], label="Pairs, one per line", width="grow",
    help="clean | corrupted | answer | foil; answer and foil may be left out for the likeliest token after each "
    "prompt, and all pairs have as many tokens",
    required="there is no pair yet: type clean | corrupted on a line",
)  # fmt: skip


def contrast_pairs(panel: Any, *, aligned: bool) -> list[ContrastPair]:
    """The pairs that were typed, `aligned` from both ends or else with prompts of one length; a hint at their box where
    they do not fit."""
    panel.require("pairs")
    model = panel.models[0]
    with hint_at("pairs"):
        pairs = [pair_of_line(line, number) for number, line in enumerate(panel.pairs, 1)]
        for name in ("answer", "foil"):
            if len({bool(getattr(pair, name)) for pair in pairs}) > 1:
                raise ValueError(f"some pairs have {_a(name)} and others have none: give every pair one, or none")
        read = []
        for number, pair in enumerate(pairs, 1):
            clean = read_prompt(model, pair.clean, what=f"clean prompt of line {number}")
            corrupted = read_prompt(model, pair.corrupted, what=f"corrupted prompt of line {number}")
            if clean.ids == corrupted.ids:
                raise ValueError(f"both prompts of line {number} are the same: change the words that matter")
            read.append(PromptPair(clean, corrupted, None, None))
            for mine, first, name in (
                (clean, read[0].clean, "clean"), (corrupted, read[0].corrupted, "corrupted"),
            ):  # fmt: skip
                if mine.n_shown != first.n_shown:
                    raise ValueError(
                        f"all {name} prompts need as many tokens, for a map by position: the first has "
                        f"{first.n_shown}, that of line {number} {mine.n_shown}"
                    )
            tokens = [token_of(model, text, f"{name} of line {number}") for name, text in
                      (("answer", pair.answer), ("foil", pair.foil)) if text]  # fmt: skip
            if len(tokens) == 2 and tokens[0] == tokens[1]:
                raise ValueError(f"answer and foil of line {number} are the same token: give another foil")
        if aligned:
            Alignment.of_all(read, "ends")
        else:
            check_lengths(read)
    return pairs


def tokens_of_pairs(panel: Any, pairs: Sequence[ContrastPair]) -> dict[str, tuple[int, ...]]:
    """The ids of the answers, and of the foils where the metric has them, as keywords; none that were left out."""
    found = {}
    for name in ("answer", "foil"):
        texts = [getattr(pair, name) for pair in pairs]
        if all(texts) and (name == "answer" or panel.metric == "logit_difference"):
            found[name] = tuple(token_of(panel.models[0], text, name) for text in texts)
    return found


FEWEST = 4
"""Pairs whose capitals are one token of every model that are enough; of fewer, the models give the answers."""


def pairs_of_one_length(models: Sequence[Model]) -> list[ContrastPair]:
    """The pairs of capitals whose prompts have as many tokens as those of most pairs, for every model; with the right
    answers and foils, which a model may not give, where enough of these are one token."""
    known = [
        pair for pair in capital_pairs(answers=True)
        if pair.answer and pair.foil and all(
            len(ids) == 1 for model in models for ids in model.token_lists([f" {pair.answer}", f" {pair.foil}"])
        )
    ]  # fmt: skip
    pairs = _of_usual_length(models, known) if known else []
    return pairs if len(pairs) >= FEWEST else _of_usual_length(models, capital_pairs())


def _of_usual_length(models: Sequence[Model], pairs: Sequence[ContrastPair]) -> list[ContrastPair]:
    lengths = [
        tuple(tuple(map(len, model.token_lists([pair.clean, pair.corrupted]))) for model in models) for pair in pairs
    ]
    usual = Counter(lengths).most_common(1)[0][0]
    return [pair for pair, length in zip(pairs, lengths, strict=True) if length == usual]


def token_of(model: Model, text: str, what: str) -> int:
    """The id of a token that continues a text: with a space in front where that is one token."""
    spaced = model.tokens(" " + text, prepend_bos=False)
    return int(spaced[0]) if len(spaced) == 1 else single_token(model, text, what=what)


def _a(name: str) -> str:
    return f"{'an' if name[0] in 'aeiou' else 'a'} {name}"
