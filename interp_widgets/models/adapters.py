"""Models with a LoRA adapter: the address of both, and the merge of the adapter into the weights of its base."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from ..arguments import short as described
from ..atomic import named_path
from ..data.files import short
from .errors import LoadError, sentence
from .hub_files import ADAPTER, DEMO, Source, address, folder_name, open_source, read_object
from .loading_note import loading_step
from .lora import WEIGHTS, merged_with
from .memory import float32_fits, is_out_of_memory
from .placement import quantisation
from .weight_files import has_weights

SHIPPED = {"planted": DEMO.parent / "planted"}
"""Names and folders of the shipped adapters."""
PLUS = " + "
"""Between a base and its adapter, in the name and in the address of a model."""
_GIVE_THE_BASE = "give the base, load_model(base, adapter=...)"
_ADVICE = "give a folder that save_pretrained() of a peft model wrote"


def base_and_adapter(source: Any, adapter: Any = None) -> tuple[Any, Any]:
    """The base of a source, as an argument of `open_source`, and its adapter; None for a source without one.

    The source is an address such as ``"smollm2 + planted"``, the folder of an adapter that names its base, or another.

    >>> base_and_adapter("smollm2 + planted"), base_and_adapter("demo-base")
    (('smollm2', 'planted'), ('demo-base', None))
    """
    if adapter is not None or not isinstance(source, str | Path):
        return source, adapter
    path = Path(os.path.expanduser(source))
    if _is_adapter(path):
        base = _header(path).get("base_model_name_or_path")
        if not isinstance(base, str) or not base:
            raise LoadError(f"{path} holds an adapter that names no base model: {_GIVE_THE_BASE}")
        if PLUS in base or _is_adapter(Path(os.path.expanduser(base))):
            raise LoadError(f"{path} holds an adapter of {short(base)}, which has one itself: {_GIVE_THE_BASE}")
        return base, path
    base, plus, named = str(source).rpartition(PLUS)
    return (base, named) if plus and not os.path.exists(path) else (source, None)


def open_merged(
    source: Any, tokenizer: Any, dtype: torch.dtype | None, *, adapter: Any = None, **options: Any
) -> Source:
    """`open_source` of the base of a source, with its adapter merged into the weights if it has one.

    The sum is computed in float32 where that fits into the memory, in one thread, so that every process makes the same
    bits of it. LoadError if the adapter cannot be read, is of another kind than LoRA or of another base.
    """
    base, adapter = base_and_adapter(source, adapter)
    if adapter is None:
        return open_source(source, tokenizer, dtype, **options)
    folder = _adapter_folder(adapter)
    try:
        opened = open_merged(base, tokenizer, dtype, **options)
    except LoadError as error:
        if base is source or not _is_adapter(Path(os.path.expanduser(source))):
            raise
        raise LoadError(
            f"the base model {short(base)} of the adapter in {folder} cannot be had ({error}): {_GIVE_THE_BASE}"
        ) from error
    hf_model, name = opened.hf_model, f"{opened.name}{PLUS}{_name(adapter, folder)}"
    if (method := quantisation(hf_model)) is not None:
        raise LoadError(
            f"{opened.name} is quantised ({method}), so that no adapter fits into its weights: give it as it was"
        )
    loading_step("merging its adapter")
    wide = torch.promote_types(hf_model.dtype, torch.float32)
    if hf_model.dtype != wide and float32_fits(hf_model.num_parameters(), torch.device("cpu")):
        hf_model.to(wide)
    try:
        merged = merged_with(hf_model, folder)
    except ImportError:
        raise
    except Exception as error:  # peft raises errors of many types
        if is_out_of_memory(error):
            raise
        raise LoadError(f"the adapter in {folder} does not fit {opened.name}: {sentence(error)}") from error
    where = None if opened.address is None else f"{opened.address}{PLUS}{_address(adapter)}"
    return replace(opened, hf_model=merged, name=name, address=where)


def _is_adapter(path: Path) -> bool:
    """Whether a folder holds an adapter and no whole model."""
    return os.path.isfile(path / ADAPTER) and not has_weights(path)


def _name(adapter: Any, folder: Path) -> str:
    return str(adapter) if str(adapter) in SHIPPED else folder_name(folder)


def _address(adapter: Any) -> str:
    """The argument for reading an adapter again."""
    return str(adapter) if str(adapter) in SHIPPED else address(adapter)


def _adapter_folder(adapter: Any) -> Path:
    """The folder of a LoRA adapter, given by name or path; LoadError if there is none."""
    if not isinstance(adapter, str | Path):
        raise TypeError(f"adapter must be a folder with {ADAPTER} or {_names()}, got {described(adapter)}")
    folder = SHIPPED.get(str(adapter)) or named_path(adapter, "adapter")
    if not folder.is_dir():
        raise LoadError(f"there is no adapter {short(str(adapter))}: {_ADVICE}, or {_names()}")
    if PLUS in _address(adapter):
        raise LoadError(f"the path of an adapter must not hold {PLUS!r}, got {_address(adapter)}: rename the folder")
    if not (folder / ADAPTER).is_file():
        raise LoadError(f"{folder} has no {ADAPTER}: {_ADVICE}, or {_names()}")
    header = _header(folder)
    kind, task = header.get("peft_type"), header.get("task_type")
    if kind != "LORA":
        raise LoadError(f"{folder} holds an adapter of the kind {short(kind)}: only LoRA (LORA) can be merged here")
    if task not in (None, "CAUSAL_LM"):
        raise LoadError(f"{folder} holds an adapter for the task {short(task)}: only CAUSAL_LM can be merged here")
    if not (folder / WEIGHTS).is_file():
        raise LoadError(f"{folder} has no {WEIGHTS}: save the adapter again with save_pretrained()")
    return folder


def _names() -> str:
    return f"the name of a shipped one ({', '.join(SHIPPED)})"


def _header(folder: Path) -> dict[str, Any]:
    """What the file of settings in an adapter's folder says."""
    return read_object(folder / ADAPTER, what="adapter")
