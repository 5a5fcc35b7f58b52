"""`Workbench`: the models, and the selection that all panels on them share, as one screen."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from traitlets import TraitError

from ..base import lifetime
from ..base.saving import file_path
from ..base.workbench import WorkbenchState, as_models
from .entry_points import EntryPointPanels
from .screen import Screen
from .session import opened_models, present, read_session, unpacked
from .shown_tabs import ShownTabs


class Workbench(WorkbenchState):
    """One model, or a base model and its tuned version, on one screen: texts above, panels as tabs, side by side.

    As the last expression of a cell it is the screen: a click on a token, a layer or a head moves every panel on it.
    Panels can also be opened on it in cells of their own, ``SaliencyExplorer(bench)``, and follow too. Raises
    ValueError if the two models have different vocabularies, or a layer, head or neuron that the model does not have
    is chosen.

    Example:
        >>> bench = Workbench(model, prompt="The Eiffel Tower is in the city of")
        >>> lens, parts = LogitLensExplorer(bench), TokenDecompositionExplorer(bench)
        >>> bench.select(prompt="Paris is the capital of", layer=3)
        >>> lens.prompt, parts.prompt
        ('Paris is the capital of', 'Paris is the capital of')
        >>> bench.close()
    """

    def __init__(self, model: Any, tuned: Any = None, **traits: Any) -> None:
        self._screen: Screen | None = None
        super().__init__(model, tuned, **traits)
        lifetime.register(self)

    @property
    def screen(self) -> Screen:
        """The screen, which is made when it is first asked for, and anew once it has been closed."""
        if self._screen is None or self._screen.closed:
            self._screen = Screen(self)
        return self._screen

    def show(self, *names: str) -> ShownTabs:
        """One or two tabs, such as "saliency" and "ablation", for the output of a cell: with the texts above them.

        They are the panels of the screen, so they follow it, but what is shown here stays. `screen.show` changes the
        tabs of the screen itself. Raises TraitError for an unknown tab, or for none or more than two.
        """
        return self.screen.show_elsewhere(*names)

    def add(self, name: str, kind: Any) -> None:
        """Give the screen one more tab: a panel class, such as `@probe` makes of a function."""
        self.screen.add(name, kind)

    def probes(self) -> EntryPointPanels:
        """The panels that installed packages register, by name; each is loaded on first access."""
        return EntryPointPanels()

    def open(self, name: str, **options: Any) -> Any:
        """Open a registered panel on this workbench, with its options; see `probes`.

        Raises KeyError for a name that no package registers, ImportError for a panel that cannot be loaded.
        """
        return self.probes()[name](self, **options)

    def save(self, path: str | Path) -> Path:
        """Write the screen as it is: a session (.npz) that `load` opens again, or one page of its panels (.html).

        The file holds texts, selection, the options of every open panel and their results; not the models.
        """
        return self.screen.save(path)

    @classmethod
    def load(cls, path: str | Path, model: Any = None, tuned: Any = None, *, fetch: bool = False) -> Workbench:
        """Open a session again, with the same results and without computing them.

        Without models those of the session are loaded from their folders; with ``fetch`` also from the hub, by the name
        that the file gives. A result is computed anew where a model is not as it was when it was computed (weights,
        dtype, backend, tokenizer, edits), and the screen says so. Names of files, addresses and keys are not part of a
        session.

        Raises TypeError for what is no path, FileNotFoundError, or ValueError for a file that is no session, or models
        that cannot be found or would have to be fetched.
        """
        source = file_path(path)
        session = read_session(source)
        given = list(as_models(model, tuned)) if model is not None else []
        models = opened_models(session, source, given, fetch=fetch)
        try:
            bench = cls(*models, **{name: unpacked(value) for name, value in session.shared.items()})
        except (TypeError, TraitError) as error:
            raise ValueError(f"{source} is not a session that Workbench.save wrote: {error}") from error
        bench._screen = Screen(bench, session, present(bench.models))
        return bench

    def notify_panels(self) -> None:
        super().notify_panels()
        if self._screen is not None and not self._screen.closed:
            self._screen.models_edited()

    def close(self) -> None:
        """Close the screen and all panels."""
        if self._screen is not None:
            self._screen.close()
        super().close()

    def _repr_mimebundle_(self, **options: Any) -> Any:
        """How a notebook shows it: as its screen."""
        return self.screen._repr_mimebundle_(**options)
