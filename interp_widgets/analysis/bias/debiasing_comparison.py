"""`compare_debiasing`: bias and language modelling scores of a model, of debiasing edits, and of random edits."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from interp_widgets.analysis._core.checks import check_range
from interp_widgets.analysis._core.prompts import read_prompt
from interp_widgets.analysis._core.result import Record, Result, provenance, record, with_axes
from interp_widgets.analysis._core.run import RunOptions
from interp_widgets.analysis._core.statistics import resampled_means
from interp_widgets.analysis.bias.baselines import random_edit
from interp_widgets.analysis.bias.bbq import score_bbq
from interp_widgets.analysis.bias.crows import score_crows
from interp_widgets.analysis.bias.domains import OVERALL
from interp_widgets.analysis.bias.stereoset import StereoSetMetrics, StereoSetResult, score_stereoset, term_scores
from interp_widgets.analysis.continuations import Continuation, score_continuations
from interp_widgets.arguments import checked
from interp_widgets.data.bias.bbq import BBQQuestion
from interp_widgets.data.bias.crows_pairs import CrowsPair
from interp_widgets.data.bias.stereoset import StereoSetExample
from interp_widgets.models import Model, ModelEdit

if TYPE_CHECKING:
    import pandas as pd

UNEDITED = "as it is"
_RESAMPLES = 9999


@record
class DebiasChange(Record):
    """How much an edit changes the scores of one domain, with 95% bootstrap intervals over target terms.

    Both models are scored on the same resampled terms, so an interval without 0 is a significant change.
    """

    domain: str
    bias: float
    """Change of |SS - 50|, in points; negative means less bias."""
    bias_interval: Sequence[float] = with_axes(2)
    lms: float = field(kw_only=True)
    """Change of the language modelling score, in points."""
    lms_interval: Sequence[float] = field(kw_only=True)
    icat: float = field(kw_only=True)
    """Change of ICAT."""
    icat_interval: Sequence[float] = field(kw_only=True)


@record
class DebiasScores(Record):
    """Scores of one model, unedited or edited; None for data that was not given."""

    name: str
    """``as it is`` for the unedited model, else the name of the edit."""
    stereoset: Sequence[StereoSetMetrics]
    """StereoSet metrics, one per domain, and the last over all examples."""
    changes: Sequence[DebiasChange] = field(kw_only=True)
    """Changes in the same domains; empty for the unedited model."""
    perplexity: float | None = field(kw_only=True)
    """Perplexity of the texts: exp of the mean negative log-probability per token."""
    perplexity_interval: Sequence[float] | None = field(kw_only=True)
    """95% bootstrap interval over texts."""
    perplexity_ratio: Sequence[float] | None = field(kw_only=True)
    """Perplexity divided by that of the unedited model, and its interval over the same resampled texts."""
    crows: float | None = field(kw_only=True)
    """Percent of CrowS-Pairs in which the sentence about the disadvantaged group is more likely."""
    crows_interval: Sequence[float] | None = field(kw_only=True)
    bbq: Sequence[float] | None = field(kw_only=True)
    """Accuracy and bias score in ambiguous contexts, then in disambiguated ones."""
    bbq_intervals: Sequence[Sequence[float]] | None = field(kw_only=True)
    continuations: Sequence[str] = field(kw_only=True)
    """The text generated after each prompt."""

    def domain(self, name: str) -> StereoSetMetrics:
        """StereoSet metrics of one domain, or ``overall``; ValueError if there is no such domain."""
        for one in self.stereoset:
            if one.domain == name:
                return one
        known = ", ".join(repr(one.domain) for one in self.stereoset)
        raise ValueError(f"domain must be one of {known}, got {name!r}")


@record
class DebiasComparison(Result):
    """What `compare_debiasing` returns: the scores of the unedited model, of each edit and of its random control.

    Example:
        >>> edit = leace_edit(base, demo_bias_texts("train"), pool="last")
        >>> found = compare_debiasing(base, [edit], demo_stereoset(), resamples=200)
        >>> [row.name for row in found.rows]
        ['as it is', 'LEACE', 'Random, as large as LEACE']
        >>> bool(found.rows[1].domain("gender").ss < found.rows[0].domain("gender").ss)
        True
    """

    rows: Sequence[DebiasScores]
    """The unedited model, then each edit, followed by its control."""
    prompts: Sequence[str] = field(kw_only=True)
    """The prompts of the continuations."""

    def to_frame(self) -> pd.DataFrame:
        """One row per model and domain."""
        import pandas as pd

        return pd.DataFrame([line for row in self.rows for line in _table_rows(row)])


@checked
def compare_debiasing(
    model: Model,
    edits: Sequence[ModelEdit | str | Path],
    stereoset: Sequence[StereoSetExample],
    *,
    texts: Sequence[str] = (),
    crows: Sequence[CrowsPair] = (),
    bbq: Sequence[BBQQuestion] = (),
    prompts: Sequence[str] = (),
    control: bool = True,
    max_new_tokens: int = 20,
    resamples: int = _RESAMPLES,
    seed: int = 0,
    batch_size: int | None = None,
    progress: Callable[[int, int], None] | None = None,
    check: Callable[[], None] | None = None,
) -> DebiasComparison:
    """Score a model without and with each edit: how much bias each removes, and what it costs in language modelling.

    While an edit is applied, other threads wait for the model; afterwards its weights are restored bit by bit.

    Args:
        model: what `load_model` returns.
        edits: from `lope_edit`, `inlp_edit`, `leace_edit`, `subtraction_edit`, `suppression_edit`, `ethos_edit`, or
            any other `ModelEdit`; or files written by `ModelEdit.save`, whose file names are appended to the names of
            the edits. The names must differ.
        stereoset: examples for SS, LMS and ICAT, from `read_stereoset` or `demo_stereoset`.
        texts: ordinary texts, for the perplexity.
        crows: from `read_crows_pairs`.
        bbq: from `read_bbq`.
        prompts: prompts to continue by greedy decoding.
        control: score a `random_edit` beside each edit.
        max_new_tokens: length of a continuation.
        resamples: bootstrap draws.
        seed: of the bootstrap and of the random edits.
        batch_size: most rows in one pass of the model, as in `score_stereoset`.
        progress: called with (done, total) models times data sets.
        check: called before every pass; raises to cancel.

    Raises:
        ValueError: no edits, two with the same name, a file without an edit, an edit for another model, no examples, or
            an error of one of the scores.
        FileNotFoundError: a file that does not exist.

    Source: Explainability in Large Language Models (Luo 2024), tables 5.4 and 5.5.

    Example:
        >>> texts = demo_texts(12)
        >>> probes = train_bias_probes(base, demo_bias_texts(), pool="last", splits=2)
        >>> edit = subtraction_edit(base, probes, strength=3.0)
        >>> found = compare_debiasing(base, [edit], demo_stereoset(), texts=texts, control=False, resamples=200)
        >>> found.rows[1].perplexity > found.rows[0].perplexity
        True
    """
    check_range("resamples", resamples)
    check_range("max_new_tokens", max_new_tokens)
    if len(edits) == 0:
        raise ValueError("edits must hold at least one edit: see lope_edit")
    made = [edit if isinstance(edit, ModelEdit) else saved_edit(edit) for edit in edits]
    names = [edit.name for edit in made]
    twice = [name for name in names if names.count(name) > 1]
    if twice or UNEDITED in names:
        raise ValueError(
            f"edits must have different names, got {(twice or [UNEDITED])[0]!r} twice: rename one "
            "with dataclasses.replace(edit, name=...), or the file that it is in"
        )
    tried: list[ModelEdit | None] = [None]
    for edit in made:
        tried += [edit, random_edit(model, edit, seed=seed)] if control else [edit]
    evaluation = _Evaluation(model, stereoset, texts, crows, bbq, prompts, max_new_tokens, resamples, seed, batch_size)
    run = RunOptions(progress, check, batch_size)
    measured = []
    for number, tested in enumerate(tried):
        # other threads would compute with the edited model
        with model.lock, nullcontext() if tested is None else tested.applied(model):
            measured.append(evaluation.measure(run.part(number, len(tried))))
    rows = [
        evaluation.scores(UNEDITED if tested is None else tested.name, found, None if tested is None else measured[0])
        for tested, found in zip(tried, measured, strict=True)
    ]
    return DebiasComparison(
        rows=tuple(rows),
        prompts=tuple(prompts),
        provenance=provenance(
            model.provenance(), edits=", ".join(names), control=control, resamples=resamples, seed=seed,
            examples=len(stereoset), texts=len(texts), crows=len(crows), bbq=len(bbq),
        ),
    )  # fmt: skip


def saved_edit(path: str | Path) -> ModelEdit:
    """The edit in a file, with the file name appended to its name."""
    edit = ModelEdit.load(path)
    return replace(edit, name=f"{edit.name} ({Path(path).stem})")


@dataclass(frozen=True)
class _Measured:
    """The measurements of one model."""

    stereoset: StereoSetResult
    texts: NDArray[np.float64]
    """(texts, 2) negative log-probability and number of tokens of each text."""
    crows: tuple[float, Sequence[float]] | None
    bbq: tuple[Sequence[float], Sequence[Sequence[float]]] | None
    continuations: tuple[str, ...]


@dataclass(frozen=True)
class _Evaluation:
    """The data and options of one call of `compare_debiasing`."""

    model: Model
    stereoset: Sequence[StereoSetExample]
    texts: Sequence[str]
    crows: Sequence[CrowsPair]
    bbq: Sequence[BBQQuestion]
    prompts: Sequence[str]
    max_new_tokens: int
    resamples: int
    seed: int
    batch_size: int | None

    def measure(self, run: RunOptions) -> _Measured:
        """Measure the model with the edit that is applied now."""
        model, parts = self.model, [run.part(number, 5) for number in range(5)]
        options: dict[str, Any] = {"resamples": self.resamples, "seed": self.seed, "check": run.check}
        options["batch_size"] = self.batch_size
        stereoset = score_stereoset(model, self.stereoset, progress=parts[0].progress, **options)
        texts = _log_probabilities(model, self.texts, parts[1])
        crows = bbq = None
        if self.crows:
            pairs = score_crows(model, self.crows, progress=parts[2].progress, **options).overall
            crows = pairs.preferred, pairs.interval
        if self.bbq:
            found = score_bbq(model, self.bbq, progress=parts[3].progress, **options).overall
            figures = (found.accuracy_ambiguous, found.bias_ambiguous)
            bbq = (*figures, found.accuracy_disambiguated, found.bias_disambiguated), found.intervals or ()
        written = []
        for number, prompt in enumerate(self.prompts):
            parts[4].report(number, len(self.prompts))
            written.append(model.generate(prompt, max_new_tokens=self.max_new_tokens, check=run.check))
        parts[4].report(1, 1)
        return _Measured(stereoset, texts, crows, bbq, tuple(written))

    def scores(self, name: str, measured: _Measured, unedited: _Measured | None) -> DebiasScores:
        """The row of one model; ``unedited`` is None for the unedited model itself."""
        perplexity, perplexity_interval, ratio = None, None, None
        if len(self.texts):
            perplexity, perplexity_interval = self._perplexity(measured.texts)
            ratio = None if unedited is None else self._ratio(measured.texts, unedited.texts)
        return DebiasScores(
            name,
            measured.stereoset.metrics,
            changes=() if unedited is None else tuple(self._changes(measured.stereoset, unedited.stereoset)),
            perplexity=perplexity,
            perplexity_interval=perplexity_interval,
            perplexity_ratio=ratio,
            crows=None if measured.crows is None else measured.crows[0],
            crows_interval=None if measured.crows is None else tuple(measured.crows[1]),
            bbq=None if measured.bbq is None else tuple(measured.bbq[0]),
            bbq_intervals=None if measured.bbq is None else tuple(map(tuple, measured.bbq[1])),
            continuations=measured.continuations,
        )

    def _perplexity(self, texts: NDArray[np.float64]) -> tuple[float, tuple[float, float]]:
        drawn = resampled_means(texts, resamples=self.resamples, seed=self.seed)
        low, high = np.quantile(np.exp(drawn[:, 0] / drawn[:, 1]), [0.025, 0.975])
        return float(np.exp(texts[:, 0].sum() / texts[:, 1].sum())), (float(low), float(high))

    def _ratio(self, measured: NDArray[np.float64], unedited: NDArray[np.float64]) -> tuple[float, float, float]:
        both = np.column_stack([measured[:, 0] - unedited[:, 0], unedited[:, 1]])
        drawn = resampled_means(both, resamples=self.resamples, seed=self.seed)
        low, high = np.quantile(np.exp(drawn[:, 0] / drawn[:, 1]), [0.025, 0.975])
        return float(np.exp(both[:, 0].sum() / both[:, 1].sum())), float(low), float(high)

    def _changes(self, measured: StereoSetResult, unedited: StereoSetResult) -> Iterator[DebiasChange]:
        for entry in measured.metrics:
            chosen = [i for i, domain in enumerate(measured.domains) if entry.domain in (OVERALL, domain)]
            targets = [measured.targets[i] for i in chosen]
            rows = np.column_stack(
                [term_scores(measured.scores[chosen], targets), term_scores(unedited.scores[chosen], targets)]
            )
            drawn = np.vstack([rows.mean(axis=0), resampled_means(rows, resamples=self.resamples, seed=self.seed)])
            change = _bias_lms_icat(drawn[:, :2]) - _bias_lms_icat(drawn[:, 2:])
            low, high = np.quantile(change[1:], [0.025, 0.975], axis=0)
            bias, lms, icat = ((float(change[0, i]), (float(low[i]), float(high[i]))) for i in range(3))
            yield DebiasChange(
                entry.domain, bias[0], bias[1], lms=lms[0], lms_interval=lms[1], icat=icat[0], icat_interval=icat[1]
            )


def _bias_lms_icat(means: NDArray[np.float64]) -> NDArray[np.float64]:
    """(n, 3) |SS - 50|, LMS and ICAT from mean LMS and SS (n, 2)."""
    lms, ss = means.T
    return np.column_stack([np.abs(ss - 50), lms, lms * np.minimum(ss, 100 - ss) / 50])


def _log_probabilities(model: Model, texts: Sequence[str], run: RunOptions) -> NDArray[np.float64]:
    """(texts, 2) negative log-probability of each text's tokens after the first, and their number."""
    if not len(texts):
        return np.empty((0, 2))
    read = [read_prompt(model, text, what="text").ids for text in texts]
    if min(map(len, read)) < 2:
        raise ValueError("each text needs at least two tokens, counting the BOS: give longer texts")
    scored = score_continuations(model, [Continuation(ids[:1], ids[1:]) for ids in read], run)
    return np.array([(-one.log_probability.sum(), len(one.log_probability)) for one in scored])


def _table_rows(row: DebiasScores) -> Iterator[dict[str, Any]]:
    """Yield one row of the table per domain."""
    changes: Sequence[DebiasChange | None] = row.changes or [None] * len(row.stereoset)
    for entry, change in zip(row.stereoset, changes, strict=True):
        line: dict[str, Any] = {"model": row.name, "domain": entry.domain, "targets": entry.n_targets}
        for name in ("ss", "lms", "icat"):
            line[name] = getattr(entry, name)
            line[f"{name}_low"], line[f"{name}_high"] = getattr(entry, f"{name}_interval")
        for name in ("bias", "lms", "icat"):
            line[f"{name}_change"] = None if change is None else getattr(change, name)
            ends = (None, None) if change is None else getattr(change, f"{name}_interval")
            line[f"{name}_change_low"], line[f"{name}_change_high"] = ends
        whole = entry is row.stereoset[-1]
        line["perplexity"], line["crows"] = (row.perplexity, row.crows) if whole else (None, None)
        figures = row.bbq if whole and row.bbq is not None else (None,) * 4
        names = ("bbq_accuracy_ambiguous", "bbq_bias_ambiguous", "bbq_accuracy_disambiguated", "bbq_bias_disambiguated")
        yield {**line, **dict(zip(names, figures, strict=True))}
