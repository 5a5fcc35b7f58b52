"""The options of the layer similarity panels: tasks and control models."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Annotated, Any

import ipywidgets as W
import traitlets as T

from interp_widgets.analysis._core.cost import Cost, pass_flops
from interp_widgets.analysis.layer_similarity import MossaResult, mossa
from interp_widgets.analysis.layer_similarity.mossa import mossa_cost
from interp_widgets.arguments import short
from interp_widgets.data.task_texts import CLUSTERS, TaskTexts, demo_task_texts
from interp_widgets.models import Model
from interp_widgets.tuning.control_models import tune_control_models

from ..base import pair_view
from ..base.code import cell
from ..base.fields import Bounds, Incomplete, field
from ..base.panel import Panel
from ..base.request import PerModel, Request

TUNED_ON = 400
"""Texts of each demo task that its control model is tuned on."""
TUNED_SEED = 1
"""Seed of these texts; models are compared on others."""
STEPS, BATCH = 100, 8
"""Steps and batch size of the tuning of a control model."""
FEW_STEPS = 30
"""Steps where the model is large."""
ONE_EACH = tuple(members[0] for members in CLUSTERS.values())
"""One demo task of each cluster: those that a large model is compared on."""
LARGE = 20_000_000
"""Parameters from which a control model of each of the demo's tasks would take hours."""
SPREADS = {"all": "all", "one": "one per cluster"}
SAMPLED = 40
"""Texts of a task sampled to forecast the cost of all."""
ESTIMATES = {"auto": "debiased if texts are few", "debiased": "debiased", "biased": "biased"}
ALL, UNSEEN = "all", "never tuned on"


class _Tasks(T.Any):
    """A trait for tasks, stored as a tuple."""

    def validate(self, obj: Any, value: Any) -> Any:
        if value is None:
            return None
        items = tuple(value) if isinstance(value, Sequence) and not isinstance(value, str) else (value,)
        if not items or not all(isinstance(item, TaskTexts) for item in items):
            raise T.TraitError(f"tasks must be a list of TaskTexts, got {short(value)}: write TaskTexts(name, texts)")
        return items


class _Controls(T.Any):
    """A trait for control models by task."""

    def validate(self, obj: Any, value: Any) -> Any:
        if value is not None and not isinstance(value, Mapping):
            raise T.TraitError(
                f"control_models must be a mapping of task to model, got {short(value)}: use tune_control_models(...)"
            )
        return value


@dataclass(frozen=True)
class TaskList(PerModel):
    """The user's own tasks, or the demo's with this many texts each."""

    own: tuple[TaskTexts, ...] | None = None
    texts: int = 100

    def read(self) -> tuple[TaskTexts, ...]:
        """The tasks."""
        return _demo_tasks(self.texts) if self.own is None else self.own

    def read_by(self, model: Model) -> Any:
        return self.read()

    def code(self, name: str) -> tuple[list[str], str]:
        made = f"demo_task_texts({self.texts})" if self.own is None else "tasks  # the tasks passed to the widget"
        return [f"tasks = {made}"], "tasks"


@dataclass(frozen=True)
class OneOfEach(TaskList):
    """One of the demo's tasks from each cluster."""

    def read(self) -> tuple[TaskTexts, ...]:
        return _demo_tasks(self.texts, names=ONE_EACH)

    def code(self, name: str) -> tuple[list[str], str]:
        return [f"tasks = demo_task_texts({self.texts}, names={list(ONE_EACH)})"], "tasks"


@lru_cache(maxsize=4)
def _demo_tasks(texts: int, names: tuple[str, ...] | None = None) -> tuple[TaskTexts, ...]:
    return demo_task_texts(texts, names=names)


@dataclass(frozen=True)
class TunedControls(PerModel):
    """Control models that are tuned from the panel's first model, unless they are cached."""

    own: tuple[TaskTexts, ...] | None = None
    """The user's own tasks, which they are tuned on; None for the demo's."""

    @property
    def steps(self) -> int:
        """The steps of each one's tuning."""
        return STEPS

    @property
    def tasks(self) -> tuple[TaskTexts, ...]:
        """The tasks that they are tuned on."""
        return _tuned_tasks() if self.own is None else self.own

    def code(self, name: str) -> tuple[list[str], str]:
        tasks = f"demo_task_texts({TUNED_ON}, seed={TUNED_SEED})" if self.own is None else "tasks"
        return [f"controls = tune_control_models({'model' if name == 'model' else 'base'}, {tasks})"], "controls"


@dataclass(frozen=True)
class FewControls(TunedControls):
    """Control models of one of the demo's tasks from each cluster, tuned in fewer steps."""

    @property
    def steps(self) -> int:
        return FEW_STEPS

    @property
    def tasks(self) -> tuple[TaskTexts, ...]:
        return _tuned_tasks(ONE_EACH)

    def code(self, name: str) -> tuple[list[str], str]:
        tasks = f"demo_task_texts({TUNED_ON}, seed={TUNED_SEED}, names={list(ONE_EACH)})"
        model = "model" if name == "model" else "base"
        return [f"controls = tune_control_models({model}, {tasks}, steps={self.steps})"], "controls"


@lru_cache(maxsize=2)
def _tuned_tasks(names: tuple[str, ...] | None = None) -> tuple[TaskTexts, ...]:
    return demo_task_texts(TUNED_ON, seed=TUNED_SEED, names=names)


class GivenControls(PerModel):
    """The user's own control models; two are equal only if they have the same mapping object."""

    def __init__(self, controls: Mapping[str, Any]) -> None:
        self.controls = controls

    def __eq__(self, other: object) -> bool:
        return isinstance(other, GivenControls) and self.controls is other.controls

    def __hash__(self) -> int:
        return id(self.controls)

    def read_by(self, model: Model) -> Any:
        return self.controls

    def code(self, name: str) -> tuple[list[str], str]:
        return ["controls = control_models  # the models passed to the widget"], "controls"


class ClusterChoice(W.Dropdown):
    """A dropdown of the clusters of the panel's tasks."""

    def __init__(self, panel: Any) -> None:
        super().__init__(description="Tasks", tooltip="Tasks to plot")
        self._fill(panel)
        panel.bind(self, "cluster")
        panel.watch(panel, "tasks", lambda _: self._fill(panel))

    def _fill(self, panel: Any) -> None:
        tasks = panel.task_list().read()
        clusters = dict.fromkeys(task.cluster for task in tasks if task.cluster and not task.unseen)
        options = [(ALL, ""), *((name, name) for name in clusters)]
        if any(task.unseen for task in tasks):
            options.append((UNSEEN, UNSEEN))
        self.options = options


class TaskOptions(Panel):
    """Base of the panels about tasks."""

    tasks = field(_Tasks(None, allow_none=True))
    """Your own tasks; None for the demo's."""
    texts_per_task = field(
        Annotated[int, Bounds(4, TUNED_ON)], 100, label="Texts per task", width="short",
        shown_if=lambda panel: panel.tasks is None, help="Number of texts of each demo task to compare",
    )  # fmt: skip

    spread = field(
        SPREADS, "all", label="Demo tasks", more=True, shown_if=lambda panel: panel.tasks is None,
        help="Which of the demo's tasks; one per cluster is the default for large models",
    )  # fmt: skip

    def task_list(self) -> TaskList:
        """The tasks that the settings select."""
        if self.tasks is None and self.spread == "one":
            return OneOfEach(None, self.texts_per_task)
        return TaskList(self.tasks, 0 if self.tasks is not None else self.texts_per_task)

    @property
    def layers(self) -> int:
        """Number of layers of the model with fewer."""
        return min(model.n_layers for model in self.models)


class ControlOptions(TaskOptions):
    """Base of the panels that compare with control models; they share the cached comparison."""

    cached_as, manual_run, pair_views = "mossa", True, ("beside",)
    control_models = field(_Controls(None, allow_none=True))
    """Your own control models by task; None to tune them when Run is pressed."""
    estimate = field(
        ESTIMATES, "auto", label="CKA", redraws=True,
        help="With fewer than 10 texts per dimension, the biased estimate makes unrelated layers look similar",
    )  # fmt: skip

    def request(self) -> Request:
        tasks = self.task_list()
        names = [task.name for task in tasks.read()]
        if len(set(names)) < len(names):
            raise Incomplete("tasks", "each task needs its own name")
        if self.control_models is None:
            if self.tasks is not None and (without := [task.name for task in self.tasks if not task.responses]):
                raise ValueError(
                    f"task {without[0]!r} has no responses to tune a control model on: pass some, or control_models="
                )
            few = self.tasks is None and self.spread == "one"
            return Request.of(mossa, {}, FewControls() if few else TunedControls(self.tasks), tasks)
        return Request.of(mossa, {}, GivenControls(self.control_models), tasks)

    def depends_on(self, request: Any, model: Model) -> tuple[Any, ...]:
        return (self.models[0],) if isinstance(request.inputs[0], TunedControls) else ()

    def compute(
        self, request: Any, model: Model, *, progress: Callable[[int, int], None], check: Callable[[], None],
        on_partial: Callable[[Any], None],
    ) -> MossaResult:  # fmt: skip
        """Tune the control models that are not cached, then compare; a cancelled run keeps the finished ones."""
        controls, tasks = request.inputs
        if isinstance(controls, TunedControls):
            models = tune_control_models(
                self.models[0], controls.tasks, steps=controls.steps, batch_size=BATCH, check=check,
                progress=lambda done, total: progress(9 * done, 10 * total),
            )  # fmt: skip
        else:
            models = controls.read_by(model)
        count = len(tasks.read())
        return mossa(
            model, models, tasks.read(), check=check,
            progress=lambda done, total: progress(9 * count + done, 10 * count),
        )  # fmt: skip

    def cost(self, request: Any, model: Model) -> Cost:
        controls, tasks = request.inputs
        lengths, times = [], []
        for task in tasks.read():
            sample = list(task.texts[:SAMPLED])
            own = [max(1, len(ids)) for ids in model.token_lists(sample)]
            lengths.append(own * round(max(1.0, len(task.texts) / len(sample))))
            times.append(sum(own) / len(own))
        cost = mossa_cost(model, lengths)
        if isinstance(controls, TunedControls):
            tokens = sum(controls.steps * BATCH * 1.3 * length for length in times)  # responses and padding
            cost = replace(
                cost,
                flops=cost.flops + 3 * pass_flops(model, tokens, 64) + 3 * tokens * 2 * model.d_vocab * model.d_model,
            )
        return cost

    def code(self, request: Any) -> str:
        names = {"mossa", "tune_control_models", "demo_task_texts"}
        lines = [*request.lines(self.models), *self.last_lines()]
        used = {name for name in names if any(f"{name}(" in line for line in lines)}
        return cell({*used, *self.functions_used()}, self.models, lines)

    def last_lines(self) -> list[str]:
        """The last lines of copied code."""
        return ["result.to_frame()" if len(self.models) == 1 else "result_b.to_frame()"]

    def functions_used(self) -> set[str]:
        """The other functions that copied code calls."""
        return set()

    # what is drawn ----------------------------------------------------------------------------------------------------

    def estimated(self) -> list[MossaResult]:
        """The results on the screen, with the chosen estimate of CKA."""
        if self.estimate == "auto":
            return list(self.results)
        return [replace(result, debiased=self.estimate == "debiased") for result in self.results]

    def by_model(self) -> dict[str, MossaResult]:
        """The results of the models in view, by letter."""
        return self.by_letter(self.estimated())

    def frame(self) -> Any:
        return pair_view.joined(
            {letter: result.to_frame() for letter, result in pair_view.by_letter(self.estimated()).items()}
        )
