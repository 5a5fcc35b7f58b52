"""`cluster_hidden_states`: KMeans on the hidden states of every layer, compared with three kinds of labels."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from interp_widgets.analysis._core.arrays import Floats, Ints, float64
from interp_widgets.analysis._core.checks import check_range, stream_indices
from interp_widgets.analysis._core.result import Result, provenance, record, with_axes
from interp_widgets.analysis._core.run import Check, RunOptions
from interp_widgets.analysis._core.tables import DataFrame, table
from interp_widgets.analysis.hidden_states import last_states
from interp_widgets.arguments import checked
from interp_widgets.data.instruction_task import LABEL_KINDS, InstructionInstance, LabelKind
from interp_widgets.models import Model
from interp_widgets.models.threads import few_threads

from .scores import SCORES, clustering_scores, contingency, label_indices, matched_f1, pair_f1

TSNE_COMPONENTS, TSNE_PERPLEXITY, TSNE_STEPS = 3, 10.0, 2000
"""Settings of the optional t-SNE before KMeans (Table 5)."""
MEASURES = (*SCORES, "f1_matched_chance", "f1_pair_chance")
SHUFFLES = 10
"""Label shuffles that the chance level of the F1 scores is averaged over."""


@record
class HiddenClusters(Result):
    """What `cluster_hidden_states` returns: clusters at each layer, and their agreement with each kind of labels.

    Example:
        >>> clusters = cluster_hidden_states(tuned, demo_instructions(phrasings_per_task=2, inputs=3), layers=[0, 6])
        >>> clusters.labels, clusters.f1_matched.shape, clusters.n_clusters.tolist()
        (('task', 'distribution', 'distribution_mapping'), (3, 2), [3, 10, 30])
    """

    labels: Sequence[str] = with_axes("labels")
    """Kinds of labels: task, distribution, distribution_mapping."""

    layers: Ints = with_axes("layers")
    """(layers,) Layer l is the stream entering block l, n_layers the one entering the final norm."""

    f1_matched: Floats = with_axes("labels", "layers")
    """(labels, layers) Matched F1, 0..1; see `clustering_scores`."""

    f1_pair: Floats = with_axes("labels", "layers")
    """(labels, layers) F1 over pairs, 0..1."""

    ari: Floats = with_axes("labels", "layers")
    """(labels, layers) Adjusted Rand index."""

    ami: Floats = with_axes("labels", "layers")
    """(labels, layers) Adjusted mutual information."""

    f1_matched_chance: Floats = with_axes("labels", "layers")
    """(labels, layers) The matched F1 of the same clusters with shuffled labels; ARI and AMI are 0 by chance."""

    f1_pair_chance: Floats = with_axes("labels", "layers")
    """(labels, layers) The pair F1 of the same clusters with shuffled labels."""

    clusters: Ints = with_axes("labels", "layers", "instances")
    """(labels, layers, instances) Index of the cluster of each instance; -1 for an instance that was left out."""

    n_clusters: Ints = with_axes("labels")
    """(labels,) Number of clusters, equal to the number of labels; with ``within_input`` the sum over inputs."""

    def to_frame(self) -> DataFrame:
        """One row per kind of labels and layer, with all scores."""
        return table({"labels": self.labels, "layer": self.layers}, {name: getattr(self, name) for name in MEASURES})


@checked
def cluster_hidden_states(
    model: Model,
    instances: Sequence[InstructionInstance],
    *,
    labels: Sequence[LabelKind] = LABEL_KINDS,
    layers: Sequence[int] | None = None,
    tsne: bool = False,
    within_input: bool = False,
    seed: int = 0,
    n_init: int = 10,
    prepend_bos: bool | None = None,
    batch_size: int | None = None,
    progress: Callable[[int, int], None] | None = None,
    check: Callable[[], None] | None = None,
) -> HiddenClusters:
    """Cluster the hidden states of each instance's last token by KMeans, with as many clusters as labels, per layer.

    Args:
        model: what `load_model` returns.
        instances: prompts with their labels: `InstructionTask.training_subset`, `demo_instructions`,
            `read_instructions`.
        labels: kinds of labels; each is clustered separately.
        layers: layer l is the stream entering block l (0: the embeddings), n_layers (or -1) the one entering the final
            norm; all by default.
        tsne: first reduce the states to 3 dimensions by t-SNE (perplexity 10, initialised by PCA).
        within_input: cluster the instances of each input separately and average the scores over inputs, weighted by
            their instances. In small models the input affects a state more than the task does; this controls for it. An
            input whose instances all have the same label, or all different labels, is left out.
        seed: of KMeans, t-SNE and shuffled labels.
        n_init: initialisations of KMeans; the best result is used.
        prepend_bos: overrides the model's BOS policy.
        batch_size: most prompts in one pass.
        progress: called with (done, total): prompts, then clusterings.
        check: called before every pass and clustering; raises to cancel.

    Returns:
        The scores (labels, layers), and the clusters.

    Raises:
        ValueError: fewer than 4 instances, a layer out of range, an unknown kind of labels, n_init below 1.

    Source: "Transformer-based Causal Language Models Perform Clustering", §3.2, appendix B, Table 5.

    Example:
        >>> instances = demo_instructions(phrasings_per_task=2, inputs=4)
        >>> clusters = cluster_hidden_states(tuned, instances, labels=["task"], layers=[0, -1])
        >>> bool(clusters.f1_matched[0, 1] > clusters.f1_matched_chance[0, 1])
        True
    """
    wanted = stream_indices(model, range(model.n_layers + 1) if layers is None else layers)
    check_instances(instances)
    run, total = RunOptions(progress), len(instances) + len(wanted) * len(labels)
    states = last_states(
        model,
        [instance.prompt for instance in instances],
        wanted,
        prepend_bos=prepend_bos,
        batch_size=batch_size,
        progress=run.after(0, total).progress,
        check=check,
    )
    return cluster_states(
        states,
        instances,
        labels=labels,
        layers=wanted,
        tsne=tsne,
        within_input=within_input,
        seed=seed,
        n_init=n_init,
        progress=run.after(len(instances), total).progress,
        check=check,
        origin=model.provenance(),
    )


def cluster_states(
    states: ArrayLike,
    instances: Sequence[InstructionInstance],
    *,
    labels: Sequence[LabelKind] = LABEL_KINDS,
    layers: Sequence[int] | None = None,
    tsne: bool = False,
    within_input: bool = False,
    seed: int = 0,
    n_init: int = 10,
    progress: Callable[[int, int], None] | None = None,
    check: Callable[[], None] | None = None,
    origin: Any = None,
) -> HiddenClusters:
    """Cluster hidden states (instances, layers, d_model); see `cluster_hidden_states`."""
    check_instances(instances)
    check_range("n_init", n_init, 1)
    if not labels:
        raise ValueError(f"labels must not be empty: name at least one of {', '.join(LABEL_KINDS)}")
    hidden = checked_states(states, len(instances))
    numbers = checked_layers(hidden, layers)
    run, total = RunOptions(progress, check), len(labels) * len(numbers)
    named = {kind: label_indices([instance.label(kind) for instance in instances]) for kind in labels}
    parts = {kind: _require_parts(parts_to_cluster(instances, kind, within_input)) for kind in labels}
    shape = (len(labels), len(numbers))
    scores: dict[str, Any] = {name: np.empty(shape) for name in MEASURES}
    clusters = np.full((*shape, len(instances)), -1, dtype=np.int64)
    for column in range(len(numbers)):
        points = hidden[:, column]
        if tsne:
            points = paper_tsne(points, seed, check)
        for row, kind in enumerate(labels):
            sums, used = np.zeros(len(MEASURES)), 0
            for part in parts[kind]:
                run.stop_if_cancelled()
                true = label_indices(named[kind][part].tolist())
                found = kmeans(points[part], int(true.max()) + 1, seed, n_init)
                clusters[row, column, part] = found + clusters[row, column].max() + 1
                result = clustering_scores(true.tolist(), found.tolist())
                values = [getattr(result, name) for name in SCORES]
                sums += len(part) * np.array([*values, *_chance_f1(true, found, seed)])
                used += len(part)
            for name, value in zip(MEASURES, sums / used, strict=True):
                scores[name][row, column] = value
            run.report(column * len(labels) + row + 1, total)
    return HiddenClusters(
        labels=tuple(labels),
        layers=np.array(numbers),
        clusters=clusters,
        n_clusters=np.array(
            [sum(len(np.unique(named[kind][part])) for part in parts[kind]) for kind in labels], dtype=np.int64
        ),
        **scores,
        provenance=provenance(
            origin, tsne=tsne, within_input=within_input, seed=seed, n_init=n_init, instances=len(instances)
        ),
    )


def parts_to_cluster(instances: Sequence[InstructionInstance], kind: LabelKind, within_input: bool) -> list[Ints]:
    """Indices of the instances that are clustered together: all, or those of each input that has labels to compare."""
    if not within_input:
        return [np.arange(len(instances))]
    true = label_indices([instance.label(kind) for instance in instances])
    inputs = label_indices([instance.mapping.partition("→")[0] for instance in instances])
    parts = [np.flatnonzero(inputs == number) for number in range(int(inputs.max()) + 1)]
    return [part for part in parts if 1 < len(np.unique(true[part])) < len(part)]


def _require_parts(parts: list[Ints]) -> list[Ints]:
    if not parts:
        raise ValueError(
            "within_input needs an input with instances of two labels, one of them with two instances: give more "
            "instances, or within_input=False"
        )
    return parts


def check_instances(instances: Sequence[InstructionInstance]) -> None:
    """ValueError for fewer than 4 instances."""
    if len(instances) < 4:
        raise ValueError(f"instances must be 4 or more, got {len(instances)}")


def checked_states(states: ArrayLike, count: int) -> Floats:
    """The states as float64 (instances, layers, d_model); ValueError for another shape, NaN or infinity."""
    hidden = float64(states)
    if hidden.ndim != 3 or len(hidden) != count:
        raise ValueError(f"states must have shape ({count}, layers, d_model), got {hidden.shape}")
    if not np.isfinite(hidden).all():
        raise ValueError(f"states must be finite, got NaN or infinity in {np.sum(~np.isfinite(hidden))} places")
    return hidden


def checked_layers(hidden: Floats, layers: Sequence[int] | None) -> tuple[int, ...]:
    """The indices of the layers of states (instances, layers, d_model), by default from 0; ValueError if they differ in
    number."""
    numbers = tuple(range(hidden.shape[1])) if layers is None else tuple(layers)
    if len(numbers) != hidden.shape[1]:
        raise ValueError(f"layers must name the {hidden.shape[1]} layers of states, got {len(numbers)}")
    return numbers


def kmeans(points: Floats, count: int, seed: int, n_init: int) -> Ints:
    """The KMeans cluster of each point; at most as many clusters as there are different points."""
    from sklearn.cluster import KMeans

    count = min(count, len(np.unique(points, axis=0)))
    with few_threads(0):
        labels = KMeans(count, n_init=n_init, random_state=seed).fit(points).labels_
    return np.asarray(labels, dtype=np.int64)


def paper_tsne(points: Floats, seed: int, check: Check = None) -> Floats:
    """(instances, 3) points after t-SNE with the paper's settings."""
    return tsne_components(points, TSNE_COMPONENTS, TSNE_PERPLEXITY, TSNE_STEPS, seed, check)


def tsne_components(
    points: Floats, components: int, perplexity: float, steps: int, seed: int, check: Check = None
) -> Floats:
    """t-SNE of points, initialised by PCA; it runs in another thread, so that it can be cancelled."""
    from sklearn.manifold import TSNE

    # t-SNE cannot separate equal points, such as equal input tokens at layer 0
    scale = max(float(points.std()), 1e-12)
    jittered = points + np.random.default_rng(seed).normal(0, 1e-6 * scale, points.shape)
    fitted = TSNE(
        components,
        perplexity=min(perplexity, (len(points) - 1) / 3),
        init="pca",
        max_iter=steps,
        random_state=seed,
    )
    embedded: Floats = RunOptions(check=check).run_cancellable(lambda: fitted.fit_transform(jittered))
    return np.asarray(embedded, dtype=np.float64)


def _chance_f1(true: Ints, found: Ints, seed: int) -> tuple[float, float]:
    """Mean matched F1 and mean pair F1 with shuffled labels."""
    rng = np.random.default_rng(seed)
    counts = [contingency(rng.permutation(true), found) for _ in range(SHUFFLES)]
    return float(np.mean([matched_f1(each) for each in counts])), float(np.mean([pair_f1(each) for each in counts]))
