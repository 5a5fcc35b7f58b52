"""`faithfulness`: whether the response depends on a saliency map's top tokens more than on random tokens."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from interp_widgets.analysis._core.arrays import Floats, Ints, ratio
from interp_widgets.analysis._core.checks import check_choice, check_finite, check_range, index
from interp_widgets.analysis._core.chunks import Runner
from interp_widgets.analysis._core.result import Record, Result, provenance, record, with_axes
from interp_widgets.analysis._core.tables import table
from interp_widgets.analysis._core.targets import read
from interp_widgets.analysis._core.tensors import to_numpy
from interp_widgets.analysis._core.top_k import top_k_indices
from interp_widgets.analysis.saliency.case import Case, make_case
from interp_widgets.analysis.saliency.methods import Baseline, FirstToken, replacements
from interp_widgets.analysis.saliency.saliency_result import SaliencyResult
from interp_widgets.arguments import checked
from interp_widgets.models import Model
from interp_widgets.models.engine import encode

if TYPE_CHECKING:
    import pandas as pd

Measure = Literal["top_gap", "aopc_comprehensiveness", "aopc_sufficiency", "deletion_area", "insertion_area"]
"""A faithfulness measure of an order of the prompt tokens."""
HIGHER_IS_BETTER = ("top_gap", "aopc_comprehensiveness", "insertion_area")
PERCENTS = (1.0, 5.0, 10.0, 20.0, 50.0)
"""Shares of the prompt, in percent, at which comprehensiveness and sufficiency are taken."""
ORDERS, MANY_ORDERS = 39, 999
"""Random orders; the larger number for short prompts."""
SHORT = 9
"""Most tokens of a short prompt, of which all sets together take no more passes than the orders of a longer one."""
SIGNIFICANT = 0.05
"""The one-sided p-value up to which a map differs from random orders."""


@record
class FaithfulnessResult(Result):
    """The response's target as prompt tokens are removed or kept in the order of a saliency map.

    As in exact saliency, removing a token replaces its embedding by the baseline and keeps its position. Values are
    means over the response tokens, in units of the target. Arrays (orders, ...) are of random orders.
    Source: ERASER: A Benchmark to Evaluate Rationalized NLP Models (DeYoung et al. 2020), section 4.1; deletion and
    insertion: RISE (Petsiuk et al. 2018), section 4.3.

    Example:
        >>> result = prompt_saliency(model, "The Eiffel Tower is in the city of", " Paris")
        >>> measured = faithfulness(model, result)
        >>> measured.aopc_comprehensiveness > measured.random_summary()["aopc_comprehensiveness"][0]
        True
        >>> measured.beats_random, measured.p_value() < 0.01
        (True, True)
        >>> measured.to_frame().columns.tolist()
        ['curve', 'fraction', 'value', 'random_mean', 'random_std']
    """

    percent: Floats = with_axes("q")
    """Share of the prompt tokens removed or kept, in percent; at least one token."""

    comprehensiveness: Floats = with_axes("q")
    """Target of the whole prompt minus that without the top tokens: high if they are needed."""

    sufficiency: Floats = with_axes("q")
    """Target of the whole prompt minus that with the top tokens only: low if they are enough."""

    random_comprehensiveness: Floats = with_axes("orders", "q")
    """Comprehensiveness of random orders."""

    random_sufficiency: Floats = with_axes("orders", "q")
    """Sufficiency of random orders."""

    fraction: Floats = with_axes("s")
    """Fraction 0..1 of the prompt tokens removed (deletion) or kept (insertion)."""

    deletion: Floats = with_axes("s")
    """Target as tokens are removed, the top ones first: a steep fall is good."""

    insertion: Floats = with_axes("s")
    """Target as tokens are inserted, the top ones first: a steep rise is good."""

    random_deletion: Floats = with_axes("orders", "s")
    """Deletion curves of random orders."""

    random_insertion: Floats = with_axes("orders", "s")
    """Insertion curves of random orders."""

    order: Ints = with_axes("prompt")
    """Prompt tokens in falling order of score."""

    method: str
    """Saliency method of the order."""

    target: str
    """The target: a number of the response tokens."""

    token: int | None = None
    """Response token that order and target belong to; None for all."""

    baseline: str = "zero"
    """Replacement of the embeddings of removed tokens, as in `prompt_saliency`."""

    @property
    def aopc_comprehensiveness(self) -> float:
        """Area over the perturbation curve: mean comprehensiveness over the shares; higher is better."""
        return float(self.comprehensiveness.mean())

    @property
    def aopc_sufficiency(self) -> float:
        """Mean sufficiency over the shares; lower is better."""
        return float(self.sufficiency.mean())

    @property
    def deletion_area(self) -> float:
        """Area under the deletion curve, in units of the target; lower is better."""
        return float(np.trapezoid(self.deletion, self.fraction))

    @property
    def insertion_area(self) -> float:
        """Area under the insertion curve, in units of the target; higher is better."""
        return float(np.trapezoid(self.insertion, self.fraction))

    @property
    def top_gap(self) -> float:
        """How much higher the target is with only the top tokens than without them: the mean over 1, 2, 3, 4, 6, 8, 12,
        … top tokens, up to half of the prompt; higher is better."""
        return float((self.insertion - self.deletion)[self._top].mean())

    @property
    def _top(self) -> NDArray[np.bool_]:
        """(s,) the points of the curves that count in `top_gap`."""
        count = len(self.order)
        return np.isin(np.rint(self.fraction * count), top_sizes(count))

    def random_summary(self) -> dict[str, tuple[float, float]]:
        """Mean and standard deviation over the random orders of the five numbers above, by name."""
        return {name: (float(value.mean()), float(value.std())) for name, value in self._random().items()}

    def _random(self) -> dict[str, Floats]:
        """(orders,) the five numbers above of every random order, by name."""
        return {
            "aopc_comprehensiveness": self.random_comprehensiveness.mean(axis=1),
            "aopc_sufficiency": self.random_sufficiency.mean(axis=1),
            "deletion_area": np.trapezoid(self.random_deletion, self.fraction, axis=1),
            "insertion_area": np.trapezoid(self.random_insertion, self.fraction, axis=1),
            "top_gap": (self.random_insertion - self.random_deletion)[:, self._top].mean(axis=1),
        }

    def advantages(self, measure: Measure = "top_gap") -> Floats:
        """(orders,) advantage over every random order in units of the target; above 0 is better for every measure."""
        check_choice("measure", measure, Measure)
        sign = 1 if measure in HIGHER_IS_BETTER else -1
        return np.asarray(sign * (getattr(self, measure) - self._random()[measure]))

    def p_value(self, measure: Measure = "top_gap") -> float:
        """One-sided permutation p-value of "better than a random order": (1 + orders at least as good) / (1 + orders).

        The smallest possible value is 1 / (1 + orders), so fewer than 19 orders cannot reach 0.05.
        """
        advantages = self.advantages(measure)
        return (1 + int((advantages <= 0).sum())) / (1 + len(advantages))

    @property
    def beats_random(self) -> bool | None:
        """Whether the map's order is better (True) or worse (False) than random orders, each with a one-sided p-value
        of at most 0.05; None if neither."""
        worse = (1 + int((self.advantages() >= 0).sum())) / (1 + len(self.random_deletion))
        return True if self.p_value() <= SIGNIFICANT else False if worse <= SIGNIFICANT else None

    @property
    def verdict(self) -> str:
        """The comparison with random orders in a sentence, with its p-value."""
        comparison = {True: "better than", False: "worse than", None: "not distinguishable from"}[self.beats_random]
        orders, gained = len(self.random_deletion), float(self.advantages().mean())
        number = f"{orders:,} orders" if orders > 1 else "one order"
        few = ", too few to tell" if orders < round(1 / SIGNIFICANT) - 1 else ""
        return (
            f"{comparison} random orders (p = {self.p_value():.2g}, one-sided, {number}{few}): keeping its top tokens "
            f"instead of removing them gains {abs(gained):.3g} {'more' if gained >= 0 else 'less'} of the "
            f"{_readable(self.target)} than random tokens do"
        )

    def to_frame(self) -> pd.DataFrame:
        """One row per curve and fraction: the value, and mean and standard deviation over the random orders."""
        import pandas as pd

        frames = []
        for name in ("comprehensiveness", "sufficiency", "deletion", "insertion"):
            value, random = getattr(self, name), getattr(self, f"random_{name}")
            fraction = self.fraction if name in ("deletion", "insertion") else self.percent / 100
            columns = {"value": value, "random_mean": random.mean(axis=0), "random_std": random.std(axis=0)}
            frames.append(table({"curve": [name], "fraction": fraction}, columns))
        return pd.concat(frames, ignore_index=True)


@checked
def faithfulness(
    model: Model,
    result: SaliencyResult,
    *,
    percent: Sequence[float] = PERCENTS,
    steps: int = 10,
    random_orders: int | None = None,
    token: int | None = None,
    baseline: Baseline = "zero",
    draws: int = 8,
    first_token: FirstToken = "mean",
    seed: int = 0,
    batch_size: int | None = None,
    progress: Callable[[int, int], None] | None = None,
    check: Callable[[], None] | None = None,
) -> FaithfulnessResult:
    """Comprehensiveness, sufficiency, deletion and insertion of a saliency map and of random orders.

    Prompt tokens are ranked by their importance summed over the response, after dividing every response token's column
    by its largest magnitude; with ``token``, by that response token's column alone.

    Args:
        model: the model that `result` belongs to.
        result: a complete saliency result.
        percent: shares of the prompt for comprehensiveness and sufficiency, in percent.
        steps: equal steps of the deletion and insertion curves, which also have the points of `top_gap`.
        random_orders: number of random orders; default: 39, or 999 for a prompt of at most 9 tokens, which need no more
            passes. At least 19 are needed for a p-value of 0.05.
        token: index of one response token to judge, negative from the end; None for all.
        baseline, draws, first_token: replacement of the embeddings of removed tokens, as in `prompt_saliency`; use the
            map's own to evaluate it under the same perturbation.
        seed: of the random orders and resampled tokens.
        batch_size, progress, check: as in `prompt_saliency`.

    Raises:
        ValueError: a partial result, one by spans, an unknown token, a share outside 0..100.

    Source: ERASER (DeYoung et al. 2020), section 4.1; RISE (Petsiuk et al. 2018), section 4.3.

    Example:
        >>> result = prompt_saliency(model, "The Eiffel Tower is in the city of", " Paris")
        >>> measured = faithfulness(model, result)
        >>> random, _ = measured.random_summary()["aopc_comprehensiveness"]
        >>> bool(measured.aopc_comprehensiveness > random)
        True
    """
    (found,) = faithfulness_of_maps(
        model, [result], percent=percent, steps=steps, random_orders=random_orders, token=token, baseline=baseline,
        draws=draws, first_token=first_token, seed=seed, batch_size=batch_size, progress=progress, check=check,
    )  # fmt: skip
    return found


def faithfulness_of_maps(
    model: Model,
    results: Sequence[SaliencyResult],
    *,
    percent: Sequence[float] = PERCENTS,
    steps: int = 10,
    random_orders: int | None = None,
    token: int | None = None,
    baseline: Baseline = "zero",
    draws: int = 8,
    first_token: FirstToken = "mean",
    seed: int = 0,
    batch_size: int | None = None,
    progress: Callable[[int, int], None] | None = None,
    check: Callable[[], None] | None = None,
) -> tuple[FaithfulnessResult, ...]:
    """`faithfulness` of several maps of one prompt, response and target, with the same random orders for all."""
    if any(result.partial for result in results):
        raise ValueError("faithfulness needs a complete saliency result, this one is partial: compute it to the end")
    if any(result.spans is not None for result in results):
        raise ValueError("faithfulness removes single tokens, this map is by spans: compute it without spans")
    first = results[0]
    shares = np.asarray(percent, dtype=float)
    if shares.ndim != 1 or not shares.size or not ((shares > 0) & (shares <= 100)).all():
        raise ValueError(f"percent must be one or more shares above 0 and up to 100, got {shares.tolist()}")
    check_range("steps", steps)
    if random_orders is not None:
        check_range("random_orders", random_orders)
    check_range("draws", draws)
    check_choice("baseline", baseline, Baseline)
    check_choice("first_token", first_token, FirstToken)
    if token is not None:
        token = index(token, len(first.response_ids), "token", f"response of {len(first.response_ids)} tokens")
    case = _case(model, first, check)
    count = case.n_prompt
    rng = np.random.default_rng(seed)
    at_share = np.maximum(1, np.ceil(shares / 100 * count)).astype(int)
    at_step = np.union1d(np.rint(np.linspace(0, count, steps + 1)).astype(int), top_sizes(count))
    sizes = np.union1d(at_share, at_step)
    if random_orders is None:
        random_orders = usual_orders(count)
    ranked = [top_k_indices(_scores(result, token)) for result in results]
    orders = np.stack([*ranked, *(rng.permutation(count) for _ in range(random_orders))])
    replaced = replacements(case, baseline, draws, seed, first_token)
    without = _measure(case, orders, sizes, token, replaced, Runner(model, case.n_fed, batch_size, check, progress))
    deletion, insertion = without[:, 0], without[:, 1]
    full = deletion[0, np.searchsorted(sizes, 0)]
    share, step = np.searchsorted(sizes, at_share), np.searchsorted(sizes, at_step)
    random = slice(len(results), None)
    return tuple(
        FaithfulnessResult(
            percent=shares,
            comprehensiveness=full - deletion[row, share],
            sufficiency=full - insertion[row, share],
            random_comprehensiveness=full - deletion[random, share],
            random_sufficiency=full - insertion[random, share],
            fraction=at_step / count,
            deletion=deletion[row, step],
            insertion=insertion[row, step],
            random_deletion=deletion[random, step],
            random_insertion=insertion[random, step],
            order=order,
            method=result.method,
            target=result.target,
            token=token,
            baseline=baseline,
            provenance=provenance(
                model.provenance(),
                method=result.method,
                target=result.target,
                seed=seed,
                random_orders=random_orders,
                baseline=baseline,
                **({"draws": draws} if baseline == "resample" else {}),
                **({"first_token": first_token} if case.prompt.first_is_sink else {}),
            ),
        )
        for row, (result, order) in enumerate(zip(results, ranked, strict=True))
    )


def top_sizes(tokens: int) -> Ints:
    """1, 2, 3, 4, 6, 8, 12, 16, … up to half of the tokens, rounded up, and that."""
    half = -(-tokens // 2)
    doubled = [size << k for k in range(half.bit_length()) for size in (2, 3)]
    return np.unique([size for size in (1, *doubled, half) if size <= half])


def usual_orders(tokens: int, few: int = ORDERS) -> int:
    """Number of random orders for a prompt of so many tokens, ``few`` for one that is not short."""
    return MANY_ORDERS if tokens <= SHORT else few


def faithfulness_passes(tokens: int, *, steps: int = 10, maps: int = 1, orders: int | None = None) -> int:
    """Most forward passes of `faithfulness` for one draw: every set of kept tokens takes one."""
    sizes = min(tokens, steps + len(PERCENTS) + len(top_sizes(tokens)))
    orders = usual_orders(tokens) if orders is None else orders
    return min(1 << tokens, 2 * (maps + orders) * sizes)


def _readable(target: str) -> str:
    return target.replace("log_prob", "log-probability").replace("_", " ")


def _case(model: Model, result: SaliencyResult, check: Callable[[], None] | None) -> Case:
    front = [] if result.bos_id is None else [result.bos_id]
    foil = list(result.foil) if isinstance(result.foil, Sequence) else result.foil
    return make_case(
        model, [*front, *result.prompt_ids], list(result.response_ids),
        target=result.target, foil=foil, max_new_tokens=1, prepend_bos=False, check=check,  # type: ignore[arg-type]
    )  # fmt: skip


def _scores(result: SaliencyResult, token: int | None) -> NDArray[np.float64]:
    importance = np.asarray(result.importance, dtype=np.float64)
    if token is not None:
        return importance[:, token]
    highest = np.abs(importance).max(axis=0)
    return np.asarray((importance / np.where(highest > 0, highest, 1.0)).sum(axis=1))


@torch.no_grad()
def _measure(
    case: Case, orders: Ints, sizes: Ints, token: int | None, replaced: Tensor, runner: Runner
) -> NDArray[np.float64]:
    """(orders, 2, sizes) mean target without, and with only, the first tokens of every order.

    ``replaced`` (draws, prompt, d_model) replaces token embeddings; the targets are means over the draws.
    """
    rank = np.empty_like(orders)
    np.put_along_axis(rank, orders, np.arange(orders.shape[1])[None], axis=1)
    first = rank[:, None, :] < sizes[None, :, None]
    keep = np.stack([~first, first], axis=1)
    masks, mask_of = np.unique(keep.reshape(-1, orders.shape[1]), axis=0, return_inverse=True)
    draws = len(replaced)
    values = np.empty((len(masks) * draws, case.n_response))
    runner.total = len(values)
    positions, rows = slice(case.first, None), case.rows

    def work(start: int, stop: int) -> None:
        batch = case.embeddings.repeat(stop - start, 1, 1)
        mask, draw = np.divmod(np.arange(start, stop), draws)
        keep_mask = torch.from_numpy(masks[mask]).to(batch.device)
        batch[:, rows] = torch.where(keep_mask[..., None], batch[:, rows], replaced[draw])
        values[start:stop] = to_numpy(read(case.model, encode(case.model, batch, positions=positions), case.targets))

    runner.run(len(values), lambda start: case.n_fed, work)
    check_finite(values, lambda mask, token: f"the target of response token {token} with replaced prompt tokens")
    values = values.reshape(len(masks), draws, -1).mean(axis=1)
    chosen = values.mean(axis=1) if token is None else values[:, token]
    return np.asarray(chosen[mask_of.reshape(-1)].reshape(keep.shape[:3]))


@record
class RankAgreement(Record):
    """Agreement of two saliency maps on the ranking of the prompt tokens."""

    per_token: Floats = with_axes("response")
    """Spearman's rank correlation over the prompt tokens; NaN where a column is constant."""

    @property
    def mean(self) -> float:
        """Mean over the response tokens that have a correlation; NaN if none has."""
        known = self.per_token[np.isfinite(self.per_token)]
        return float(known.mean()) if known.size else float("nan")


def rank_agreement(result: SaliencyResult, reference: SaliencyResult) -> RankAgreement:
    """Spearman's rank correlation of two saliency maps of one prompt and response, for every response token.

    Usually `reference` is the exact one. Raises ValueError for maps of different texts.
    """
    from scipy.stats import rankdata

    ids, other = ((tuple(r.prompt_ids), tuple(r.response_ids), r.spans) for r in (result, reference))
    if ids != other:
        raise ValueError("the two results must be of the same prompt and response: compute both for one text")
    first, second = (rankdata(np.asarray(r.importance, dtype=np.float64), axis=0) for r in (result, reference))
    first, second = first - first.mean(axis=0), second - second.mean(axis=0)
    spread = np.sqrt((first**2).sum(axis=0) * (second**2).sum(axis=0))
    product = (first * second).sum(axis=0)
    return RankAgreement(ratio(product, spread))
