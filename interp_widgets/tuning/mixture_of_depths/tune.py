"""`tune_mod`: tune a Mixture of Depths on a frozen base model."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

import numpy as np

from interp_widgets.analysis._core.result import provenance
from interp_widgets.analysis.mixture_of_depths.tuning_results import ModReport
from interp_widgets.arguments import checked
from interp_widgets.atomic import named_path
from interp_widgets.data.files import cache_folder
from interp_widgets.models import LoadError, Model, ModModel, SelfCheckError, load_model
from interp_widgets.models.mixture_of_depths.checkpoint import (
    LoraLayers,
    LoraSetup,
    MixtureState,
    base_hash,
    is_mixture_folder,
    load_state,
)
from interp_widgets.models.mixture_of_depths.model import check_k, check_top_k
from interp_widgets.models.mixture_of_depths.opening import build_mixture, read_base
from interp_widgets.models.state import check_as_loaded
from interp_widgets.models.threads import few_threads

from ..examples import fingerprint, read_examples
from .auto_checkpoints import AutoCheckpoints
from .trainer import CURVES, Ending, ModStep, Settings, Trainer

EPOCHS = 2
"""Passes over the data set if ``steps`` is not given (appendix C.1)."""


class DivergedError(ValueError):
    """The tuned weights are so large that two computations of the same output differ; `report` has the curves."""

    def __init__(self, message: str, report: ModReport) -> None:
        super().__init__(message)
        self.report = report


@checked
def tune_mod(
    model: Model | str | Path | Any,
    dataset: Sequence[Any],
    k: int = 3,
    *,
    lora: int | None = None,
    lora_layers: LoraLayers = "last",
    distill: float = 1e-4,
    top_k: int | None = None,
    steps: int | None = None,
    batch_size: int = 16,
    learning_rate: float = 3e-4,
    train_norms: bool = True,
    only: int | None = None,
    each_route: bool = False,
    seed: int = 0,
    tokenizer: Any = None,
    resume: ModModel | str | Path | bool | None = None,
    checkpoints: str | Path | None = "default",
    progress: Callable[[int, int], None] | None = None,
    check: Callable[[], None] | None = None,
    on_step: Callable[[ModStep], None] | None = None,
    on_partial: Callable[[tuple[ModModel, ModReport]], None] | None = None,
) -> tuple[ModModel, ModReport]:
    """Tune a router and a norm for each of the last k layers, everything else frozen.

    Each of these layers has logits through its norm N_i and the model's own unembedding; the router weights them by
    g = softmax(x W_g), where x is the residual stream entering the first of the k layers. The loss is the
    cross-entropy of ``Σ g_i logits_i`` on the responses plus ``distill`` times ``Σ KL(P_i ‖ P_last)``, in which the
    last layer is the teacher. AdamW without weight decay, gradients clipped at length 1, no dropout, in float32. A soft
    cap on the base's logits (Gemma 2) acts on the sum, and on each route's own logits in the distillation.

    Args:
        model: a `Model` that was loaded from a name or folder, or a source for `load_model`. It is not changed.
        dataset: examples with a prompt and a response: pairs, dictionaries or objects.
        k: number of routes, 1..n_layers.
        lora: rank of the adapters (peft) on all linear maps of some layers, scaled by 2; None for no adapters.
        lora_layers: ``"last"`` puts the adapters on the last k layers, ``"below"`` on the layers below them, so that
            the mixture replaces adapters of the last k (section 5.1.2), ``"all"`` on every layer.
        distill: λ of the distillation term, 0 or more; 0 omits it.
        top_k: routes per token, 1..k; k (dense) by default.
        steps: total optimizer steps, including those before ``resume``; two passes over the data by default.
        batch_size: examples per step.
        learning_rate: constant learning rate of AdamW.
        train_norms: whether the norms are trained; otherwise every route uses the pretrained final norm.
        only: tune and use a single route, 0..k-1, without router and distillation: 0 is the first of the last k layers,
            k - 1 the last layer, which with ``lora`` is ordinary LoRA tuning.
        each_route: record the loss of each route even where ``distill`` is 0, which costs k more unembeddings.
        seed: seed of the first weights of router and adapters and of the order of the data.
        tokenizer: the tokenizer of a transformers model in memory; by default the one in its folder.
        resume: a `ModModel` or its folder to continue, tuned with the same options on the same data; on a CPU the
            weights are bit for bit the same as without the break. True continues the checkpoint in ``checkpoints`` of
            an ended run with the same options (after a killed kernel, say), or starts anew if there is none.
        checkpoints: folder in which a long run saves its state every 45 seconds and when interrupted, until it is
            finished; "default" for ``interp_widgets/tuning`` in the user's cache, None for none. Checkpoints of the
            last 8 unfinished runs are kept.
        progress: called with (done, total) steps.
        check: called before every step; raises to cancel.
        on_step: receives a `ModStep` after every step.
        on_partial: receives model and report of the steps so far when `check`, an interrupt or a lack of memory ends
            the tuning; the exception is raised afterwards.

    Returns:
        The tuned model and the curves. If the loss becomes NaN or infinite, tuning stops there and the model has the
        last good weights; ``ModReport.message`` names the step.

    Raises:
        ValueError: k, top_k or another number out of range, an empty or unlabelled data set, a base model that does not
            support a mixture, a ``resume`` from another run.
        ImportError: LoRA without the peft package.

    Source: Explainability in Large Language Models: Pathways to Refinement and Alignment (Luo 2024), section 5.1.1
    and appendix C.1.

    Example:
        >>> mixture, report = tune_mod(model, demo_problems("train", 4), k=2, steps=2, batch_size=2)
        >>> report.done, report.trained_parameters
        (2, 768)
        >>> mixture.generate("The Eiffel Tower is located in the city of", max_new_tokens=1)
        ' Paris'
    """
    base, source = _base(model, tokenizer)
    request = _settings(
        base, dataset, k, top_k, lora, lora_layers, distill, learning_rate, batch_size, train_norms, only, seed
    )
    own = None if checkpoints is None else named_path(checkpoints, "checkpoints")
    root = cache_folder("tuning") if checkpoints == "default" else own
    run = _Run(
        base, source, request.settings, steps if steps is not None else request.two_epochs, resume or None, each_route,
        root,
    )  # fmt: skip

    def report_step(step: ModStep) -> None:
        if on_step is not None:
            on_step(step)
        if progress is not None:
            progress(run.trainer.done, run.steps)
        run.kept.step_made(lambda: run.state("cancelled"))

    try:
        with few_threads(base.parameter_count):
            ending = run.trainer.run(request.examples, run.steps, check or (lambda: None), report_step)
    except BaseException as error:
        if on_partial is not None and run.trainer.done:
            try:
                partial = run.result("cancelled")
            except Exception as fault:  # the caller must see what stopped the run
                error.add_note(f"No model of the {run.trainer.done} steps made could be kept: {fault}")
            else:
                on_partial(partial)
                run.kept.remove()
        elif run.trainer.done and run.kept.write(run.state("cancelled")):
            error.add_note(
                f"The {run.trainer.done} steps made are in {run.kept.folder}: resume=True goes on from there"
            )
        raise
    result = run.result(ending)
    run.kept.remove()
    return result


# ---- options


@dataclass(frozen=True)
class _Request:
    settings: Settings
    examples: list[Any]

    @property
    def two_epochs(self) -> int:
        return EPOCHS * math.ceil(len(self.examples) / self.settings.batch_size)


def _base(model: Model | Any, tokenizer: Any) -> tuple[Model, Any]:
    """The base model, and what `read_base` reads its transformers model from."""
    check_base(model)
    if not isinstance(model, Model):
        return load_model(model, tokenizer=tokenizer), model
    if model.source is None:
        raise ValueError(
            f"{model.name} came from memory and its transformers model is unknown: give that model itself "
            "(with tokenizer=), its name or its folder"
        )
    check_as_loaded(model, "tune_mod")
    return model, model


def check_base(model: Model | str | Path | Any) -> None:
    """ValueError for a mixture, or the folder of a mixture, instead of a base model."""
    if isinstance(model, ModModel) or is_mixture_folder(model):
        name = model.name if isinstance(model, ModModel) else model
        raise ValueError(f"{name} already has a mixture: tune its base model, or continue it with resume=")


def _settings(
    base: Model,
    dataset: Sequence[Any],
    k: int,
    top_k: int | None,
    lora: int | None,
    lora_layers: LoraLayers,
    distill: float,
    learning_rate: float,
    batch_size: int,
    train_norms: bool,
    only: int | None,
    seed: int,
) -> _Request:
    """Check every option against the model."""
    layers = base.n_layers
    check_k(k, layers)
    top = k if top_k is None else top_k
    check_top_k(top, k)
    check_adapters(lora, lora_layers, k, layers)
    if not (distill >= 0 and math.isfinite(distill)):
        raise ValueError(f"distill must be 0 or more, got {distill}")
    if not 0 < learning_rate <= 1:
        raise ValueError(f"learning_rate must be above 0 and at most 1, got {learning_rate}")
    if only is not None and not 0 <= only < k:
        raise ValueError(f"only must be a route in 0..{k - 1} or None, got {only!r}")
    if only is not None and lora is None and not train_norms:
        raise ValueError("nothing is left to train: give lora= where only= is set and train_norms is False")
    examples = read_examples(base, dataset)
    setup = None if lora is None else LoraSetup(lora, lora_layers, 2 * lora)
    settings = Settings(
        k, top, setup, float(distill) if only is None else 0.0, float(learning_rate), batch_size, int(seed),
        bool(train_norms), only, fingerprint(examples),
    )  # fmt: skip
    return _Request(settings, examples)


@checked
def check_adapters(lora: int | None, lora_layers: str, k: int, layers: int) -> None:
    """ValueError if k routes in a model of ``layers`` layers cannot have these adapters."""
    if lora is not None and lora < 1:
        raise ValueError(f"lora must be a rank of 1 or more, or None, got {lora!r}")
    if lora_layers not in get_args(LoraLayers):
        raise ValueError(f"lora_layers must be 'last', 'below' or 'all', got {lora_layers!r}")
    if lora is not None and lora_layers == "below" and k == layers:
        raise ValueError(f"no layer is below the last {k} of {layers}: give a smaller k, or lora_layers='all'")


def _state(resume: ModModel | str | Path) -> MixtureState:
    state = resume.state if isinstance(resume, ModModel) else load_state(resume)
    if not state.training:
        raise ValueError("this mixture was saved without the state that resuming needs: tune from the start")
    return state


# ---- a run


class _Run:
    """The trainer of a request, and its final model and report."""

    def __init__(
        self, base: Model, source: Any, settings: Settings, steps: int, resume: ModModel | str | Path | bool | None,
        each_route: bool, checkpoints: Path | None,
    ) -> None:  # fmt: skip
        if steps < 1:
            raise ValueError(f"steps must be 1 or more, got {steps}")
        self.base, self.source, self.steps, self.settings = base, source, steps, settings
        hf_model, _ = read_base(source, base.tokenizer)
        self.hash, self.size = base_hash(hf_model), hf_model.num_parameters()
        self.kept = AutoCheckpoints(checkpoints, self.hash, settings.plain())
        before = None if resume is None else self.kept.last(steps) if isinstance(resume, bool) else _state(resume)
        if before is not None:
            self._check(before)
        self.trainer = Trainer(hf_model, settings, base.device, each_route)
        if before is not None:
            self.trainer.resume(before)

    def _check(self, before: MixtureState) -> None:
        if before.base_hash != self.hash:
            raise ValueError(
                f"resume: the mixture was tuned on {before.base_name} with weights {before.base_hash[:12]}…, "
                f"but {self.base.name} has weights {self.hash[:12]}…: give the same base model"
            )
        for name, value in self.settings.plain().items():
            was = before.settings.get(name)
            if was != value:
                change = "the data set has changed" if name == "data" else f"{name} was {was}, now {value}"
                raise ValueError(f"resume: {change}: use the same, or tune from the start")
        done = len(before.training["curves.task"])
        if done > self.steps:
            raise ValueError(f"resume: {done} steps were made already, got steps={self.steps}: ask for more")

    def state(self, ending: Ending) -> MixtureState:
        weights, training = self.trainer.state()
        if ending == "nan":
            training = {}  # the same steps would end the same way
        chosen = self.settings
        came_from_name = isinstance(self.source, str | Path | Model)
        return MixtureState(
            chosen.k, chosen.top_k, chosen.lora, self.base.source if came_from_name else None, self.base.name,
            self.hash, weights, training, chosen.plain(), chosen.only,
        )  # fmt: skip

    def result(self, ending: Ending) -> tuple[ModModel, ModReport]:
        """Model and report; the trainer's model is freed first to make room for the new one."""
        state, report = self.state(ending), self._report(ending)
        self.trainer.release()
        hf_model, tokenizer = read_base(self.source, self.base.tokenizer)
        try:
            model = build_mixture(
                hf_model, state, tokenizer=tokenizer, name=f"{self.base.name} + MoD", source=None,
                device=self.base.device, dtype=self.base.dtype, backend=self.base.backend,
            )  # fmt: skip
        except (SelfCheckError, LoadError) as error:
            raise DivergedError(
                f"after {report.done} steps the tuned model is unreliable, its last loss was "
                f"{report.task[-1] if report.done else math.nan:.3g}: {error}. Try a smaller learning rate",
                report,
            ) from error
        return model, report

    def _report(self, ending: Ending) -> ModReport:
        trainer, done = self.trainer, self.trainer.done
        message = {
            "done": f"{done} steps done",
            "cancelled": f"cancelled after {done} of {self.steps} steps; the model has the weights of step {done}",
            "nan": f"stopped at step {done + 1} of {self.steps}: the loss was NaN or infinite; "
            "the model has the last good weights. Try a smaller learning rate",
        }[ending]
        curves = {name: np.asarray(trainer.curves[name], dtype=np.float64) for name in CURVES}
        if not done:
            curves |= {name: np.zeros((0, self.settings.k)) for name in ("routes", "sparsity", "mean", "variance")}
        return ModReport(
            **curves,
            layers=tuple(range(self.base.n_layers - self.settings.k, self.base.n_layers)),
            steps=self.steps,
            stopped=ending,
            message=message,
            parameters_router=trainer.count("router"),
            parameters_norms=trainer.count("norms."),
            parameters_lora=trainer.count("lora."),
            parameters_base=self.size,
            partial=ending != "done",
            provenance=provenance(self.base.provenance(), **self.settings.plain(), base_weights=self.hash),
        )
