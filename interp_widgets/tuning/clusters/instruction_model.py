"""`train_instruction_model`: a GPT-2-shaped model from scratch on the synthetic instruction-following task."""

from __future__ import annotations

import math
import random
import secrets
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import nn

from interp_widgets.analysis._core.checks import check_range
from interp_widgets.arguments import checked
from interp_widgets.atomic import disk_errors, made_folder, whole_file
from interp_widgets.data.instruction_task import InstructionTask
from interp_widgets.models.library_messages import quiet
from interp_widgets.models.threads import few_threads

from .network import Instances, new_network, task_tokenizer
from .runs import HEADER, TASK, InstructionRun, checkpoint_folder, read_header, read_instruction_run, write_header

with quiet("transformers"):
    from transformers import GPT2LMHeadModel

WARM_UP = 100
"""Steps of a linear rise of the learning rate."""
LARGEST_GRADIENT = 1.0
PAPER_WIDTH, PAPER_MLP = 768, 1024
_MOMENTS = ("step", "exp_avg", "exp_avg_sq")


@checked
def train_instruction_model(
    task: InstructionTask,
    folder: str | Path,
    *,
    width: int = 32,
    layers: int = 6,
    heads: int = 8,
    mlp_width: int | None = None,
    dropout: float = 0.0,
    steps: int | None = None,
    epochs: int = 50,
    batch_size: int = 128,
    learning_rate: float = 4e-3,
    weight_decay: float = 0.1,
    embedding_rate: float = 0.05,
    output_weight: float = 3.0,
    checkpoints: int = 16,
    evaluations: int = 40,
    seed: int = 0,
    device: str = "cpu",
    progress: Callable[[int, int], None] | None = None,
    check: Callable[[], None] | None = None,
) -> InstructionRun:
    """Train a GPT-2-shaped model from scratch on ``[instruction; x; y]``, one token per symbol, and keep checkpoints.

    AdamW with a cosine schedule after a short warm-up, gradients clipped at length 1; the loss is the cross-entropy of
    every next token, in which the output counts three times. Called again with the same folder and settings, a training
    that was stopped goes on from where it was, with the same numbers on the same machine; a finished one is given back.
    The defaults are for a 32-wide model in minutes on a CPU. The paper's main model is 768-wide and trained with
    ``learning_rate=1e-4, dropout=0.2, embedding_rate=1, output_weight=1, epochs=200``: 9 s a step on one busy core, 34
    hours in all.

    Args:
        task: what `make_instruction_task` makes.
        folder: where the checkpoints are kept, made where missing; each is a folder that `load_model` takes.
        width: of the residual stream (d_model).
        layers: Transformer blocks.
        heads: attention heads per block, a divisor of ``width``.
        mlp_width: neurons of a block; by default 1,024 for 768 (Table 4) and else twice the width, which gives the
            paper's numbers of parameters (Table 6).
        dropout: on embeddings, attention and block outputs; 0.2 in the paper.
        steps: of training; by default as many as ``epochs`` take.
        epochs: passes over the training data where ``steps`` is None.
        batch_size: instances in a step; they are of similar length.
        learning_rate: the highest one.
        weight_decay: of AdamW.
        embedding_rate: the learning rate of the embeddings as a share of the others': at the full rate they grow until
            an input's own embedding outweighs what the blocks write beside it, and states cluster by input.
        output_weight: how many times the output counts in the loss, where every other next token counts once: the
            symbols of instructions and inputs are drawn at random, and 1 (the paper's loss) learns later.
        checkpoints: how many are kept: before training, at the end, and between at equal ratios of steps.
        evaluations: of the task accuracy, at equal distances, besides those at checkpoints.
        seed: of weights, order and dropout; the global seeds stay as they are.
        device: where to train.
        progress: called with (done, total) steps.
        check: called before every step; raises to cancel, which keeps what was done.

    Raises:
        ValueError: a size out of range, or a folder in which another training is kept.
        FileNotFoundError: a folder whose parts were removed.

    Source: "Transformer-based Causal Language Models Perform Clustering", §3.1, appendix C, Table 4.

    Example:
        >>> import tempfile
        >>> task = make_instruction_task(tasks=3, subset_tasks=2, validation_tasks=1, hard_tasks=1, max_distributions=1)
        >>> run = train_instruction_model(task, tempfile.mkdtemp(), width=16, layers=1, heads=2, steps=4, checkpoints=2)
        >>> run.done, run.history.step.tolist()
        (True, [0, 1, 2, 3, 4])
    """
    for name, value in {"width": width, "layers": layers, "heads": heads, "epochs": epochs, "batch_size": batch_size,
                        "evaluations": evaluations}.items():  # fmt: skip
        check_range(name, value, 1)
    check_range("checkpoints", checkpoints, 2)
    if width % heads:
        raise ValueError(f"width must be a multiple of heads, got {width} and {heads}")
    check_range("dropout", dropout, 0, 0.9)
    check_range("learning_rate", learning_rate, 1e-8, 1)
    check_range("weight_decay", weight_decay, 0, 1)
    check_range("embedding_rate", embedding_rate, 0, 1)
    check_range("output_weight", output_weight, 0)
    if steps is not None:
        check_range("steps", steps, 1)
    if mlp_width is None:
        mlp_width = PAPER_MLP if width == PAPER_WIDTH else 2 * width
    check_range("mlp_width", mlp_width, 1)
    per_epoch = math.ceil(len(task.training()) / batch_size)
    total = steps if steps is not None else epochs * per_epoch
    settings = {
        "width": width, "layers": layers, "heads": heads, "mlp_width": mlp_width, "dropout": dropout, "steps": total,
        "batch_size": batch_size, "learning_rate": learning_rate, "weight_decay": weight_decay,
        "embedding_rate": embedding_rate, "output_weight": output_weight, "checkpoints": checkpoints,
        "evaluations": evaluations, "seed": seed,
    }  # fmt: skip
    target = made_folder(folder, "folder")
    training = _Training(task, target, settings, torch.device(device))
    with few_threads(training.parameters if device == "cpu" else 0):
        training.run(progress, check)
    return read_instruction_run(target)


def checkpoint_steps(total: int, count: int) -> tuple[int, ...]:
    """0, `total`, and steps between at equal ratios, from about a two-hundredth of the whole.

    >>> checkpoint_steps(1000, 6)
    (0, 5, 19, 71, 266, 1000)
    """
    first = max(1.0, total / 200)
    ratios = [round(first * (total / first) ** (number / max(count - 2, 1))) for number in range(count - 1)]
    return tuple(sorted({0, *ratios[:-1], total}))


class _Training:
    """One training: its model, what it has done, and where it keeps that."""

    def __init__(self, task: InstructionTask, folder: Path, settings: dict[str, Any], device: torch.device) -> None:
        self.folder, self.settings, self.device, self.task = folder, settings, device, task
        self.total: int = settings["steps"]
        self.data = Instances(task, task.training())
        self.held = [Instances(task, task.training_subset()), Instances(task, task.validation())]
        sizes = {name: settings[name] for name in ("width", "layers", "heads", "mlp_width", "dropout", "seed")}
        self.model: GPT2LMHeadModel = new_network(task, **sizes).to(device)
        for block in self.model.transformer.h:
            block.mlp.act = nn.GELU(approximate="tanh")  # the same function as "gelu_new", in one operation
        self.parameters = sum(weight.numel() for weight in self.model.parameters())
        embeddings = [self.model.transformer.wte.weight, self.model.transformer.wpe.weight]
        others = [weight for weight in self.model.parameters() if all(weight is not one for one in embeddings)]
        self.optimizer = torch.optim.AdamW(
            [{"params": others, "share": 1.0}, {"params": embeddings, "share": settings["embedding_rate"]}],
            lr=settings["learning_rate"],
            betas=(0.9, 0.98),
            weight_decay=settings["weight_decay"],
            fused=device.type in ("cpu", "cuda"),  # others may not have it
        )
        self.step = 0
        self.kept: list[int] = []
        self.history: list[list[float | None]] = []
        self.losses: list[float] = []
        self.state_file: str | None = None

    def run(self, progress: Callable[[int, int], None] | None, check: Callable[[], None] | None) -> None:
        """Train from where an earlier run in this folder stopped to the end."""
        if (self.folder / HEADER).exists():
            self._resume()
        else:
            self.task.save(self.folder / TASK)
        wanted = set(checkpoint_steps(self.total, self.settings["checkpoints"]))
        looked = {round(self.total * n / self.settings["evaluations"]) for n in range(self.settings["evaluations"] + 1)}
        if self.step == 0 and not self.kept:
            self._evaluate()
            self._keep()
        with torch.random.fork_rng(devices=[]):
            for rows in self._batches():
                try:
                    if check is not None:
                        check()
                except BaseException:
                    self._write_state()
                    raise
                self._learn(rows)
                if self.step in wanted | looked:
                    self._evaluate()
                if self.step in wanted:
                    self._keep()
                if progress is not None:
                    progress(self.step, self.total)

    def _batches(self) -> Iterator[torch.Tensor]:
        """The rest of the batches; their order depends on the seed and the epoch alone."""
        size, count = self.settings["batch_size"], len(self.data.tokens)
        per_epoch = math.ceil(count / size)
        while self.step < self.total:
            epoch, done = divmod(self.step, per_epoch)
            order = random.Random(f"{self.settings['seed']} {epoch}")
            rows = list(range(count))
            order.shuffle(rows)
            rows.sort(key=lambda row: int(self.data.lengths[row]))  # those of one length stay shuffled
            batches = [rows[first : first + size] for first in range(0, count, size)]
            order.shuffle(batches)
            for batch in batches[done : done + self.total - self.step]:
                yield torch.tensor(batch)

    def _learn(self, rows: torch.Tensor) -> None:
        rise = min(1.0, (self.step + 1) / WARM_UP)
        fall = 0.5 * (1 + math.cos(math.pi * self.step / self.total))
        for group in self.optimizer.param_groups:
            group["lr"] = group["share"] * self.settings["learning_rate"] * rise * fall
        torch.manual_seed(self.settings["seed"] * 1_000_003 + self.step)  # of dropout; inside fork_rng
        self.model.train()
        loss = self.data.loss(self.model, rows, self.settings["output_weight"])
        loss.backward()  # type: ignore[no-untyped-call]
        nn.utils.clip_grad_norm_(self.model.parameters(), LARGEST_GRADIENT)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        self.losses.append(float(loss.detach()))
        self.step += 1

    def _evaluate(self) -> None:
        self.model.eval()
        accuracies = [held.accuracy(self.model) for held in self.held]
        epoch = self.step * self.settings["batch_size"] / len(self.data.tokens)
        loss = sum(self.losses) / len(self.losses) if self.losses else None
        self.history.append([self.step, round(epoch, 4), loss, *accuracies])
        self.losses = []

    def _keep(self) -> None:
        """Write a checkpoint, and the state to go on from."""
        path = checkpoint_folder(self.folder, self.step)
        weights = {name: weight.detach().contiguous().cpu() for name, weight in self.model.named_parameters()}
        with disk_errors(path):
            path.mkdir(exist_ok=True)
            self.model.config.save_pretrained(path)
            with whole_file(path / "model.safetensors") as draft:
                save_file(weights, draft, metadata={"format": "pt"})
            task_tokenizer(self.task).save_pretrained(path)
        self.kept.append(self.step)
        self._write_state()

    def _write_state(self) -> None:
        old, self.state_file = self.state_file, None
        if self.step < self.total:
            self.state_file = f"state-{secrets.token_hex(4)}.safetensors"
            tensors = {f"model.{name}": value for name, value in self.model.named_parameters()}
            for name, weight in self.model.named_parameters():
                for moment, value in self.optimizer.state.get(weight, {}).items():
                    tensors[f"{moment}.{name}"] = value
            with whole_file(self.folder / self.state_file) as draft:
                save_file({name: value.detach().contiguous().cpu() for name, value in tensors.items()}, draft)
        write_header(
            self.folder,
            {
                "settings": self.settings,
                "step": self.step,
                "checkpoints": self.kept,
                "history": self.history,
                "losses": self.losses,
                "state": self.state_file,
                "done": self.step == self.total,
            },
        )
        if old is not None:
            (self.folder / old).unlink(missing_ok=True)

    def _resume(self) -> None:
        content = read_header(self.folder)
        if content["settings"] != self.settings or InstructionTask.load(self.folder / TASK) != self.task:
            raise ValueError(
                f"another training is kept in {self.folder}: give another folder, or the task and settings of that one"
            )
        self.step, self.kept, self.history = content["step"], content["checkpoints"], content["history"]
        self.losses, self.state_file = content["losses"], content["state"]
        if content["done"]:
            return
        tensors = load_file(self.folder / content["state"], device=str(self.device))
        with torch.no_grad():
            for name, weight in self.model.named_parameters():
                weight.copy_(tensors[f"model.{name}"])
                if f"step.{name}" in tensors:
                    self.optimizer.state[weight] = {moment: tensors[f"{moment}.{name}"] for moment in _MOMENTS}
