"""The logit lens explorer: what each layer would predict at each position, of one model or two."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Annotated, Any, ClassVar

from interp_widgets.analysis._core.prompts import read_prompt, single_token
from interp_widgets.analysis.logit_lens import Cost, LogitLensResult, logit_lens, logit_lens_cost
from interp_widgets.figures.static import Scene
from interp_widgets.models import Model
from interp_widgets.renamed import renamed

from ..base import pair_view
from ..base.description import Description
from ..base.fields import Bounds, Share, field, hint_at
from ..base.prediction import Likeliest, PredictionPanel
from ..base.request import File, Request
from .cell_details import CellDetails
from .cells import COLOR_LABELS
from .lens_map import Drawing, LensMap
from .sentences import describe_prediction

LEAST_TOP = 10
"""Minimum number of top tokens computed per cell, so that shorter lists need no run."""


@renamed(reading="lens_layer")
class LogitLensExplorer(PredictionPanel):
    """What the model would say next if it stopped at a layer, for every layer and every position of a text.

    The map shows the likeliest next token of every layer and position, a word once for all layers in a row that say it;
    above each column stand the final word, which is the model's own prediction, and the layer from which on it is the
    likeliest. The colour is the probability of that final word, or its rank, or another of the `color` options. The
    charts follow a target through the layers at one position: its rank, its probability, and the layer's entropy. A
    dash marks the commit layer, from which on the likeliest token never changes, a cross interference: the target was
    the likeliest and is lost. Cells that say the token just read are grey.

    ``LogitLensExplorer(model)``, ``(base, tuned)``, ``(pair)`` or, to share prompt and selection with other widgets,
    ``(workbench)``. Every trait below is a keyword too. `run()` computes and returns the :class:`LogitLensResult` (a
    pair for two models), which `result` keeps.

    Source: Explainability in Large Language Models: Pathways to Refinement and Alignment (Luo 2024), section 4.1.1,
    Figs 4.1 and 4.2, appendix B.1; tuned lens: Eliciting Latent Predictions from Transformers with the Tuned Lens
    (Belrose et al. 2023).

    Example:
        >>> panel = LogitLensExplorer(model, prompt="The Eiffel Tower is in the city of", target=" Paris")
        >>> panel.run().target_rank[1:, -1]
        array([0, 0, 0, 0, 0, 0])
        >>> panel.close()
    """

    title: ClassVar[str] = "Logit lens"
    pair_views = ("difference", "beside")
    color = field(
        COLOR_LABELS, "final_probability", label="Colour", redraws=True, new_row=True, help="Quantity shown as colour"
    )
    threshold = field(
        Share, 0.2, label="Labels from", redraws=True,
        help="Minimum probability for the likeliest token to be written into its cell",
    )  # fmt: skip
    top = field(
        Annotated[int, Bounds(1, 50)], 10, label="Top k", width="short", more=True,
        help="Number of top tokens to list for the selected cell",
    )  # fmt: skip
    translators = field(
        str, label="Translators", placeholder="tuned-lens .safetensors", more=True, personal=True,
        help="Path of a file with one affine map per layer, for the tuned lens; empty: the logit lens",
    )  # fmt: skip
    position = field(Annotated[int, Bounds(low=-1)], -1, redraws=True, validated_by_result=True)
    """Selected column: a token of prompt and response, from 0 without a BOS; -1: the one before the predicted token."""
    lens_layer = field(Annotated[int, Bounds(low=-1)], -1, redraws=True, validated_by_result=True, linked="layer")
    """Selected row: the stream entering that layer, `n_layers` for the model's output; -1 for the output."""

    def __init__(self, model: Model, tuned: Any = None, **options: Any) -> None:
        self.n_prompt_tokens = 0
        """Columns of the map that are tokens of the prompt; the rest are the response's."""
        super().__init__(model, tuned, **options)

    # what the panel asks for ------------------------------------------------------------------------------------------

    def build(self) -> None:
        self.inputs.children = [*self.text_inputs(), *self.controls.rows()]
        self.map = LensMap(self, self.select_cell)
        self.about = CellDetails(self, self.map.maps, self.follow)
        self.arrange(
            self.map.parts,
            self.about.parts,
            below=[self.map.key],
            beside=self.about.listed,
            width=320 if len(self.models) == 1 else 460,
        )
        if self.position < 0 and self.response_token < 0:
            self.position = self.prompt_token
        self.watch(self, ["prompt", "response", "response_token"], self._forget_position)
        self.watch(self, "prompt_token", self._prompt_token_linked)

    def request(self) -> Request:
        prediction, model = self.prediction(), self.models[0]
        target = prediction.read(model)[1]
        what = "prompt with its response" if prediction.response else "prompt"
        with hint_at("response" if prediction.response else "prompt"):
            read_prompt(model, prediction.texts.read_by(model), what=what)
        if target is not None:
            with hint_at("target"):
                single_token(model, target)
        with hint_at("translators"):
            translators = translators_at(self.translators.strip())
        arguments = {
            # the response's own token by its id, so that another selected position is the same request
            "target": Likeliest.after(prediction.texts, self.models) if target is None else target,
            "top": min(max(self.top, LEAST_TOP), model.d_vocab),
            "translators": translators,
        }
        return Request.of(logit_lens, arguments, prediction.texts)

    def cost(self, request: Request, model: Model) -> Cost:
        return logit_lens_cost(model, len(request.inputs[0].read_by(model)))

    def draw(self, results: tuple[LogitLensResult, ...], request: Request) -> None:
        texts = request.inputs[0]
        prompt, _ = self.models[0].split(texts.prompt, texts.response)
        self.n_prompt_tokens = len(prompt) - (results[0].bos_id is not None)
        self.widen_map(results[0].n_positions)
        cell = self.cell
        self.map.paint(Drawing(self.color, self.threshold, self.n_prompt_tokens), self.lens_layer, cell[1])
        self.about.paint(cell, self.top)

    def describe_selection(self) -> Description | None:
        if not self.results:
            return None
        starts = pair_view.all_starts(self.results)
        column = self.cell[1]
        lines = (
            f"{start}{describe_prediction(result, column)}" for start, result in zip(starts, self.results, strict=True)
        )
        return Description(self.title, tuple(lines))

    def choices(self) -> Mapping[str, tuple[int | Collection[str], str]]:
        columns, last = self.results[0].n_positions, max(result.n_layers for result in self.results)
        return {
            "prompt_token": (self.n_prompt_tokens, "the tokens of this prompt"),
            "position": (columns, "the tokens of prompt and response"),
            "lens_layer": (last + 1, "the layers and the output, which comes last"),
        }

    # what is saved ----------------------------------------------------------------------------------------------------

    def code(self, request: Request) -> str:
        arguments = dict(request.arguments)
        if isinstance(arguments["target"], Likeliest) and self.shown_request == request:
            arguments["target"] = self.results[-1].target
        if isinstance(arguments["target"], int):
            arguments["target"] = token_text(self.models[0], arguments["target"]) or arguments["target"]
        return Request.of(logit_lens, arguments, *request.inputs).code(self.models, "result.to_frame()")

    def table_of(self, result: LogitLensResult) -> Any:
        return result.to_frame().assign(target=result.target_token)

    def scene(self) -> Scene:
        return self.map.maps.scene()

    # selection --------------------------------------------------------------------------------------------------------

    @property
    def shown_results(self) -> tuple[LogitLensResult, ...]:
        """The results that the view shows: one, or both."""
        return tuple(self.results[index] for index in pair_view.shown_indices(self))

    @property
    def cell(self) -> tuple[int, int]:
        """Row and column of the selected cell of the map."""
        last, count = self.shown_results[-1].n_layers, self.shown_results[-1].n_positions
        column = self.position
        if not 0 <= column < count:
            ahead = max(self.response_token, 0) if self.n_prompt_tokens < count else 0
            column = min(max(self.n_prompt_tokens - 1 + ahead, 0), count - 1)
        return (self.lens_layer if 0 <= self.lens_layer <= last else last), column

    def select_cell(self, row: int, column: int) -> None:
        """Select a cell of the map, -1 for the model's output and for the position before the predicted token.

        Panels on the same workbench follow to the layer, and to the prompt token or the response token predicted there.
        """
        target = self.target
        with self.batch_changes():
            ahead = column - self.n_prompt_tokens + 1  # the response token that is predicted in this column
            if self.results and 0 <= ahead < self.results[0].n_positions - self.n_prompt_tokens:
                self.response_token = ahead
            if 0 <= column < self.n_prompt_tokens:
                self.prompt_token = column
            self.lens_layer, self.position, self.target = row, column, target  # a new selection keeps the target
        self.redraw()

    def follow(self, token: int) -> None:
        """Make a token the target; ValueError if its text alone is tokenized differently (part of a character)."""
        text = token_text(self.models[0], token)
        if text is None:
            shown = self.models[0].token_strings([token])[0]
            raise ValueError(f"the token {shown!r} cannot be the target: its text alone is tokenized differently")
        self.target = text

    def _forget_position(self, _: Any) -> None:
        """Return to the position of the predicted token when the texts or that token change."""
        self.position = -1

    def _prompt_token_linked(self, change: Any) -> None:
        if change.new >= 0:
            self.position = change.new
        elif self.position == change.old:
            self.position = -1


def translators_at(path: str) -> File | None:
    """The file of translators at a path; None for no path, FileNotFoundError if there is no such file."""
    if not path:
        return None
    try:
        return File.at(path)
    except OSError as error:
        raise FileNotFoundError(
            f"there is no file of translators at {path}: check the path, or clear the box to use the logit lens"
        ) from error


def token_text(model: Model, token: int) -> str | None:
    """The text that is tokenized as just this token; None if there is none, as for part of a character."""
    text: str = model.token_strings([token])[0]
    try:
        return text if single_token(model, text) == token else None
    except ValueError:
        return None
