"""`ablation`: a context manager that removes parts of a model, also during generation."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from functools import partial
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from interp_widgets.analysis._core.arrays import Floats
from interp_widgets.analysis._core.checks import check_choice, check_range, whole_number
from interp_widgets.analysis._core.prompts import read_prompt
from interp_widgets.analysis._core.result import Record, record
from interp_widgets.analysis._core.run import RunOptions
from interp_widgets.analysis._core.tensors import to_numpy, wide
from interp_widgets.arguments import checked
from interp_widgets.models import Model
from interp_widgets.models.capabilities import Capability
from interp_widgets.models.chat import PromptInput, is_chat
from interp_widgets.models.patching import PassPatch, Site, patched_passes, site_hook

Part = Literal["attn", "mlp", "both", "attn_to_mlp", "head", "neuron"]
"""What is removed: a layer's attention output, its MLP output, both (the whole block), the attention output from the
MLP's input only (it still goes to the residual stream), one attention head, or one MLP neuron."""

ReplacementKind = Literal["zero", "mean", "resample", "value"]
"""The replacement value: zero, a mean, another prompt's value, or any other."""


@checked
@record
class Ablation(Record):
    """One part of a model at one layer, the positions, and the replacement value. `ablation` checks it against a model.

    Example:
        >>> Ablation("mlp", 4)
        Ablation(kind='mlp', layer=4, position=None, index=None, replacement='zero', value=None)
        >>> Ablation("head", 2, position=[3, 5], index=7).position
        (3, 5)
    """

    kind: Part
    """Which part, a :data:`Part`."""

    layer: int
    """Layer, from 0."""

    position: int | Sequence[int] | None = None
    """One position or several, counted from 0 without a BOS; None for every position, including tokens still to be
    generated, and a BOS, which keeps its value if the replacement is ``"mean"``, since it attends only to itself.
    Negative ones are refused, since the end moves during generation."""

    index: int | None = None
    """Which head or neuron, from 0; None for the other kinds."""

    replacement: str | None = None
    """The kind of the replacement value, a :data:`ReplacementKind`; if left out, ``"zero"`` without a value and
    ``"value"`` with one."""

    value: Any = None
    """The replacement value, for all but ``"zero"``: numbers (d_model,), for a head (d_head,), for a neuron one number;
    or one such row per position. Stored as a NumPy array. `mean_ablation` and `resample_ablation` compute it."""

    def __post_init__(self) -> None:
        check_choice("kind", self.kind, Part)
        self._keep("layer", _from_start(self.layer, "layer"))
        if self.position is not None:
            several = np.ndim(self.position) > 0
            positions = tuple(_from_start(each, "position") for each in (self.position if several else [self.position]))  # type: ignore[union-attr]
            if not positions:
                raise ValueError("position is empty: give at least one, or None for every position")
            if len(set(positions)) < len(positions):
                twice = next(each for each in positions if positions.count(each) > 1)
                raise ValueError(f"position has {twice} twice: give every position once")
            self._keep("position", positions if several else positions[0])
        if self.kind not in ("head", "neuron"):
            if self.index is not None:
                raise ValueError(f"index is the number of a head or a neuron; leave it out for kind={self.kind!r}")
        elif self.index is None:
            raise ValueError(f"an ablation of one {self.kind} needs its number: give index=")
        else:
            self._keep("index", _from_start(self.index, self.kind))
        self._check_value()

    def _keep(self, name: str, value: Any) -> None:
        object.__setattr__(self, name, value)

    def _check_value(self) -> None:
        if self.replacement is None:
            self._keep("replacement", "zero" if self.value is None else "value")
        check_choice("replacement", self.replacement, ReplacementKind)
        if self.replacement == "zero":
            if self.value is not None:
                raise ValueError("replacement='zero' takes no value: leave one of the two out")
            return
        if self.value is None:
            raise ValueError(
                f"replacement={self.replacement!r} needs value=, which mean_ablation(model, ablation, texts) or "
                "resample_ablation(model, ablation, prompt) compute"
            )
        value = to_numpy(self.value) if isinstance(self.value, Tensor) else np.asarray(self.value)
        if value.dtype.kind not in "fiu":
            raise ValueError(f"value must hold numbers, got {value.dtype}")
        if not np.isfinite(value).all():
            raise ValueError("value must be finite, got NaN or infinity")
        value = value.view() if value.dtype.kind == "f" else value.astype(float)
        value.flags.writeable = False
        self._keep("value", value)

    @property
    def positions(self) -> tuple[int, ...] | None:
        """The positions as a tuple; None for all."""
        if self.position is None:
            return None
        return (self.position,) if isinstance(self.position, int) else tuple(self.position)


def _from_start(number: Any, name: str) -> int:
    """Check an index that counts from the start; negative ones need a model or text, which is not known here."""
    counted = whole_number(number, name)
    advice = "an ablation holds for sequences of any length, count from the start" if name == "position" else ""
    check_range(name, counted, 0, advice=advice)
    return counted


@checked
def ablation(model: Model, ablations: Iterable[Ablation] | Ablation) -> AbstractContextManager[None]:
    """Remove parts of the model inside a ``with``; the model is restored afterwards, also after an exception.

    The ablations apply to `Model.run`, `Model.forward`, `Model.generate` and every analysis in the thread that entered
    the ``with``; widgets compute in their own thread and still show the model without them. Contexts can be nested.
    Inside, whole sequences run through the model's own modules, so analyses are as slow as with any other hook on the
    model. A token decomposition does not add up inside, and reports so, since it knows only the model's own blocks.

    In parallel blocks (as in GPT-NeoX) the MLP never reads the attention output, so that ``attn_to_mlp`` has effect 0
    for every replacement value.

    Positions are counted without the BOS; a sequence has one exactly if its first token is the model's BOS token.
    Generated tokens continue the count.

    Args:
        model: what `load_model` returns.
        ablations: `Ablation` objects; where two change the same value, the later one acts last. An empty list is
            allowed.

    Raises:
        ValueError: a layer, head, neuron or position that the model does not have, or a value of another width.

    Source: Explainability in Large Language Models (Luo 2024), section 4.1.1.

    Example:
        >>> with ablation(model, Ablation("attn", 0)):
        ...     model.generate("The Eiffel Tower is located in the city of", max_new_tokens=1)
        ' Marrakesh'
        >>> model.generate("The Eiffel Tower is located in the city of", max_new_tokens=1)
        ' Paris'
    """
    return patched_passes(model, patches_of(model, ablations))


def as_list(ablations: Any) -> list[Ablation]:
    """One ablation or several, as a list; TypeError for anything else."""
    listed = [ablations] if isinstance(ablations, Ablation) else list(ablations)
    for ablated in listed:
        if not isinstance(ablated, Ablation):
            raise TypeError(f"ablations must be Ablation objects, got {type(ablated).__name__}")
    return listed


def patches_of(model: Model, ablations: Iterable[Ablation] | Ablation) -> list[PassPatch]:
    """The patches that ablations compile to, checked against the model."""
    listed = as_list(ablations)
    for ablated in listed:
        _check(model, ablated)
    return [patch for ablated in listed for patch in _patches(model, ablated)]


_NEEDS: dict[str, tuple[Capability, ...]] = {
    "attn": ("attention",),
    "mlp": ("mlp",),
    "both": ("attention", "mlp"),
    "attn_to_mlp": ("attention", "mlp", "mlp_input"),
    "head": ("heads",),
    "neuron": ("mlp_neurons",),
}


def check_kind(model: Model, kind: str, caller: str) -> None:
    """ValueError if a model lacks what this kind removes; the caller handles models without any MLP."""
    has = model.capabilities
    for name in _NEEDS[kind]:
        if not (has.attention_only and name.startswith("mlp")):
            fallback: tuple[str, Capability] = ("mlp", "mlp") if kind == "neuron" else ("attn", "attention")
            has.require(name, caller, f"ablate {fallback[0]!r} instead", using=fallback[1])


def _check(model: Model, ablated: Ablation) -> None:
    """ValueError for a part that the model does not have, or a value of another width."""
    kind, positions = ablated.kind, ablated.positions
    check_range("layer", ablated.layer, 0, model.n_layers - 1, f"this {model.n_layers}-layer model")
    if ablated.index is not None:
        size = model.n_heads if kind == "head" else model.d_mlp
        check_range(kind, ablated.index, 0, size - 1, f"this model of {size} {kind}s per layer")
    if positions is not None:
        owner = f"this model, which reads {model.n_ctx} tokens"
        check_range("position", max(positions), 0, model.n_ctx - 1, owner)
    check_kind(model, kind, f"Ablation({kind!r}, ...)")
    if kind not in ("attn", "head") and model.capabilities.attention_only:
        raise ValueError(f"{model.name} has no MLPs, so that it has no {kind!r}: ablate 'attn' or a head instead")
    if ablated.value is None:
        return
    row = _row_shape(model, ablated)
    several = positions is not None and not isinstance(ablated.position, int)
    allowed = [row, (len(positions or ()), *row)] if several else [row]
    if ablated.value.shape not in allowed:
        shapes = " or ".join(map(str, allowed))
        raise ValueError(f"the value of this {kind} ablation must have shape {shapes}, got {ablated.value.shape}")


def _row_shape(model: Model, ablated: Ablation) -> tuple[int, ...]:
    """The shape of the replaced value at one position."""
    return {"head": (model.capabilities.head_width,), "neuron": ()}.get(ablated.kind, (model.d_model,))


def _patches(model: Model, ablated: Ablation) -> list[PassPatch]:
    """The patches of one checked ablation."""
    row = _row_shape(model, ablated)
    value = np.zeros(row) if ablated.value is None else ablated.value
    rows = torch.tensor(value if value.ndim > len(row) else value[None], device=model.device, dtype=model.dtype)
    rows = rows[:, None] if ablated.kind == "neuron" else rows
    positions = None if ablated.positions is None else torch.tensor(ablated.positions)
    patch = partial(PassPatch, layer=ablated.layer, text_positions=positions, keeps_bos=ablated.replacement == "mean")
    if ablated.kind == "both":  # the block as a whole adds the value to the stream
        return [patch("attn", values=torch.zeros_like(rows)), patch("mlp", values=rows)]
    return [patch(ablated.kind, values=rows, index=ablated.index)]


# ---- means and other prompts


@checked
def mean_ablation(
    model: Model,
    one: Ablation,
    texts: Iterable[PromptInput],
    *,
    prepend_bos: bool | None = None,
    check: Callable[[], None] | None = None,
) -> Ablation:
    """Mean ablation: a part is replaced by its mean over all tokens of some texts.

    The mean is over all positions of all texts except the BOS, summed in float64.

    Args:
        model: what `load_model` returns.
        one: which part, layer and positions; its own replacement is ignored.
        texts: reference texts or token ids.
        prepend_bos: overrides the model's BOS policy for texts.
        check: called before every text; raises to cancel.

    Raises:
        ValueError: no text, an empty or too long one, or what `ablation` refuses.

    Example:
        >>> mean = mean_ablation(model, Ablation("attn", 0), ["A man walks in.", "Snow fell."])
        >>> mean.replacement, mean.value.shape
        ('mean', (192,))
        >>> with ablation(model, mean):
        ...     model.generate("The Eiffel Tower is located in the city of", max_new_tokens=1)
        ' the'
    """
    run = RunOptions(check=check)
    sums, counts = [], []
    every: Iterable[Any] = [texts] if isinstance(texts, str) or is_chat(texts) else texts
    for text in every:
        run.stop_if_cancelled()
        values = _values(model, one, text, prepend_bos)
        sums.append(values.sum(0, dtype=np.float64))
        counts.append(len(values))
    if not sums:
        raise ValueError("a mean needs at least one text: give reference texts")
    return replace(one, replacement="mean", value=np.asarray(sum(sums) / sum(counts)))


@checked
def resample_ablation(model: Model, one: Ablation, prompt: PromptInput, *, prepend_bos: bool | None = None) -> Ablation:
    """Resample ablation: a part is replaced by its values at the same positions of another prompt.

    Also called activation patching from that prompt.

    An ablation of every position becomes one of all positions of that prompt.

    Args:
        model: what `load_model` returns.
        one: which part, layer and positions; its own replacement is ignored.
        prompt: the other prompt, text or token ids.
        prepend_bos: overrides the model's BOS policy for a text.

    Raises:
        ValueError: an empty or too long prompt, one that ends before a position, or what `ablation` refuses.

    Example:
        >>> other = resample_ablation(model, Ablation("attn", 0), "The Trevi Fountain is located in the city of")
        >>> with ablation(model, other):
        ...     model.generate("The Eiffel Tower is located in the city of", max_new_tokens=1)
        ' Rome'
    """
    values = _values(model, one, prompt, prepend_bos)
    positions = one.positions or tuple(range(len(values)))
    if max(positions) >= len(values):
        raise ValueError(
            f"the other prompt has {len(values)} tokens and nothing at position {max(positions)}: "
            "give one that is as long as the ablated one"
        )
    if isinstance(one.position, int):
        return replace(one, replacement="resample", value=values[one.position])
    return replace(one, position=positions, replacement="resample", value=values[list(positions)])


def _values(model: Model, ablated: Ablation, prompt: PromptInput, prepend_bos: bool | None) -> Floats:
    """(positions, ...) the part's output at every position of a prompt except the BOS."""
    _check(model, replace(ablated, replacement="zero", value=None))
    read = read_prompt(model, prompt, prepend_bos=prepend_bos, what="reference text")
    sites: dict[str, tuple[Site, ...]] = {"both": ("attn", "mlp"), "attn_to_mlp": ("attn",)}
    hooks = [site_hook(site, ablated.layer, model.n_layers) for site in sites.get(ablated.kind, (ablated.kind,))]  # type: ignore[arg-type]
    activations = model.run(read.fed_ids(), capture=hooks).activations
    values = to_numpy(torch.stack([wide(activations[hook][0, read.offset :]) for hook in hooks]).sum(0))
    return values if ablated.index is None else values[:, ablated.index]
