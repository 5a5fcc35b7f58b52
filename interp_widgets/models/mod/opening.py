"""Opening a mixture of depths: its base model, what was learned for it, and the checked `ModModel` of both."""

from __future__ import annotations

import copy
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, cast

import torch

from ..folder import LoadError
from ..loading import (
    address,
    build,
    check_lora,
    check_transformers_model,
    device_of,
    read_source,
    tokenizer_beside,
)
from ..model import Model
from ..threads import few_threads
from .assemble import apply_state
from .checkpoint import MixtureState, is_mixture_folder, load_state
from .model import ModModel

__all__ = ["build_mixture", "open_mixture", "read_base"]


def open_mixture(
    folder: Path,
    base: Any,
    tokenizer: Any,
    device: str | torch.device | None,
    dtype: torch.dtype | None,
    backend: Literal["auto", "hooked", "bridge"],
    processed: bool,
) -> ModModel:
    """The model in a folder that `ModModel.save` wrote; options as in `load_model`."""
    state = load_state(folder)
    source = state.base if base is None else base
    if source is None:
        raise LoadError(
            f"the mixture in {folder} was tuned on {state.base_name}, which came from memory: give that model as base="
        )
    if isinstance(base, Model) and base.source is not None:
        base = source = base.source
    if isinstance(base, str | Path):
        state = replace(state, base=address(base))  # saved again, it is found there
    try:
        hf_model, own = read_base(source, tokenizer)
    except LoadError as error:
        if base is not None:
            raise
        raise LoadError(
            f"the base model of the mixture in {folder} cannot be loaded from where it was: {error}; "
            "or give the base as base="
        ) from error
    return build_mixture(
        hf_model, state, tokenizer=own, name=folder.expanduser().resolve().name, source=address(folder),
        device=device, dtype=dtype, backend=backend, processed=processed,
    )  # fmt: skip


def read_base(source: str | Path | Any, tokenizer: Any = None) -> tuple[Any, Any]:
    """A transformers model in float32 or wider that may be changed, and its tokenizer, from what `load_model` takes."""
    if isinstance(source, Model):
        if isinstance(source, ModModel) or source.source is None:
            kind = "is a mixture itself" if isinstance(source, ModModel) else "came from memory"
            raise LoadError(f"{source.name} {kind}: give the base's name, its folder or its transformers model")
        source = source.source
    if isinstance(source, str | Path):
        if is_mixture_folder(source):
            raise LoadError(f"{source} holds a mixture of depths: give the base model that it was tuned from")
        hf_model, _, found = read_source(source, tokenizer, torch.float32)
        return hf_model, found
    check_transformers_model(source)
    check_lora(source)
    hf_model = copy.deepcopy(source).to(torch.promote_types(source.dtype, torch.float32)).eval()
    return hf_model, tokenizer if tokenizer is not None else tokenizer_beside(source)


def build_mixture(
    hf_model: Any,
    state: MixtureState,
    *,
    tokenizer: Any,
    name: str,
    source: str | None,
    device: str | torch.device | None = None,
    dtype: torch.dtype | None = None,
    backend: Literal["auto", "hooked", "bridge"] = "auto",
    processed: bool = False,
) -> ModModel:
    """The `ModModel` of a base model, which is used up, and what was learned for it.

    Raises LoadError where ``hf_model`` is not the base that the state was made from.
    """
    if processed:
        raise ValueError("a mixture of depths has a norm per route, which cannot be folded: leave processed out")
    import transformer_lens  # noqa: F401  (3 to 5 s on first use)

    with few_threads(hf_model.num_parameters()):
        hf_model, mixture = apply_state(hf_model, state)
        found = build(
            hf_model, owned=True, name=name, source=source, tokenizer=tokenizer, device=device_of(device),
            dtype=torch.float32 if dtype is None else dtype, backend=backend, processed=False,
            mixture=(state, mixture),
        )  # fmt: skip
    return cast(ModModel, found)
