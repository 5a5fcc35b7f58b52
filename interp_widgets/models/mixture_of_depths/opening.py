"""Opens a mixture of depths: loads the base model and the learned weights, and builds the checked `ModModel`."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import torch

from ..adapters import open_merged
from ..build import BackendChoice, build
from ..devices import device_of
from ..errors import LoadError
from ..hub_files import DEMO_MIXTURES, Source, address
from ..model import Model
from ..state import check_as_loaded
from ..threads import few_threads
from .assemble import apply_state
from .checkpoint import MixtureState, is_mixture_folder, load_state, mixture_folder
from .install import install, installed, late_parts
from .mixture import Mixture
from .model import ModModel

__all__ = ["MixtureFolders", "build_mixture", "open_mixture", "read_base"]


class MixtureFolders:
    """How `load_model` opens the folders that `ModModel.save` wrote."""

    def recognises(self, source: object) -> bool:
        return is_mixture_folder(source)

    def open(self, source: Any, **options: Any) -> Model:
        return open_mixture(source, **options)

    def also_reads(self, source: Any) -> str | None:
        return load_state(source).base


class _MixtureAddition:
    """A mixture that is to be put into a converted model."""

    def __init__(self, mixture: Mixture, state: MixtureState) -> None:
        self.mixture, self.state = mixture, state
        # in half precision, rounding of the stream changes the router's weights: differences of up to 0.9 nats were
        # measured where the model without the mixture differs by 0.2
        self.slack = 4.0 if mixture.router.dtype in (torch.float16, torch.bfloat16) else 1.0

    @contextlib.contextmanager
    def within(self, hf_model: Any) -> Iterator[None]:
        with installed(late_parts(hf_model), self.mixture):
            yield

    def put_into(self, tl_model: Any) -> None:
        install(tl_model, copy.deepcopy(self.mixture))  # the norms become those of this one TransformerLens model

    def make_model(self, tl_model: Any, **options: Any) -> Model:
        return ModModel(tl_model, state=self.state, **options)


def open_mixture(
    folder: str | Path,
    *,
    base: Any,
    tokenizer: Any,
    device: str | torch.device | None,
    dtype: torch.dtype | None,
    backend: BackendChoice,
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
        check_as_loaded(base, "load_model")
        state = replace(state, base=base.source)  # saved again, it is found there
    elif isinstance(base, str | Path):
        state = replace(state, base=address(base))
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
        hf_model, state, tokenizer=own, name=mixture_folder(folder).resolve().name,
        source=str(folder) if str(folder) in DEMO_MIXTURES else address(folder),
        device=device, dtype=dtype, backend=backend, processed=processed,
    )  # fmt: skip


def read_base(source: str | Path | Any, tokenizer: Any = None) -> tuple[Any, Any]:
    """A transformers model in float32 or wider that may be changed, and its tokenizer; sources as for `load_model`."""
    if isinstance(source, Model):
        if isinstance(source, ModModel) or source.source is None:
            kind = "is a mixture itself" if isinstance(source, ModModel) else "came from memory"
            raise LoadError(f"{source.name} {kind}: give the base's name, its folder or its transformers model")
        opened = open_merged(source.source, tokenizer, torch.float32, allow_mismatch=source.allow_mismatch)
        return opened.hf_model, opened.tokenizer
    if isinstance(source, str | Path):
        if is_mixture_folder(source):
            raise LoadError(f"{source} holds a mixture of depths: give the base model that it was tuned from")
        opened = open_merged(source, tokenizer, torch.float32)
        return opened.hf_model, opened.tokenizer
    opened = open_merged(source, tokenizer, torch.float32)
    wide = torch.promote_types(source.dtype, torch.float32)
    return copy.deepcopy(opened.hf_model).to(wide).eval(), opened.tokenizer


def build_mixture(
    hf_model: Any,
    state: MixtureState,
    *,
    tokenizer: Any,
    name: str,
    source: str | None,
    device: str | torch.device | None = None,
    dtype: torch.dtype | None = None,
    backend: BackendChoice = "auto",
    processed: bool = False,
) -> ModModel:
    """The `ModModel` of a base model, which is changed in place, and its learned weights.

    Raises LoadError if ``hf_model`` is not the base model of the state.
    """
    if processed:
        raise ValueError("a mixture of depths has a norm per route, which cannot be folded: leave processed out")
    dtype = torch.float32 if dtype is None else dtype
    torch_device = device_of(device)
    with few_threads(hf_model.num_parameters()):
        hf_model, mixture = apply_state(hf_model, state)
    addition = _MixtureAddition(mixture.to(device=torch_device, dtype=dtype), state)
    opened = Source(hf_model, name, tokenizer, source)
    model = build(opened, device=torch_device, dtype=dtype, backend=backend, processed=False, addition=addition)
    return cast(ModModel, model)
