"""Panels that installed packages register under the entry point group ``interp_widgets.probes``."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping
from importlib.metadata import EntryPoint, entry_points
from typing import Any

from interp_widgets.arguments import message_of

from ..base.panel import Panel

GROUP = "interp_widgets.probes"


class EntryPointPanels(Mapping[str, Any]):
    """Panel classes by the names under which packages register them, each loaded when it is first used.

    KeyError for a name that no package registers; ImportError, in one sentence, for one that cannot be loaded. The
    others stay usable.
    """

    def __init__(self) -> None:
        self._entries: dict[str, list[EntryPoint]] = {}
        for one in sorted(entry_points(group=GROUP), key=lambda one: (one.name, one.value)):
            if one not in self._entries.setdefault(one.name, []):  # a package may be installed twice
                self._entries[one.name].append(one)

    def __getitem__(self, name: str) -> Any:
        if name not in self._entries:
            near = difflib.get_close_matches(str(name), self._entries, 1)
            known = ", ".join(self._entries) or f"none (packages register them as {GROUP!r})"
            raise KeyError(
                f"no package registers a probe {name!r}; " + (f"did you mean {near[0]!r}?" if near else known)
            )
        values = sorted({one.value for one in self._entries[name]})
        if len(values) > 1:
            raise ImportError(
                f"the probe {name!r} is registered by two packages, as {' and as '.join(values)}: uninstall one"
            )
        return _loaded(self._entries[name][0])

    def __contains__(self, name: object) -> bool:
        return name in self._entries  # without loading it

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)

    def __repr__(self) -> str:
        return f"EntryPointPanels({', '.join(self._entries)})"


def _loaded(entry: EntryPoint) -> Any:
    """The class behind an entry point; ImportError for whatever keeps it from being one."""
    source = f"{entry.value} of {entry.dist.name}" if entry.dist is not None else entry.value
    try:
        loaded = entry.load()
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # importing someone else's module may raise anything, such as SystemExit
        message = f"{type(error).__name__}: {message_of(error) or 'no message'}".splitlines()[0]
        raise ImportError(f"the probe {entry.name!r} ({source}) cannot be loaded: {message}") from error
    if not (isinstance(loaded, type) and issubclass(loaded, Panel)):
        raise ImportError(f"the probe {entry.name!r} ({source}) is not a panel: decorate the function with @probe")
    return loaded
