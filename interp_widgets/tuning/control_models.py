"""`tune_control_models`: one model per task, each tuned on that task alone, to hold other models against."""

from __future__ import annotations

import hashlib
import json
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from interp_widgets.analysis._core.checks import check_range
from interp_widgets.arguments import checked
from interp_widgets.atomic import made_folder, named_path, whole_folder
from interp_widgets.data.files import cache_folder
from interp_widgets.data.task_texts import TaskTexts
from interp_widgets.models import Model, load_model
from interp_widgets.models.lora import add_adapters, merged_with, save_adapters
from interp_widgets.models.mixture_of_depths.checkpoint import base_hash
from interp_widgets.models.mixture_of_depths.opening import read_base
from interp_widgets.models.state import check_as_loaded
from interp_widgets.models.threads import few_threads

from .adapter_training import AdapterTraining
from .examples import IGNORED, Batch, Example, batches, fingerprint, read_examples

HEADER = "control.json"
WARM_UP = 0.1
"""Share of the steps in which the learning rate rises."""


@dataclass(frozen=True)
class ControlReport:
    """How the tuning of one control model went.

    Example:
        >>> controls = tune_control_models(base, demo_task_texts(4, names=["plural"]), steps=1)
        >>> controls.reports["plural"].task, controls.reports["plural"].examples
        ('plural', 4)
    """

    task: str
    examples: int
    """Different texts that it was tuned on."""
    first_loss: float
    """Cross-entropy of the responses in nats, mean over the first tenth of the steps."""
    last_loss: float
    """Over the last tenth."""
    seconds: float
    """Time that the tuning took, on this machine and beside what else it did."""


class ControlModels(Mapping[str, Model]):
    """Control models by the name of their task; each is loaded when it is asked for, and not kept.

    Example:
        >>> controls = tune_control_models(base, demo_task_texts(4, names=["plural"]), steps=1)
        >>> list(controls), controls["plural"].name, controls.reports["plural"].examples
        (['plural'], 'demo-base tuned on plural', 4)
    """

    def __init__(self, base: Model, folders: Mapping[str, Path]) -> None:
        self.base = base
        """The model that all were tuned from."""
        self.folders = dict(folders)
        """The folder of each one's adapters, in the layout of peft."""
        self.reports = {task: _report(folder) for task, folder in self.folders.items()}
        """How the tuning of each went."""

    def __getitem__(self, task: str) -> Model:
        """The control model of a task, the adapters added to its weights; KeyError for a task without one."""
        if task not in self.folders:
            raise KeyError(f"there is no control model of {task!r}: {', '.join(self.folders)}")
        hf_model, tokenizer = read_base(self.base, self.base.tokenizer)
        model = load_model(
            merged_with(hf_model, self.folders[task]),
            tokenizer=tokenizer,
            device=self.base.device,
            dtype=self.base.dtype,
            backend=self.base.backend,
        )
        model.name = f"{self.base.name} tuned on {task}"
        return model

    def __iter__(self) -> Iterator[str]:
        return iter(self.folders)

    def __len__(self) -> int:
        return len(self.folders)

    def __repr__(self) -> str:
        return f"ControlModels({len(self)} tasks, tuned from {self.base.name})"


@checked
def tune_control_models(
    model: Model,
    tasks: Sequence[TaskTexts],
    *,
    rank: int = 8,
    steps: int = 100,
    batch_size: int = 8,
    learning_rate: float = 3e-3,
    seed: int = 0,
    folder: str | Path = "default",
    progress: Callable[[int, int], None] | None = None,
    check: Callable[[], None] | None = None,
) -> ControlModels:
    """Tune one control model per task from the same base: low-rank adapters (LoRA) on all linear maps of the blocks.

    The loss is the cross-entropy of the responses. AdamW without weight decay, a learning rate that rises over a tenth
    of the steps and then falls to zero, gradients clipped at length 1, no dropout, in float32. Finished control models
    are taken as they are, and an unfinished one is written down every 50 steps, so that a run that was ended goes on.

    Args:
        model: the base, loaded from a name or folder. It stays as it is.
        tasks: each with responses, such as `demo_task_texts` gives.
        rank: of the adapters, scaled by 2.
        steps: optimizer steps per task.
        batch_size: examples per step.
        learning_rate: the highest one.
        seed: of the adapters' first weights and of the order of the texts.
        folder: where the adapters are kept, a folder of each task; "default" for ``interp_widgets/controls`` in this
            user's cache.
        progress: called with (done, total) steps of all tasks.
        check: called before every step; raises to cancel.

    Raises:
        ValueError: tasks of one name or without responses, a number out of range, a base that was edited or came from
            memory, a loss that is not finite.
        ImportError: peft is not installed (``pip install interp_widgets[tuning]``).

    Source: Layer by Layer: Uncovering Where Multi-Task Learning Happens in Instruction-Tuned Large Language Models,
    section 3 (rank 8).

    Example:
        >>> controls = tune_control_models(base, demo_task_texts(8, names=["plural", "capital"]), steps=2, batch_size=4)
        >>> controls
        ControlModels(2 tasks, tuned from demo-base)
    """
    for name, value in (("rank", rank), ("steps", steps), ("batch_size", batch_size)):
        check_range(name, value, 1)
    if not 0 < learning_rate < math.inf:
        raise ValueError(f"learning_rate must be above 0, got {learning_rate}")
    if model.source is None:
        raise ValueError(f"{model.name} came from memory: give a model that was loaded from a name or a folder")
    check_as_loaded(model, "tune_control_models")
    names = [task.name for task in tasks]
    if not names or len(set(names)) < len(names):
        raise ValueError(f"tasks must be at least one, each of another name, got {', '.join(names) or 'none'}")
    if without := [task.name for task in tasks if not task.responses]:
        raise ValueError(f"task {without[0]!r} has no responses, which its control model is tuned on")
    settings = {
        "rank": rank, "steps": steps, "batch_size": batch_size, "learning_rate": learning_rate, "seed": seed,
    }  # fmt: skip
    root = cache_folder("controls") if folder == "default" else named_path(folder, "folder")
    weights = base_hash(read_base(model, model.tokenizer)[0])
    folders = {}
    for number, task in enumerate(tasks):
        examples = read_examples(model, list(zip(task.texts, task.responses, strict=True)))
        key = json.dumps([weights, settings, fingerprint(examples)], sort_keys=True)
        target = root / f"{_file_name(task.name)}-{hashlib.sha256(key.encode()).hexdigest()[:16]}"
        folders[task.name] = target

        def step_done(step: int, number: int = number) -> None:
            if progress is not None:
                progress(number * steps + step, len(tasks) * steps)

        if not (target / HEADER).is_file():
            _tune_one(model, task.name, examples, settings, target, step_done, check)
        step_done(steps)
    return ControlModels(model, folders)


def _tune_one(
    model: Model, task: str, examples: Sequence[Example], settings: Mapping[str, Any], target: Path,
    step_done: Callable[[int], None], check: Callable[[], None] | None,
) -> None:  # fmt: skip
    """Tune one control model; its folder is there once it is whole."""
    began = time.monotonic()
    hf_model, _ = read_base(model, model.tokenizer)
    hf_model.to(model.device).eval()
    adapted = add_adapters(
        hf_model, "all-linear", rank=settings["rank"], alpha=2 * settings["rank"], seed=settings["seed"]
    )
    steps, unfinished = settings["steps"], target.with_name(f"{target.name}.unfinished")
    made_folder(target.parent, "folder")
    training = AdapterTraining(
        adapted, unfinished, name=f"task {task!r}", steps=steps, learning_rate=settings["learning_rate"],
        warm_up=WARM_UP,
    )  # fmt: skip
    losses = training.losses
    stream = batches(examples, settings["batch_size"], settings["seed"], len(losses))
    with few_threads(model.parameter_count), torch.enable_grad():
        while len(losses) < steps:
            if check is not None:
                check()
            training.step(_loss(adapted, next(stream)))
            step_done(len(losses))
    tenth = max(1, steps // 10)
    report = ControlReport(
        task, len({example.ids for example in examples}), sum(losses[:tenth]) / tenth, sum(losses[-tenth:]) / tenth,
        round(time.monotonic() - began, 1),
    )  # fmt: skip
    try:
        with whole_folder(target) as draft:
            save_adapters(adapted, draft)
            (draft / HEADER).write_text(json.dumps(asdict(report)) + "\n")
    except OSError:  # another process has finished the same one in the meantime
        if not (target / HEADER).is_file():
            raise
    unfinished.unlink(missing_ok=True)


def _loss(model: Any, batch: Batch) -> Tensor:
    """Mean cross-entropy of the responses."""
    labels = batch.labels.to(model.device)[:, 1:]
    learned = labels != IGNORED
    logits = model(input_ids=batch.ids.to(model.device), use_cache=False).logits[:, :-1]
    return F.cross_entropy(logits[learned].float(), labels[learned])


def _report(folder: Path) -> ControlReport:
    return ControlReport(**json.loads((folder / HEADER).read_text()))


def _file_name(task: str) -> str:
    """A task's name as the beginning of a folder's name."""
    return "".join(character if character.isalnum() else "_" for character in task)[:40]
