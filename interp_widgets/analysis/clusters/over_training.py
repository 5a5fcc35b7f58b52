"""`clusters_over_training`: clusters, neighbours and maps at every checkpoint of training on the synthetic task."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np

from interp_widgets.analysis._core.arrays import Floats, Ints
from interp_widgets.analysis._core.result import Result, provenance, record, with_axes
from interp_widgets.analysis._core.run import RunOptions
from interp_widgets.analysis._core.tables import DataFrame, table
from interp_widgets.analysis.hidden_states import last_states
from interp_widgets.arguments import checked
from interp_widgets.data.instruction_task import LABEL_KINDS, InstructionInstance, InstructionTask
from interp_widgets.models import Model, load_model

from .clustering import MEASURES, HiddenClusters, cluster_states, parts_to_cluster
from .neighbours import TaskNeighbors, nearest_tasks
from .state_maps import principal_plane

InstanceSet = Literal["training subset", "validation"]
SETS: tuple[InstanceSet, ...] = ("training subset", "validation")


@record
class ClusterTraining(Result):
    """What `clusters_over_training` returns: clusters at every checkpoint, for the training subset and for validation.

    Example:
        >>> import tempfile
        >>> task = make_instruction_task(tasks=3, subset_tasks=2, validation_tasks=1, hard_tasks=1, max_distributions=1)
        >>> run = train_instruction_model(task, tempfile.mkdtemp(), width=16, layers=1, heads=2, steps=2, checkpoints=2)
        >>> training = clusters_over_training(run.checkpoints, task, n_init=1)
        >>> training.f1_matched.shape, training.same_task.shape
        ((2, 2, 3, 2), (2, 2))
    """

    steps: Ints = with_axes("checkpoints")
    """(checkpoints,) Training step of each checkpoint."""

    layers: Ints = with_axes("layers")
    """(layers,) Layer l is the stream entering block l, n_layers the one entering the final norm."""

    sets: Sequence[str] = with_axes("sets")
    """"training subset" and "validation"."""

    labels: Sequence[str] = with_axes("labels")
    """Kinds of labels."""

    f1_matched: Floats = with_axes("checkpoints", "sets", "labels", "layers")
    """(checkpoints, sets, labels, layers) Matched F1; see `clustering_scores`."""

    f1_pair: Floats = with_axes("checkpoints", "sets", "labels", "layers")
    """(checkpoints, sets, labels, layers) Pair F1."""

    ari: Floats = with_axes("checkpoints", "sets", "labels", "layers")
    """(checkpoints, sets, labels, layers) Adjusted Rand index."""

    ami: Floats = with_axes("checkpoints", "sets", "labels", "layers")
    """(checkpoints, sets, labels, layers) Adjusted mutual information."""

    f1_matched_chance: Floats = with_axes("checkpoints", "sets", "labels", "layers")
    """(checkpoints, sets, labels, layers) Matched F1 with shuffled labels."""

    f1_pair_chance: Floats = with_axes("checkpoints", "sets", "labels", "layers")
    """(checkpoints, sets, labels, layers) Pair F1 with shuffled labels."""

    f1_within_input: Floats = with_axes("checkpoints", 2, "layers")
    """(checkpoints, 2, layers) Matched F1 with task labels within one input, averaged over inputs, for all training
    instances and for validation; NaN if tasks share no inputs."""

    f1_within_input_chance: Floats = with_axes("checkpoints", 2, "layers")
    """(checkpoints, 2, layers) The same with shuffled labels."""

    same_task: Floats = with_axes("checkpoints", "layers")
    """(checkpoints, layers) Mean share of the k nearest training instances of a validation instance that have its
    task."""

    knn_accuracy: Floats = with_axes("checkpoints", "layers")
    """(checkpoints, layers) Share of validation instances whose output is the most frequent of the k nearest."""

    same_task_chance: float
    """Share of the same task among random training instances."""

    knn_accuracy_chance: float
    """The accuracy of always answering the most frequent output."""

    k: int
    """Number of neighbours."""

    subset_xy: Floats = with_axes("checkpoints", "layers", "subset", 2)
    """(checkpoints, layers, instances, 2) The training subset on the first two principal components of each
    checkpoint and layer, rotated or reflected onto the previous checkpoint (Procrustes)."""

    validation_xy: Floats = with_axes("checkpoints", "layers", "validation", 2)
    """(checkpoints, layers, instances, 2) The same for validation."""

    subset_explained: Floats = with_axes("checkpoints", "layers")
    """(checkpoints, layers) Share of variance explained by the two components, for the training subset."""

    validation_explained: Floats = with_axes("checkpoints", "layers")
    """(checkpoints, layers) The same for validation."""

    def to_frame(self) -> DataFrame:
        """One row per checkpoint, set, kind of labels and layer, with the scores; those of neighbours are repeated."""
        axes = {"step": self.steps, "set": self.sets, "labels": self.labels, "layer": self.layers}
        near = {name: getattr(self, name)[:, None, None] for name in ("same_task", "knn_accuracy")}
        return table(axes, {name: getattr(self, name) for name in MEASURES} | near)

    def xy(self, instances: InstanceSet) -> Floats:
        """(checkpoints, layers, instances, 2) coordinates of one set."""
        return self.validation_xy if instances == "validation" else self.subset_xy

    def explained(self, instances: InstanceSet) -> Floats:
        """(checkpoints, layers) share of variance explained by the two components of one set."""
        return self.validation_explained if instances == "validation" else self.subset_explained


@checked
def clusters_over_training(
    checkpoints: Mapping[int, Any],
    task: InstructionTask,
    *,
    k: int = 10,
    tsne: bool = False,
    seed: int = 0,
    n_init: int = 10,
    progress: Callable[[int, int], None] | None = None,
    check: Callable[[], None] | None = None,
) -> ClusterTraining:
    """Cluster the hidden states at every checkpoint, to see how task clusters form during training.

    Args:
        checkpoints: training step to a folder or a loaded model, such as `InstructionRun.checkpoints`.
        task: the data set that was trained on.
        k: number of neighbours of `knn_task`, chosen from all training data.
        tsne: reduce by t-SNE before KMeans, as in `cluster_hidden_states`.
        seed: of KMeans and t-SNE.
        n_init: initialisations of KMeans.
        progress: called with (done, total) parts of the work, three per checkpoint.
        check: called before every pass and clustering; raises to cancel.

    Raises:
        ValueError: no checkpoints, or models of different depths.

    Source: "Transformer-based Causal Language Models Perform Clustering", §3.2 and §3.3, Figures 1, 3, 4 and 5.

    Example:
        >>> import tempfile
        >>> task = make_instruction_task(tasks=3, subset_tasks=2, validation_tasks=1, hard_tasks=1, max_distributions=1)
        >>> run = train_instruction_model(task, tempfile.mkdtemp(), width=16, layers=1, heads=2, steps=2, checkpoints=2)
        >>> clusters_over_training(run.checkpoints, task, n_init=1).steps.tolist()
        [0, 2]
    """
    if not checkpoints:
        raise ValueError("checkpoints must not be empty: give the checkpoints of a training")
    run, total = RunOptions(progress, check), 3 * len(checkpoints)
    groups = {"training subset": task.training_subset(), "validation": task.validation()}
    training = task.training()
    every = [*training, *task.validation()]
    clusters: list[list[HiddenClusters]] = []
    within = np.full((0, 0, 2, 0), np.nan)
    near: list[TaskNeighbors] = []
    xy: dict[str, list[Floats]] = {name: [] for name in groups}
    explained: dict[str, list[list[float]]] = {name: [] for name in groups}
    subset = [i for i, instance in enumerate(training) if instance.task in _task_names(groups["training subset"])]
    for number, (step, source) in enumerate(sorted(checkpoints.items())):
        model = source if isinstance(source, Model) else load_model(_checkpoint_path(source, step))
        layers = range(model.n_layers + 1)
        if clusters and len(layers) != len(clusters[0][0].layers):
            raise ValueError(
                f"checkpoints must be of one training, got {len(clusters[0][0].layers) - 1} layers and, at step "
                f"{step}, {model.n_layers}"
            )
        if not clusters:
            within = np.full((2, len(checkpoints), 2, len(layers)), np.nan)
        states = last_states(model, [instance.prompt for instance in every], layers, check=check)
        hidden = {"training subset": states[subset], "validation": states[len(training) :]}
        run.report(3 * number + 1, total)
        clusters.append(
            [
                cluster_states(hidden[name], group, tsne=tsne, seed=seed, n_init=n_init, check=check)
                for name, group in groups.items()
            ]
        )
        for row, (part, group) in enumerate(
            ((states[: len(training)], training), (hidden["validation"], groups["validation"]))
        ):
            if parts_to_cluster(group, "task", True):
                found = cluster_states(
                    part, group, labels=["task"], within_input=True, seed=seed, n_init=min(n_init, 2), check=check
                )
                within[0, number, row], within[1, number, row] = found.f1_matched[0], found.f1_matched_chance[0]
        run.report(3 * number + 2, total)
        near.append(
            nearest_tasks(states[: len(training)], training, hidden["validation"], groups["validation"],
                          k=k, check=check)
        )  # fmt: skip
        for name in groups:
            planes = [principal_plane(hidden[name][:, layer].astype(np.float64)) for layer in layers]
            points = [plane for plane, _ in planes]
            if xy[name]:
                points = list(map(_procrustes, points, xy[name][-1]))
            xy[name].append(np.stack(points))
            explained[name].append([share for _, share in planes])
        run.report(3 * number + 3, total)
    scores: dict[str, Any] = {
        name: np.array([[getattr(each, name) for each in groups_of] for groups_of in clusters]) for name in MEASURES
    }
    return ClusterTraining(
        steps=np.array(sorted(checkpoints)),
        layers=clusters[0][0].layers,
        sets=SETS,
        labels=LABEL_KINDS,
        **scores,
        f1_within_input=within[0],
        f1_within_input_chance=within[1],
        same_task=np.array([each.same_task for each in near]),
        knn_accuracy=np.array([each.accuracy for each in near]),
        same_task_chance=near[0].same_task_chance,
        knn_accuracy_chance=near[0].accuracy_chance,
        k=k,
        subset_xy=np.array(xy["training subset"], dtype=np.float32),
        validation_xy=np.array(xy["validation"], dtype=np.float32),
        subset_explained=np.array(explained["training subset"]),
        validation_explained=np.array(explained["validation"]),
        provenance=provenance(None, tsne=tsne, seed=seed, n_init=n_init, k=k, task_seed=task.seed),
    )


def _checkpoint_path(source: Any, step: int) -> str | Path:
    if not isinstance(source, str | Path):
        raise TypeError(
            f"the checkpoint of step {step} must be a folder or a loaded model, got {type(source).__name__}"
        )
    return source


def _task_names(instances: Sequence[InstructionInstance]) -> set[str]:
    return {instance.task for instance in instances}


def _procrustes(points: Floats, towards: Floats) -> Floats:
    """Points rotated or reflected about the origin onto others (orthogonal Procrustes)."""
    left, _, right = np.linalg.svd(points.T @ towards)
    aligned: Floats = points @ (left @ right)
    return aligned
