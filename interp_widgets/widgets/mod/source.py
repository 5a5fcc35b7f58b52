"""A notebook cell that repeats what the viewer shows, whatever its inputs have been changed to since."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..base.code import call, cell
from .request import TOP, Entry, Route
from .shelf import steps_of

if TYPE_CHECKING:
    from .viewer import MoDRoutingViewer


def source(panel: MoDRoutingViewer, request: Route) -> str:
    """The mixture of each model and, by the tab, its routing, its tuning or the study that was made last."""
    names = ["model"] if len(panel.models) == 1 else ["base", "tuned"]
    if panel.tab == "grid":
        return _lines_of(panel, _study(panel, names[panel.slot]))
    if panel.tab == "tune":
        return _lines_of(panel, _tuning(panel, names[panel.slot]))
    lines: list[str] = []
    for slot, name in enumerate(names):
        lines += _mixture(panel, slot, name)
    options: dict[str, Any] = {"top": TOP} | ({"top_k": request.routes} if request.routes else {})
    lines.append(f"prompt = {request.prompt!r}")
    found = ["result"] if len(names) == 1 else ["result_a", "result_b"]
    for name, result in zip(names, found, strict=True):
        lines.append(f"{result} = {call('routing', f'{name}_mixture', 'prompt', **options)}")
    return _lines_of(panel, [*lines, f"{found[-1]}.to_frame()"])


def _lines_of(panel: MoDRoutingViewer, lines: list[str]) -> str:
    """A whole cell, with the imports that its lines need."""
    text = "\n".join(lines)
    public = ("routing", "tune_mod", "mod_grid", "mod_ablations", "late_layer_losses")
    homes = {
        "interp_widgets.data.problems": ["demo_problems", "read_problems"],
        "interp_widgets.tuning.mixture_of_depths.untrained": ["untrained_mod"],
    }
    imports = []
    for home, names in homes.items():
        used = [name for name in names if f"{name}(" in text]
        if used:
            imports.append(f"from {home} import {', '.join(used)}")
    body = ["", *imports, "", *lines] if imports else ["", *lines]
    return cell([name for name in public if f"{name}(" in text], panel.models, body)


def data_line(panel: MoDRoutingViewer) -> str:
    """The line that makes the data set, with the inputs as they are."""
    if panel.dataset is not None:
        return "dataset = dataset  # the examples that the viewer was opened with"
    if panel.data_file.strip():
        return f"dataset = read_problems({panel.data_file.strip()!r})"
    return f"dataset = {call('demo_problems', repr('train'), repr(panel.examples), repr(panel.seed))}"


def _tuning(panel: MoDRoutingViewer, name: str) -> list[str]:
    """How the mixture that is looked at was tuned; of an untrained one, how the inputs would tune it."""
    from .tune import tuning_options

    entry = panel.shelf.chosen(panel.slot)
    if entry.report is not None:
        return [*_tuned(panel, entry, name), "report.to_frame()"]
    options = {key: value for key, value in tuning_options(panel).items() if value is not None}
    called = call("tune_mod", name, "dataset", **options)
    return [data_line(panel), f"{name}_mixture, report = {called}", "report.to_frame()"]


def _study(panel: MoDRoutingViewer, name: str) -> list[str]:
    """The study whose result came last; before that the first one, with the inputs as they are."""
    grid = panel.grid
    return grid.made[grid.latest] if grid.latest else study_lines(panel, grid.studies[0], name)


def study_lines(panel: MoDRoutingViewer, study: Any, name: str) -> list[str]:
    """Lines that make a study with the inputs as they are."""
    if panel.problems is not None:
        held = ["problems = problems  # the ones that the viewer was opened with"]
    elif panel.problem_file.strip():
        held = [f"problems = read_problems({panel.problem_file.strip()!r})[:{panel.n_problems}]"]
    else:
        held = [f"problems = {call('demo_problems', repr('held_out'), repr(panel.n_problems), repr(panel.seed))}"]
    given = [name, "dataset"] + (["problems=problems"] if study.name == "late" else ["problems"])
    return [
        data_line(panel),
        *held,
        f"result = {call(study.call.__name__, *given, **study.options())}",
        "result.to_frame()",
    ]


def _mixture(panel: MoDRoutingViewer, slot: int, name: str) -> list[str]:
    """Lines that make the mixture that is looked at."""
    entry = panel.shelf.chosen(slot)
    if entry.model is None:
        options = {"top_k": panel.top_k or None, "seed": panel.seed or None}
        used = {key: value for key, value in options.items() if value is not None}
        return [f"{name}_mixture = {call('untrained_mod', name, repr(panel.k), **used)}"]
    if entry.kept:
        return [f"{name}_mixture = load_model({entry.kept!r})"]
    if entry is panel.shelf.rows[slot][0]:
        return [f"{name}_mixture = {name}"]
    return _tuned(panel, entry, name)


def _tuned(panel: MoDRoutingViewer, entry: Entry, name: str) -> list[str]:
    """Data and call that tuned a mixture, from what it says itself."""
    held = dict(entry.model.state.settings)
    lora = held.get("lora")
    options = {key: held[key] for key in ("k", "top_k", "distill", "batch_size", "learning_rate", "seed")}
    # the step at which a loss was no number belongs to it: the weights are those before
    ended = entry.report is not None and entry.report.stopped == "nan"
    options["steps"] = steps_of(entry) + ended
    if lora is not None:
        options |= {"lora": lora["rank"], "lora_layers": lora["layers"]}
    called = call("tune_mod", name, "dataset", **options)
    return [entry.data or data_line(panel), f"{name}_mixture, report = {called}"]
