"""The concept browser: directions of concepts, their quality, reading a prompt along them, and steering."""

from __future__ import annotations

from html import escape
from typing import Any, ClassVar

import ipywidgets as W

from ..base import pair_view
from ..base.controls import row, shown_if
from ..base.fields import variant
from .compare import DirectionComparison
from .concept_stack import ConceptStack
from .direction_map import DirectionMap
from .directions import ConceptOptions, ConceptPanel
from .library import Library
from .quality import DirectionQuality
from .read import PromptReading
from .steer import Steering
from .table import MOST_LISTED, NO_MATCH, ConceptTable, matching, number


class ConceptBrowser(ConceptStack):
    """Directions of concepts in the residual stream: made from stimuli, tested, mapped, read in prompts, steered with.

    *Map*: similar directions near each other; a click centres a concept and lists its nearest neighbours, the lasso
    selects many. *Quality*: how well each direction separates held-out stimuli, against a shuffled control. *Read*: a
    prompt's tokens by their projection on concepts, and one token's state as a sparse sum of directions. *Steer*: what
    the model writes with a direction added or erased, against a random direction. With two models, *Base and tuned*:
    dispersion, and the concepts that moved most.

    ``ConceptBrowser(model)``, ``(base, tuned)``, ``(pair)`` or, to share prompt, token and layer with other widgets,
    ``(workbench)``. Every trait of its panels is a keyword too. `run()` computes the active tab and returns
    its result (a pair for two models), which `result` keeps: `.concepts` is the `ConceptSet`, and on the map
    `.map` the `ConceptMap`.

    Source: Representation Engineering (Zou et al. 2023), section 3.1; Explainability in Large Language Models: Pathways
    to Refinement and Alignment (Luo 2024), section 4.1.2.

    Example:
        >>> panel = ConceptBrowser(model, concept="Paris", layer=3)
        >>> panel.layer, panel.concept
        (3, 'Paris')
        >>> panel.close()
    """

    title = "Concepts"
    panels: ClassVar = {
        "map": DirectionMap, "quality": DirectionQuality, "read": PromptReading, "steer": Steering,
        "compare": DirectionComparison,
    }  # fmt: skip

    search = variant(
        ConceptOptions.search, label="Search", placeholder="name or group", live=True, group="list",
        help="List concepts whose name or group contains this",
    )  # fmt: skip

    def build(self) -> None:
        if self.stream < 0:
            self.stream = self.layer if self.layer or "layer" in self._start_values else self.deepest // 2
        self.watch(self, "layer", self._follow_layer)
        self.watch(self, "stream", lambda change: setattr(self, "layer", min(change.new, self.models[0].n_layers - 1)))
        self.watch(self, "prompt", lambda _: setattr(self, "prompt_token", -1))
        self.library, self.listing = Library(self), Listing(self)
        more = W.ToggleButton(
            value=False, description="Add, open, save",
            tooltip="Add your own concepts, open a folder or a saved set of directions",
        )  # fmt: skip
        self.watch(more, "value", lambda change: shown_if(self.library.box, change.new))
        shown_if(self.library.box, False)
        self.inputs.children = [*self.controls.rows("directions", after={"map_method": [more]}), self.library.box]
        beside = "1 1 248px" if self.screen is None else "1 1 100%"  # there the list is what is selected, at the side
        self.listing.box.layout.flex, self.tabs.layout.flex = beside, "4 1 560px"
        both = row(self.listing.box, self.tabs)
        # without room side by side, the tabs go above the list
        both.layout.flex_flow, both.layout.align_items = "row wrap-reverse", "flex-end"
        self.children = tuple(both if child is self.tabs else child for child in self.children)
        self.watch(self, ["concept", "concepts", "path", "search", "view", "tab"], self._say)
        self._say()

    def _make(self, name: str) -> None:
        super()._make(name)
        self.watch(self[name], "result", self._say)

    def _say(self, _: Any = None) -> None:
        """Update the selected concept beside the tabs, and the labels of the library's buttons."""
        self.listing.paint()
        self.library.fit()

    def _follow_layer(self, change: Any) -> None:
        if min(self.stream, self.models[0].n_layers - 1) != change.new:
            self.stream = change.new

    @property
    def hints(self) -> dict[str, str]:
        return {**super().hints, **self.library.hints}


class Listing:
    """The column beside the tabs: all concepts, with search; a click selects one."""

    def __init__(self, browser: ConceptBrowser) -> None:
        self.browser = browser
        self.table = ConceptTable(browser, empty="No concepts yet.", height=520)
        self.heading = W.HTML("")
        self.listed = W.VBox([self.table.view])
        self.box = W.VBox([self.heading, browser.controls["search"], self.listed])
        shown_if(self.heading, browser.screen is None)  # a screen shows it beside the panel
        for name in ("iw-column", "iw-side"):
            self.box.add_class(name)
        self._of: ConceptPanel | None = None
        """The panel whose directions are listed."""
        self._listed: tuple[Any, ...] = ()

    def paint(self) -> None:
        """List the matching concepts, and name the selected one, wherever the list is scrolled to."""
        if self._of is None or self.browser.sets:
            self._of = self.browser.current
        concept = self.browser.shown_concept
        shown_if(self.listed, self.browser.screen is None or bool(self.browser.search))  # space is short on a screen
        if self._of.sets:
            self._list(self._of, self.browser.search)
            kind = self._of.sets[0].groups[self._of.index_of[concept]] if concept in self._of.index_of else ""
            group = f" <span class='iw-hint'>{escape(kind)}</span>" if kind else ""
            self.heading.value = f"Concept: <b>{escape(concept)}</b>{group}"
        self.table.mark()

    def _list(self, panel: ConceptPanel, search: str) -> None:
        first, at, partial = panel.sets[0], pair_view.shown_indices(panel), panel.results[-1].partial
        listed_now = (panel.sets, at, search, partial)
        if listed_now == self._listed:
            return
        self._listed, self.table.view.empty = listed_now, NO_MATCH
        matches = matching(first, search)
        listed = matches[:MOST_LISTED]
        kinds = first.groups if len(at) == 1 else None  # two numbers replace the group
        heads: list[dict[str, Any]] = [{"label": "concept"}, *([{"label": "group"}] if kinds else [])]
        title = "AUC on held-out stimuli: how well the direction separates the concept's from others'"
        heads += [
            {"label": f"AUC {letter}".strip(), "align": "right", "title": title} for letter in pair_view.names(panel)
        ]
        rows = [
            [first.names[i], *([kinds[i]] if kinds else []), *(number(panel.sets[k].auc[i]) for k in at)]
            for i in listed
        ]
        caption = f"{len(first.names):,} concepts"
        if search:
            caption = f"{len(matches):,} of {caption}"
        if len(listed) < len(matches):
            caption += f", the first {len(listed)} listed: search"
        if partial:
            caption = f"{len(first.names):,} of {panel.results[-1].wanted:,} concepts so far"
        self.table.show([first.names[i] for i in listed], heads, rows, caption)
