"""`probe`: a typed function becomes a panel."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Coroutine
from dataclasses import replace
from typing import Any, cast, overload

from bokeh.models import LayoutDOM

from interp_widgets.analysis._core.result import Result, provenance
from interp_widgets.arguments import checked, short
from interp_widgets.models import Model

from ..base.controls import Whole
from ..base.panel import Panel
from ..base.sources import REPORTS
from ..base.workbench import in_model
from .panel import TAKEN, ProbePanel, ValuePanel, position_strip
from .parameters import Parameter, parameters_of, read
from .views import VIEWS, ValueView


@overload
def probe(
    function: Callable[..., Any],
    *,
    title: str = "",
    cost: Callable[..., Any] | None = None,
    view: type[ValueView] | None = None,
    base: type[Panel] | None = None,
) -> type[ProbePanel]:
    """The panel of a function: ``@probe`` above it, or ``probe(function, ...)``."""


@overload
def probe(
    *,
    title: str = "",
    cost: Callable[..., Any] | None = None,
    view: type[ValueView] | None = None,
    base: type[Panel] | None = None,
) -> Callable[[Callable[..., Any]], type[ProbePanel]]:
    """A decorator that makes the panel of the function below it: ``@probe(title=...)``."""


@checked
def probe(
    function: Callable[..., Any] | None = None,
    *,
    title: str = "",
    cost: Callable[..., Any] | None = None,
    view: type[ValueView] | None = None,
    base: type[Panel] | None = None,
) -> Any:
    """Turn a typed function ``f(model, prompt, ...)`` into a panel that runs it.

    The parameters' types choose the controls: ``Prompt``, ``Response``, ``Layer``, ``Head``, ``Neuron``, ``Position``
    are shared with the other panels of a workbench; ``Token``, ``Literal[...]``, ``bool``, ``str``, ``list[str]``,
    ``Path``, and ``Annotated[int, Bounds(low, high)]`` or the same of float are the panel's own. The type that it
    returns chooses the view: ``LayerByPosition``, ``HeadMap``, ``Matrix``, ``TokenValues``, ``Curves``, ``Table``, a
    Bokeh figure, or any :class:`Result`. With two models the first five can show the difference, and all but
    ``Curves`` A beside B.
    For a different look pass a `view`, and for different behaviour derive a class
    from the panel: ``class Speed(probe(speed, view=SpeedView)): manual_run = True``.

    The function runs in the background and its results are cached, so everything that a result depends on must be a
    parameter. Parameters named ``progress``, ``check`` or ``on_partial`` receive callbacks:
    ``progress(done, total)`` moves the bar, ``check()`` raises if the user has cancelled, and
    ``on_partial(result)`` draws a partial result. Its docstring is the panel's, and what it
    says about a parameter under ``Args:`` is the control's tooltip.

    Args:
        function: the function; its first parameter is ``model``.
        title: the title of the panel; by default the function's name.
        cost: the FLOPs of a run, from the same arguments: ``cost(model, ...)``. By default those of one
            forward pass over the texts; the seconds per FLOP are learned from finished runs.
        view: a class derived from `interp_widgets.widgets.probe.ValueView` or one of the views there; by default
            that of the return type.
        base: a panel class with its own options, each a `field`: those that are arguments of the function
            keep their labels, bounds and hints. So a function written for something else can
            become a panel, whatever its annotations: ``probe(mod_grid, base=StudyPanel, view=GridView)``.

    Returns:
        A subclass of :class:`Panel`, opened as ``attention_entropy(model)``, ``(base, tuned)``, ``(pair)`` or
        ``(workbench)``. ``attention_entropy.analysis(model, ...)`` calls the function itself.

    Raises:
        TypeError: the function has a parameter or a return type that no panel can show.

    Example:
        >>> import torch
        >>> @probe
        ... def attention_entropy(model: Model, prompt: Prompt) -> HeadMap:
        ...     "How evenly each head spreads its attention, averaged over the prompt's tokens."
        ...     names = [f"blocks.{layer}.attn.hook_pattern" for layer in range(model.n_layers)]
        ...     activations = model.run(model.tokens(prompt), capture=names).activations
        ...     patterns = torch.cat([activations[name] for name in names]).double()
        ...     return HeadMap(torch.special.entr(patterns).sum(-1).mean(-1), unit="nats")
        >>> panel = attention_entropy(model, prompt="The Eiffel Tower is in the city of")
        >>> panel.run().values.shape
        (6, 6)
        >>> panel.close()
    """

    if view is not None and not (isinstance(view, type) and issubclass(view, ValueView)):
        raise TypeError(f"view must be a class derived from ValueView, got {short(view)}")
    if base is not None and (not issubclass(base, Panel) or issubclass(ValuePanel, base)):
        raise TypeError(f"base must be a class derived from Panel, with its own options, got {short(base)}")

    def make(function: Callable[..., Any]) -> type[ProbePanel]:
        parameters, returned = parameters_of(function, base)
        usual_view = _view(function.__name__, returned)
        own_view = view or usual_view
        for parameter in parameters:
            name = parameter.name
            if name in TAKEN or name.startswith("_") or hasattr(ValuePanel, name):
                raise TypeError(
                    f"the parameter {name} of {function.__name__} has a name that is reserved for panels: rename it"
                )
        kind = ProbePanel if usual_view is VIEWS[LayoutDOM] else ValuePanel
        members: dict[str, Any] = {parameter.trait: parameter.field(position_strip) for parameter in parameters}
        for parameter in parameters:
            if parameter.trait != parameter.name:
                members[parameter.name] = _alias(parameter)
        for name in own_view.selects:
            if name != "prompt_token" or "prompt" in members:
                members.setdefault(name, Whole(-1, min=-1) if name == "prompt_token" else in_model())
        members |= {
            "__module__": function.__module__,
            "__qualname__": function.__qualname__,
            "__doc__": function.__doc__,
            "analysis": staticmethod(_checked(function, parameters, returned, own_view)),
            "title": title or function.__name__.replace("_", " ").capitalize(),
            "pair_views": own_view.pair_views,
            "parameters": tuple(parameters),
            "view_of": own_view,
            "has_base": base is not None,
            "cost_of": None if cost is None else staticmethod(cost),
        }
        if own_view.scene is ValueView.scene:
            members["scene"] = Panel.scene  # no picture to save
        metaclass: Any = type(kind)
        bases = (kind,) if base is None else (base, kind)
        return cast(type[ProbePanel], metaclass(function.__name__, bases, members))

    return make if function is None else make(function)


def _view(name: str, returned: Any) -> type[ValueView]:
    """The view of a return type; TypeError for a type that has none."""
    for kind, view in VIEWS.items():
        if isinstance(returned, type) and issubclass(returned, kind):
            return view
    allowed = ", ".join(kind.__name__ for kind in VIEWS if kind is not LayoutDOM)
    raise TypeError(
        f"{name} must return one of {allowed} (or a class derived from it) or a Bokeh figure, its annotation says "
        f"{getattr(returned, '__name__', returned)}"
    )


def _alias(parameter: Parameter) -> property:
    """An alias of a trait, under the name of the function's parameter."""
    return property(
        lambda panel: getattr(panel, parameter.trait), lambda panel, value: setattr(panel, parameter.trait, value)
    )


def _checked(
    function: Callable[..., Any], parameters: list[Parameter], returned: type, view: type[ValueView]
) -> Callable[..., Any]:
    """The function, with indices normalised to count from 0, and a check of the type it returns."""
    signature = inspect.signature(function)

    @functools.wraps(function)
    def analysis(*args: Any, **options: Any) -> Any:
        passed = signature.bind_partial(*args, **options).arguments
        for name in REPORTS:
            if name in signature.parameters and passed.get(name) is None:
                options[name] = _no_report
        bound = signature.bind(*args, **options)
        bound.apply_defaults()
        model = bound.arguments["model"]
        if not isinstance(model, Model):
            raise TypeError(
                f"model must be a loaded model, got {short(model)}: use load_model(...) or load_demo_pair()"
            )
        values = bound.arguments
        prompt = next((values[parameter.name] for parameter in parameters if parameter.trait == "prompt"), "")
        arguments = {parameter.name: read(parameter, values[parameter.name], model, prompt) for parameter in parameters}
        bound.arguments.update(arguments)
        value = function(*bound.args, **bound.kwargs)
        if not isinstance(value, returned):
            if isinstance(value, Coroutine):
                value.close()  # or Python warns that it was never awaited
            raise TypeError(
                f"{function.__name__} is annotated to return {returned.__name__} but returned {short(value)}: return "
                "what the annotation says, or change it"
            )
        view.check(value, model)
        if isinstance(value, Result) and not value.provenance:
            value = replace(value, provenance=provenance(model.provenance(), probe=function.__name__, **arguments))
        return value

    return analysis


def _no_report(*_: Any) -> None:
    """Stands in for `progress`, `check` and `on_partial` if the caller passes none."""
