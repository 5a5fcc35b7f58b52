"""`layer_projections`: 2D maps of the texts of several tasks at each layer."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import numpy as np

from interp_widgets.analysis._core.arrays import Bools, Floats, Ints
from interp_widgets.analysis._core.checks import check_choice, check_range, stream_indices
from interp_widgets.analysis._core.cost import Cost
from interp_widgets.analysis._core.result import Result, provenance, record, with_axes
from interp_widgets.analysis._core.run import RunOptions
from interp_widgets.analysis._core.tables import DataFrame, table
from interp_widgets.analysis.concepts.maps import (
    WIDTH,
    MapMethod,
    align_to_main_axis,
    components,
    projected,
    tsne_places,
    umap_places,
)
from interp_widgets.analysis.hidden_states import last_states, last_states_cost
from interp_widgets.analysis.layer_similarity.cka import layers_that_vary
from interp_widgets.arguments import checked
from interp_widgets.data.task_texts import TaskTexts
from interp_widgets.models import Model


@record
class LayerProjections(Result):
    """What `layer_projections` returns: 2D coordinates of every text at every layer.

    Example:
        >>> tasks = demo_task_texts(8, names=["plural", "sum", "story"])
        >>> found = layer_projections(model, tasks, method="pca")
        >>> found.xy.shape, found.task[0], found.cluster[-1]
        ((6, 24, 2), 'plural', 'writing')
    """

    layers: Ints = with_axes("layers")
    """The layers, counted as in `MossaResult`."""
    xy: Floats = with_axes("layers", "texts", 2)
    """(layers, texts, 2) coordinates; NaN at a layer that is constant over the texts. Axes differ between layers."""
    task: Sequence[str] = with_axes("texts")
    """Task of each text."""
    cluster: Sequence[str] = with_axes("texts")
    """Task cluster of each text."""
    unseen: Bools = with_axes("texts")
    """(texts,) True for texts of tasks that the tuned model was not tuned on."""
    texts: Sequence[str] = with_axes("texts")
    """The texts."""
    method: str
    """"pca", "tsne" or "umap"."""

    def to_frame(self) -> DataFrame:
        """One row per layer and text."""
        columns = {
            "task": np.asarray(self.task, dtype=object), "cluster": np.asarray(self.cluster, dtype=object),
            "unseen": self.unseen, "x": self.xy[..., 0], "y": self.xy[..., 1],
        }  # fmt: skip
        return table({"layer": self.layers, "text": self.texts}, columns)


@checked
def layer_projections(
    model: Model,
    tasks: Sequence[TaskTexts],
    *,
    method: MapMethod = "pca",
    layers: Sequence[int] | None = None,
    seed: int = 0,
    n_neighbors: int = 15,
    prepend_bos: bool | None = None,
    batch_size: int | None = None,
    progress: Callable[[int, int], None] | None = None,
    check: Callable[[], None] | None = None,
) -> LayerProjections:
    """Project the states of texts at their last token to two dimensions, separately at each layer.

    Args:
        model: what `load_model` returns.
        tasks: tasks with at least 4 texts in total.
        method: "pca" for the first two principal components; "tsne" or "umap" of the first 50, with cosine distance.
        layers: 0..n_layers, negative from the end; by default the outputs of all blocks, 1..n_layers.
        seed: of PCA, t-SNE and UMAP.
        n_neighbors: of UMAP; the perplexity of t-SNE is twice as large. Reduced if there are few texts.
        prepend_bos: overrides the model's BOS policy.
        batch_size: most texts in one pass of the model; by default chosen by cost and memory.
        progress: called with (done, total) layers.
        check: called before every pass and layer, and during t-SNE and UMAP; raises to cancel.

    Raises:
        ValueError: fewer than 4 texts, an unknown method, ``n_neighbors`` below 2, a layer out of range.

    Source: Layer by Layer: Uncovering Where Multi-Task Learning Happens in Instruction-Tuned Large Language Models,
    figures 4, 11 and 12.

    Example:
        >>> tasks = demo_task_texts(8, names=["plural", "sum"])
        >>> layer_projections(model, tasks, layers=[3]).to_frame().columns.tolist()
        ['layer', 'text', 'task', 'cluster', 'unseen', 'x', 'y']
    """
    check_choice("method", method, MapMethod)
    check_range("n_neighbors", n_neighbors, 2)
    rows = [(task, text) for task in tasks for text in task.texts]
    if len(rows) < 4:
        raise ValueError(f"tasks must have at least 4 texts in total, got {len(rows)}")
    wanted = stream_indices(model, range(1, model.n_layers + 1) if layers is None else layers)
    run = RunOptions(progress, check, batch_size)
    states = last_states(
        model, [text for _, text in rows], wanted, prepend_bos=prepend_bos, batch_size=batch_size, check=check
    )
    xy = np.full((len(wanted), len(rows), 2), np.nan)
    near = min(n_neighbors, len(rows) - 1)
    for place, varies in enumerate(layers_that_vary(states)):
        run.stop_if_cancelled()
        if varies:
            axes, middle, _ = components(states[:, place], 2 if method == "pca" else WIDTH, seed)
            parts = projected(states[:, place], axes, middle)
            if method == "pca":
                xy[place, :, : parts.shape[1]] = parts[:, :2]
            else:
                lay_out = umap_places if method == "umap" else tsne_places
                xy[place] = align_to_main_axis(run.run_cancellable(partial(lay_out, parts, near, seed)))
        run.report(place + 1, len(wanted))
    return LayerProjections(
        layers=np.asarray(wanted),
        xy=xy.astype(np.float32),
        task=[task.name for task, _ in rows],
        cluster=[task.cluster for task, _ in rows],
        unseen=np.array([task.unseen for task, _ in rows]),
        texts=[text for _, text in rows],
        method=method,
        provenance=provenance(
            model.provenance(), analysis="layer_projections", method=method, seed=seed, n_neighbors=n_neighbors
        ),
    )


def layer_projections_cost(model: Model, lengths: Sequence[int], method: MapMethod) -> Cost:
    """FLOPs and peak bytes of `layer_projections` on texts with these numbers of tokens."""
    states = last_states_cost(model, lengths, model.n_layers)
    per_text = {"pca": 0.0, "umap": 2e5, "tsne": 4e6}[method]
    work = len(lengths) * model.n_layers * (16.0 * 2 * model.d_model * (WIDTH + 10) + per_text)
    return Cost(states.flops + work, states.bytes + 12.0 * len(lengths) * model.n_layers * model.d_model)
