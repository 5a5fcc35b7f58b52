"""`knn_task`: whether an instance's nearest training instances have its task, and whether they predict its output."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from interp_widgets.analysis._core.arrays import Floats, Ints
from interp_widgets.analysis._core.checks import check_range, stream_indices
from interp_widgets.analysis._core.result import Result, provenance, record, with_axes
from interp_widgets.analysis._core.run import RunOptions
from interp_widgets.analysis._core.tables import DataFrame, table
from interp_widgets.analysis.hidden_states import last_states
from interp_widgets.arguments import checked
from interp_widgets.data.instruction_task import InstructionInstance
from interp_widgets.models import Model

from .clustering import checked_layers, checked_states

_ROWS_AT_ONCE = 256
"""Instances whose distances are computed at once."""
_ROUNDING = 1e-12
"""Squared distances that differ by less than this share of the largest squared state are equal."""


@record
class TaskNeighbors(Result):
    """What `knn_task` returns: the share of neighbours with the same task, and the accuracy of their majority output.

    Example:
        >>> instances = demo_instructions(phrasings_per_task=4, inputs=2)
        >>> near = knn_task(tuned, instances[::2], instances[1::2], k=5, layers=[0, 6])
        >>> near.same_task.shape, near.accuracy.shape
        ((2,), (2,))
    """

    layers: Ints = with_axes("layers")
    """(layers,) Layer l is the stream entering block l, n_layers the one entering the final norm."""

    same_task: Floats = with_axes("layers")
    """(layers,) Mean share of the k nearest training instances that have the instance's task, 0..1."""

    accuracy: Floats = with_axes("layers")
    """(layers,) Share of instances whose output is the most frequent one of the k nearest (ties: the nearest), 0..1."""

    same_task_chance: float
    """Share of the same task among k random training instances."""

    accuracy_chance: float
    """The accuracy of always answering the most frequent output of the training instances."""

    k: int
    """Number of neighbours."""

    def to_frame(self) -> DataFrame:
        """One row per layer, with the chance levels."""
        columns = {"same_task": self.same_task, "accuracy": self.accuracy, "same_task_chance": self.same_task_chance,
                   "accuracy_chance": self.accuracy_chance}  # fmt: skip
        return table({"layer": self.layers}, columns)


TaskNeighbours = TaskNeighbors
"""The name in pickles of earlier versions."""


@checked
def knn_task(
    model: Model,
    training: Sequence[InstructionInstance],
    instances: Sequence[InstructionInstance],
    *,
    k: int = 10,
    layers: Sequence[int] | None = None,
    prepend_bos: bool | None = None,
    batch_size: int | None = None,
    progress: Callable[[int, int], None] | None = None,
    check: Callable[[], None] | None = None,
) -> TaskNeighbors:
    """Compare unseen instances with their nearest training instances, by hidden states at each layer.

    Args:
        model: what `load_model` returns.
        training: the instances that neighbours are chosen from.
        instances: the instances whose neighbours are found, such as `InstructionTask.validation`.
        k: number of neighbours by Euclidean distance; the paper does not state its number.
        layers: as in `cluster_hidden_states`; all by default.
        prepend_bos: overrides the model's BOS policy.
        batch_size: most prompts in one pass.
        progress: called with (done, total): prompts, then layers.
        check: called before every pass and layer; raises to cancel.

    Raises:
        ValueError: no instances, k above the number of training instances, a layer out of range.

    Source: "Transformer-based Causal Language Models Perform Clustering", §3.3, Figure 3; Generalization through
    Memorization (Khandelwal et al. 2019).

    Example:
        >>> instances = demo_instructions(phrasings_per_task=4, inputs=2)
        >>> near = knn_task(tuned, instances[::2], instances[1::2], k=5, layers=[0, 6])
        >>> bool(near.same_task[1] > near.same_task_chance)
        True
    """
    wanted = stream_indices(model, range(model.n_layers + 1) if layers is None else layers)
    _check_sizes(training, instances, k)
    run, total = RunOptions(progress), len(training) + len(instances) + len(wanted)
    states = last_states(
        model,
        [instance.prompt for instance in [*training, *instances]],
        wanted,
        prepend_bos=prepend_bos,
        batch_size=batch_size,
        progress=run.after(0, total).progress,
        check=check,
    )
    return nearest_tasks(
        states[: len(training)],
        training,
        states[len(training) :],
        instances,
        k=k,
        layers=wanted,
        progress=run.after(len(training) + len(instances), total).progress,
        check=check,
        origin=model.provenance(),
    )


def nearest_tasks(
    training_states: ArrayLike,
    training: Sequence[InstructionInstance],
    states: ArrayLike,
    instances: Sequence[InstructionInstance],
    *,
    k: int = 10,
    layers: Sequence[int] | None = None,
    progress: Callable[[int, int], None] | None = None,
    check: Callable[[], None] | None = None,
    origin: Any = None,
) -> TaskNeighbors:
    """`knn_task` from hidden states, (instances, layers, d_model) each."""
    _check_sizes(training, instances, k)
    reference, queries = checked_states(training_states, len(training)), checked_states(states, len(instances))
    if reference.shape[1:] != queries.shape[1:]:
        raise ValueError(
            "training_states and states must have the same layers and width, got "
            f"{reference.shape[1:]} and {queries.shape[1:]}"
        )
    numbers = checked_layers(reference, layers)
    run = RunOptions(progress, check)
    # ties, such as equal tokens at layer 0, must not be broken by the order of the training instances
    order = np.random.default_rng(0).permutation(len(training))
    reference, training = reference[order], [training[i] for i in order]
    tasks = np.array([instance.task for instance in training])
    outputs = [instance.output for instance in training]
    shares, right = np.zeros(len(numbers)), np.zeros(len(numbers))
    for column in range(len(numbers)):
        for first in range(0, len(instances), _ROWS_AT_ONCE):
            run.stop_if_cancelled()
            rows = instances[first : first + _ROWS_AT_ONCE]
            nearest = _nearest(queries[first : first + _ROWS_AT_ONCE, column], reference[:, column], k)
            for instance, neighbours in zip(rows, nearest, strict=True):
                shares[column] += np.mean(tasks[neighbours] == instance.task)
                right[column] += _majority([outputs[i] for i in neighbours]) == instance.output
        run.report(column + 1, len(numbers))
    by_task, by_output = Counter(tasks.tolist()), Counter(outputs)
    most_frequent = max(by_output, key=lambda output: by_output[output])
    return TaskNeighbors(
        np.array(numbers),
        shares / len(instances),
        right / len(instances),
        float(np.mean([by_task[instance.task] / len(training) for instance in instances])),
        float(np.mean([instance.output == most_frequent for instance in instances])),
        k,
        provenance=provenance(origin, k=k, training=len(training), instances=len(instances)),
    )


def _check_sizes(training: Sequence[Any], instances: Sequence[Any], k: int) -> None:
    if not instances or not training:
        raise ValueError(f"{'training' if instances else 'instances'} must have at least one instance, got none")
    check_range("k", k, 1, len(training), f"{len(training)} training instances")


def _nearest(points: Floats, reference: Floats, k: int) -> Ints:
    """(points, k) indices of the nearest reference points, the nearest first; ties in the order of ``reference``."""
    sizes = (reference**2).sum(1)
    squares = (points**2).sum(1)[:, None] + sizes - 2 * points @ reference.T
    # rounding must not decide the order of equal distances
    squares = np.round(squares / (_ROUNDING * sizes.max() or 1.0))
    return np.argsort(squares, axis=1, kind="stable")[:, :k]


def _majority(outputs: Sequence[str]) -> str:
    """The most frequent output; of ties the first."""
    counts = Counter(outputs)
    return max(counts, key=lambda output: counts[output])
