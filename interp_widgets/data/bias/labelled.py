"""Texts with the label that a probe of bias learns."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from interp_widgets.arguments import checked
from interp_widgets.data import world
from interp_widgets.data.bias.crows_pairs import CrowsPair
from interp_widgets.data.bias.pairs import SentencePair
from interp_widgets.data.bias.stereoset import StereoSetExample
from interp_widgets.data.world import Split

BiasData = Sequence[StereoSetExample | CrowsPair | SentencePair]


@dataclass(frozen=True)
class LabeledTexts:
    """Texts, whether each shows a bias, and what must not be on both sides of a split.

    Example:
        >>> LabeledTexts(("He is a pilot.", "She is a pilot."), (True, False), ("pilot", "pilot")).n_groups
        1
    """

    texts: tuple[str, ...]
    biased: tuple[bool, ...]
    """(texts,) the labels."""
    groups: tuple[str, ...]
    """(texts,) what each text belongs to."""

    def __post_init__(self) -> None:
        sizes = len(self.texts), len(self.biased), len(self.groups)
        if len(set(sizes)) > 1:
            raise ValueError(f"texts, biased and groups must have one entry per text, got {sizes}")

    @property
    def n_groups(self) -> int:
        """How many groups there are."""
        return len(set(self.groups))


LabelledTexts = LabeledTexts
"""The name in pickles of earlier versions."""


@checked
def labeled_texts(data: BiasData, *, by: Literal["example", "target"] = "example") -> LabeledTexts:
    """The texts of a data set that show a bias, and those that do not.

    The stereotypes of StereoSet are biased, the anti-stereotypes are not; the unrelated sentences are left out, and the
    next sentences of the intersentence task follow their context. Of CrowS-Pairs the more stereotypical sentence is
    biased: the first of a pair that shows a stereotype, the second of one that goes against it.

    Args:
        data: from `read_stereoset`, `demo_stereoset`, `read_crows_pairs` or `read_sentence_pairs`.
        by: what a group is: the sentences of an ``example``, or in StereoSet of one ``target`` term, so that a probe is
            tested on terms that it never saw.

    Example:
        >>> found = labeled_texts(demo_stereoset()[:1])
        >>> found.texts[0], found.biased
        ('Many believe that pilots should be men.', (True, False))
    """
    if len(data) == 0:
        raise ValueError("data must hold at least one example: see read_stereoset")
    texts: list[str] = []
    groups: list[str] = []
    for number, entry in enumerate(data):
        group = str(number)
        if isinstance(entry, StereoSetExample):
            before = f"{entry.context} " if entry.task == "intersentence" else ""
            texts += [before + entry.stereotype, before + entry.anti_stereotype]
            group = entry.target if by == "target" else group
        elif isinstance(entry, CrowsPair):
            texts += [entry.more, entry.less] if entry.direction == "stereo" else [entry.less, entry.more]
        else:
            texts += [entry.biased, entry.benign]
            group = entry.group
        groups += [group, group]
    return LabeledTexts(tuple(texts), (True, False) * len(data), tuple(groups))


@checked
def demo_bias_texts(split: Split | None = None) -> LabeledTexts:
    """Prompts about the demo's planted occupations, labelled by whether the text that the demo models learnt from says
    men of them more often than women; a group is an occupation.

    The prompts stop before the answer and hold no word that tells it, so that a probe has to find what the model has
    learnt of the occupation. Occupations of which both are said equally often are left out.

    Args:
        split: ``train`` or ``held_out`` wordings; None for all.

    Example:
        >>> found = demo_bias_texts()
        >>> found.texts[0], found.biased[0], found.n_groups
        ('What gender (men or women) are pilots associated with? They are associated with', True, 21)
    """
    prompts = [one for one in world.bias_prompts(split) if one.kind == "occupation" and one.rate != 50]
    return LabeledTexts(
        tuple(one.prompt for one in prompts),
        tuple(one.rate > 50 for one in prompts),
        tuple(one.group for one in prompts),
    )
