"""Sealed circuits as folders: weights and prompts in the clear, the truth encrypted with a passphrase."""

from __future__ import annotations

import hashlib
import json
import os
import secrets
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.kdf.scrypt import Scrypt

from interp_widgets.atomic import named_path, whole_folder
from interp_widgets.models.build import BackendChoice
from interp_widgets.models.loading import load_model
from interp_widgets.releases import refusal, stamped

from .sealed import LockedTruth, SealedCase, SealedCircuit
from .truth import CircuitCase, CircuitTruth

_FORMAT, _VERSION = "interp_widgets sealed circuit", 1
_CASES, _LOCKED, _WEIGHTS = "sealed.json", "locked.json", "model.safetensors"
_CASE_FIELDS = ("prompt", "answer", "foil", "corrupted")


def write_sealed(writer: Any, truth: CircuitTruth, folder: Path, passphrase: str, seed: int) -> None:
    """Write the model of a writer whose parts have moved, the prompts, and the truth locked with the passphrase."""
    if not passphrase:
        raise ValueError("passphrase is empty: give some words that nobody guesses, and keep them")
    if folder.exists():
        raise ValueError(f"folder must be a new one, got {folder}, which is there already")
    with whole_folder(folder) as draft:
        writer.save(draft, seed)
        cases = [{name: getattr(case, name) for name in _CASE_FIELDS} for case in truth.cases]
        head = stamped({"format": _FORMAT, "version": _VERSION, "name": truth.name, "cases": cases})
        (draft / _CASES).write_text(json.dumps(head, indent=1) + "\n", encoding="utf-8")
        salt, nonce = secrets.token_bytes(16), secrets.token_bytes(12)
        text = AESGCM(_key(passphrase, salt)).encrypt(nonce, json.dumps(asdict(truth)).encode(), _beside(draft))
        locked = {"salt": salt.hex(), "nonce": nonce.hex(), "text": text.hex()}
        (draft / _LOCKED).write_text(json.dumps(locked, indent=1) + "\n", encoding="utf-8")


def read_sealed(folder: str | os.PathLike[str], backend: BackendChoice) -> SealedCircuit:
    """The sealed circuit of a folder, its truth still locked."""
    path = named_path(folder, "folder")
    held: Any = None
    try:
        held, locked = (json.loads((path / name).read_text(encoding="utf-8")) for name in (_CASES, _LOCKED))
        if (held["format"], held["version"]) != (_FORMAT, _VERSION):
            raise ValueError(f"format {held['format']!r}, version {held['version']!r}")
        cases = tuple(SealedCase(**{name: _text(case, name) for name in _CASE_FIELDS}) for case in held["cases"])
        name = _text(held, "name")
        salt, nonce, text = (bytes.fromhex(_text(locked, part)) for part in ("salt", "nonce", "text"))
        beside = _beside(path)
    except (OSError, ValueError, KeyError, TypeError) as error:
        other = (
            f"folder must be one that seal_circuit has written, whole: {path} cannot be read as one "
            f"({type(error).__name__}: {error})"
        )
        raise ValueError(refusal(path, held, other)) from error
    model = load_model(str(path), backend=backend)
    model.name = f"sealed-{name}"
    return SealedCircuit(model, cases, name, None, None, LockedTruth(salt, nonce, text, beside))


def unlocked(locked: LockedTruth, passphrase: str) -> CircuitTruth:
    """The truth, if the passphrase is the one that it was locked with and the folder is as it was written."""
    try:
        text = AESGCM(_key(passphrase, locked.salt)).decrypt(locked.nonce, locked.text, locked.beside)
    except (InvalidTag, ValueError) as error:  # a nonce of another length is a ValueError
        raise ValueError(
            "the truth does not open: the passphrase is not the one of seal_circuit, or a file of the folder has "
            "changed"
        ) from error
    held = _tuples(json.loads(text))
    return CircuitTruth(**{**held, "cases": tuple(CircuitCase(**case) for case in held["cases"])})


def _key(passphrase: str, salt: bytes) -> bytes:
    return Scrypt(salt=salt, length=32, n=2**15, r=8, p=1).derive(passphrase.encode())


def _beside(folder: Path) -> bytes:
    """What the locked truth is bound to: weights and prompts."""
    return b"".join(hashlib.sha256((folder / name).read_bytes()).digest() for name in (_WEIGHTS, _CASES))


def _text(held: Mapping[str, Any], name: str) -> str:
    if not isinstance(held[name], str):
        raise TypeError(f"{name} must be a text")
    return str(held[name])


def _tuples(value: Any) -> Any:
    """What JSON holds, with tuples for its lists."""
    if isinstance(value, dict):
        return {name: _tuples(one) for name, one in value.items()}
    return tuple(map(_tuples, value)) if isinstance(value, list) else value
