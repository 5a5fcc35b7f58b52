"""Centred kernel alignment (CKA): the similarity of two representations of the same inputs, from 0 to 1."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from interp_widgets.analysis._core.arrays import Floats, float64, ratio
from interp_widgets.analysis._core.checks import check_finite, check_range
from interp_widgets.arguments import checked

Form = Literal["gram", "feature"]
Report = Callable[[int, int], None]

MIN_INPUTS = 4
"""Minimum number of inputs: the debiased estimator divides by n - 3."""
BIASED_FROM = 10
"""Inputs per dimension above which the biased estimator is close to the true value."""
ROUNDING = 64
"""A representation that varies by less than this many rounding errors counts as constant."""
MAX_BYTES = 2**29
"""Memory for the products of all layers; larger products are computed in blocks."""
_MIN_BLOCKS = 8
"""Minimum number of blocks of rows of symmetric matrices; entries left of a block's diagonal are not computed."""


@checked
def linear_cka(x: ArrayLike, y: ArrayLike, *, debiased: bool = False) -> float:
    """Linear CKA of two representations of the same inputs: 1 for equal up to rotation and scale, 0 for unrelated.

    CKA is centered kernel alignment, a measure of representational similarity.

    CKA(x, y) = HSIC(x, y) / √(HSIC(x, x) HSIC(y, y)). The biased HSIC is ‖yᵀx‖² of the centred representations; with
    fewer inputs than dimensions it is large for unrelated representations too. The debiased HSIC has mean 0 for
    unrelated representations at every n, and may be slightly negative. The Gram form (n × n) or the feature form
    (d × d') is used, whichever takes fewer operations; both give the same number.

    Args:
        x: (n, d) one row per input.
        y: (n, d') the same inputs in the same order; the width may differ.
        debiased: use the unbiased estimator of HSIC (Song et al. 2007).

    Returns:
        The similarity; NaN if x or y is constant over the inputs.

    Raises:
        ValueError: the two have different numbers of rows, fewer than 4, or numbers that are not finite.

    Source: Similarity of Neural Network Representations Revisited (Kornblith et al. 2019), section 3 and its published
    demo.

    Example:
        >>> x = np.random.default_rng(0).normal(size=(20, 50))
        >>> y = np.random.default_rng(1).normal(size=(20, 50))
        >>> round(linear_cka(x, 3 * x), 3), round(linear_cka(x, y), 2), round(linear_cka(x, y, debiased=True), 2)
        (1.0, 0.66, -0.1)
    """
    x, y = _check_pair(x, y)
    biased, unbiased, _ = _alignment(compare_layers(x[:, None], y[:, None]))
    return float((unbiased if debiased else biased)[0, 0])


@checked
def rbf_cka(x: ArrayLike, y: ArrayLike, *, threshold: float, debiased: bool = False) -> float:
    """CKA of two representations with a Gaussian (RBF) kernel, which weights near inputs more than far ones.

    Args:
        x: (n, d) one row per input.
        y: (n, d') the same inputs in the same order.
        threshold: bandwidth of the kernel as a fraction of the median distance of the inputs, above 0. The median is
            taken over all n × n squared distances, including zeros on the diagonal, as in the published demo.
        debiased: as in `linear_cka`.

    Returns:
        The similarity; NaN if x or y is constant over the inputs.

    Raises:
        ValueError: as `linear_cka`; a threshold that is not above 0.

    Source: Similarity of Neural Network Representations Revisited (Kornblith et al. 2019), section 3 and its published
    demo.

    Example:
        >>> x = np.random.default_rng(0).normal(size=(20, 5))
        >>> round(rbf_cka(x, 2 * x, threshold=0.5), 3)
        1.0
    """
    x, y = _check_pair(x, y)
    if not 0 < threshold < np.inf:
        raise ValueError(f"threshold must be above 0, a fraction of the median distance, got {threshold}")
    if not (layers_that_vary(x[:, None])[0] and layers_that_vary(y[:, None])[0]):
        return float("nan")
    kernels = [_rbf_kernel_minus_1(one - one.mean(axis=0), threshold) for one in (x, y)]
    centred = [_centre_kernel(kernel, debiased=debiased) for kernel in kernels]
    crossed = np.array([[np.vdot(a, b) for b in centred] for a in centred])
    return float(ratio(crossed[0, 1], np.sqrt(crossed[0, 0] * crossed[1, 1])))


@checked
def minibatch_cka(x: ArrayLike, y: ArrayLike, *, batch_size: int = 256, seed: int = 0) -> float:
    """Debiased linear CKA from HSIC averaged over minibatches, for data too large for `linear_cka`.

    The inputs are shuffled and split into batches; each of the three HSICs is the mean of its unbiased estimates over
    batches. It differs from `linear_cka` on all inputs: it is unbiased too, but has a larger variance.

    Args:
        x: (n, d) one row per input.
        y: (n, d') the same inputs in the same order.
        batch_size: inputs per batch, at least 4; a last batch of fewer than 4 inputs is skipped.
        seed: of the order of the inputs.

    Raises:
        ValueError: as `linear_cka`; a batch size below 4.

    Source: Do Wide and Deep Networks Learn the Same Things? (Nguyen et al. 2021), section 2.

    Example:
        >>> x = np.random.default_rng(0).normal(size=(1000, 8))
        >>> y = x + np.random.default_rng(1).normal(size=(1000, 8))
        >>> round(abs(minibatch_cka(x, y, batch_size=100) - linear_cka(x, y, debiased=True)), 2)
        0.0
    """
    x, y = _check_pair(x, y)
    check_range("batch_size", batch_size, MIN_INPUTS)
    order = np.random.default_rng(seed).permutation(len(x))
    starts = [start for start in range(0, len(x), batch_size) if len(x) - start >= MIN_INPUTS]
    sums = np.zeros(3)
    for start in starts:
        rows = order[start : start + batch_size]
        found = compare_layers(x[rows][:, None], y[rows][:, None])
        if np.isfinite(found.unbiased_cross[0, 0]):  # the HSIC of a constant batch is 0
            a, b = found.sizes[0][0], found.sizes[1][0]  # every batch was scaled separately
            sums += [found.unbiased_cross[0, 0] * a * b, found.unbiased_x[0] * a**2, found.unbiased_y[0] * b**2]
    return float(ratio(sums[0], np.sqrt(max(sums[1], 0.0) * max(sums[2], 0.0))))


# all layers of two models at once -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Products:
    """HSIC of every layer of one representation with every layer of another, up to a factor that cancels in CKA."""

    cross: Floats
    """(layers, layers') ‖y_jᵀ x_i‖²."""
    x: Floats
    """(layers,) ‖x_iᵀ x_i‖²."""
    y: Floats
    unbiased_cross: Floats
    unbiased_x: Floats
    unbiased_y: Floats
    traces: Floats
    """(layers, layers') ‖x_i‖² ‖y_j‖²."""
    sizes: tuple[Floats, Floats]
    """(layers,) and (layers',) sum of squares of each centred layer, by which its products were divided."""
    n: int
    """Number of inputs."""


def compare_layers(
    x: Floats,
    y: Floats,
    *,
    form: Form | None = None,
    bytes_at_once: float = MAX_BYTES,
    report: Report = lambda done, total: None,
) -> Products:
    """The products of (n, layers, d) with (n, layers', d') from which biased and debiased linear CKA are computed.

    Each layer is centred and scaled once. The products come from Gram matrices (one block of inputs at a time, where
    all pairs of layers are one matrix product) or from products over features, whichever takes fewer operations. Blocks
    are as large as ``bytes_at_once`` allows and affect only rounding. A constant layer gives NaN.
    """
    a, size_a, varies_a = _centre_and_scale(x)
    b, size_b, varies_b = (a, size_a, varies_a) if x is y else _centre_and_scale(y)
    n, varies = len(x), varies_a[:, None] & varies_b
    if form is None:
        form = cheaper_form(n, a.shape[2], b.shape[2], len(a), len(b))
    cross, own_a, own_b = (_by_gram if form == "gram" else _by_features)(a, b, bytes_at_once, report)
    rows_a, rows_b = (np.einsum("lnd,lnd->ln", one, one).astype(np.float64) for one in (a, b))
    trace_a, trace_b = rows_a.sum(axis=1), rows_b.sum(axis=1)

    def unbiased(product: Floats, diagonals: Floats, traces: Floats) -> Floats:
        """The estimator of Song et al. from centred rows, which removes the contribution of the diagonal."""
        return np.asarray(product - n / (n - 2) * diagonals + traces / ((n - 1) * (n - 2)))

    return Products(
        n=n,
        sizes=(size_a, size_b),
        traces=trace_a[:, None] * trace_b,
        cross=np.where(varies, cross, np.nan),
        x=np.where(varies_a, own_a, np.nan),
        y=np.where(varies_b, own_b, np.nan),
        unbiased_cross=np.where(varies, unbiased(cross, rows_a @ rows_b.T, trace_a[:, None] * trace_b), np.nan),
        unbiased_x=np.where(varies_a, unbiased(own_a, (rows_a**2).sum(axis=1), trace_a**2), np.nan),
        unbiased_y=np.where(varies_b, unbiased(own_b, (rows_b**2).sum(axis=1), trace_b**2), np.nan),
    )


def _alignment(found: Products) -> tuple[Floats, Floats, Floats]:
    """(layers, layers') biased CKA, debiased CKA, and the mean of biased CKA over shuffled inputs."""
    scale = np.sqrt(found.x[:, None] * found.y)
    unbiased = np.maximum(found.unbiased_x, 0.0)[:, None] * np.maximum(found.unbiased_y, 0.0)
    biased, debiased = ratio(found.cross, scale), ratio(found.unbiased_cross, np.sqrt(unbiased))
    # bounds by Cauchy-Schwarz, which rounding may exceed
    return np.clip(biased, 0, 1), np.clip(debiased, -1, 1), ratio(found.traces / (found.n - 1), scale)


def alignments(x: Floats, y: Floats, *, paired: bool = False) -> tuple[Floats, Floats, Floats]:
    """Biased CKA, debiased CKA and the chance level of the biased one, of (n, layers, d) with (n, layers', d').

    The chance level is the mean of the biased CKA over all permutations of the inputs of one side, in closed form:
    tr K tr L / ((n - 1) ‖K‖ ‖L‖). Each is (layers, layers'), or (layers,) for layer l with layer l if ``paired``.
    """
    if not paired:
        return _alignment(compare_layers(x, y))
    each = [_alignment(compare_layers(x[:, [layer]], y[:, [layer]])) for layer in range(x.shape[1])]
    biased, debiased, chance = (np.array([one[which][0, 0] for one in each]) for which in range(3))
    return biased, debiased, chance


def cheaper_form(n: int, d: int, e: int, layers: int, others: int) -> Form:
    """The form that takes fewer operations for all pairs of layers."""
    gram = n * n * (layers * d + others * e + layers * others) * (1 + 1 / _MIN_BLOCKS) / 2
    feature = n * (layers * d * others * e + layers * d**2 + others * e**2)
    return "gram" if gram < feature else "feature"


def _by_gram(a: Floats, b: Floats, most: float, report: Report) -> tuple[Floats, Floats, Floats]:
    """⟨a_i a_iᵀ, b_j b_jᵀ⟩ of all pairs, and of each layer with itself, in blocks of rows of the Gram matrices."""
    n, cross, own_a, own_b = a.shape[1], np.zeros((len(a), len(b))), np.zeros(len(a)), np.zeros(len(b))
    rows = max(1, min(math.ceil(n / _MIN_BLOCKS), int(most / (a.itemsize * n * (len(a) + len(b))))))
    for start in range(0, n, rows):
        report(start, n)
        first = _gram_rows(a, start, rows)
        second = first if b is a else _gram_rows(b, start, rows)
        cross += first @ second.T
        own_a += _squared_norms(first)
        own_b += _squared_norms(second)
    report(n, n)
    return cross, own_a, own_b


def _gram_rows(x: Floats, start: int, rows: int) -> Floats:
    """(layers, entries) of some rows of x xᵀ from the diagonal on; entries mirrored in a later block count twice."""
    block: Floats = np.matmul(x[:, start : start + rows], x[:, start:].transpose(0, 2, 1))
    block[:, :, rows:] *= math.sqrt(2)
    return block.reshape(len(x), -1)


def _by_features(a: Floats, b: Floats, most: float, report: Report) -> tuple[Floats, Floats, Floats]:
    """‖a_iᵀ b_j‖² of all pairs, and of each layer with itself, computed for several layers of ``b`` at a time."""
    others, n, e = b.shape
    cross = np.zeros((len(a), others))
    at_once = max(1, min(others, int(most / (a.itemsize * e * (a.shape[2] + n)))))
    for start in range(0, others, at_once):
        block = b[start : start + at_once].transpose(1, 0, 2).reshape(n, -1)
        for layer, own in enumerate(a):
            report(start * len(a) + layer * at_once, others * len(a))
            product = (own.T @ block).reshape(own.shape[1], -1, e)
            cross[layer, start : start + at_once] = np.einsum("djk,djk->j", product, product)
    report(others * len(a), others * len(a))
    own_a, own_b = (_squared_norms(one.T @ one for one in each) for each in (a, b))
    return cross, own_a, own_b


def _centre_and_scale(x: Floats) -> tuple[Floats, Floats, NDArray[np.bool_]]:
    """(layers, n, d) centred and scaled to norm 1, the sums of squares before scaling, and which layers vary."""
    by_layer = np.array(np.asarray(x).transpose(1, 0, 2), order="C")  # a copy, which is changed in place below
    whole = _squared_norms(by_layer)
    by_layer -= by_layer.mean(axis=1, dtype=np.float64, keepdims=True).astype(by_layer.dtype)
    size = _squared_norms(by_layer)
    varies = size > (ROUNDING * _epsilon(by_layer)) ** 2 * whole
    by_layer /= np.sqrt(np.where(varies, size, 1.0))[:, None, None].astype(by_layer.dtype)
    return by_layer, size, varies


def layers_that_vary(x: Floats) -> NDArray[np.bool_]:
    """(layers,) whether each layer of (n, layers, d) varies over the inputs by more than rounding."""
    return _centre_and_scale(x)[2]


def _squared_norms(by_layer: Iterable[Floats]) -> NDArray[np.float64]:
    """(layers,) sum of squares of each layer."""
    return np.array([float(np.vdot(one, one)) for one in by_layer])


def _epsilon(x: Floats) -> float:
    return float(np.finfo(np.float32 if x.dtype == np.float32 else np.float64).eps)


# one pair -------------------------------------------------------------------------------------------------------------


def _check_pair(x: ArrayLike, y: ArrayLike) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """x and y as (n, d) float64, scaled; ValueError if they are not representations of the same inputs."""
    both = []
    for name, values in (("x", x), ("y", y)):
        rows = float64(values)
        if rows.ndim != 2 or rows.shape[1] == 0:
            raise ValueError(f"{name} must have one row per input, (n, d), got shape {rows.shape}")
        if len(rows) < MIN_INPUTS:
            raise ValueError(f"{name} must have at least {MIN_INPUTS} rows, one per input, got {len(rows)}: give more")
        check_finite(rows, lambda row, column, name=name: f"{name} at row {row}, column {column}")
        both.append(rows / (np.abs(rows).max() or 1.0))  # CKA ignores the scale, and squares may overflow
    if len(both[0]) != len(both[1]):
        raise ValueError(
            f"x and y must be of the same inputs, got {len(both[0])} rows and {len(both[1])}: give one row per input"
        )
    return both[0], both[1]


def _rbf_kernel_minus_1(x: NDArray[np.float64], threshold: float) -> NDArray[np.float64]:
    products = x @ x.T
    norms = np.diag(products)
    distances = np.maximum(norms[:, None] + norms - 2 * products, 0.0)
    np.fill_diagonal(distances, 0.0)
    median = np.median(distances)
    if median == 0:
        raise ValueError(
            "at least half of the inputs are equal, so the median distance is 0: leave repeated inputs out"
        )
    # exp(...) - 1, since centring removes constants: a wide kernel differs from 1 by less than rounding
    return np.asarray(np.expm1(-distances / (2 * threshold**2 * median)))


def _centre_kernel(kernel: NDArray[np.float64], *, debiased: bool) -> NDArray[np.float64]:
    """A kernel matrix with rows and columns centred; for the debiased estimator with a diagonal of 0."""
    if not debiased:
        means = kernel.mean(axis=0)
        return np.asarray(kernel - means[:, None] - means + means.mean())
    n = len(kernel)
    kernel = kernel.copy()
    np.fill_diagonal(kernel, 0.0)
    means = kernel.sum(axis=0) / (n - 2)
    means -= means.sum() / (2 * (n - 1))
    kernel -= means[:, None] + means
    np.fill_diagonal(kernel, 0.0)
    return kernel
