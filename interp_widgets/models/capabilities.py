"""What a model can be asked for: analyses ask here, and refuse in a sentence what its architecture does not have."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from types import MappingProxyType
from typing import Any, Literal

import torch
from torch import Tensor

from .hooks import attached, is_part_of_model
from .soft_cap import soft_cap, soft_capped
from .weights import PartReplacedError, own_weight, weight

Positions = Literal["learned", "rotary", "alibi", "none"]
Capability = Literal[
    "gradients",
    "residual_stream",
    "additive_stream",
    "attention",
    "attention_patterns",
    "heads",
    "head_weights",
    "input_norms",
    "mlp",
    "mlp_neurons",
    "neuron_inputs",
    "mlp_input",
    "unembedding",
    "cached_generation",
]

_NAMES: dict[Capability, str] = {
    "gradients": "gradients",
    "residual_stream": "the residual stream before and behind every layer",
    "additive_stream": "a residual stream that its layers add to without changing it otherwise",
    "attention": "the output of attention in every layer",
    "attention_patterns": "the attention patterns of every layer",
    "heads": "the outputs of single attention heads",
    "head_weights": "the query, key, value and output weights of single attention heads",
    "input_norms": "a norm before attention in every layer",
    "mlp": "the output of an MLP in every layer",
    "mlp_neurons": "single MLP neurons",
    "neuron_inputs": "what enters the activation function of single MLP neurons",
    "mlp_input": "MLPs that read the residual stream",
    "unembedding": "an unembedding that reads the normed residual stream",
    "cached_generation": "generation with a key/value cache",
}
_HEADS = ("W_Q", "W_K", "W_V", "W_O")
_WATCHED = ("hook_resid_pre", "hook_resid_post", "attn.hook_pattern", "mlp.hook_pre")
_CHANGED = ("hook_attn_out", "hook_mlp_out", "attn.hook_z", "mlp.hook_post")
"""Values that are changed in the first block, each in a row of its own; row 0 stays as it is."""
_NO_HEADS = 1 + len(_CHANGED)
"""The row in which the heads of the first block give zero: what attention writes must be the same everywhere."""
_ENTERED = 2 + len(_CHANGED)
"""The row in which attention's output is NaN in every block, but not in what enters the MLP's branch: an MLP that gives
NaN reads the stream elsewhere too."""
_MOVED = 3 + len(_CHANGED)
"""The row in which the stream enters every block far from what it is, and attention and MLP write what they do in row
0: the stream must leave the block as far from it."""
_FAR = {torch.float64: (1e5, 1e-3), torch.float32: (1e4, 2e-3)}
"""By which the stream is moved there, of its size, and the largest error. What else a block adds reads a normed stream,
so that it is small beside that."""
_FAR_IN_HALF = (1000.0, 0.05)
_FARTHEST = 2e4
"""Half precision ends at 65504."""
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
    additive_stream: bool
    """What enters a layer leaves it with what its parts add: no norm of the stream itself, and no factor."""
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
    parallel_layers: tuple[bool, ...]
    """Of every layer, whether its MLP reads the stream that its attention reads, and never its output."""
    experts: bool
    """MLPs that are mixtures of experts."""
    unembedding: bool
    """The logits are the unembedding matrix times the final norm of the stream, a bias, one factor and a soft cap."""
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
    norms_behind_attention: bool = False
    """The first norm of a layer reads what its attention writes; none is before it."""
    reasons: Mapping[Capability, str] = field(default_factory=lambda: MappingProxyType({}))

    @property
    def parallel_blocks(self) -> bool:
        """Whether the MLP runs beside the attention in every layer."""
        return all(self.parallel_layers)

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


Entry = Literal["ln2", "mlp"]
ENTRIES: tuple[Entry, ...] = ("ln2", "mlp")


@dataclass(frozen=True)
class MlpBranch:
    """How the residual stream comes to the MLP of a block."""

    entry: Entry | None
    """The part of a block that the stream enters: the MLP's norm, or the MLP itself where no norm is before it; None
    where it enters the norm before attention, whose output both read."""
    reads_attention: bool
    """Whether it has the output of the same block's attention in it; parallel blocks read the stream before that."""


@dataclass
class BlockValues:
    """What passes one block, (batch, positions, d_model) each; None for what it does not have."""

    before: Tensor | None = None
    """The stream entering the block."""
    attention: Tensor | None = None
    """What attention writes."""
    normed: Tensor | None = None
    """The output of the norm before attention."""
    entered: dict[str, Tensor] = field(default_factory=dict)
    """What entered the block's parts, by name."""
    restored: bool = False
    """Whether what entered the MLP's branch was the clean stream in the row `_ENTERED`."""
    moved: Tensor | None = None
    """(positions, d_model) by which the stream was moved in the row `_MOVED`."""
    adds: bool = False
    """Whether it left the block as far from where it was."""
    elsewhere: bool = False
    """Whether the MLP reads the stream in another place too, as experts beside an MLP do."""

    def branch(self) -> MlpBranch | None:
        """How the stream comes to the MLP, seen in the first sequence; None where the MLP reads something else, or the
        stream in several places."""
        if self.before is None or self.attention is None or self.elsewhere:
            return None
        for entry in ENTRIES:
            reads = self._reads(self.entered.get(entry))
            if reads is not None:
                return MlpBranch(entry, reads)
        shared = _same(self.entered.get("mlp"), self.normed) and _same(self.entered.get("ln1"), self.before)
        return MlpBranch(None, False) if shared else None

    def _reads(self, value: Tensor | None) -> bool | None:
        """Whether a value is the stream with the attention's output in it, or without; None where it is neither."""
        if self.before is None or self.attention is None or value is None or value.shape != self.before.shape:
            return None
        before, attention, seen = (part[0].cpu().double() for part in (self.before, self.attention, value))
        after, apart = float((seen - before - attention).norm()), float((seen - before).norm())
        if min(after, apart) > 0.03 * float(seen.norm()):  # rounding in half precision
            return None
        return _share(seen - before, attention) > 0.25

    def enter_far(self, value: Tensor) -> Tensor:
        """What enters the block, with the rows `_ENTERED` and `_MOVED` as they say."""
        factor = _FAR.get(value.dtype, _FAR_IN_HALF)[0]
        if value.dtype == torch.float16:
            factor = min(factor, _FARTHEST / max(float(value[0].abs().max()), 1e-3))
        self.moved = factor * value[0].flip(-1)
        return _with_row(_with_row(value, _ENTERED, value[0]), _MOVED, value[0] + self.moved)

    def leave(self, value: Tensor) -> None:
        """Look at what leaves the block."""
        if self.moved is not None and value.shape[1:] == self.moved.shape:
            before, after, moved = (part.cpu().double() for part in (value[0], value[_MOVED], self.moved))
            limit = _FAR.get(value.dtype, _FAR_IN_HALF)[1]
            self.adds = float((after - before - moved).norm()) <= limit * float(moved.norm())

    def enter(self, part: str, value: Tensor) -> Tensor:
        """Keep what enters a part; of the MLP's branch give it back with the row `_ENTERED` as it is without change."""
        self.entered[part] = value
        if part not in ENTRIES or self.restored or len(value) <= _ENTERED or self._reads(value) is None:
            return value
        self.restored = True
        return _with_row(value, _ENTERED, value[0])


def _with_row(value: Tensor, row: int, new: Tensor | float) -> Tensor:
    changed = value.clone()
    changed[row] = new
    return changed


def _same(value: Tensor | None, other: Tensor | None) -> bool:
    """Whether the first sequences of two values agree, but for rounding in half precision."""
    if value is None or other is None or value.shape != other.shape:
        return False
    wanted = other[0].cpu().double()
    return float((value[0].cpu().double() - wanted).norm()) <= 0.03 * float(wanted.norm())


def _depends_on_changes(value: Tensor | None) -> bool:
    """Whether a value is another one in the rows in which attention or the MLP of the first block were changed."""
    return value is not None and not all(_same(value[row:][:1], value[:1]) for row in range(1, _NO_HEADS))


def _share(difference: Tensor, attention: Tensor) -> float:
    """How much of a value (positions, d_model) is in a difference, 1 where it is all zero: the median of positions.

    Rounding of a large stream, which may be more than the value itself, does not point in its direction.
    """
    size = (attention**2).sum(-1)
    shares = torch.where(size > 0, (difference * attention).sum(-1) / size, torch.ones_like(size))
    return float(shares.median())


@contextmanager
def _watching(block: Any, values: BlockValues) -> Iterator[None]:
    """Inside, the values that enter a block's norms and MLP, and what leaves its first norm, are kept; the MLP's branch
    gets what `BlockValues.enter` gives."""

    def entering(part: str) -> Callable[..., Any]:
        def keep(module: Any, inputs: tuple[Any, ...]) -> tuple[Any, ...] | None:
            if not inputs or not isinstance(inputs[0], Tensor):
                return None
            value = values.enter(part, inputs[0])
            return None if value is inputs[0] else (value, *inputs[1:])

        return keep

    def leaving(module: Any, inputs: Any, output: Any) -> None:
        values.normed = output if isinstance(output, Tensor) else None

    with ExitStack() as stack:
        for part in ("ln1", *ENTRIES):
            module = getattr(block, part, None)
            if isinstance(module, torch.nn.Module):
                stack.callback(module.register_forward_pre_hook(entering(part)).remove)
                if part == "ln1":
                    stack.callback(module.register_forward_hook(leaving).remove)
        yield


@dataclass
class _Seen:
    """What one pass showed: which values exist, and what a change in the first block does."""

    shapes: dict[str, tuple[int, ...]] = field(default_factory=dict)
    mlp_out: Tensor | None = None
    """(rows, tokens, d_model) of the first block, before it was changed itself."""
    blocks: list[BlockValues] = field(default_factory=list)
    """What passes every block; row 0 is that of an unchanged pass."""
    read: Tensor | None = None
    """(rows, tokens, d_model) what the final norm gives; without one, the stream behind the last block."""
    logits: Tensor | None = None

    def adds_stream(self) -> bool:
        """Whether what the first block shows as attention's output has the stream in it: without heads it differs from
        position to position."""
        attention = self.blocks[0].attention
        if attention is None or len(attention) <= _NO_HEADS or _same(attention[_NO_HEADS:][:1], attention[:1]):
            return False  # nothing is known, or the heads change nothing
        rows = attention[_NO_HEADS].cpu().double()
        return float((rows - rows[:1]).norm()) > 0.03 * float(rows.norm())


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
    """One pass of a few tokens, in which each row of the batch has one value of the first block replaced by NaN, or is
    what `_NO_HEADS`, `_ENTERED` and `_MOVED` say."""
    known, seen, parameter = tl_model.hook_dict, _Seen(), next(tl_model.parameters())
    cfg = tl_model.cfg
    tokens = min(_TOKENS, cfg.n_ctx, cfg.d_vocab)
    ids = torch.arange(tokens, device=parameter.device).expand(1 + _MOVED, -1)
    last = f"blocks.{cfg.n_layers - 1}.hook_resid_post"

    def watch(name: str) -> Callable[..., Tensor]:
        row = 1 + _CHANGED.index(name.removeprefix("blocks.0.")) if name.removeprefix("blocks.0.") in _CHANGED else None

        def hook_function(value: Tensor, hook: Any) -> Tensor:
            seen.shapes[name] = tuple(value.shape)
            values = seen.blocks[int(name.split(".")[1])]
            if name.endswith(".hook_resid_pre"):
                values.before = value
            if name == "blocks.0.hook_mlp_out":
                seen.mlp_out = value
            if name == last and not hasattr(tl_model, "ln_final"):
                seen.read = value
            if name.endswith(".hook_attn_out"):
                values.attention = value
            if value.shape[0] != len(ids):
                return value
            if name.endswith(".hook_resid_pre"):
                return values.enter_far(value)
            if name.endswith(".hook_resid_post"):
                values.leave(value)
            if name.endswith(".hook_mlp_out"):
                values.elsewhere = values.restored and bool(value[_ENTERED].isnan().any())
                value = _with_row(value, _MOVED, value[0])
            if name.endswith(".hook_attn_out"):
                value = _with_row(_with_row(value, _ENTERED, torch.nan), _MOVED, value[0])
            if name == "blocks.0.attn.hook_z":
                value = _with_row(value, _NO_HEADS, 0.0)
            return value if row is None else _with_row(value, row, torch.nan)

        return hook_function

    names = [f"blocks.{layer}.{name}" for layer in range(cfg.n_layers) for name in _WATCHED + _CHANGED]
    hooks = [(name, watch(name)) for name in names if name in known]
    with ExitStack() as stack:
        for block in tl_model.blocks:
            seen.blocks.append(BlockValues())
            stack.enter_context(_watching(block, seen.blocks[-1]))
        if hasattr(tl_model, "ln_final"):
            stack.callback(tl_model.ln_final.register_forward_hook(partial(_final, seen)).remove)
        with attached(tl_model, hooks):
            seen.logits = tl_model(ids)
    return seen


def _final(seen: _Seen, module: Any, inputs: Any, output: Any) -> None:
    seen.read = output if isinstance(output, Tensor) else None


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

    mixed = "its layers show it with the stream added" if seen.adds_stream() else ""
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
    parallel, reads = _branches(seen)
    decide("residual_stream", stream, "its layers do not show it")
    decide("additive_stream", all(values.adds for values in seen.blocks), "its layers multiply or norm it")
    decide("attention", not (attention or mixed), attention or mixed)
    decide("heads", not (attention or heads), attention or heads)
    patterns = everywhere("attn.hook_pattern", None, None)
    decide("attention_patterns", patterns, attention or "its attention never computes them")
    decide("head_weights", has_heads, attention or "its queries, keys and values come from other matrices")
    first = all(_same(values.entered.get("ln1"), values.before) for values in seen.blocks)
    decide("input_norms", first, "its layers have none there")
    decide("mlp", not mlp, mlp)
    decide("mlp_neurons", not neurons, neurons)
    inputs = neurons or ("" if everywhere("mlp.hook_pre", d_mlp) else "its MLPs compute it together with their gate")
    decide("neuron_inputs", not inputs, inputs)
    elsewhere = any(values.elsewhere for values in seen.blocks)
    decide("mlp_input", reads, mlp or f"its MLPs read {'it in several places' if elsewhere else 'something else'}")
    decide("unembedding", _unembeds(tl_model, seen), "its logits are more than that")
    # offloaded weights have them too: accelerate brings them in, and the check at load has compared a gradient
    whole = all(parameter.is_floating_point() for parameter in tl_model.parameters())
    decide("gradients", whole, "its weights are quantised to whole numbers")
    decide("cached_generation", caches, "its self-check found that keys and values cannot be reused")
    return Capabilities(
        architecture=architecture,
        gradients="gradients" not in reasons,
        residual_stream="residual_stream" not in reasons,
        additive_stream="additive_stream" not in reasons,
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
        parallel_layers=parallel,
        experts=experts,
        unembedding="unembedding" not in reasons,
        cached_generation=caches,
        positions=_positions(tl_model),
        soft_cap=max(0.0, soft_cap(tl_model)),
        normalization=normalization,
        devices=tuple(sorted({str(parameter.device) for parameter in tl_model.parameters()})),
        attention_only="attention" not in reasons and not _shows(seen, "hook_mlp_out"),
        norms_behind_attention=not first and _depends_on_changes(seen.blocks[0].entered.get("ln1")),
        reasons=MappingProxyType(reasons),
    )


def mlp_entries(tl_model: Any) -> tuple[Entry | None, ...]:
    """Of every block, the module that the residual stream enters on its way to the MLP: its norm, or the MLP itself.

    None where the MLP reads something else.
    """
    with _hooks_off(tl_model):
        branches = [values.branch() for values in _look(tl_model).blocks]
    return tuple(None if branch is None else branch.entry for branch in branches)


@torch.no_grad()
def _unembeds(tl_model: Any, seen: _Seen) -> bool:
    """Whether the logits of the row that nothing was changed in go with the unembedding of what the final norm gives.

    True also where that is not to be seen, or the matrix cannot be read because it is quantised or lies elsewhere.
    """
    try:
        matrix, bias = weight(tl_model, "W_U", None), weight(tl_model, "b_U", None)
    except NotImplementedError:
        return True
    except PartReplacedError:
        return False
    if seen.logits is None or seen.read is None or matrix.is_meta or not matrix.is_floating_point():
        return True
    if seen.read.shape[-1] != matrix.shape[0]:
        return False
    product = soft_capped((seen.read[0].to(matrix) @ matrix + bias).float(), soft_cap(tl_model))
    pair = torch.stack([product.flatten(), seen.logits[0].to(product).flatten()]).cpu().double()
    return bool(torch.corrcoef(pair)[0, 1] > 0.99)


def _shows(seen: _Seen, name: str) -> bool:
    return any(shown.endswith(name) for shown in seen.shapes)


def _branches(seen: _Seen) -> tuple[tuple[bool, ...], bool]:
    """Of every block, whether its MLP runs beside its attention; and whether it is known of all what their MLPs read.

    Row 1 of the batch had the first attention's output replaced by NaN: an MLP that reads it gives NaN there. A block
    in which nothing is to be seen is taken to be like the first, where nothing is to be seen there either.
    """
    branches = [values.branch() for values in seen.blocks]
    if seen.mlp_out is None or seen.blocks[0].attention is None or len(seen.mlp_out) <= 1:
        return (False,) * len(branches), False
    first = not bool(seen.mlp_out[1].isnan().any())
    if all(branch is None for branch in branches):
        return (first,) * len(branches), first
    parallel = tuple(branch is not None and not branch.reads_attention for branch in branches[1:])
    return (first, *parallel), (first or branches[0] is not None) and None not in branches[1:]


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
