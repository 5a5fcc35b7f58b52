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

from ..base.workbench import in_model
from .panel import TAKEN, ProbePanel, ValuePanel, position_strip
from .parameters import REPORTS, Parameter, parameters_of, read
from .views import VIEWS, ValueView


@overload
def probe(function: Callable[..., Any]) -> type[ProbePanel]: ...
@overload
def probe(
    *, title: str = "", cost: Callable[..., Any] | None = None
) -> Callable[[Callable[..., Any]], type[ProbePanel]]: ...
@checked
def probe(
    function: Callable[..., Any] | None = None, *, title: str = "", cost: Callable[..., Any] | None = None
) -> Any:
    """Turn a typed function ``f(model, prompt, ...)`` into a panel that asks it.

    The parameters' types choose the controls: ``Prompt``, ``Response``, ``Layer``, ``Head``, ``Neuron``, ``Position``
    are shared with the other panels of a workbench; ``Token``, ``Literal[...]``, ``bool``, ``str``, ``list[str]``,
    ``Path``, and ``Annotated[int, Bounds(low, high)]`` or the same of float are the panel's own. The type that it
    returns chooses the view: ``LayerByPosition``, ``HeadMap``, ``TokenValues``, ``Curves``, ``Table``, a Bokeh figure,
    or any :class:`Result`. Of two models the first five but ``Table`` show a difference too, the others stand beside
    each other.

    The function runs in the background and its results are kept, so everything that a result depends on must be a
    parameter. Where ``progress`` and ``check`` are among its parameters, it gets functions: ``progress(done, total)``
    moves the bar, and ``check()`` stops it where the user has cancelled. Its docstring is the panel's, and what that
    says of a parameter under ``Args:`` is the control's tooltip.

    Args:
        function: the function; its first parameter is ``model``.
        title: what the panel is called; by default the function's name.
        cost: the operations that a run takes, from the same arguments: ``cost(model, ...)``. By default as one
            pass over the texts; what that takes in seconds is learned from the runs that finished.

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
        ...     found = model.run(model.tokens(prompt), capture=names).activations
        ...     patterns = torch.cat([found[name] for name in names]).double()
        ...     return HeadMap(torch.special.entr(patterns).sum(-1).mean(-1), unit="nats")
        >>> panel = attention_entropy(model, prompt="The Eiffel Tower is in the city of")
        >>> panel.run().values.shape
        (6, 6)
        >>> panel.close()
    """

    def make(function: Callable[..., Any]) -> type[ProbePanel]:
        parameters, announced = parameters_of(function)
        view = _view(function.__name__, announced)
        for one in parameters:
            if one.name in TAKEN or one.name.startswith("_") or hasattr(ValuePanel, one.name):
                raise TypeError(
                    f"the parameter {one.name} of {function.__name__} has a name that every panel uses for itself: "
                    "give it another one"
                )
        base = ProbePanel if view is VIEWS[LayoutDOM] else ValuePanel
        members: dict[str, Any] = {one.trait: one.field(position_strip) for one in parameters}
        for one in parameters:
            if one.trait != one.name:
                members[one.name] = _alias(one)
        for name in view.selects:
            if name != "prompt_token" or "prompt" in members:
                members.setdefault(name, T.Int(-1, min=-1) if name == "prompt_token" else in_model())
        members |= {
            "__module__": function.__module__,
            "__qualname__": function.__qualname__,
            "__doc__": function.__doc__,
            "analysis": staticmethod(_checked(function, parameters, announced, view)),
            "title": title or function.__name__.replace("_", " ").capitalize(),
            "both": base.both if view.subtracts else "A beside B",
            "parameters": tuple(parameters),
            "view_of": view,
            "cost_of": None if cost is None else staticmethod(cost),
        }
        metaclass: Any = type(base)
        return cast(type[ProbePanel], metaclass(function.__name__, (base,), members))

    return make if function is None else make(function)


def _view(name: str, announced: Any) -> type[ValueView]:
    for kind, view in VIEWS.items():
        if isinstance(announced, type) and issubclass(announced, kind):
            return view
    allowed = ", ".join(kind.__name__ for kind in VIEWS if kind is not LayoutDOM)
    raise TypeError(
        f"{name} must return one of {allowed} (or a class derived from it) or a Bokeh figure, its annotation says "
        f"{getattr(announced, '__name__', announced)}"
    )


def _alias(parameter: Parameter) -> property:
    """A trait under the name of the function's parameter."""
    return property(
        lambda panel: getattr(panel, parameter.trait), lambda panel, value: setattr(panel, parameter.trait, value)
    )


def _checked(
    function: Callable[..., Any], parameters: list[Parameter], announced: type, view: type[ValueView]
) -> Callable[..., Any]:
    """The function, its indices counted from 0, and with a sentence for a result that is not what was announced."""
    signature = inspect.signature(function)

    @functools.wraps(function)
    def analysis(*args: Any, **options: Any) -> Any:
        given = signature.bind_partial(*args, **options).arguments
        for name in REPORTS:
            if name in signature.parameters and given.get(name) is None:
                options[name] = _no_report
        bound = signature.bind(*args, **options)
        bound.apply_defaults()
        model = bound.arguments["model"]
        if not isinstance(model, Model):
            raise TypeError(
                f"model must be a loaded model, got {short(model)}: use load_model(...) or load_demo_pair()"
            )
        prompt = next((bound.arguments[one.name] for one in parameters if one.trait == "prompt"), "")
        asked = {one.name: read(one, bound.arguments[one.name], model, prompt) for one in parameters}
        bound.arguments.update(asked)
        value = function(*bound.args, **bound.kwargs)
        if not isinstance(value, announced):
            raise TypeError(
                f"{function.__name__} announces a {announced.__name__} and returned {short(value)}: return what the "
                "annotation says, or change it"
            )
        view.check(value, model)
        if isinstance(value, Result) and not value.provenance:
            value = replace(value, provenance=provenance(model.provenance(), probe=function.__name__, **asked))
        return value

    return analysis


def _no_report(*_: Any) -> None:
    """In the place of `progress` and `check` where nobody asks."""
