"""Puts a `Mixture` into a transformers model, a HookedTransformer or a TransformerBridge.

The inputs of the last k blocks and the output of the last one are read after all hooks there, so that edits of the
residual stream reach every route. The final norm then returns the mixture instead of its own output.
"""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from ..compare import agree
from ..read_out import NAME
from ..soft_cap import soft_capped
from ..transformerlens import is_hooked
from .mixture import Mixture

__all__ = [
    "LateParts",
    "install",
    "installed",
    "late_parts",
    "mixture_of",
]


def mixture_of(tl_model: Any) -> Mixture | None:
    """The mixture of a TransformerLens model, if it has one."""
    mixture = getattr(getattr(tl_model, "ln_final", None), "_modules", {}).get(NAME)
    return mixture if isinstance(mixture, Mixture) else None


# ---- classes put in front of a module's own class, which act after the module's hooks


class _Tap:
    """A module that also passes its output to a callback."""

    def __call__(self, *args: Any, **options: Any) -> Any:
        output = super().__call__(*args, **options)  # type: ignore[misc]
        vars(self)["_tell"](output)
        return output


class _Mixing:
    """A final norm that returns the mixture of all routes instead of its own output."""

    in_front = True

    def __call__(self, stream: Tensor, *args: Any, **options: Any) -> Any:
        mixture: Mixture = vars(self)["_modules"][NAME]
        return mixture.read(stream, super().__call__)  # type: ignore[misc]


def _insert_before(module: nn.Module, front: type) -> None:
    # the name is kept: it tells which equations the module computes
    module.__class__ = type(type(module).__name__, (front, type(module)), {})


def _remove(module: nn.Module, front: type) -> None:
    if type(module).__mro__[1] is front:
        module.__class__ = type(module).__mro__[2]


def _norm_like(final: nn.Module, norm: nn.Module) -> nn.Module:
    """A transformers norm as a TransformerLens module like the final norm; itself where the two would differ."""
    converted = copy.deepcopy(final)
    targets = dict(converted.named_parameters())
    source = {{"weight": "w", "bias": "b"}.get(name, name): value for name, value in norm.named_parameters()}
    if {name: value.shape for name, value in targets.items()} != {name: value.shape for name, value in source.items()}:
        return norm
    reference = next(norm.parameters())
    rows = torch.randn(2, *reference.shape, generator=torch.Generator().manual_seed(0)).to(reference)
    rows[1] *= 1e-3  # only a small row reveals an epsilon
    # some norms of transformers compute in float32 in a float64 model
    dtype = torch.float32 if reference.dtype == torch.float64 else reference.dtype
    with torch.no_grad():
        for name, value in targets.items():
            value.copy_(source[name])
        return converted if agree(converted(rows), norm(rows), dtype) else norm


def install(tl_model: Any, mixture: Mixture) -> None:
    """Put a mixture into a TransformerLens model permanently; in a HookedTransformer its norms are converted."""
    if is_hooked(tl_model):
        mixture.norms = nn.ModuleList(_norm_like(tl_model.ln_final, norm) for norm in mixture.norms)
    blocks = range(len(tl_model.blocks) - mixture.k, len(tl_model.blocks))
    # partial and bound methods, so that a deep copy of the model calls its own mixture
    taps: list[tuple[str, Callable[[Tensor], None]]] = [
        (f"blocks.{block}.hook_resid_pre", partial(mixture.enters, index)) for index, block in enumerate(blocks)
    ]
    taps.append((f"blocks.{blocks[-1]}.hook_resid_post", mixture.leaves))
    points = tl_model.hook_dict
    for name, tell in taps:
        _insert_before(points[name], _Tap)
        vars(points[name])["_tell"] = tell
    tl_model.ln_final.add_module(NAME, mixture)
    _insert_before(tl_model.ln_final, _Mixing)


# ---- transformers models


@dataclass(frozen=True)
class LateParts:
    """The parts of a transformers model that a mixture needs."""

    layers: nn.ModuleList
    """Its blocks."""
    layers_name: str
    """Their name within the model, such as ``"model.layers"``."""
    norm: nn.Module
    """Its final norm."""
    head: nn.Module
    """Its unembedding."""
    cap: float = 0.0
    """The soft cap on its logits; 0 for none."""

    def logits(self, hidden: Tensor) -> Tensor:
        """Logits (..., d_vocab) from the input of the unembedding."""
        return soft_capped(self.head(hidden), self.cap)


def late_parts(hf_model: Any) -> LateParts:
    """Find the blocks, final norm and unembedding of a transformers model by running one token through it.

    Raises ValueError for a model whose logits are not one norm and one linear map of the last block's output, with or
    without a soft cap.
    """
    count = hf_model.config.get_text_config().num_hidden_layers
    lists = [(name, m) for name, m in hf_model.named_modules() if isinstance(m, nn.ModuleList) and len(m) == count]
    head = hf_model.get_output_embeddings()
    refusal = f"{type(hf_model).__name__} cannot have a mixture of depths: "
    if not lists or head is None:
        raise ValueError(refusal + "its blocks or its unembedding were not found")
    name, layers = min(lists, key=lambda item: item[0].count("."))
    parent = hf_model.get_submodule(name.rpartition(".")[0])
    outputs: dict[nn.Module, Any] = {}
    entered: dict[nn.Module, Any] = {}

    def keep(module: nn.Module, args: tuple[Any, ...], output: Any) -> None:
        entered[module], outputs[module] = args[0] if args else None, output

    watched = [*(child for child in parent.children() if child is not layers), layers[-1], head]
    handles = [module.register_forward_hook(keep) for module in watched]
    try:
        with torch.no_grad():
            token = torch.zeros(1, 1, dtype=torch.long, device=hf_model.device)
            logits = hf_model(token, use_cache=False).logits
    finally:
        for handle in handles:
            handle.remove()
    end = outputs.get(layers[-1])
    end = end[0] if isinstance(end, tuple) else end
    norm = next((m for m in watched if m in outputs and entered[m] is end and m is not head and end is not None), None)
    if norm is None or entered.get(head) is None or not torch.equal(entered[head], outputs[norm]):
        raise ValueError(refusal + "its unembedding does not read one final norm of its last block")
    cap = float(getattr(hf_model.config.get_text_config(), "final_logit_softcapping", None) or 0)
    if not torch.equal(soft_capped(outputs[head], cap), logits):
        raise ValueError(refusal + "its logits are more than the unembedding and a soft cap: use another base")
    return LateParts(layers, name, norm, head, cap)


@contextlib.contextmanager
def installed(parts: LateParts, mixture: Mixture) -> Iterator[None]:
    """Context manager in which the transformers model of these parts returns the mixture's logits."""
    late = list(parts.layers)[-mixture.k :]

    def entering(index: int) -> Callable[..., None]:
        def tell(module: nn.Module, args: tuple[Any, ...], options: dict[str, Any]) -> None:
            mixture.enters(index, args[0] if args else options["hidden_states"])

        return tell

    def leaving(module: nn.Module, args: tuple[Any, ...], output: Any) -> None:
        mixture.leaves(output[0] if isinstance(output, tuple) else output)

    handles = [layer.register_forward_pre_hook(entering(i), with_kwargs=True) for i, layer in enumerate(late)]
    handles.append(late[-1].register_forward_hook(leaving))
    parts.norm.add_module(NAME, mixture)
    _insert_before(parts.norm, _Mixing)
    try:
        yield
    finally:
        _remove(parts.norm, _Mixing)
        del parts.norm._modules[NAME]
        for handle in handles:
            handle.remove()
