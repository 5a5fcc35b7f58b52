"""`steer` and `erase`: context managers that add a direction to the residual stream, or project it out."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from numbers import Integral
from typing import Any, SupportsIndex

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor

from interp_widgets.analysis._core.checks import distinct_streams
from interp_widgets.analysis._core.directions import span_basis
from interp_widgets.analysis._core.tensors import wide_type
from interp_widgets.arguments import checked
from interp_widgets.models import Model
from interp_widgets.models.patching import PassPatch, patched_passes


@checked
@contextmanager
def steer(
    model: Model,
    direction: ArrayLike | Tensor,
    *,
    layer: SupportsIndex | Sequence[SupportsIndex],
    strength: float,
    positions: Sequence[int] | None = None,
) -> Iterator[None]:
    """Inside a ``with``, add ``strength`` times the direction (normalised to length 1) to the residual stream.

    Also called activation steering, or activation addition: the direction is the steering vector.

    It applies to every pass in this thread: `Model.run`, all analyses and `Model.generate`; the model is restored
    afterwards. Contexts can be nested. A negative strength steers away.

    Args:
        model: what `load_model` returns.
        direction: (d_model,) such as `ConceptSet.direction` gives.
        layer: the stream entering block ``layer``, one or several; n_layers is the stream before the final norm.
        strength: in the residual stream's units; `ConceptSet.gap` is the distance between a concept's states and the
            others'.
        positions: positions from 0 without the BOS, new tokens included; by default every position, also a BOS.

    Raises:
        ValueError: a direction of another width, of length zero or not finite, an unknown or repeated layer, a position
            below 0, a strength that is not finite.

    Source: Activation Addition: Steering Language Models Without Optimization (Turner et al. 2023), section 3.

    Example:
        >>> few = [c for c in demo_concepts() if c.name in ("Paris", "London", "red", "blue")]
        >>> concepts = concept_directions(model, few, layer=3)
        >>> strength = 2 * concepts.gap[concepts.index("London")]
        >>> with steer(model, concepts.direction("London"), layer=range(3, 6), strength=strength):
        ...     model.generate("The Eiffel Tower is located in the city of", max_new_tokens=1)
        ' London'
    """
    model.capabilities.require("residual_stream", "steer")
    unit = _units(model, direction, single=True)[0]
    if not np.isfinite(strength):
        raise ValueError(f"strength must be a finite number, got {strength}")
    added = (strength * unit).to(model.device, model.dtype)
    with patched_passes(model, _stream_patches(model, layer, lambda value: value + added, positions)):
        yield


@checked
@contextmanager
def erase(
    model: Model,
    direction: ArrayLike | Tensor,
    *,
    layer: SupportsIndex | Sequence[SupportsIndex],
    positions: Sequence[int] | None = None,
) -> Iterator[None]:
    """Inside a ``with``, project a direction, or the span of several (n, d_model), out of the residual stream.

    Also called directional ablation.

    Arguments, errors and scope are those of `steer`. Later layers may write the direction again: give all layers to
    keep it out.

    Example:
        >>> few = [c for c in demo_concepts() if c.name in ("Paris", "London", "red", "blue")]
        >>> red = concept_directions(model, few, layer=3).direction("red")
        >>> with erase(model, red, layer=range(3, 7)):
        ...     states = last_states(model, ["The car is red."], range(3, 7))
        >>> bool(np.abs(states @ red).max() < 1e-3)
        True
    """
    model.capabilities.require("residual_stream", "erase")
    units = _units(model, direction, single=False)
    basis = torch.from_numpy(span_basis(units.numpy())).T.to(model.device, wide_type(model.dtype))  # (d_model, rank)

    def remove(value: Tensor) -> Tensor:
        wide = value.to(basis.dtype)
        return (wide - (wide @ basis) @ basis.T).to(value.dtype)

    with patched_passes(model, _stream_patches(model, layer, remove, positions)):
        yield


def _position_tensor(positions: Any) -> Tensor | None:
    """The positions as a tensor; None for every position."""
    if positions is None:
        return None
    listed = list(positions) if isinstance(positions, Iterable) else [f"{positions} alone"]
    for position in listed:
        if not isinstance(position, Integral) or int(position) < 0:
            raise ValueError(
                f"positions must be a list of int from 0 on, got {position}: count from the beginning, since the "
                "end moves during generation"
            )
    return torch.tensor([int(position) for position in listed], dtype=torch.long)


def _units(model: Model, direction: ArrayLike | Tensor, *, single: bool) -> Tensor:
    """(n, d_model) directions of unit length in float64 on the CPU."""
    vectors = torch.as_tensor(
        direction.detach() if isinstance(direction, Tensor) else np.array(direction, dtype=np.float64),
        device="cpu",
    ).double()  # fmt: skip
    rows = vectors[None] if vectors.ndim == 1 else vectors
    if rows.ndim != 2 or rows.shape[1] != model.d_model or len(rows) == 0 or (single and len(rows) != 1):
        shape = f"({model.d_model},)" if single else f"({model.d_model},) or (n, {model.d_model})"
        raise ValueError(
            f"direction must have shape {shape} for {model.name}, got {tuple(vectors.shape)}: "
            "take one that was made from a model of this width"
        )
    length = rows.norm(dim=1, keepdim=True)
    if not bool(torch.isfinite(length).all()) or not bool((length > 0).all()):
        raise ValueError("direction must be finite and not zero")
    unit: Tensor = rows / length
    return unit


def _stream_patches(
    model: Model, layer: SupportsIndex | Sequence[SupportsIndex], change: Callable[[Tensor], Tensor], positions: Any
) -> list[PassPatch]:
    chosen = _position_tensor(positions)
    return [PassPatch("resid", each, change, chosen) for each in distinct_streams(model, layer)]
