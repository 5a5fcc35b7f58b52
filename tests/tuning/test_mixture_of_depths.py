"""Tuning a mixture of depths: the loss as defined, stop and go on bit by bit, what is counted, what is refused."""

from __future__ import annotations

import gc
import math
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from interp_widgets.models import ModModel, load_model
from interp_widgets.models.mixture_of_depths.assemble import new_mixture
from interp_widgets.models.mixture_of_depths.install import installed, late_parts
from interp_widgets.tuning.examples import IGNORED, Batch, batches, read_examples
from interp_widgets.tuning.mixture_of_depths import ModReport, tune_mod
from interp_widgets.tuning.mixture_of_depths import trainer as trainer_module
from interp_widgets.tuning.mixture_of_depths.loss import StepLoss, distillation_loss, routing_statistics, step_loss
from interp_widgets.tuning.mixture_of_depths.trainer import ModStep
from tests.models.tiny import tiny_folder, tiny_hf, tiny_model

DATA = [
    ("The Eiffel Tower is located in the city of", " Paris"),
    ("When Mary and John went to the store, John gave a drink to", " Mary"),
    ("The capital of France is", " Paris, and the capital of Italy is Rome."),
    ("One two three", " four five six"),
    ("A pilot flies a", " plane"),
]
QUICK: dict[str, Any] = {"k": 2, "batch_size": 2, "learning_rate": 1e-2}


@pytest.fixture(autouse=True, scope="module")
def one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def tune(family: str = "llama", **options: Any) -> tuple[ModModel, ModReport]:
    return tune_mod(tiny_folder(family), DATA, **{**QUICK, "steps": 6, **options})


def same(one: ModModel, other: ModModel) -> bool:
    left, right = one.state.weights, other.state.weights
    return left.keys() == right.keys() and all(torch.equal(left[name], right[name]) for name in left)


# ---- the loss


def batch_of(rows: list[tuple[list[int], int]]) -> Batch:
    """Rows of token ids of one length, of which so many are the prompt."""
    ids = torch.tensor([row for row, _ in rows])
    labels = ids.clone()
    for index, (_, given) in enumerate(rows):
        labels[index, :given] = IGNORED
    return Batch(ids, labels)


def wide_step(distill: float, *, scale: float = 0.3, family: str = "gpt2") -> tuple[Any, Any, Any, Batch, StepLoss]:
    hf_model = tiny_hf(family, dtype=torch.float64).requires_grad_(False)
    parts = late_parts(hf_model)
    generator = torch.Generator().manual_seed(0)
    router = scale * torch.randn(32, 3, generator=generator, dtype=torch.float64)
    mixture = new_mixture(parts, router, 3)
    parts.norm.requires_grad_(True)
    batch = batch_of([([5, 17, 30, 44, 8, 61], 3), ([7, 3, 12, 9, 20, 33], 2)])
    with installed(parts, mixture):
        return hf_model, parts, mixture, batch, step_loss(hf_model, parts, mixture, batch, distill)


@torch.no_grad()
def naive_loss(hf_model: Any, parts: Any, mixture: Any, batch: Batch, cap: float = 1e6) -> tuple[float, float, float]:
    """Task, Σ KL(P_i ‖ P_last) and Σ KL(P_last ‖ P_i) token by token, from logits of every route."""
    streams = []
    handles = [m.register_forward_hook(lambda m, args, made: streams.append((args[0], made))) for m in parts.layers]
    capped = lambda logits: cap * torch.tanh(logits / cap)
    hf_model(batch.ids)
    for handle in handles:
        handle.remove()
    first = lambda made: made[0] if isinstance(made, tuple) else made
    norms = [*mixture.norms, parts.norm]
    routes = [parts.head(norm(first(made))) for norm, (_, made) in zip(norms, streams, strict=True)]
    weights = (streams[0][0] @ mixture.router).softmax(-1)
    task, towards, away, count = 0.0, 0.0, 0.0, 0
    for row in range(len(batch.ids)):
        for at in range(batch.ids.shape[1] - 1):
            target = int(batch.labels[row, at + 1])
            if target == IGNORED:
                continue
            logits = sum(weights[row, at, i] * routes[i][row, at] for i in range(3))
            task -= float(capped(logits).log_softmax(-1)[target])
            last = capped(routes[-1][row, at]).log_softmax(-1)
            for i in range(2):
                own = capped(routes[i][row, at]).log_softmax(-1)
                towards += float((own.exp() * (own - last)).sum())
                away += float((last.exp() * (last - own)).sum())
            count += 1
    return task / count, towards / count, away / count


def test_the_loss_is_the_definition_token_by_token() -> None:
    hf_model, parts, mixture, batch, found = wide_step(0.1)
    task, towards, away = naive_loss(hf_model, parts, mixture, batch)
    assert float(found.task) == pytest.approx(task, rel=1e-9)
    assert float(found.distillation) == pytest.approx(towards, rel=1e-9)
    assert float(found.total.detach()) == pytest.approx(task + 0.1 * towards, rel=1e-9)
    assert abs(towards - away) > 0.01, "the other direction would be another number"
    assert found.gates.shape == (7, 3)


def test_the_loss_is_that_of_capped_logits() -> None:
    hf_model, parts, mixture, batch, found = wide_step(0.1, family="gemma2")
    task, towards, _ = naive_loss(hf_model, parts, mixture, batch, 3.0)
    assert float(found.task) == pytest.approx(task, rel=1e-6)  # its norms are in float32
    assert float(found.distillation) == pytest.approx(towards, rel=1e-5)
    bare, apart, _ = naive_loss(hf_model, parts, mixture, batch)
    assert abs(float(found.task) - bare) > 0.01
    assert abs(float(found.distillation) - apart) > 0.01
    alone = [float(loss) for loss in found.routes]
    with installed(parts, mixture):
        again = step_loss(hf_model, parts, mixture, batch, 0.0, each_route=True)
    assert [float(loss) for loss in again.routes] == pytest.approx(alone, rel=1e-9)


def test_without_lambda_the_term_is_gone() -> None:
    *_, with_term = wide_step(0.1)
    *_, without = wide_step(0.0)
    assert torch.equal(without.total, without.task)
    assert math.isnan(float(without.distillation))
    assert float(with_term.total.detach()) > float(without.total.detach())
    assert float(with_term.task) == float(without.task)


@pytest.mark.filterwarnings("ignore:Converting a tensor")
def test_the_teacher_gets_no_gradient() -> None:
    teacher, student = (torch.randn(4, 9, dtype=torch.float64, requires_grad=True) for _ in range(2))
    distillation_loss([student], teacher).backward()
    assert teacher.grad is None
    assert student.grad is not None
    wanted = F.kl_div(teacher.log_softmax(-1), student.log_softmax(-1), reduction="batchmean", log_target=True)
    assert float(distillation_loss([student], teacher)) == pytest.approx(float(wanted))
    other = F.kl_div(student.log_softmax(-1), teacher.log_softmax(-1), reduction="batchmean", log_target=True)
    assert abs(float(other - wanted)) > 1e-3
    assert float(distillation_loss([student, student], teacher)) == pytest.approx(2 * float(wanted))

    def norm_gradient(distill: float) -> Tensor:
        _, parts, _, _, found = wide_step(distill)
        (gradient,) = torch.autograd.grad(found.total, parts.norm.weight)
        return gradient

    assert torch.equal(norm_gradient(0.0), norm_gradient(1.0)), "in a model: the last route's norm feels the task only"


def test_padding_changes_nothing() -> None:
    model = tiny_model("llama")
    examples = read_examples(model, DATA)
    batch = next(batches(examples[:3], 3, 0, 0))
    assert len({len(example.ids) for example in examples[:3]}) > 1
    hf_model = tiny_hf("llama").requires_grad_(False)
    parts = late_parts(hf_model)
    mixture = new_mixture(parts, 0.3 * torch.randn(32, 2, generator=torch.Generator().manual_seed(0)), 2)
    with installed(parts, mixture):
        together = step_loss(hf_model, parts, mixture, batch, 0.0)
        alone = []
        for example in examples[:3]:
            one = next(batches([example], 1, 0, 0))
            count = int((one.labels != IGNORED).sum())
            alone.append((float(step_loss(hf_model, parts, mixture, one, 0.0).task), count))
    wanted = sum(loss * n for loss, n in alone) / sum(n for _, n in alone)
    assert float(together.task) == pytest.approx(wanted, rel=1e-5)


def test_routing_statistics() -> None:
    gates = torch.tensor([[1.0, 0.0, 0.0], [0.5, 0.5 - 9e-6, 9e-6], [0.2, 0.3, 0.5]])
    sparsity, mean, variance = routing_statistics(gates)
    assert np.allclose(sparsity, [0, 1 / 3, 2 / 3])
    assert np.allclose(mean, gates.double().mean(0))
    assert np.allclose(variance, np.var(gates.double().numpy(), axis=0))


# ---- the data


def test_data_in_every_form_and_what_is_wrong_with_it() -> None:
    model = tiny_model("llama")
    given = [("a b", " c"), ["a b", " c"], {"prompt": "a b", "response": " c"}, ModCase("a b", " c")]
    one, *others = read_examples(model, given)
    assert others == [one] * 3
    prompt, response = model.split("a b", " c")
    assert list(one.ids) == [*prompt, *response, model.eos_token_id]
    assert one.prompt_length == len(prompt)
    for wrong, message in (
        ([], "the data set is empty"),
        ([("a", " b"), ("c", None)], "example 1 has no response to learn"),
        ([("a", " b"), ("", " d")], "example 1 has no prompt"),
        ([3], "example 0 has no prompt"),
        ([("word " * 200, " b")], r"example 0 has \d+ tokens, more than the model's context of 128"),
    ):
        with pytest.raises(ValueError, match=message):
            read_examples(model, wrong)


class ModCase:
    def __init__(self, prompt: str, response: str) -> None:
        self.prompt, self.response = prompt, response


def test_every_epoch_has_every_example_once_in_an_order_of_its_own() -> None:
    examples = read_examples(tiny_model("llama"), DATA)
    stream = batches(examples, 2, 5, 0)
    epochs = []
    for _ in range(3):
        rows = [tuple(row[row != 0].tolist()) for _ in range(3) for row in next(stream).ids]
        epochs.append(rows)
    assert len(epochs[0]) == 5
    assert sorted(epochs[0]) == sorted(epochs[1]) == sorted(epochs[2])
    assert epochs[0] != epochs[1]
    later = batches(examples, 2, 5, 4)
    skipped = batches(examples, 2, 5, 0)
    for _ in range(4):
        next(skipped)
    assert torch.equal(next(later).ids, next(skipped).ids)
    other = batches(examples, 2, 6, 0)
    assert [tuple(row[row != 0].tolist()) for _ in range(3) for row in next(other).ids] != epochs[0]


# ---- tuning


@pytest.mark.parametrize("family", ["gpt2", "llama", "gpt_neox"])
def test_tuning_learns_and_leaves_the_base_alone(family: str) -> None:
    base = load_model(tiny_folder(family), device="cpu")
    before = base.run([5, 6, 7]).logits
    told: list[ModStep] = []
    seen: list[tuple[int, int]] = []
    model, report = tune_mod(
        base, DATA, k=2, batch_size=5, steps=12, learning_rate=3e-2,
        on_step=told.append, progress=lambda a, b: seen.append((a, b)),
    )  # fmt: skip
    assert torch.equal(base.run([5, 6, 7]).logits, before)
    assert report.task[-1] < 0.9 * report.task[0]
    assert report.stopped == "done"
    assert not report.partial
    assert seen == [(i + 1, 12) for i in range(12)]
    assert [step.step for step in told] == list(range(12))
    assert [step.task for step in told] == report.task.tolist()
    assert np.allclose(report.mean.sum(1), 1)
    assert report.mean.shape == (12, 2)
    assert list(report.to_frame().columns) == [
        "step", "task", "distillation", "task_1", "sparsity_1", "mean_1", "variance_1",
        "task_2", "sparsity_2", "mean_2", "variance_2",
    ]  # fmt: skip
    assert report.layers == model.route_layers == (1, 2)
    assert not torch.equal(model.run([5, 6, 7]).logits, before)


@pytest.mark.seconds
@pytest.mark.parametrize("family", ["llama", "gemma2"])
def test_the_model_has_the_loss_that_was_tuned(family: str) -> None:
    """The last word of training and the first of inspection are one: the ensemble's loss, through TransformerLens."""
    model, _ = tune(family, batch_size=5, steps=5)
    _, report = tune(family, batch_size=5, steps=6)
    total, count = 0.0, 0
    for example in read_examples(model, DATA):
        ids = torch.tensor(example.ids)
        logits = model.run(ids).logits[0].double().log_softmax(-1)
        total -= float(logits[torch.arange(len(ids) - 1), ids[1:]][example.prompt_length - 1 :].sum())
        count += len(ids) - example.prompt_length
    assert total / count == pytest.approx(report.task[5], rel=1e-4)
    assert abs(total / count - report.task[0]) > 1e-2


def test_two_passes_over_the_data_by_default() -> None:
    _, report = tune(steps=None)
    assert report.steps == report.done == 2 * math.ceil(len(DATA) / QUICK["batch_size"])


@pytest.mark.seconds
def test_trained_parameters_are_counted() -> None:
    model, report = tune(k=3)
    assert (report.parameters_router, report.parameters_norms, report.parameters_lora) == (96, 96, 0)
    assert report.trained_parameters == model.added_parameters == 192
    assert report.parameters_base == tiny_hf("llama").num_parameters()
    assert report.trained_share == 192 / report.parameters_base
    _, gpt2 = tune("gpt2", k=3)
    assert gpt2.parameters_norms == 3 * 2 * 32  # LayerNorm has a bias too
    _, bare = tune(train_norms=False)
    assert (bare.parameters_router, bare.parameters_norms) == (64, 0)
    lora, adapted = tune(lora=2, steps=2)
    maps = [m for m in tiny_hf("llama").model.layers[0].modules() if isinstance(m, torch.nn.Linear)]
    assert adapted.parameters_lora == 2 * sum(2 * (m.in_features + m.out_features) for m in maps)
    _, everywhere = tune(lora=2, lora_layers="all", steps=1)
    assert everywhere.parameters_lora == 3 * adapted.parameters_lora / 2
    below, others = tune(lora=2, lora_layers="below", steps=1)
    assert others.parameters_lora == everywhere.parameters_lora - adapted.parameters_lora
    assert {name.split(".layers.")[1][0] for name in below.state.weights if name.startswith("lora.")} == {"0"}
    assert lora.added_parameters == adapted.trained_parameters


@pytest.mark.seconds
def test_norms_that_are_not_trained_stay_those_of_the_base() -> None:
    model, _ = tune(train_norms=False)
    final = tiny_hf("llama").model.norm.weight
    assert all(torch.equal(model.state.weights[f"norms.{i}.weight"], final) for i in range(2))
    trained, _ = tune()
    assert not any(torch.equal(trained.state.weights[f"norms.{i}.weight"], final) for i in range(2))


def test_the_router_starts_small_and_by_its_seed() -> None:
    def first(seed: int) -> Tensor:
        made = trainer_module.Trainer(tiny_hf("llama"), settings(seed), torch.device("cpu"))
        return made.mixture.router.detach()

    assert torch.equal(first(0), first(0))
    assert not torch.equal(first(0), first(1))
    assert float(torch.cat([first(i) for i in range(20)]).std()) == pytest.approx(0.02, rel=0.1)


def settings(seed: int) -> trainer_module.Settings:
    return trainer_module.Settings(3, 3, None, 1e-4, 3e-4, 16, seed, True, None, "")


@pytest.mark.slow
@pytest.mark.parametrize(
    "options",
    [{}, {"lora": 2, "top_k": 1, "k": 3}, {"lora": 2, "lora_layers": "all"}, {"lora": 2, "lora_layers": "below"}],
    ids=str,
)
@pytest.mark.parametrize("family", ["gpt2", "llama"])
def test_stop_save_and_go_on_is_the_uninterrupted_run(tmp_path: Path, family: str, options: dict[str, Any]) -> None:
    whole, report = tune(family, steps=7, **options)
    half, first = tune(family, steps=4, **options)
    assert not same(whole, half)
    half.save(tmp_path / "half")
    gone_on, second = tune(family, steps=7, resume=tmp_path / "half", **options)
    assert same(gone_on, whole)
    for name in ("task", "sparsity", "mean", "variance"):
        assert np.array_equal(getattr(second, name), getattr(report, name))
        assert np.array_equal(getattr(second, name)[:4], getattr(first, name))
    ids = [5, 6, 7]
    assert torch.equal(gone_on.run(ids).logits, whole.run(ids).logits)
    from_memory, _ = tune(family, steps=7, resume=half, **options)
    assert same(from_memory, whole)


@pytest.mark.seconds
def test_going_on_without_the_moments_would_differ(tmp_path: Path) -> None:
    """The control of the test above."""
    import dataclasses

    whole, _ = tune(steps=7)
    half, _ = tune(steps=4)
    forgetful = {name: value for name, value in half.state.training.items() if not name.endswith("exp_avg_sq")}
    zeros = {n: torch.zeros_like(v) for n, v in half.state.training.items() if n.endswith("exp_avg_sq")}
    half.state = dataclasses.replace(half.state, training={**forgetful, **zeros})
    other, _ = tune(steps=7, resume=half)
    assert not same(other, whole)


@pytest.mark.seconds
def test_resume_belongs_to_its_run(tmp_path: Path) -> None:
    half, _ = tune(steps=3)
    for wrong, message in (
        ({"distill": 0.5}, r"distill was 0\.0001, now 0\.5"),
        ({"seed": 3}, "seed was 0, now 3"),
        ({"lora": 2}, "lora was None"),
        ({"steps": 2}, "3 steps were made already, got steps=2"),
    ):
        with pytest.raises(ValueError, match=message):
            tune(**{"steps": 6, "resume": half, **wrong})
    with pytest.raises(ValueError, match="the data set has changed"):
        tune_mod(tiny_folder("llama"), DATA[:4], **QUICK, steps=6, resume=half)
    with pytest.raises(ValueError, match="give the same base model"):
        tune_mod(tiny_folder("llama", 1), DATA, **QUICK, steps=6, resume=half)
    other_cut = [("The Eiffel Tower is located in the city", " of Paris"), *DATA[1:]]
    with pytest.raises(ValueError, match="the data set has changed"):
        tune_mod(tiny_folder("llama"), other_cut, **QUICK, steps=6, resume=half)
    again, report = tune(steps=3, resume=half)
    assert same(again, half)
    assert report.done == 3


@pytest.mark.seconds
def test_cancel_keeps_the_partial_model() -> None:
    class Stop(Exception):
        pass

    calls: list[int] = []

    def check() -> None:
        calls.append(1)
        if len(calls) == 5:
            raise Stop

    kept: list[tuple[ModModel, ModReport]] = []
    with pytest.raises(Stop):
        tune(steps=9, check=check, on_partial=kept.append)
    ((model, report),) = kept
    assert (report.stopped, report.partial, report.done, report.steps) == ("cancelled", True, 4, 9)
    assert "after 4 of 9 steps" in report.message
    four, _ = tune(steps=4)
    assert same(model, four)
    gone_on, _ = tune(steps=9, resume=model)
    whole, _ = tune(steps=9)
    assert same(gone_on, whole)


@pytest.mark.parametrize("name", ["progress", "on_step"])
def test_what_listens_may_stop_it_too(name: str) -> None:
    def listen(*told: Any) -> None:
        if len(kept_steps) == 2:
            raise KeyboardInterrupt
        kept_steps.append(told)

    kept_steps: list[Any] = []
    kept: list[tuple[ModModel, ModReport]] = []
    with pytest.raises(KeyboardInterrupt):
        tune(steps=6, on_partial=kept.append, **{name: listen})
    assert kept[0][1].done == 3


@pytest.mark.slow
@pytest.mark.parametrize("where", ["loss", "optimizer"])
@pytest.mark.parametrize("options", [{}, {"lora": 2, "lora_layers": "all"}], ids=str)
def test_a_fault_within_a_step_keeps_the_steps_before(
    where: str, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Memory that runs out in the loss, an interrupt behind the weights' change: a step is made or it is not."""
    made: list[int] = []
    step = torch.optim.AdamW.step

    def no_memory(*given: Any) -> StepLoss:
        made.append(1)
        if len(made) == 3:
            raise torch.OutOfMemoryError("no memory left")
        return step_loss(*given)

    def interrupted(self: Any) -> None:
        made.append(1)
        step(self)
        if len(made) == 3:
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        if where == "loss":
            patch.setattr(trainer_module, "step_loss", no_memory)
        else:
            patch.setattr(torch.optim.AdamW, "step", interrupted)
        kept: list[tuple[ModModel, ModReport]] = []
        with pytest.raises(torch.OutOfMemoryError if where == "loss" else KeyboardInterrupt):
            tune(steps=6, on_partial=kept.append, **options)
    ((model, report),) = kept
    assert (report.done, report.stopped) == (2, "cancelled")
    assert same(model, tune(steps=2, **options)[0])
    assert same(tune(steps=6, resume=model, **options)[0], tune(steps=6, **options)[0])


@pytest.mark.seconds
def test_the_trained_model_is_gone_before_the_new_one_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    """On one device there is room for few copies of a large model."""
    from interp_widgets.tuning.mixture_of_depths import tune as module

    trained: list[weakref.ref[Any]] = []

    class Watched(module.Trainer):
        def __post_init__(self) -> None:
            super().__post_init__()
            trained.append(weakref.ref(self.hf_model))

    build, there = module.build_mixture, []

    def watched_build(*given: Any, **options: Any) -> ModModel:
        gc.collect()
        there.append(trained[0]() is not None)
        return build(*given, **options)

    monkeypatch.setattr(module, "Trainer", Watched)
    monkeypatch.setattr(module, "build_mixture", watched_build)
    for options in ({}, {"lora": 2}):
        trained.clear()
        tune(steps=1, **options)
    assert there == [False, False]


def test_what_stopped_a_run_is_told_where_its_model_cannot_be_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    def stop(*told: Any) -> None:
        raise KeyboardInterrupt

    def broken(*given: Any, **options: Any) -> None:
        raise RuntimeError("no memory for a second model")

    monkeypatch.setattr("interp_widgets.tuning.mixture_of_depths.tune.build_mixture", broken)
    kept: list[Any] = []
    with pytest.raises(KeyboardInterrupt) as found:
        tune(steps=6, on_partial=kept.append, progress=stop)
    assert kept == []
    assert "No model of the 1 steps made could be kept: no memory" in found.value.__notes__[0]


@pytest.mark.seconds
@pytest.mark.parametrize("where", ["loss", "gradient"])
def test_a_loss_that_is_no_number_keeps_the_last_good_weights(where: str, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[int] = []

    def broken(*given: Any) -> StepLoss:
        found = step_loss(*given)
        made.append(1)
        if len(made) < 4:
            return found
        bad = found.total * torch.nan if where == "loss" else torch.where(torch.tensor(True), found.total, found.total)
        if where == "gradient":
            bad.register_hook(lambda gradient: gradient * torch.nan)
        return StepLoss(bad, found.task, found.distillation, found.gates, found.routes)

    monkeypatch.setattr(trainer_module, "step_loss", broken)
    model, report = tune(steps=8)
    assert (report.stopped, report.partial, report.done) == ("nan", True, 3)
    assert "stopped at step 4 of 8" in report.message
    monkeypatch.undo()
    good, _ = tune(steps=2 if where == "loss" else 3)
    assert same(model, good)
    with pytest.raises(ValueError, match="tune from the start"):
        tune(steps=8, resume=model)


def test_a_tuning_that_blew_up_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """Finite, but so large that two ways to compute the same differ."""

    def step(self: Any) -> None:
        for group in self.param_groups:
            for parameter in group["params"]:
                parameter.data.mul_(1e15)

    monkeypatch.setattr(torch.optim.AdamW, "step", step)
    with pytest.raises(ValueError, match=r"after 2 steps the tuned model is unreliable, .* smaller learning rate"):
        tune(steps=2)


@pytest.mark.seconds
def test_options_out_of_range() -> None:
    for wrong, message in (
        ({"k": 4}, r"k must be an int in 1\.\.3 for this 3-layer model, got 4"),
        ({"k": 0}, r"k must be an int in 1\.\.3"),
        ({"top_k": 3}, r"top_k must be an int in 1\.\.2 for 2 routes, got 3"),
        ({"only": 2}, r"only must be a route in 0\.\.1 or None, got 2"),
        ({"only": 0, "train_norms": False}, "nothing is left to train"),
        ({"lora": 0}, "lora must be a rank of 1 or more"),
        ({"lora_layers": "first"}, "lora_layers must be 'last', 'below' or 'all'"),
        ({"lora": 2, "lora_layers": "below", "k": 3}, "no layer is below the last 3 of 3: give a smaller k"),
        ({"distill": -1.0}, "distill must be 0 or more"),
        ({"learning_rate": 0.0}, "learning_rate must be above 0 and at most 1"),
        ({"batch_size": 0}, "batch_size must be an int >= 1"),
        ({"steps": 0}, "steps must be 1 or more"),
    ):
        with pytest.raises(ValueError, match=message):
            tune(**wrong)
    model, _ = tune(steps=1)
    with pytest.raises(ValueError, match="already has a mixture"):
        tune_mod(model, DATA)
    memory = load_model(tiny_hf("gpt2"), tokenizer=tiny_model("gpt2").tokenizer, device="cpu")
    with pytest.raises(ValueError, match="came from memory"):
        tune_mod(memory, DATA)


@pytest.mark.seconds
def test_a_transformers_model_from_memory_is_left_as_it_is(tmp_path: Path) -> None:
    hf_model = tiny_hf("llama").train()
    before = {name: value.clone() for name, value in hf_model.state_dict().items()}
    tokenizer = tiny_model("llama").tokenizer
    model, _ = tune_mod(hf_model, DATA, **QUICK, steps=6, tokenizer=tokenizer, lora=2)
    assert hf_model.training
    assert before.keys() == hf_model.state_dict().keys()
    assert all(torch.equal(value, hf_model.state_dict()[name]) for name, value in before.items())
    assert same(model, tune(lora=2)[0])
    assert model.state.base is None
    again = load_model(model.save(tmp_path), base=hf_model, tokenizer=tokenizer)
    assert torch.equal(again.run([5, 6, 7]).logits, model.run([5, 6, 7]).logits)


def test_lora_without_peft_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    monkeypatch.setitem(sys.modules, "peft", None)
    with pytest.raises(ImportError, match=r"interp_widgets\[tuning\]"):
        tune(lora=2, steps=1)
    tune(steps=1)


@pytest.mark.seconds
@pytest.mark.parametrize("family", ["llama", "gemma2"])
def test_adapters_are_merged_for_inspection(tmp_path: Path, family: str) -> None:
    model, _ = tune(family, lora=2, steps=5, learning_rate=5e-2)
    plain, _ = tune(family, steps=5, learning_rate=5e-2)
    ids = [5, 17, 30, 44]
    names = ("blocks.1.hook_resid_pre", "blocks.1.hook_resid_post")
    with_lora, without = (m.run(ids, capture=names).activations for m in (model, plain))
    assert torch.equal(with_lora[names[0]], without[names[0]])  # below the last k layers: the base
    assert not torch.allclose(with_lora[names[1]], without[names[1]], atol=1e-3)
    model.save(tmp_path)
    assert torch.equal(load_model(tmp_path, device="cpu").run(ids).logits, model.run(ids).logits)


@pytest.mark.seconds
def test_a_route_alone(tmp_path: Path) -> None:
    """Tuned and read at one layer: what is above it does not matter, nor does the router."""
    options: dict[str, Any] = {"lora": 2, "lora_layers": "all", "train_norms": False, "steps": 3, "each_route": True}
    for route in (0, 1):
        model, report = tune(only=route, **options)
        assert np.allclose(report.task, report.routes[:, route])
        assert np.isnan(report.distillation).all()
        assert report.mean[:, route].tolist() == [1, 1, 1]
        assert (report.parameters_router, report.parameters_norms) == (0, 0)
        assert f"only route {route}" in repr(model)
        ids = [5, 17, 30, 44]
        wanted = model.run(ids).logits
        # the naive reading: the stream behind that layer through the pretrained norm
        layer = model.route_layers[route]
        name = f"blocks.{layer}.hook_resid_post"
        stream = model.run(ids, capture=name).activations[name]
        hf_model = tiny_hf("llama")
        assert torch.allclose(hf_model.lm_head(hf_model.model.norm(stream)), wanted, atol=1e-4)
        broken = model.run(ids, edit={"blocks.2.hook_mlp_out": lambda x: x * 0}).logits
        assert torch.allclose(broken, wanted) == (route == 0)
        assert model.weight_hash != tune(only=1 - route, **options)[0].weight_hash
        model.save(tmp_path / str(route))
        again = load_model(tmp_path / str(route), device="cpu")
        assert torch.equal(again.run(ids).logits, wanted)
        text = again.generate_ids(ids, max_new_tokens=6)
        greedy = list(ids)
        for _ in text:
            greedy.append(int(model.run(greedy).logits[0, -1].argmax()))
        assert text == greedy[4:]


@pytest.mark.seconds
def test_a_route_alone_trains_its_own_norm() -> None:
    final = tiny_hf("llama").model.norm.weight
    for route in (0, 1):
        model, report = tune(only=route, steps=2)
        assert (report.parameters_router, report.parameters_norms) == (0, 32)
        changed = [not torch.equal(model.state.weights[f"norms.{i}.weight"], final) for i in range(2)]
        assert changed == [route == 0, route == 1]


@pytest.mark.seconds
def test_the_last_route_alone_with_adapters_is_ordinary_lora() -> None:
    """By hand: peft and AdamW on the transformers model, the same batches."""
    import peft

    model, report = tune(only=1, lora=2, train_norms=False, steps=4)
    hf_model = tiny_hf("llama").requires_grad_(False)
    names = [n for n, m in hf_model.named_modules() if isinstance(m, torch.nn.Linear) and ".layers.0." not in n]
    names.remove("lm_head")
    chosen = [n for n in names if n.split(".")[2] in ("1", "2")]
    with torch.random.fork_rng():
        torch.manual_seed(0)
        adapted = peft.get_peft_model(hf_model, peft.LoraConfig(r=2, lora_alpha=4, target_modules=chosen))
    trained = [p for p in adapted.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=1e-2, weight_decay=0.0)
    stream = batches(read_examples(tiny_model("llama"), DATA), 2, 0, 0)
    losses = []
    for _ in range(4):
        batch = next(stream)
        logits = adapted(input_ids=batch.ids).logits[:, :-1]
        loss = F.cross_entropy(logits.reshape(-1, logits.shape[-1]), batch.labels[:, 1:].reshape(-1), ignore_index=-100)
        losses.append(float(loss.detach()))
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(trained, 1.0)
        optimizer.step()
    assert np.allclose(report.task, losses, rtol=1e-5)
    ids = torch.tensor([[5, 17, 30, 44]])
    with torch.no_grad():
        assert torch.allclose(adapted(ids).logits, model.run(ids).logits, atol=1e-4)


@pytest.mark.seconds
def test_routes_have_losses_of_their_own() -> None:
    _, with_term = tune(steps=2)
    _, without = tune(steps=2, distill=0.0)
    _, asked = tune(steps=2, distill=0.0, each_route=True)
    assert np.isfinite(with_term.routes).all()
    assert np.isnan(without.routes).all()
    assert np.allclose(asked.routes[0], with_term.routes[0], rtol=1e-5)
    assert np.array_equal(asked.task, without.task)


def test_a_report_saves(tmp_path: Path) -> None:
    _, report = tune(steps=2)
    assert ModReport.load(report.save(tmp_path / "report")).equals(report)
    assert report.provenance["k"] == 2


def test_training_touches_no_global_state() -> None:
    state = torch.random.get_rng_state()
    with torch.no_grad():
        tune(lora=2, steps=2)
        assert not torch.is_grad_enabled()
    assert torch.equal(state, torch.random.get_rng_state())
