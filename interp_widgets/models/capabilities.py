"""What a model can be asked for: analyses ask here, and refuse in a sentence what its architecture does not have."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Literal

import torch
from torch import Tensor

from .hooks import attached, is_part_of_model
from .soft_cap import soft_cap
from .weights import own_weight

Positions = Literal["learned", "rotary", "alibi", "none"]
Capability = Literal[
    "gradients",
    "residual_stream",
    "attention",
    "attention_patterns",
    "heads",
    "head_weights",
    "input_norms",
    "mlp",
    "mlp_neurons",
    "neuron_inputs",
    "mlp_input",
    "cached_generation",
]

_NAMES: dict[Capability, str] = {
    "gradients": "gradients",
    "residual_stream": "the residual stream before and behind every layer",
    "attention": "the output of attention in every layer",
    "attention_patterns": "the attention patterns of every layer",
    "heads": "the outputs of single attention heads",
    "head_weights": "the query, key, value and output weights of single attention heads",
    "input_norms": "a norm before attention in every layer",
    "mlp": "the output of an MLP in every layer",
    "mlp_neurons": "single MLP neurons",
    "neuron_inputs": "what enters the activation function of single MLP neurons",
    "mlp_input": "MLPs that read the residual stream",
    "cached_generation": "generation with a key/value cache",
}
_HEADS = ("W_Q", "W_K", "W_V", "W_O")
_WATCHED = ("hook_resid_pre", "hook_resid_post", "attn.hook_pattern", "mlp.hook_pre")
_CHANGED = ("hook_attn_out", "hook_mlp_out", "attn.hook_z", "mlp.hook_post")
"""Values that are changed in the first block, each in a row of its own; row 0 stays as it is."""
_SHOWN = {
    "hook_attn_out": "attention",
    "attn.hook_z": "outputs of single heads",
    "hook_mlp_out": "MLPs",
    "mlp.hook_post": "neurons that can be seen",
}
_TOKENS = 4
_EXPERTS = ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts")


@dataclass(frozen=True)
class Capabilities:
    """What a model has; ``reasons`` says in a clause why something is absent."""

    architecture: str
    """The model's class in transformers."""
    gradients: bool
    """Gradients of the output with respect to embeddings and activations."""
    residual_stream: bool
    """The residual stream before every layer and behind the last, which can be read and replaced."""
    attention: bool
    """Attention in every layer, whose output can be read and replaced."""
    attention_patterns: bool
    """What each head's queries give to each key, in every layer."""
    heads: bool
    """The output of single heads (attn.hook_z) in every layer, which can be replaced."""
    head_width: int
    """Numbers in one head's output; d_head in most architectures."""
    head_weights: bool
    """Query, key, value and output weights (W_Q, W_K, W_V, W_O) of single heads in every layer."""
    input_norms: bool
    """A norm that attention's input passes first, in every layer."""
    mlp: bool
    """An MLP in every layer, whose output can be read and replaced; a mixture of experts counts as one."""
    mlp_neurons: bool
    """One axis of d_mlp neurons in every layer, between one input and one output matrix."""
    neuron_inputs: bool
    """What enters the activation function of each neuron, on one axis of d_mlp."""
    mlp_input: bool
    """The MLP reads the residual stream, so that what it reads can be changed."""
    gated: bool
    """MLPs with a gate."""
    parallel_blocks: bool
    """The MLP reads the stream that the attention of the same layer reads, and never its output."""
    experts: bool
    """MLPs that are mixtures of experts."""
    cached_generation: bool
    """Keys and values of earlier positions can be reused."""
    positions: Positions
    soft_cap: float
    """Cap on the logits; 0 for none."""
    normalization: Literal["LayerNorm", "RMSNorm"]
    devices: tuple[str, ...]
    """Where the weights are."""
    attention_only: bool = False
    """Layers of attention without any MLP."""
    reasons: Mapping[Capability, str] = field(default_factory=lambda: MappingProxyType({}))

    def require(self, name: Capability, caller: str, instead: str = "", *, using: Capability | None = None) -> None:
        """Raise a ValueError if the model lacks something, unless it has it.

        Args:
            name: what is needed.
            caller: who needs it, as the user called it.
            instead: what to do, where the model has ``using``; else the analyses of any residual stream are named.
            using: what ``instead`` needs; nothing by default.
        """
        if getattr(self, name):
            return
        possible = instead and (using is None or getattr(self, using))
        raise ValueError(
            f"{caller} needs {_NAMES[name]}, which {self.architecture} does not have: {self.reasons[name]}; "
            + (instead if possible else "prompt_saliency works on every model that loads")
        )


@dataclass
class _Seen:
    """What one pass showed: which values exist, and what a change in the first block does."""

    shapes: dict[str, tuple[int, ...]] = field(default_factory=dict)
    mlp_out: Tensor | None = None
    """(rows, tokens, d_model) of the first block, before it was changed itself."""
    before: Tensor | None = None
    """(rows, tokens, d_model) the stream entering the first block."""
    attention: Tensor | None = None
    entered: dict[str, Tensor] = field(default_factory=dict)
    """What entered the first block's modules ``ln1``, ``ln2`` and ``mlp``."""
    logits: Tensor | None = None


@contextmanager
def _hooks_off(tl_model: Any) -> Iterator[None]:
    """Inside, only hooks that are part of how the model works are on it."""
    taken: list[tuple[dict[int, Any], dict[int, Any]]] = []
    for module in tl_model.modules():
        for table in (module._forward_hooks, module._forward_pre_hooks):
            own = {key: hook for key, hook in table.items() if not is_part_of_model(hook)}
            taken += [(table, own)] if own else []
            for key in own:
                del table[key]
    try:
        yield
    finally:
        for table, own in taken:  # hooks run in the order of their numbers, as they were put on
            together = sorted({**table, **own}.items())
            table.clear()
            table.update(together)


@torch.no_grad()
def _look(tl_model: Any) -> _Seen:
    """One pass of a few tokens, in which each row of the batch has one value of the first block replaced by NaN."""
    known, seen, parameter = tl_model.hook_dict, _Seen(), next(tl_model.parameters())
    cfg = tl_model.cfg
    tokens = min(_TOKENS, cfg.n_ctx, cfg.d_vocab)
    ids = torch.arange(tokens, device=parameter.device).expand(1 + len(_CHANGED), -1)

    def watch(name: str) -> Callable[..., Tensor]:
        row = 1 + _CHANGED.index(name.removeprefix("blocks.0.")) if name.removeprefix("blocks.0.") in _CHANGED else None

        def hook_function(value: Tensor, hook: Any) -> Tensor:
            seen.shapes[name] = tuple(value.shape)
            if name == "blocks.0.hook_resid_pre":
                seen.before = value
            if name == "blocks.0.hook_mlp_out":
                seen.mlp_out = value
            if name == "blocks.0.hook_attn_out":
                seen.attention = value
            if row is None or value.shape[0] != len(ids):
                return value
            changed = value.clone()
            changed[row] = torch.nan
            return changed

        return hook_function

    names = [f"blocks.{layer}.{name}" for layer in range(cfg.n_layers) for name in _WATCHED + _CHANGED]
    hooks = [(name, watch(name)) for name in names if name in known]
    handles = []
    try:
        for entry in ("ln1", "ln2", "mlp"):
            module = getattr(tl_model.blocks[0], entry, None)
            if isinstance(module, torch.nn.Module):
                handles.append(module.register_forward_pre_hook(_entering(entry, seen)))
        with attached(tl_model, hooks):
            seen.logits = tl_model(ids)
    finally:
        for handle in handles:
            handle.remove()
    return seen


def _entering(entry: str, seen: _Seen) -> Callable[..., None]:
    def keep(module: Any, inputs: tuple[Any, ...]) -> None:
        if inputs and isinstance(inputs[0], Tensor):
            seen.entered[entry] = inputs[0]

    return keep


def find_capabilities(
    tl_model: Any, *, caches: bool, normalization: Literal["LayerNorm", "RMSNorm"], d_mlp: int
) -> Capabilities:
    """The capabilities of a TransformerLens model, seen in its weights and in one pass of a few tokens.

    Hooks of the user neither see that pass nor change it.
    """
    cfg, layers = tl_model.cfg, range(tl_model.cfg.n_layers)
    original = getattr(tl_model, "original_model", None)
    architecture = str(getattr(cfg, "original_architecture", "") or "this model") if original is None else (
        type(original).__name__)  # fmt: skip
    with _hooks_off(tl_model):
        seen, reasons = _look(tl_model), dict[Capability, str]()
    experts = _has_experts(tl_model)

    def everywhere(name: str, *shape: int | None) -> bool:
        """Whether every layer shows this value, with these axes behind batch and tokens (None: of any size)."""
        for layer in layers:
            own = seen.shapes.get(f"blocks.{layer}.{name}", ())[2:]
            if len(own) != len(shape) or any(b is not None and a != b for a, b in zip(own, shape, strict=True)):
                return False
        return True

    def reaches(name: str) -> bool:
        """Whether a change of this value in the first block reaches the output."""
        logits = seen.logits
        return logits is not None and bool(logits[1 + _CHANGED.index(name), -1].isnan().any())

    def decide(name: Capability, there: bool, reason: str) -> bool:
        if not there:
            reasons[name] = reason
        return there

    def shown(name: str, *shape: int | None) -> str:
        """Why a value that should be in every layer is not usable; "" where it is."""
        if everywhere(name, *shape):
            return "" if reaches(name) else "a change of them does not reach its output"
        some = [layer for layer in layers if f"blocks.{layer}.{name}" in seen.shapes]
        what = _SHOWN[name]
        if not some:
            return f"its layers have no {what}"
        if len(some) < len(layers):
            return f"{len(layers) - len(some)} of its {len(layers)} layers have no {what}"
        return f"its {what} are of an unusual kind"

    attention = shown("hook_attn_out", cfg.d_model)
    head_width = (seen.shapes.get("blocks.0.attn.hook_z", ())[3:] or (cfg.d_head,))[0]
    heads = shown("attn.hook_z", cfg.n_heads, head_width)
    stream = everywhere("hook_resid_pre", cfg.d_model) and f"blocks.{cfg.n_layers - 1}.hook_resid_post" in seen.shapes
    mlp = shown("hook_mlp_out", cfg.d_model)
    has_heads = all(_has_weight(tl_model, name, layer) for layer in layers for name in _HEADS)
    neurons = shown("mlp.hook_post", d_mlp)
    if experts or not all(_has_weight(tl_model, "W_out", layer, d_mlp) for layer in layers):
        neurons = "its MLPs are mixtures of experts" if experts else (
            mlp or "its MLPs have no single output matrix of one width")  # fmt: skip
    entry, parallel = _branch(seen)
    decide("residual_stream", stream, "its layers do not show it")
    decide("attention", not attention, attention)
    decide("heads", not (attention or heads), attention or heads)
    patterns = everywhere("attn.hook_pattern", None, None)
    decide("attention_patterns", patterns, attention or "its attention never computes them")
    decide("head_weights", has_heads, attention or "its queries, keys and values come from other matrices")
    norms = all(f"blocks.{layer}.ln1.hook_scale" in tl_model.hook_dict for layer in layers)
    first = _same(seen.entered.get("ln1"), seen.before)
    decide("input_norms", norms and first, "its layers have none there")
    decide("mlp", not mlp, mlp)
    decide("mlp_neurons", not neurons, neurons)
    inputs = neurons or ("" if everywhere("mlp.hook_pre", d_mlp) else "its MLPs compute it together with their gate")
    decide("neuron_inputs", not inputs, inputs)
    decide("mlp_input", parallel or entry is not None, mlp or "its MLPs read something else")
    # offloaded weights have them too: accelerate brings them in, and the check at load has compared a gradient
    whole = all(parameter.is_floating_point() for parameter in tl_model.parameters())
    decide("gradients", whole, "its weights are quantised to whole numbers")
    decide("cached_generation", caches, "its self-check found that keys and values cannot be reused")
    return Capabilities(
        architecture=architecture,
        gradients="gradients" not in reasons,
        residual_stream="residual_stream" not in reasons,
        attention="attention" not in reasons,
        attention_patterns="attention_patterns" not in reasons,
        heads="heads" not in reasons,
        head_width=head_width,
        head_weights="head_weights" not in reasons,
        input_norms="input_norms" not in reasons,
        mlp="mlp" not in reasons,
        mlp_neurons="mlp_neurons" not in reasons,
        neuron_inputs="neuron_inputs" not in reasons,
        mlp_input="mlp_input" not in reasons,
        gated="mlp_neurons" not in reasons and _has_weight(tl_model, "W_gate", 0),
        parallel_blocks=parallel,
        experts=experts,
        cached_generation=caches,
        positions=_positions(tl_model),
        soft_cap=max(0.0, soft_cap(tl_model)),
        normalization=normalization,
        devices=tuple(sorted({str(parameter.device) for parameter in tl_model.parameters()})),
        attention_only="attention" not in reasons and not _shows(seen, "hook_mlp_out"),
        reasons=MappingProxyType(reasons),
    )


def mlp_entry(tl_model: Any) -> Literal["ln2", "mlp"]:
    """The module of a block that the residual stream enters on its way to the MLP: its norm, or the MLP itself.

    Raises ValueError for an architecture whose MLPs read something else.
    """
    with _hooks_off(tl_model):
        entry, _ = _branch(_look(tl_model))
    if entry is None:
        raise ValueError(
            "the MLPs of this model do not read the residual stream directly, so that what they read cannot be replaced"
        )
    return entry


def _shows(seen: _Seen, name: str) -> bool:
    return any(shown.endswith(name) for shown in seen.shapes)


def _branch(seen: _Seen) -> tuple[Literal["ln2", "mlp"] | None, bool]:
    """Where the stream enters the MLP's branch, and whether the MLP runs beside the attention.

    Row 1 of the batch had its attention output replaced by NaN: an MLP that reads it gives NaN there.
    """
    if seen.mlp_out is None or seen.attention is None or seen.before is None or len(seen.mlp_out) <= 1:
        return None, False
    parallel = not bool(seen.mlp_out[1].isnan().any())
    wanted = seen.before if parallel else seen.before + seen.attention
    entries: tuple[Literal["ln2", "mlp"], ...] = ("ln2", "mlp")
    return next((entry for entry in entries if _same(seen.entered.get(entry), wanted)), None), parallel


def _same(value: Tensor | None, other: Tensor | None) -> bool:
    """Whether two values agree in the row that nothing was changed in, but for rounding in half precision."""
    if value is None or other is None or value.shape != other.shape:
        return False
    wanted = other[0].cpu().double()
    return float((value[0].cpu().double() - wanted).norm()) <= 0.03 * float(wanted.norm())


def _has_weight(tl_model: Any, name: str, layer: int, first: int | None = None) -> bool:
    """Whether a layer has this weight, one matrix per head or one in all, with ``first`` rows if that is given."""
    value = own_weight(tl_model, name, layer)
    if value is None or value.ndim != (3 if name in _HEADS else 2):
        return False
    return first is None or value.shape[0] == first


def _has_experts(tl_model: Any) -> bool:
    original = getattr(tl_model, "original_model", None)
    configs = [tl_model.cfg] if original is None else [tl_model.cfg, original.config.get_text_config()]
    return any((getattr(config, name, None) or 0) > 1 for config in configs for name in _EXPERTS)


def _positions(tl_model: Any) -> Positions:
    kind = str(tl_model.cfg.positional_embedding_type)
    if kind in ("rotary", "alibi"):
        return "rotary" if kind == "rotary" else "alibi"
    return "learned" if hasattr(tl_model, "pos_embed") else "none"
