"""`compare_concepts`: how far tuning rotated the principal directions of MLP output weights."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import scipy
from numpy.typing import ArrayLike, NDArray

from interp_widgets.analysis._core.arrays import Floats, Ints, float64
from interp_widgets.analysis._core.checks import check_range
from interp_widgets.analysis._core.comparing import check_same, check_same_words, pair_provenance, two_results
from interp_widgets.analysis._core.result import Result, provenance, record, with_axes
from interp_widgets.analysis._core.run import RunOptions
from interp_widgets.analysis._core.tables import DataFrame, table
from interp_widgets.analysis.ffn_concepts.annotation_comparison import (
    Annotated,
    AnnotationComparison,
    Trait,
    annotated_pair,
)
from interp_widgets.analysis.ffn_concepts.annotations import ConceptAnnotations
from interp_widgets.analysis.ffn_concepts.components import FFNConceptResult, ffn_concepts
from interp_widgets.arguments import checked
from interp_widgets.data.annotators import Annotator


@checked
def subspace_angles(first: ArrayLike, second: ArrayLike) -> NDArray[np.float64]:
    """The principal angles between the subspaces that two sets of directions span, in radians, smallest first.

    Args:
        first: (rank, width) linearly independent directions, one per row, of any length.
        second: (rank, width) the same; if the ranks differ, there are as many angles as the smaller one.

    Raises:
        ValueError: directions of different widths, more of them than the width, NaN.

    Source: Knyazev and Argentati 2002, through `scipy.linalg.subspace_angles`.

    Example:
        >>> subspace_angles([[1.0, 0, 0], [0, 1, 0]], [[0, 2.0, 0], [0, 0, 3]]) / np.pi
        array([0. , 0.5])
    """
    a, b = (float64(directions) for directions in (first, second))
    if a.ndim != 2 or b.ndim != 2 or a.shape[1] != b.shape[1]:
        raise ValueError(f"both must be (rank, width) directions of one width, got {a.shape} and {b.shape}")
    for directions in (a, b):
        if not 1 <= len(directions) <= directions.shape[1] or not np.isfinite(directions).all():
            raise ValueError(
                f"directions must be 1 to {directions.shape[1]} rows of finite numbers, got {len(directions)}"
            )
    return np.asarray(scipy.linalg.subspace_angles(a.T, b.T)[::-1].copy())


@record
class ConceptComparison(Result):
    """The principal MLP directions of two models, base and tuned, compared layer by layer.

    Source: From Language Modeling to Instruction Following (Wu et al. 2024), section 5.2 (tuning rotates the basis of
    the representation space).

    Example:
        >>> comparison = compare_concepts(base, tuned, rank=20)
        >>> comparison.layer_table()[["layer", "overlap", "chance", "match_cosine"]].head(2).round(2)
           layer  overlap  chance  match_cosine
        0      0     0.65     0.1          0.42
        1      1     0.70     0.1          0.48
    """

    layers: Sequence[int] = with_axes("layers")
    """Layers of the model."""

    angles: Floats = with_axes("layers", "rank")
    """Principal angles between the two subspaces in radians, 0..π/2, smallest first."""

    overlap: Floats = with_axes("layers")
    """Mean squared cosine of the angles, 0..1: the share of one subspace that lies in the other."""

    chance: float
    """The overlap expected of two random subspaces of this rank: rank / d_model."""

    match: Ints = with_axes("layers", "rank")
    """For each component of the base model, the component of the tuned model that it is matched with, one to one."""

    match_cosine: Floats = with_axes("layers", "rank")
    """Absolute cosine of the two matched components, 0..1."""

    shared_words: Floats = with_axes("layers", "rank")
    """|A ∩ B| / |A ∪ B| of the words of the two matched components, 0..1."""

    variance: Floats = with_axes(2, "layers")
    """Share of the variance that the compared components explain, base and tuned."""

    annotated: AnnotationComparison | None = None
    """The annotated concepts of both models compared; None without annotations."""

    def to_frame(self) -> DataFrame:
        """One row per layer and component of the base model: match, cosine, angle in degrees, shared words."""
        columns = {
            "matched": self.match,
            "cosine": self.match_cosine,
            "turned_degrees": np.degrees(np.arccos(np.clip(self.match_cosine, 0, 1))),
            "shared_words": self.shared_words,
        }
        return table({"layer": self.layers, "component": range(self.match.shape[1])}, columns)

    def layer_table(self) -> DataFrame:
        """One row per layer: overlap and chance, median and largest principal angle in degrees, mean cosine and shared
        words of matched components, variance explained."""
        degrees = np.degrees(self.angles)
        columns = {
            "overlap": self.overlap,
            "chance": self.chance,
            "median_angle": np.median(degrees, axis=1),
            "largest_angle": degrees[:, -1],
            "match_cosine": self.match_cosine.mean(axis=1),
            "shared_words": self.shared_words.mean(axis=1),
            "variance_base": self.variance[0],
            "variance_tuned": self.variance[1],
        }
        return table({"layer": self.layers}, columns)

    # ---- the annotated concepts

    def scenario_table(self) -> DataFrame:
        """Table 5: see `AnnotationComparison.scenario_table`; ValueError where nothing was annotated."""
        return self._annotated().scenario_table()

    def level_table(self) -> DataFrame:
        """Table 6: see `AnnotationComparison.level_table`; ValueError where nothing was annotated."""
        return self._annotated().level_table()

    def by_layer(self, trait: Trait = "level") -> DataFrame:
        """Figure 3: see `AnnotationComparison.by_layer`; ValueError where nothing was annotated."""
        return self._annotated().by_layer(trait)

    def moved_words(self, *, span: int = 4, top: int = 10) -> DataFrame:
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
    """How far tuning rotated the subspace of each layer's principal MLP directions, and the directions inside it.

    Subspaces are compared by their principal angles. Since tuning changes the order of components, they are matched one
    to one so that the sum of their absolute cosines is largest (Hungarian method).

    Args:
        base: what `load_model` returns, or the `FFNConceptResult` of such a model.
        tuned: the same for the other model, with the same words and options.
        rank: number of components compared, from the first; default: as many as the results have, at most half of
            d_model. All d_model directions would span the whole space, so that every angle is 0.
        annotator: annotates the compared components, so that scenarios and levels are compared too; default: neither is
            compared.
        annotations: instead of an annotator, the annotations of base and tuned, or several runs for each.
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
        >>> comparison = compare_concepts(base, tuned, rank=20, annotator=RuleAnnotator())
        >>> comparison.layer_table()[["layer", "overlap", "chance", "match_cosine"]].head(2).round(1)
           layer  overlap  chance  match_cosine
        0      0      0.7     0.1           0.4
        1      1      0.7     0.1           0.5
        >>> comparison.level_table()[["category", "base", "tuned"]].round(1)
              category  base  tuned
        0    phonology   0.0    0.0
        1   morphology   0.0    0.0
        2       syntax  23.1    8.3
        3    semantics  76.9   91.7
        4  cannot tell  89.2   90.0
    """
    if annotator is not None and annotations is not None:
        raise ValueError("give an annotator or ready annotations, not both")
    run = RunOptions(progress, check)
    early = run.part(0, 2) if annotator is not None else run
    a, b = two_results((base, tuned), FFNConceptResult, ffn_concepts, options, early)
    first, second = _directions(a, b)
    width = first.shape[2]
    most = min(a.rank, b.rank)
    rank = min(most, max(1, width // 2)) if rank is None else rank
    check_range("rank", rank, most=most, owner="these results")
    rows: dict[str, list[Any]] = {"angles": [], "match": [], "match_cosine": [], "shared_words": []}
    for row, layer in enumerate(a.layers):
        run.stop_if_cancelled()
        base_directions, tuned_directions = first[row, :rank].astype(np.float64), second[row, :rank].astype(np.float64)
        cosines = np.abs(base_directions @ tuned_directions.T)
        match = scipy.optimize.linear_sum_assignment(cosines, maximize=True)[1]
        rows["angles"].append(subspace_angles(base_directions, tuned_directions))
        rows["match"].append(match)
        rows["match_cosine"].append(np.minimum(cosines[np.arange(rank), match], 1))
        rows["shared_words"].append(_shared(a, b, layer, match))
    arrays = {name: np.stack(values) for name, values in rows.items()}
    annotated = None
    if annotator is not None or annotations is not None:
        annotated = annotated_pair(
            a, b, annotator, annotations=_of_the_layers(annotations, a), rank=rank, resamples=resamples, seed=seed,
            progress=run.part(1, 2).progress, check=check,
        )  # fmt: skip
    return ConceptComparison(
        layers=tuple(a.layers),
        overlap=(np.cos(arrays["angles"]) ** 2).mean(axis=1),
        chance=rank / width,
        variance=np.stack([result.explained_variance[:, :rank].sum(axis=1) for result in (a, b)]),
        annotated=annotated,
        partial=a.partial or b.partial or (annotated is not None and annotated.partial),
        provenance=provenance(pair_provenance(a, b), rank=rank, words=len(a.vocabulary), top=a.top),
        **arrays,
    )


def _of_the_layers(
    annotations: tuple[Annotated, Annotated] | None, result: FFNConceptResult
) -> tuple[Annotated, Annotated] | None:
    """Annotations restricted to the layers of the results."""
    for notes in annotations or ():
        for run in (notes,) if isinstance(notes, ConceptAnnotations) else notes:
            check_same({"layers": (tuple(result.layers), tuple(run.layers))})
    return annotations


def _directions(a: FFNConceptResult, b: FFNConceptResult) -> tuple[Floats, Floats]:
    """The directions of two results; ValueError if they cannot be compared."""
    if a.directions is None or b.directions is None:
        raise ValueError("a result without its directions cannot be compared: compute it with keep_directions=True")
    widths = a.directions.shape[2], b.directions.shape[2]
    check_same({"layers": (tuple(a.layers), tuple(b.layers)), "width of the model": widths, "top": (a.top, b.top)})
    check_same_words(a.vocabulary, b.vocabulary)
    return a.directions, b.directions


def _shared(a: FFNConceptResult, b: FFNConceptResult, layer: int, match: Ints) -> NDArray[np.float64]:
    """(rank,) |A ∩ B| / |A ∪ B| of the words of matched components."""
    shares = []
    for component, other in enumerate(match.tolist()):
        words, other_words = set(a.words(layer, component)), set(b.words(layer, other))
        shares.append(len(words & other_words) / len(words | other_words))
    return np.array(shares)
