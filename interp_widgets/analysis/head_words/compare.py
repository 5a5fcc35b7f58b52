"""`compare_heads`: what tuning changed in the word pairs of attention heads, by layer group and for verbs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from interp_widgets.analysis.head_words.find import head_word_pairs
from interp_widgets.analysis.head_words.overlap import changes, dimension_sets, head_sets, other_changes
from interp_widgets.analysis.head_words.result import HeadWordResult
from interp_widgets.analysis.result import Result, provenance, record
from interp_widgets.analysis.statistics import GroupComparison, compare_groups, holm
from interp_widgets.analysis.two import check_same, check_same_words, two_results
from interp_widgets.arguments import checked
from interp_widgets.data.verbs import GENERAL_VERBS, INSTRUCTION_VERBS

if TYPE_CHECKING:
    import pandas as pd


@record
class HeadComparison(Result):
    """Word pairs of the heads of two models, base and tuned, held against each other.

    A change is ``1 - |A ∩ B| / |A ∪ B|`` of the two sets of kept pairs: 0 the same, 1 none in common, NaN where
    neither model has a pair. A layer group is a run of layers, as in Figure 2 and Table 3 of the paper.
    Source: From Language Modeling to Instruction Following (Wu et al. 2024), section 5.1.

    Example:
        >>> found = compare_heads(base, tuned)
        >>> found.head_change.shape, found.share.shape
        ((6, 6), (4, 107))
        >>> found.change_table()[["layers", "head_mean", "n_heads"]].round(1)
          layers  head_mean  n_heads
        0    0-1        0.9       12
        1      2        0.9        6
        2    3-4        0.9       12
        3      5        0.9        6
    """

    layers: Sequence[int]
    """(layers,) layers of the model."""

    group: NDArray[np.integer[Any]]
    """(layers,) the layer group of each layer."""

    head_change: NDArray[np.floating[Any]]
    """(layers, heads) change of each head's pairs, 0..1."""

    dimension_change: NDArray[np.floating[Any]]
    """(layers, heads, d_head) change of each dimension's pairs, 0..1."""

    other_head_change: NDArray[np.floating[Any]]
    """(layers, heads) what unrelated heads would give: mean change from a head of base to the other heads of its layer
    in tuned; NaN where there is no other with pairs."""

    other_dimension_change: NDArray[np.floating[Any]]
    """(layers, heads, d_head) the same of dimensions: from one of base to the next one of its head in tuned."""

    pair_change: NDArray[np.integer[Any]]
    """(layers, heads) tuned minus base of the number of different pairs of a head."""

    verbs: Sequence[str]
    """(verbs,) the verbs looked for that are in the word list."""

    instruction: NDArray[np.bool_]
    """(verbs,) whether a verb is one that instructions ask with."""

    gained: NDArray[np.integer[Any]]
    """(groups, verbs) heads whose kept pairs with the verb became more."""

    lost: NDArray[np.integer[Any]]
    """(groups, verbs) heads whose kept pairs with the verb became fewer."""

    tests: Sequence[GroupComparison | None]
    """(groups,) instruction verbs against general ones, two-sided, Holm-corrected over the groups; None where one
    of them has fewer than two verbs."""

    missing_verbs: Sequence[str] = ()
    """Verbs looked for that are not in the word list."""

    def __post_init__(self) -> None:
        layers, heads, dims = np.asarray(self.dimension_change).shape
        self.sequence("layers", layers)
        self.array("group", (layers,), "int")
        self.array("head_change", (layers, heads))
        self.array("dimension_change", (layers, heads, dims))
        self.array("other_head_change", (layers, heads))
        self.array("other_dimension_change", (layers, heads, dims))
        self.array("pair_change", (layers, heads), "int")
        self.sequence("verbs")
        self.sequence("missing_verbs")
        n, groups = len(self.verbs), int(np.max(self.group)) + 1
        self.array("instruction", (n,), "bool")
        self.array("gained", (groups, n), "int")
        self.array("lost", (groups, n), "int")
        self.sequence("tests", groups)

    @property
    def n_groups(self) -> int:
        """Number of layer groups."""
        return len(self.tests)

    def group_name(self, group: int) -> str:
        """The layers of a group, as 0-7; ValueError for a group that is not there."""
        if not 0 <= group < self.n_groups:
            raise ValueError(f"group must be in 0..{self.n_groups - 1}, got {group}")
        inside = [layer for layer, own in zip(self.layers, self.group.tolist(), strict=True) if own == group]
        return f"{inside[0]}-{inside[-1]}" if len(inside) > 1 else str(inside[0])

    @property
    def share(self) -> NDArray[np.floating[Any]]:
        """(groups, verbs) of the heads whose pairs with a verb changed in number, the share that gained; else NaN."""
        changed = self.gained + self.lost
        found: NDArray[np.floating[Any]] = np.full(changed.shape, np.nan)
        np.divide(self.gained, changed, out=found, where=changed > 0)
        return found

    def change_table(self) -> pd.DataFrame:
        """Figure 2: one row per layer group, mean and population standard deviation of the change of dimensions and of
        heads, their number, and beside them the mean change to another dimension or head."""
        import pandas as pd

        rows: list[dict[str, Any]] = []
        for group in range(self.n_groups):
            row: dict[str, Any] = {"layers": self.group_name(group)}
            for name in ("dimension", "head"):
                own, other = getattr(self, f"{name}_change"), getattr(self, f"other_{name}_change")
                known, unrelated = (part[self.group == group] for part in (own, other))
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
        import pandas as pd

        groups, n = self.gained.shape
        return pd.DataFrame(
            {
                "layers": np.repeat([self.group_name(group) for group in range(groups)], n),
                "verb": np.tile(np.asarray(self.verbs, dtype=object), groups),
                "instruction": np.tile(self.instruction, groups),
                "gained": self.gained.ravel(),
                "lost": self.lost.ravel(),
                "share": self.share.ravel(),
            }
        )


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
    """What tuning changed in the word pairs of the heads: their overlap, and which verbs' pairs became more.

    For every verb, among the heads of a layer group whose number of kept pairs with it changed, the share that gained;
    the shares of instruction verbs against those of general verbs by Welch's t-test, two-sided. Verbs count as written
    in the word list; those that no head of the group changed for have no share.

    Args:
        base: what `load_model` returns, or the `HeadWordResult` of such a model.
        tuned: the same for the other model, with the same words and options.
        groups: layer groups, runs of about equal length; at most one per layer.
        instruction_verbs: verbs that instructions ask with.
        general_verbs: verbs to hold them against.
        resamples: of the bootstrap intervals and permutation tests.
        seed: of both.
        progress: called with (done, total) while pairs of models are searched.
        check: called between tiles; raises to cancel.
        options: for `head_word_pairs`, where models are given.

    Raises:
        ValueError: results of different words, shapes, layers or options; fewer than one group; a verb of both kinds.

    Source: From Language Modeling to Instruction Following (Wu et al. 2024), section 5.1, Figure 2 and Table 3.

    Example:
        >>> found = compare_heads(base, tuned)
        >>> found.verb_table()[["layers", "instruction_mean", "general_mean"]].round(1)
          layers  instruction_mean  general_mean
        0    0-1              62.5          44.4
        1      2              50.0          38.0
        2    3-4              50.0          50.7
        3      5              75.0          54.9
    """
    if groups < 1:
        raise ValueError(f"groups must be 1 or more, got {groups}")
    if both := sorted(set(instruction_verbs) & set(general_verbs)):
        raise ValueError(f"the verb {both[0]!r} is among instruction verbs and general verbs: leave it out of one")
    a, b = two_results((base, tuned), HeadWordResult, head_word_pairs, options, progress, check)
    check_same_words(a.vocabulary, b.vocabulary)
    shapes = a.energy.shape[1:], b.energy.shape[1:]
    layers = tuple(a.layers), tuple(b.layers)
    check_same({"layers": layers, "heads": shapes, "top": (a.top, b.top), "keep": (a.keep, b.keep)})
    group = np.arange(len(a.layers)) * min(groups, len(a.layers)) // len(a.layers)
    listed = set(a.vocabulary)
    wanted = [*dict.fromkeys(instruction_verbs), *dict.fromkeys(general_verbs)]
    verbs = [verb for verb in wanted if verb in listed]
    kind = np.array([verb in set(instruction_verbs) for verb in verbs], dtype=bool)
    more, fewer = _gains(a, b, verbs, group)
    heads, dimensions, words = (head_sets(a), head_sets(b)), (dimension_sets(a), dimension_sets(b)), len(a.vocabulary)
    told = {"groups": groups, "resamples": resamples, "seed": seed, "base": a.provenance.get("model"),
            "tuned": b.provenance.get("model"), "base_weights": a.provenance.get("weight_hash"),
            "tuned_weights": b.provenance.get("weight_hash")}  # fmt: skip
    told |= {f"{side}_edited": one.provenance["edited"] for side, one in (("base", a), ("tuned", b))
             if "edited" in one.provenance}  # fmt: skip
    return HeadComparison(
        layers=tuple(a.layers),
        group=group,
        head_change=changes(*heads, words, check=check),
        dimension_change=changes(*dimensions, words, check=check),
        other_head_change=other_changes(*heads, words, check=check),
        other_dimension_change=other_changes(*dimensions, words, most=1, check=check),
        pair_change=b.n_pairs.astype(np.int64) - a.n_pairs,
        verbs=verbs,
        instruction=kind,
        gained=more,
        lost=fewer,
        tests=_tests(more, fewer, kind, resamples, seed),
        missing_verbs=[verb for verb in wanted if verb not in listed],
        partial=a.partial or b.partial,
        provenance=provenance(None, **told, words=words, top=a.top, keep=a.keep),
    )


def _gains(
    a: HeadWordResult, b: HeadWordResult, verbs: Sequence[str], group: NDArray[np.integer[Any]]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """(groups, verbs) heads with more, and with fewer, kept pairs with a verb in ``b`` than in ``a``."""
    before, after = _word_counts(a, verbs), _word_counts(b, verbs)
    groups = int(group.max()) + 1
    more, fewer = (np.zeros((groups, len(verbs)), dtype=np.int64) for _ in range(2))
    np.add.at(more, group, (after > before).sum(axis=1))
    np.add.at(fewer, group, (after < before).sum(axis=1))
    return more, fewer


def _word_counts(result: HeadWordResult, verbs: Sequence[str]) -> NDArray[np.int64]:
    """(layers, heads, verbs) kept pairs of a head that hold a verb."""
    place = {word: i for i, word in enumerate(result.vocabulary)}
    column = np.full(len(result.vocabulary) + 1, len(verbs))  # the last entry is the -1 of cells without a pair
    column[[place[verb] for verb in verbs]] = np.arange(len(verbs))
    flat = column[result.head_pairs].reshape(result.n_pairs.size, -1)
    found = np.zeros((result.n_pairs.size, len(verbs) + 1), dtype=np.int64)
    np.add.at(found, (np.arange(len(flat))[:, None], flat), 1)
    return found[:, :-1].reshape(*result.n_pairs.shape, len(verbs))


def _tests(
    more: NDArray[np.int64], fewer: NDArray[np.int64], kind: NDArray[np.bool_], resamples: int, seed: int
) -> tuple[GroupComparison | None, ...]:
    tests: list[GroupComparison | None] = []
    for gained, lost in zip(more, fewer, strict=True):
        known = gained + lost > 0
        shares = [100 * gained[known & own] / (gained + lost)[known & own] for own in (kind, ~kind)]
        if min(map(len, shares)) < 2:
            tests.append(None)
            continue
        names = ("instruction", "general")
        tests.append(compare_groups(*shares, names=names, alternative="two-sided", resamples=resamples, seed=seed))
    corrected = iter(holm([test for test in tests if test is not None]))
    return tuple(None if test is None else next(corrected) for test in tests)


def _mean(values: NDArray[np.floating[Any]]) -> float:
    return float(values.mean()) if len(values) else float("nan")


def _std(values: NDArray[np.floating[Any]]) -> float:
    return float(values.std()) if len(values) else float("nan")
