"""Linear probes for biased texts at every layer: accuracy with controls, directions, generalization across layers."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from interp_widgets.analysis._core.arrays import Bools, Floats
from interp_widgets.analysis._core.checks import check_choice, check_range, index
from interp_widgets.analysis._core.cost import Cost, chunk_bytes, pass_flops
from interp_widgets.analysis._core.prompts import read_prompt
from interp_widgets.analysis._core.result import Result, provenance, record, with_axes
from interp_widgets.analysis._core.run import RunOptions
from interp_widgets.analysis._core.tables import DataFrame
from interp_widgets.analysis.bias.states import Pool, biased_and_benign, pooled_states
from interp_widgets.analysis.probe.fitting import fitted, linear_probe, token_counts
from interp_widgets.arguments import checked
from interp_widgets.data.bias.labelled import BiasData, LabeledTexts
from interp_widgets.models import Model
from interp_widgets.renamed import renamed

LEAST_GROUPS = 10
"""Minimum number of groups of texts."""
_SPLITS_DRAWN = 20
"""Splits drawn per split needed, at most, to find splits with both labels on both sides."""
_ITERATIONS = 50
"""Typical number of iterations of a fit."""


@renamed(generalising="generalizing", generalisation="generalization")
@record
class BiasProbes(Result):
    """What `train_bias_probes` returns: a probe for every layer, with the baselines to compare its accuracy with.

    The probe of layer l reads the stream that leaves block l. Accuracies and AUC are on held-out texts, one number per
    split.

    Example:
        >>> probes = train_bias_probes(base, demo_bias_texts(), pool="last", splits=2)
        >>> probes.accuracy.shape, probes.direction.shape
        ((6, 2), (6, 192))
    """

    accuracy: Floats = with_axes("layers", "splits", nan=False)
    """(layers, splits) accuracy of the probe, 0..1."""
    auc: Floats = with_axes("layers", "splits", nan=False)
    """(layers, splits) area under the ROC curve: the probability that a biased text scores above a benign one."""
    control_accuracy: Floats = with_axes("layers", "splits", nan=False)
    """(layers, splits) accuracy of the same probe trained on shuffled labels."""
    control_auc: Floats = with_axes("layers", "splits", nan=False)
    """(layers, splits) AUC of the probe trained on shuffled labels."""
    second_accuracy: Floats = with_axes("layers", "splits", nan=False)
    """(layers, splits) accuracy of a second probe, orthogonal to the first."""
    second_auc: Floats = with_axes("layers", "splits", nan=False)
    """(layers, splits) AUC of the second probe."""
    bag_of_words: Floats = with_axes("splits", nan=False)
    """(splits,) AUC of a linear probe of the token counts."""
    embedding: Floats = with_axes("splits", nan=False)
    """(splits,) AUC of the same probe on the stream entering layer 0: the tokens without context."""
    generalization: Floats = with_axes("layers", "layers", nan=False, saved_as="generalisation")
    """(layers, layers) mean AUC of the probe of one layer (first axis) on the states of another (second axis)."""
    direction: Floats = with_axes("layers", "d_model", nan=False)
    """(layers, d_model) unit direction of each probe, pointing towards biased; fitted to all texts."""
    second: Floats = with_axes("layers", "d_model", nan=False)
    """(layers, d_model) unit direction of each second probe, orthogonal to the first."""
    projection: Floats = with_axes("layers", "texts", 2, nan=False)
    """(layers, texts, 2) projections of the centred states of the texts on both directions."""
    biased: Bools = with_axes("texts")
    """(texts,) True for a biased text."""
    texts: Sequence[str] = with_axes("texts")
    """The texts."""
    groups: Sequence[str] = with_axes("texts")
    """Group of each text; no group is in both the training and the test set of a split."""

    @property
    def n_layers(self) -> int:
        """Number of layers of the model."""
        return len(self.accuracy)

    @property
    def selectivity(self) -> Floats:
        """(layers,) mean accuracy of the probe minus that of the probe trained on shuffled labels."""
        return np.asarray((self.accuracy - self.control_accuracy).mean(axis=1))

    def generalizing(self, layer: int, threshold: float = 0.9) -> tuple[int, ...]:
        """S_l: the layers whose probes classify the states of ``layer`` with an AUC above ``threshold``."""
        number = index(layer, self.n_layers, "layer", f"{self.n_layers}-layer model")
        check_range("threshold", threshold, 0.0, 1.0)
        return tuple(np.flatnonzero(self.generalization[:, number] > threshold).tolist())

    def to_frame(self) -> DataFrame:
        """One row per layer: means over the splits."""
        import pandas as pd

        names = ("accuracy", "auc", "control_accuracy", "control_auc", "second_accuracy", "second_auc")
        means = {name: getattr(self, name).mean(axis=1) for name in names}
        return pd.DataFrame({"layer": range(self.n_layers), **means, "selectivity": self.selectivity})


@checked
def train_bias_probes(
    model: Model,
    data: BiasData | LabeledTexts,
    *,
    pool: Pool = "mean",
    held_out: float = 0.2,
    splits: int = 5,
    penalty: float = 1.0,
    seed: int = 0,
    batch_size: int | None = None,
    progress: Callable[[int, int], None] | None = None,
    check: Callable[[], None] | None = None,
) -> BiasProbes:
    """Fit a linear probe at every layer that distinguishes biased from benign texts.

    The probe is a logistic regression on the residual stream that leaves each block, at the last token or averaged over
    the tokens of a text. Its baselines are the same probe with shuffled labels, a second probe orthogonal to the first,
    a probe of the token counts, and a probe of the stream entering layer 0: accuracy that these reach too says nothing
    about the layer.

    Args:
        model: what `load_model` returns.
        data: labelled texts with groups, from `labeled_texts` or `demo_bias_texts`; or the output of a reader
            (`read_stereoset`, `read_crows_pairs`, `read_sentence_pairs`), where each pair is a group.
        pool: ``mean`` over the tokens, without a BOS; or the ``last`` token.
        held_out: share of the groups in the test set.
        splits: number of random splits, at least 2.
        penalty: L2 penalty on the coefficients, for standardised states (1 / C of scikit-learn).
        seed: of the splits and of the shuffling.
        batch_size: most texts in one pass of the model; by default chosen by cost and memory.
        progress: called with (done, total) texts and fits.
        check: called before every pass and fit; raises to cancel.

    Raises:
        ValueError: fewer than 10 groups, texts of one label only, too few splits with both labels on both sides, or
            states that are not finite.

    Source: Explainability in Large Language Models (Luo 2024), section 4.3.1; Hewitt and Liang 2019 for the control.

    Example:
        >>> probes = train_bias_probes(base, demo_bias_texts(), pool="last", splits=2)
        >>> bool(probes.auc[-1].mean() > 0.95), bool(abs(probes.control_auc.mean() - 0.5) < 0.1)
        (True, True)
    """
    model.capabilities.require("residual_stream", "train_bias_probes")
    check_choice("pool", pool, Pool)
    check_range("splits", splits, 2, 100)
    check_range("penalty", penalty, 1e-9)
    if not 0 < held_out < 1:
        raise ValueError(f"held_out must be above 0 and below 1, got {held_out}")
    labelled = biased_and_benign(data)
    count = labelled.n_groups
    if count < LEAST_GROUPS:
        raise ValueError(f"an accuracy of {count} groups says nothing: give at least {LEAST_GROUPS}")
    read = [read_prompt(model, text, what="text") for text in labelled.texts]
    run = RunOptions(progress, check, batch_size)
    total = len(read) + splits * (model.n_layers + 1)
    states = pooled_states(model, read, pool, run.after(0, total))
    target = np.array(labelled.biased, dtype=int)
    fits = _Fits(states, target, np.array(labelled.groups), penalty, run, len(read), total)
    measured: dict[str, Any] = fits.measure(token_counts([one.shown_ids for one in read]), held_out, splits, seed)
    first = np.stack([fits.direction(layer) for layer in range(1, model.n_layers + 1)])
    second = np.stack([fits.direction(layer, across=first[layer - 1]) for layer in range(1, model.n_layers + 1)])
    centred = states[:, 1:] - states[:, 1:].mean(axis=0)
    along = np.stack([np.einsum("tld,ld->lt", centred, first), np.einsum("tld,ld->lt", centred, second)], axis=-1)
    return BiasProbes(
        **measured,
        direction=first,
        second=second,
        projection=along,
        biased=target.astype(bool),
        texts=labelled.texts,
        groups=labelled.groups,
        provenance=provenance(
            model.provenance(), pool=pool, held_out=held_out, splits=splits, penalty=penalty, seed=seed
        ),
    )


# ---- fits


@dataclass
class _Fits:
    """The fits of one call of `train_bias_probes`."""

    states: NDArray[np.float64]
    """(texts, layers + 1, d_model)"""
    target: NDArray[np.int64]
    groups: NDArray[Any]
    penalty: float
    run: RunOptions
    done: int
    total: int

    def measure(self, counts: Any, held_out: float, splits: int, seed: int) -> dict[str, Floats]:
        """Accuracies and AUC of all splits, by field of `BiasProbes`."""
        layers = self.states.shape[1] - 1
        names = ("accuracy", "auc", "control_accuracy", "control_auc", "second_accuracy", "second_auc")
        found = {name: np.empty((layers, splits)) for name in names}
        found |= {"bag_of_words": np.empty(splits), "embedding": np.empty(splits)}
        across = np.zeros((layers, layers))
        for split, (train, test) in enumerate(self._splits(held_out, splits, seed)):
            shuffled = self._shuffled(train, test, np.random.default_rng([seed, split]))
            words = fitted(counts[train], self.target[train], self.penalty)
            found["bag_of_words"][split] = _auc(words.decision_function(counts[test]), self.target[test])
            found["embedding"][split] = self._score(self.states[:, 0], train, test)[1]
            for layer in range(layers):
                values = self.states[:, layer + 1]
                weights = self._fit(values, self.target, train)
                found["accuracy"][layer, split], found["auc"][layer, split] = _accuracy_and_auc(
                    values[test], weights, self.target[test]
                )
                found["control_accuracy"][layer, split], found["control_auc"][layer, split] = self._score(
                    values, train, test, shuffled
                )
                rest = _project_out(values, weights[0])
                found["second_accuracy"][layer, split], found["second_auc"][layer, split] = self._score(
                    rest, train, test
                )
                across[layer] += [
                    _auc(self.states[test, other + 1] @ weights[0], self.target[test]) for other in range(layers)
                ]
            self._report(layers + 1)
        return {**found, "generalization": across / splits}

    def direction(self, layer: int, *, across: NDArray[np.float64] | None = None) -> NDArray[np.float64]:
        """(d_model,) unit direction of a probe fitted on all texts, orthogonal to ``across`` if given."""
        every = np.arange(len(self.target))
        values = self.states[:, layer] if across is None else _project_out(self.states[:, layer], across)
        weights, _ = self._fit(values, self.target, every)
        if across is not None:
            weights = weights - across * (weights @ across)
        return np.asarray(weights / max(float(np.linalg.norm(weights)), 1e-300))

    def _report(self, count: int) -> None:
        self.done += count
        self.run.report(self.done, self.total)

    def _splits(self, held_out: float, splits: int, seed: int) -> Iterator[tuple[Any, Any]]:
        from sklearn.model_selection import GroupShuffleSplit

        drawn = GroupShuffleSplit(_SPLITS_DRAWN * splits, test_size=held_out, random_state=seed)
        found = 0
        for train, test in drawn.split(self.target, groups=self.groups):
            if _both_labels(self.target, train, test):
                yield train, test
                found += 1
            if found == splits:
                return
        raise ValueError(
            f"of {_SPLITS_DRAWN * splits} splits of the groups {found} have texts of both labels on both sides, "
            f"{splits} are needed: give more groups of each label"
        )

    def _shuffled(self, train: Any, test: Any, draw: np.random.Generator) -> NDArray[np.int64]:
        """Shuffled labels, with both labels on both sides of the split, as for the true labels."""
        while not _both_labels(shuffled := draw.permutation(self.target), train, test):
            self.run.stop_if_cancelled()
        return shuffled

    def _fit(
        self, values: NDArray[np.float64], target: NDArray[np.int64], train: Any
    ) -> tuple[NDArray[np.float64], float]:
        """Weights and bias of a probe for unstandardised values."""
        self.run.stop_if_cancelled()
        weights, bias = linear_probe(values[train], target[train], self.penalty)
        return weights[0], float(bias[0])

    def _score(
        self, values: NDArray[np.float64], train: Any, test: Any, labels: NDArray[np.int64] | None = None
    ) -> tuple[float, float]:
        """Fit a probe on the training rows; its accuracy and AUC on the test rows."""
        target = self.target if labels is None else labels
        return _accuracy_and_auc(values[test], self._fit(values, target, train), target[test])


def _both_labels(target: NDArray[np.int64], train: Any, test: Any) -> bool:
    """Whether both sides of a split have texts of both labels."""
    return all(0 < target[side].sum() < len(side) for side in (train, test))


def _accuracy_and_auc(
    values: NDArray[np.float64], fit: tuple[NDArray[np.float64], float], target: NDArray[np.int64]
) -> tuple[float, float]:
    """Accuracy and AUC of a probe, given as its weights and bias."""
    scores = values @ fit[0] + fit[1]
    return float(np.mean((scores > 0) == target)), _auc(scores, target)


def _project_out(values: NDArray[np.float64], direction: NDArray[np.float64]) -> NDArray[np.float64]:
    """(n, d) values with a direction (d,) projected out."""
    unit = direction / max(float(np.linalg.norm(direction)), 1e-300)
    return np.asarray(values - np.outer(values @ unit, unit))


def _auc(scores: NDArray[np.float64], target: NDArray[np.int64]) -> float:
    from sklearn.metrics import roc_auc_score

    return float(roc_auc_score(target, scores))


def bias_probes_cost(model: Model, lengths: Sequence[int], *, splits: int = 5) -> Cost:
    """FLOPs and peak bytes of `train_bias_probes` on texts with these numbers of tokens.

    Example:
        >>> bias_probes_cost(base, [8] * 20).flops < bias_probes_cost(base, [8] * 200).flops
        True
    """
    texts, tokens, longest = len(lengths), float(sum(lengths)), max(lengths, default=1)
    fits = (3 * splits + 2) * model.n_layers + 2 * splits
    fitted = 4.0 * texts * model.d_model * _ITERATIONS * fits
    states = 8.0 * texts * (model.n_layers + 1) * model.d_model
    return Cost(pass_flops(model, tokens, longest) + fitted, 3 * states + chunk_bytes(model, texts, longest))
