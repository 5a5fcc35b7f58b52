"""`layer_sections`: shared, transition and refinement layers, from how tuning changes the similarity by layer."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

from interp_widgets.analysis._core.arrays import Floats, Ints, float64
from interp_widgets.analysis._core.checks import check_finite, check_range
from interp_widgets.analysis._core.result import Result, provenance, record, with_axes
from interp_widgets.analysis._core.statistics import resampled_means
from interp_widgets.analysis._core.tables import DataFrame, table
from interp_widgets.arguments import checked

NAMES = ("shared", "transition", "refinement")
MIN_SECTION = 2
"""Minimum layers per section: the mean of a single layer would fit without error."""
MIN_LAYERS = 3 * MIN_SECTION
PARAMETERS_OF_MEAN = 1
PARAMETERS_OF_SECTIONS = 9
"""Three means, and two change points that count as three parameters each, since they are searched for."""


@record
class LayerSections(Result):
    """What `layer_sections` returns: three sections of layers fitted to a difference of two models, clear or not.

    Example:
        >>> rng = np.random.default_rng(0)
        >>> change = np.repeat([-0.1, 0.3, 0.1], [4, 3, 5])
        >>> found = layer_sections(change + rng.normal(scale=0.05, size=(20, 12)))
        >>> found.clear, found.change_points
        (True, (4, 7))
        >>> layer_sections(rng.normal(scale=0.05, size=(20, 12))).clear
        False
    """

    layers: Ints = with_axes("layers")
    """(layers,) indices of the layers."""

    difference: Floats = with_axes("layers", nan=False)
    """(layers,) mean difference over tasks."""

    low: Floats = with_axes("layers", nan=False)
    """(layers,) lower end of the 95% bootstrap interval of the mean, over tasks."""

    high: Floats = with_axes("layers", nan=False)
    """(layers,) upper end of the interval."""

    clear: bool
    """Whether three sections beat a single mean by BIC."""

    change_points: Sequence[int]
    """First layers of the second and the third section in the best fit, clear or not; empty for too few layers."""

    change_intervals: Sequence[Sequence[int]]
    """Lowest and highest layer of each change point in 95% of bootstrap samples of the tasks."""

    means: Sequence[float]
    """The fitted mean of each section."""

    bic_gain: float
    """BIC of a single mean minus BIC of the sections, positive if the sections fit better; NaN for too few layers."""

    clear_share: float
    """Share of bootstrap samples in which the sections fit better; NaN for too few layers."""

    tasks: int
    """Number of tasks."""

    def summary(self) -> str:
        """The result as one sentence."""
        if not self.change_points:
            return f"No sections: three sections need {MIN_LAYERS} layers or more, there are {len(self.layers)}."
        gain = f"{self.bic_gain:.1f}".replace("-", "−")
        if not self.clear:
            return (
                f"No clear sections: three sections do not beat a single mean by BIC (gain {gain}, "
                f"and above 0 in {100 * self.clear_share:.0f}% of bootstrap samples of {self.tasks} tasks)."
            )
        first, second = self.change_points
        (low_1, high_1), (low_2, high_2) = self.change_intervals
        start, end = int(self.layers[0]), int(self.layers[-1])
        return (
            f"Shared layers {start}–{first - 1}, transition layers {first}–{second - 1}, refinement layers "
            f"{second}–{end}: change points {first} ({low_1} to {high_1}) and {second} ({low_2} to {high_2}), 95% "
            f"intervals over {self.tasks} tasks, BIC gain {gain}."
        )

    def to_frame(self) -> DataFrame:
        """One row per layer: mean difference with its interval, and the fitted mean and section, if clear."""
        columns = {"difference": self.difference, "low": self.low, "high": self.high}
        if not self.clear:
            return table({"layer": self.layers}, columns)
        which = np.searchsorted(self.change_points, self.layers, side="right")
        return table(
            {"layer": self.layers},
            {**columns, "fitted": np.asarray(self.means)[which], "section": [NAMES[each] for each in which]},
        )


@checked
def layer_sections(
    difference: ArrayLike, *, layers: Sequence[int] | None = None, resamples: int = 1000, seed: int = 0
) -> LayerSections:
    """Fit three sections of layers to a difference by task and layer, such as CKA of a tuned model minus its base.

    Two change points are found by least squares on the mean over tasks, each section at least 2 layers long. The
    sections are clear if their BIC is below that of a single mean, L ln(RSS / L) + k ln L, where a mean counts as one
    parameter and a change point as three, since it is searched for (Hall et al. 2013). Counted as one, sections would be
    found in 10 to 20% of white noise over 6 to 32 layers; counted as three, in at most 1 in 30. If the errors of
    neighbouring layers are correlated, false positives are more frequent: look at the intervals too.

    Args:
        difference: (tasks, layers) finite numbers.
        layers: the index of each layer; by default from 0.
        resamples: bootstrap samples of the tasks, for the intervals.
        seed: of the bootstrap.

    Raises:
        ValueError: fewer than 2 tasks, numbers that are not finite, or a wrong number of layers.

    Source: the paper that names the sections (Layer by Layer: Uncovering Where Multi-Task Learning Happens in
    Instruction-Tuned Large Language Models, section 4.2) identifies them by eye; the fit is by this package. Inference on
    Structural Breaks using Information Criteria (Hall, Osborn and Sakkas 2013).

    Example:
        >>> change = np.repeat([[-0.1, 0.3, 0.1]], [3, 4, 5], axis=1) + np.arange(6)[:, None] * [[0.01, -0.01] * 6]
        >>> layer_sections(change, layers=range(1, 13)).summary()
        'Shared layers 1–3, transition layers 4–7, refinement layers 8–12: change points 4 (4 to 4) and 8 (8 to 8), 95% intervals over 6 tasks, BIC gain 23.9.'
    """  # noqa: E501
    values = float64(difference)
    if values.ndim != 2 or len(values) < 2 or values.shape[1] < 1:
        raise ValueError(f"difference must be (tasks, layers) of 2 tasks or more, got shape {values.shape}")
    check_finite(values, lambda task, layer: f"the difference of task {task} at column {layer}")
    check_range("resamples", resamples, 1)
    numbers = np.arange(values.shape[1]) if layers is None else np.asarray(list(layers), dtype=np.int64)
    if len(numbers) != values.shape[1]:
        raise ValueError(f"layers must name every column, {values.shape[1]}, got {len(numbers)}")
    samples = resampled_means(values, resamples=resamples, seed=seed)
    mean, (low, high) = values.mean(axis=0), np.quantile(samples, [0.025, 0.975], axis=0)
    facts = provenance(analysis="layer_sections", resamples=resamples, seed=seed)
    if len(numbers) < MIN_LAYERS:
        return LayerSections(
            numbers, mean, low, high, False, (), (), (), float("nan"), float("nan"), len(values), provenance=facts
        )
    (gain,), (cuts,) = _best_fits(mean[None])
    gains, every = _best_fits(samples)
    bounds = np.quantile(numbers[every], [0.025, 0.975], axis=0, method="nearest")
    return LayerSections(
        layers=numbers,
        difference=mean,
        low=low,
        high=high,
        clear=bool(gain > 0),
        change_points=tuple(int(numbers[cut]) for cut in cuts),
        change_intervals=tuple((int(bounds[0, each]), int(bounds[1, each])) for each in range(2)),
        means=tuple(float(part.mean()) for part in np.split(mean, cuts)),
        bic_gain=float(gain),
        clear_share=float((gains > 0).mean()),
        tasks=len(values),
        provenance=facts,
    )


def _best_fits(values: NDArray[np.float64]) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """For values (rows, layers): (rows,) BIC gain of the best three sections over a single mean, and (rows, 2) the
    first columns of the second and the third section."""
    rows, n = values.shape
    centred = values - values.mean(axis=1, keepdims=True)
    zeros = np.zeros((rows, 1))
    sums, squares = (np.concatenate([zeros, np.cumsum(one, axis=1)], axis=1) for one in (centred, centred**2))

    def rss(start: int, stop: int) -> NDArray[np.float64]:
        """(rows,) residual sum of squares of a section around its mean."""
        inside = squares[:, stop] - squares[:, start] - (sums[:, stop] - sums[:, start]) ** 2 / (stop - start)
        return np.asarray(inside)

    best, cuts = np.full(rows, np.inf), np.zeros((rows, 2), dtype=np.int64)
    for first in range(MIN_SECTION, n - 2 * MIN_SECTION + 1):
        for second in range(first + MIN_SECTION, n - MIN_SECTION + 1):
            total = rss(0, first) + rss(first, second) + rss(second, n)
            better = total < best
            best[better], cuts[better] = total[better], (first, second)
    penalty = (PARAMETERS_OF_SECTIONS - PARAMETERS_OF_MEAN) * np.log(n)
    rounding = 1e-20 + 1e-12 * np.square(values).sum(axis=1)  # residual of a perfect fit
    return n * np.log(np.maximum(rss(0, n), rounding) / np.maximum(best, rounding)) - penalty, cuts
