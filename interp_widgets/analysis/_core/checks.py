"""Checks of arguments and numbers, each with its error message: indices, ranges, choices, finite numbers."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Sequence
from typing import Any, get_args

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor

from interp_widgets.arguments import short
from interp_widgets.models import Model


def whole_number(value: Any, name: str) -> int:
    """An index as an int; TypeError for anything else, so that 1.5 is not cut off."""
    try:
        number = operator.index(value)
    except TypeError as error:
        raise TypeError(f"{name} must be an int, got {short(value)}") from error
    if isinstance(value, bool):
        raise TypeError(f"{name} must be an int, got {short(value)}")
    return number


# indices ------------------------------------------------------------------------------------------------------------


def index(value: Any, size: int, name: str, owner: str) -> int:
    """An index counted from 0; negative ones count from the end. ValueError outside of -size..size - 1.

    >>> index(-1, 6, "layer", "6-layer model")
    5
    >>> index(9, 6, "layer", "6-layer model")
    Traceback (most recent call last):
    ValueError: layer must be in -6..5 for this 6-layer model, got 9
    """
    number = whole_number(value, name)
    if not -size <= number < size:
        raise ValueError(f"{name} must be in {-size}..{size - 1} for this {owner}, got {number}")
    return number % size


def indices(values: Any, size: int, name: str, owner: str) -> tuple[int, ...]:
    """Different indices counted from 0, in the order given; all of them for None. ``name`` is in the singular.

    >>> indices([0, -1], 6, "layer", "6-layer model")
    (0, 5)
    >>> indices([5, -1], 6, "layer", "6-layer model")
    Traceback (most recent call last):
    ValueError: layers must be different, got 5 twice (negative ones count from the end): name each once
    """
    return _different(values, range(size), name, lambda value: index(value, size, name, owner))


def _different(values: Any, every: Sequence[int], name: str, convert: Callable[[Any], int]) -> tuple[int, ...]:
    """Different indices in the order given; as many as there are for None."""
    if values is None:
        return tuple(range(len(every)))
    if isinstance(values, str) or not isinstance(values, Iterable):
        raise TypeError(f"{name}s must be a list of int or None, got {values!r}: write {name}s=[{values!r}]")
    numbers = tuple(map(convert, values))
    if not numbers:
        raise ValueError(f"{name}s must not be empty: name at least one of {_listed(every)}, or None for all")
    if len(set(numbers)) < len(numbers):
        twice = next(every[number] for number in numbers if numbers.count(number) > 1)
        raise ValueError(
            f"{name}s must be different, got {twice} twice (negative ones count from the end): name each once"
        )
    return numbers


def layer_index(model: Model, layer: Any) -> int:
    """The number of one layer of a model."""
    return index(layer, model.n_layers, "layer", f"{model.n_layers}-layer model")


def layer_indices(model: Model, layers: Any) -> tuple[int, ...]:
    """The numbers of layers of a model, in the order given; all of them for None."""
    return indices(layers, model.n_layers, "layer", f"{model.n_layers}-layer model")


def stream_indices(model: Model, layers: Any) -> tuple[int, ...]:
    """The residual streams entering these layers; n_layers (or -1) is the one before the final norm.

    One number or several, each as often as it is named.
    """
    numbers = tuple(layers) if isinstance(layers, Iterable) and not isinstance(layers, str) else (layers,)
    owner = f"{model.n_layers}-layer model, whose last stream is that before the final norm"
    if not numbers:
        raise ValueError(f"layers must not be empty: name at least one of 0..{model.n_layers}")
    return tuple(index(layer, model.n_layers + 1, "layer", owner) for layer in numbers)


def distinct_streams(model: Model, layers: Any) -> tuple[int, ...]:
    """`stream_indices` of which none is named twice."""
    numbers = stream_indices(model, layers)
    if len(set(numbers)) != len(numbers):
        raise ValueError(f"layer must name every stream once, got {list(numbers)}")
    return numbers


def neuron_indices(model: Model, neurons: Any) -> tuple[int, ...]:
    """The numbers of MLP neurons of one layer, in the order given; all of them for None."""
    return indices(neurons, model.d_mlp, "neuron", f"model with {model.d_mlp} neurons per layer")


def row_of(value: Any, computed: Sequence[int], name: str) -> int:
    """The row of a number in a result that holds ``computed``; negative numbers count from the last row.

    >>> row_of(4, (2, 4), "layer"), row_of(-2, (2, 4), "layer")
    (1, 0)
    >>> row_of(3, (2, 4), "layer")
    Traceback (most recent call last):
    ValueError: layer must be one of 2, 4, which were computed, or negative from the end, got 3
    """
    number = whole_number(value, name)
    if number < 0 and number >= -len(computed):
        return number % len(computed)
    if number not in computed:
        raise ValueError(
            f"{name} must be one of {_listed(computed)}, which were computed, or negative from the end, got {number}"
        )
    return list(computed).index(number)


def rows_of(values: Any, computed: Sequence[int], name: str) -> tuple[int, ...]:
    """The rows of different numbers in a result that holds ``computed``; all of them for None."""
    return _different(values, computed, name, lambda value: row_of(value, computed, name))


def check_span(value: Any, size: int, name: str, owner: str) -> tuple[int, int]:
    """First and past-last index of a run of items, counted from 0; ValueError for an empty run or one outside.

    >>> check_span((2, 9), 6, "the subject", "prompt of 6 tokens")
    Traceback (most recent call last):
    ValueError: the subject must be (start, end) with 0 <= start < end <= 6 for this prompt of 6 tokens, got (2, 9)
    """
    numbers = tuple(value) if isinstance(value, Iterable) and not isinstance(value, str) else ()
    if (
        len(numbers) != 2
        or not all(isinstance(number, int | np.integer) for number in numbers)
        or not 0 <= numbers[0] < numbers[1] <= size
    ):
        raise ValueError(
            f"{name} must be (start, end) with 0 <= start < end <= {size} for this {owner}, got {numbers or value!r}"
        )
    return int(numbers[0]), int(numbers[1])


def _listed(numbers: Sequence[int]) -> str:
    """Different whole numbers as text for an error: a range 0..5, all of them, or the first few of many."""
    least, most = min(numbers), max(numbers)
    if len(numbers) == most - least + 1 > 1:
        return f"{least}..{most}"
    return ", ".join(map(str, numbers[:8])) + (", .." if len(numbers) > 8 else "")


# ranges and choices -------------------------------------------------------------------------------------------------


def check_range(
    name: str, value: float, least: float = 1, most: float | None = None, owner: str = "", *, advice: str = ""
) -> None:
    """ValueError unless a number is in least..most, or at least ``least`` where there is no most.

    >>> check_range("top", 0, most=460, owner="this vocabulary")
    Traceback (most recent call last):
    ValueError: top must be in 1..460 for this vocabulary, got 0
    """
    if not least <= value or (most is not None and not value <= most):
        allowed = f"{least} or more" if most is None else f"in {least}..{most}"
        raise ValueError(
            f"{name} must be {allowed}{f' for {owner}' if owner else ''}, got {value}{f': {advice}' if advice else ''}"
        )


def check_top(top: int, model: Model) -> None:
    """ValueError unless ``top`` is in 1..d_vocab."""
    check_range("top", top, 1, model.d_vocab, "this vocabulary")


def check_choice(name: str, value: Any, literal: Any, *, none: bool = False) -> None:
    """ValueError unless a value is one of those of a ``Literal``, or None where that is allowed.

    >>> from typing import Literal
    >>> check_choice("side", "left", Literal["input", "output"])
    Traceback (most recent call last):
    ValueError: side must be 'input' or 'output', got 'left'
    """
    if value not in get_args(literal) and not (none and value is None):
        names = [*map(repr, get_args(literal)), *(["None"] if none else [])]
        raise ValueError(f"{name} must be {', '.join(names[:-1])} or {names[-1]}, got {short(value)}")


def check_choices(name: str, values: Any, literal: Any) -> tuple[Any, ...]:
    """Different values of a ``Literal``, as a tuple; one alone will do. ValueError for none, unknown or repeated ones.

    >>> from typing import Literal
    >>> check_choices("sides", ["left"], Literal["input", "output"])
    Traceback (most recent call last):
    ValueError: sides must be some of 'input', 'output', each once, got ['left']
    """
    chosen = (values,) if isinstance(values, str) else tuple(values)
    allowed = get_args(literal)
    if not chosen or len(set(chosen)) < len(chosen) or not set(chosen) <= set(allowed):
        raise ValueError(f"{name} must be some of {', '.join(map(repr, allowed))}, each once, got {short(values)}")
    return chosen


# finite numbers -----------------------------------------------------------------------------------------------------


def check_finite(values: Tensor | ArrayLike, describe: str | Callable[..., str], *, also: str = "") -> None:
    """ValueError that names the first number that is NaN or infinite.

    Args:
        values: numbers of any shape.
        describe: describes one of them, or a function that describes it from its index, one argument per axis.
        also: a further possible cause, followed by a comma.

    >>> check_finite(np.array([1.0, np.nan]), lambda neuron: f"the effect of neuron {neuron}")
    Traceback (most recent call last):
    ValueError: the effect of neuron 1 is not finite, as are 1 of 2 in all: look for broken weights, an edit by a hook, or half precision that overflows
    """  # noqa: E501
    if isinstance(values, Tensor):
        # one pass, without a mask, that synchronises with the device once; a sum that overflows is looked at closer
        if bool(torch.isfinite(values.sum())) or bool(torch.isfinite(values).all()):
            return
        values = values.detach().cpu().double().numpy()
    numbers = np.asarray(values)
    with np.errstate(all="ignore"):
        if np.isfinite(numbers.sum()):
            return
    bad = np.argwhere(~np.isfinite(numbers))
    if len(bad):
        what = describe if isinstance(describe, str) else describe(*bad[0].tolist())
        raise ValueError(
            f"{what} is not finite, as are {len(bad)} of {numbers.size} in all: look for broken weights, an edit by a "
            f"hook, {also}or half precision that overflows"
        )
