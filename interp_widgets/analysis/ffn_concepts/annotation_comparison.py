"""Task scenarios and linguistic levels of two models' components: `compare_annotations`, and the paper's tables."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import scipy  # scipy.stats loads on first use
from numpy.typing import NDArray

from interp_widgets.analysis._core.arrays import Bools
from interp_widgets.analysis._core.checks import check_choice, check_range
from interp_widgets.analysis._core.comparing import check_same, check_same_words, pair_provenance, two_results
from interp_widgets.analysis._core.result import Result, provenance, record, with_axes
from interp_widgets.analysis._core.run import RunOptions
from interp_widgets.analysis._core.statistics import GroupComparison, compare_known, holm
from interp_widgets.analysis.ffn_concepts.annotations import ConceptAnnotations, annotate_concepts
from interp_widgets.analysis.ffn_concepts.components import FFNConceptResult, ffn_concepts
from interp_widgets.arguments import checked
from interp_widgets.data.annotators import LEVELS, SCENARIOS, Annotator, RuleAnnotator

if TYPE_CHECKING:
    import pandas as pd

Trait = Literal["scenario", "level"]
"""The property of concepts that is counted."""
Annotated = ConceptAnnotations | Sequence[ConceptAnnotations]
"""The annotations of one model, or those of several runs of the annotator."""

NONE = "none of these"
CANNOT_TELL = "cannot tell"
_CATEGORIES: dict[Trait, tuple[str, ...]] = {"scenario": (*SCENARIOS, NONE), "level": LEVELS}
_FEWEST_LETTERS = 4
_EVIDENCE = re.compile(r"\s*\[[^\]]*\]\s*$")
_WORD = re.compile(r"[^\W_](?:[\w'’/+#-]*[^\W_])?")
_STOP = """
about above after again also another because been before being below between both cannot could does doing down during
each either else ever every from further have having here itself just like many more most much neither only other over
same should some such tell than that their them then there these they this those through under until various very were
what when where which while whom whose will with within without word words would your related relating
"""


@record
class AnnotationComparison(Result):
    """The concepts of two models, base and tuned, counted by task scenario and by linguistic level.

    Scenario shares are relative to the components with a description (a concept may serve several tasks, or none),
    level shares to those with a level. Components marked "cannot tell" count in neither; each table has a row with
    their share of all annotated components. Differences are tuned minus base.
    Source: From Language Modeling to Instruction Following (Wu et al. 2024), section 5.2, Tables 5 to 10, Figure 3.

    Example:
        >>> notes = [annotate_concepts(ffn_concepts(each, rank=10), RuleAnnotator()) for each in (base, tuned)]
        >>> compare_annotations(*notes).summary()
        'base: 60 components: 4 described, 56 cannot tell; tuned: 60 components: 4 described, 56 cannot tell'
    """

    base: Sequence[ConceptAnnotations] = with_axes("runs of base")
    """Annotations of the base model."""

    tuned: Sequence[ConceptAnnotations] = with_axes("runs of tuned")
    """Annotations of the tuned model."""

    scenario_tests: Sequence[GroupComparison | None] = with_axes(6)
    """Writing, coding, math, translation (Holm-corrected over these four), none of these, cannot tell: shares in
    percent, tuned first, two-sided; None where a model has fewer than two values."""

    level_tests: Sequence[GroupComparison | None] = with_axes(5)
    """Phonology, morphology, syntax, semantics (Holm-corrected over these four), cannot tell: shares as in
    `scenario_tests`."""

    @property
    def layers(self) -> tuple[int, ...]:
        """The layers compared."""
        return tuple(self.base[0].layers)

    @property
    def unit(self) -> str:
        """One observation of a test: the share of a run, or, with one run per model, a concept (0 or 100)."""
        return "runs" if len(self.base) > 1 else "concepts"

    def scenario_table(self) -> pd.DataFrame:
        """Table 5: one row per task scenario, one for none of them, one for "cannot tell"; see `level_table`."""
        return self._table("scenario", self.scenario_tests)

    def level_table(self) -> pd.DataFrame:
        """Table 6: one row per linguistic level and one for "cannot tell", shares of concepts in percent.

        ``base`` and ``tuned`` are means over the runs with their standard deviation; with a single run per model they
        are its shares with their standard errors. ``base_n`` and ``tuned_n`` count the runs, or the concepts. ``low``
        and ``high`` are the bootstrap interval of the difference. The tests are two-sided: ``student_p`` assumes equal
        variances, which fits most of the p-values printed in the paper; ``welch_p`` does not, ``permutation_p`` makes
        no assumption on the distributions, and ``holm_p`` is Welch's corrected over the categories, which the paper
        omits.
        """
        return self._table("level", self.level_tests)

    def _table(self, trait: Trait, tests: Sequence[GroupComparison | None]) -> pd.DataFrame:
        import pandas as pd

        rows = []
        for category, test in zip((*_CATEGORIES[trait], CANNOT_TELL), tests, strict=True):
            row: dict[str, Any] = {"category": category}
            for name, notes in (("base", self.base), ("tuned", self.tuned)):
                values = _values(notes, trait)[category]
                n = len(values)
                row[name] = float(values.mean()) if n else np.nan
                row[f"{name}_error"] = float(values.std() / (1 if self.unit == "runs" else np.sqrt(n))) if n else np.nan
                row[f"{name}_n"] = n
            row["difference"] = row["tuned"] - row["base"]
            low, high = (np.nan, np.nan) if test is None else test.difference_interval
            row |= {"low": low, "high": high}
            row["student_p"] = np.nan if test is None else _student(test)
            for name in ("welch_p", "holm_p", "permutation_p"):
                row[name] = np.nan if getattr(test, name, None) is None else getattr(test, name)
            rows.append(row)
        return pd.DataFrame(rows)

    def by_layer(self, trait: Trait = "level") -> pd.DataFrame:
        """Figure 3: one row per layer and category with its share in percent in both models and the number of concepts
        that the share is relative to; "cannot tell" is the last row of a layer.

        Several runs are pooled. Raises ValueError for a trait other than scenario or level.
        """
        import pandas as pd

        check_choice("trait", trait, Trait)
        rows = []
        for row, layer in enumerate(self.layers):
            flags_by_model = [_joined([_flags(run, trait, row) for run in notes]) for notes in (self.base, self.tuned)]
            for category in (*_CATEGORIES[trait], CANNOT_TELL):
                shares = [100 * flags[category].mean() if len(flags[category]) else np.nan for flags in flags_by_model]
                sizes = [len(flags[category]) for flags in flags_by_model]
                rows.append((layer, category, *shares, *sizes))
        return pd.DataFrame(rows, columns=["layer", "category", "base", "tuned", "base_concepts", "tuned_concepts"])

    def moved_words(self, *, span: int = 4, top: int = 10) -> pd.DataFrame:
        """Tables 7 to 10: per group of ``span`` layers the words of descriptions that became more and less frequent.

        Words have at least four letters and are not stop words; text in square brackets, which rules add, is ignored.
        One row per word: the group, ``more`` or ``less``, the number of descriptions with the word (mean over runs),
        the change, and the rank by frequency in both models with its shift (positive: moved up), empty where a model's
        descriptions never have the word. The largest changes come first, at most ``top`` per direction. Raises
        ValueError for a span or top below 1.
        """
        import pandas as pd

        check_range("span", span)
        check_range("top", top)
        table_rows: list[dict[str, Any]] = []
        for start in range(0, len(self.layers), span):
            rows = range(start, min(start + span, len(self.layers)))
            name = "-".join(dict.fromkeys(str(self.layers[row]) for row in (rows[0], rows[-1])))
            before, after = _word_counts(self.base, rows), _word_counts(self.tuned, rows)
            ranks = _ranks(before), _ranks(after)
            counts = {word: (before.get(word, 0.0), after.get(word, 0.0)) for word in (before | after)}
            change = {word: second - first for word, (first, second) in counts.items()}
            for kind, sign in (("more", 1), ("less", -1)):
                moved = sorted((w for w in change if sign * change[w] > 0), key=lambda w: (-abs(change[w]), w))[:top]
                table_rows += [
                    {"layers": name, "direction": kind, "word": word, "base": counts[word][0], "tuned": counts[word][1],
                     "change": change[word], "base_rank": ranks[0].get(word), "tuned_rank": ranks[1].get(word)}
                    for word in moved
                ]  # fmt: skip
        columns = ["layers", "direction", "word", "base", "tuned", "change", "base_rank", "tuned_rank"]
        table = pd.DataFrame(table_rows, columns=columns)
        for column in ("base_rank", "tuned_rank"):
            table[column] = table[column].astype("Int64")
        table["rank_shift"] = table["base_rank"] - table["tuned_rank"]
        return table

    def to_frame(self) -> pd.DataFrame:
        """`scenario_table` and `level_table` under each other, as the paper prints them."""
        import pandas as pd

        tables = {"scenario": self.scenario_table(), "level": self.level_table()}
        return pd.concat([table.assign(trait=name) for name, table in tables.items()], ignore_index=True)

    def summary(self) -> str:
        """A readable line: the numbers of annotated and "cannot tell" components in each model."""
        texts = []
        for name, notes in (("base", self.base), ("tuned", self.tuned)):
            runs = f"{len(notes)} runs, the first: " if len(notes) > 1 else ""
            texts.append(f"{name}: {runs}{notes[0].summary()}")
        return "; ".join(texts)


@checked
def compare_annotations(
    base: Annotated, tuned: Annotated, *, resamples: int = 999, seed: int = 0
) -> AnnotationComparison:
    """Count the concepts of two models by task scenario and linguistic level, and test the differences.

    With several annotator runs per model, an observation is a run's share, as in the paper; with one run per model, it
    is a concept. The tests are two-sided: Student's and Welch's t-tests, with a bootstrap interval and a permutation
    test, Holm-corrected over the four scenarios and over the four levels. Concepts of one model are treated as
    independent, although those of a layer are not quite.

    Args:
        base: the base model's annotations from `annotate_concepts`, or those of several runs.
        tuned: the same layers and components of the tuned model, as many runs.
        resamples: of the bootstrap intervals and permutation tests.
        seed: of both.

    Raises:
        ValueError: annotations of different layers or components, or one run of one model and several of the other.

    Source: From Language Modeling to Instruction Following (Wu et al. 2024), section 5.2, Tables 5 and 6.

    Example:
        >>> notes = [annotate_concepts(ffn_concepts(each, rank=10), RuleAnnotator()) for each in (base, tuned)]
        >>> compare_annotations(*notes).level_table()[["category", "base", "tuned"]].round(1)
              category  base  tuned
        0    phonology   0.0    0.0
        1   morphology   0.0    0.0
        2       syntax  25.0    0.0
        3    semantics  75.0  100.0
        4  cannot tell  93.3   93.3
    """
    runs = [(notes,) if isinstance(notes, ConceptAnnotations) else tuple(notes) for notes in (base, tuned)]
    if not all(runs) or (len(runs[0]) == 1) != (len(runs[1]) == 1):
        raise ValueError(
            f"give one run of each model or several of each, got {len(runs[0])} of base and {len(runs[1])} of tuned"
        )
    first = runs[0][0]
    for run in (*runs[0], *runs[1]):
        check_same({
            "layers": (first.layers, run.layers),
            "components": (len(first.components), len(run.components)),
            "numbers of components": (first.components, run.components),
        })  # fmt: skip
    options = {"names": ("tuned", "base"), "alternative": "two-sided", "resamples": resamples, "seed": seed}
    sizes = {"runs_base": len(runs[0]), "runs_tuned": len(runs[1])}
    return AnnotationComparison(
        base=runs[0],
        tuned=runs[1],
        scenario_tests=_tests(runs, "scenario", options),
        level_tests=_tests(runs, "level", options),
        partial=any(run.partial for notes in runs for run in notes),
        provenance=provenance(
            pair_provenance(runs[0][0], runs[1][0]), **sizes, resamples=resamples, seed=seed, annotator=first.annotator
        ),
    )


def _tests(
    runs: Sequence[Sequence[ConceptAnnotations]], trait: Trait, options: dict[str, Any]
) -> tuple[GroupComparison | None, ...]:
    base, tuned = (_values(notes, trait) for notes in runs)
    tests: list[GroupComparison | None] = []
    for category in (*_CATEGORIES[trait], CANNOT_TELL):
        test = compare_known(tuned[category], base[category], **options)
        tests.append(None if test is None else replace(test, group=category, kind=trait))
    # the rows after the categories follow from them or count "cannot tell": they are not separate hypotheses
    family = len(SCENARIOS if trait == "scenario" else LEVELS)
    return (*holm(tests[:family]), *tests[family:])


Flags = dict[str, Bools]
"""For each category, whether each counted concept is in it."""


def _flags(notes: ConceptAnnotations, trait: Trait, row: int | None = None) -> Flags:
    """The flags of one run, for all layers or one of them."""
    at = slice(None) if row is None else slice(row, row + 1)
    done, described = notes.done[at], notes.described[at]
    scenarios, level = notes.scenario_flags[at], notes.level_index[at]
    if trait == "scenario":
        known = done & (described | scenarios.any(axis=-1))
        flags = {name: scenarios[known][:, i] for i, name in enumerate(SCENARIOS)}
        flags[NONE] = np.asarray(~scenarios[known].any(axis=-1))
    else:
        known = done & (level >= 0)
        flags = {name: np.asarray(level[known] == i) for i, name in enumerate(LEVELS)}
    return {**flags, CANNOT_TELL: ~known[done]}


def _student(test: GroupComparison) -> float:
    moments = [value for g in test.values for value in (g.mean(), g.std(ddof=1), len(g))]
    same = not any(np.ptp(g) for g in test.values)  # nothing varies: there is nothing to test
    return float("nan") if same else float(scipy.stats.ttest_ind_from_stats(*moments).pvalue)


def _joined(flags: Sequence[Flags]) -> Flags:
    return {name: np.concatenate([part[name] for part in flags]) for name in flags[0]}


def _values(notes: Sequence[ConceptAnnotations], trait: Trait) -> dict[str, NDArray[np.float64]]:
    """For each category, the observations of a test in percent: shares of runs, or single concepts."""
    flags = [_flags(run, trait) for run in notes]
    if len(flags) == 1:
        return {name: 100 * values.astype(np.float64) for name, values in flags[0].items()}
    shares = {name: [100 * run[name].mean() for run in flags if len(run[name])] for name in flags[0]}
    return {name: np.array(values, dtype=np.float64) for name, values in shares.items()}


def description_words(description: str) -> list[str]:
    """The content words of a description: four letters or more, no stop words, nothing in brackets.

    >>> description_words("words related to foreign-language terms [list: 9 of 15 words]")
    ['foreign-language', 'terms']
    """
    words = _WORD.findall(_EVIDENCE.sub("", description))
    return [word for word in words if len(word) >= _FEWEST_LETTERS and word.lower() not in _STOP.split()]


def _word_counts(notes: Sequence[ConceptAnnotations], rows: Sequence[int]) -> dict[str, float]:
    """Number of descriptions with each word in these layers, mean over runs."""
    texts = [text for run in notes for row in rows for text in run.descriptions[row]]
    counts = Counter(word for text in texts for word in dict.fromkeys(description_words(text)))
    return {word: count / len(notes) for word, count in counts.items()}


def _ranks(counts: dict[str, float]) -> dict[str, int]:
    """The rank of each word by frequency, from 1; equally frequent words share the best rank."""
    order = sorted(counts.values(), reverse=True)
    return {word: order.index(count) + 1 for word, count in counts.items()}


# the tables of the paper --------------------------------------------------------------------------------------------


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
        annotator: annotates the concepts; default: `RuleAnnotator`, which works offline. The paper uses a language
            model, as `EndpointAnnotator` does.
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
def level_table(base: Any, tuned: Any, *, annotator: Annotator | None = None, **options: Any) -> pd.DataFrame:
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
    return annotated_pair(base, tuned, annotator, **options).level_table()


@checked
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
    """Annotate the concepts of two models, unless ``annotations`` are given, and compare them; see `scenario_table`."""
    if annotations is not None:
        return compare_annotations(*annotations, resamples=resamples, seed=seed)
    run = RunOptions(progress, check)
    a, b = two_results((base, tuned), FFNConceptResult, ffn_concepts, options, run.part(0, 2))
    check_same({"layers": (tuple(a.layers), tuple(b.layers)), "top": (a.top, b.top)})
    check_same_words(a.vocabulary, b.vocabulary)
    most = min(a.rank, b.rank)
    rank = most if rank is None else rank
    check_range("rank", rank, most=most, owner="these results")
    annotator = RuleAnnotator() if annotator is None else annotator
    notes = []
    for number, result in enumerate((a, b)):
        part = run.part(1, 2).part(number, 2)
        notes.append(
            annotate_concepts(result, annotator, components=range(rank), progress=part.progress, check=part.check)
        )
    return compare_annotations(notes[0], notes[1], resamples=resamples, seed=seed)
