"""Results of a token decomposition: parts of the residual stream, and shares of one logit."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from typing import TYPE_CHECKING, Any, SupportsIndex

import numpy as np

from interp_widgets.analysis._core.arrays import Floats, Ints
from interp_widgets.analysis._core.prompts import PromptResult
from interp_widgets.analysis._core.result import record

if TYPE_CHECKING:
    import pandas as pd


@record
class TokenDecompositionResult(PromptResult):
    """The residual stream of one position as a sum of what each token of the prompt brought, at every layer.

    ``parts.sum(axis=1) + bias`` is the residual stream, up to `error`. Layer l is the stream entering block l; the
    last row is what the final norm reads. Source: Explainability in Large Language Models: Pathways to Refinement and
    Alignment (Luo 2024), section 4.1.1, Eqs 4.1 to 4.3, and appendix B.3.

    Example:
        >>> result = decompose_tokens(model, "The Eiffel Tower is in the city of")
        >>> bool(np.abs(result.parts.sum(axis=1) + result.bias - result.residual).max() < 1e-3)
        True
        >>> # what the parts of the first three tokens alone would predict
        >>> [result.token_text(token) for token in result.top_token[-1, :3]]
        [' Delhi', ' Paris', ' Paris']
    """

    parts: Floats
    """(layers + 1, sources, d_model) what each shown token brought; zero for tokens after `position`."""

    bias: Floats
    """(layers + 1, d_model) what no shown token brought: the model's biases (zero if spread) and a BOS (see `bos`)."""

    error: Floats
    """(layers + 1,) relative error of the sum: norm of (sum - residual) over norm of the residual."""

    position: int
    """The position that is decomposed, counted from 0."""

    residual: Floats
    """(layers + 1, d_model) the model's own residual stream there."""

    bos: Floats | None = None
    """(layers + 1, d_model) what of `bias` a beginning-of-sequence token brought; None where none was fed."""

    top_token: Ints | None = None
    """(layers + 1, sources) id of the token that each part's lens puts first; -1 where the part is zero. None without
    a lens."""

    probability: Floats | None = None
    """(layers + 1, sources) its probability, 0..1; 0 where the part is zero."""

    bias_top_token: Ints | None = None
    """(layers + 1,) the same for `bias`."""

    bias_probability: Floats | None = None
    """(layers + 1,) the same for `bias`."""

    target: int | None = None
    """Id of the token whose logit is followed; None if none."""

    target_token: str = ""
    """Its text."""

    target_logit: Floats | None = None
    """(layers + 1, sources) each part's share of the target's logit in the lens of the whole stream; with
    `target_bias` they sum to that logit, before a soft cap where the model has one (Gemma 2)."""

    target_bias: Floats | None = None
    """(layers + 1,) share of `bias`, the final norm's bias and the unembedding's."""

    target_probability: Floats | None = None
    """(layers + 1, sources) the target's probability in the lens of each part, 0..1; None without a lens."""

    biases: str = "separate"
    """``separate``, or ``spread`` over the parts in proportion to their norms."""

    lens: str | None = None
    """Scale of the final norm in the lens of a part: ``own``, ``frozen``, or None for no lens."""

    names: Mapping[str, str] = field(default_factory=dict)
    """Token id (as text) to readable token, for every id that the result holds."""

    def __post_init__(self) -> None:
        super().__post_init__()
        sources = len(self.tokens)
        self.array("parts", (None, sources, None))
        rows, _, width = self.parts.shape
        self.array(("bias", "residual"), (rows, width))
        self.array("error", (rows,))
        self.array("bos", (rows, width))
        self.array("top_token", (rows, sources), "int")
        self.array(("probability", "target_logit", "target_probability"), (rows, sources))
        self.array("bias_top_token", (rows,), "int")
        self.array(("bias_probability", "target_bias"), (rows,))
        if not 0 <= self.position < sources:
            raise ValueError(f"position must be in 0..{sources - 1} for {sources} tokens, got {self.position}")

    def token_text(self, token: SupportsIndex) -> str:
        """The readable text of a token id that this result holds; empty for -1."""
        return self.names.get(str(int(token)), "")

    @property
    def n_layers(self) -> int:
        """Blocks of the model: the stream is decomposed before each and behind the last."""
        return int(self.parts.shape[0]) - 1

    @property
    def norm(self) -> Floats:
        """(layers + 1, sources) Euclidean norm of every part; NaN where a partial result has not got to."""
        return np.asarray(np.linalg.norm(self.parts, axis=-1))

    @property
    def norm_share(self) -> Floats:
        """(layers + 1, sources) each part's norm over the sum of all parts' norms at that layer, `bias` left out."""
        norm = self.norm
        total = np.nansum(norm, axis=1, keepdims=True)
        return np.asarray(norm / np.where(total > 0, total, 1))

    @property
    def bias_norm(self) -> Floats:
        """(layers + 1,) Euclidean norm of `bias`."""
        return np.asarray(np.linalg.norm(self.bias, axis=-1))

    def to_frame(self) -> pd.DataFrame:
        """One row per layer and token: layer, position, token, norm, share of the norms, and the lens where there is
        one."""
        import pandas as pd

        rows, sources = self.parts.shape[:2]
        layer, position = np.repeat(np.arange(rows), sources), np.tile(np.arange(sources), rows)
        table: dict[str, Any] = {
            "layer": layer,
            "position": position,
            "token": np.asarray(self.tokens, dtype=object)[position],
            "norm": self.norm.ravel(),
            "norm_share": self.norm_share.ravel(),
        }
        if self.top_token is not None and self.probability is not None:
            table["top_token"] = [self.token_text(int(token)) for token in self.top_token.ravel()]
            table["probability"] = self.probability.ravel()
        for name in ("target_logit", "target_probability"):
            if getattr(self, name) is not None:
                table[name] = getattr(self, name).ravel()
        return pd.DataFrame(table)


@record
class LogitShareResult(PromptResult):
    """One logit (or the difference of two) as a sum of what each token of the prompt brought.

    ``share.sum() + bias`` is `logit`, up to `error`. Source: Explainability in Large Language Models: Pathways to
    Refinement and Alignment (Luo 2024), section 4.1.1, Eqs 4.1 to 4.3, followed backwards from one logit.

    Example:
        >>> result = decompose_logit(model, "The Eiffel Tower is in the city of", " Paris", foil=" London")
        >>> bool(abs(result.share.sum() + result.bias - result.logit) < 1e-3)
        True
        >>> result.to_frame().nlargest(2, "share").round(1)
           position    token  share
        1         1   Eiffel   10.1
        2         2    Tower    1.6
    """

    share: Floats
    """(sources,) what each shown token brought, in logits; zero for tokens after `position`."""

    bias: float
    """What no shown token brought: biases of all layers, the final norm and the unembedding, and a BOS."""

    logit: float
    """The model's own logit of the target, minus that of the foil where there is one; before a soft cap (Gemma 2)."""

    error: float
    """|share.sum() + bias - logit| over the sum of the sizes of all shares."""

    position: int
    """The position whose next token is looked at, counted from 0."""

    target: int
    """Id of the token whose logit it is."""

    target_token: str
    """Its text."""

    foil: int | None = None
    """Id of the token that it is set against; None if none."""

    foil_token: str = ""
    """Its text."""

    bos: float | None = None
    """What of `bias` a beginning-of-sequence token brought; None where none was fed."""

    def __post_init__(self) -> None:
        super().__post_init__()
        sources = len(self.tokens)
        self.array("share", (sources,))
        if not 0 <= self.position < sources:
            raise ValueError(f"position must be in 0..{sources - 1} for {sources} tokens, got {self.position}")

    def to_frame(self) -> pd.DataFrame:
        """One row per token: position, token and share in logits."""
        import pandas as pd

        return pd.DataFrame(
            {"position": range(len(self.tokens)), "token": list(self.tokens), "share": np.asarray(self.share)}
        )
