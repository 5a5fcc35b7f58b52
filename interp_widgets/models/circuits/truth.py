"""What is known about a circuit: `CircuitTruth` with its cases, and the ablations that prove it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import combinations, product
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from interp_widgets.arguments import checked
from interp_widgets.models.engine import (
    PathCells,
    Reader,
    Sender,
    Trace,
    decode,
    is_behind,
    patched,
    sender_changes,
    through_paths,
    trace,
)
from interp_widgets.models.model import Model
from interp_widgets.models.patching import Patch, Site

from .hand_written import NEURONS

PartKind = Literal["tokens", "heads", "neurons", "edges"]
PART_KINDS: tuple[PartKind, ...] = ("tokens", "heads", "neurons", "edges")
MATTERS, DOES_NOT = 0.5, 0.1
"""Shares of the answer's lead: what a part that matters changes at least, and one that does not at most."""
MOST_IN_PAIRS = 30
"""Parts or edges of an answer that are changed in pairs too; edges are slow."""
ROWS = 128
"""Runs in one batch of a proof."""

Edge = tuple[str | tuple[str | int, ...], str | tuple[str | int, ...]]
"""A sender and a receiver as `path_patching` takes them, such as ``((0, 0), ("head_k", 1, 1))``, ``(("mlp", 1),
"logits")`` or ``("embeddings", ("head_v", 0, 0))``."""
Part = tuple[Any, ...]
"""A token as (position,), a head as (layer, head), a neuron as (layer, neuron), an edge as (sender, receiver)."""
_READS: tuple[tuple[str, Literal["q", "k", "v"]], ...] = (("head_q", "q"), ("head_k", "k"), ("head_v", "v"))


@dataclass(frozen=True)
class CircuitCase:
    """One prompt with what the model answers, and the parts that matter for it.

    Example:
        >>> circuit, truth = load_circuit("trigger")
        >>> [(case.prompt, case.answer, case.heads) for case in truth.cases[1:3]]
        [('please then the old green', 'blue', ((0, 3),)), ('the old and a blue', 'blue', ())]
    """

    prompt: str
    """One token per word; a BOS is fed in front."""

    answer: str
    """The word that the model predicts; in ``greater_than`` the first of several."""

    foil: str
    """A word of the same kind: effects are measured on the logit difference."""

    corrupted: str
    """A prompt of as many tokens after which the answer has no lead over the foil."""

    tokens: tuple[int, ...]
    """Positions of the prompt's tokens that matter, counted from 0 without the BOS."""

    heads: tuple[tuple[int, int], ...]
    """(layer, head) of the heads that matter; all others do not."""

    neurons: tuple[tuple[int, int], ...]
    """(layer, neuron) of the neurons that matter at the last position; all others do not."""

    edges: tuple[Edge, ...]
    """The edges that matter, from a head, an MLP or the embeddings to a query, key, value, MLP or the logits; all
    others do not."""

    n_neurons: int = 24
    """Neurons of each layer that have weights, from 0 on; the others are zero."""

    def matters(self, kind: PartKind, model: Model) -> NDArray[np.bool_]:
        """Whether each part matters: tokens (positions,), heads (layers, heads), neurons (layers, n_neurons), edges
        (edges,) in the order of `circuit_edges`.

        Example:
            >>> circuit, truth = load_circuit("induction")
            >>> truth.cases[0].matters("heads", circuit).sum(1).tolist()
            [1, 1]
        """
        if kind == "edges":
            return np.array([edge in self.edges for edge in circuit_edges(model)])
        shape: tuple[int, ...] = (len(self.prompt.split()),)
        if kind != "tokens":
            shape = (model.n_layers, model.n_heads if kind == "heads" else self.n_neurons)
        marked = np.zeros(shape, dtype=bool)
        for part in self.parts(kind):
            marked[part] = True
        return marked

    def parts(self, kind: PartKind) -> list[Part]:
        """The parts of one kind that matter."""
        return [(position,) for position in self.tokens] if kind == "tokens" else list(getattr(self, kind))


@checked
def circuit_edges(model: Model) -> tuple[Edge, ...]:
    """Every edge of a circuit's model, as (sender, receiver) that `path_patching` takes: from each head and MLP, and
    from the embeddings, to each query, key, value and MLP behind it and to the logits.

    Example:
        >>> circuit, truth = load_circuit("induction")
        >>> edges = circuit_edges(circuit)
        >>> len(edges), edges[0], edges[-1]
        (110, ((0, 0), ('mlp', 0)), ('embeddings', 'logits'))
        >>> [edges[number] for number in truth.cases[0].matters("edges", circuit).nonzero()[0]][:2]
        [((0, 0), ('head_k', 1, 1)), ((1, 1), 'logits')]
    """
    receivers: list[tuple[str | tuple[str | int, ...], Reader]] = []
    for layer in range(model.n_layers):
        receivers += [
            ((name, layer, head), (read, layer, head)) for name, read in _READS for head in range(model.n_heads)
        ]
        receivers.append((("mlp", layer), ("mlp", layer, 0)))
    receivers.append(("logits", ("logits", model.n_layers, 0)))
    senders: list[str | tuple[str | int, ...]] = []
    for layer in range(model.n_layers):
        senders += [*((layer, head) for head in range(model.n_heads)), ("mlp", layer)]
    senders.append("embeddings")
    return tuple(
        (named, receiver)
        for named in senders
        for receiver, reader in receivers
        if is_behind(model, reader, sender_of(named))
    )


@dataclass(frozen=True)
class CircuitProof:
    """What `CircuitTruth.proof` measured.

    Example:
        >>> circuit, truth = load_circuit("busy_idle")
        >>> truth.proof(circuit).faults
        ()
    """

    faults: tuple[str, ...]
    """Where the truth and the measurement differ, in sentences."""

    runs: int
    """Parts and pairs that were changed."""

    least_of_those_that_matter: float
    """The smallest share of the answer's lead that a part which matters by the truth changes."""

    most_of_the_others: float
    """The largest that any other part changes."""

    @property
    def holds(self) -> bool:
        """Whether no fault was found."""
        return not self.faults


@dataclass(frozen=True)
class CircuitTruth:
    """What is known about a circuit by its construction.

    A head or neuron matters if its value in the corrupted prompt, put in its place alone or together with one other
    part, takes at least half of the answer's lead that the other part leaves; a token, if a neutral word in its place
    does; an edge, if its receiver reads the sender's output moved by what it differs in between the two prompts, alone
    or together with one other edge. Everything else takes less than a tenth. `proof` checks this for every part, every
    pair of tokens and of heads and neurons, and every pair of edges that leave parts which matter, or go from the
    embeddings to them.

    Example:
        >>> circuit, truth = load_circuit("backup")
        >>> case = truth.cases[0]
        >>> case.prompt.split()[case.tokens[0]], case.answer, case.heads
        ('eta', 'psi', ((0, 0), (0, 2), (1, 1)))
    """

    name: str
    description: str
    """What the circuit does and how, in a sentence or two."""

    cases: tuple[CircuitCase, ...]
    neutral_words: tuple[str, ...]
    """Words that mean nothing to the circuit, as long as they are not in the prompt."""

    def proof(self, model: Model, *, check: Callable[[], None] | None = None) -> CircuitProof:
        """Measure every part and every pair of parts (of edges those that leave a part which matters, or go from the
        embeddings to one), and compare with the truth.

        Args:
            model: the circuit's model, of either backend.
            check: called before every group of runs; raises to cancel.

        Example:
            >>> circuit, truth = load_circuit("induction")
            >>> proof = truth.proof(circuit)
            >>> proof.holds, proof.runs > 1000
            (True, True)
        """
        faults: list[str] = []
        runs, least, most = 0, np.inf, 0.0
        for case in self.cases:
            clean, corrupted = _leads(model, [case.prompt, case.corrupted], case)
            if clean <= 0 or corrupted > DOES_NOT * clean:
                faults.append(f"{case.prompt!r}: {case.answer!r} leads by {clean:.2f}, corrupted by {corrupted:.2f}")
            for parts, measure in (
                (_tokens(case), self._replaced),
                (_components(model, case), _interchanged),
                (_edges(model, case), _rerouted),
            ):
                if check is not None:
                    check()
                paired = [i for i, part in enumerate(parts) if _pairs(case, part)]
                sets = [(i,) for i in range(len(parts))] + list(combinations(paired, 2))
                leads = measure(model, case, [[parts[i] for i in chosen] for chosen in sets])
                runs += len(sets)
                for part, change in zip(parts, most_changed(leads / clean, sets, len(parts)), strict=True):
                    kind, place = part
                    matters = place in case.parts(kind)
                    least, most = (min(least, float(change)), most) if matters else (least, max(most, float(change)))
                    if (change < MATTERS) if matters else (change > DOES_NOT):
                        role = "matters" if matters else "does not matter"
                        faults.append(f"{case.prompt!r}: {kind} {place} {role} by the truth, but changes {change:.2f}")
        return CircuitProof(tuple(faults), runs, float(least), most)

    def _replaced(self, model: Model, case: CircuitCase, sets: Sequence[Sequence[_Named]]) -> NDArray[np.float64]:
        """(sets,) the answer's lead with neutral words in place of the tokens, averaged over the words."""
        words = [word for word in self.neutral_words if word not in case.prompt.split()]
        prompts = []
        for chosen in sets:
            for first in range(len(words)):
                replaced = case.prompt.split()
                for number, (_, (position,)) in enumerate(chosen):
                    replaced[position] = words[(first + number) % len(words)]
                prompts.append(" ".join(replaced))
        return _leads(model, prompts, case).reshape(len(sets), len(words)).mean(1)


_Named = tuple[PartKind, Part]


def changes_of(model: Model, case: Any, named: Sequence[Any]) -> NDArray[np.float64]:
    """(named,) the most that each of some heads and MLPs, or edges, changes of the answer's lead, as `CircuitTruth`
    says it: with its values of the corrupted prompt (an MLP at the last position), alone or, of up to 30, beside one
    other of them.

    Args:
        model: a circuit's model.
        case: with its prompt, corrupted prompt, answer and foil.
        named: parts as `grade_circuit` takes them.
    """
    measure, each = _interchanged, [_named(part) for part in named]
    if each[0][0][0] == "edges":
        measure = _rerouted
    sets: list[tuple[int, ...]] = [(i,) for i in range(len(each))]
    if len(each) <= MOST_IN_PAIRS:
        sets += combinations(range(len(each)), 2)
    leads = measure(model, case, [[], *([one for i in chosen for one in each[i]] for chosen in sets)])
    return most_changed(leads[1:] / leads[0], sets, len(each))


def _named(part: Any) -> list[_Named]:
    """A head, the neurons of an MLP, or an edge."""
    if part[0] == "mlp":
        return [("neurons", (part[1], neuron)) for neuron in range(NEURONS)]
    return [("heads", part) if isinstance(part[0], int) else ("edges", part)]


def _tokens(case: CircuitCase) -> list[_Named]:
    return [("tokens", (position,)) for position in range(len(case.prompt.split()))]


def _components(model: Model, case: CircuitCase) -> list[_Named]:
    """All heads, and the neurons of the case that matter or have another value in the corrupted prompt: no other can
    change anything."""
    heads = product(range(model.n_layers), range(model.n_heads))
    clean, corrupted = (_trace(model, prompt) for prompt in (case.prompt, case.corrupted))
    neurons = set(case.neurons)
    for layer in range(model.n_layers):
        moved = (clean.neuron[layer][0, -1] != corrupted.neuron[layer][0, -1]).nonzero()[:, 0]
        neurons |= {(layer, index) for index in moved.tolist()}
    return [*(("heads", head) for head in heads), *(("neurons", neuron) for neuron in sorted(neurons))]


def _edges(model: Model, case: CircuitCase) -> list[_Named]:
    return [("edges", edge) for edge in circuit_edges(model)]


def _pairs(case: CircuitCase, part: _Named) -> bool:
    """Whether a part is changed in pairs too: all but edges that leave a part which does not matter, or go from the
    embeddings to one."""
    kind, place = part
    if kind != "edges":
        return True
    sender, layer, head = sender_of(place[0])
    if sender != "embeddings":
        return (layer, head) in case.heads if sender == "head" else _has_neurons(case, layer)
    if isinstance(place[1], str):
        return True
    kind, layer, *heads = place[1]
    return _has_neurons(case, layer) if kind == "mlp" else (layer, *heads) in case.heads


def _has_neurons(case: CircuitCase, layer: int) -> bool:
    """Whether a neuron of the layer matters."""
    return layer in [number for number, _ in case.neurons]


def sender_of(named: str | tuple[str | int, ...]) -> Sender:
    """What the engine calls a sender."""
    if isinstance(named, str):
        return "embeddings", -1, 0
    if named[0] == "mlp":
        return "mlp", int(named[1]), 0
    return "head", int(named[0]), int(named[1])


def reader_of(model: Model, named: str | tuple[str | int, ...]) -> Reader:
    """What the engine calls a receiver."""
    if isinstance(named, str):
        return "logits", model.n_layers, 0
    kind, layer, *head = named
    return dict(_READS).get(str(kind), "mlp"), int(layer), int(head[0]) if head else 0


def _trace(model: Model, prompt: str) -> Trace:
    return trace(model, model.token_embeddings(model.tokens(prompt))[None], neurons=tuple(range(model.n_layers)))


def most_changed(shares: NDArray[np.float64], sets: Sequence[tuple[int, ...]], parts: int) -> NDArray[np.float64]:
    """(parts,) the most that each part changes, alone or beside one other that is changed too; ``shares`` (sets,) of
    the answer's lead, in the order of the sets."""
    alone, changes = shares[:parts], np.abs(1 - shares[:parts])
    for (first, second), share in zip(sets[parts:], shares[parts:], strict=True):
        changes[first] = max(changes[first], abs(alone[second] - share))
        changes[second] = max(changes[second], abs(alone[first] - share))
    return changes


def _lead(model: Model, logits: Tensor, case: CircuitCase) -> NDArray[np.float64]:
    answer, foil = (model.tokens(word, prepend_bos=False)[0] for word in (case.answer, case.foil))
    lead: NDArray[np.float64] = (logits[:, answer] - logits[:, foil]).double().cpu().numpy()
    return lead


@torch.no_grad()
def _leads(model: Model, prompts: Sequence[str], case: CircuitCase) -> NDArray[np.float64]:
    """(prompts,) logit of the answer minus that of the foil."""
    ids = torch.tensor([model.tokens(prompt) for prompt in prompts])
    return np.concatenate([_lead(model, model.run(part).logits[:, -1], case) for part in ids.split(ROWS)])


@torch.no_grad()
def _interchanged(model: Model, case: CircuitCase, sets: Sequence[Sequence[_Named]]) -> NDArray[np.float64]:
    """(sets,) the answer's lead with heads (everywhere) and neurons (at the last position) as in the corrupted
    prompt."""
    clean, corrupted = _trace(model, case.prompt), _trace(model, case.corrupted)
    last = clean.embeddings.shape[1] - 1
    leads = []
    for start in range(0, len(sets), ROWS):
        block = sets[start : start + ROWS]
        rows: dict[tuple[Site, int], list[tuple[int, int, int]]] = {}
        for cell, chosen in enumerate(block):
            for kind, (layer, index) in chosen:
                if kind == "heads":
                    rows.setdefault(("head", layer), []).extend((cell, place, index) for place in range(last + 1))
                else:
                    rows.setdefault(("neuron", layer), []).append((cell, last, index))
        patches = []
        for (site, layer), listed in rows.items():
            cells, positions, indices = torch.tensor(listed).T
            values = corrupted.head[layer][0] if site == "head" else corrupted.neuron[layer][0][..., None]
            patches.append(Patch(site, layer, values[positions, indices], positions, cells, indices))
        leads.append(_lead(model, decode(model, patched(model, clean, patches, len(block))), case))
    return np.concatenate(leads)


@torch.no_grad()
def _rerouted(model: Model, case: CircuitCase, sets: Sequence[Sequence[_Named]]) -> NDArray[np.float64]:
    """(sets,) the answer's lead where the receivers of some edges read their senders' outputs moved by what these
    differ in between the prompts."""
    clean, corrupted = _trace(model, case.prompt), _trace(model, case.corrupted)
    senders = sorted({sender_of(edge[0]) for chosen in sets for _, edge in chosen})
    changes = sender_changes(model, clean, corrupted, senders, torch.arange(clean.tokens))
    leads = []
    for start in range(0, len(sets), ROWS):
        rows: list[tuple[int, Reader]] = []  # a shadow for every receiver of every run
        sent: list[tuple[int, int]] = []  # (shadow, sender)
        for run, chosen in enumerate(sets[start : start + ROWS]):
            for _, (sender, receiver) in chosen:
                row = (run, reader_of(model, receiver))
                if row not in rows[-len(chosen) :]:
                    rows.append(row)
                sent.append((len(rows) - 1 - rows[::-1].index(row), senders.index(sender_of(sender))))
        shadows, numbers = torch.tensor(sent).T
        cells = PathCells(
            torch.tensor([layer for _, layer, _ in senders])[numbers],
            torch.tensor([kind == "head" for kind, _, _ in senders])[numbers],
            changes[numbers.to(changes.device)],
            [[reader] for _, reader in rows],
            shadows,
            torch.tensor([run for run, _ in rows]),
        )
        leads.append(_lead(model, decode(model, through_paths(model, clean, cells)), case))
    return np.concatenate(leads)
