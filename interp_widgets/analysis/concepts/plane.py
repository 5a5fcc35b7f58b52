"""Places in the plane for directions: components, UMAP, t-SNE, added ones, and how well neighbours are kept."""

from __future__ import annotations

import contextlib
import warnings
from typing import Any

import numpy as np
from numpy.typing import NDArray

from interp_widgets.models.threads import threads_kept

Floats = NDArray[np.floating[Any]]

WIDTH = 50
"""Principal components that UMAP and t-SNE see: neighbours stay, and the search for them is far faster."""
NEAREST = 5
"""Mapped neighbours that the place of an added concept is taken from."""
ASKED = 400
"""Concepts of a large map whose neighbours are compared."""


def components(directions: Floats, width: int, seed: int) -> tuple[Floats, Floats, Floats]:
    """The principal axes (width or fewer, d_model), the mean (d_model,) and the share of variance of each axis."""
    from sklearn.decomposition import PCA

    reduction = PCA(min(width, *directions.shape), random_state=seed).fit(directions)
    axes: Floats = reduction.components_
    # the sign of an axis is free: its largest entry is made positive
    axes = axes * np.sign(np.take_along_axis(axes, np.abs(axes).argmax(axis=1)[:, None], axis=1))
    return axes, reduction.mean_, reduction.explained_variance_ratio_


def projected(directions: Floats, axes: Floats, middle: Floats) -> Floats:
    """(directions, axes) components, by one product for mapped and added ones alike; no centred copy is made."""
    found: Floats = directions @ axes.T - middle @ axes.T
    return found


def umap_places(parts: Floats, near: int, seed: int) -> Floats:
    """(places, 2) by UMAP from exact neighbours: its own approximate search compiles for most of a minute first."""
    with threads_kept(), warnings.catch_warnings():  # numba, which UMAP runs on, sets OpenMP's threads for all
        from umap import UMAP

        _keep_compiled()
        # it says that a fixed seed means one thread, and that it cannot place points later without its own search
        warnings.filterwarnings("ignore", category=UserWarning, module="umap")
        found: Floats = UMAP(
            n_neighbors=near, metric="cosine", init="pca", random_state=seed, n_jobs=1, min_dist=0.1,
            precomputed_knn=nearest_rows(parts, near),
        ).fit_transform(parts)  # fmt: skip
    return found


def _keep_compiled() -> None:
    """Let numba keep what it compiles of UMAP on disk, so that only the first map on a machine waits for it."""
    from umap import umap_

    for function in (umap_.smooth_knn_dist, umap_.compute_membership_strengths):
        with contextlib.suppress(RuntimeError):  # no folder that can be written to: it compiles in every process
            function.enable_caching()


def nearest_rows(rows: Floats, k: int) -> tuple[NDArray[np.integer[Any]], Floats]:
    """(rows, k) the rows most alike by cosine, each itself first, and their cosine distances; exact."""
    from sklearn.neighbors import NearestNeighbors

    unit = unit_rows(rows)
    apart, near = NearestNeighbors(n_neighbors=k, algorithm="brute").fit(unit).kneighbors(unit)
    own = np.arange(len(unit))
    for i in np.flatnonzero(near[:, 0] != own):  # copies of one direction are equally near
        at = int(np.flatnonzero(near[i] == i)[0]) if i in near[i] else k - 1
        near[i, 1 : at + 1], near[i, 0] = near[i, :at].copy(), i
        apart[i, 1 : at + 1], apart[i, 0] = apart[i, :at].copy(), 0
    return near, (apart**2 / 2).astype(np.float32)  # of unit vectors: 1 − cosine


def tsne_places(parts: Floats, near: int, seed: int) -> Floats:
    """(concepts, 2) places by t-SNE on cosine distances."""
    from sklearn.manifold import TSNE

    perplexity = min(2.0 * near, (len(parts) - 1) / 3)
    found: Floats = TSNE(perplexity=perplexity, metric="cosine", init="random", random_state=seed).fit_transform(parts)
    return found


def neighbour_recall(
    directions: Floats,
    xy: Floats,
    *,
    k: int = 10,
    most: int = ASKED,
    seed: int = 0,
    asked: NDArray[np.integer[Any]] | None = None,
) -> float:
    """Share of the ``k`` nearest directions by cosine that are among the ``k`` nearest places, 0..1.

    Of more than ``most`` concepts, as many drawn at random are asked, or those given; all others can be their
    neighbours.
    """
    from sklearn.neighbors import NearestNeighbors

    count = len(xy)
    k = min(k, count - 1)
    asked = np.arange(count) if asked is None else asked
    if len(asked) > most:
        asked = np.sort(np.random.default_rng(seed).choice(asked, most, replace=False))
    cosine = directions[asked] @ directions.T
    cosine[np.arange(len(asked)), asked] = -np.inf
    wanted = np.argpartition(-cosine, k - 1, axis=1)[:, :k]
    found = NearestNeighbors(n_neighbors=k + 1).fit(xy).kneighbors(xy[asked], return_distance=False)
    hits = [len((set(places.tolist()) - {own}) & set(near.tolist()))
            for own, places, near in zip(asked.tolist(), found, wanted, strict=True)]  # fmt: skip
    return float(np.mean(hits) / k)


def among_neighbours(parts: Floats, mapped: Floats, xy: Floats) -> Floats:
    """(new, 2) the weighted mean place of the mapped rows nearest to each row of ``parts``."""
    from sklearn.neighbors import NearestNeighbors

    unit, own = unit_rows(mapped), unit_rows(parts)
    # of unit vectors the nearest in the plain sense are the nearest by cosine
    finder = NearestNeighbors(n_neighbors=min(NEAREST, len(unit)), algorithm="brute").fit(unit)
    near = finder.kneighbors(own, return_distance=False)
    apart = ((unit[near] - own[:, None]).astype(np.float64) ** 2).sum(axis=2) / 2  # 1 − cosine, exact for copies
    weights = 1 / (apart + 1e-9)
    weights /= weights.sum(axis=1, keepdims=True)
    found: Floats = (weights[..., None] * xy[near]).sum(axis=1)
    return found


def unit_rows(rows: Floats) -> Floats:
    """The rows at length 1; a row of zeros stays."""
    found: Floats = rows / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1e-12)
    return found
