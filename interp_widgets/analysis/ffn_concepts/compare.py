"""`compare_concepts`: how far tuning turned the main directions in which MLPs write."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import scipy
from numpy.typing import ArrayLike, NDArray

from interp_widgets.analysis.ffn_concepts.annotations import ConceptAnnotations
from interp_widgets.analysis.ffn_concepts.concepts import ffn_concepts
from interp_widgets.analysis.ffn_concepts.proportions import Annotated, AnnotationComparison, Trait
from interp_widgets.analysis.ffn_concepts.result import FFNConceptResult
from interp_widgets.analysis.ffn_concepts.tables import annotated_pair
from interp_widgets.analysis.result import Result, provenance, record
from interp_widgets.analysis.two import check_same, check_same_words, shifted, two_results
from interp_widgets.arguments import checked
from interp_widgets.data.annotators import Annotator

if TYPE_CHECKING:
    import pandas as pd


@checked
def subspace_angles(first: ArrayLike, second: ArrayLike) -> NDArray[np.float64]:
    """The principal angles between the subspaces that two sets of directions span, in radians, smallest first.

    Args:
        first: (rank, width) directions, one per row, of any length, independent of each other.
        second: (rank, width) the same; of another rank there are as many angles as the smaller has directions.

    Raises:
        ValueError: directions of different widths, more of them than the width, NaN.

    Source: Knyazev and Argentati 2002, through `scipy.linalg.subspace_angles`.

    Example:
        >>> subspace_angles([[1.0, 0, 0], [0, 1, 0]], [[0, 2.0, 0], [0, 0, 3]]) / np.pi
        array([0. , 0.5])
    """
    a, b = (np.asarray(directions, dtype=np.float64) for directions in (first, second))
    if a.ndim != 2 or b.ndim != 2 or a.shape[1] != b.shape[1]:
        raise ValueError(f"both must be (rank, width) directions of one width, got {a.shape} and {b.shape}")
    for directions in (a, b):
        if not 1 <= len(directions) <= directions.shape[1] or not np.isfinite(directions).all():
            raise ValueError(
                f"directions must be 1 to {directions.shape[1]} rows of finite numbers, got {len(directions)}"
            )
    found: NDArray[np.float64] = scipy.linalg.subspace_angles(a.T, b.T)[::-1].copy()
    return found


@record
class ConceptComparison(Result):
    """The main MLP directions of two models, base and tuned, held against each other layer by layer.

    Source: From Language Modeling to Instruction Following (Wu et al. 2024), section 5.2 (tuning rotates the basis of
    the representation space).

    Example:
        >>> found = compare_concepts(base, tuned, rank=20)
        >>> found.layer_table()[["layer", "overlap", "chance", "match_cosine"]].head(2).round(2)
           layer  overlap  chance  match_cosine
        0      0     0.65     0.1          0.42
        1      1     0.70     0.1          0.48
    """

    layers: Sequence[int]
    """(layers,) layers of the model."""

    angles: NDArray[np.floating[Any]]
    """(layers, rank) principal angles between the two subspaces in radians, 0..π/2, smallest first."""

    overlap: NDArray[np.floating[Any]]
    """(layers,) mean squared cosine of the angles, 0..1: the share of one subspace that lies in the other."""

    chance: float
    """The overlap expected of two random subspaces of this rank: rank / d_model."""

    match: NDArray[np.integer[Any]]
    """(layers, rank) for each component of the base model the tuned one's it is matched with, one to one."""

    match_cosine: NDArray[np.floating[Any]]
    """(layers, rank) absolute cosine of the two matched components, 0..1."""

    shared_words: NDArray[np.floating[Any]]
    """(layers, rank) |A ∩ B| / |A ∪ B| of the words of the two matched components, 0..1."""

    variance: NDArray[np.floating[Any]]
    """(2, layers) share of the variance that the compared components explain, base and tuned."""

    annotated: AnnotationComparison | None = None
    """The annotated concepts of both models held against each other; None where none were given."""

    def __post_init__(self) -> None:
        layers, rank = np.asarray(self.angles).shape
        self.sequence("layers", layers)
        for name in ("angles", "match_cosine", "shared_words"):
            self.array(name, (layers, rank))
        self.array("match", (layers, rank), "int")
        self.array("overlap", (layers,))
        self.array("variance", (2, layers))

    def to_frame(self) -> pd.DataFrame:
        """One row per layer and component of the base model: its match, their cosine, turn in degrees, shared words."""
        import pandas as pd

        layers, rank = self.match.shape
        return pd.DataFrame(
            {
                "layer": np.repeat(np.asarray(self.layers), rank),
                "component": np.tile(np.arange(rank), layers),
                "matched": self.match.ravel(),
                "cosine": self.match_cosine.ravel(),
                "turned_degrees": np.degrees(np.arccos(np.clip(self.match_cosine, 0, 1))).ravel(),
                "shared_words": self.shared_words.ravel(),
            }
        )

    def layer_table(self) -> pd.DataFrame:
        """One row per layer: overlap beside chance, median and largest principal angle in degrees, mean cosine and
        shared words of matched components, variance explained."""
        import pandas as pd

        degrees = np.degrees(self.angles)
        return pd.DataFrame(
            {
                "layer": list(self.layers),
                "overlap": self.overlap,
                "chance": self.chance,
                "median_angle": np.median(degrees, axis=1),
                "largest_angle": degrees[:, -1],
                "match_cosine": self.match_cosine.mean(axis=1),
                "shared_words": self.shared_words.mean(axis=1),
                "variance_base": self.variance[0],
                "variance_tuned": self.variance[1],
            }
        )

    # ---- the annotated concepts

    def scenario_table(self) -> pd.DataFrame:
        """Table 5: see `AnnotationComparison.scenario_table`; ValueError where nothing was annotated."""
        return self._annotated().scenario_table()

    def level_table(self) -> pd.DataFrame:
        """Table 6: see `AnnotationComparison.level_table`; ValueError where nothing was annotated."""
        return self._annotated().level_table()

    def by_layer(self, trait: Trait = "level") -> pd.DataFrame:
        """Figure 3: see `AnnotationComparison.by_layer`; ValueError where nothing was annotated."""
        return self._annotated().by_layer(trait)

    def moved_words(self, *, span: int = 4, top: int = 10) -> pd.DataFrame:
        """Tables 7 to 10: see `AnnotationComparison.moved_words`; ValueError where nothing was annotated."""
        return self._annotated().moved_words(span=span, top=top)

    def _annotated(self) -> AnnotationComparison:
        if self.annotated is None:
            raise ValueError("no concepts were annotated: compare with annotator=RuleAnnotator() or annotations=(a, b)")
        return self.annotated


@checked
def compare_concepts(
    base: Any,
    tuned: Any,
    *,
    rank: int | None = None,
    annotator: Annotator | None = None,
    annotations: tuple[Annotated, Annotated] | None = None,
    resamples: int = 999,
    seed: int = 0,
    progress: Callable[[int, int], None] | None = None,
    check: Callable[[], None] | None = None,
    **options: Any,
) -> ConceptComparison:
    """How far tuning turned the subspace of each layer's main MLP directions, and the directions inside it.

    Two subspaces are compared by their principal angles; single components are matched one to one so that the sum of
    their absolute cosines is largest (Hungarian method), since tuning changes their order.

    Args:
        base: what `load_model` returns, or the `FFNConceptResult` of such a model.
        tuned: the same for the other model, with the same words and options.
        rank: components compared, from the first; default: as many as the results have, at most half of d_model. All
            d_model directions span everything: their angles say nothing.
        annotator: says what the compared components mean, so that scenarios and levels are compared too; default: that
            part is left out.
        annotations: instead, what `annotate_concepts` gave for base and tuned (edited, perhaps), or several runs of it.
        resamples: of the bootstrap intervals and permutation tests of scenarios and levels.
        seed: of both.
        progress: called with (done, total).
        check: called between layers; raises to cancel.
        options: for `ffn_concepts`, where models are given.

    Raises:
        ValueError: results of different words, layers or widths, without their directions, or with fewer components;
            annotations of other layers; an annotator and annotations.

    Source: From Language Modeling to Instruction Following (Wu et al. 2024), section 5.2 and appendix E.

    Example:
        >>> found = compare_concepts(base, tuned, rank=20, annotator=RuleAnnotator())
        >>> found.layer_table()[["layer", "overlap", "chance", "match_cosine"]].head(2).round(1)
           layer  overlap  chance  match_cosine
        0      0      0.7     0.1           0.4
        1      1      0.7     0.1           0.5
        >>> found.level_table()[["category", "base", "tuned"]].round(1)
              category  base  tuned
        0    phonology   0.0    0.0
        1   morphology   0.0    0.0
        2       syntax  23.1    8.3
        3    semantics  76.9   91.7
        4  cannot tell  89.2   90.0
    """
    if annotator is not None and annotations is not None:
        raise ValueError("give an annotator or ready annotations, not both")
    parts = [None if progress is None else shifted(progress, place, 2) for place in range(2)]
    early = parts[0] if annotator is not None else progress
    a, b = two_results((base, tuned), FFNConceptResult, ffn_concepts, options, early, check)
    first, second = _directions(a, b)
    width = first.shape[2]
    most = min(a.rank, b.rank)
    rank = min(most, max(1, width // 2)) if rank is None else rank
    if not 1 <= rank <= most:
        raise ValueError(f"rank must be in 1..{most}, the components of these results, got {rank}")
    rows: dict[str, list[Any]] = {"angles": [], "match": [], "match_cosine": [], "shared_words": []}
    for place in range(len(a.layers)):
        if check is not None:
            check()
        one, other = first[place, :rank].astype(np.float64), second[place, :rank].astype(np.float64)
        cosines = np.abs(one @ other.T)
        match = scipy.optimize.linear_sum_assignment(cosines, maximize=True)[1]
        rows["angles"].append(subspace_angles(one, other))
        rows["match"].append(match)
        rows["match_cosine"].append(np.minimum(cosines[np.arange(rank), match], 1))
        rows["shared_words"].append(_shared(a, b, a.layers[place], match))
    angles = np.stack(rows.pop("angles"))
    explained = [result.explained_variance[:, :rank].sum(axis=1) for result in (a, b)]
    annotated = None
    if annotator is not None or annotations is not None:
        given: dict[str, Any] = {"annotations": _fitting(annotations, a), "rank": rank, "progress": parts[1]}
        annotated = annotated_pair(a, b, annotator, resamples=resamples, seed=seed, check=check, **given)
    names = {"model": "", "weight_hash": "_weights"}
    told = {f"base{end}": a.provenance.get(key) for key, end in names.items()}
    told |= {f"tuned{end}": b.provenance.get(key) for key, end in names.items()}
    told |= {f"{side}_edited": one.provenance["edited"] for side, one in (("base", a), ("tuned", b))
             if "edited" in one.provenance}  # fmt: skip
    return ConceptComparison(
        layers=tuple(a.layers),
        angles=angles,
        overlap=(np.cos(angles) ** 2).mean(axis=1),
        chance=rank / width,
        variance=np.stack(explained),
        annotated=annotated,
        partial=a.partial or b.partial or (annotated is not None and annotated.partial),
        provenance=provenance(None, **told, rank=rank, words=len(a.vocabulary), top=a.top),
        **{name: np.stack(values) for name, values in rows.items()},
    )


def _fitting(
    annotations: tuple[Annotated, Annotated] | None, result: FFNConceptResult
) -> tuple[Annotated, Annotated] | None:
    """Annotations of layers that the results have."""
    for notes in annotations or ():
        for run in (notes,) if isinstance(notes, ConceptAnnotations) else notes:
            check_same({"layers": (tuple(result.layers), tuple(run.layers))})
    return annotations


def _directions(
    a: FFNConceptResult, b: FFNConceptResult
) -> tuple[NDArray[np.floating[Any]], NDArray[np.floating[Any]]]:
    """The directions of two results that can be compared."""
    if a.directions is None or b.directions is None:
        raise ValueError("a result without its directions cannot be compared: compute it with keep_directions=True")
    widths = a.directions.shape[2], b.directions.shape[2]
    check_same({"layers": (tuple(a.layers), tuple(b.layers)), "width of the model": widths, "top": (a.top, b.top)})
    check_same_words(a.vocabulary, b.vocabulary)
    return a.directions, b.directions


def _shared(
    a: FFNConceptResult, b: FFNConceptResult, layer: int, match: NDArray[np.integer[Any]]
) -> NDArray[np.float64]:
    """(rank,) |A ∩ B| / |A ∪ B| of the words of matched components."""
    found = []
    for component, other in enumerate(match.tolist()):
        one, two = set(a.words(layer, component)), set(b.words(layer, other))
        found.append(len(one & two) / len(one | two))
    return np.array(found)
