"""Copy as code: a cell that repeats a result without the widget, in a box to select and copy from."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import traitlets as T

from interp_widgets.models import Model

from ..views.base import View
from .sources import add_function, joined

_HERE = Path(__file__).parent
_WIDTH = 100


def call(name: str, *arguments: str, **keywords: Any) -> str:
    """The source text of a call: arguments verbatim, keyword values by their repr, one per line if the call is long.

    >>> call("prompt_saliency", "model", method="exact", seed=0)
    "prompt_saliency(model, method='exact', seed=0)"
    """
    parts = [*arguments, *(f"{key}={value!r}" for key, value in keywords.items())]
    line = f"{name}({', '.join(parts)})"
    if len(line) <= _WIDTH:
        return line
    return "\n".join([f"{name}(", *(f"    {part}," for part in parts), ")"])


def load_lines(models: Sequence[Any]) -> list[str]:
    """Lines that load the models again into `model`, or into `base` and `tuned`.

    A model that was built in memory has no file to load: a comment says to use the existing variable.
    """
    names = ["model"] if len(models) == 1 else ["base", "tuned"]
    return [_load_line(name, model) for name, model in zip(names, models, strict=True)]


def _load_line(name: str, model: Model) -> str:
    source = getattr(model, "source", None)
    title = str(getattr(model, "name", ""))
    if source is None and title in ("demo-base", "demo-tuned"):
        source = title
    if not isinstance(source, (str, Path)):
        return f"{name} = {name}  # the model that the widget was opened on: {title}"
    parts = [repr(str(source))]
    for key, usual, form in (
        ("device", "cpu", "{!r}"),
        ("dtype", "torch.float32", "{}"),
        ("backend", "hooked", "{!r}"),
    ):
        value = str(getattr(model, key, usual))
        if value != usual:
            parts.append(f"{key}={form.format(value)}")
    if getattr(model, "processed", False):
        parts.append("processed=True")
    return f"{name} = {call('load_model', *parts)}"


def cell(functions: Iterable[str | Callable[..., Any]], models: Sequence[Any], body: Iterable[str]) -> str:
    """A whole notebook cell: imports, functions that are in no module, the models, then the body.

    A public function of the package may be given by its name.

    >>> print(cell(["prompt_saliency"], [], ["result"]))
    from interp_widgets import load_model, prompt_saliency
    <BLANKLINE>
    result
    """
    imports, sources = {"from interp_widgets import load_model"}, list[str]()
    for function in functions:
        if isinstance(function, str):
            imports.add(f"from interp_widgets import {function}")
        else:
            add_function(function, imports, sources)
    loading, lines = load_lines(models) if models else [], list(body)
    used = {"re": any("re.sub(" in line for line in lines), "torch": any("torch." in line for line in loading)}
    modules = [f"import {name}" for name, needed in used.items() if needed]
    above = [*modules, ""] if modules else []
    return "\n".join([*above, *joined(imports), "", *(f"{source}\n\n" for source in sources), *loading, *lines])


class CodeBox(View):
    """The code in a text area with a Copy button; hidden until it is opened."""

    _esm = (_HERE / "code.js").read_text(encoding="utf-8")

    code = T.Unicode("").tag(sync=True)
    """The source text."""
    visible = T.Bool(False).tag(sync=True, from_page=lambda _, value: isinstance(value, bool))
    """Whether the box is open."""

    def show(self, code: str) -> None:
        """Open the box on a source text."""
        with self.hold_sync():
            self.code, self.visible = code, True
