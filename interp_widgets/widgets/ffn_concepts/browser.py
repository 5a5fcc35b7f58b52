"""The FFN concept browser: what MLPs write, as words; their neurons on a prompt; and what tuning turned."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping
from typing import Annotated, Any, ClassVar, cast

import ipywidgets as W
import traitlets as T

from interp_widgets.analysis._core.prompts import read_prompt
from interp_widgets.analysis._core.result import Result
from interp_widgets.analysis.ffn_concepts import FFNConceptResult
from interp_widgets.figures.static import Scene
from interp_widgets.models import Model

from ..base.controls import Typed, shown_if
from ..base.fields import Bounds, field
from ..base.saved_result import opened_pair
from ..base.saving import as_one
from ..base.word_source import WordPanel
from ..base.workbench import in_model, model_name
from .comparison import ComparisonTab
from .concepts import ConceptsTab
from .labels import ANNOTATORS, SCOPES, SHARES, SIDES
from .neurons import NeuronsTab
from .noting import Noting
from .request import ConceptsRequest, NeuronsRequest
from .saved import SavedConcepts, SavedRequest
from .source import Request, source_code

TABS = ("concepts", "neurons", "comparison")
KEPT = 2**23
"""Numbers of directions that the result of a single model keeps, for a comparison later; two models keep theirs."""


class FFNConceptBrowser(WordPanel, Noting):
    """What a model's MLPs write: the main directions of their output weights as words, single neurons, and two models.

    *Concepts*: per layer the variance that its first components explain, and a table of components with the words
    along them; description, task scenarios and linguistic level are written into the table by the user, by rules, or
    by a language model at an endpoint. *Neurons*: activation and effect on a token's logit of a layer's neurons on a
    prompt, and the tokens that each one promotes. *Comparison* (two models): how far tuning turned the components, and
    what became of scenarios and levels.

    ``FFNConceptBrowser(model)``, ``(base, tuned)``, ``(pair)`` or, to share prompt, layer and neuron with other
    widgets, ``(workbench)``. In the place of a model a saved :class:`FFNConceptResult` may stand, or its path: then
    nothing is computed, and there are no neurons to watch. Every trait below is a keyword too. `run()` computes the tab
    that is looked at and returns its :class:`FFNConceptResult` or reading of the neurons (a pair of them with two
    models), which `result` keeps.

    Source: From Language Modeling to Instruction Following (Wu et al. 2024), section 5.2 and appendices D and E;
    Explainability in Large Language Models (Luo 2024), section 2.2.2 and appendix D.2.

    Example:
        >>> panel = FFNConceptBrowser(model, rank=20, layer=5)
        >>> panel.run().words(5, 6)[:4]
        ('sad', 'lonely', 'tired', 'lost')
        >>> panel.close()
    """

    title: ClassVar[str] = "FFN concepts"
    tab = field({name: name.title() for name in TABS}, "concepts")
    """The tab that is looked at: Run, Copy as code and Save are about it."""
    layer = field(
        Annotated[int, Bounds(0, lambda panel: max(min(model.n_layers for model in panel.models) - 1, 1), slider=True)],
        label="Layer", argument=None, live=True,
    )  # fmt: skip
    components = field(
        Annotated[int, Bounds(1, 10_000)], 20, label="Components", width="short", argument=None,
        help="How many of the first components are listed, annotated and compared",
        shown_if=lambda panel: panel.tab != "neurons",
    )  # fmt: skip
    sides = field(
        SIDES, "sides", label="Words of", argument=None, shown_if=lambda panel: panel.tab != "neurons",
        help="Which words of a component the table lists",
    )  # fmt: skip
    rank = field(
        Annotated[int, Bounds(1, 100_000)], 300, label="Rank", width="short", group="components",
        help="Components computed per layer; at most as many as the model has directions",
        shown_if=lambda panel: panel.asks_words,
    )  # fmt: skip
    top = field(
        Annotated[int, Bounds(1, 1000)], 15, label="Words each", width="short", group="components",
        help="Nearest words of a component, on either side", shown_if=lambda panel: panel.asks_words,
    )  # fmt: skip
    component = field(Annotated[int, Bounds(low=0)], chooses=True, argument=None)
    """The picked component."""
    search = field(
        str, label="Find a word", placeholder="as in the word list", group="search", argument=None,
        help="The components that have this word are listed",
    )  # fmt: skip
    scope = field(SCOPES, "layer", label="Annotate", group="annotating", argument=None, help="About which layers")
    annotator = field(ANNOTATORS, "rules", label="Annotator", group="annotating", argument=None, help="Who is asked")
    endpoint_model = field(
        str, label="Model", placeholder="its name at the endpoint", group="endpoint", argument=None,
        shown_if=lambda panel: panel.annotator == "endpoint", help="Name of the model at the endpoint",
    )  # fmt: skip
    base_url = field(
        str, label="Address", placeholder="http://localhost:8000/v1", group="endpoint", width="grow", argument=None,
        shown_if=lambda panel: panel.annotator == "endpoint",
        help="Address of the endpoint; empty: that of OpenAI's own variable, or OpenAI",
    )  # fmt: skip
    key_variable = Typed("OPENAI_API_KEY")
    """Name of the environment variable that holds the endpoint's key."""
    shares = field(
        SHARES, "level", label="By layer", group="comparison", argument=None,
        help="Whose shares the comparison draws by layer",
    )  # fmt: skip
    position = field(int, -1)
    """Token at which neurons are looked at, from 0 without a BOS or from the end."""
    neuron = in_model()
    """The picked neuron."""
    _neurons_at = field(int, -1)
    # the layer whose neurons are looked at; -1 on the other tabs, whose results hold all layers

    def __init__(self, model: Model, tuned: Any = None, **options: Any) -> None:
        self.neuron_told = "neuron" in options
        """Whether somebody has chosen a neuron."""
        self._picking = False
        model, tuned = opened_pair(model, tuned, SavedConcepts)
        paths = {name: os.fspath(value) for name, value in options.items() if isinstance(value, os.PathLike)}
        super().__init__(model, tuned, **{**options, **paths})

    @T.validate("layer")
    def _in_model(self, proposal: Any) -> int:
        most = max(model.n_layers for model in self.models) - 1
        if proposal.value > most:
            names = " and ".join(map(model_name, self.models))
            raise T.TraitError(f"layer must be in 0..{most} for {names}, got {proposal.value}")
        return int(proposal.value)

    # layout -----------------------------------------------------------------------------------------------------------

    def defaults(self, given: set[str]) -> dict[str, Any]:
        """Start at the last layer: what is read most easily as words is written last."""
        self.neuron_told = self.neuron_told or "neuron" in given
        found = super().defaults(given)
        return found if "layer" in given else found | {"layer": min(model.n_layers for model in self.models) - 1}

    def build(self) -> None:
        self._check_tab()
        self.inputs.children = [*self.controls.rows(), self._question(), self._prompt()]
        self.tabs_of: dict[str, Any] = {"concepts": ConceptsTab(self)}
        if self.saved:
            self.run_button.add_class("iw-hidden")
        else:
            self.tabs_of["neurons"] = NeuronsTab(self)
        self.comparing = ComparisonTab(self) if len(self.models) == 2 else None
        if self.comparing is not None:
            self.tabs_of["comparison"] = self.comparing
        names = list(self.tabs_of)
        self.tabs = W.Tab(
            [one.box for one in self.tabs_of.values()], titles=[name.title() for name in names],
            selected_index=names.index(self.tab),
        )  # fmt: skip
        self.plot.children = [self.tabs]
        self.watch(self.tabs, "selected_index", lambda change: setattr(self, "tab", names[change.new or 0]))
        self.watch(self, "tab", self._open_tab)
        self.watch(self, ["tab", "layer"], self._place_moved)
        self.watch(self, ["components", "sides"], lambda _: self._repaint())
        self.watch(self, "component", lambda _: self.concepts and self.tabs_of["concepts"].paint_picked())
        self.watch(self, "search", lambda _: self.concepts and self.tabs_of["concepts"].paint_search())
        self.watch(self, "neuron", self._neuron_linked)
        self.watch(self, "prompt_token", self._token_linked)
        self.watch(self, ["prompt", "response", "response_token"], lambda _: setattr(self, "position", -1))
        self.watch(self, "notes", lambda _: self.take_given())
        self._place_moved(None)

    def _question(self) -> Any:
        """What the components are computed of, in one row."""
        return self.controls.row("rank", "top", *(name for name, one in self.fields().items() if one.group == "words"))

    def _prompt(self) -> W.VBox:
        """The prompt on which neurons are watched."""
        box = W.VBox([] if self.saved else self.text_inputs())
        box.add_class("iw-column")
        self.watch(self, "tab", lambda _: shown_if(box, self.tab == "neurons"))
        shown_if(box, self.tab == "neurons")
        return box

    def _open_tab(self, _: Any) -> None:
        if self.tab in self.tabs_of:  # else the request that follows says what is wrong
            self.tabs.selected_index = list(self.tabs_of).index(self.tab)

    @property
    def saved(self) -> bool:
        """Whether saved results stand in the place of models."""
        return isinstance(self.models[0], SavedConcepts)

    def _check_tab(self) -> None:
        if self.tab == "neurons" and self.saved:
            raise ValueError("a saved result has no neurons to watch: open the browser on the model itself")
        if self.tab == "comparison" and len(self.models) < 2:
            raise ValueError("the comparison needs two models: open the browser as FFNConceptBrowser(base, tuned)")

    # what the panel asks for ------------------------------------------------------------------------------------------

    @property
    def asks_words(self) -> bool:
        """Neither of neurons nor of saved results, whose words are what they are."""
        return self.tab != "neurons" and not self.saved

    def request(self) -> Request:
        self._check_tab()
        if self.saved:
            return SavedRequest()
        if self.tab == "neurons":
            layers = min(model.n_layers for model in self.models)
            if self.layer >= layers:
                raise ValueError(f"layer must be in 0..{layers - 1} for these models, got {self.layer}")
            return NeuronsRequest(self.prediction(), self.layer, self.position).checked(self.models[0])
        numbers = max(min(self.rank, model.d_model) * model.d_model * model.n_layers for model in self.models)
        keep = len(self.models) == 2 or numbers <= KEPT
        return ConceptsRequest(self.words_asked_for(), self.rank, self.top, directions=keep)

    def choices(self) -> Mapping[str, tuple[int | Collection[str], str]]:
        found: dict[str, tuple[int | Collection[str], str]] = {}
        if self.concepts:
            count = min(one.rank for one in self.concepts)
            found["component"] = count, f"the {count} components computed"
        if self.tab == "neurons":
            found["prompt_token"] = self._in_prompt(), "the tokens of this prompt"
        return found

    def draw(self, results: tuple[Any, ...], request: Request) -> None:
        if isinstance(request, NeuronsRequest):
            self.tabs_of["neurons"].paint(results)
            return
        fresh = results != self.concepts
        self.concepts = results
        if fresh and not any(one.partial for one in results):  # while it computes, what notes lack would be lost
            self.take_given()
        self.repaint_concepts()

    # selection --------------------------------------------------------------------------------------------------------

    def pick_neuron(self, neuron: int) -> None:
        """Choose a neuron of the layer."""
        self.neuron_told = True
        if self.neuron == neuron:
            self._repaint()
        self.neuron = neuron

    def pick_token(self, position: int) -> None:
        """Look at another token of what was read; letting go goes back to the last."""
        last = self._last
        self._picking = True
        try:
            with self.hold():
                self.position = -1 if position in (-1, last) else position
                self.prompt_token = position if 0 <= position < self._in_prompt() else -1
        finally:
            self._picking = False

    @property
    def _last(self) -> int:
        """Place of the last token that was read; -2 while nothing was."""
        return self.tabs_of["neurons"].last if "neurons" in self.tabs_of else -2

    def _in_prompt(self) -> int:
        """Tokens of the prompt itself, a BOS left out."""
        try:
            given = read_prompt(self.models[0], self.prompt)
        except ValueError:
            return 0
        return given.n_shown

    def _token_linked(self, change: Any) -> None:
        """A prompt token chosen elsewhere is the one to look at."""
        if not self._picking:
            last = self._last
            self.position = -1 if change.new in (-1, last) else change.new

    def _neuron_linked(self, _: Any) -> None:
        self.neuron_told = True
        if self.tab == "neurons" and not self.saved:
            self.tabs_of["neurons"].paint_selection()

    def _place_moved(self, change: Any) -> None:
        """Another layer: other neurons have to be run, components of all layers are there."""
        self._neurons_at = self.layer if self.tab == "neurons" else -1
        if change is not None and change.name == "layer":
            self._repaint()

    def _repaint(self) -> None:
        """Draw the held results again."""
        if self.tab == "neurons" and not self.saved:
            self.tabs_of["neurons"].paint_selection()
        elif self.concepts:
            self.repaint_concepts()

    def repaint_concepts(self) -> None:
        """Draw what depends on components and notes."""
        self.tabs_of["concepts"].paint()
        if self.comparing is not None:
            self.comparing.paint()

    @property
    def model_names(self) -> list[str]:
        """What the charts call the models."""
        letters = [""] if len(self.models) == 1 else ["A: ", "B: "]
        return [letter + model_name(model) for letter, model in zip(letters, self.models, strict=True)]

    # what is saved ----------------------------------------------------------------------------------------------------

    @property
    def drawn(self) -> Request | None:
        """What is on the screen; None before the first result."""
        return cast("Request | None", self.shown_request)

    def code(self, request: Request) -> str:
        return source_code(self, request)

    def frame(self) -> Any:
        import pandas as pd

        self._shown_on_tab()
        if self.tab == "comparison" and self.comparing is not None:
            return self.comparing.frame()
        frames = []
        for letter, result in zip("AB", self.results, strict=False):
            table = result.effects.to_frame() if self.tab == "neurons" else self._concept_frame(letter, result)
            table.insert(0, "model", letter)
            frames.append(table)
        return pd.concat(frames, ignore_index=True)

    def _concept_frame(self, letter: str, result: FFNConceptResult) -> Any:
        """Components with their notes."""
        table = result.to_frame()
        notes = self.notes_of(letter)
        held = [notes.get(cell) for cell in zip(table.layer.tolist(), table.component.tolist(), strict=True)]
        table["description"] = ["" if note is None else note.description for note in held]
        table["scenarios"] = ["" if note is None else ", ".join(note.scenarios) for note in held]
        table["level"] = ["" if note is None else note.level or "" for note in held]
        table["noted_by"] = ["" if note is None else note.source for note in held]
        return table

    def stored(self) -> Result:
        self._shown_on_tab()
        if self.tab == "comparison" and self.comparing is not None:
            return as_one({"components": self.comparing.result, "notes": self.comparing.annotated}, "Comparison")
        return as_one(
            {letter: one.effects if self.tab == "neurons" else one for letter, one in self.by_letter().items()}
        )

    def scene(self) -> Scene:
        self._shown_on_tab()
        return cast(Scene, self.tabs_of[self.tab].scene())

    def _shown_on_tab(self) -> None:
        self._check_tab()
        method = "neurons" if self.tab == "neurons" else "concepts"
        if self.drawn is None or self.drawn.method != method:
            raise ValueError(f"there is nothing to save on the tab {self.tab.title()} yet: press Run first")
