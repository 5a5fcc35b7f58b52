"""The circuits that attention alone computes."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from .hand_written import BOS, CONTEXT, SHARP, HandWritten, Match
from .truth import CircuitCase, CircuitTruth, Edge

GREEK = [
    "alpha",
    "beta",
    "gamma",
    "delta",
    "epsilon",
    "zeta",
    "eta",
    "theta",
    "iota",
    "kappa",
    "lambda",
    "mu",
    "nu",
    "xi",
    "omicron",
    "pi",
    "rho",
    "sigma",
    "tau",
    "upsilon",
    "phi",
    "chi",
    "psi",
    "omega",
]
NAMES = ["anna", "bert", "cara", "dave", "emma", "fred", "gina", "hugo"]
PLACES = ["paris", "rome", "oslo", "cairo", "lima", "delhi"]
PLAIN = ["the", "and", "then", "went", "gave", "a", "old", "of", "in", "on"]


# ---- induction


def _induction_weights(previous: Sequence[int]) -> HandWritten:
    """Heads ``previous`` of layer 0 copy the token before; head 1 of layer 1 attends to where that is this token."""
    model = HandWritten(GREEK, {"previous": len(GREEK) + 2}, n_layers=2)
    position, token = model.features("position"), model.features("token")
    shift = torch.diag(torch.ones(CONTEXT - 1), -1)[:, : CONTEXT - 1]  # position i asks for i - 1
    for head in previous:
        before = Match(position @ shift, position[:, : CONTEXT - 1])
        model.head(0, head, [before], token, model.features("previous"))
    words = model.of_words(GREEK)
    same = Match(words, model.of_words(GREEK, "previous"))
    model.head(1, 1, [same, model.rest], words, model.of_words(GREEK, "output"))
    return model


def _induction_cases(heads: tuple[tuple[int, int], ...]) -> tuple[CircuitCase, ...]:
    lines = (
        ("beta eta psi rho mu xi eta", "psi", "mu", "beta tau phi rho mu xi eta", (1, 2, 6)),
        ("nu chi pi tau alpha iota lambda alpha", "iota", "pi", "nu chi pi tau rho kappa lambda alpha", (4, 5, 7)),
        ("omega sigma zeta delta kappa phi sigma", "zeta", "phi", "omega theta mu delta kappa phi sigma", (1, 2, 6)),
    )
    *previous, (layer, head) = heads
    edges: list[Edge] = [(sender, ("head_k", layer, head)) for sender in previous]
    edges += [((layer, head), "logits"), ("embeddings", ("head_v", layer, head))]
    edges += [("embeddings", ("head_v", *sender)) for sender in previous]
    return tuple(
        CircuitCase(prompt, answer, foil, corrupted, tokens, heads, (), tuple(edges))
        for prompt, answer, foil, corrupted, tokens in lines
    )


def induction() -> tuple[HandWritten, CircuitTruth]:
    """A previous-token head and an induction head."""
    return _induction_weights([0]), CircuitTruth(
        "induction",
        "Head 0.0 copies the token before each token; head 1.1 attends to where that is the current token, and "
        "predicts what followed it.",
        _induction_cases(((0, 0), (1, 1))),
        tuple(GREEK),
    )


def backup() -> tuple[HandWritten, CircuitTruth]:
    """An induction circuit with two previous-token heads."""
    return _induction_weights([0, 2]), CircuitTruth(
        "backup",
        "As induction, but heads 0.0 and 0.2 both copy the token before: without one of them the other suffices.",
        _induction_cases(((0, 0), (0, 2), (1, 1))),
        tuple(GREEK),
    )


# ---- indirect object


def indirect_object() -> tuple[HandWritten, CircuitTruth]:
    """A duplicate-token head, an inhibition head and a name mover."""
    model = HandWritten([*NAMES, *PLAIN, "to"], {"duplicate": len(NAMES), "inhibited": len(NAMES)}, n_layers=3)
    names, position = model.of_words(NAMES), model.features("position")
    duplicate, inhibited = model.features("duplicate"), model.features("inhibited")
    to = model.of_words(["to"])
    itself = Match(position, position, -2 * SHARP)
    model.head(0, 1, [Match(names, names), itself, model.rest], names, duplicate)
    repeated = Match(to, duplicate.sum(1, keepdim=True))
    model.head(1, 0, [repeated, model.rest], duplicate, inhibited)
    later = position @ torch.arange(float(CONTEXT))[:, None]  # of several names that nothing inhibits the last one
    moved = Match(to, model.any_of(NAMES)), Match(inhibited, names, -2 * SHARP), Match(to, later, SHARP / 20)
    model.head(2, 2, [*moved, model.rest], names, model.of_words(NAMES, "output"))
    heads = ((0, 1), (1, 0), (2, 2))
    edges: tuple[Edge, ...] = (
        ((0, 1), ("head_k", 1, 0)),
        ((0, 1), ("head_v", 1, 0)),
        ((1, 0), ("head_q", 2, 2)),
        ((2, 2), "logits"),
        ("embeddings", ("head_q", 0, 1)),
        ("embeddings", ("head_k", 2, 2)),
        ("embeddings", ("head_v", 2, 2)),
    )
    lines = (
        ("then anna and bert went in and bert gave to", "anna", "bert", "emma", (1, 3, 7, 9)),
        ("then hugo and gina went in and hugo gave to", "gina", "hugo", "cara", (1, 3, 7, 9)),
        ("the old cara and dave went on cara gave to", "dave", "cara", "fred", (2, 4, 7, 9)),
    )
    cases = []
    for prompt, answer, twice, other, tokens in lines:
        start, _, end = prompt.rpartition(twice)  # the corrupted prompt names a third person instead of one twice
        cases.append(CircuitCase(prompt, answer, twice, f"{start}{other}{end}", tokens, heads, (), edges))
    return model, CircuitTruth(
        "indirect_object",
        "Head 0.1 marks a name that occurs a second time, head 1.0 tells the last token which name that is, and head "
        "2.2 copies the last name that is not.",
        tuple(cases),
        tuple(PLAIN),
    )


# ---- busy and idle


def busy_idle() -> tuple[HandWritten, CircuitTruth]:
    """A head that copies the place, one that attends more sharply and moves nothing that is read, and one that writes a
    constant which the first needs and which silences another."""
    model = HandWritten([*NAMES, *PLACES, *PLAIN], {"constant": 1}, n_layers=2)
    places, constant = model.of_words(PLACES), model.features("constant")
    start = Match(None, model.of_words([BOS]))
    model.head(0, 3, [start], model.of_words([BOS]), constant)
    softer = SHARP / 3  # sharp enough to copy, less sharp than the busy head
    copies = Match(constant, model.any_of(PLACES), softer)
    model.head(1, 0, [copies, Match(None, model.of_words([BOS]), softer / 2)], places, model.of_words(PLACES, "output"))
    output = model.of_words(PLACES, "output")
    missing = [Match(None, model.any_of(PLACES)), Match(constant, model.any_of(PLACES), -2 * SHARP)]
    model.head(1, 3, [*missing, model.rest], places, -output)
    busy = Match(None, model.any_of(NAMES))
    model.head(1, 2, [busy, model.rest], model.of_words(NAMES), 4 * model.of_words(NAMES, "unread"))
    heads = ((1, 0),)
    edges: tuple[Edge, ...] = (((1, 0), "logits"), ("embeddings", ("head_v", 1, 0)))
    lines = (
        ("the old anna went in paris then", "paris", "rome", "the old dave went in lima then", (5,)),
        ("in oslo the old fred went and gave", "oslo", "cairo", "in delhi the old emma went and gave", (1,)),
        ("then hugo of lima gave a", "lima", "delhi", "then cara of rome gave a", (3,)),
    )
    cases = [
        CircuitCase(prompt, answer, foil, corrupted, tokens, heads, (), edges)
        for prompt, answer, foil, corrupted, tokens in lines
    ]
    return model, CircuitTruth(
        "busy_idle",
        "Head 1.0 copies the place. Head 1.2 attends to the name more sharply and writes where nothing reads. Head 0.3 "
        "writes the same constant in every prompt, so that it carries nothing; if it were zero, which no prompt makes "
        "it, head 1.0 would attend to nothing and head 1.3 speak against the place.",
        tuple(cases),
        tuple(PLAIN),
    )
