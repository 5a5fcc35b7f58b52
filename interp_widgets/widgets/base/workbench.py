"""What the panels on a model share: prompt, response and the selected token, layer, head and neuron."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from typing import Any

import traitlets as T

from interp_widgets.analysis._core.prompts import read_prompt
from interp_widgets.models import Model, ModelEdit
from interp_widgets.models.pair import distinct_names

from .controls import Number, Typed, Whole, Worded
from .fields import Bounds, fields_of
from .guard import handling

SELECTED = ("prompt", "response", "prompt_token", "response_token", "layer", "head", "neuron")
"""The selection."""
SHARED = (*SELECTED, "live_seconds")
"""Traits that a panel shares with its workbench if it has them."""

LIVE_SECONDS = 10.0
"""Default budget for recomputing after a change, in seconds."""
FREE_SECONDS = 2.0
"""Seconds that a closing panel waits for a model that is computing with its edit."""
_BOUNDS = {"layer": "n_layers", "head": "n_heads", "neuron": "d_mlp"}


class WorkbenchState(Worded):
    """One model, or a base model and its tuned version, and the selection shared by all panels opened on it.

    A change in one panel shows in all the others. Raises ValueError if the two models have different vocabularies, or a
    layer, head or neuron that the model does not have is chosen.
    """

    prompt = Typed("")
    """The prompt."""
    response = Typed("")
    """The response; empty if there is none yet."""
    prompt_token = Whole(-1, min=-1)
    """Position of the selected prompt token, counted from 0 without the BOS; -1 if none is."""
    response_token = Whole(-1, min=-1)
    """Position of the selected response token, counted from 0; -1 if none is."""
    layer = Whole(0, min=0)
    """The selected layer."""
    head = Whole(0, min=0)
    """The selected head of that layer."""
    neuron = Whole(0, min=0)
    """The selected MLP neuron of that layer."""
    live_seconds = Number(LIVE_SECONDS, min=0.0)
    """Budget in seconds: a change forecast to take no longer is computed without pressing Run."""

    def __init__(self, model: Model, tuned: Any = None, **traits: Any) -> None:
        unknown = sorted(set(traits) - set(SHARED))
        if unknown:
            raise TypeError(
                f"{type(self).__name__} got an unknown keyword {unknown[0]!r}; allowed: {', '.join(SHARED)}"
            )
        self.models = as_models(model, tuned)
        """The model, or the base model and the tuned one; none once it is closed with its last panel or its cell."""
        self.ends_with_panels = False
        """Whether it lets the models go with the last panel: it is one panel's own, or its cell has made another."""
        self._panels: list[Any] = []
        self._pushing: set[str] = set()
        self._refused: dict[str, Any] = {}
        self._given: set[str] = set(traits)
        self._started: set[str] = set()
        self._leads = True  # a change moves the linked rows and columns
        self._undo: list[Callable[[], None]] = []
        self.edits: tuple[ModelEdit, ...] = ()
        """The edits applied to the models, one per model; empty while they are unedited."""
        super().__init__(**traits)
        self.observe(self._changed, SHARED)

    @property
    def panels(self) -> tuple[Any, ...]:
        """The open panels."""
        return tuple(self._panels)

    @property
    def given(self) -> frozenset[str]:
        """Shared traits that have been set by the user or by a panel, open or closed."""
        return frozenset(self._given)

    @property
    def chosen(self) -> frozenset[str]:
        """Those of them that the user, a session or a click in a panel has set: not the start values of panels."""
        return frozenset(self._given - self._started)

    def select(self, **values: Any) -> None:
        """Change several shared traits together: every panel responds once.

        Raises TypeError for a name that is not shared.
        """
        unknown = sorted(set(values) - set(SHARED))
        if unknown:
            raise TypeError(f"a workbench does not share {unknown[0]!r}; it shares: {', '.join(SHARED)}")
        with handling(), ExitStack() as stack:
            for panel in self._panels:
                stack.enter_context(panel.batch_changes())
            for name, value in values.items():
                setattr(self, name, value)
                self._given.add(name)
                self._started.discard(name)

    def open_on(self, **values: Any) -> None:
        """Start values that follow from the first result of a panel: panels take them over, but nobody chose them, so
        that no row or column that is linked to one moves."""
        self._leads = False
        try:
            self.select(**values)
        finally:
            self._leads = True
        self._started.update(values)

    def join(self, panel: Any, given: Iterable[str] = (), usual: Iterable[str] = ()) -> None:
        """Link a panel or a stack: the values it was `given` apply to all, for the others it takes the shared ones.
        Those of them that are `usual` are its start values, which nobody chose."""
        names = [name for name in SHARED if panel.has_trait(name)]
        for name in names:
            if name in given:
                self._take(panel, name)
                (self._started.add if name in usual else self._started.discard)(name)
            elif name in self._given:
                panel.set_trait(name, getattr(self, name))
        self._panels.append(panel)
        panel.observe(self._panel_changed, [*names, *_links(panel)])

    def start(self, panel: Any, names: Iterable[str] = SELECTED) -> None:
        """Adopt a panel's start values for traits that have not been set, and link its own options."""
        for name in names:
            if name in SELECTED and panel.has_trait(name) and name not in self._given:
                self._take(panel, name)
                self._started.add(name)
        for own, name in _links(panel).items():
            value = getattr(panel, own)
            if value < 0 and name in self.chosen and getattr(self, name) > self.traits()[name].min:
                self._lead(panel, own, name)
            elif value == self._part(name, value):
                self._move(name, value)

    def _take(self, panel: Any, name: str) -> None:
        setattr(self, name, getattr(panel, name))
        self._given.add(name)

    def put_edits(self, edits: Sequence[ModelEdit]) -> None:
        """Replace the models' edits by these, one per model; none: restore the models.

        Applies to all threads. Call it in the worker, since it waits for the models, then `notify_panels` to update the
        panels. Raises ValueError for an edit that was made for another model; then the edits stay unchanged.
        """
        with ExitStack() as stack:
            for model in sorted(self.models, key=id):  # two workbenches on the same models must not wait for each other
                stack.enter_context(model.lock)
            before = self.edits
            self._put_edits(())
            try:
                self._put_edits(edits)
            except ValueError:
                self._put_edits(before)
                raise

    def _put_edits(self, edits: Sequence[ModelEdit]) -> None:
        for back in reversed(self._undo):
            back()
        self._undo, self.edits = [], ()
        for model, edit in zip(self.models, edits, strict=False):
            try:
                self._undo.append(edit.apply(model))
            except ValueError:
                self._put_edits(())
                raise
        self.edits = tuple(edits)

    def end_edits(self) -> None:
        """Undo the edits as soon as the models are idle; for a panel that is closed."""
        undo = threading.Thread(target=self.put_edits, args=((),), name="interp-widgets undo")
        undo.start()
        undo.join(FREE_SECONDS)  # not for long: the run may be waiting for this thread to draw
        self.notify_panels()

    def notify_panels(self) -> None:
        """Notify the panels that the edits have changed, so that they recompute."""
        with handling():
            for panel in self.panels:
                panel.models_edited()

    def leave(self, panel: Any) -> None:
        """Unlink a panel; `Panel.close` does this."""
        if panel in self._panels:
            self._panels.remove(panel)
            panel.unobserve(self._panel_changed, [*(name for name in SHARED if panel.has_trait(name)), *_links(panel)])
            self._let_go()

    def replaced(self) -> None:
        """Called when its cell is run again and makes another."""
        self.ends_with_panels = True
        self._let_go()

    def _let_go(self) -> None:
        if self.ends_with_panels and not self._panels:
            self.models = ()

    def refused(self, name: str, kept: Any) -> None:
        """Reset a shared value for all panels because one of them refused it."""
        if name in self._pushing:
            self._refused[name] = kept

    def close(self) -> None:
        """Close all panels."""
        for panel in self.panels:
            panel.close()

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(distinct_names(self.models))})"

    @T.validate("layer", "head", "neuron")
    def _in_model(self, proposal: Any) -> int:
        return _checked(self.models, proposal.trait.name, int(proposal.value))

    def _panel_changed(self, change: Any) -> None:
        with handling():
            name = _links(change.owner).get(change.name, change.name)
            if name in self._pushing:
                return
            value = getattr(change.owner, change.name)  # it may have changed again since
            try:
                if name == change.name:
                    setattr(self, name, value)
                else:
                    self._move(name, value)
            except T.TraitError as error:
                change.owner.show_error(error)

    def _changed(self, change: Any) -> None:
        with handling():
            self._given.add(change.name)
            self._started.discard(change.name)
            self._pushing.add(change.name)
            try:
                for panel in self.panels:
                    self._push(panel, change.name, getattr(self, change.name))
                    for own, name in _links(panel).items():
                        if name == change.name and self._leads:
                            self._lead(panel, own, name)
            finally:
                self._pushing.discard(change.name)
            if change.name in self._refused:
                setattr(self, change.name, self._refused.pop(change.name))

    def _push(self, panel: Any, name: str, value: Any) -> None:
        """Set a panel's trait; a refusal is shown there and must not keep the value from the other panels."""
        if not panel.has_trait(name) or getattr(panel, name) == value:
            return
        try:
            panel.set_trait(name, value)
        except T.TraitError as error:
            panel.show_error(error)

    # the options of panels that are linked to a shared one ------------------------------------------------------------

    def _part(self, name: str, value: int) -> int:
        """What a panel's own row or column selects: behind the last layer the last one, behind the prompt no token."""
        if name in _BOUNDS:
            return min(value, getattr(self.models[0], _BOUNDS[name]) - 1)
        try:
            return value if value < read_prompt(self.models[0], self.prompt).n_shown else -1
        except ValueError:
            return -1  # the panels' requests report what is wrong with the prompt

    def _move(self, name: str, value: int) -> None:
        """Select what a panel's own row or column selects; there is always a layer, so that no row leaves it."""
        if (part := self._part(name, value)) >= self.traits()[name].min:
            setattr(self, name, part)

    def _lead(self, panel: Any, own: str, name: str) -> None:
        """Move a panel's own row or column to what is selected, unless it selects that already."""
        part = self._part(name, getattr(self, name))
        if self._part(name, getattr(panel, own)) != part:
            self._push(panel, own, part)


def _links(panel: Any) -> dict[str, str]:
    """The options of a panel that are linked to a shared one, and to which."""
    return {name: option.linked for name, option in fields_of(panel).items() if option.linked}


def in_model() -> Any:
    """A trait of a panel for a layer, head or neuron of its (first) model; with `field`, an option with its control.

    >>> from interp_widgets.widgets.base.fields import field
    >>> class Options(T.HasTraits):
    ...     layer = field(in_model(), label="Layer")
    """
    return _InModel(0, min=0)


class _InModel(Whole):
    @property
    def extras(self) -> tuple[Bounds]:
        """Of a field: the control goes up to the last one that all models have."""
        return (Bounds(0, self._last, slider=True),)

    def _last(self, panel: Any) -> int:
        return min(int(getattr(model, _BOUNDS[str(self.name)])) for model in panel.models) - 1

    def validate(self, obj: Any, value: Any) -> int:
        if isinstance(value, int):
            _checked(obj.models, str(self.name), value)  # before other limits: this one names the model
        return _checked(obj.models, str(self.name), super().validate(obj, value))


def _checked(models: Sequence[Any], name: str, value: int) -> int:
    """A layer, head or neuron; TraitError if the first model does not have it."""
    size = getattr(models[0], _BOUNDS[name], None) if models else None
    if isinstance(size, int) and not 0 <= value < size:
        raise T.TraitError(f"{name} must be in 0..{size - 1} for {model_name(models[0])}, got {value}")
    return value


def model_name(model: Model) -> str:
    """The name of a model."""
    return distinct_names([model])[0]


def as_models(model: Model, tuned: Any = None) -> tuple[Any, ...]:
    """The one or two models that a widget was opened on: a model, two models, a pair or a workbench.

    Raises TypeError if there is no model in it, and ValueError for two different vocabularies.
    """
    if isinstance(model, WorkbenchState):
        if tuned is not None:
            raise TypeError("a workbench has its models already: open it as Workbench(model, tuned)")
        return model.models
    if hasattr(model, "base") and hasattr(model, "tuned"):
        if tuned is not None:
            raise TypeError("a model pair has its tuned model already: leave the second model out")
        return (model.base, model.tuned)
    for each in (model,) if tuned is None else (model, tuned):
        if not (isinstance(getattr(each, "name", None), str) and (hasattr(each, "device") or hasattr(each, "backend"))):
            raise TypeError(f"a widget needs a loaded model, got {each!r}: use load_model(...) or load_demo_pair()")
    if tuned is None:
        return (model,)
    from ...models import ModelPair

    pair = ModelPair(model, tuned)
    return (pair.base, pair.tuned)
