"""A notebook cell that repeats what an ablation panel shows."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..base.code import call, cell
from .ablation_spec import AblationSpec
from .cell import TOP
from .request import HeadsRequest, ModulesRequest, Request, TraceRequest

if TYPE_CHECKING:
    from .panel import AblationPanel

FUNCTIONS = {ModulesRequest: "ablate_modules", HeadsRequest: "ablate_heads", TraceRequest: "causal_trace"}
FOUND = {ModulesRequest: "effects", HeadsRequest: "heads", TraceRequest: "trace"}


def source(panel: AblationPanel, request: Request) -> str:
    """The maps of the tab that is looked at, the picked part's next tokens, and text under the checked ablations."""
    names = ["model"] if len(panel.models) == 1 else ["base", "tuned"]
    suffixes = [""] if len(names) == 1 else ["_a", "_b"]
    each = [line for name, suffix in zip(names, suffixes, strict=True) for line in request.code(name, suffix)]
    lines = list(dict.fromkeys(each))  # the tokens are the same for both models
    imports = [FUNCTIONS[type(request)]]
    if not isinstance(request, TraceRequest):
        name = names[0 if panel.view == "A" else -1]
        more, used = _extras(panel, request, name)
        lines += more
        imports += used
    lines.append(f"{FOUND[type(request)]}{suffixes[-1]}.to_frame()")
    return cell(imports, panel.models, lines)


def _extras(panel: AblationPanel, request: Request, name: str) -> tuple[list[str], list[str]]:
    """Lines for the picked part and the list, and what they import."""
    picked, checked = panel.spec, panel.stack.checked
    ids, count = request.prediction.code(name)[1], len(panel.axis) + panel.max_new_tokens
    lines, used = [], []
    if picked is not None:
        lines += ["", f"without = {_made(picked, request, name, len(panel.axis))}"]
        lines.append(f"next_tokens = {call('ablated_prediction', name, ids, 'without', top=TOP)}")
        used += ["Ablation", "ablated_prediction"]
    if checked:
        options = {"max_new_tokens": panel.max_new_tokens, "temperature": panel.temperature, "seed": panel.seed}
        lines += ["", "ablations = ["]
        lines += [f"    {_made(one, request, name, count)},".replace("\n", "\n    ") for one in checked]
        lines += ["]", f"with ablation({name}, ablations):", f"    text = {call(f'{name}.generate', ids, **options)}"]
        used += ["Ablation", "ablation"]
    parts = [*checked, *([] if picked is None else [picked])]
    replacements = {one.replacement_value.replacement for one in parts} - {"zero"}
    makers = sorted(f"{replacement}_ablation" for replacement in replacements)
    if makers:
        lines.insert(0, f"from interp_widgets.analysis.ablation import {', '.join(makers)}")
    return [*lines, ""] if lines else [], used


def _made(one: AblationSpec, request: Request, name: str, count: int) -> str:
    """The source text that makes an ablation that may reach over ``count`` tokens."""
    replacement_value = one.replacement_value
    everywhere = one.position is None and replacement_value.replacement == "mean"
    options = {"position": range(count) if everywhere else one.position, "index": one.head}
    given = {key: value for key, value in options.items() if value is not None}
    plain = call("Ablation", repr(one.kind), str(one.layer), **given)
    if replacement_value.replacement == "mean":
        return call("mean_ablation", name, plain, repr(list(replacement_value.reference)))
    if replacement_value.replacement == "resample":
        other = repr(replacement_value.corrupted)
        if request.prediction.response:
            other = f"[*{name}.split({other}, response)[0], *response_ids[:{request.prediction.at}]]"
        return call("resample_ablation", name, plain, other)
    return plain
