"""The concept browser: directions of concepts, how good they are, and what can be read and done with them."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Annotated, Any, ClassVar, cast

import ipywidgets as W
import traitlets as T

from interp_widgets.analysis._core.result import Result
from interp_widgets.analysis.concepts import ConceptSet
from interp_widgets.data.concepts import demo_concepts
from interp_widgets.figures.static import Scene
from interp_widgets.models import Model

from ..base.controls import TypedList, row, shown_if
from ..base.fields import Bounds, Seed, Text, field
from ..base.saving import as_one
from .labels import MODE_LABELS, PAIR_LABELS, ROW_LABELS, SOLVER_LABELS
from .library import Library
from .listing import Listing
from .making import Making
from .map import MapTab
from .pair import PairTab
from .quality import QualityTab
from .read import ReadTab
from .request import BrowseRequest, MappedConcepts, OpenedSet
from .source import source
from .steer import SteerTab

PROMPT = "One day, the doctor in a red coat saw a"
CONCEPT = "lion"
"""The concept to start with, where there is one of this name."""
TITLES = {"map": "Map", "quality": "Quality", "read": "Read", "steer": "Steer", "compare": "Base and tuned"}
PARTS: dict[str, Any] = {"map": MapTab, "quality": QualityTab, "read": ReadTab, "steer": SteerTab, "compare": PairTab}
TABS = tuple(TITLES)


class ConceptBrowser(Making):
    """Directions of concepts in the residual stream: made from stimuli, tested, mapped, read off prompts, steered with.

    *Map*: near directions near each other; a click centres a concept and lists its nearest neighbours, the lasso
    selects many. *Quality*: how well each direction tells held-out stimuli, beside a shuffled control. *Read*: a
    prompt's tokens by their projection on concepts, and one token's state as a sum of few directions. *Steer*: what the
    model writes with a direction added or erased, beside a random direction. With two models, *Base and tuned*:
    dispersion, and the concepts that moved most.

    ``ConceptBrowser(model)``, ``(base, tuned)``, ``(pair)`` or, to share prompt, token and layer with other widgets,
    ``(workbench)``. Every trait below is a keyword too. `run()` makes the directions and returns
    :class:`MappedConcepts` (a pair of them with two models), which `result` keeps: `.concepts` is the `ConceptSet`,
    `.map` the `ConceptMap`.

    Source: Representation Engineering (Zou et al. 2023), section 3.1; Explainability in Large Language Models: Pathways
    to Refinement and Alignment (Luo 2024), section 4.1.2.

    Example:
        >>> panel = ConceptBrowser(model, concept="Paris", layer=3)
        >>> panel.layer, panel.concept
        (3, 'Paris')
        >>> panel.close()
    """

    title: ClassVar[str] = "Concepts"

    concept = field(str, chooses=True, argument=None)
    """The concept that is looked at."""
    chosen = field(TypedList(), chooses=True, argument=None)
    """Concepts selected on the map."""
    search = field(
        str, label="Search", placeholder="name or group", live=True, group="list", argument=None,
        help="Concepts whose name or group holds this are listed",
    )  # fmt: skip
    tab = T.Enum(TABS, default_value="map")
    """The tab that is looked at."""
    prompt = field(
        Annotated[str, Text(2)], label="Prompt", group="prompt", width="grow", argument=None,
        help="What is read, and continued under steering",
    )  # fmt: skip
    prompt_token = T.Int(-1, min=-1)
    """The token of the prompt whose state is taken apart; -1 for the last."""
    in_template = field(
        bool, True, label="as a stimulus, in the template", group="read", argument=None,
        help="Directions were made at the template's last token: there they read best",
    )  # fmt: skip
    read_rows = field(
        ROW_LABELS, "strongest", label="Rows", group="read", argument=None, help="Which concepts the map shows"
    )
    solver = field(SOLVER_LABELS, "omp", label="Sum by", group="read", argument=None,
                   help="How a state is taken apart")  # fmt: skip
    n_concepts = field(
        Annotated[int, Bounds(1, 100)], 8, label="Concepts", width="short", group="read", argument=None,
        help="Concepts in that sum, and rows of the map of the prompt",
    )  # fmt: skip
    mode = field(MODE_LABELS, "add", label="Direction", group="steer", argument=None, help="What is done with it")
    strength = field(
        Annotated[float, Bounds(-10.0, 10.0, 0.25, slider=True, shown_as=".2f")], 1.0, label="α", group="steer",
        argument=None, live=False, shown_if=lambda panel: panel.mode == "add",
        help="How much is added, in units of the concept's gap; below 0 it steers away",
    )  # fmt: skip
    steer_from = T.Int(-1, min=-1)
    """The first stream that is changed; -1 for that of the directions."""
    steer_on = field(
        bool, label="and all later ones", group="steer", argument=None, help="Whether all later streams are changed too"
    )
    max_new_tokens = field(
        Annotated[int, Bounds(1, 4096)], 20, label="Most tokens", width="short", group="steer", argument=None,
        new_row=True, help="Most tokens that are written",
    )  # fmt: skip
    temperature = field(
        Annotated[float, Bounds(0.0, 10.0, 0.1)], 0.0, label="Temperature", width="short", group="steer",
        argument=None, help="0 writes the likeliest tokens, above 0 samples",
    )  # fmt: skip
    sample_seed = field(
        Seed, label="Seed", width="short", group="steer", argument=None, help="Seed of the sampling",
        shown_if=lambda panel: panel.temperature > 0,
    )  # fmt: skip
    control_seed = field(
        Seed, label="Random direction", width="short", group="steer", argument=None,
        help="Seed: another number, another direction",
    )  # fmt: skip
    pairs = field(PAIR_LABELS, "group", label="Distance between", group="compare", argument=None,
                  help="Which pairs of concepts dispersion is over")  # fmt: skip

    def __init__(self, model: Model, tuned: Any = None, **options: Any) -> None:
        self._wished, self._stand_in = CONCEPT, ""
        self._parts: dict[str, Any] = {}
        self.place: dict[str, int] = {}
        """Where each concept on the screen stands in its set and on the map."""
        super().__init__(model, tuned, **options)

    def defaults(self, given: set[str]) -> dict[str, Any]:
        found: dict[str, Any] = {} if "prompt" in given else {"prompt": PROMPT}
        return found if "concepts" in given else found | {"concepts": demo_concepts()}

    def choices(self) -> Mapping[str, tuple[int | Collection[str], str]]:
        there = self.place, f"the {len(self.place)} concepts here"
        return {"concept": there, "chosen": there}

    # layout -----------------------------------------------------------------------------------------------------------

    def build(self) -> None:
        if self.stream < 0:
            self.stream = self.layer or self.deepest // 2
        self.library = Library(self)
        more = W.ToggleButton(
            value=False, description="Add, open, save",
            tooltip="Concepts of your own, a folder, a saved set of directions",
        )  # fmt: skip
        self.watch(more, "value", lambda change: shown_if(self.library.box, change.new))
        shown_if(self.library.box, False)
        self.inputs.children = [*self.controls.rows(after={"map_method": [more]}), self.library.box]
        self.watch(self, "path", lambda _: self._fit_path())
        self._fit_path()
        self.listing = Listing(self)
        self._boxes = {name: W.VBox() for name in TABS[: 5 if len(self.models) > 1 else 4]}
        for box in self._boxes.values():
            box.add_class("iw-column")
        self.tabs = W.Tab(list(self._boxes.values()), titles=[TITLES[name] for name in self._boxes])
        self._open_tab()
        self.listing.box.layout.flex, self.tabs.layout.flex = "1 1 248px", "4 1 560px"
        both = row(self.listing.box, self.tabs)
        both.layout.align_items = "flex-start"
        self.plot.children = [both]
        self.watch(self.tabs, "selected_index", lambda change: setattr(self, "tab", list(self._boxes)[change.new or 0]))
        self.watch(self, "tab", lambda _: self._tab_opened())
        self.watch(self, "layer", self._layer_linked)
        self.watch(self, "stream", lambda change: setattr(self, "layer", min(change.new, self.models[0].n_layers - 1)))
        self.watch(self, "concept", lambda _: self._paint_concept())
        self.watch(self, "prompt", lambda _: setattr(self, "prompt_token", -1))

    def _fit_path(self) -> None:
        """An opened set says its own layer and method."""
        for name in ("stream", "method"):
            self.controls[name].disabled = bool(self.path)

    def _open_tab(self) -> None:
        if self.tab not in self._boxes:
            self.tab = "map"
        self.part(self.tab)
        self.tabs.selected_index = list(self._boxes).index(self.tab)

    def part(self, name: str) -> Any:
        """What a tab shows, made when it is first opened: a page with many views takes long to start."""
        if name not in self._parts:
            made = self._parts[name] = PARTS[name](self)
            self._boxes[name].children = [made.box]
        return self._parts[name]

    @property
    def map(self) -> MapTab:
        """The tab of the map."""
        return cast(MapTab, self.part("map"))

    @property
    def quality(self) -> QualityTab:
        """The tab of the AUCs."""
        return cast(QualityTab, self.part("quality"))

    @property
    def read(self) -> ReadTab:
        """The tab that reads the prompt."""
        return cast(ReadTab, self.part("read"))

    @property
    def steer(self) -> SteerTab:
        """The tab that writes under steering."""
        return cast(SteerTab, self.part("steer"))

    @property
    def pair(self) -> PairTab:
        """The tab of two models."""
        return cast(PairTab, self.part("compare"))

    def _tab_opened(self) -> None:
        self._open_tab()
        if self.results:
            self.part(self.tab).paint()

    def _layer_linked(self, change: Any) -> None:
        if min(self.stream, self.models[0].n_layers - 1) != change.new:
            self.stream = change.new

    # drawing ----------------------------------------------------------------------------------------------------------

    def draw(self, results: tuple[MappedConcepts, ...], request: BrowseRequest) -> None:
        names = results[0].concepts.names
        self.place = {name: i for i, name in enumerate(names)}
        self._choose(names)
        if any(name not in self.place for name in self.chosen):
            self.chosen = [name for name in self.chosen if name in self.place]
        self.library.fit()
        self.listing.paint()
        self.part(self.tab).paint()

    def look_for(self, name: str) -> None:
        """Look at a concept as soon as there is one of this name."""
        if name in self._names():
            self.concept = name
        else:
            self._wished, self._stand_in = name, self.concept

    def _choose(self, names: Sequence[str]) -> None:
        """Look at a concept that there is; one that is wished for and missing from a draft is taken when it comes."""
        if self.concept in names and self.concept != self._stand_in:
            self._stand_in = ""
            return
        wished = self.concept if self._stand_in == "" and self.concept else self._wished
        if wished in names:
            self._stand_in, self.concept = "", wished
        elif self.concept not in names:
            self._wished, self._stand_in = wished, names[0]
            self.concept = names[0]

    def _paint_concept(self) -> None:
        if self.results:
            self.listing.mark()
            self.part(self.tab).paint_concept()

    @property
    def sets(self) -> tuple[ConceptSet, ...]:
        """The directions on the screen, one set per model."""
        return tuple(one.concepts for one in self.results)

    @property
    def at(self) -> tuple[int, ...]:
        """Which models the view shows: one, or both in a difference."""
        return (0, 1) if self.shown == "difference" else ("AB".index(self.shown),)

    @property
    def opened(self) -> bool:
        """Whether what is on the screen comes from a file."""
        return isinstance(getattr(self.shown_request, "source", None), OpenedSet)

    def name_of(self, index: int) -> str:
        """What to call a model: its letter, or nothing where there is only one."""
        return "" if len(self.models) == 1 else "AB"[index]

    # what is saved ----------------------------------------------------------------------------------------------------

    def code(self, request: BrowseRequest) -> str:
        return source(self, request)

    def frame(self) -> Any:
        import pandas as pd

        frames = []
        for letter, one in zip("AB", self.results, strict=False):
            table = one.concepts.to_frame()
            table.insert(0, "model", letter)
            frames.append(table)
        return pd.concat(frames, ignore_index=True)

    def stored(self) -> Result:
        """The directions on the tabs Map (with the map) and Quality, on the others what is shown there."""
        tab, parts = self.tab, dict[str, Any]()
        if tab in ("map", "quality"):
            for letter, one in self.by_letter().items():
                parts[letter or "concepts"] = one.concepts
                if tab == "map":
                    parts[f"{letter} map".strip()] = one.map
        else:
            parts = self.part(tab).stored()
        return as_one(parts, TITLES[tab])

    def scene(self) -> Scene:
        return self.map.scene()
