"""A notebook cell that repeats what a concept browser shows."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from interp_widgets.analysis.concepts.directions import NEUTRAL_TEMPLATE
from interp_widgets.data.concepts import Concept, demo_concepts

from ..base.code import call, cell
from .request import BrowseRequest, OpenedSet, filled

if TYPE_CHECKING:
    from .browser import ConceptBrowser


def source(panel: ConceptBrowser, request: BrowseRequest) -> str:
    """The directions, their map, the chosen concept's neighbours, and what the tab that is looked at shows."""
    names = ["model"] if len(panel.models) == 1 else ["base", "tuned"]
    suffixes = [""] if len(names) == 1 else ["_a", "_b"]
    asked, lines, imports = request.source, [], ["concept_map", "neighbours"]
    if isinstance(asked, OpenedSet):
        imports.append("ConceptSet")
        lines += [f"found{suffix} = ConceptSet.load({asked.path!r})" for suffix in suffixes]
    else:
        written, used, given = _concepts(panel)
        lines, imports = lines + written, [*imports, *used, "concept_directions"]
        options = {"layer": asked.layer, "method": asked.method} | ({"seed": asked.seed} if asked.seed else {})
        lines += [
            f"found{suffix} = {call('concept_directions', name, *given, **options)}"
            for name, suffix in zip(names, suffixes, strict=True)
        ]
    shared = [] if len(names) == 1 else [f"other=found{suffixes[1]}"]
    seed = [f"seed={request.seed}"] if request.seed else []
    lines.append(f"places = {call('concept_map', f'found{suffixes[0]}', repr(request.map_method), *shared, *seed)}")
    last = panel.at[-1] if panel.results else 0
    lines.append(f"near = {call('neighbours', f'found{suffixes[last]}', repr(panel.concept), '12')}")
    more, used = _of_tab(panel, names[last], f"found{suffixes[last]}", suffixes)
    end = [] if more else [f"found{suffixes[last]}.to_frame()"]
    return cell([*imports, *used], panel.models, [*lines, *more, *end])


def _concepts(panel: ConceptBrowser) -> tuple[list[str], list[str], list[str]]:
    """Lines that make the list of concepts, what they import, and the argument; nothing for the demo's own list."""
    demo, given = demo_concepts(), tuple(panel.concepts)
    if given == demo:
        return [], [], []
    left, parts, lines, used = list(given), [], [], []
    for source_text, name, known in (
        ("demo_concepts()", "demo_concepts", demo),
        *((f"read_concepts({path!r})", "read_concepts", some) for path, some in panel.library.folders.items()),
    ):
        inside = set(known)
        kept = [one for one in left if one in inside]
        if len(kept) < 0.5 * len(known) or not kept:
            continue
        left = [one for one in left if one not in inside]
        gone = [one.name for one in known if one not in set(kept)]
        used.append(name)
        parts.append(f"*{source_text}" if not gone else f"*(one for one in {source_text} if one.name not in {gone!r})")
    own = [_literal(one) for one in left]
    lines = ["concepts = [", *(f"    {part}," for part in [*parts, *own]), "]"]
    return lines, [*used, *(["Concept"] if own else [])], ["concepts"]


def _literal(one: Concept) -> str:
    return f"Concept({one.name!r}, {one.stimuli!r}, {one.held_out!r}, {one.group!r})"


def _of_tab(panel: ConceptBrowser, model: str, found: str, suffixes: list[str]) -> tuple[list[str], list[str]]:
    """Lines for the tab that is looked at, and what they import."""
    other: dict[str, Any] = {"other_weights": True} if panel.opened and len(panel.models) > 1 else {}
    if panel.tab == "read":
        text = filled(NEUTRAL_TEMPLATE, "", panel.prompt) if panel.in_template else panel.prompt
        at = panel.read.position
        lines = [
            f"prompt = {text!r}",
            f"reading = {call('read_prompt_concepts', model, found, 'prompt', **other)}",
            "parts = " + call(
                "decompose_prompt", model, found, "prompt", position=at, solver=panel.solver,
                n_concepts=panel.n_concepts, **other,
            ),
            "reading.to_frame()",
        ]  # fmt: skip
        return lines, ["decompose_prompt", "read_prompt_concepts"]
    if panel.tab == "steer" and panel.sets:
        options = {**panel.steer.options(), **other}
        steered = call("compare_steering", model, found, repr(panel.concept), repr(panel.prompt), **options)
        return [
            "",
            "from interp_widgets.analysis.concepts.steered import compare_steering",
            "",
            f"texts = {steered}",
            "texts.to_frame()",
        ], []
    if panel.tab == "compare" and len(suffixes) > 1:
        groups: dict[str, Any] = {"pairs": panel.pairs}
        return [call("dispersion", f"found{suffixes[0]}", f"found{suffixes[1]}", **groups)], ["dispersion"]
    return [], []
