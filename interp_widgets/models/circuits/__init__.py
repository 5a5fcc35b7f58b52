"""Circuits of known truth: small models whose weights are written by hand, and what is known about them."""

from __future__ import annotations

import os
import secrets
from pathlib import Path
from typing import Literal

from interp_widgets.arguments import checked
from interp_widgets.atomic import named_path, whole_folder
from interp_widgets.models.build import BackendChoice
from interp_widgets.models.loading import load_model
from interp_widgets.models.model import Model

from .attention import backup, busy_idle, indirect_object, induction
from .kept_edges import leads_with_edges
from .neurons import fact_lookup, greater_than, trigger
from .sealed import SealedCase, SealedCircuit, build_sealed, moved_truth
from .sealed_folder import read_sealed, unlocked, write_sealed
from .truth import (
    MATTERS,
    PART_KINDS,
    CircuitCase,
    CircuitProof,
    CircuitTruth,
    Edge,
    PartKind,
    changes_of,
    circuit_edges,
)

__all__ = [
    "CIRCUITS",
    "MATTERS",
    "PART_KINDS",
    "CircuitCase",
    "CircuitName",
    "CircuitProof",
    "CircuitTruth",
    "Edge",
    "PartKind",
    "SealedCase",
    "SealedCircuit",
    "changes_of",
    "circuit_edges",
    "leads_with_edges",
    "load_circuit",
    "open_sealed",
    "save_circuits",
    "seal_circuit",
    "sealed_circuit",
    "sealed_truth",
]

CircuitName = Literal["induction", "indirect_object", "fact_lookup", "greater_than", "trigger", "backup", "busy_idle"]
"""The circuits that `load_circuit` builds."""

_WRITERS = {
    "induction": induction,
    "indirect_object": indirect_object,
    "fact_lookup": fact_lookup,
    "greater_than": greater_than,
    "trigger": trigger,
    "backup": backup,
    "busy_idle": busy_idle,
}
CIRCUITS: tuple[CircuitName, ...] = tuple(_WRITERS)  # type: ignore[arg-type]


@checked
def load_circuit(name: CircuitName, *, backend: BackendChoice = "auto", seed: int = 0) -> tuple[Model, CircuitTruth]:
    """A small model whose circuit is known by construction, and the truth about it.

    The weights are written by hand in memory, feature by feature: the model is of GPT-2's shape, runs on both backends,
    passes the check of every loaded model, and every analysis and widget takes it. A random rotation hides the
    features. The other heads, and the others of the first 24 neurons of each layer, are decoys: they write a lot where
    nothing reads and a little everywhere. The remaining neurons are zero.

    - ``induction``: a previous-token head and an induction head.
    - ``indirect_object``: a duplicate-token head, an inhibition head and a name mover.
    - ``fact_lookup``: two heads fetch subject and relation, and a neuron is on if both are its own.
    - ``greater_than``: a head fetches a year, and neurons write the later ones.
    - ``trigger``: one word switches what the model says.
    - ``backup``: as induction, with two previous-token heads, of which one suffices.
    - ``busy_idle``: a head copies a place; another attends more sharply and moves nothing that is read; a third
      writes a constant that the first needs.

    Args:
        name: one of the seven.
        backend: as in `load_model`.
        seed: of the rotation and the decoys; the truth does not depend on it.

    Returns:
        The model and its `CircuitTruth`, whose cases hold the prompts and name the parts that matter.

    Raises:
        ValueError: an unknown name or backend.

    Source: Tracr (Lindner et al. 2023), for compiled models as ground truth; In-context learning and induction heads
    (Olsson et al. 2022), Interpretability in the wild (Wang et al. 2023) and How does GPT-2 compute greater-than?
    (Hanna et al. 2023), for the circuits. The weights are this package's own.

    Example:
        >>> circuit, truth = load_circuit("induction")
        >>> case = truth.cases[0]
        >>> case.prompt, case.answer, case.heads
        ('beta eta psi rho mu xi eta', 'psi', ((0, 0), (1, 1)))
        >>> sorted(ablate_heads(circuit, case.prompt, case.answer).strongest(2))
        [(0, 0), (1, 1)]
    """
    _check_name(name)
    writer, truth = _WRITERS[name]()
    model = load_model(writer.build(seed), tokenizer=writer.tokenizer(), backend=backend)
    model.name = f"circuit-{name}"
    return model, truth


@checked
def sealed_circuit(name: CircuitName, *, key: int, backend: BackendChoice = "auto", seed: int = 0) -> SealedCircuit:
    """A circuit for an exercise: what it does is known, where its parts lie is the question.

    The heads and neurons of `load_circuit`'s circuit are put to other places of their layers, drawn by the key. The
    object holds the model and the prompts, and no truth; `grade_circuit` compares an answer with it.

    Args:
        name: one of the seven of `load_circuit`.
        key: a whole number from 0 on; another key is another exercise.
        backend: as in `load_model`.
        seed: of the rotation and the decoys.

    Raises:
        ValueError: an unknown name or backend, a negative key.

    Source: as `load_circuit`.

    Example:
        >>> sealed = sealed_circuit("induction", key=3)
        >>> case = sealed.cases[0]
        >>> found = ablate_heads(sealed.model, case.prompt, case.answer).strongest(2)
        >>> grade_circuit(sealed, found).recall
        1.0
    """
    _check_name(name)
    if key < 0:
        raise ValueError(f"key must be a whole number from 0 on, got {key}")
    writer, truth = _WRITERS[name]()
    writer.moved(key)
    return build_sealed(writer, truth, key, seed, backend)


def save_circuits(folder: str | os.PathLike[str], *, seed: int = 0) -> tuple[Path, ...]:
    """Write every circuit as a transformers checkpoint with its tokenizer, for `load_model`; returns their folders.

    Raises an OSError if the folder is there already or cannot be written.
    """
    with whole_folder(folder) as draft:
        for name, write in _WRITERS.items():
            writer, _ = write()
            writer.save(draft / name, seed)
    return tuple(Path(folder) / name for name in _WRITERS)


@checked
def seal_circuit(
    name: CircuitName, folder: str | os.PathLike[str], passphrase: str, *, seed: int | None = None
) -> Path:
    """Write a circuit for an exercise into a new folder, with a truth that only the passphrase opens.

    The parts go to places that are drawn at random and kept nowhere else. The folder holds the weights, as `load_model`
    reads them, the prompts, and the truth, encrypted (scrypt, AES-GCM) and bound to these weights and prompts.
    `open_sealed` reads it. The weights can be read as those of any model: a part written by hand does not look like a
    decoy there, so ask for evidence from runs.

    Args:
        name: one of the seven of `load_circuit`.
        folder: where there is nothing yet.
        passphrase: of `sealed_truth` and `grade_circuit`; if it is lost, so is the truth.
        seed: of the rotation and the decoys; drawn if None.

    Returns:
        The folder.

    Raises:
        ValueError: an unknown name, an empty passphrase, a folder that is there already.
        OSError: the folder cannot be written.

    Source: as `load_circuit`.

    Example:
        >>> from tempfile import TemporaryDirectory
        >>> with TemporaryDirectory() as place:
        ...     sealed = open_sealed(seal_circuit("trigger", place + "/exercise", "four words of yours"))
        >>> grade = grade_circuit(sealed, [(1, 0), (1, 1), (1, 2), (1, 3)])
        >>> grade.precision is None  # only the instructor's grade has it
        True
        >>> 0 < grade_circuit(sealed, [("mlp", 1)], passphrase="four words of yours").recall < 1
        True
    """
    _check_name(name)
    writer, truth = _WRITERS[name]()
    truth = moved_truth(truth, writer.moved(secrets.randbits(63)))
    path = named_path(folder, "folder")
    write_sealed(writer, truth, path, passphrase, secrets.randbits(63) if seed is None else seed)
    return path


@checked
def open_sealed(folder: str | os.PathLike[str], *, backend: BackendChoice = "auto") -> SealedCircuit:
    """The sealed circuit that `seal_circuit` has written into a folder; its truth stays locked.

    Args:
        folder: what `seal_circuit` has written.
        backend: as in `load_model`.

    Raises:
        ValueError: a folder that is none of these or is damaged, an unknown backend.

    Source: as `load_circuit`.

    Example:
        >>> from tempfile import TemporaryDirectory
        >>> with TemporaryDirectory() as place:
        ...     open_sealed(seal_circuit("induction", place + "/exercise", "four words of yours"))
        SealedCircuit('induction', 3 prompts)
    """
    return read_sealed(folder, backend)


def _check_name(name: str) -> None:
    if name not in _WRITERS:
        raise ValueError(f"name must be {', '.join(map(repr, CIRCUITS))}, got {name!r}")


def sealed_truth(sealed: SealedCircuit, *, passphrase: str | None = None) -> CircuitTruth:
    """The truth of a sealed circuit, worked out from its key, or opened with the passphrase of its folder.

    Raises:
        ValueError: a passphrase that is wrong, missing or not needed; a folder that has changed.
    """
    if sealed.locked is not None:
        if passphrase is None:
            raise ValueError("the truth of a folder is locked: give the passphrase= of seal_circuit")
        return unlocked(sealed.locked, passphrase)
    if passphrase is not None or sealed.key is None:
        raise ValueError("passphrase is for what open_sealed has read: leave it out, the key is enough")
    writer, truth = _WRITERS[sealed.name]()
    return moved_truth(truth, writer.moved(sealed.key))
