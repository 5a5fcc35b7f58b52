"""`ablation`: parts of a model taken out for the length of a ``with``, also while it writes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from typing import Any, Literal, get_args

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from interp_widgets.analysis._core.checks import whole_number
from interp_widgets.analysis._core.prompts import read_prompt
from interp_widgets.analysis._core.result import Record, record
from interp_widgets.analysis._core.tensors import to_numpy, wide
from interp_widgets.arguments import checked
from interp_widgets.models import Model
from interp_widgets.models.capabilities import Capability
from interp_widgets.models.patching import Patch, patched_passes

Part = Literal["attn", "mlp", "both", "attn_to_mlp", "head", "neuron"]
"""What is taken out: a layer's attention output, its MLP output, both (the whole block), the attention output as the
MLP reads it (it still goes to the residual stream), one attention head, or one MLP neuron."""

ReplacementKind = Literal["zero", "mean", "resample", "value"]
"""The replacement value: zero, a mean, another prompt's value, or any other."""


@checked
@record
class Ablation(Record):
    """One part of a model at one layer, where, and its replacement value; checked against a model by `ablation`.

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
    """Where: one position or several, counted from 0 without a BOS; None for every position, a BOS and tokens that are
    still to be written included. Negative ones are refused: the end moves while the model writes."""

    index: int | None = None
    """Which head or neuron, from 0; None for the other kinds."""

    replacement: str | None = None
    """The kind of the replacement value, a :data:`ReplacementKind`; if left out, ``"zero"`` without a value and
    ``"value"`` with one."""

    value: Any = None
    """The replacement value, for all but ``"zero"``: numbers (d_model,), for a head (d_head,), for a neuron one number;
    or one such row per position given. Kept as a NumPy array. `mean_ablation` and `resample_ablation` make it."""

    def __post_init__(self) -> None:
        if self.kind not in get_args(Part):
            listed = ", ".join(repr(part) for part in get_args(Part))
            raise ValueError(f"kind must be one of {listed}, got {self.kind!r}")
        object.__setattr__(self, "layer", _whole(self.layer, "layer"))
        self._check_position()
        if self.kind in ("head", "neuron"):
            if self.index is None:
                raise ValueError(f"an ablation of one {self.kind} needs its number: give index=")
            object.__setattr__(self, "index", _whole(self.index, self.kind))
        elif self.index is not None:
            raise ValueError(f"index is the number of a head or a neuron; leave it out for kind={self.kind!r}")
        self._check_value()

    def _check_position(self) -> None:
        if self.position is None:
            return
        if np.ndim(self.position):
            found = tuple(_whole(p, "position") for p in self.position)  # type: ignore[union-attr]
            if not found:
                raise ValueError("position is empty: give at least one, or None for every position")
            twice = next((p for p in found if found.count(p) > 1), None)
            if twice is not None:
                raise ValueError(f"position names {twice} twice: give every position once")
            object.__setattr__(self, "position", found)
        else:
            object.__setattr__(self, "position", _whole(self.position, "position"))

    def _check_value(self) -> None:
        if self.replacement is None:
            object.__setattr__(self, "replacement", "zero" if self.value is None else "value")
        if self.replacement not in get_args(ReplacementKind):
            listed = ", ".join(repr(kind) for kind in get_args(ReplacementKind))
            raise ValueError(f"replacement must be one of {listed}, got {self.replacement!r}")
        if self.replacement == "zero":
            if self.value is not None:
                raise ValueError("replacement='zero' takes no value: leave one of the two out")
            return
        if self.value is None:
            raise ValueError(
                f"replacement={self.replacement!r} needs value=, which mean_ablation(model, ablation, texts) or "
                "resample_ablation(model, ablation, prompt) make"
            )
        given = to_numpy(self.value) if isinstance(self.value, Tensor) else np.asarray(self.value)
        if given.dtype.kind not in "fiu":
            raise ValueError(f"value must hold numbers, got {given.dtype}")
        if not np.isfinite(given).all():
            raise ValueError("value must be finite, got NaN or infinity")
        given = given.view() if given.dtype.kind == "f" else given.astype(float)
        given.flags.writeable = False
        object.__setattr__(self, "value", given)

    @property
    def positions(self) -> tuple[int, ...] | None:
        """The positions as a tuple; None for all."""
        if self.position is None or not isinstance(self.position, int):
            return None if self.position is None else tuple(self.position)
        return (self.position,)


def _whole(given: Any, what: str) -> int:
    """A whole number from 0 on."""
    found = whole_number(given, what)
    if found < 0:
        more = ", and an ablation holds for sequences of any length: count from the start" if what == "position" else ""
        raise ValueError(f"{what} must be 0 or above{more}; got {found}")
    return found


@checked
def ablation(model: Model, ablations: Iterable[Ablation] | Ablation) -> AbstractContextManager[None]:
    """Take parts of the model out inside a ``with``; afterwards nothing of it is left, whatever happens inside.

    It holds for `Model.run`, `Model.forward`, `Model.generate` and every analysis, in the thread that entered; widgets
    that compute in a thread of their own still show the whole model. Several nest. Inside, whole sequences run through
    the model's own modules, so analyses are as slow as with any other hook on the model. A token decomposition inside
    does not add up, and says so: it knows the model's own blocks only.

    Where the MLP runs beside the attention and never reads it (parallel blocks, as of GPT-NeoX), ``attn_to_mlp``
    changes nothing, whatever is put there: its effect is 0, as `ablate_modules` says.

    Positions are counted without the BOS, on what the model is fed: a sequence has a BOS exactly if the first token fed
    is the model's BOS token. Tokens that the model writes go on counting.

    Args:
        model: what `load_model` returns.
        ablations: `Ablation` objects; where two change the same value, the later one acts last. None at all is allowed.

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


def patches_of(model: Model, ablations: Iterable[Ablation] | Ablation) -> list[Patch]:
    """The patches that ablations are made of, checked against the model."""
    given = [ablations] if isinstance(ablations, Ablation) else list(ablations)
    for one in given:
        if not isinstance(one, Ablation):
            raise TypeError(f"ablations must be Ablation objects, got {type(one).__name__}")
        _check(model, one)
    return [patch for one in given for patch in _patches(model, one)]


_NEEDS: dict[str, tuple[Capability, ...]] = {
    "attn": ("attention",),
    "mlp": ("mlp",),
    "both": ("attention", "mlp"),
    "attn_to_mlp": ("attention", "mlp", "mlp_input"),
    "head": ("heads",),
    "neuron": ("mlp_neurons",),
}


def check_kind(model: Model, kind: str, caller: str) -> None:
    """ValueError if a model lacks what this kind takes out; a model without any MLP is left to the caller."""
    has = model.capabilities
    for name in _NEEDS[kind]:
        if not (has.attention_only and name.startswith("mlp")):
            near: tuple[str, Capability] = ("mlp", "mlp") if kind == "neuron" else ("attn", "attention")
            has.require(name, caller, f"ablate {near[0]!r} instead", using=near[1])


def _check(model: Model, one: Ablation) -> None:
    counts = {"layer": (one.layer, model.n_layers, f"this {model.n_layers}-layer model")}
    if one.kind == "head":
        counts["head"] = (one.index or 0, model.n_heads, f"this model of {model.n_heads} heads per layer")
    if one.kind == "neuron":
        counts["neuron"] = (one.index or 0, model.d_mlp, f"this model of {model.d_mlp} neurons per layer")
    if one.positions is not None:
        counts["position"] = (max(one.positions), model.n_ctx, f"this model, which reads {model.n_ctx} tokens")
    for what, (found, count, whose) in counts.items():
        if not 0 <= found < count:
            raise ValueError(f"{what} must be in 0..{count - 1} for {whose}, got {found}")
    check_kind(model, one.kind, f"Ablation({one.kind!r}, ...)")
    if one.kind not in ("attn", "head") and model.capabilities.attention_only:
        raise ValueError(f"{model.name} has no MLPs, so that it has no {one.kind!r}: ablate 'attn' or a head instead")
    if one.value is None:
        return
    row = _row_shape(model, one)
    several = not isinstance(one.position, int) and one.positions is not None
    allowed = [row, (len(one.positions or ()), *row)] if several else [row]
    if one.value.shape not in allowed:
        wanted = " or ".join(str(shape) for shape in allowed)
        raise ValueError(f"the value of this {one.kind} ablation must have shape {wanted}, got {one.value.shape}")


def _row_shape(model: Model, one: Ablation) -> tuple[int, ...]:
    return {"head": (model.capabilities.head_width,), "neuron": ()}.get(one.kind, (model.d_model,))


def _patches(model: Model, one: Ablation) -> list[Patch]:
    """What one checked ablation puts in place, at which sites."""
    row = _row_shape(model, one)
    value = np.zeros(row) if one.value is None else one.value
    rows = torch.tensor(value if value.ndim > len(row) else value[None], device=model.device, dtype=model.dtype)
    rows = rows[:, None] if one.kind == "neuron" else rows
    positions = None if one.positions is None else torch.tensor(one.positions)
    index = None if one.index is None else torch.tensor([one.index])
    if one.kind == "both":  # together they add the value to the stream
        nothing = Patch("attn", one.layer, torch.zeros_like(rows), positions)
        return [nothing, Patch("mlp", one.layer, rows, positions)]
    return [Patch(one.kind, one.layer, rows, positions, index=index)]


# ---- means and other prompts


@checked
def mean_ablation(
    model: Model,
    one: Ablation,
    texts: Iterable[str | Sequence[int]],
    *,
    prepend_bos: bool | None = None,
    check: Callable[[], None] | None = None,
) -> Ablation:
    """The same ablation with the part's mean over all tokens of some texts put in its place.

    The mean is over all positions of all texts, the BOS left out, summed in float64.

    Args:
        model: what `load_model` returns.
        one: which part, layer and positions; its own replacement is not looked at.
        texts: reference texts or token ids.
        prepend_bos: overrides the model's BOS policy for texts.
        check: called before every text; raises to cancel.

    Raises:
        ValueError: no text, an empty or too long one, or what `ablation` refuses.

    Example:
        >>> usual = mean_ablation(model, Ablation("attn", 0), ["A man walks in.", "Snow fell."])
        >>> usual.replacement, usual.value.shape
        ('mean', (192,))
        >>> with ablation(model, usual):
        ...     model.generate("The Eiffel Tower is located in the city of", max_new_tokens=1)
        ' the'
    """
    total, count = None, 0
    for text in [texts] if isinstance(texts, str) else texts:
        if check is not None:
            check()
        rows = _values(model, one, text, prepend_bos)
        part = rows.sum(0, dtype=np.float64)
        total, count = part if total is None else total + part, count + len(rows)
    if total is None:
        raise ValueError("a mean needs at least one text: give reference texts")
    return Ablation(one.kind, one.layer, one.position, one.index, "mean", np.asarray(total / count))


@checked
def resample_ablation(
    model: Model, one: Ablation, prompt: str | Sequence[int], *, prepend_bos: bool | None = None
) -> Ablation:
    """The same ablation with what the part computes on another prompt, at the same positions, put in its place.

    An ablation of every position becomes one of the positions of that prompt.

    Args:
        model: what `load_model` returns.
        one: which part, layer and positions; its own replacement is not looked at.
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
    rows = _values(model, one, prompt, prepend_bos)
    positions = one.positions or tuple(range(len(rows)))
    if max(positions) >= len(rows):
        raise ValueError(
            f"the other prompt has {len(rows)} tokens and nothing at position {max(positions)}: "
            "give one that is as long as the ablated one"
        )
    value = rows[list(positions)]
    if isinstance(one.position, int):
        return Ablation(one.kind, one.layer, one.position, one.index, "resample", value[0])
    return Ablation(one.kind, one.layer, positions, one.index, "resample", value)


def _values(
    model: Model, one: Ablation, prompt: str | Sequence[int], prepend_bos: bool | None
) -> NDArray[np.floating[Any]]:
    """(positions, ...) what the part computes at every shown position of a prompt."""
    _check(model, Ablation(one.kind, one.layer, one.position, one.index))
    given = read_prompt(model, prompt, prepend_bos=prepend_bos, what="reference text")
    names = {"mlp": ("hook_mlp_out",), "both": ("hook_attn_out", "hook_mlp_out")}
    names |= {"head": ("attn.hook_z",), "neuron": ("mlp.hook_post",)}
    wanted = [f"blocks.{one.layer}.{name}" for name in names.get(one.kind, ("hook_attn_out",))]
    run = model.run(given.fed_ids(), capture=wanted)
    found = sum(wide(run.activations[name][0, given.offset :]) for name in wanted)
    rows = to_numpy(torch.as_tensor(found))
    return rows if one.index is None else rows[:, one.index]
