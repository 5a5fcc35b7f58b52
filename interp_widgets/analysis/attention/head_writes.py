"""`head_writes`: the tokens whose logits one attention head raises and lowers most by what it writes."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch

from interp_widgets.analysis._core.arrays import Floats, float64
from interp_widgets.analysis._core.checks import check_range, check_top, index, layer_index
from interp_widgets.analysis._core.cost import Cost, chunk_bytes, pass_flops, unembedding_flops
from interp_widgets.analysis._core.prompts import read_prompt
from interp_widgets.analysis._core.result import Result, provenance, record, with_axes
from interp_widgets.analysis._core.tables import DataFrame
from interp_widgets.analysis.attention.direct_attribution import OnePosition, check_parts
from interp_widgets.analysis.token_decomposition.decomposition import check_error
from interp_widgets.analysis.token_decomposition.part_lens import PartLens
from interp_widgets.arguments import checked
from interp_widgets.models import Model
from interp_widgets.models.chat import PromptInput
from interp_widgets.models.top_k import ranked

BEYOND = 0.05
"""Largest p of a change that is called beyond chance."""


@record
class HeadWrites(Result):
    """What one head writes at one position, in words: the tokens whose logits it raises and lowers most.

    All numbers are logits, relative to the mean over the vocabulary, which no probability depends on.

    Example:
        >>> result = head_writes(model, "The Eiffel Tower is in the city of", 0, 0, top=3)
        >>> len(result.raised_tokens), bool((result.raised > result.lowered).all())
        (3, True)
        >>> result.to_frame().columns.tolist()
        ['direction', 'rank', 'id', 'token', 'logits']
    """

    tokens: Sequence[str] = with_axes("positions")
    """Readable tokens, all those that the model reads."""

    raised_ids: Sequence[int] = with_axes("top")
    """Ids of the tokens whose logits rise most, the most first."""

    raised_tokens: Sequence[str] = with_axes("top")
    """Their texts."""

    raised: Floats = with_axes("top")
    """What the head adds to their logits."""

    lowered_ids: Sequence[int] = with_axes("top")
    """Ids of the tokens whose logits fall most, the most first."""

    lowered_tokens: Sequence[str] = with_axes("top")
    """Their texts."""

    lowered: Floats = with_axes("top")
    """What the head adds to their logits."""

    layer: int
    """The layer."""

    head: int
    """The head."""

    position: int
    """The position, counted from 0 with the BOS."""

    mean: float
    """What the head adds to all logits alike: the mean over the vocabulary, left out of the others."""

    spread: float
    """The standard deviation over the vocabulary, in logits."""

    random_raised: Floats = with_axes("draws")
    """What random directions of the same length add to the logit that each raises most."""

    random_lowered: Floats = with_axes("draws")
    """What they add to the logit that each lowers most."""

    error: float
    """|sum of all parts - logit| over the sum of their absolute values, for the likeliest token."""

    @property
    def p(self) -> tuple[float, float]:
        """For raising and for lowering, (1 + directions that do it at least as much) / (1 + draws), each by its largest
        change of any token, which corrects for the many tokens. A test of sizes alone, not of what tokens have in
        common: a head may write words of one kind, each no more than chance would some token."""
        draws = len(self.random_raised)
        as_much = (self.random_raised >= self.raised[0]).sum(), (self.random_lowered <= self.lowered[0]).sum()
        return (1 + int(as_much[0])) / (1 + draws), (1 + int(as_much[1])) / (1 + draws)

    def in_words(self) -> str:
        """What random directions of the same length do, in a sentence."""
        draws, least = len(self.random_raised), 1 / (1 + len(self.random_raised))
        verdicts = ["beyond chance" if p <= BEYOND else "not beyond chance" for p in self.p]
        few = f"; with {draws} p cannot be below {least:.2g}" if least > BEYOND else ""
        return (
            f"Of {draws} random directions of the same length the middle one raises its strongest token by "
            f"{np.median(self.random_raised):.3g} and lowers it by {-np.median(self.random_lowered):.3g}: raising is "
            f"{verdicts[0]} (p = {self.p[0]:.2g}), lowering {verdicts[1]} (p = {self.p[1]:.2g}){few}"
        )

    def measures(self) -> dict[str, float | int | str | bool | None]:
        """The tokens at both ends, what the head adds to their logits, and the spread."""
        return {
            "raised_token": self.raised_tokens[0],
            "raised": float(self.raised[0]),
            "lowered_token": self.lowered_tokens[0],
            "lowered": float(self.lowered[0]),
            "spread": self.spread,
        }

    def to_frame(self) -> DataFrame:
        """One row per token: raised or lowered, its rank from 1, id and text, and the logits."""
        import pandas as pd

        sides = (
            ("raised", self.raised_ids, self.raised_tokens, self.raised),
            ("lowered", self.lowered_ids, self.lowered_tokens, self.lowered),
        )
        rows = [
            (direction, rank, number, token, float(value))
            for direction, ids, tokens, values in sides
            for rank, (number, token, value) in enumerate(zip(ids, tokens, values, strict=True), 1)
        ]
        return pd.DataFrame(rows, columns=["direction", "rank", "id", "token", "logits"])


@checked
@torch.no_grad()
def head_writes(
    model: Model,
    prompt: PromptInput,
    layer: int,
    head: int,
    *,
    position: int = -1,
    top: int = 10,
    draws: int = 19,
    seed: int = 0,
    tolerance: float | None = None,
    prepend_bos: bool | None = None,
    check: Callable[[], None] | None = None,
) -> HeadWrites:
    """Which tokens one attention head writes for and against at a position: its direct effect on every logit.

    What the head adds to the residual stream there goes through the final norm, at the scale that the norm has for the
    whole stream, and through the unembedding: `direct_logit_attribution` of one head to all tokens instead of to one.
    It is the direct effect only. What later layers make of it is not in here, and in early layers that is most of it
    (`ablate_heads` has the whole effect). In a model that norms the outputs of attention (Gemma 2 and 3) the scale of
    that norm is held fixed too; a soft cap comes after it. Of a mixture of depths it is the last route.

    Args:
        model: what `load_model` returns.
        prompt: text, token ids or messages.
        layer: the layer, negative from the end.
        head: the head, negative from the end.
        position: a token that the model reads, counted from 0 with the BOS, negative from the end.
        top: tokens at each end.
        draws: random directions of the same length, of which each has a strongest token too; 19 are the fewest with
            which p can be 0.05.
        seed: of these directions.
        tolerance: largest relative error of the sum of all parts, as in `direct_logit_attribution`.
        prepend_bos: overrides the model's BOS policy for texts.
        check: called before the pass; raises to cancel.

    Raises:
        ValueError: a bad prompt, a layer, head, position or number out of range, or a model whose parts do not
            add up to its logits.

    Source: A Mathematical Framework for Transformer Circuits (Elhage et al. 2021), *direct path*; Interpretability in
    the Wild (Wang et al. 2023), section 3.1.

    Example:
        >>> result = head_writes(model, "The Eiffel Tower is in the city of", 0, 0, top=3)
        >>> result.position, len(result.raised_tokens), len(result.lowered_tokens)
        (8, 3, 3)
    """
    check_parts(model, "head_writes")
    layer = layer_index(model, layer)
    head = index(head, model.n_heads, "head", f"layer of {model.n_heads} heads")
    check_top(top, model)
    check_range("draws", draws)
    read = read_prompt(model, prompt, prepend_bos=prepend_bos)
    at = index(position, len(read.ids), "position", f"prompt of {len(read.ids)} tokens with its BOS")
    if check is not None:
        check()
    written = OnePosition.of(model, torch.tensor([read.ids], device=model.device), at)
    error = written.parts(0, None, None).error
    check_error(model, f"the parts of {model.name} do not add up to its logit", error, "secant", tolerance)
    lens = PartLens.of(model, written.end)
    own = written.of_heads(layer, 0)[head]
    random = torch.randn(draws, len(own), generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    random *= own.norm().cpu().double() / random.norm(dim=-1, keepdim=True)
    logits, *others = lens.logits(torch.cat([own[None], random.to(own)]), -1, "frozen").cpu().double()
    mean = logits.mean()
    (raised, up), (lowered, down) = ranked(logits - mean, top), ranked(mean - logits, top)
    return HeadWrites(
        tokens=tuple(model.token_strings(read.ids)),
        raised_ids=tuple(up.tolist()),
        raised_tokens=tuple(model.single_token_strings(up)),
        raised=float64(raised),
        lowered_ids=tuple(down.tolist()),
        lowered_tokens=tuple(model.single_token_strings(down)),
        lowered=float64(-lowered),
        layer=layer,
        head=head,
        position=at,
        mean=float(mean),
        spread=float(logits.std(correction=0)),
        random_raised=np.array([float(row.max() - row.mean()) for row in others]),
        random_lowered=np.array([float(row.min() - row.mean()) for row in others]),
        error=error,
        provenance=provenance(model.provenance(), bos=read.offset == 1, draws=draws, seed=seed),
    )


def head_writes_cost(model: Model, n_tokens: int) -> Cost:
    """Forecast of `head_writes` on this many tokens with the BOS.

    Example:
        >>> head_writes_cost(model, 20).flops > head_writes_cost(model, 10).flops
        True
    """
    return Cost(
        flops=float(pass_flops(model, n_tokens, n_tokens) + (2 + 19) * unembedding_flops(model)),
        bytes=float(chunk_bytes(model, n_tokens, 1)),
    )
