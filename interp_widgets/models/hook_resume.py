"""`resume` through a model's own modules, with hooks that put the patches in: for every model that has the hooks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

from torch import Tensor

from .hooks import attached, check_hook_names
from .interventions import has_mlps, mlp_branch
from .mixture_of_depths.graft import mixture_of
from .ways import blocks_start

if TYPE_CHECKING:
    from .resume import Patch, Trace

_NAMES = {
    "resid": "hook_resid_pre",
    "attn": "hook_attn_out",
    "mlp": "hook_mlp_out",
    "head": "attn.hook_z",
    "neuron": "mlp.hook_post",
}


def _name(part: str, layer: int, n_layers: int) -> str:
    if part == "resid" and layer == n_layers:
        return f"blocks.{n_layers - 1}.hook_resid_post"
    return f"blocks.{layer}.{_NAMES[part]}"


def trace(model: Any, embeddings: Tensor, neurons: tuple[int, ...], hooked: bool) -> Trace:
    """See `resume.trace`."""
    from .forward import last_hidden
    from .resume import Trace

    tl_model, layers = model.tl_model, range(model.n_layers)
    has_mlp = has_mlps(model)
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

    with attached(tl_model, [(name, keeping(name)) for name in names.values()]):
        hidden = last_hidden(model, embeddings, hooked=hooked)
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
        neuron={layer: kept[names["neuron", layer]] for layer in neurons},
    )


def run(model: Any, trace: Trace, patches: Sequence[Patch], sequence: Tensor, check: Callable[[], None]) -> Tensor:
    """(cells, width) what `forward.decode` takes, from the first patched layer on where the model can start there."""
    from .forward import last_hidden

    tl_model = model.tl_model
    # a mixture reads streams in front of the first patched layer too
    whole = trace.hooked or trace.backend == "bridge" or mixture_of(tl_model) is not None
    first = 0 if whole else min(patch.layer for patch in patches)

    def checking(value: Tensor, hook: Any) -> Tensor:
        check()
        return value

    hooks: list[tuple[str, Callable[..., Tensor]]] = []
    hooks += [(_name("resid", layer, trace.n_layers), checking) for layer in range(first, trace.n_layers)]
    with ExitStack() as stack:
        for patch in sorted(patches, key=lambda one: one.part == "attn_to_mlp"):  # these read what others put
            if patch.part == "attn_to_mlp":
                hooks.append(_between(model, patch, stack))
            else:
                hooks.append((_name(patch.part, patch.layer, trace.n_layers), _putting(patch)))
        check_hook_names(tl_model, [name for name, _ in hooks])
        stack.enter_context(attached(tl_model, hooks))
        if whole:
            return last_hidden(model, trace.embeddings[sequence], hooked=trace.hooked)
        return _blocks_from(tl_model, trace, first, sequence)


def _putting(patch: Patch) -> Callable[..., Tensor]:
    def put(value: Tensor, hook: Any) -> Tensor:
        new = value.clone()
        patch.put(new[..., None] if patch.part == "neuron" else new, patch.cell, patch.at)
        return new

    return put


def _between(model: Any, patch: Patch, stack: ExitStack) -> tuple[str, Callable[..., Tensor]]:
    """The MLP reads the stream as it entered the block plus the rows. The hook that holds the stream; what the MLP's
    branch reads has no hook that every model runs, so that its first module's input is replaced."""
    held: list[Tensor] = []

    def hold(value: Tensor, hook: Any) -> Tensor:
        held[:] = [value]
        return value

    def enter(module: Any, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        new, place = inputs[0].clone(), (patch.cell, patch.at)
        new[place] = held.pop()[place] + patch.rows.to(new.dtype)
        return (new, *inputs[1:])

    entry = getattr(model.tl_model.blocks[patch.layer], mlp_branch(model).entry)
    stack.callback(entry.register_forward_pre_hook(enter).remove)
    return f"blocks.{patch.layer}.hook_resid_pre", hold


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
