"""The list of ablations, and text that the model writes with and without them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import ipywidgets as W

from interp_widgets.analysis.ablation import ablation
from interp_widgets.models import Model

from ..base import tidy
from ..base.controls import row
from .ablation_spec import AblationSpec
from .texts import Texts, Written

if TYPE_CHECKING:
    from .panel import AblationPanel

EMPTY = "The list is empty: click a cell of a map, then <i>Add to the list</i>."


class Line:
    """One ablation of the list: a checkbox with its name, where it acts, and a button that takes it out."""

    def __init__(self, stack: Stack, spec: AblationSpec) -> None:
        self.stack, self.picked = stack, spec
        panel = stack.panel
        self.on = W.Checkbox(value=True, indent=False)
        self.place = W.Dropdown(options=[("at every token", True)], disabled=spec.position is None)
        self.everywhere = spec.position is None
        remove = W.Button(description="Remove", tooltip="Take it out of the list")
        panel.on_click(remove, lambda: stack.remove(self))
        panel.watch(self.on, "value", lambda _: stack.count())
        panel.watch(self.place, "value", self._placed)
        self.box = row(self.on, self.place, remove)
        self.box.add_class("iw-line")
        self._naming = False
        self.name()

    def name(self) -> None:
        """Say which part it is and where, in the tokens of the prompt."""
        spec, tokens = self.picked, self.stack.panel.axis
        self.on.description = f"{spec.part()}, {spec.replaced_by()}"
        if spec.position is None:
            return
        self._naming = True
        try:
            self.place.options = [(spec.place(tokens), False), ("at every token", True)]
            self.place.value = self.everywhere
        finally:
            self._naming = False

    def _placed(self, change: Any) -> None:
        if not self._naming:
            self.everywhere = bool(change.new)

    @property
    def spec(self) -> AblationSpec:
        """The ablation as it stands in the list."""
        return self.picked.everywhere() if self.everywhere else self.picked


class Stack:
    """The list and the texts."""

    def __init__(self, panel: AblationPanel) -> None:
        self.panel = panel
        self.lines: list[Line] = []
        self.about = W.HTML(EMPTY)
        self.list = W.VBox()
        self.list.add_class("iw-column")
        self.button = panel.on_click(
            W.Button(
                description="Generate with these", disabled=True,
                tooltip="Text as it is, beside text under the checked ablations",
            ),
            lambda: self.generate(self.checked),
        )  # fmt: skip
        self.box = W.VBox([W.HTML("<b>Ablations together</b>"), self.about, self.list,
                           *panel.controls.rows("writing", before={"max_new_tokens": [self.button]})])  # fmt: skip
        self.box.add_class("iw-column")
        self.box.add_class("iw-grow")
        self.texts = Texts()

    # the list ---------------------------------------------------------------------------------------------------------

    @property
    def checked(self) -> list[AblationSpec]:
        """The ablations that are switched on."""
        return [line.spec for line in self.lines if line.on.value]

    def add(self, spec: AblationSpec) -> None:
        """Put an ablation at the end of the list; ValueError if it is there already."""
        if any(line.picked == spec for line in self.lines):
            raise ValueError(f"{spec.describe(self.panel.axis)}, is in the list already")
        self.lines = [*self.lines, Line(self, spec)]
        self._listed()

    def remove(self, line: Line) -> None:
        """Take a line out of the list."""
        self.lines = [one for one in self.lines if one is not line]
        self._listed()
        tidy.close_tree(line.box)
        tidy.close_one(line.box)

    def _listed(self) -> None:
        self.list.children = [line.box for line in self.lines]
        self.count()

    def count(self) -> None:
        """Say how many are switched on."""
        on, total = len(self.checked), len(self.lines)
        self.button.disabled = not on
        self.about.value = f"{on} of {total} switched on." if total else EMPTY

    def renamed(self) -> None:
        """Other tokens stand at the positions of the list; texts of another prompt go."""
        for line in self.lines:
            line.name()
        self.texts.clear()

    # writing ----------------------------------------------------------------------------------------------------------

    def generate(self, specs: Sequence[AblationSpec]) -> None:
        """Let the models that are looked at go on writing, as they are and with ablations, in the background."""
        panel = self.panel
        if not specs:
            raise ValueError("no ablation is switched on: add some to the list and check them")
        prediction, models, names = panel.prediction(), panel.looked_at, panel.names
        count = panel.max_new_tokens
        options = {"max_new_tokens": count, "temperature": panel.temperature, "seed": panel.seed}

        def work(job: Any) -> list[Written]:
            found = []
            for index, model in enumerate(models):
                ids = prediction.read(model)[0]
                made = [one.make(model, prediction, ahead=count, check=job.check) for one in specs]
                plain, ablated = (
                    _write(model, ids, ablations, options, job, (2 * index + number) * count, 2 * count * len(models))
                    for number, ablations in enumerate(([], made))
                )
                found.append(Written(plain, ablated, model.token_strings(plain), model.token_strings(ablated)))
            return found

        def done(found: list[Written]) -> None:
            if prediction == panel.prediction():
                self.texts.show(found, names, specs, panel.axis)

        panel.start(work, done, title="Writing", channel="write with")


def _write(
    model: Model, ids: list[int], ablations: list[Any], options: dict[str, Any], job: Any, done: int, steps: int
) -> tuple[int, ...]:
    """Token ids that the model writes behind ``ids`` under some ablations."""
    new: list[int] = []

    def told(token: int) -> None:
        new.append(token)
        job.progress(done + len(new), steps)

    with ablation(model, ablations):
        return tuple(model.generate_ids(ids, **options, check=job.check, on_token=told))
