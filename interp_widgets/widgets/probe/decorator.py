"""`probe`: a typed function becomes a panel."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from dataclasses import replace
from typing import Any, cast, overload

import traitlets as T
from bokeh.models import LayoutDOM

from interp_widgets.analysis._core.result import Result, provenance
from interp_widgets.arguments import checked, short
from interp_widgets.models import Model

from ..base.panel import Panel
from ..base.workbench import in_model
from .panel import TAKEN, ProbePanel, ValuePanel, position_strip
from .parameters import REPORTS, Parameter, parameters_of, read
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
    """What makes the panel of the function below it: ``@probe(title=...)``."""


@checked
def probe(
    function: Callable[..., Any] | None = None,
    *,
    title: str = "",
    cost: Callable[..., Any] | None = None,
    view: type[ValueView] | None = None,
    base: type[Panel] | None = None,
) -> Any:
    """Turn a typed function ``f(model, prompt, ...)`` into a panel that asks it.

    The parameters' types choose the controls: ``Prompt``, ``Response``, ``Layer``, ``Head``, ``Neuron``, ``Position``
    are shared with the other panels of a workbench; ``Token``, ``Literal[...]``, ``bool``, ``str``, ``list[str]``,
    ``Path``, and ``Annotated[int, Bounds(low, high)]`` or the same of float are the panel's own. The type that it
    returns chooses the view: ``LayerByPosition``, ``HeadMap``, ``TokenValues``, ``Curves``, ``Table``, a Bokeh figure,
    or any :class:`Result`. Of two models the first four show a difference too, and all but ``Curves`` A beside B.
    What should look otherwise has a `view` of its own, and what should behave otherwise a class derived
    from the panel: ``class Speed(probe(speed, view=SpeedView)): waits = True``.

    The function runs in the background and its results are kept, so everything that a result depends on must be a
    parameter. Where ``progress``, ``check`` or ``on_partial`` are among its parameters, it gets functions:
    ``progress(done, total)`` moves the bar, ``check()`` stops it where the user has cancelled, and
    ``on_partial(result)`` draws what is known so far. Its docstring is the panel's, and what that
    says of a parameter under ``Args:`` is the control's tooltip.

    Args:
        function: the function; its first parameter is ``model``.
        title: what the panel is called; by default the function's name.
        cost: the operations that a run takes, from the same arguments: ``cost(model, ...)``. By default as one
            pass over the texts; what that takes in seconds is learned from the runs that finished.
        view: a class derived from `interp_widgets.widgets.probe.ValueView` or one of the views there; by default
            that of the return type.
        base: a class of panels with options of its own, each a `field`: those that are arguments of the function are
            asked there, with their labels, bounds and hints. A function that was written for something else may so
            become a panel, whatever its annotations: ``probe(mod_grid, base=StudyPanel, view=GridView)``.

    Returns:
        A subclass of :class:`Panel`, opened as ``attention_entropy(model)``, ``(base, tuned)``, ``(pair)`` or
        ``(workbench)``. ``attention_entropy.analysis(model, ...)`` calls the function itself.

    Raises:
        TypeError: the function has a parameter or a return type that no panel can show, said in one sentence.

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
        raise TypeError(f"base must be a class derived from Panel, with options of its own, got {short(base)}")

    def make(function: Callable[..., Any]) -> type[ProbePanel]:
        parameters, returned = parameters_of(function, base)
        usual_view = _view(function.__name__, returned)
        own_view = view or usual_view
        for parameter in parameters:
            name = parameter.name
            if name in TAKEN or name.startswith("_") or hasattr(ValuePanel, name):
                raise TypeError(
                    f"the parameter {name} of {function.__name__} has a name that every panel uses for itself: "
                    "give it another one"
                )
        kind = ProbePanel if usual_view is VIEWS[LayoutDOM] else ValuePanel
        members: dict[str, Any] = {parameter.trait: parameter.field(position_strip) for parameter in parameters}
        for parameter in parameters:
            if parameter.trait != parameter.name:
                members[parameter.name] = _alias(parameter)
        for name in own_view.selects:
            if name != "prompt_token" or "prompt" in members:
                members.setdefault(name, T.Int(-1, min=-1) if name == "prompt_token" else in_model())
        members |= {
            "__module__": function.__module__,
            "__qualname__": function.__qualname__,
            "__doc__": function.__doc__,
            "analysis": staticmethod(_checked(function, parameters, returned, own_view)),
            "title": title or function.__name__.replace("_", " ").capitalize(),
            "of_both": own_view.of_both,
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
    """The view of a return type; TypeError in one sentence for a type that has none."""
    for kind, view in VIEWS.items():
        if isinstance(returned, type) and issubclass(returned, kind):
            return view
    allowed = ", ".join(kind.__name__ for kind in VIEWS if kind is not LayoutDOM)
    raise TypeError(
        f"{name} must return one of {allowed} (or a class derived from it) or a Bokeh figure, its annotation says "
        f"{getattr(returned, '__name__', returned)}"
    )


def _alias(parameter: Parameter) -> property:
    """A trait under the name of the function's parameter."""
    return property(
        lambda panel: getattr(panel, parameter.trait), lambda panel, value: setattr(panel, parameter.trait, value)
    )


def _checked(
    function: Callable[..., Any], parameters: list[Parameter], returned: type, view: type[ValueView]
) -> Callable[..., Any]:
    """The function, its indices counted from 0, and with a sentence for a result that is not what was announced."""
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
            raise TypeError(
                f"{function.__name__} announces a {returned.__name__} and returned {short(value)}: return what the "
                "annotation says, or change it"
            )
        view.check(value, model)
        if isinstance(value, Result) and not value.provenance:
            value = replace(value, provenance=provenance(model.provenance(), probe=function.__name__, **arguments))
        return value

    return analysis


def _no_report(*_: Any) -> None:
    """In the place of `progress`, `check` and `on_partial` where nobody asks."""
