"""What a model supports: analyses check it here, and raise a one-sentence error for what its architecture lacks."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from types import MappingProxyType
from typing import Any, Literal, get_args

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
    "head_inputs",
    "pattern_changes",
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
    "residual_stream": "the residual stream before and after every layer",
    "additive_stream": "a residual stream that its layers add to without changing it otherwise",
    "attention": "the output of attention in every layer",
    "attention_patterns": "the attention patterns of every layer",
    "heads": "the outputs of single attention heads",
    "head_inputs": "the queries, keys and values of single attention heads",
    "pattern_changes": "attention patterns that can be replaced",
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
_RECORDED = ("hook_resid_pre", "hook_resid_post", "mlp.hook_pre")
_HEAD_INPUTS = ("attn.hook_q", "attn.hook_k", "attn.hook_v")
_REPLACED = ("hook_attn_out", "hook_mlp_out", "attn.hook_z", "mlp.hook_post", *_HEAD_INPUTS, "attn.hook_pattern")
"""Activations of the first block that are replaced by NaN, each in a different row of the batch; row 0 is unchanged."""
_ROW_ZERO_HEADS = 1 + len(_REPLACED)
"""Row in which the heads of the first block output zero: its attention output must then be equal at all positions."""
_ROW_NAN_ATTENTION = 2 + len(_REPLACED)
"""Row in which the attention output of every block is NaN, except in the input of the MLP's branch: an MLP that
outputs NaN reads the stream in another place too."""
_ROW_SHIFTED = 3 + len(_REPLACED)
"""Row in which the input of every block is shifted far, while attention and MLP write the same as in row 0: the output
must be shifted equally."""
_SHIFT = {torch.float64: (1e5, 1e-3), torch.float32: (1e4, 2e-3)}
"""Shift relative to the stream, and the largest relative error. Anything else that a block adds reads a normed stream,
so it is small compared with the shift."""
_SHIFT_IN_HALF = (1000.0, 0.05)
_MAX_IN_HALF = 2e4
"""Largest shifted value: float16 ends at 65504."""
_DESCRIPTIONS = {
    "hook_attn_out": "attention",
    "attn.hook_z": "outputs of single heads",
    "hook_mlp_out": "MLPs",
    "mlp.hook_post": "neurons that can be seen",
    "attn.hook_q": "queries of single heads",
    "attn.hook_k": "keys of single heads",
    "attn.hook_v": "values of single heads",
    "attn.hook_pattern": "attention patterns",
}
_TOKENS = (4, 5, 6)
"""Tokens of the probe pass: the first number that is not that of the heads, so that axes are not taken for others."""
_EXPERTS = ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts")


@dataclass(frozen=True)
class Capabilities:
    """What a model supports; ``reasons`` says why something is missing, as a clause."""

    architecture: str
    """The model's class in transformers."""
    gradients: bool
    """Gradients of the output with respect to embeddings and activations."""
    residual_stream: bool
    """The residual stream before every layer and after the last can be read and replaced."""
    additive_stream: bool
    """Layers only add to the stream: they do not normalise or scale it."""
    attention: bool
    """Every layer has attention whose output can be read and replaced."""
    attention_patterns: bool
    """The attention pattern of every head in every layer can be read."""
    heads: bool
    """The output of single heads (attn.hook_z) in every layer can be replaced."""
    head_inputs: bool
    """The queries, keys and values of single heads in every layer can be replaced."""
    pattern_changes: bool
    """The attention pattern of every head in every layer can be replaced."""
    head_width: int
    """Width of a head's output; d_head in most architectures."""
    head_weights: bool
    """Every layer has weights W_Q, W_K, W_V and W_O of single heads."""
    input_norms: bool
    """Every layer has a norm before attention."""
    mlp: bool
    """Every layer has an MLP whose output can be read and replaced; a mixture of experts counts as one."""
    mlp_neurons: bool
    """Every MLP has d_mlp neurons between one input and one output matrix."""
    neuron_inputs: bool
    """The pre-activations of the d_mlp neurons can be read."""
    mlp_input: bool
    """The MLP reads the residual stream, so its input can be changed."""
    gated: bool
    """MLPs with a gate."""
    parallel_layers: tuple[bool, ...]
    """For each layer, whether its MLP reads the stream without the output of its attention."""
    experts: bool
    """MLPs that are mixtures of experts."""
    unembedding: bool
    """The logits are the normed final stream times W_U, up to a bias, a factor and a soft cap."""
    cached_generation: bool
    """Keys and values of earlier positions can be reused."""
    positions: Positions
    soft_cap: float
    """Soft cap of the logits; 0 for none."""
    normalization: Literal["LayerNorm", "RMSNorm"]
    devices: tuple[str, ...]
    """Devices of the weights."""
    attention_only: bool = False
    """Layers have attention but no MLP."""
    norms_behind_attention: bool = False
    """The first norm of a layer is applied to the output of attention, and none before it."""
    reasons: Mapping[Capability, str] = field(default_factory=lambda: MappingProxyType({}))

    @property
    def parallel_blocks(self) -> bool:
        """Whether attention and MLP run in parallel in every layer."""
        return all(self.parallel_layers)

    def require(self, name: Capability, caller: str, instead: str = "", *, using: Capability | None = None) -> None:
        """Raise a ValueError if the model lacks a capability.

        Args:
            name: the capability.
            caller: the function that needs it, as the user called it.
            instead: what the user can do if the model has ``using``; otherwise prompt_saliency is named.
            using: the capability that ``instead`` needs, if any.
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
    """How the residual stream reaches the MLP of a block."""

    entry: Entry | None
    """The module that the stream enters: the norm of the MLP, or the MLP itself if it has none; None if attention and
    MLP share a norm."""
    reads_attention: bool
    """Whether this stream includes the output of the same block's attention; not so in parallel blocks."""


@dataclass
class BlockValues:
    """Activations of one block in the probe pass, (batch, positions, d_model) each; None for those it does not have."""

    before: Tensor | None = None
    """Input of the block."""
    attention: Tensor | None = None
    """Output of attention."""
    normed: Tensor | None = None
    """Output of the norm before attention."""
    entered: dict[str, Tensor] = field(default_factory=dict)
    """Inputs of the block's modules, by name."""
    restored: bool = False
    """Whether the input of the MLP's branch was set to that of row 0 in the row `_ROW_NAN_ATTENTION`."""
    moved: Tensor | None = None
    """(positions, d_model) shift of the input in the row `_ROW_SHIFTED`."""
    adds: bool = False
    """Whether the output of the block was shifted equally."""
    elsewhere: bool = False
    """Whether the MLP also reads the stream in another place, as experts next to an MLP do."""

    def branch(self) -> MlpBranch | None:
        """How the stream reaches the MLP, from the first row; None if the MLP reads something else, or the stream in
        several places."""
        if self.before is None or self.attention is None or self.elsewhere:
            return None
        for entry in ENTRIES:
            reads = self._reads(self.entered.get(entry))
            if reads is not None:
                return MlpBranch(entry, reads)
        shared = _agree(self.entered.get("mlp"), self.normed) and _agree(self.entered.get("ln1"), self.before)
        return MlpBranch(None, False) if shared else None

    def _reads(self, value: Tensor | None) -> bool | None:
        """True if a value is the stream with the output of attention, False if without; None if it is neither."""
        if self.before is None or self.attention is None or value is None or value.shape != self.before.shape:
            return None
        before, attention, seen = (part[0].cpu().double() for part in (self.before, self.attention, value))
        after, apart = float((seen - before - attention).norm()), float((seen - before).norm())
        if min(after, apart) > 0.03 * float(seen.norm()):  # tolerance for half precision
            return None
        return _median_share(seen - before, attention) > 0.25

    def shift_input(self, value: Tensor) -> Tensor:
        """The input of the block with the rows `_ROW_NAN_ATTENTION` and `_ROW_SHIFTED` set as described there."""
        factor = _SHIFT.get(value.dtype, _SHIFT_IN_HALF)[0]
        if value.dtype == torch.float16:
            factor = min(factor, _MAX_IN_HALF / max(float(value[0].abs().max()), 1e-3))
        self.moved = factor * value[0].flip(-1)
        return _with_row(_with_row(value, _ROW_NAN_ATTENTION, value[0]), _ROW_SHIFTED, value[0] + self.moved)

    def check_output(self, value: Tensor) -> None:
        """Check whether the output of the block is shifted as much as its input."""
        if self.moved is not None and value.shape[1:] == self.moved.shape:
            before, after, moved = (part.cpu().double() for part in (value[0], value[_ROW_SHIFTED], self.moved))
            limit = _SHIFT.get(value.dtype, _SHIFT_IN_HALF)[1]
            self.adds = float((after - before - moved).norm()) <= limit * float(moved.norm())

    def enter(self, part: str, value: Tensor) -> Tensor:
        """Keep the input of a module; returns it, for the MLP's branch with the row `_ROW_NAN_ATTENTION` restored."""
        self.entered[part] = value
        if part not in ENTRIES or self.restored or len(value) <= _ROW_NAN_ATTENTION or self._reads(value) is None:
            return value
        self.restored = True
        return _with_row(value, _ROW_NAN_ATTENTION, value[0])


def _with_row(value: Tensor, row: int, new: Tensor | float) -> Tensor:
    changed = value.clone()
    changed[row] = new
    return changed


def _agree(value: Tensor | None, other: Tensor | None) -> bool:
    """Whether the first rows of two values agree, up to rounding in half precision."""
    if value is None or other is None or value.shape != other.shape:
        return False
    wanted = other[0].cpu().double()
    return float((value[0].cpu().double() - wanted).norm()) <= 0.03 * float(wanted.norm())


def _depends_on_changes(value: Tensor | None) -> bool:
    """Whether a value differs in the rows in which attention or the MLP of the first block were replaced."""
    return value is not None and not all(_agree(value[row:][:1], value[:1]) for row in range(1, _ROW_ZERO_HEADS))


def _median_share(difference: Tensor, attention: Tensor) -> float:
    """Projection of a difference (positions, d_model) on attention's output, relative to it: the median over positions.

    It is robust against the rounding of a large stream, which may exceed attention's output but has another direction.
    """
    size = (attention**2).sum(-1)
    shares = torch.where(size > 0, (difference * attention).sum(-1) / size, torch.ones_like(size))
    return float(shares.median())


@contextmanager
def _recording(block: Any, values: BlockValues) -> Iterator[None]:
    """Context manager that records the inputs of a block's norms and MLP and the output of its first norm, and replaces
    the inputs by what `BlockValues.enter` returns."""

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
class _Probe:
    """Results of the probe pass: which activations exist, and the effect of replacing those of the first block."""

    shapes: dict[str, tuple[int, ...]] = field(default_factory=dict)
    mlp_out: Tensor | None = None
    """(rows, tokens, d_model) MLP output of the first block, before it was replaced."""
    blocks: list[BlockValues] = field(default_factory=list)
    """Activations of every block; row 0 is an unchanged pass."""
    read: Tensor | None = None
    """(rows, tokens, d_model) output of the final norm; without one, of the last block."""
    logits: Tensor | None = None

    def adds_stream(self) -> bool:
        """Whether the first block's attention output includes the stream: with zeroed heads it then differs between
        positions."""
        attention = self.blocks[0].attention
        if attention is None or len(attention) <= _ROW_ZERO_HEADS:
            return False
        rows = attention[_ROW_ZERO_HEADS].cpu().double()
        if _agree(attention[_ROW_ZERO_HEADS:][:1], attention[:1]):
            return False  # the heads have no effect
        return float((rows - rows[:1]).norm()) > 0.03 * float(rows.norm())


@contextmanager
def _without_user_hooks(tl_model: Any) -> Iterator[None]:
    """Context manager that removes the user's hooks from the model and restores them afterwards."""
    removed: list[tuple[dict[int, Any], dict[int, Any]]] = []
    for module in tl_model.modules():
        for table in (module._forward_hooks, module._forward_pre_hooks):
            own = {key: hook for key, hook in table.items() if not is_part_of_model(hook)}
            removed += [(table, own)] if own else []
            for key in own:
                del table[key]
    try:
        yield
    finally:
        for table, own in removed:  # hooks run in the order of their keys, as they were added
            restored = sorted({**table, **own}.items())
            table.clear()
            table.update(restored)


@torch.no_grad()
def _probe_pass(tl_model: Any) -> _Probe:
    """A pass of a few tokens in which each row of the batch replaces something: rows 1 to 8 an activation of the first
    block by NaN, the others as `_ROW_ZERO_HEADS`, `_ROW_NAN_ATTENTION` and `_ROW_SHIFTED` describe."""
    known, probe, parameter = tl_model.hook_dict, _Probe(), next(tl_model.parameters())
    cfg = tl_model.cfg
    heads = (cfg.n_heads, getattr(cfg, "n_key_value_heads", None))
    tokens = min(next(count for count in _TOKENS if count not in heads), cfg.n_ctx, cfg.d_vocab)
    ids = torch.arange(tokens, device=parameter.device).expand(1 + _ROW_SHIFTED, -1)
    last = f"blocks.{cfg.n_layers - 1}.hook_resid_post"

    def watch(name: str) -> Callable[..., Tensor]:
        short = name.removeprefix("blocks.0.")
        row = 1 + _REPLACED.index(short) if short in _REPLACED else None

        def hook_function(value: Tensor, hook: Any) -> Tensor:
            probe.shapes[name] = tuple(value.shape)
            values = probe.blocks[int(name.split(".")[1])]
            if name.endswith(".hook_resid_pre"):
                values.before = value
            if name == "blocks.0.hook_mlp_out":
                probe.mlp_out = value
            if name == last and not hasattr(tl_model, "ln_final"):
                probe.read = value
            if name.endswith(".hook_attn_out"):
                values.attention = value
            if value.shape[0] != len(ids):
                return value
            if name.endswith(".hook_resid_pre"):
                return values.shift_input(value)
            if name.endswith(".hook_resid_post"):
                values.check_output(value)
            if name.endswith(".hook_mlp_out"):
                values.elsewhere = values.restored and bool(value[_ROW_NAN_ATTENTION].isnan().any())
                value = _with_row(value, _ROW_SHIFTED, value[0])
            if name.endswith(".hook_attn_out"):
                value = _with_row(_with_row(value, _ROW_NAN_ATTENTION, torch.nan), _ROW_SHIFTED, value[0])
            if name == "blocks.0.attn.hook_z":
                value = _with_row(value, _ROW_ZERO_HEADS, 0.0)
            return value if row is None else _with_row(value, row, torch.nan)

        return hook_function

    names = [f"blocks.{layer}.{name}" for layer in range(cfg.n_layers) for name in _RECORDED + _REPLACED]
    hooks = [(name, watch(name)) for name in names if name in known]
    with ExitStack() as stack:
        for block in tl_model.blocks:
            probe.blocks.append(BlockValues())
            stack.enter_context(_recording(block, probe.blocks[-1]))
        if hasattr(tl_model, "ln_final"):
            stack.callback(tl_model.ln_final.register_forward_hook(partial(_keep_final, probe)).remove)
        with attached(tl_model, hooks):
            probe.logits = tl_model(ids)
    return probe


def _keep_final(probe: _Probe, module: Any, inputs: Any, output: Any) -> None:
    probe.read = output if isinstance(output, Tensor) else None


def find_capabilities(
    tl_model: Any, *, caches: bool, normalization: Literal["LayerNorm", "RMSNorm"], d_mlp: int
) -> Capabilities:
    """Find the capabilities of a TransformerLens model from its weights and one pass of a few tokens.

    The user's hooks are off during that pass.
    """
    cfg, layers = tl_model.cfg, range(tl_model.cfg.n_layers)
    original = getattr(tl_model, "original_model", None)
    architecture = str(getattr(cfg, "original_architecture", "") or "this model") if original is None else (
        type(original).__name__)  # fmt: skip
    with _without_user_hooks(tl_model):
        probe, reasons = _probe_pass(tl_model), dict[Capability, str]()
    experts = _has_experts(tl_model)

    def everywhere(name: str, *shape: int | None) -> bool:
        """Whether every layer has this activation, with these axes after batch and tokens (None: any size)."""
        for layer in layers:
            own = probe.shapes.get(f"blocks.{layer}.{name}", ())[2:]
            if len(own) != len(shape) or any(b is not None and a != b for a, b in zip(own, shape, strict=True)):
                return False
        return True

    def reaches(name: str) -> bool:
        """Whether replacing this activation in the first block changes the logits; for queries, keys and values, the
        output of attention, since NaN scores may be read as no attention at all."""
        logits, attention = probe.logits, probe.blocks[0].attention
        if name in _HEAD_INPUTS:
            row = 1 + _REPLACED.index(name)
            return attention is not None and not _agree(attention[row:][:1], attention[:1])
        return logits is not None and bool(logits[1 + _REPLACED.index(name), -1].isnan().any())

    def decide(name: Capability, present: bool, reason: str) -> None:
        if not present:
            reasons[name] = reason

    def shown(name: str, *shape: int | None) -> str:
        """Why an activation is not usable in every layer, as a clause; "" if it is."""
        if everywhere(name, *shape):
            return "" if reaches(name) else "changing them does not change its output"
        some = [layer for layer in layers if f"blocks.{layer}.{name}" in probe.shapes]
        what = _DESCRIPTIONS[name]
        if not some:
            return f"its layers have no {what}"
        if len(some) < len(layers):
            return f"{len(layers) - len(some)} of its {len(layers)} layers have no {what}"
        return f"its {what} have an unusual shape"

    mixed = "its layers show it with the stream added" if probe.adds_stream() else ""
    attention = shown("hook_attn_out", cfg.d_model)
    head_width = (probe.shapes.get("blocks.0.attn.hook_z", ())[3:] or (cfg.d_head,))[0]
    heads = shown("attn.hook_z", cfg.n_heads, head_width)
    stream = everywhere("hook_resid_pre", cfg.d_model) and f"blocks.{cfg.n_layers - 1}.hook_resid_post" in probe.shapes
    mlp = shown("hook_mlp_out", cfg.d_model)
    has_heads = all(_has_weight(tl_model, name, layer) for layer in layers for name in _HEADS)
    neurons = shown("mlp.hook_post", d_mlp)
    if experts or not all(_has_weight(tl_model, "W_out", layer, d_mlp) for layer in layers):
        neurons = "its MLPs are mixtures of experts" if experts else (
            mlp or "its MLPs have no single output matrix of one width")  # fmt: skip
    parallel, reads = _branches(probe)
    decide("residual_stream", stream, "its layers do not show it")
    decide("additive_stream", all(values.adds for values in probe.blocks), "its layers multiply or norm it")
    decide("attention", not (attention or mixed), attention or mixed)
    decide("heads", not (attention or heads), attention or heads)
    patterns = everywhere("attn.hook_pattern", None, None)
    decide("attention_patterns", patterns, attention or "its attention never computes them")
    keys = getattr(cfg, "n_key_value_heads", None) or cfg.n_heads
    inputs_of_heads = next(
        filter(None, (shown(name, cfg.n_heads if name.endswith("q") else keys, None) for name in _HEAD_INPUTS)), ""
    )
    decide("head_inputs", not (attention or inputs_of_heads), attention or inputs_of_heads)
    changes = attention or shown("attn.hook_pattern", None, None)
    decide("pattern_changes", not changes, changes)
    decide("head_weights", has_heads, attention or "its queries, keys and values come from other matrices")
    first = all(_agree(values.entered.get("ln1"), values.before) for values in probe.blocks)
    decide("input_norms", first, "its layers have none there")
    decide("mlp", not mlp, mlp)
    decide("mlp_neurons", not neurons, neurons)
    inputs = neurons or ("" if everywhere("mlp.hook_pre", d_mlp) else "its MLPs compute it together with their gate")
    decide("neuron_inputs", not inputs, inputs)
    elsewhere = any(values.elsewhere for values in probe.blocks)
    decide("mlp_input", reads, mlp or f"its MLPs read {'it in several places' if elsewhere else 'something else'}")
    decide("unembedding", _unembeds(tl_model, probe), "its logits are computed differently")
    # offloaded weights have gradients too: accelerate loads them, and the check at load has compared a gradient
    whole = all(parameter.is_floating_point() for parameter in tl_model.parameters())
    decide("gradients", whole, "its weights are quantised to whole numbers")
    decide("cached_generation", caches, "its self-check found that keys and values cannot be reused")
    has: dict[str, bool] = {name: name not in reasons for name in get_args(Capability)}
    return Capabilities(
        architecture=architecture,
        **has,
        head_width=head_width,
        gated=has["mlp_neurons"] and _has_weight(tl_model, "W_gate", 0),
        parallel_layers=parallel,
        experts=experts,
        positions=_positions(tl_model),
        soft_cap=max(0.0, soft_cap(tl_model)),
        normalization=normalization,
        devices=tuple(sorted({str(parameter.device) for parameter in tl_model.parameters()})),
        attention_only=has["attention"] and not _records(probe, "hook_mlp_out"),
        norms_behind_attention=not first and _depends_on_changes(probe.blocks[0].entered.get("ln1")),
        reasons=MappingProxyType(reasons),
    )


def mlp_entries(tl_model: Any) -> tuple[Entry | None, ...]:
    """For each block, the module through which the residual stream enters the MLP: its norm, or the MLP itself.

    None if the MLP reads something else.
    """
    with _without_user_hooks(tl_model):
        branches = [values.branch() for values in _probe_pass(tl_model).blocks]
    return tuple(None if branch is None else branch.entry for branch in branches)


@torch.no_grad()
def _unembeds(tl_model: Any, probe: _Probe) -> bool:
    """Whether the logits of row 0 correlate with W_U applied to the output of the final norm.

    Also True if that cannot be determined, for example because W_U is quantised or offloaded.
    """
    try:
        matrix, bias = weight(tl_model, "W_U", None), weight(tl_model, "b_U", None)
    except NotImplementedError:
        return True
    except PartReplacedError:
        return False
    if probe.logits is None or probe.read is None or matrix.is_meta or not matrix.is_floating_point():
        return True
    if probe.read.shape[-1] != matrix.shape[0]:
        return False
    product = soft_capped((probe.read[0].to(matrix) @ matrix + bias).float(), soft_cap(tl_model))
    pair = torch.stack([product.flatten(), probe.logits[0].to(product).flatten()]).cpu().double()
    return bool(torch.corrcoef(pair)[0, 1] > 0.99)


def _records(probe: _Probe, name: str) -> bool:
    return any(shown.endswith(name) for shown in probe.shapes)


def _branches(probe: _Probe) -> tuple[tuple[bool, ...], bool]:
    """For each block, whether attention and MLP run in parallel; and whether the MLPs of all blocks read the stream.

    In row 1 of the batch the first attention output was NaN: an MLP that reads it outputs NaN there. If no block shows
    what its MLP reads, all are taken to be like the first.
    """
    branches = [values.branch() for values in probe.blocks]
    if probe.mlp_out is None or probe.blocks[0].attention is None or len(probe.mlp_out) <= 1:
        return (False,) * len(branches), False
    first = not bool(probe.mlp_out[1].isnan().any())
    if all(branch is None for branch in branches):
        return (first,) * len(branches), first
    parallel = tuple(branch is not None and not branch.reads_attention for branch in branches[1:])
    return (first, *parallel), (first or branches[0] is not None) and None not in branches[1:]


def _has_weight(tl_model: Any, name: str, layer: int, first: int | None = None) -> bool:
    """Whether a layer has this weight as a matrix (W_Q to W_O: one per head), with ``first`` rows if given."""
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
