"""`state_map`: a 2D map of the hidden states of one layer."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike

from interp_widgets.analysis._core.arrays import Floats, float64
from interp_widgets.analysis._core.checks import check_choice, stream_indices
from interp_widgets.analysis._core.result import Result, provenance, record, with_axes
from interp_widgets.analysis._core.tables import DataFrame, table
from interp_widgets.analysis.hidden_states import last_states
from interp_widgets.arguments import checked
from interp_widgets.data.instruction_task import InstructionInstance
from interp_widgets.models import Model

from .clustering import check_instances, checked_states, tsne_components

StateMapMethod = Literal["pca", "tsne"]
_PERPLEXITY, _STEPS = 10.0, 1000


@record
class StateMap(Result):
    """What `state_map` returns: 2D coordinates of the hidden state of every instance at one layer.

    Example:
        >>> places = state_map(tuned, demo_instructions(phrasings_per_task=2, inputs=2), layer=6)
        >>> places.xy.shape, places.task[0], places.method
        ((40, 2), 'translation', 'pca')
    """

    xy: Floats = with_axes("instances", 2, nan=False)
    """(instances, 2) Coordinates."""

    prompts: Sequence[str] = with_axes("instances")
    """The prompts."""

    task: Sequence[str] = with_axes("instances")
    """Task labels."""

    distribution: Sequence[str] = with_axes("instances")
    """Distribution labels."""

    mapping: Sequence[str] = with_axes("instances")
    """Input and output."""

    layer: int
    """The layer whose entering stream is shown; n_layers is the stream entering the final norm."""

    method: str
    """"pca" or "tsne"."""

    explained: float | None = None
    """For ``pca``, the share of variance explained by the two components, 0..1."""

    def to_frame(self) -> DataFrame:
        """One row per instance: prompt, labels and coordinates."""
        columns = {"task": self.task, "distribution": self.distribution, "mapping": self.mapping,
                   "x": self.xy[:, 0], "y": self.xy[:, 1]}  # fmt: skip
        return table({"prompt": self.prompts}, columns)


@checked
def state_map(
    model: Model,
    instances: Sequence[InstructionInstance],
    *,
    layer: int,
    method: StateMapMethod = "pca",
    seed: int = 0,
    prepend_bos: bool | None = None,
    progress: Callable[[int, int], None] | None = None,
    check: Callable[[], None] | None = None,
) -> StateMap:
    """Project the hidden state of each instance's last token to two dimensions.

    Args:
        model: what `load_model` returns.
        instances: prompts with their labels.
        layer: the stream entering block ``layer``; n_layers (or -1) the one entering the final norm.
        method: "pca" (preserves distances) or "tsne" (preserves neighbours; perplexity 10, initialised by PCA).
        seed: of t-SNE.
        prepend_bos: overrides the model's BOS policy.
        progress: called with (done, total) prompts.
        check: called before every pass and while t-SNE runs; raises to cancel.

    Raises:
        ValueError: fewer than 4 instances, a layer out of range, an unknown method.

    Source: Visualizing Data using t-SNE (van der Maaten and Hinton 2008).

    Example:
        >>> places = state_map(tuned, demo_instructions(phrasings_per_task=2, inputs=2), layer=-1)
        >>> places.layer, 0 < places.explained < 1
        (6, True)
    """
    (wanted,) = stream_indices(model, layer)
    check_instances(instances)
    check_choice("method", method, StateMapMethod)
    prompts = [instance.prompt for instance in instances]
    states = last_states(model, prompts, wanted, prepend_bos=prepend_bos, progress=progress, check=check)
    return map_states(
        states[:, 0], instances, layer=wanted, method=method, seed=seed, check=check, origin=model.provenance()
    )


def map_states(
    states: ArrayLike,
    instances: Sequence[InstructionInstance],
    *,
    layer: int,
    method: StateMapMethod = "pca",
    seed: int = 0,
    check: Callable[[], None] | None = None,
    origin: Any = None,
) -> StateMap:
    """`state_map` from the hidden states of one layer, (instances, d_model)."""
    check_instances(instances)
    check_choice("method", method, StateMapMethod)
    values = float64(states)
    points = checked_states(values[:, None] if values.ndim == 2 else values, len(instances))[:, 0]
    explained = None
    if method == "pca":
        xy, explained = principal_plane(points)
    else:
        xy = tsne_components(points, 2, _PERPLEXITY, _STEPS, seed, check)
    return StateMap(
        xy,
        tuple(instance.prompt for instance in instances),
        tuple(instance.task for instance in instances),
        tuple(instance.distribution for instance in instances),
        tuple(instance.mapping for instance in instances),
        layer,
        method,
        explained,
        provenance=provenance(origin, method=method, seed=seed, instances=len(instances)),
    )


def principal_plane(points: Floats) -> tuple[Floats, float]:
    """(instances, 2) coordinates on the first two principal components, and their share of the variance.

    The sign of each component makes its largest weight positive.
    """
    centred = points - points.mean(0)
    left, sizes, axes = np.linalg.svd(centred, full_matrices=False)
    total = float((sizes**2).sum())
    xy = np.zeros((len(points), 2))
    for number in range(min(2, len(sizes))):
        sign = np.sign(axes[number][np.argmax(np.abs(axes[number]))]) or 1.0
        xy[:, number] = left[:, number] * sizes[number] * sign
    return xy, float((sizes[:2] ** 2).sum() / total) if total > 0 else 1.0
