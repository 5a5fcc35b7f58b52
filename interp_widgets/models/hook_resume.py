"""`resume` through a model's own modules, with hooks that put the patches in: for every model that has the hooks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from .hooks import attached, check_hook_names, switched_on
from .ways import blocks_start

if TYPE_CHECKING:
    from .resume import Patch, Trace

_NAMES = {
    "resid": "hook_resid_pre",
    "attn": "hook_attn_out",
    "mlp": "hook_mlp_out",
    "attn_to_mlp": "hook_mlp_in",
    "head": "attn.hook_z",
    "neuron": "mlp.hook_post",
}


def _name(part: str, layer: int, n_layers: int) -> str:
    if part == "resid" and layer == n_layers:
        return f"blocks.{n_layers - 1}.hook_resid_post"
    return f"blocks.{layer}.{_NAMES[part]}"


def trace(model: Any, embeddings: Tensor, neurons: tuple[int, ...], hooked: bool) -> Trace:
    """See `resume.trace`."""
    from .forward import encode
    from .resume import Trace

    tl_model, layers = model.tl_model, range(model.n_layers)
    has_mlp = _name("mlp", 0, model.n_layers) in tl_model.hook_dict
    wanted = [("resid", layer) for layer in range(model.n_layers + 1)]
    wanted += [(part, layer) for layer in layers for part in ("attn", "mlp", "head") if part != "mlp" or has_mlp]
    wanted += [("neuron", layer) for layer in neurons]
    names = {place: _name(*place, model.n_layers) for place in wanted}
    check_hook_names(tl_model, names.values())
    kept: dict[str, Tensor] = {}

    def keeping(name: str) -> Callable[..., Tensor]:
        def keep(value: Tensor, hook: Any) -> Tensor:
            kept[name] = value.detach()
            return value

        return keep

    last = torch.tensor([embeddings.shape[1] - 1], device=embeddings.device)
    with attached(tl_model, [(name, keeping(name)) for name in names.values()]):
        hidden = encode(model, embeddings, positions=last)[:, 0]
    silent = next((name for name in names.values() if name not in kept), None)
    if silent is not None:
        raise ValueError(f"hook {silent!r} exists but does not run in this model's forward pass")
    return Trace(
        way="hooks",
        hooked=hooked,
        backend=model.backend,
        embeddings=embeddings,
        hidden=hidden,
        resid=tuple(kept[names["resid", layer]] for layer in range(model.n_layers + 1)),
        attn=tuple(kept[names["attn", layer]] for layer in layers),
        mlp=tuple(kept[names["mlp", layer]] for layer in layers) if has_mlp else (),
        head=tuple(kept[names["head", layer]] for layer in layers),
        parallel=has_mlp and "blocks.0.hook_resid_mid" not in tl_model.hook_dict,
        neuron={layer: kept[names["neuron", layer]] for layer in neurons},
    )


def run(model: Any, trace: Trace, patches: Sequence[Patch], sequence: Tensor, check: Callable[[], None]) -> Tensor:
    """(cells, width) what `forward.decode` takes, from the first patched layer or, where that cannot be, from layer 0."""
    from .forward import encode

    tl_model = model.tl_model
    whole = trace.hooked or trace.backend == "bridge"
    first = 0 if whole else min(patch.layer for patch in patches)

    def checking(value: Tensor, hook: Any) -> Tensor:
        check()
        return value

    hooks: list[tuple[str, Callable[..., Tensor]]] = []
    hooks += [(_name("resid", layer, trace.n_layers), checking) for layer in range(first, trace.n_layers)]
    for patch in patches:
        hooks += _hooks_of(patch, trace.n_layers)
    names = [name for name, _ in hooks]
    check_hook_names(tl_model, names)
    with switched_on(tl_model, names), attached(tl_model, hooks):
        if whole:
            last = torch.tensor([trace.tokens - 1], device=sequence.device)
            return encode(model, trace.embeddings[sequence], positions=last)[:, 0]
        return _blocks_from(tl_model, trace, first, sequence)


def _hooks_of(patch: Patch, n_layers: int) -> list[tuple[str, Callable[..., Tensor]]]:
    stream: list[Tensor] = []

    def keep(value: Tensor, hook: Any) -> Tensor:
        stream[:] = [value]
        return value

    def put(value: Tensor, hook: Any) -> Tensor:
        new = value.clone()
        shaped = new.unflatten(-1, (-1, 1)) if patch.part == "neuron" else new
        patch.put(shaped, patch.cell, patch.at)
        return new

    def put_sum(value: Tensor, hook: Any) -> Tensor:
        new = value.clone()
        new[patch.cell, patch.at] = stream[0][patch.cell, patch.at] + patch.rows.to(value.dtype)
        return new

    name = _name(patch.part, patch.layer, n_layers)
    if patch.part == "attn_to_mlp":
        return [(_name("resid", patch.layer, n_layers), keep), (name, put_sum)]
    return [(name, put)]


def _blocks_from(tl_model: Any, trace: Trace, first: int, sequence: Tensor) -> Tensor:
    """TransformerLens' blocks from ``first`` on, then the final norm of the last position."""
    n_layers = trace.n_layers
    stream = trace.resid[first][sequence]
    if first == n_layers:
        stream = tl_model.blocks[-1].hook_resid_post(stream)
    _, short = blocks_start(tl_model, trace.embeddings[sequence], 0)
    for block in tl_model.blocks[first:]:
        stream = block(stream.to(next(block.parameters()).device), shortformer_pos_embed=short)
    last = stream[:, -1:]
    return (tl_model.ln_final(last) if tl_model.cfg.normalization_type is not None else last)[:, 0]
