"""A notebook cell that repeats what an FFN concept browser shows."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..base.code import call, cell
from .request import ConceptsRequest, NeuronsRequest
from .saved import SavedRequest

if TYPE_CHECKING:
    from .browser import FFNConceptBrowser

Request = ConceptsRequest | NeuronsRequest | SavedRequest


def source_code(panel: FFNConceptBrowser, request: Request) -> str:
    """The components, or the neurons; for the comparison also what compares them."""
    names = ["model"] if len(panel.models) == 1 else ["base", "tuned"]
    suffixes = [""] if len(names) == 1 else ["_a", "_b"]
    if isinstance(request, SavedRequest):
        return _whole(panel, ["FFNConceptResult"], request.code(panel.models, suffixes), suffixes[-1])
    each = [line for name, suffix in zip(names, suffixes, strict=True) for line in request.code(name, suffix)]
    lines = list(dict.fromkeys(each))  # both models are asked the same
    if not isinstance(request, ConceptsRequest):
        return cell(["neuron_effects", "neuron_tokens"], panel.models, [*lines, f"effects{suffixes[-1]}.to_frame()"])
    imports: list[str] = ["ffn_concepts"]
    before: list[str] = []
    if request.source.kind != "demo":
        more, before, _ = request.source.code()
        imports += more
    return _whole(panel, imports, [*before, *lines], suffixes[-1])


def _whole(panel: FFNConceptBrowser, imports: list[str], lines: list[str], suffix: str) -> str:
    """The cell, with the comparison where it is looked at; saved results need no model."""
    models = () if panel.saved else panel.models
    if panel.tab != "comparison" or panel.comparing is None:
        return cell(imports, models, [*lines, f"concepts{suffix}.to_frame()"])
    compared = call("compare_concepts", "concepts_a", "concepts_b", rank=panel.comparing.rank)
    ends = [f"comparison = {compared}", "comparison.layer_table()"]
    return cell([*imports, "compare_concepts"], models, [*lines, *ends])
