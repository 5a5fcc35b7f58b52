"""One call per table of the paper: concepts by task scenario and by linguistic level, base against tuned."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from interp_widgets.analysis._core.comparing import check_same, check_same_words, shifted, two_results
from interp_widgets.analysis.ffn_concepts.annotate import annotate_concepts
from interp_widgets.analysis.ffn_concepts.annotation_comparison import (
    Annotated,
    AnnotationComparison,
    compare_annotations,
)
from interp_widgets.analysis.ffn_concepts.components import ffn_concepts
from interp_widgets.analysis.ffn_concepts.components_result import FFNConceptResult
from interp_widgets.arguments import checked
from interp_widgets.data.annotators import Annotator, RuleAnnotator

if TYPE_CHECKING:
    import pandas as pd


@checked
def scenario_table(
    base: Any,
    tuned: Any,
    *,
    annotator: Annotator | None = None,
    rank: int | None = None,
    resamples: int = 999,
    seed: int = 0,
    progress: Callable[[int, int], None] | None = None,
    check: Callable[[], None] | None = None,
    **options: Any,
) -> pd.DataFrame:
    """Table 5 of the paper in one call: what share of each model's concepts serves writing, coding, math, translation.

    Args:
        base: what `load_model` returns, or the `FFNConceptResult` of such a model.
        tuned: the same for the other model, with the same words and options.
        annotator: who says what a concept is; default: `RuleAnnotator`, offline. The paper's is a language model:
            `EndpointAnnotator`.
        rank: components annotated per layer, from the first; default: all of the results (300, as in the paper).
        resamples: of the bootstrap intervals and permutation tests.
        seed: of both.
        progress: called with (done, total).
        check: called between components; raises to cancel.
        options: for `ffn_concepts`, where models are given, such as ``words``.

    Returns:
        One row per scenario, one for none of them, one for "cannot tell"; the columns are those of
        `AnnotationComparison.level_table`.

    Raises:
        ValueError: results of different words or layers, or with fewer components.

    Source: From Language Modeling to Instruction Following (Wu et al. 2024), section 5.2, Table 5.

    Example:
        >>> table = scenario_table(base, tuned, rank=10, resamples=99)
        >>> table[["category", "base", "tuned"]].round(1)
                category  base  tuned
        0        writing   0.0    0.0
        1         coding   0.0    0.0
        2           math   0.0    0.0
        3    translation  25.0    0.0
        4  none of these  75.0  100.0
        5    cannot tell  93.3   93.3
    """
    return annotated_pair(
        base, tuned, annotator, rank=rank, resamples=resamples, seed=seed, progress=progress, check=check, **options
    ).scenario_table()


@checked
def level_table(
    base: Any,
    tuned: Any,
    *,
    annotator: Annotator | None = None,
    rank: int | None = None,
    resamples: int = 999,
    seed: int = 0,
    progress: Callable[[int, int], None] | None = None,
    check: Callable[[], None] | None = None,
    **options: Any,
) -> pd.DataFrame:
    """Table 6 of the paper in one call: the share of each model's concepts at each linguistic level.

    Arguments and errors are those of `scenario_table`; one row per level and one for "cannot tell", the columns those
    of `AnnotationComparison.level_table`.

    Source: From Language Modeling to Instruction Following (Wu et al. 2024), section 5.2, Table 6.

    Example:
        >>> table = level_table(base, tuned, rank=10, resamples=99)
        >>> table[["category", "base", "tuned"]].round(1)
              category  base  tuned
        0    phonology   0.0    0.0
        1   morphology   0.0    0.0
        2       syntax  25.0    0.0
        3    semantics  75.0  100.0
        4  cannot tell  93.3   93.3
    """
    return annotated_pair(
        base, tuned, annotator, rank=rank, resamples=resamples, seed=seed, progress=progress, check=check, **options
    ).level_table()


def annotated_pair(
    base: Any,
    tuned: Any,
    annotator: Annotator | None = None,
    *,
    annotations: tuple[Annotated, Annotated] | None = None,
    rank: int | None = None,
    resamples: int = 999,
    seed: int = 0,
    progress: Callable[[int, int], None] | None = None,
    check: Callable[[], None] | None = None,
    **options: Any,
) -> AnnotationComparison:
    """Two models' concepts, annotated (or with the annotations given) and compared; see `scenario_table`."""
    if annotations is not None:
        return compare_annotations(*annotations, resamples=resamples, seed=seed)
    halves = (None, None) if progress is None else (shifted(progress, 0, 2), shifted(progress, 1, 2))
    a, b = two_results((base, tuned), FFNConceptResult, ffn_concepts, options, halves[0], check)
    check_same({"layers": (tuple(a.layers), tuple(b.layers)), "top": (a.top, b.top)})
    check_same_words(a.vocabulary, b.vocabulary)
    most = min(a.rank, b.rank)
    rank = most if rank is None else rank
    if not 1 <= rank <= most:
        raise ValueError(f"rank must be in 1..{most}, the components of these results, got {rank}")
    who = RuleAnnotator() if annotator is None else annotator
    notes = [
        annotate_concepts(
            result,
            who,
            components=range(rank),
            progress=None if halves[1] is None else shifted(halves[1], place, 2),
            check=check,
        )
        for place, result in enumerate((a, b))
    ]
    return compare_annotations(notes[0], notes[1], resamples=resamples, seed=seed)
