"""A probe as a method of `circuit_scoreboard`: what it returns for a circuit's prompt ranks the circuit's parts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from interp_widgets.analysis.probe.values import HeadMap, TokenValues
from interp_widgets.models import Model
from interp_widgets.models.circuits import CircuitCase

from .parameters import Parameter

KINDS = {TokenValues: "tokens", HeadMap: "heads"}
"""What the values rank, by their type."""


def ranking(name: str, analysis: Any, parameters: Sequence[Parameter], model: Model, case: CircuitCase) -> Any:
    """Call a probe with a circuit's prompt, and return the size of its values as a method of the board does.

    A response or a token gets the answer, one called ``foil`` the foil, a position the last one; options keep their
    defaults, and a BOS in front of the tokens is left out. Raises TypeError for a parameter without a default that a
    circuit says nothing of, or for values that are neither those of tokens nor of heads.
    """
    words = len(case.prompt.split())
    given: dict[str, Any] = {"Prompt": case.prompt, "Response": f" {case.answer}", "Token": case.answer}
    given["Position"] = words - 1
    arguments: dict[str, Any] = {}
    for parameter in parameters:
        if parameter.name == "foil":
            arguments["foil"] = case.foil
        elif parameter.role.name in given:
            arguments[parameter.name] = given[parameter.role.name]
        elif not parameter.has_default:
            raise TypeError(
                f"{name} has no default for {parameter.name}, and a circuit says nothing of it: give it one"
            )
    values = analysis(model, **arguments)
    kind = next((kind for type_, kind in KINDS.items() if isinstance(values, type_)), None)
    if kind is None:
        raise TypeError(
            f"{name} returns {type(values).__name__}, which ranks no parts of a circuit: return TokenValues or HeadMap"
        )
    size = np.abs(values.values)
    with_bos = kind == "tokens" and len(size) == words + 1
    return {kind: size[1:] if with_bos else size}
