"""Exercises of the lesson on what a transformer does."""

from __future__ import annotations

import torch

from exercises import Exercise, Prediction, Wrong
from exercises.answers import Built, Number, Whole
from interp_widgets import direct_logit_attribution


def place(its, part):
    """The row of a part."""
    return its.parts.index(part)


def follows(stream_before, its):
    """Whether a function gives what the model has at the entrance of each layer, at the last token."""
    names = [f"blocks.{layer}.hook_resid_pre" for layer in range(its.model.n_layers)]
    entering = its.model.run(its.ids, capture=names).activations
    return all(
        torch.allclose(stream_before(layer).double(), entering[name][0, -1].double(), atol=1e-2)
        for layer, name in enumerate(names)
    )


def pays_most(its):
    """The layer whose attention adds most to the lead."""
    direct = direct_logit_attribution(its.model, its.prompt, its.answer, foil=its.foil, draws=1)
    return int(direct.heads.sum(axis=-1).argmax())


PREDICTIONS = {1: Prediction(Whole(), pays_most, "until then hardly anything is paid in.")}

EXERCISES = {
    1: Exercise(
        Number(percent=True),
        lambda its: its.pays[place(its, "attention 23")] / its.pays.sum(),
        (
            "pays has a number per part, in the order of parts.",
            "parts.index('attention 23') is its row.",
            "Divide by the lead, which is the sum of all.",
        ),
        (
            Wrong(lambda its: its.pays[place(its, "MLP 23")] / its.pays.sum(), "That is the MLP of that layer."),
            Wrong(
                lambda its: its.pays[place(its, "attention 23")] / its.pays.abs().sum(),
                "That is of everything that is paid in or taken out. The lead is what is left of it.",
            ),
            Wrong(
                lambda its: its.pays[place(its, "attention 23")],
                "That is how much. What share of the lead is it?",
            ),
            Wrong(lambda its: its.pays[23] / its.pays.sum(), "Row 23 is another part: there are two rows per layer."),
        ),
    ),
    2: Exercise(
        Number(),
        lambda its: its.lost[place(its, "attention 23")] - float(its.pays[place(its, "attention 23")]),
        (
            "lost has what is lost without each part, pays what each part writes itself.",
            "Both are in the order of parts.",
            "Subtract its own line from what is lost.",
        ),
        (
            Wrong(lambda its: its.lost[place(its, "attention 23")], "Its own line is in that. Take it off."),
            Wrong(lambda its: its.pays[place(its, "attention 23")], "That is its own line."),
            Wrong(
                lambda its: its.lost[place(its, "attention 23")] + float(its.pays[place(its, "attention 23")]),
                "Take its own line off; do not add it.",
            ),
        ),
    ),
    3: Exercise(
        Built(follows, "A function of a layer is asked for, such as stream_before;"),
        lambda its: lambda layer: its.additions[: 1 + 2 * layer].sum(0),
        (
            "Before layer 0 only the embedding has been added.",
            "Every layer adds two rows: its attention and its MLP.",
            "So 1 + 2 · layer rows have been added when the layer begins.",
        ),
        (
            Wrong(
                lambda its: lambda layer: its.additions[: 3 + 2 * layer].sum(0),
                "That has what the layer itself adds in it.",
                lambda built, its: torch.allclose(built(2).double(), its.additions[:7].sum(0), atol=1e-2),
            ),
            Wrong(
                lambda its: lambda layer: its.additions[1 : 1 + 2 * layer].sum(0),
                "The embedding is missing.",
                lambda built, its: torch.allclose(built(2).double(), its.additions[1:5].sum(0), atol=1e-2),
            ),
            Wrong(
                lambda its: lambda layer: its.additions[: 1 + layer].sum(0),
                "Every layer adds two rows, not one.",
                lambda built, its: torch.allclose(built(2).double(), its.additions[:3].sum(0), atol=1e-2),
            ),
        ),
    ),
}
