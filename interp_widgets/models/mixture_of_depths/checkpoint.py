"""Checkpoints of tuned mixtures: the learned weights, the base model they belong to, and the folder format."""

from __future__ import annotations

import hashlib
import json
import os
import re
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, get_args

import torch
from torch import Tensor

from ...atomic import named_path, whole_file
from ...data.files import read_tensors, short
from ...releases import refusal, stamped
from ..errors import LoadError
from ..hub_files import DEMO_MIXTURES
from ..weights import weight_hash

__all__ = [
    "HEADER",
    "LoraLayers",
    "LoraSetup",
    "MixtureState",
    "base_hash",
    "is_mixture_folder",
    "load_state",
    "mixture_folder",
    "save_state",
]

HEADER = "mod.json"
FILES = {"weights": "mod.safetensors", "training": "training.safetensors"}
"""Names of the tensor files in folders of version 1; later headers name them."""
FORMAT = "interp_widgets mixture of depths"
VERSION = 2

_TENSORS = re.compile(r"(mod|training|(weights|training)-[0-9a-f]{12})\.safetensors")

LoraLayers = Literal["last", "below", "all"]
"""The last k layers, those below them, or all."""


@dataclass(frozen=True)
class LoraSetup:
    """Low-rank adapters trained together with the mixture."""

    rank: int
    layers: LoraLayers
    """The layers whose linear maps have adapters."""
    alpha: int
    """The update is scaled by alpha / rank."""


@dataclass(frozen=True)
class MixtureState:
    """Everything that tuning changed, and its base model."""

    k: int
    top_k: int
    lora: LoraSetup | None
    base: str | None
    """The argument for loading the base model again (a name or a folder); None for a model from memory."""
    base_name: str
    base_hash: str
    """SHA-256 of the base model's weights (`base_hash`)."""
    weights: Mapping[str, Tensor]
    """On the CPU: "router" (d_model, k), "norms.I.weight", "norms.I.bias" per route I, "lora.NAME" for adapters."""
    training: Mapping[str, Tensor] = field(default_factory=dict)
    """Optimizer state and curves for resuming; empty if they were not saved."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    """Options of the tuning; plain JSON values."""
    only: int | None = None
    """The only route that is used; None for the router's mixture."""


def base_hash(hf_model: Any) -> str:
    """SHA-256 of a transformers model's weights converted to float32, so that half-precision copies agree."""
    return weight_hash(hf_model, wide=True)


def mixture_folder(source: str | os.PathLike[str]) -> Path:
    """The folder of a mixture; a shipped one is given by its name, such as ``demo-base-mixture``."""
    return DEMO_MIXTURES.get(os.fspath(source)) or Path(os.path.expanduser(source))


def is_mixture_folder(source: object) -> bool:
    """Whether ``source`` names a folder that `ModModel.save` wrote."""
    return isinstance(source, str | os.PathLike) and os.path.isfile(mixture_folder(source) / HEADER)


def save_state(state: MixtureState, folder: str | os.PathLike[str]) -> Path:
    """Write safetensors files and the JSON file that names them; an older mixture stays until the new one is complete.

    Raises ValueError for a path that is a file or holds a transformers model, which a mixture there would hide.
    """
    from safetensors.torch import save_file

    target = named_path(folder, "folder")
    if target.exists() and not target.is_dir():
        raise ValueError(f"{target} is a file: give a folder to save the mixture in")
    if (target / "config.json").exists():
        raise ValueError(
            f"{target} holds a model, which a mixture there would hide from load_model: give another folder"
        )
    target.mkdir(parents=True, exist_ok=True)
    parts = {"weights": state.weights, **({"training": state.training} if state.training else {})}
    # unique file names: the files of the old header stay until the new header replaces it
    names = {part: f"{part}-{secrets.token_hex(6)}.safetensors" for part in parts}
    try:
        for part, tensors in parts.items():
            with whole_file(target / names[part]) as draft:
                save_file({key: value.detach().cpu().contiguous() for key, value in tensors.items()}, draft)
        digests = {name: _digest(target / name) for name in names.values()}
        head = stamped(_header(state)) | {"files": names, "sha256": digests}
        with whole_file(target / HEADER) as draft:
            draft.write_text(json.dumps(head, indent=1) + "\n", encoding="utf8")
    finally:
        _remove_unnamed(target)
    return target


def _remove_unnamed(folder: Path) -> None:
    """Remove files that the header does not name, from older or failed saves."""
    try:
        head = json.loads((folder / HEADER).read_text(encoding="utf8"))
        named = set(head.get("files", FILES).values())
    except FileNotFoundError:
        named = set()
    except (AttributeError, ValueError, RecursionError):  # a damaged header: what belonged to it is not known
        return
    for path in folder.iterdir():
        if _TENSORS.fullmatch(path.name) and path.name not in named:
            path.unlink(missing_ok=True)


def _header(state: MixtureState) -> dict[str, Any]:
    return {
        "format": FORMAT,
        "version": VERSION,
        "k": state.k,
        "top_k": state.top_k,
        "only": state.only,
        "lora": None if state.lora is None else vars(state.lora),
        "base": {"source": state.base, "name": state.base_name, "weight_hash": state.base_hash},
        "settings": dict(state.settings),
        "training": bool(state.training),
    }


def load_state(folder: str | os.PathLike[str]) -> MixtureState:
    """Read a folder that `save_state` wrote; LoadError for any other folder."""
    path = mixture_folder(folder)
    if not (path / HEADER).is_file():
        raise LoadError(f"{path} has no {HEADER}: give a folder that ModModel.save wrote")
    try:
        head = json.loads((path / HEADER).read_text(encoding="utf8"))
        known, version = head["format"] == FORMAT, head["version"]
        newer = known and version > VERSION
        digests = dict(head.get("sha256", {}))
        files = {part: path / _plain(name) for part, name in head.get("files", FILES).items()}
        parts = [files["weights"], *([files["training"]] if head.get("training") else [])]
    except (AttributeError, KeyError, TypeError, ValueError, RecursionError) as error:
        raise _damaged(path / HEADER, error) from error
    if newer:
        other = (
            f"{path} was written by a newer version (format {version}, this one reads up to {VERSION}): "
            "install that version of interp_widgets"
        )
        raise LoadError(refusal(path, head, other))
    if not known:
        raise LoadError(f"the {HEADER} in {path} is not that of a mixture: give a folder that ModModel.save wrote")
    weights, training = (*(_read(part, digests) for part in parts), {})[:2]
    bad = next((name for name, value in weights.items() if not bool(torch.isfinite(value).all())), None)
    if bad is not None:
        raise LoadError(f"{parts[0]} holds NaN or infinity in {bad}: use an intact checkpoint")
    try:
        base = head["base"]
        lora = _read_lora(head["lora"], weights)
        texts = [base["name"], base["weight_hash"], base["source"] or ""]
        if not (all(isinstance(text, str) for text in texts) and isinstance(head["settings"], dict)):
            raise ValueError("the base or the settings have the wrong type")
        k, top_k, only = int(head["k"]), int(head["top_k"]), head["only"]
        routes = weights["router"].shape[1]
        if not (k == routes and 1 <= top_k <= k and (only is None or only in range(k))):
            raise ValueError(f"k {k}, top_k {top_k} and only {only} do not fit {routes} routes")
        return MixtureState(
            k, top_k, lora, base["source"], base["name"], base["weight_hash"], weights, training, head["settings"], only
        )
    except (IndexError, KeyError, TypeError, ValueError) as error:
        raise _damaged(path / HEADER, error) from error


def _plain(name: str) -> str:
    """Check that a file name is directly in the folder."""
    if os.path.basename(name) != name or not name.endswith(".safetensors"):
        raise ValueError(f"{short(repr(name))} is not a file of a mixture")
    return name


def _read_lora(entry: Any, weights: Mapping[str, Tensor]) -> LoraSetup | None:
    """The adapters that a header declares; ValueError unless the weights have them."""
    if entry is None:
        return None
    lora = LoraSetup(**entry)
    adapters = [value.shape for name, value in weights.items() if name.startswith("lora.")]
    if lora.layers not in get_args(LoraLayers) or not isinstance(lora.alpha, int) or not isinstance(lora.rank, int):
        raise ValueError(f"the adapters have wrong fields: {short(entry)}")
    if not adapters or any(lora.rank not in shape for shape in adapters):
        raise ValueError(f"the weights have no adapters of rank {lora.rank}")
    return lora


def _damaged(path: Path, error: Exception | str) -> LoadError:
    return LoadError(f"{path} is damaged ({error}): copy the folder again")


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _read(path: Path, digests: Mapping[str, str]) -> dict[str, Tensor]:
    if not os.path.isfile(path):  # also where the name is too long to be one
        raise LoadError(f"{path.parent} lacks {short(path.name)}: copy the folder again")
    try:
        tensors, _ = read_tensors(path, "a mixture")
    except ValueError as error:
        raise LoadError(f"{error}: copy the folder again") from error
    # also where one file is from another save than the rest
    if path.name in digests and _digest(path) != digests[path.name]:
        raise _damaged(path, f"it is not the file that {HEADER} belongs to")
    return tensors
