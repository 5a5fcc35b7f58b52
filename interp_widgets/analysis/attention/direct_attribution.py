"""`direct_logit_attribution`: what every head and MLP writes directly into one logit, or the difference of two."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from interp_widgets.analysis._core.arrays import Floats, float64
from interp_widgets.analysis._core.checks import check_finite, check_range
from interp_widgets.analysis._core.chunks import Runner
from interp_widgets.analysis._core.prompts import Prompt, read_prompt, single_token
from interp_widgets.analysis._core.result import Result, provenance, record, with_axes
from interp_widgets.analysis._core.statistics import BEYOND, bootstrap_mean, largest_p
from interp_widgets.analysis._core.tables import DataFrame
from interp_widgets.analysis._core.tensors import wide
from interp_widgets.analysis.token_decomposition.decomposition import check_error
from interp_widgets.analysis.token_decomposition.logit_shares import uncapped
from interp_widgets.analysis.token_decomposition.part_lens import PartLens
from interp_widgets.arguments import checked
from interp_widgets.models import Model, ModModel
from interp_widgets.models.capabilities import Capability
from interp_widgets.models.chat import PromptInput, is_chat
from interp_widgets.models.engine import read_values
from interp_widgets.models.engine.linearised import LinearisedNorm, Rows
from interp_widgets.models.patching import site_hook
from interp_widgets.models.top_k import likeliest

NAMED = 5
"""Heads named in a sentence."""


@record
class DirectLogitAttribution(Result):
    """One logit (or the difference of two) as a sum of what the parts of a model write directly into it.

    ``heads.sum() + mlps.sum() + attention_bias.sum() + embedding + bias`` is `total`. Over several prompts all of these
    are means, and the heads and MLPs have intervals.

    Example:
        >>> result = direct_logit_attribution(model, "The Eiffel Tower is in the city of", " Paris", foil=" London")
        >>> parts = result.heads.sum() + result.mlps.sum() + result.attention_bias.sum()
        >>> bool(abs(parts + result.embedding + result.bias - result.total) < 1e-3)
        True
        >>> result.to_frame().nlargest(2, "contribution").round(1)[["part", "layer", "contribution"]]
           part  layer  contribution
        41  mlp      5           5.1
        40  mlp      4           3.4
    """

    prompts: Sequence[str] = with_axes("prompts")
    """The prompts as text, as the model reads them."""

    targets: Sequence[int] = with_axes("prompts")
    """Id of the token after each prompt whose logit it is."""

    target_tokens: Sequence[str] = with_axes("prompts")
    """Their texts."""

    heads_by_prompt: Floats = with_axes("prompts", "layers", "heads")
    """Contribution of every head, in logits."""

    mlps_by_prompt: Floats = with_axes("prompts", "layers")
    """Contribution of every MLP with its biases; 0 in a model without MLPs."""

    attention_bias_by_prompt: Floats = with_axes("prompts", "layers")
    """Contribution of the bias of every attention output, which belongs to no head."""

    embedding_by_prompt: Floats = with_axes("prompts")
    """Contribution of the last token's own embedding, with its position's."""

    bias_by_prompt: Floats = with_axes("prompts")
    """Contribution of the biases of the final norm and the unembedding."""

    total_by_prompt: Floats = with_axes("prompts")
    """The model's logit of the target, minus that of the foil if there is one; before a soft cap (Gemma 2)."""

    error: Floats = with_axes("prompts")
    """|sum of the parts - total| over the sum of their absolute values."""

    foils: Sequence[int] | None = with_axes("prompts", default=None)
    """Id of the token whose logit is subtracted; None without one."""

    foil_tokens: Sequence[str] | None = with_axes("prompts", default=None)
    """Their texts."""

    heads_interval: Floats | None = with_axes(2, "layers", "heads", default=None)
    """Low and high end of the 95% bootstrap interval of `heads` over prompts; None for a single prompt."""

    mlps_interval: Floats | None = with_axes(2, "layers", default=None)
    """The interval of `mlps`."""

    heads_p: Floats | None = with_axes("layers", "heads", default=None)
    """Two-sided p of every head among what it adds to the logits of random other tokens (with a foil to differences of
    two), corrected over all heads; None in results of earlier versions."""

    mlps_p: Floats | None = with_axes("layers", default=None)
    """Two-sided p of every MLP, as `heads_p`, corrected over all MLPs; None in a model without MLPs too."""

    @property
    def heads(self) -> NDArray[np.float64]:
        """(layers, heads) contribution of every head; the mean over prompts."""
        return np.asarray(self.heads_by_prompt.mean(0, dtype=np.float64))

    @property
    def mlps(self) -> NDArray[np.float64]:
        """(layers,) contribution of every MLP; the mean over prompts."""
        return np.asarray(self.mlps_by_prompt.mean(0, dtype=np.float64))

    @property
    def attention_bias(self) -> NDArray[np.float64]:
        """(layers,) contribution of the bias of every attention output; the mean over prompts."""
        return np.asarray(self.attention_bias_by_prompt.mean(0, dtype=np.float64))

    @property
    def embedding(self) -> float:
        """Contribution of the last token's own embedding; the mean over prompts."""
        return float(self.embedding_by_prompt.mean(dtype=np.float64))

    @property
    def bias(self) -> float:
        """Contribution of the biases of the final norm and the unembedding; the mean over prompts."""
        return float(self.bias_by_prompt.mean(dtype=np.float64))

    @property
    def total(self) -> float:
        """The logit, or the difference of two; the mean over prompts."""
        return float(self.total_by_prompt.mean(dtype=np.float64))

    def in_words(self) -> str:
        """Which heads and MLPs write the target beyond chance, in a sentence each."""
        if self.heads_p is None:
            raise ValueError("this result has no test: compute it again")
        foil = self.foils is not None
        words = [heads_in_words(self.heads_p, self.heads, foil=foil)]
        words += [] if self.mlps_p is None else [mlps_in_words(self.mlps_p, self.mlps, foil=foil)]
        return ". ".join(words)

    def measures(self) -> dict[str, float | int | str | bool | None]:
        """The head with the largest contribution, as ``layer.head``, its contribution, and the sums by kind."""
        layer, head = np.unravel_index(int(self.heads.argmax()), self.heads.shape)
        return {
            "head": f"{layer}.{head}",
            "head_contribution": float(self.heads[layer, head]),
            "heads": float(self.heads.sum()),
            "mlps": float(self.mlps.sum()),
            "embedding": self.embedding,
            "total": self.total,
        }

    def to_frame(self) -> DataFrame:
        """One row per part: its kind, layer and head (-1 where it has none), contribution, interval, and the p of heads
        and MLPs."""
        import pandas as pd

        layers, heads = self.heads.shape
        nothing = np.full(2, np.nan)
        rows: list[tuple[Any, ...]] = []
        for layer in range(layers):
            for head in range(heads):
                ends = nothing if self.heads_interval is None else self.heads_interval[:, layer, head]
                p = np.nan if self.heads_p is None else self.heads_p[layer, head]
                rows.append(("head", layer, head, self.heads[layer, head], *ends, p))
        for layer in range(layers):
            ends = nothing if self.mlps_interval is None else self.mlps_interval[:, layer]
            p = np.nan if self.mlps_p is None else self.mlps_p[layer]
            rows.append(("mlp", layer, -1, self.mlps[layer], *ends, p))
        nothing = np.full(3, np.nan)
        rows += [("attention_bias", layer, -1, self.attention_bias[layer], *nothing) for layer in range(layers)]
        rows += [("embedding", -1, -1, self.embedding, *nothing), ("bias", -1, -1, self.bias, *nothing)]
        return pd.DataFrame(rows, columns=["part", "layer", "head", "contribution", "low", "high", "p"])


def heads_in_words(p: NDArray[np.floating], contributions: NDArray[np.floating], *, foil: bool = False) -> str:
    """How many heads have a p (layers, heads) of at most 0.05, and which add most (layers, heads), in a sentence."""
    return _in_words(p, contributions, "heads", foil)


def mlps_in_words(p: NDArray[np.floating], contributions: NDArray[np.floating], *, foil: bool = False) -> str:
    """How many MLPs have a p (layers,) of at most 0.05, and which add most (layers,), in a sentence."""
    return _in_words(p, contributions, "MLPs", foil)


def _in_words(p: NDArray[np.floating], contributions: NDArray[np.floating], kind: str, foil: bool) -> str:
    beyond = np.argwhere(p <= BEYOND)
    order = sorted(map(tuple, beyond.tolist()), key=lambda at: -abs(float(contributions[at])))
    named = ", ".join(".".join(map(str, at)) for at in order[:NAMED])
    which = f" ({named}{', …' if len(order) > NAMED else ''})" if order else ""
    what = (
        ("this difference", "the difference of random other tokens") if foil else ("this token", "random other tokens")
    )
    return (
        f"{len(order)} of {p.size} {kind}{which} write for or against {what[0]} beyond chance: more than {kind} do for "
        f"{what[1]} (p at most {BEYOND}, corrected over all {kind})"
    )


@checked
@torch.no_grad()
def direct_logit_attribution(
    model: Model,
    prompts: PromptInput | Sequence[PromptInput],
    target: str | int | Sequence[str | int] | None = None,
    *,
    foil: str | int | Sequence[str | int] | None = None,
    tolerance: float | None = None,
    resamples: int = 2000,
    draws: int = 999,
    seed: int = 0,
    prepend_bos: bool | None = None,
    batch_size: int | None = None,
    progress: Callable[[int, int], None] | None = None,
    check: Callable[[], None] | None = None,
) -> DirectLogitAttribution:
    """What every attention head and MLP adds directly to the logit of the next token, or to a logit difference.

    Also called direct logit attribution (DLA), the direct effect, or the logit lens of single components. The residual
    stream at the last token is the sum of what all parts wrote into it, and with the final norm's scale held fixed a
    logit is linear in it, so that the parts add up to the logit. What a part does by way of later layers is not in
    here: a head that makes a later head work may contribute nothing (`ablate_heads` has the whole effect). By source
    token instead of by part: `decompose_logit`.

    A raw logit also has what all logits share, which no probability depends on: with a foil that part cancels. In a
    model that norms the outputs of attention (Gemma 2 and 3) the scales of that norm are held fixed too. For a mixture
    of depths it is the logit of the last route alone.

    Every head and MLP adds something to every logit, so that no map of them is empty. `heads_p` and `mlps_p` say which
    of them write this token (or difference) more than a token picked at random: a permutation test of the cosine
    between what the part writes and the token's direction, less the mean of all drawn, so that neither the length of a
    token's row of the unembedding nor what all logits share matters. Random tokens, not random directions: what parts
    write and the rows of the unembedding lie in the same few dimensions of the stream, so that in a pretrained model
    more than 5% of all heads pass a test against directions for a token that nobody asked for.

    Args:
        model: what `load_model` returns.
        prompts: one prompt (text, token ids or messages), or a list of them.
        target: text or id of the token after each prompt: one for all, or one per prompt; default: the one with the
            largest logit.
        foil: a token whose logit is subtracted, one for all or one per prompt.
        tolerance: largest relative `error`; default 1e-4 in float32, 1e-9 in float64, 0.05 in half precision.
        resamples: bootstrap draws of the intervals over prompts; with few prompts intervals are too narrow.
        draws: random other tokens (with a foil pairs of them) of the test, for each prompt its own; all others where
            a vocabulary has no more.
        seed: of these draws.
        prepend_bos: overrides the model's BOS policy for texts.
        batch_size: prompts per pass; by default by work and free memory.
        progress: called with (done, total) prompts.
        check: called before every pass and layer; raises to cancel.

    Raises:
        ValueError: a bad prompt, target or foil, a foil equal to the target, lists of different lengths, or a model
            whose parts do not add up to its logit.

    Source: A Mathematical Framework for Transformer Circuits (Elhage et al. 2021), *direct path*; Interpretability in
    the Wild (Wang et al. 2023), section 3.1. Resampling-based multiple testing (Westfall & Young 1993), for p.

    Example:
        >>> prompts = ["The Eiffel Tower is in the city of", "The Colosseum is in the city of"]
        >>> result = direct_logit_attribution(model, prompts, [" Paris", " Rome"], foil=" London")
        >>> result.heads.shape, result.heads_interval.shape, bool(result.error.max() < 1e-4)
        ((6, 6), (2, 6, 6), True)
    """
    check_parts(model, "direct_logit_attribution")
    check_range("draws", draws)
    texts = [read_prompt(model, prompt, prepend_bos=prepend_bos) for prompt in _listed(prompts)]
    targets = _per_prompt(model, target, len(texts), "target")
    foils = _per_prompt(model, foil, len(texts), "foil")
    for number, (token, other) in enumerate(zip(targets or (), foils or (), strict=False)):
        _check_different(token, other, number, len(texts))
    runner = Runner(model, max(len(text.ids) for text in texts), batch_size, check, progress, total=len(texts))
    found: dict[int, _Parts] = {}
    cosines: dict[int, NDArray[np.float64]] = {}

    def read(chosen: list[int], ids: Tensor) -> None:
        written = OnePosition.of(model, ids)
        for row, number in enumerate(chosen):
            token = None if targets is None else targets[number]
            other = None if foils is None else foils[number]
            found[number] = written.parts(row, token, other)
            rng = np.random.default_rng([seed, number])
            cosines[number] = written.cosines(row, found[number].target, other, draws, rng)

    runner.run_texts([text.ids for text in texts], read)
    parts = [found[number] for number in range(len(texts))]
    for number, (part, other) in enumerate(zip(parts, foils or (), strict=False)):
        _check_different(part.target, other, number, len(texts))
    errors = [part.error for part in parts]
    check_error(model, f"the parts of {model.name} do not add up to its logit", max(errors), "secant", tolerance)
    heads, mlps = np.stack([part.heads for part in parts]), np.stack([part.mlps for part in parts])
    several = len(parts) > 1
    tested = np.mean([cosines[number] for number in range(len(parts))], axis=0)
    options = {"bos": texts[0].offset == 1, "resamples": resamples, "draws": draws, "seed": seed}
    return DirectLogitAttribution(
        prompts=tuple(_text(text) for text in texts),
        targets=tuple(part.target for part in parts),
        target_tokens=tuple(model.single_token_strings([part.target for part in parts])),
        heads_by_prompt=heads,
        mlps_by_prompt=mlps,
        attention_bias_by_prompt=np.stack([part.attention_bias for part in parts]),
        embedding_by_prompt=np.array([part.embedding for part in parts]),
        bias_by_prompt=np.array([part.bias for part in parts]),
        total_by_prompt=np.array([part.total for part in parts]),
        error=np.array(errors),
        foils=foils,
        foil_tokens=None if foils is None else tuple(model.single_token_strings(foils)),
        heads_interval=_interval(heads, resamples, seed) if several else None,
        mlps_interval=_interval(mlps, resamples, seed) if several else None,
        heads_p=_p(tested[:, : heads[0].size]).reshape(heads.shape[1:]),
        mlps_p=_p(tested[:, heads[0].size :]) if tested.shape[1] > heads[0].size else None,
        provenance=provenance(model.provenance(), **options, **runner.log.facts()),
    )


def _p(cosines: NDArray[np.float64]) -> NDArray[np.float64]:
    """(parts,) p of the target's cosines, the first row, among those of random other tokens, corrected over them."""
    return largest_p(cosines[0], cosines[1:])


def check_parts(model: Model, name: str) -> None:
    """Raise a ValueError, in the name of an analysis, for a model whose logits are no sum over its heads and MLPs."""
    has = model.capabilities
    needs: tuple[Capability, ...] = ("residual_stream", "additive_stream", "attention", "heads", "head_weights")
    for needed in needs:
        has.require(needed, name)
    if not isinstance(model, ModModel):  # whose last route is read by itself
        has.require("unembedding", name)
    if not has.attention_only:
        has.require("mlp", name)


def _listed(prompts: Any) -> list[Any]:
    """Several prompts as a list; one as a list of itself."""
    one = isinstance(prompts, str | Tensor) or is_chat(prompts) or all(hasattr(part, "__index__") for part in prompts)
    return [prompts] if one else list(prompts)


def _per_prompt(model: Model, tokens: Any, count: int, what: str) -> tuple[int, ...] | None:
    """The token id of every prompt; None where none is given."""
    if tokens is None:
        return None
    if isinstance(tokens, str) or hasattr(tokens, "__index__"):
        return (single_token(model, tokens, what=what),) * count
    ids = tuple(single_token(model, token, what=what) for token in tokens)
    if len(ids) != count:
        raise ValueError(f"{what} must be one token for all prompts or one per prompt: got {len(ids)} for {count}")
    return ids


def _check_different(target: int, foil: int, number: int, count: int) -> None:
    if target == foil:
        where = f" for prompt {number}" if count > 1 else ""
        raise ValueError(f"target and foil must differ, both are {target}{where}: give another foil, or none")


def _text(prompt: Prompt) -> str:
    return prompt.text or "".join(prompt.model.token_strings(prompt.ids))


def _interval(rows: NDArray[np.float64], resamples: int, seed: int) -> NDArray[np.float64]:
    """(2, ...) bootstrap interval of the mean of rows (prompts, ...)."""
    ends = bootstrap_mean(rows.reshape(len(rows), -1), resamples=resamples, seed=seed)
    return ends.reshape(2, *rows.shape[1:])


@dataclass(frozen=True)
class _Parts:
    """One prompt's logit by parts, in float64."""

    target: int
    heads: NDArray[np.float64]
    mlps: NDArray[np.float64]
    attention_bias: NDArray[np.float64]
    embedding: float
    bias: float
    total: float

    @property
    def error(self) -> float:
        flat = np.concatenate([self.heads.ravel(), self.mlps, self.attention_bias, [self.embedding, self.bias]])
        return float(abs(flat.sum() - self.total) / np.abs(flat).sum())


@dataclass(frozen=True)
class OnePosition:
    """What the parts of a model write into the residual stream at one position of some sequences."""

    model: Model
    start: Tensor
    """(sequences, d_model) the stream before the first block."""
    end: Tensor
    """(sequences, d_model) the stream that the final norm reads."""
    z: list[Tensor]
    """Per layer (sequences, heads, d_head)."""
    mlp: list[Tensor]
    """Per layer (sequences, d_model); empty for a model without MLPs."""
    scale: list[Tensor | None]
    """Per layer (sequences, 1) what the norm of the attention output divides by; None without such a norm."""

    @staticmethod
    def of(model: Model, ids: Tensor, position: int = -1) -> OnePosition:
        """Read sequences (batch, tokens) of one length, at the last position or another."""
        layers, kept = range(model.n_layers), dict[str, Tensor]()
        sites: list[Any] = ["head"] if model.last_capabilities.attention_only else ["head", "mlp"]
        names = [site_hook(site, layer, model.n_layers) for layer in layers for site in sites]
        names += [site_hook("resid", layer, model.n_layers) for layer in (0, model.n_layers)]
        known = frozenset(model.hook_names)
        scales = [f"blocks.{layer}.ln1_post.hook_scale" for layer in layers]
        names += [name for name in scales if name in known]

        def keeping(name: str) -> Callable[[Tensor], None]:
            def keep(value: Tensor) -> None:
                kept[name] = wide(value[:, position])

            return keep

        read_values(model, ids, [(name, keeping(name)) for name in names])
        z = [kept[site_hook("head", layer, model.n_layers)] for layer in layers]
        return OnePosition(
            model,
            kept[site_hook("resid", 0, model.n_layers)],
            kept[site_hook("resid", model.n_layers, model.n_layers)],
            [value.view(len(value), model.n_heads, -1) if value.ndim == 2 else value for value in z],
            [kept[site_hook("mlp", layer, model.n_layers)] for layer in layers] if "mlp" in sites else [],
            [kept.get(name) for name in scales],
        )

    def of_heads(self, layer: int, row: int) -> Tensor:
        """(heads, d_model) what the heads of a layer write in one sequence."""
        written = torch.einsum("hd,hdm->hm", self.z[layer][row], wide(self.model.last_weight("W_O", layer)))
        norm = self._norm(layer, row)
        return written if norm is None else norm.forward(written, Rows.together(len(written), slice(0, 1)))

    def parts(self, row: int, target: int | None, foil: int | None) -> _Parts:
        """The logit after one sequence by parts."""
        model, end = self.model, self.end[row : row + 1]
        check_finite(end, f"the residual stream of {model.name} before the final norm")
        lens = PartLens.of(model, end)
        logits = uncapped(model, lens.logits(end[0], -1, "own"))
        token = likeliest(logits) if target is None else target
        direction, constant = lens.directions(token)[0], lens.constant(token)
        if foil is not None:
            direction, constant = direction - lens.directions(foil)[0], constant - lens.constant(foil)
        exact = direction.cpu().double()

        def along(written: Tensor) -> Any:
            return written.cpu().double() @ exact

        heads, biases = [], []
        for layer in range(model.n_layers):
            of_bias = wide(model.last_weight("b_O", layer))[None]
            norm = self._norm(layer, row)
            if norm is not None:
                of_bias = norm.forward(of_bias, Rows.together(1, slice(0, 1), bias=True))
            heads.append(along(self.of_heads(layer, row)))
            biases.append(along(of_bias)[0])
        mlps = [along(written[row]) for written in self.mlp] or [torch.zeros(())] * model.n_layers
        return _Parts(
            target=token,
            heads=float64(torch.stack(heads)),
            mlps=float64(torch.stack(mlps)),
            attention_bias=float64(torch.stack(biases)),
            embedding=float(along(self.start[row])),
            bias=constant,
            total=float(logits[token] - (0 if foil is None else logits[foil])),
        )

    def cosines(
        self, row: int, target: int, foil: int | None, draws: int, rng: np.random.Generator
    ) -> NDArray[np.float64]:
        """(1 + draws, layers · heads + MLPs) cosine of what every head and every MLP writes with the direction of the
        target (less that of the foil), then with those of random other tokens (pairs of them); without a foil above
        the mean of all these."""
        lens = PartLens.of(self.model, self.end[row : row + 1])
        heads = [self.of_heads(layer, row) for layer in range(self.model.n_layers)]
        written = torch.cat([*heads, *(of_layer[row : row + 1] for of_layer in self.mlp)])
        return float64(lens.drawn_directions(target, foil, draws, rng) @ written.cpu().double().T)

    def _norm(self, layer: int, row: int) -> LinearisedNorm | None:
        """The norm of one layer's attention output at its scale; None without one."""
        scale = self.scale[layer]
        if scale is None:
            return None
        weight, shift = (wide(self.model.last_weight(f"ln1_post_{part}", layer)) for part in "wb")
        return LinearisedNorm(scale[row : row + 1], weight, shift, self.model.normalization == "LayerNorm")
