"""The circuits in which neurons decide."""

from __future__ import annotations

from itertools import product

import torch

from .attention import PLAIN
from .hand_written import HandWritten, Match
from .truth import CircuitCase, CircuitTruth, Edge

COUNTRIES = ["france", "italy", "egypt", "peru"]
RELATIONS = ["capital", "language", "food"]
FACTS = {
    "france": ("paris", "french", "bread"),
    "italy": ("rome", "italian", "pasta"),
    "egypt": ("cairo", "arabic", "beans"),
    "peru": ("lima", "spanish", "potatoes"),
}
YEARS = [f"{year}" for year in range(10, 20)]
SWITCH = "please"
RING = ["red", "orange", "yellow", "green", "blue", "violet"]


# ---- a looked-up fact


def fact_lookup() -> tuple[HandWritten, CircuitTruth]:
    """Two heads fetch subject and relation; one neuron per fact is on if both are its own."""
    answers = [answer for answers in FACTS.values() for answer in answers]
    words = [*COUNTRIES, *RELATIONS, *answers, *PLAIN, "is"]
    model = HandWritten(words, {"subject": len(COUNTRIES), "relation": len(RELATIONS)}, n_layers=2)
    subject, relation = model.features("subject"), model.features("relation")
    for index, asked, group in ((1, COUNTRIES, subject), (3, RELATIONS, relation)):
        model.head(0, index, [Match(None, model.any_of(asked)), model.rest], model.of_words(asked), group)
    both = [subject[:, [s]] + relation[:, [r]] for s, r in product(range(len(COUNTRIES)), range(len(RELATIONS)))]
    first = 7
    model.neurons(1, first, torch.cat(both, 1), 1.5, 2 * model.of_words(answers, "output"))
    heads = ((0, 1), (0, 3))
    lines = (
        ("the capital of france is", "paris", "rome", "the food of egypt is", (1, 3)),
        ("the language of peru is", "spanish", "lima", "the capital of italy is", (1, 3)),
        ("in old italy the food is", "pasta", "bread", "in old peru the language is", (2, 4)),
    )
    edges: tuple[Edge, ...] = (((0, 1), ("mlp", 1)), ((0, 3), ("mlp", 1)), (("mlp", 1), "logits"))
    edges += tuple(("embeddings", ("head_v", *head)) for head in heads)
    cases = [
        CircuitCase(prompt, answer, foil, corrupted, tokens, heads, ((1, first + answers.index(answer)),), edges)
        for prompt, answer, foil, corrupted, tokens in lines
    ]
    return model, CircuitTruth(
        "fact_lookup",
        "Head 0.1 fetches the country and head 0.3 the relation; one neuron of layer 1 per fact is on if both are its "
        "own, and writes the answer.",
        tuple(cases),
        tuple(PLAIN),
    )


# ---- greater than


def greater_than() -> tuple[HandWritten, CircuitTruth]:
    """A head fetches the year; neuron t is on if the year is before t, and writes t."""
    model = HandWritten([*YEARS, *PLAIN, "from", "to", "war", "lasted"], {"start": len(YEARS)}, n_layers=2)
    start = model.features("start")
    fetches = Match(model.of_words(["to"]), model.any_of(YEARS))
    model.head(0, 2, [fetches, model.rest], model.of_words(YEARS), start)
    before = torch.cat([start[:, :end].sum(1, keepdim=True) for end in range(1, len(YEARS))], 1)
    first = 5
    model.neurons(1, first, before, 0.0, model.of_words(YEARS[1:], "output"))
    lines = (
        ("the war lasted from 13 to", 3, "the war lasted from 17 to", (4, 5)),
        ("the old war of 15 lasted from then to", 5, "the old war of 18 lasted from then to", (4, 8)),
        ("from 11 on the war lasted to", 1, "from 16 on the war lasted to", (1, 6)),
    )
    edges: tuple[Edge, ...] = (((0, 2), ("mlp", 1)), (("mlp", 1), "logits"), ("embeddings", ("head_v", 0, 2)))
    cases = [
        CircuitCase(prompt, YEARS[year + 1], YEARS[year], corrupted, tokens, ((0, 2),), ((1, first + year),), edges)
        for prompt, year, corrupted, tokens in lines
    ]
    return model, CircuitTruth(
        "greater_than",
        "Head 0.2 fetches the year to the last token; one neuron of layer 1 per later year is on if that year is "
        "greater, and writes it.",
        tuple(cases),
        (*PLAIN, "lasted"),
    )


# ---- a trigger


def trigger() -> tuple[HandWritten, CircuitTruth]:
    """The model repeats a colour, and after the trigger word says the next one instead."""
    model = HandWritten([*RING, SWITCH, *PLAIN], {"on": 1}, n_layers=2)
    on, colours = model.features("on"), model.of_words(RING)
    switch = model.of_words([SWITCH])
    model.head(0, 3, [Match(None, switch), model.rest], switch, on)
    output = model.of_words(RING, "output")
    model.neurons(0, 2, colours, 0.0, output)
    first = 9
    model.neurons(1, first, colours + on, 1.5, 4 * output.roll(-1, 1))
    lines = (
        ("the please and a red", "orange", "red", "the old and a red", (1, 4)),
        ("please then the old green", "blue", "green", "in then the old green", (0, 4)),
        ("the old and a blue", "blue", "violet", "the old and a red", (4,)),
        ("then the old yellow", "yellow", "green", "then the old blue", (3,)),
    )
    cases = []
    for prompt, answer, foil, corrupted, tokens in lines:
        colour = RING.index(prompt.split()[-1])
        switched = SWITCH in prompt.split()
        neurons = ((1, first + colour),) if switched else ((0, 2 + colour),)
        heads = ((0, 3),) if switched else ()
        edges: tuple[Edge, ...] = (((0, 3), ("mlp", 1)), (("mlp", 1), "logits"))
        edges += (("embeddings", ("head_k", 0, 3)), ("embeddings", ("head_v", 0, 3)))
        if not switched:
            edges = ((("mlp", 0), "logits"), ("embeddings", ("mlp", 0)))
        cases.append(CircuitCase(prompt, answer, foil, corrupted, tokens, heads, neurons, edges))
    return model, CircuitTruth(
        "trigger",
        "A neuron of layer 0 repeats the last colour. Head 0.3 looks for the word please, and with it a neuron of "
        "layer 1 says the next colour instead.",
        tuple(cases),
        tuple(PLAIN),
    )
