"""`concept_map`: the directions of a set in two dimensions, by PCA, UMAP or t-SNE."""

from __future__ import annotations

import contextlib
import hashlib
import warnings
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Literal

import numpy as np

from interp_widgets.analysis._core.arrays import Floats, Ints
from interp_widgets.analysis._core.checks import check_choice, check_range
from interp_widgets.analysis._core.cost import Cost
from interp_widgets.analysis._core.result import Result, record, with_axes
from interp_widgets.analysis._core.run import RunOptions
from interp_widgets.analysis._core.tables import DataFrame, table
from interp_widgets.analysis.concepts.concept_set import ConceptSet
from interp_widgets.arguments import checked
from interp_widgets.models.threads import threads_kept

MapMethod = Literal["umap", "pca", "tsne"]

WIDTH = 50
"""Number of principal components given to UMAP and t-SNE: it keeps neighbours and makes finding them far faster."""
NEAREST = 5
"""Number of mapped neighbours that determine the point of an added concept."""
COMPARED = 400
"""Number of concepts of a large map whose neighbours are compared."""
FEWEST = 4
"""Fewest concepts of a map."""


@record
class ConceptMap(Result):
    """A point in two dimensions for every concept. Large distances mean little, except with ``pca``.

    Example:
        >>> directions = concept_directions(model, demo_concepts()[::60], layer=3)
        >>> places = concept_map(directions, "pca")
        >>> places.names, places.xy.shape
        (('France', 'Albert Einstein', 'piano', 'cook'), (4, 2))
        >>> places.to_frame().columns.tolist()
        ['concept', 'group', 'x', 'y']
    """

    names: Sequence[str] = with_axes("concepts")
    """Names."""

    groups: Sequence[str] = with_axes("concepts")
    """Groups; empty where a concept has none."""

    xy: Floats = with_axes("concepts", 2, nan=False)
    """Coordinates of the points."""

    method: str
    """"umap", "pca" or "tsne"."""

    recall: float
    """Share of the nearest 10 (or all others, if fewer) by cosine that are among the nearest 10 on the map, 0..1;
    concepts added later do not count."""

    explained: float | None = None
    """For ``pca``, the share of variance explained by the two components."""

    other_xy: Floats | None = with_axes("concepts", 2, default=None, nan=False)
    """Points of a second set's directions, mapped together with the first's; None for one set."""

    moved: Floats | None = with_axes("concepts", default=None, nan=False)
    """Cosine distance of each concept's two directions, 0..2: how far it moved in the model, not on the
    map; None for one set."""

    parts: Floats | None = with_axes("places", "components", default=None, nan=False)
    """Principal components of every mapped direction, with two sets those of the first, then those
    of the second; `add_to_map` finds neighbours by them."""

    axes: Floats | None = with_axes("components", "d_model", default=None, nan=False)
    """Principal axes."""

    middle: Floats | None = with_axes("d_model", default=None, nan=False)
    """Mean of the mapped directions."""

    fingerprint: str = ""
    """Hash of the directions and options, by which a stored map is recognised. Empty after `add_to_map`."""

    added: int = 0
    """Number of concepts, the last ones, that `add_to_map` added."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if (self.other_xy is None) != (self.moved is None):
            raise ValueError("ConceptMap needs both other_xy and moved, or neither")
        rows = len(self.names) * (1 if self.other_xy is None else 2)
        if self.parts is not None and len(self.parts) != rows:
            raise ValueError(f"ConceptMap.parts must have {rows} rows, got {len(self.parts)}")

    def to_frame(self) -> DataFrame:
        """One row per concept: name, group and coordinates; for two sets those of both and the cosine distance."""
        columns: dict[str, Any] = {"group": self.groups, "x": self.xy[:, 0], "y": self.xy[:, 1]}
        if self.other_xy is not None:
            columns |= {"other_x": self.other_xy[:, 0], "other_y": self.other_xy[:, 1], "moved": self.moved}
        return table({"concept": self.names}, columns)


@checked
def concept_map(
    concepts: ConceptSet,
    method: MapMethod = "umap",
    *,
    other: ConceptSet | None = None,
    seed: int = 0,
    n_neighbors: int = 15,
    stored: ConceptMap | None = None,
    progress: Callable[[int, int], None] | None = None,
    check: Callable[[], None] | None = None,
) -> ConceptMap:
    """Map the directions of a set to two dimensions.

    ``umap`` and ``tsne`` first reduce the directions to 50 principal components, then compare them by cosine; UMAP is
    initialised with the first components, in a seventh of the time of the spectral initialisation. The same seed gives
    the same map on one machine. A large map takes a while: save it and pass it as ``stored``.

    Args:
        concepts: at least 4.
        method: "umap", "pca" or "tsne".
        other: the same concepts in the same order from a second model of the same width, such as the tuned one. Both
            are mapped together, so that near points have similar directions, whichever model they are from.
        seed: of everything random.
        n_neighbors: of UMAP; twice as many are the perplexity of t-SNE; fewer in small sets.
        stored: an earlier map. If it has the same directions and options it is returned, with the names and groups of
            ``concepts``; else a new one is computed.
        progress: called with (done, 3) after the reduction, the map and its check.
        check: called before each of them and, during the mapping, twenty times a second; raises to cancel.

    Raises:
        ValueError: fewer than 4 concepts, an unknown method, ``n_neighbors`` below 2, a second set of other concepts or
            of another width.

    Source: UMAP: Uniform Manifold Approximation and Projection for Dimension Reduction (McInnes et al. 2018);
    Visualizing Data using t-SNE (van der Maaten and Hinton 2008).

    Example:
        >>> directions = concept_directions(model, demo_concepts()[::50], layer=3)
        >>> places = concept_map(directions, "pca")
        >>> places.names, places.xy.shape
        (('France', 'Beijing', 'duck', 'car', 'Ophirs'), (5, 2))
    """
    count = len(concepts.names)
    if count < FEWEST:
        raise ValueError(f"a map needs at least {FEWEST} concepts, got {count}")
    check_choice("method", method, MapMethod)
    check_range("n_neighbors", n_neighbors, 2)
    directions = concepts.directions if other is None else _stacked(concepts, other)
    digest = fingerprint(directions, method, other is not None, seed, n_neighbors)
    if stored is not None and stored.fingerprint == digest:
        return replace(stored, names=concepts.names, groups=concepts.groups)

    run = RunOptions(progress, check)
    run.stop_if_cancelled()
    axes, middle, shares = components(directions, 2 if method == "pca" else WIDTH, seed)
    parts = projected(directions, axes, middle)
    run.report(1, 3)
    run.stop_if_cancelled()
    n_nearest = min(n_neighbors, len(directions) - 1)
    match method:
        case "umap":
            xy = align_to_main_axis(run.run_cancellable(lambda: umap_places(parts, n_nearest, seed)))
        case "tsne":
            xy = align_to_main_axis(run.run_cancellable(lambda: tsne_places(parts, n_nearest, seed)))
        case "pca":
            xy = parts[:, :2]
    run.report(2, 3)
    run.stop_if_cancelled()
    recall = neighbor_recall(directions, xy, seed=seed)
    run.report(3, 3)
    xy = np.ascontiguousarray(xy, dtype=np.float64)
    return ConceptMap(
        names=concepts.names,
        groups=concepts.groups,
        xy=xy[:count],
        other_xy=None if other is None else xy[count:],
        moved=None if other is None else _cosine_distances(concepts, other),
        method=method,
        recall=recall,
        explained=float(shares[:2].sum()) if method == "pca" else None,
        parts=parts,
        axes=axes,
        middle=middle,
        fingerprint=digest,
        provenance={**concepts.provenance, "map": method, "map_seed": seed, "n_neighbors": n_neighbors},
    )


def fingerprint(directions: Floats, method: str, paired: bool, seed: int, n_neighbors: int) -> str:
    """A hash of the directions and options of a map: 32 hexadecimal digits."""
    rows = np.ascontiguousarray(directions)
    digest = hashlib.blake2b(rows.data, digest_size=16)
    digest.update(repr((rows.shape, str(rows.dtype), method, paired, seed, n_neighbors)).encode())
    return digest.hexdigest()


def concept_map_cost(concepts: int, d_model: int, *, sets: int = 1) -> Cost:
    """Operations and peak bytes of a map of ``sets`` sets of ``concepts`` concepts each."""
    rows = concepts * sets
    directions = 4.0 * rows * d_model
    # a centred copy for the components, another while its variance is summed, and UMAP's neighbours
    peak = directions * (1 + sets) + 1200.0 * rows
    reduction = 16 * 2.0 * rows * d_model * (WIDTH + 10)  # seven iterations of two products, and two more
    return Cost(flops=reduction + 2.0 * COMPARED * rows * d_model + 2e5 * rows, bytes=peak)


@checked
def add_to_map(places: ConceptMap, more: ConceptSet, *, other: ConceptSet | None = None) -> ConceptMap:
    """Add concepts to a map without moving the others.

    A new concept is put at the mean of its 5 nearest mapped neighbours by cosine of the principal components, weighted
    by inverse distance, so that a copy of a mapped direction coincides with it; on a ``pca`` map, at its own
    components. A new map of all concepts preserves more neighbours.

    Args:
        places: a map by `concept_map`.
        more: concepts with other names, of the same width.
        other: the new concepts' second set, for a map of two sets.

    Raises:
        ValueError: another width, names that are on the map, a missing or superfluous second set.

    Example:
        >>> concepts = demo_concepts()
        >>> places = concept_map(concept_directions(model, concepts[::50], layer=3), "pca")
        >>> larger = add_to_map(places, concept_directions(model, concepts[1:3], layer=3))
        >>> larger.names, larger.added
        (('France', 'Beijing', 'duck', 'car', 'Ophirs', 'Germany', 'Italy'), 2)
    """
    if places.parts is None or places.axes is None or places.middle is None:
        raise ValueError("this map has no components to find neighbours by: compute it with concept_map")
    if (places.other_xy is None) != (other is None):
        needs = "of two sets: give the second one of the new concepts as other=" if other is None else "of one set"
        raise ValueError(f"the map is {needs}")
    if more.d_model != len(places.middle):
        raise ValueError(f"the map is of directions of width {len(places.middle)}, the new ones have {more.d_model}")
    if known := set(more.names) & set(places.names):
        raise ValueError(f"{sorted(known)[0]!r} is on the map already: give the new concepts other names")
    count, new = len(places.names), len(more.names)
    directions = more.directions if other is None else _stacked(more, other)
    parts = projected(directions, places.axes, places.middle)
    mapped = places.xy if places.other_xy is None else np.concatenate([places.xy, places.other_xy])
    xy = (
        parts[:, :2].astype(np.float64)
        if places.method == "pca"
        else interpolate_from_neighbors(parts, places.parts, mapped)
    )
    fields: dict[str, Any] = {"xy": np.concatenate([places.xy, xy[:new]])}
    if other is not None and places.other_xy is not None and places.moved is not None:
        fields["other_xy"] = np.concatenate([places.other_xy, xy[new:]])
        fields["moved"] = np.concatenate([places.moved, _cosine_distances(more, other)])
    return replace(
        places,
        names=(*places.names, *more.names),
        groups=(*places.groups, *more.groups),
        parts=np.concatenate([places.parts[:count], parts[:new], places.parts[count:], parts[new:]]),
        fingerprint="",
        added=places.added + new,
        **fields,
    )


def _cosine_distances(first: ConceptSet, second: ConceptSet) -> Floats:
    """(concepts,) cosine distance of the two directions of each concept."""
    return np.asarray(1 - np.einsum("cd,cd->c", first.directions, second.directions))


def _stacked(first: ConceptSet, other: ConceptSet) -> Floats:
    """(2 × concepts, d_model) the directions of two sets, stacked."""
    if tuple(first.names) != tuple(other.names):
        raise ValueError("the two sets must hold the same concepts in the same order")
    if first.d_model != other.d_model:
        raise ValueError(
            f"two sets on one map must have the same width, got {first.d_model} and {other.d_model}: map each by itself"
        )
    return np.concatenate([first.directions, other.directions])


# coordinates ---------------------------------------------------------------------------------------------------------


def components(directions: Floats, width: int, seed: int) -> tuple[Floats, Floats, Floats]:
    """The principal axes (width or fewer, d_model), the mean (d_model,) and the share of variance of each axis."""
    from sklearn.decomposition import PCA

    reduction = PCA(min(width, *directions.shape), random_state=seed).fit(directions)
    axes: Floats = reduction.components_
    # the sign of an axis is arbitrary: its largest entry is made positive
    axes = axes * np.sign(np.take_along_axis(axes, np.abs(axes).argmax(axis=1)[:, None], axis=1))
    return axes, reduction.mean_, reduction.explained_variance_ratio_


def projected(directions: Floats, axes: Floats, middle: Floats) -> Floats:
    """(directions, axes) components, computed without a centred copy, in the same way for mapped and added ones."""
    return np.asarray(directions @ axes.T - middle @ axes.T)


def align_to_main_axis(xy: Floats) -> Floats:
    """Rotate points so that they vary most horizontally; UMAP and t-SNE leave the rotation arbitrary.

    >>> np.abs(align_to_main_axis(np.array([[1.0, 0.0], [1.0, 4.0], [1.5, 2.0]]))).round(1).tolist()
    [[2.0, 0.2], [2.0, 0.2], [0.0, 0.3]]
    """
    middle = xy.mean(axis=0)
    _, _, (along, _) = np.linalg.svd(xy - middle, full_matrices=False)
    along = along * np.sign(along[np.abs(along).argmax()])
    return np.asarray((xy - middle) @ np.array([along, [-along[1], along[0]]]).T)


def umap_places(parts: Floats, n_neighbors: int, seed: int) -> Floats:
    """(points, 2) by UMAP from exact neighbours, since its approximate search needs most of a minute to compile."""
    with threads_kept(), warnings.catch_warnings():  # numba, which UMAP uses, sets OpenMP's threads for the process
        from umap import UMAP

        _keep_compiled()
        # it warns that a fixed seed means one thread, and that it cannot add points without its own search
        warnings.filterwarnings("ignore", category=UserWarning, module="umap")
        places: Floats = UMAP(
            n_neighbors=n_neighbors, metric="cosine", init="pca", random_state=seed, n_jobs=1, min_dist=0.1,
            precomputed_knn=nearest_rows(parts, n_neighbors),
        ).fit_transform(parts)  # fmt: skip
    return places


def _keep_compiled() -> None:
    """Let numba cache the compiled code of UMAP on disk, so that only the first map on a machine waits for it."""
    from umap import umap_

    for function in (umap_.smooth_knn_dist, umap_.compute_membership_strengths):
        with contextlib.suppress(RuntimeError):  # without a writable folder it compiles in every process
            function.enable_caching()


def nearest_rows(rows: Floats, k: int) -> tuple[Ints, Floats]:
    """(rows, k) the exact nearest rows by cosine, each row itself first, and their cosine distances."""
    from sklearn.neighbors import NearestNeighbors

    unit = unit_rows(rows)
    distances, neighbours = NearestNeighbors(n_neighbors=k, algorithm="brute").fit(unit).kneighbors(unit)
    themselves = np.arange(len(unit))
    for i in np.flatnonzero(neighbours[:, 0] != themselves):  # copies of a direction are equally near
        at = int(np.flatnonzero(neighbours[i] == i)[0]) if i in neighbours[i] else k - 1
        neighbours[i, 1 : at + 1], neighbours[i, 0] = neighbours[i, :at].copy(), i
        distances[i, 1 : at + 1], distances[i, 0] = distances[i, :at].copy(), 0
    return neighbours, (distances**2 / 2).astype(np.float32)  # of unit vectors: 1 − cosine


def tsne_places(parts: Floats, n_neighbors: int, seed: int) -> Floats:
    """(concepts, 2) by t-SNE on cosine distances."""
    from sklearn.manifold import TSNE

    perplexity = min(2.0 * n_neighbors, (len(parts) - 1) / 3)
    return np.asarray(
        TSNE(perplexity=perplexity, metric="cosine", init="random", random_state=seed).fit_transform(parts)
    )


def neighbor_recall(
    directions: Floats,
    xy: Floats,
    *,
    k: int = 10,
    most: int = COMPARED,
    seed: int = 0,
    queries: Ints | None = None,
) -> float:
    """Share of the ``k`` nearest directions by cosine that are among the ``k`` nearest points, 0..1.

    Measured on the concepts ``queries`` (indices; all by default), or on a random sample of ``most`` of them; every
    concept can be a neighbour.
    """
    from sklearn.neighbors import NearestNeighbors

    count = len(xy)
    k = min(k, count - 1)
    queries = np.arange(count) if queries is None else queries
    if len(queries) > most:
        queries = np.sort(np.random.default_rng(seed).choice(queries, most, replace=False))
    cosine = directions[queries] @ directions.T
    cosine[np.arange(len(queries)), queries] = -np.inf
    by_cosine = np.argpartition(-cosine, k - 1, axis=1)[:, :k]
    nearest = NearestNeighbors(n_neighbors=k + 1).fit(xy).kneighbors(xy[queries], return_distance=False)
    hits = [len((set(by_place.tolist()) - {concept}) & set(true_nearest.tolist()))
            for concept, by_place, true_nearest in zip(queries.tolist(), nearest, by_cosine, strict=True)]  # fmt: skip
    return float(np.mean(hits) / k)


def interpolate_from_neighbors(parts: Floats, mapped: Floats, xy: Floats) -> Floats:
    """(new, 2) the weighted mean point of the mapped rows nearest to each row of ``parts``."""
    from sklearn.neighbors import NearestNeighbors

    unit, new = unit_rows(mapped), unit_rows(parts)
    # for unit vectors, the nearest by Euclidean distance are the nearest by cosine
    finder = NearestNeighbors(n_neighbors=min(NEAREST, len(unit)), algorithm="brute").fit(unit)
    neighbours = finder.kneighbors(new, return_distance=False)
    apart = ((unit[neighbours] - new[:, None]).astype(np.float64) ** 2).sum(axis=2) / 2  # 1 − cosine, exact for copies
    weights = 1 / (apart + 1e-9)
    weights /= weights.sum(axis=1, keepdims=True)
    return np.asarray((weights[..., None] * xy[neighbours]).sum(axis=1))


def unit_rows(rows: Floats) -> Floats:
    """The rows at length 1; a row of zeros stays."""
    return np.asarray(rows / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1e-12))
