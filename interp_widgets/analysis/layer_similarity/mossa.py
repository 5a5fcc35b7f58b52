"""`mossa`: how much of each task a model encodes at each layer, by comparison with models tuned on that task only."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from interp_widgets.analysis._core.arrays import Bools, Floats, Ints
from interp_widgets.analysis._core.checks import stream_indices
from interp_widgets.analysis._core.comparing import check_same, pair_provenance
from interp_widgets.analysis._core.cost import Cost
from interp_widgets.analysis._core.result import Result, provenance, record, with_axes
from interp_widgets.analysis._core.run import RunOptions
from interp_widgets.analysis._core.tables import DataFrame, table
from interp_widgets.analysis.hidden_states import last_states, last_states_cost
from interp_widgets.analysis.layer_similarity.cka import alignments, layers_that_vary
from interp_widgets.analysis.layer_similarity.readability import readability
from interp_widgets.analysis.layer_similarity.sections import LayerSections, layer_sections
from interp_widgets.analysis.layer_similarity.similarity import different_texts, is_debiased, small_sample_warning
from interp_widgets.arguments import checked
from interp_widgets.data.task_texts import TaskTexts
from interp_widgets.models import Model, load_model

VARIANCE = 0.99
"""Share of the variance that the counted dimensions explain."""
MEASURES = ("flesch_kincaid", "coleman_liau", "words")


@record
class MossaResult(Result):
    """What `mossa` returns: similarity of a model to the control model of each task, by layer.

    Layer l is the stream entering block l at the last token, n_layers the one entering the final norm; by default they
    are the outputs of the blocks, 1..n_layers.

    Example:
        >>> tasks = demo_task_texts(12, names=["plural", "sum"])
        >>> found = mossa(base, {"plural": tuned, "sum": tuned}, tasks)
        >>> found.cka.shape, found.tasks, found.debiased
        ((2, 6), ('plural', 'sum'), True)
    """

    tasks: Sequence[str] = with_axes("tasks")
    """Names of the tasks."""
    clusters: Sequence[str] = with_axes("tasks")
    """Cluster of each task; empty if it has none."""
    unseen: Bools = with_axes("tasks")
    """(tasks,) True for tasks that the tuned model was not tuned on."""
    layers: Ints = with_axes("layers")
    """The layers compared."""
    biased: Floats = with_axes("tasks", "layers")
    """(tasks, layers) biased CKA of the model with the control model, 0..1; NaN if one is constant over the texts."""
    unbiased: Floats = with_axes("tasks", "layers")
    """(tasks, layers) debiased CKA."""
    chance: Floats = with_axes("tasks", "layers")
    """(tasks, layers) mean biased CKA with the texts of one model shuffled."""
    dimensions: Ints = with_axes("tasks", "layers")
    """(tasks, layers) components that explain 99% of the variance of the model's states, at most texts - 1."""
    texts: Ints = with_axes("tasks")
    """(tasks,) number of different texts."""
    flesch_kincaid: Floats = with_axes("tasks")
    """Flesch-Kincaid grade of the task's texts."""
    coleman_liau: Floats = with_axes("tasks")
    """Coleman-Liau index of the task's texts."""
    words: Floats = with_axes("tasks")
    """Mean number of words per text."""
    debiased: bool
    """Whether `cka` is the debiased estimate, the default if a task has fewer than 10 texts per dimension."""
    d_model: int
    """Width of the model."""

    @property
    def cka(self) -> Floats:
        """(tasks, layers) the debiased or the biased estimate, as `debiased` says."""
        return self.unbiased if self.debiased else self.biased

    @property
    def warning(self) -> str:
        """A sentence on the bias of the biased estimate for this number of texts; empty if there are enough texts."""
        return small_sample_warning(int(self.texts.min()), self.d_model, self.chance, debiased=self.debiased)

    def of_cluster(self, cluster: str) -> Bools:
        """(tasks,) which tasks belong to a cluster."""
        return np.array([own == cluster for own in self.clusters])

    def to_frame(self) -> DataFrame:
        """One row per task and layer."""
        per_task = {name: np.asarray(getattr(self, name))[:, None] for name in ("texts", *MEASURES)}
        return table(
            {"task": self.tasks, "layer": self.layers},
            {
                "cluster": np.asarray(self.clusters, dtype=object)[:, None], "unseen": self.unseen[:, None],
                "cka": self.cka, "biased": self.biased, "debiased": self.unbiased, "chance": self.chance,
                "dimensions": self.dimensions, **per_task,
            },
        )  # fmt: skip


@checked
def mossa(
    experimental: Model,
    controls: Mapping[str, Any],
    tasks: Sequence[TaskTexts],
    *,
    debiased: bool | None = None,
    layers: Sequence[int] | None = None,
    prepend_bos: bool | None = None,
    batch_size: int | None = None,
    progress: Callable[[int, int], None] | None = None,
    check: Callable[[], None] | None = None,
) -> MossaResult:
    """Compare a model with the control model of every task, layer by layer, by linear CKA at the last token.

    A control model was tuned on one task only (`tune_control_models`). At layers where a model is similar to it, the
    model encodes what the control model has learned of the task. Run it for a base model and for the model tuned on
    many tasks, and compare the results with `mossa_sections` (model-oriented sub-population and spectral analysis).

    Args:
        experimental: what `load_model` returns, the base or the tuned model.
        controls: task name to control model: `ControlModels`, or a dict of loaded models or of arguments of
            `load_model`, which are loaded one at a time.
        tasks: texts of each task, at least 4 different ones.
        debiased: whether `MossaResult.cka` is the debiased estimate; by default if a task has fewer than 10 texts per
            dimension. Both estimates are computed.
        layers: 0..n_layers, negative from the end; by default the outputs of all blocks, 1..n_layers.
        prepend_bos: overrides the models' BOS policies.
        batch_size: most texts in one pass; by default chosen by cost and memory.
        progress: called with (done, total) tasks.
        check: called before every pass; raises to cancel.

    Raises:
        ValueError: tasks with the same name, a task without a control model, a control model of another depth, too few
            texts, or a layer out of range.

    Source: Layer by Layer: Uncovering Where Multi-Task Learning Happens in Instruction-Tuned Large Language Models,
    section 2 and Eq. 1.

    Example:
        >>> tasks = demo_task_texts(12, names=["plural", "sum"])
        >>> found = mossa(base, {"plural": base, "sum": tuned}, tasks)
        >>> found.cka[:, -1].round(2)[0], bool(found.cka[1, -1] < 1)
        (np.float64(1.0), True)
    """
    names = [task.name for task in tasks]
    if not names or len(set(names)) < len(names):
        raise ValueError(f"tasks must be at least one, each of another name, got {', '.join(names) or 'none'}")
    if missing := [name for name in names if name not in controls]:
        raise ValueError(f"controls must have a model for every task: there is none for {missing[0]!r}")
    texts = [different_texts(task.texts) for task in tasks]
    wanted = stream_indices(experimental, range(1, experimental.n_layers + 1) if layers is None else layers)
    run = RunOptions(progress, check, batch_size)
    found: list[tuple[NDArray[Any], ...]] = []
    options: dict[str, Any] = {"prepend_bos": prepend_bos, "batch_size": batch_size, "check": check}
    for number, (name, own) in enumerate(zip(names, texts, strict=True)):
        run.stop_if_cancelled()
        states = last_states(experimental, own, wanted, **options)
        control = controls[name]
        if not isinstance(control, Model):
            control = load_model(control)
        if control.n_layers != experimental.n_layers:
            raise ValueError(
                f"the control model of {name!r} has {control.n_layers} layers and {experimental.name} has "
                f"{experimental.n_layers}: layers are compared one to one, so give control models of the same depth"
            )
        other = states if control is experimental else last_states(control, own, wanted, **options)
        del control
        found.append((*alignments(states, other, paired=True), dimensions_explaining(states)))
        run.report(number + 1, len(names))
    grades = [readability(own) for own in texts]
    counts = np.array([len(own) for own in texts])
    biased, unbiased, chance, dimensions = (np.stack(parts) for parts in zip(*found, strict=True))
    return MossaResult(
        tasks=names,
        clusters=[task.cluster for task in tasks],
        unseen=np.array([task.unseen for task in tasks]),
        layers=np.asarray(wanted),
        biased=biased,
        unbiased=unbiased,
        chance=chance,
        dimensions=dimensions,
        texts=counts,
        flesch_kincaid=np.array([grade.flesch_kincaid for grade in grades]),
        coleman_liau=np.array([grade.coleman_liau for grade in grades]),
        words=np.array([grade.words for grade in grades]) / counts,
        debiased=is_debiased(debiased, int(counts.min()), experimental.d_model),
        d_model=experimental.d_model,
        provenance=provenance(
            experimental.provenance(), analysis="mossa", controls=_control_names(controls), debiased=debiased
        ),
    )


@checked
def mossa_sections(
    base: MossaResult, tuned: MossaResult, *, unseen: bool = False, resamples: int = 1000, seed: int = 0
) -> LayerSections:
    """Fit shared, transition and refinement layers to the CKA of a tuned model minus that of its base model.

    Args:
        base: `mossa` of the base model.
        tuned: `mossa` of the tuned model, with the same control models, tasks and layers.
        unseen: fit to the tasks that the tuned model was not tuned on, instead of the others.
        resamples: bootstrap samples of the tasks.
        seed: of the bootstrap.

    Raises:
        ValueError: different tasks, layers or estimates in the two results, or fewer than 2 such tasks.

    Source: Layer by Layer: Uncovering Where Multi-Task Learning Happens in Instruction-Tuned Large Language Models,
    section 4.2; the fit is `layer_sections`.

    Example:
        >>> tasks = demo_task_texts(12, names=["plural", "sum", "past"])
        >>> controls = dict.fromkeys(("plural", "sum", "past"), tuned)
        >>> mossa_sections(mossa(base, controls, tasks), mossa(tuned, controls, tasks), resamples=50).layers
        array([1, 2, 3, 4, 5, 6])
    """
    check_same({
        "tasks": (base.tasks, tuned.tasks), "layers": (tuple(base.layers), tuple(tuned.layers)),
        "estimator": (base.debiased, tuned.debiased),
    })  # fmt: skip
    chosen = base.unseen == unseen
    if chosen.sum() < 2:
        kind = "unseen" if unseen else "tuned"
        raise ValueError(f"sections are fitted over tasks: give at least 2 {kind} ones, got {int(chosen.sum())}")
    difference = tuned.cka[chosen] - base.cka[chosen]
    finite = np.isfinite(difference).all(axis=0)
    if not finite.any():
        raise ValueError("no layer varies in every task: give texts that end in different tokens")
    found = layer_sections(difference[:, finite], layers=base.layers[finite].tolist(), resamples=resamples, seed=seed)
    return replace(found, provenance={**found.provenance, **pair_provenance(base, tuned), "unseen": unseen})


@record
class TaskCorrelations(Result):
    """What `task_correlations` returns: correlations over tasks, by layer, of CKA with difficulty and length of texts.

    Example:
        >>> tasks = demo_task_texts(8, unseen=False)
        >>> found = task_correlations(mossa(tuned, dict.fromkeys([task.name for task in tasks], base), tasks))
        >>> found.quantities, found.r.shape, bool((found.low <= found.r).all())
        (('flesch_kincaid', 'coleman_liau', 'words', 'texts'), (4, 6), False)
    """

    quantities: Sequence[str] = with_axes("quantities")
    """flesch_kincaid, coleman_liau, words (mean length of a text) and texts (their number)."""
    layers: Ints = with_axes("layers")
    """The layers."""
    r: Floats = with_axes("quantities", "layers")
    """(quantities, layers) Pearson's r; NaN if the quantity is equal for all tasks, as the number of texts often is."""
    low: Floats = with_axes("quantities", "layers")
    """Lower end of the 95% interval, by Fisher's transformation."""
    high: Floats = with_axes("quantities", "layers")
    """Upper end of the interval."""
    p: Floats = with_axes("quantities", "layers")
    """Two-sided p-values, not corrected for the number of layers and quantities."""
    tasks: int
    """Number of tasks."""

    def to_frame(self) -> DataFrame:
        """One row per quantity and layer."""
        columns = {"r": self.r, "low": self.low, "high": self.high, "p_two_sided": self.p}
        return table({"quantity": self.quantities, "layer": self.layers}, columns)


@checked
def task_correlations(result: MossaResult) -> TaskCorrelations:
    """Correlate CKA over tasks with the reading difficulty, the length and the number of each task's texts.

    Args:
        result: what `mossa` returns, of at least 4 tasks.

    Raises:
        ValueError: fewer than 4 tasks, which give no interval.

    Source: Layer by Layer: Uncovering Where Multi-Task Learning Happens in Instruction-Tuned Large Language Models,
    section 4.4, figures 6 and 10.

    Example:
        >>> tasks = demo_task_texts(8, unseen=False)
        >>> found = task_correlations(mossa(tuned, dict.fromkeys([task.name for task in tasks], base), tasks))
        >>> found.to_frame().columns.tolist(), found.tasks
        (['quantity', 'layer', 'r', 'low', 'high', 'p_two_sided'], 22)
    """
    if len(result.tasks) < 4:
        raise ValueError(f"a correlation over tasks needs at least 4 of them, got {len(result.tasks)}")
    quantities = (*MEASURES, "texts")
    numbers = np.array([[_pearson(getattr(result, name), cka) for cka in result.cka.T] for name in quantities])
    return TaskCorrelations(
        quantities=quantities,
        layers=result.layers,
        r=numbers[..., 0],
        low=numbers[..., 1],
        high=numbers[..., 2],
        p=numbers[..., 3],
        tasks=len(result.tasks),
        provenance=dict(result.provenance),
    )


def _pearson(x: NDArray[Any], y: NDArray[Any]) -> tuple[float, float, float, float]:
    """r, the ends of its 95% interval, and two-sided p; NaN if x or y is constant or not finite."""
    import scipy.stats

    if not (np.isfinite(x).all() and np.isfinite(y).all() and np.ptp(x) > 0 and np.ptp(y) > 0):
        return (float("nan"),) * 4
    found = scipy.stats.pearsonr(x, y)
    interval = found.confidence_interval(0.95)
    return float(found.statistic), float(interval.low), float(interval.high), float(found.pvalue)


def dimensions_explaining(states: Floats, share: float = VARIANCE) -> NDArray[np.int64]:
    """(layers,) number of principal components of (texts, layers, d_model) that explain this share of the variance.

    >>> states = np.zeros((6, 1, 4))
    >>> states[:, 0, :2] = [[1, 0], [-1, 0], [0, 1], [0, -1], [0, 0], [0, 0]]
    >>> dimensions_explaining(states).tolist(), dimensions_explaining(np.ones((6, 1, 4))).tolist()
    ([2], [0])
    """
    counts = np.zeros(states.shape[1], dtype=np.int64)
    for layer in np.flatnonzero(layers_that_vary(states)):
        rows = np.asarray(states[:, layer], dtype=np.float64)
        variance = np.linalg.svd(rows - rows.mean(axis=0), compute_uv=False) ** 2
        counts[layer] = np.searchsorted(np.cumsum(variance) / variance.sum(), share - 1e-12) + 1
    return counts


def mossa_cost(model: Model, lengths: Sequence[Sequence[int]]) -> Cost:
    """FLOPs and peak bytes of `mossa` for the numbers of tokens of each task's texts, without tuning."""
    each = [last_states_cost(model, own, model.n_layers) for own in lengths]
    rows = max(map(len, lengths))
    loading = 50.0 * model.parameter_count  # a control model is read, checked and dropped
    return Cost(
        2 * sum(one.flops for one in each) + loading * len(each),
        max(one.bytes for one in each) + 16.0 * rows * model.n_layers * model.d_model + 8.0 * model.parameter_count,
    )


def _control_names(controls: Mapping[str, Any]) -> str:
    """Task and name of each control model, as one string."""
    parts = []
    for task, control in sorted(controls.items() if type(controls) is dict else ()):
        is_named = isinstance(control, str | Path)
        parts.append(f"{task}: {control if is_named else getattr(control, 'name', type(control).__name__)}")
    return "; ".join(parts) or repr(controls)
