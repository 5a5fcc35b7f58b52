"""Opening a mixture of depths: its base model, what was learned for it, and the checked `ModModel` of both."""

from __future__ import annotations

import copy
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
from ..threads import few_threads
from .assemble import apply_state
from .checkpoint import MixtureState, load_state
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
    hf_model, own = read_base(source, tokenizer)
    return build_mixture(
        hf_model, state, tokenizer=own, name=folder.expanduser().resolve().name, source=address(folder),
        device=device, dtype=dtype, backend=backend, processed=processed,
    )  # fmt: skip


def read_base(source: str | Path | Any, tokenizer: Any = None) -> tuple[Any, Any]:
    """A transformers model in float32 or wider that may be changed, and its tokenizer, from what `load_model` takes."""
    if isinstance(source, str | Path):
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
