"""`compare_heads`: how tuning changed the word pairs of attention heads, by layer group and for verbs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from interp_widgets.analysis._core.arrays import Bools, Floats, Ints, ratio
from interp_widgets.analysis._core.checks import check_range, index
from interp_widgets.analysis._core.comparing import check_same, check_same_words, pair_provenance, two_results
from interp_widgets.analysis._core.result import Result, provenance, record, with_axes
from interp_widgets.analysis._core.run import RunOptions
from interp_widgets.analysis._core.statistics import GroupComparison, compare_known, holm
from interp_widgets.analysis._core.tables import table
from interp_widgets.analysis.head_words.head_word_result import HeadWordResult
from interp_widgets.analysis.head_words.word_pairs import head_word_pairs
from interp_widgets.arguments import checked
from interp_widgets.data.verbs import GENERAL_VERBS, INSTRUCTION_VERBS

if TYPE_CHECKING:
    import pandas as pd


@record
class HeadComparison(Result):
    """Word pairs of the heads of two models, base and tuned, compared.

    A change is ``1 - |A ∩ B| / |A ∪ B|`` of the two sets of kept pairs: 0 the same, 1 none in common, NaN where
    neither model has a pair. A layer group is a run of layers, as in Figure 2 and Table 3 of the paper.
    Source: From Language Modeling to Instruction Following (Wu et al. 2024), section 5.1.

    Example:
        >>> comparison = compare_heads(base, tuned)
        >>> comparison.head_change.shape, comparison.share.shape
        ((6, 6), (4, 107))
        >>> comparison.change_table()[["layers", "head_mean", "n_heads"]].round(1)
          layers  head_mean  n_heads
        0    0-1        0.9       12
        1      2        0.9        6
        2    3-4        0.9       12
        3      5        0.9        6
    """

    layers: Sequence[int] = with_axes("layers")
    """Layers of the model."""

    group: Ints = with_axes("layers")
    """The layer group of each layer."""

    head_change: Floats = with_axes("layers", "heads")
    """Change of each head's pairs, 0..1."""

    dimension_change: Floats = with_axes("layers", "heads", "d_head")
    """Change of each dimension's pairs, 0..1."""

    other_head_change: Floats = with_axes("layers", "heads")
    """Baseline from unrelated heads: mean change from a head of base to the other heads of its layer
    in tuned; NaN where no other head has pairs."""

    other_dimension_change: Floats = with_axes("layers", "heads", "d_head")
    """Baseline from unrelated dimensions: change from one of base to the next one of its head in tuned."""

    pair_change: Ints = with_axes("layers", "heads")
    """Number of different pairs of a head, tuned minus base."""

    verbs: Sequence[str] = with_axes("verbs")
    """The requested verbs that are in the word list."""

    instruction: Bools = with_axes("verbs")
    """Whether a verb is an instruction verb."""

    gained: Ints = with_axes("groups", "verbs")
    """Number of heads that gained kept pairs with the verb."""

    lost: Ints = with_axes("groups", "verbs")
    """Number of heads that lost kept pairs with the verb."""

    tests: Sequence[GroupComparison | None] = with_axes("groups")
    """Instruction verbs against general ones, two-sided, Holm-corrected over the groups; None where one
    of them has fewer than two verbs."""

    missing_verbs: Sequence[str] = with_axes("missing verbs", default=())
    """The requested verbs that are not in the word list."""

    @property
    def n_groups(self) -> int:
        """Number of layer groups."""
        return len(self.tests)

    def group_name(self, group: int) -> str:
        """The layers of a group, such as 0-7; ValueError for an unknown group."""
        group = index(group, self.n_groups, "group", f"comparison of {self.n_groups} layer groups")
        inside = [layer for layer, number in zip(self.layers, self.group.tolist(), strict=True) if number == group]
        return f"{inside[0]}-{inside[-1]}" if len(inside) > 1 else str(inside[0])

    @property
    def share(self) -> Floats:
        """(groups, verbs) share of heads that gained pairs with a verb, among heads whose number changed; else NaN."""
        changed = self.gained + self.lost
        return ratio(self.gained, changed)

    def change_table(self) -> pd.DataFrame:
        """Figure 2: one row per layer group, mean and population standard deviation of the change of dimensions and of
        heads, their number, and beside them the mean change to another dimension or head."""
        import pandas as pd

        rows: list[dict[str, Any]] = []
        for group in range(self.n_groups):
            row: dict[str, Any] = {"layers": self.group_name(group)}
            for name in ("dimension", "head"):
                same, other = getattr(self, f"{name}_change"), getattr(self, f"other_{name}_change")
                known, unrelated = (part[self.group == group] for part in (same, other))
                known, unrelated = known[np.isfinite(known)], unrelated[np.isfinite(unrelated)]
                row |= {f"{name}_mean": _mean(known), f"{name}_std": _std(known), f"n_{name}s": len(known)}
                row[f"other_{name}_mean"] = _mean(unrelated)
            rows.append(row)
        return pd.DataFrame(rows)

    def verb_table(self) -> pd.DataFrame:
        """Table 3: one row per layer group, the percentage of heads that gained pairs with a verb, as mean ± population
        standard deviation over instruction verbs and over general ones, and Welch's p-value."""
        import pandas as pd

        rows: list[dict[str, Any]] = []
        for group, test in enumerate(self.tests):
            row: dict[str, Any] = {"layers": self.group_name(group)}
            for name, chosen in (("instruction", self.instruction), ("general", ~self.instruction)):
                shares = 100 * self.share[group][chosen]
                shares = shares[np.isfinite(shares)]
                row |= {f"{name}_mean": _mean(shares), f"{name}_std": _std(shares), f"{name}_verbs": len(shares)}
            row |= {name: np.nan if test is None else getattr(test, name) for name in ("welch_p", "holm_p", "cohens_d")}
            rows.append(row)
        return pd.DataFrame(rows)

    def to_frame(self) -> pd.DataFrame:
        """One row per layer group and verb: heads that gained and lost pairs with it, and the share that gained."""
        columns = {"instruction": self.instruction, "gained": self.gained, "lost": self.lost, "share": self.share}
        return table({"layers": list(map(self.group_name, range(self.n_groups))), "verb": self.verbs}, columns)


@checked
def compare_heads(
    base: Any,
    tuned: Any,
    *,
    groups: int = 4,
    instruction_verbs: Sequence[str] = INSTRUCTION_VERBS,
    general_verbs: Sequence[str] = GENERAL_VERBS,
    resamples: int = 999,
    seed: int = 0,
    progress: Callable[[int, int], None] | None = None,
    check: Callable[[], None] | None = None,
    **options: Any,
) -> HeadComparison:
    """How tuning changed the word pairs of heads: the overlap of the pairs, and the verbs that gained pairs.

    A verb's share in a layer group is the share of heads that gained kept pairs with it among those whose number
    changed; verbs without a changed head have none. Welch's two-sided t-test compares the shares of instruction verbs
    with those of general verbs. Verbs must be spelled as in the word list.

    Args:
        base: what `load_model` returns, or the `HeadWordResult` of such a model.
        tuned: the same for the other model, with the same words and options.
        groups: layer groups, runs of about equal length; at most one per layer.
        instruction_verbs: verbs used to give instructions.
        general_verbs: verbs to compare them with.
        resamples: of the bootstrap intervals and permutation tests.
        seed: of both.
        progress: called with (done, total) while the pairs of models are computed.
        check: called between tiles; raises to cancel.
        options: for `head_word_pairs`, where models are given.

    Raises:
        ValueError: results of different words, shapes, layers or options; fewer than one group; a verb of both kinds.

    Source: From Language Modeling to Instruction Following (Wu et al. 2024), section 5.1, Figure 2 and Table 3.

    Example:
        >>> comparison = compare_heads(base, tuned)
        >>> comparison.verb_table()[["layers", "instruction_mean", "general_mean"]].round(1)
          layers  instruction_mean  general_mean
        0    0-1              62.5          44.4
        1      2              50.0          38.0
        2    3-4              50.0          50.7
        3      5              75.0          54.9
    """
    check_range("groups", groups)
    if doubled := sorted(set(instruction_verbs) & set(general_verbs)):
        raise ValueError(
            f"the verb {doubled[0]!r} is in both instruction_verbs and general_verbs: remove it from one of them"
        )
    run = RunOptions(progress, check)
    a, b = two_results((base, tuned), HeadWordResult, head_word_pairs, options, run)
    check_same_words(a.vocabulary, b.vocabulary)
    shapes = a.energy.shape[1:], b.energy.shape[1:]
    layers = tuple(a.layers), tuple(b.layers)
    check_same({"layers": layers, "heads": shapes, "top": (a.top, b.top), "keep": (a.keep, b.keep)})
    group = np.arange(len(a.layers)) * min(groups, len(a.layers)) // len(a.layers)
    listed = set(a.vocabulary)
    verbs_wanted = [*dict.fromkeys(instruction_verbs), *dict.fromkeys(general_verbs)]
    verbs = [verb for verb in verbs_wanted if verb in listed]
    kind = np.array([verb in set(instruction_verbs) for verb in verbs], dtype=bool)
    more, fewer = _gains(a, b, verbs, group)
    heads, dimensions, words = (head_sets(a), head_sets(b)), (dimension_sets(a), dimension_sets(b)), len(a.vocabulary)
    return HeadComparison(
        layers=tuple(a.layers),
        group=group,
        head_change=changes(*heads, words, run),
        dimension_change=changes(*dimensions, words, run),
        other_head_change=other_changes(*heads, words, run),
        other_dimension_change=other_changes(*dimensions, words, run, most=1),
        pair_change=b.n_pairs.astype(np.int64) - a.n_pairs,
        verbs=verbs,
        instruction=kind,
        gained=more,
        lost=fewer,
        tests=_tests(more, fewer, kind, resamples, seed),
        missing_verbs=[verb for verb in verbs_wanted if verb not in listed],
        partial=a.partial or b.partial,
        provenance=provenance(
            pair_provenance(a, b), groups=groups, resamples=resamples, seed=seed, words=words, top=a.top, keep=a.keep
        ),
    )


@checked
def verb_table(base: Any, tuned: Any, **options: Any) -> pd.DataFrame:
    """Table 3 of the paper in one call: the percentage of heads that gained word pairs with a verb, instruction verbs
    against general ones.

    Args:
        base: what `load_model` returns, or the `HeadWordResult` of such a model.
        tuned: the same for the other model, with the same words and options.
        options: of `compare_heads`, such as ``groups`` (4, as in the paper), and where models are given of
            `head_word_pairs`, such as ``words`` and ``vectors``.

    Returns:
        One row per layer group: mean and population standard deviation over the verbs of both kinds, their number,
        Welch's p-value (two-sided), the same after Holm's correction, and Cohen's d.

    Raises:
        ValueError: those of `compare_heads`.

    Source: From Language Modeling to Instruction Following (Wu et al. 2024), section 5.1, Table 3.

    Example:
        >>> verb_table(base, tuned)[["layers", "instruction_mean", "general_mean"]].round(1)
          layers  instruction_mean  general_mean
        0    0-1              62.5          44.4
        1      2              50.0          38.0
        2    3-4              50.0          50.7
        3      5              75.0          54.9
    """
    return compare_heads(base, tuned, **options).verb_table()


def _gains(
    a: HeadWordResult, b: HeadWordResult, verbs: Sequence[str], group: Ints
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """(groups, verbs) number of heads with more, and with fewer, kept pairs with a verb in ``b`` than in ``a``."""
    before, after = _word_counts(a, verbs), _word_counts(b, verbs)
    groups = int(group.max()) + 1
    more, fewer = (np.zeros((groups, len(verbs)), dtype=np.int64) for _ in range(2))
    np.add.at(more, group, (after > before).sum(axis=1))
    np.add.at(fewer, group, (after < before).sum(axis=1))
    return more, fewer


def _word_counts(result: HeadWordResult, verbs: Sequence[str]) -> NDArray[np.int64]:
    """(layers, heads, verbs) kept pairs of a head that hold a verb."""
    number = {word: i for i, word in enumerate(result.vocabulary)}
    column = np.full(len(result.vocabulary) + 1, len(verbs))  # cells without a pair hold -1, the last entry
    column[[number[verb] for verb in verbs]] = np.arange(len(verbs))
    flat = column[result.head_pairs].reshape(result.n_pairs.size, -1)
    counts = np.zeros((result.n_pairs.size, len(verbs) + 1), dtype=np.int64)
    np.add.at(counts, (np.arange(len(flat))[:, None], flat), 1)
    return counts[:, :-1].reshape(*result.n_pairs.shape, len(verbs))


def _tests(
    more: NDArray[np.int64], fewer: NDArray[np.int64], kind: Bools, resamples: int, seed: int
) -> tuple[GroupComparison | None, ...]:
    options: dict[str, Any] = {"names": ("instruction", "general"), "alternative": "two-sided"}
    tests = []
    for gained, lost in zip(more, fewer, strict=True):
        changed = gained + lost
        instruction, general = (ratio(100 * gained, changed)[(changed > 0) & members] for members in (kind, ~kind))
        tests.append(compare_known(instruction, general, **options, resamples=resamples, seed=seed))
    return holm(tests)


def _mean(values: Floats) -> float:
    return float(values.mean()) if len(values) else float("nan")


def _std(values: Floats) -> float:
    return float(values.std()) if len(values) else float("nan")


# overlap of sets of pairs --------------------------------------------------------------------------------------------

Sets = tuple[NDArray[np.int64], NDArray[np.int64], tuple[int, ...]]
"""Many sets of pairs: the set that each pair is in, its query and key word as one number, and the shape of the sets."""


def head_sets(result: HeadWordResult) -> Sets:
    """The kept pairs of every head."""
    heads = np.arange(result.n_pairs.size).reshape(result.n_pairs.shape)
    known = result.head_counts > 0
    owner = np.broadcast_to(heads[:, :, None], known.shape)[known]
    return owner, _codes(result.head_pairs[known], len(result.vocabulary)), result.n_pairs.shape


def dimension_sets(result: HeadWordResult) -> Sets:
    """The kept pairs of every dimension."""
    sizes = np.diff(result.dimension_offsets)
    codes = _codes(result.dimension_word_pairs, len(result.vocabulary))
    return np.repeat(np.arange(len(sizes)), sizes), codes, result.energy.shape


def _codes(pairs: Ints, words: int) -> NDArray[np.int64]:
    return np.asarray(pairs[:, 0].astype(np.int64) * words + pairs[:, 1])


def changes(a: Sets, b: Sets, words: int, run: RunOptions) -> NDArray[np.float64]:
    """1 - |A ∩ B| / |A ∪ B| of every pair of sets; NaN for two empty ones."""
    shape = a[2]
    size = int(np.prod(shape[1:]))
    # layer by layer: many short sorts are faster than one long sort and can be cancelled
    ends = np.arange(shape[0] + 1) * size
    bounds = [np.searchsorted(owner // size * size, ends) for owner in (a[0], b[0])]
    shares = np.empty((shape[0], size))
    for layer in range(shape[0]):
        run.stop_if_cancelled()
        slices = [slice(bound[layer], bound[layer + 1]) for bound in bounds]
        owner = np.concatenate([a[0][slices[0]], b[0][slices[1]]]) - layer * size
        codes = np.concatenate([a[1][slices[0]], b[1][slices[1]]])
        keys, times = np.unique(owner * words**2 + codes, return_counts=True)
        owners = keys // words**2
        union = np.bincount(owners, minlength=size)
        shared = np.bincount(owners[times == 2], minlength=size)
        shares[layer] = ratio(shared, union)
    return np.asarray(1 - shares.reshape(shape))


def other_changes(a: Sets, b: Sets, words: int, run: RunOptions, *, most: int | None = None) -> NDArray[np.float64]:
    """Mean change from each set of A to other sets of B that differ in the last axis only, at most ``most`` of them.

    This is a baseline: even unrelated heads (or dimensions) share pairs, since some pairs are frequent everywhere.
    """
    shape = a[2]
    total, known = np.zeros(shape), np.zeros(shape, dtype=int)
    for shift in range(1, min(shape[-1] - 1, shape[-1] if most is None else most) + 1):
        row, last = np.divmod(b[0], shape[-1])
        change = changes(a, (row * shape[-1] + (last - shift) % shape[-1], b[1], shape), words, run)
        finite = np.isfinite(change)
        total[finite] += change[finite]
        known += finite
    return ratio(total, known)
