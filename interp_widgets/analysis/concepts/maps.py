"""`concept_map`: the directions of a set in the plane, near ones near each other."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from interp_widgets.analysis.concepts.result import ConceptSet
from interp_widgets.analysis.result import Result, record
from interp_widgets.models.threads import threads_kept

if TYPE_CHECKING:
    import pandas as pd

Floats = NDArray[np.floating[Any]]
MapMethod = Literal["umap", "pca", "tsne"]

WIDTH = 50
"""Principal components that UMAP and t-SNE see: neighbours stay, and the search for them is far faster."""
FEWEST = 4


@record
class ConceptMap(Result):
    """A place in the plane for every concept of a set. Distances between far places mean little but for ``pca``."""

    names: Sequence[str]
    """(concepts,) names."""

    groups: Sequence[str]
    """(concepts,) groups; empty where nobody said."""

    xy: Floats
    """(concepts, 2) places."""

    method: str
    """"umap", "pca" or "tsne"."""

    recall: float
    """Share of the nearest 10 (or all others, if fewer) by cosine that are among the nearest 10 in the plane, 0..1."""

    explained: float | None = None
    """For ``pca``, the share of variance that the plane holds."""

    other_xy: Floats | None = None
    """(concepts, 2) places of a second set's directions, mapped together with the first's; None for one set."""

    moved: Floats | None = None
    """(concepts,) cosine distance of each concept's two directions, 0..2: how far it moved in the model, not on the
    map; None for one set."""

    def __post_init__(self) -> None:
        count = len(self.names)
        self.sequence("names")
        self.sequence("groups", count)
        self.array("xy", (count, 2), nan=False)
        if (self.other_xy is None) != (self.moved is None):
            raise ValueError("ConceptMap needs both other_xy and moved, or neither")
        if self.other_xy is not None:
            self.array("other_xy", (count, 2), nan=False)
            self.array("moved", (count,), nan=False)

    def to_frame(self) -> pd.DataFrame:
        """One row per concept: name, group and place; of two sets both places and how far it moved."""
        import pandas as pd

        rows: dict[str, Any] = {"concept": self.names, "group": self.groups, "x": self.xy[:, 0], "y": self.xy[:, 1]}
        if self.other_xy is not None:
            rows |= {"other_x": self.other_xy[:, 0], "other_y": self.other_xy[:, 1], "moved": self.moved}
        return pd.DataFrame(rows)


def concept_map(
    concepts: ConceptSet,
    method: MapMethod = "umap",
    *,
    other: ConceptSet | None = None,
    seed: int = 0,
    n_neighbors: int = 15,
    progress: Callable[[int, int], None] | None = None,
    check: Callable[[], None] | None = None,
) -> ConceptMap:
    """Place the directions of a set in the plane.

    ``umap`` and ``tsne`` first reduce the directions to 50 principal components, then compare them by cosine; UMAP
    starts from the first components, which takes a seventh of the time of its spectral start. The same seed gives the
    same map on one machine. Save the result to keep its places.

    Args:
        concepts: at least 4.
        method: "umap", "pca" or "tsne".
        other: the same concepts in the same order from a second model of the same width, such as the tuned one, to map
            both together: what lies near then has like directions, whichever model they are of.
        seed: of everything random.
        n_neighbors: of UMAP, and times 2 the perplexity of t-SNE; fewer in small sets.
        progress: called with (done, 3) after the reduction, the map and its check.
        check: called before each of them; raises to cancel.

    Raises:
        ValueError: fewer than 4 concepts, an unknown method, ``n_neighbors`` below 2, a second set of other concepts or
            of another width.

    Source: UMAP: Uniform Manifold Approximation and Projection for Dimension Reduction (McInnes et al. 2018);
    Visualizing Data using t-SNE (van der Maaten and Hinton 2008).

    Example:
        >>> places = concept_map(found)                                           # doctest: +SKIP
        >>> places.xy.shape                                                       # doctest: +SKIP
        (222, 2)
    """
    count = len(concepts.names)
    if count < FEWEST:
        raise ValueError(f"a map needs at least {FEWEST} concepts, got {count}")
    if method not in get_args(MapMethod):
        raise ValueError(f"method must be one of {', '.join(get_args(MapMethod))}, got {method!r}")
    if n_neighbors < 2:
        raise ValueError(f"n_neighbors must be at least 2, got {n_neighbors}")
    directions = concepts.directions if other is None else _both(concepts, other)
    near = min(n_neighbors, len(directions) - 1)

    def step(done: int) -> None:
        if done and progress is not None:
            progress(done, 3)
        if check is not None:
            check()

    step(0)
    parts, shares = _components(directions, 2 if method == "pca" else WIDTH, seed)
    step(1)
    match method:
        case "umap":
            xy = _umap(parts, near, seed)
        case "tsne":
            xy = _tsne(parts, near, seed)
        case "pca":
            xy = parts[:, :2]
    step(2)
    recall = neighbour_recall(directions, xy, seed=seed)
    if progress is not None:
        progress(3, 3)
    xy = np.ascontiguousarray(xy, dtype=np.float64)
    return ConceptMap(
        names=concepts.names,
        groups=concepts.groups,
        xy=xy[:count],
        other_xy=None if other is None else xy[count:],
        moved=None if other is None else 1 - (directions[:count] * directions[count:]).sum(axis=1),
        method=method,
        recall=recall,
        explained=float(shares[:2].sum()) if method == "pca" else None,
        provenance={**concepts.provenance, "map": method, "map_seed": seed, "n_neighbors": n_neighbors},
    )


def _both(one: ConceptSet, other: ConceptSet) -> Floats:
    """(2 × concepts, d_model) the directions of two sets, one below the other."""
    if tuple(one.names) != tuple(other.names):
        raise ValueError("the two sets must hold the same concepts in the same order")
    if one.d_model != other.d_model:
        raise ValueError(
            f"the two sets must be of one width to lie on one map, got {one.d_model} and {other.d_model}: "
            "make a map of each"
        )
    return np.concatenate([one.directions, other.directions])


def _components(directions: Floats, width: int, seed: int) -> tuple[Floats, Floats]:
    from sklearn.decomposition import PCA

    count = min(width, *directions.shape)
    reduction = PCA(count, random_state=seed)
    parts = reduction.fit_transform(directions)
    # the sign of a component is free: the concept it is largest at gets a positive number
    parts *= np.sign(np.take_along_axis(parts, np.abs(parts).argmax(axis=0)[None], axis=0))
    return parts, reduction.explained_variance_ratio_


def _umap(parts: Floats, near: int, seed: int) -> Floats:
    with threads_kept(), warnings.catch_warnings():  # numba, which UMAP runs on, sets OpenMP's threads for all
        from umap import UMAP

        # it says that a fixed seed means one thread, and that few points have few neighbours: both are wanted
        warnings.filterwarnings("ignore", category=UserWarning, module="umap")
        found: Floats = UMAP(
            n_neighbors=near, metric="cosine", init="pca", random_state=seed, n_jobs=1, min_dist=0.1
        ).fit_transform(parts)
    return found


def _tsne(parts: Floats, near: int, seed: int) -> Floats:
    from sklearn.manifold import TSNE

    perplexity = min(2.0 * near, (len(parts) - 1) / 3)
    found: Floats = TSNE(perplexity=perplexity, metric="cosine", init="random", random_state=seed).fit_transform(parts)
    return found


def neighbour_recall(directions: Floats, xy: Floats, *, k: int = 10, most: int = 1000, seed: int = 0) -> float:
    """Share of the ``k`` nearest directions by cosine that are among the ``k`` nearest places, 0..1.

    Of more than ``most`` concepts, as many drawn at random are asked; all others can be their neighbours.
    """
    from sklearn.neighbors import NearestNeighbors

    count = len(xy)
    k = min(k, count - 1)
    asked = np.arange(count)
    if count > most:
        asked = np.sort(np.random.default_rng(seed).choice(count, most, replace=False))
    cosine = directions[asked] @ directions.T
    cosine[np.arange(len(asked)), asked] = -np.inf
    wanted = np.argpartition(-cosine, k - 1, axis=1)[:, :k]
    found = NearestNeighbors(n_neighbors=k + 1).fit(xy).kneighbors(xy[asked], return_distance=False)
    hits = [len((set(places.tolist()) - {own}) & set(near.tolist()))
            for own, places, near in zip(asked.tolist(), found, wanted, strict=True)]  # fmt: skip
    return float(np.mean(hits) / k)
