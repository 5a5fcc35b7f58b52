"""The options, results and selection of the token decomposition, which its map and its details read."""

from __future__ import annotations

from typing import Annotated, Any

from interp_widgets.models import Model

from ..base import pair_view
from ..base.fields import Bounds, Share, field
from ..base.prediction import PredictionPanel
from .rows import COLOR_LABELS, Rows

BAR_LABELS = {"logit": "share of the final logit", "norm": "share of the norms at the last layer", "none": "none"}
BIASES_LABELS = {"separate": "a separate part", "spread": "spread over the tokens"}
LENS_LABELS = {"own": "each part by its own scale", "frozen": "all by the stream's scale"}


class DecompositionPanel(PredictionPanel):
    """Base of the token decomposition explorer: its options, the rows on the screen and the selected cell."""

    pair_views = ("difference", "beside")
    position = field(int, -1)
    """Token of the context whose residual stream is decomposed, from 0 without a BOS or from the end."""
    foil = field(
        str, label="Foil", placeholder="none", group="prediction", width="short",
        help="A token whose logit is subtracted from the target's: what favours the target over the foil",
    )  # fmt: skip
    biases = field(
        BIASES_LABELS, "separate", label="Biases", more=True,
        help="Biases form a separate part, or are spread over the tokens' parts in proportion to their norms",
    )  # fmt: skip
    lens = field(
        LENS_LABELS, "own", label="Lens", more=True,
        help="The scale of the final norm when a part is read alone: the part's own, or the whole stream's",
    )  # fmt: skip
    share_draws = field(
        Annotated[int, Bounds(0, 1999)], 0, label="Random tokens", argument=None, more=True, width="short",
        help="Compare every token's share with its shares of the logits of so many random other tokens; 0: "
        "do not compare",
    )  # fmt: skip
    color = field(COLOR_LABELS, "target_logit", label="Colour", redraws=True, help="Quantity shown as colour")
    threshold = field(
        Share, 0.2, label="Labels from", redraws=True, more=True,
        help="Minimum probability for a part's top token to be written into its cell, if colours are probabilities",
    )  # fmt: skip
    bars = field(
        BAR_LABELS, "logit", label="Bars", redraws=True, more=True, help="Quantity shown by the bars beside the rows"
    )
    source = field(Annotated[int, Bounds(low=-1)], -1, selects=True, validated_by_result=True, linked="prompt_token")
    """The selected row: a source token, or after the last one the biases; -1 for none."""
    column = field(Annotated[int, Bounds(low=-1)], -1, selects=True, validated_by_result=True, linked="layer")
    """The selected column: the stream entering that layer, or with `n_layers` or -1 the final norm."""

    def __init__(self, model: Model, tuned: Any = None, **options: Any) -> None:
        self.rows: tuple[Rows, ...] = ()
        """The results on the screen as rows of the map, one per model."""
        super().__init__(model, tuned, **options)

    # the selection ----------------------------------------------------------------------------------------------------

    @property
    def shown_rows(self) -> tuple[Rows, ...]:
        """The results that the view shows: one, or both."""
        return tuple(self.rows[index] for index in pair_view.shown_indices(self))

    @property
    def at_column(self) -> int:
        """The column of tables and cursor."""
        last = self.shown_rows[-1].n_layers
        return last if self.column < 0 else min(self.column, last)

    def select(self, source: int, column: int) -> None:
        """Select a cell of the map."""
        with self.batch_changes():
            self.column, self.source = column, source
