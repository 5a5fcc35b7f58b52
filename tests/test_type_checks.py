"""The tests run with types checked: of arguments, results and fields, once for each call."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest

from interp_widgets.compute.cache import Cache
from interp_widgets.compute.memory import Forecast
from tests.type_checks import typed

if TYPE_CHECKING:
    from decimal import Decimal

checked = typed(typechecker=None)


def test_what_is_called_in_the_package_checks_its_types() -> None:
    with pytest.raises(TypeError, match="max_bytes"):
        Cache(max_bytes="many")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="bytes"):
        Forecast(1, "many")  # type: ignore[arg-type]
    assert Forecast(1, 2), "an int may stand for a float"


def test_results_methods_and_names_for_type_checkers() -> None:
    @checked
    def size(value: Any, exact: Decimal | None = None) -> int:
        return value  # type: ignore[no-any-return]

    assert size(3, exact=None) == 3
    assert size.__annotations__["return"] == "int"
    with pytest.raises(TypeError, match="return"):
        size("three")

    @checked
    @dataclass
    class Box:
        width: float

        @staticmethod
        @checked
        def twice(value: int) -> int:
            return 2 * value

        @property
        @checked
        def wide(self) -> bool:
            return self.width  # type: ignore[return-value]

    box = Box(2)
    assert box.twice(4) == 8
    for wrong in (lambda: Box("2"), lambda: box.twice("4"), lambda: box.wide):  # type: ignore[arg-type]
        with pytest.raises(TypeError):
            wrong()
