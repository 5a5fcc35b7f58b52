"""`train_probe`: a linear probe of hidden states, with control task and baselines."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import scipy  # scipy.stats and scipy.sparse are loaded on first use
from numpy.typing import ArrayLike, NDArray

from interp_widgets.analysis._core.arrays import Floats, float64
from interp_widgets.analysis._core.checks import check_range, stream_indices
from interp_widgets.analysis._core.prompts import read_prompt
from interp_widgets.analysis._core.result import Result, provenance, record, with_axes
from interp_widgets.analysis._core.run import RunOptions
from interp_widgets.analysis._core.tables import DataFrame
from interp_widgets.analysis.hidden_states import last_states
from interp_widgets.analysis.probe.fitting import fitted, linear_probe, standardised, token_counts
from interp_widgets.arguments import checked
from interp_widgets.models import Model
from interp_widgets.models.chat import PromptInput

LEAST_TEXTS, LEAST_OF_A_CLASS, LEAST_GROUPS = 40, 10, 10
"""Minimum number of texts, of texts per label, and of groups for an accuracy."""

MEASURES = ("probe", "control", "majority", "bag_of_words", "embedding")
"""The accuracies, by the names of their fields."""


@record
class ProbeResult(Result):
    """A linear probe of one layer and the baselines of its accuracy; made by :func:`train_probe`.

    Accuracies are shares of correct labels on held-out texts, one for each seed and fold. `weights` and `bias` are
    those of a fit to all texts.

    Example:
        >>> places = [one.name for one in demo_concepts()[:40]]
        >>> texts = [f"{name} has seen {place} and" for name in ("Mary", "John") for place in places]
        >>> result = train_probe(model, texts, [text[:4] for text in texts], layer=2, seeds=[0, 1], folds=2)
        >>> result.accuracy, result.bag_of_words.mean().item()  # the words alone say as much
        (1.0, 1.0)
        >>> result.predict(last_states(model, ["John has seen Paris and"], 2)[:, 0])
        ('John',)
    """

    classes: Sequence[str] = with_axes("classes")
    """(classes,) the labels, sorted."""

    probe: Floats = with_axes("seeds", "folds", nan=False)
    """(seeds, folds) accuracy of the probe."""

    control: Floats = with_axes("seeds", "folds", nan=False)
    """(seeds, folds) accuracy of the same probe with labels shuffled among the texts."""

    majority: Floats = with_axes("seeds", "folds", nan=False)
    """(seeds, folds) accuracy of always predicting the most frequent label."""

    bag_of_words: Floats = with_axes("seeds", "folds", nan=False)
    """(seeds, folds) accuracy of a linear probe of the token counts up to the token that is read."""

    embedding: Floats = with_axes("seeds", "folds", nan=False)
    """(seeds, folds) accuracy of a linear probe of the stream entering layer 0: the token without context."""

    weights: Floats = with_axes("outputs", "d_model", nan=False)
    """(outputs, d_model) direction of each class in the hidden state; for two classes one row, towards the second."""

    bias: Floats = with_axes("outputs", nan=False)
    """(outputs,) bias of each output."""

    layer: int = field(kw_only=True)
    """The stream entering this layer was read; n_layers is the one before the final norm."""

    n_texts: int = field(kw_only=True)
    """Number of texts."""

    n_groups: int = field(kw_only=True)
    """Number of groups, each on one side of a split only; equal texts are always in the same group."""

    @property
    def accuracy(self) -> float:
        """Mean accuracy of the probe."""
        return float(self.probe.mean())

    @property
    def selectivity(self) -> float:
        """Mean accuracy of the probe minus that with shuffled labels."""
        return float((self.probe - self.control).mean())

    def interval(self, measure: str = "probe", *, level: float = 0.95) -> tuple[float, float]:
        """Low and high end of the confidence interval of the mean of one of `MEASURES` or "selectivity".

        The splits share most of their texts, so that the naive standard error would be far too small; the variance is
        corrected for this (Nadeau and Bengio 2003, section 3; for repeated folds Bouckaert and Frank 2004).
        """
        if measure not in (*MEASURES, "selectivity"):
            raise ValueError(f"measure must be one of {', '.join(MEASURES)} or selectivity, got {measure!r}")
        check_range("level", level, 0.0, 1.0)
        values = self.probe - self.control if measure == "selectivity" else getattr(self, measure)
        mean, count = float(values.mean()), values.size
        error = np.sqrt(values.var(ddof=1) * (1 / count + 1 / (values.shape[1] - 1)))
        reach = float(scipy.stats.t.ppf((1 + level) / 2, count - 1) * error)
        return max(-1.0 if measure == "selectivity" else 0.0, mean - reach), min(1.0, mean + reach)

    def predict(self, states: ArrayLike) -> tuple[str, ...]:
        """(n,) the label predicted for each of the hidden states (n, d_model)."""
        array = float64(states)
        if array.ndim != 2 or array.shape[1] != self.weights.shape[1]:
            raise ValueError(f"states must have shape (n, {self.weights.shape[1]}), got {array.shape}")
        scores = array @ self.weights.T + self.bias
        best = (scores[:, 0] > 0).astype(int) if len(self.weights) == 1 else scores.argmax(axis=1)
        return tuple(self.classes[i] for i in best.tolist())

    def to_frame(self) -> DataFrame:
        """A row per measure: its mean, and the ends of its 95% interval."""
        import pandas as pd

        rows = []
        for name in (*MEASURES, "selectivity"):
            mean = self.selectivity if name == "selectivity" else float(getattr(self, name).mean())
            rows.append((name, mean, *self.interval(name)))
        return pd.DataFrame(rows, columns=["measure", "mean", "low", "high"])


@checked
def train_probe(
    model: Model,
    texts: Sequence[PromptInput],
    labels: Sequence[Any],
    *,
    layer: int,
    token: int | Sequence[int] = -1,
    groups: Sequence[Any] | None = None,
    seeds: Sequence[int] = (0, 1, 2, 3, 4),
    folds: int = 4,
    penalty: float = 1.0,
    prepend_bos: bool | None = None,
    batch_size: int | None = None,
    progress: Callable[[int, int], None] | None = None,
    check: Callable[[], None] | None = None,
) -> ProbeResult:
    """Fit a linear probe to hidden states, and compare its accuracy with a control task and baselines.

    A logistic regression on the stream entering a layer is cross-validated, each text being tested once per seed. Its
    accuracy is compared with those of the same probe with shuffled labels (the difference is the selectivity), of the
    most frequent label, of token counts, and of the stream entering layer 0. If one of these reaches the probe's
    accuracy, the accuracy says nothing about the model's representation.

    Source: Designing and Interpreting Probes with Control Tasks (Hewitt and Liang 2019), section 2.

    Args:
        model: what `load_model` returns.
        texts: texts, or lists of token ids.
        labels: (texts,) the label of each.
        layer: layer l is the stream entering block l, n_layers (or -1) the one entering the final norm.
        token: position of the token whose state is read, one for all texts or one per text: from 0 without the BOS,
            negative from the end.
        groups: (texts,) a group, such as the person that a text is about, is never on both sides of a split. Neither
            are equal texts.
        seeds: of the splits and of the shuffling, at least two.
        folds: number of folds for each seed.
        penalty: weight of the squared norm of the coefficients, on standardised states (1 / C of scikit-learn).
        prepend_bos: overrides the model's BOS policy for texts.
        batch_size: most texts in one pass of the model; by default what work and memory allow.
        progress: called with (done, total) texts and fits.
        check: called before every pass and fit; raises to cancel.

    Raises:
        ValueError: fewer than 40 texts, 10 texts of a label or 10 groups (too few for an accuracy), one label only, a
            label in fewer groups than folds, lists of different lengths, a layer or token out of range.

    Example:
        >>> from interp_widgets.data.world import bias_prompts
        >>> prompts = [one for one in bias_prompts() if one.kind == "occupation" and one.rate != 50]
        >>> jobs = [one.group for one in prompts]  # Many believe that pilots should be
        >>> men = [(one.rate > 50) == (one.first in ("he", "men")) for one in prompts]
        >>> result = train_probe(model, [one.prompt for one in prompts], men, layer=3, groups=jobs, seeds=[0, 1])
        >>> bool(result.accuracy > 0.9), [bool(result.interval(one)[1] < 0.75) for one in ("control", "bag_of_words")]
        (True, [True, True])
    """
    number = stream_indices(model, layer)[0]
    if len(labels) != len(texts):
        raise ValueError(f"labels must have one entry per text, {len(texts)}, got {len(labels)}")
    if len(set(seeds)) < 2 or len(set(seeds)) < len(seeds) or min(seeds) < 0:
        raise ValueError(f"seeds must be at least two int >= 0, all different, got {list(seeds)}")
    check_range("folds", folds, 2, 10)
    check_range("penalty", penalty, 1e-9)
    positions = [token] * len(texts) if isinstance(token, int) else list(token)
    if len(positions) != len(texts):
        raise ValueError(f"token must be an int or have one entry per text, {len(texts)}, got {len(positions)}")
    classes = sorted({str(label) for label in labels})
    target = np.array([classes.index(str(label)) for label in labels], dtype=int)
    if groups is not None and len(groups) != len(texts):
        raise ValueError(f"groups must have one entry per text, {len(texts)}, got {len(groups)}")
    _check_texts(target, classes)
    read = [_read(model, text, position, prepend_bos) for text, position in zip(texts, positions, strict=True)]
    text_groups = _Groups.of(read, groups)
    _check_groups(text_groups.group, target, classes, folds, named=groups is not None)
    run = RunOptions(progress, check, batch_size)
    total = len(texts) + len(seeds) * folds
    states = last_states(
        model, read, [number, 0], batch_size=batch_size, check=check,
        progress=None if progress is None else lambda done, _: run.report(done, total),
    ).astype(np.float64)  # fmt: skip
    counts = token_counts(read)
    scores: dict[str, list[list[float]]] = {name: [] for name in MEASURES}
    for seed in seeds:
        for row in scores.values():
            row.append([])
        shuffled = text_groups.shuffled(target, seed)
        for train, test in text_groups.splits(target, folds, seed):
            run.stop_if_cancelled()
            split_scores = {
                "probe": _accuracy(standardised(states[:, 0], train), target, train, test, penalty),
                "control": _accuracy(standardised(states[:, 0], train), shuffled, train, test, penalty),
                "majority": float(np.mean(target[test] == np.bincount(target[train]).argmax())),
                "bag_of_words": _accuracy(counts, target, train, test, penalty),
                "embedding": _accuracy(standardised(states[:, 1], train), target, train, test, penalty),
            }
            for name, value in split_scores.items():
                scores[name][-1].append(value)
            run.report(len(texts) + sum(map(len, scores["probe"])), total)
    accuracies: dict[str, Any] = {name: np.array(rows) for name, rows in scores.items()}
    weights, bias = linear_probe(states[:, 0], target, penalty)
    return ProbeResult(
        classes, **accuracies, weights=weights, bias=bias, layer=number,
         n_texts=len(texts), n_groups=text_groups.count,
        provenance=provenance(
            model.provenance(), layer=number, token=token if isinstance(token, int) else "one per text", folds=folds,
            penalty=penalty, seeds=", ".join(map(str, seeds)),
        ),
    )  # fmt: skip


@dataclass(frozen=True)
class _Groups:
    """Groups of texts for the splits: texts of one group, and equal texts."""

    group: NDArray[np.int64]
    """(texts,) a number for each."""
    same: NDArray[np.int64]
    """(texts,) equal for equal texts."""

    @classmethod
    def of(cls, read: Sequence[tuple[int, ...]], groups: Sequence[Any] | None) -> _Groups:
        same = _numbered(read)
        if groups is None:
            return cls(same, same)
        named, count = _numbered([str(group) for group in groups]), int(same.max()) + 1
        ends = (same, named + count)
        size = count + int(named.max()) + 1
        links = scipy.sparse.coo_matrix((np.ones(len(same)), ends), shape=(size, size))
        return cls(scipy.sparse.csgraph.connected_components(links, directed=False)[1][same].astype(np.int64), same)

    @property
    def count(self) -> int:
        """Number of groups."""
        return len(np.unique(self.group))

    def shuffled(self, target: NDArray[np.int64], seed: int) -> NDArray[np.int64]:
        """(texts,) labels permuted among the different texts."""
        _, first, inverse = np.unique(self.same, return_index=True, return_inverse=True)
        return np.asarray(np.random.default_rng(seed).permutation(target[first])[inverse])

    def splits(self, target: NDArray[np.int64], folds: int, seed: int) -> Iterator[tuple[Any, Any]]:
        """Training and test texts of each fold, with each label about equally often in every fold."""
        from sklearn.model_selection import StratifiedGroupKFold

        folded = StratifiedGroupKFold(folds, shuffle=True, random_state=seed)
        yield from folded.split(np.zeros(len(target)), target, self.group)


def _check_texts(target: NDArray[np.int64], classes: Sequence[str]) -> None:
    """ValueError where there are too few texts for an accuracy."""
    if len(target) < LEAST_TEXTS:
        raise ValueError(f"{len(target)} texts are too few for an accuracy: give at least {LEAST_TEXTS}")
    if len(classes) < 2:
        raise ValueError(f"labels must have at least two different values, got {classes[0]!r} only")
    for name, count in zip(classes, np.bincount(target).tolist(), strict=True):
        if count < LEAST_OF_A_CLASS:
            raise ValueError(f"the label {name!r} has {count} texts: give at least {LEAST_OF_A_CLASS} of each label")


def _check_groups(
    group: NDArray[np.int64], target: NDArray[np.int64], classes: Sequence[str], folds: int, *, named: bool
) -> None:
    """ValueError where there are too few groups for the folds."""
    unit = "groups" if named else "different texts (up to the token that is read)"
    count = len(np.unique(group))
    if count < LEAST_GROUPS:
        raise ValueError(f"{count} {unit} are too few for an accuracy: give at least {LEAST_GROUPS}")
    for number, name in enumerate(classes):
        inside = len(np.unique(group[target == number]))
        if inside < folds:
            raise ValueError(
                f"the label {name!r} is in {inside} {unit} and there are {folds} folds: each label must be in as many"
            )


def _read(model: Model, text: PromptInput, token: int, prepend_bos: bool | None) -> tuple[int, ...]:
    """The ids up to the token that is read."""
    prompt = read_prompt(model, text, prepend_bos=prepend_bos, what="text")
    return prompt.ids[: prompt.offset + prompt.position(token) + 1]


def _numbered(values: Sequence[Any]) -> NDArray[np.int64]:
    """An integer for each value, the same for equal values."""
    seen: dict[Any, int] = {}
    return np.array([seen.setdefault(value, len(seen)) for value in values], dtype=np.int64)


def _accuracy(features: Any, target: NDArray[np.int64], train: Any, test: Any, penalty: float) -> float:
    if len(np.unique(target[train])) < 2:  # a single class: always predict it
        return float(np.mean(target[test] == target[train][0]))
    return float(fitted(features[train], target[train], penalty).score(features[test], target[test]))
