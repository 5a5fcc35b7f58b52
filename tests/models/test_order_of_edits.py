"""Edits and other changes of a model end in any order, in any thread; the model is then as loaded, to the last bit."""

from __future__ import annotations

import contextlib
import random
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch

from interp_widgets import Ablation, LayerEdit, ModelEdit, StreamEdit, ablation, erase, load_model, steer
from interp_widgets.models.hooks import has_hooks
from tests.models.tiny import tiny_folder

ORDERS = 30
"""How many are tried; 500 passed."""
KINDS = [("gpt2", "auto", torch.float32), ("llama", "bridge", torch.bfloat16)]


@pytest.fixture(scope="module", params=KINDS, ids=lambda kind: kind[0])
def model(request: pytest.FixtureRequest) -> Any:
    family, backend, dtype = request.param
    return load_model(tiny_folder(family), device="cpu", backend=backend, dtype=dtype)


def layer_edit(model: Any, seed: int, *layers: int, neurons: int = 3) -> ModelEdit:
    """Some neurons of layers write something else, and their MLPs something more; all edits share a neuron."""
    draw = torch.Generator().manual_seed(seed)
    edits = {}
    for layer in layers:
        rows = torch.cat([torch.tensor([0]), 1 + torch.randperm(12, generator=draw)[: neurons - 1]])
        before = model.weight("W_out", layer)[rows].float().clone()
        after = torch.randn(before.shape, generator=draw)
        edits[layer] = LayerEdit(rows, before, after, torch.randn(model.d_model, generator=draw) * (seed % 3 != 0))
    return ModelEdit(f"edit {seed}", edits)


def stream_edit(model: Any) -> ModelEdit:
    nothing = torch.zeros(model.d_model)
    return ModelEdit(
        "stream", streams={1: StreamEdit(nothing[:, None], nothing[None], nothing, torch.ones(model.d_model))}
    )


def bits(model: Any) -> dict[str, bytes]:
    return {name: value.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().tobytes()
            for name, value in model.tl_model.state_dict().items()}  # fmt: skip


def hooks(model: Any) -> int:
    return sum(len(module._forward_hooks) + len(module._forward_pre_hooks) for module in model.tl_model.modules())


def written(model: Any, edits: list[ModelEdit], loaded: dict[int, tuple[torch.Tensor, torch.Tensor]]) -> None:
    """Check the matrices and biases of the MLPs against plain sums of the edits in force, in their order."""
    for layer, (matrix, bias) in loaded.items():
        matrix, bias = matrix.clone(), bias.clone()
        for edit in edits:
            if layer in edit.layers:
                own = edit.layers[layer]
                matrix[own.neurons] = own.after.to(matrix.dtype)
                bias += own.added.to(bias.dtype)
        assert torch.equal(model.weight("W_out", layer), matrix)
        assert torch.equal(model.weight("b_out", layer), bias)


def contexts(model: Any) -> list[tuple[ModelEdit | None, Callable[[], Any]]]:
    """What may be in force: edits, with what they are, and changes of passes."""
    direction = torch.linspace(-1, 1, model.d_model)
    edits = [layer_edit(model, 0, 0), layer_edit(model, 1, 0, 1), layer_edit(model, 2, 1), stream_edit(model)]
    return [
        *((edit, lambda edit=edit: edit.applied(model)) for edit in edits),
        (edits[1], lambda: edits[1].applied(model)),  # the same edit from two sessions
        (None, lambda: steer(model, direction, layer=1, strength=2.0)),
        (None, lambda: erase(model, direction, layer=[0, 1])),
        (None, lambda: ablation(model, Ablation("mlp", 1))),
    ]


@pytest.mark.seconds
def test_random_orders_in_several_threads(model: Any) -> None:
    possible, before, attached = contexts(model), bits(model), hooks(model)
    loaded = {layer: (model.weight("W_out", layer).clone(), model.weight("b_out", layer).clone()) for layer in (0, 1)}
    ids = [1, 2, 3]
    logits = model.run(ids).logits
    for seed in range(ORDERS):
        draw = random.Random(seed)
        with contextlib.ExitStack() as stack:
            threads = [stack.enter_context(ThreadPoolExecutor(1)) for _ in range(draw.randint(1, 3))]
            waiting = draw.sample(possible, draw.randint(1, 5))
            inside: list[tuple[ModelEdit | None, Any]] = []
            while waiting or inside:
                thread = draw.choice(threads)
                if waiting and (not inside or draw.random() < 0.6):
                    edit, make = waiting.pop()
                    context = make()
                    thread.submit(context.__enter__).result(60)
                    inside.append((edit, context))
                else:
                    _, context = inside.pop(draw.randrange(len(inside)))
                    error = draw.choice([None, ValueError("inside"), KeyboardInterrupt()])
                    thread.submit(context.__exit__, error and type(error), error, None).result(60)
                edits = [edit for edit, _ in inside if edit is not None]
                written(model, edits, loaded)
                assert model.edits == tuple(edit.name for edit in edits)
        assert bits(model) == before, f"order {seed}"
    assert hooks(model) == attached
    assert not has_hooks(model.tl_model)
    assert torch.equal(model.run(ids).logits, logits)


def test_edits_of_models_that_share_weights_end_in_any_order(model: Any) -> None:
    other = load_model(model.tl_model, tokenizer=model.tokenizer)
    before, loaded = bits(model), {0: (model.weight("W_out", 0).clone(), model.weight("b_out", 0).clone())}
    first, second = layer_edit(model, 1, 0), layer_edit(model, 2, 0)
    undo_first, undo_second = first.apply(model), second.apply(other)
    written(other, [first, second], loaded)
    undo_first()
    written(other, [second], loaded)
    assert (model.edits, other.edits) == ((), ("edit 2",))
    undo_second()
    undo_second()  # a second time does nothing
    assert bits(model) == before


def test_nested_generators_that_are_closed_or_forgotten(model: Any) -> None:
    before, attached = bits(model), hooks(model)

    def session(edit: ModelEdit) -> Iterator[None]:
        with edit.applied(model), ablation(model, Ablation("mlp", 1)):
            yield

    for close in (lambda some: some.pop(0).close(), lambda some: some.pop(0), lambda some: some.pop(0).send(None)):
        sessions = [session(edit) for edit in (layer_edit(model, 1, 0), stream_edit(model), layer_edit(model, 1, 0, 1))]
        for one in sessions:
            next(one)
        while sessions:
            one = None  # so that a list holds the last reference
            with contextlib.suppress(StopIteration):
                close(sessions)
        assert (bits(model) == before, hooks(model), model.edits) == (True, attached, ())


def test_a_stack_that_is_closed_in_another_thread(model: Any) -> None:
    before = bits(model)
    stack = contextlib.ExitStack()
    for _, make in contexts(model):
        stack.enter_context(make())
    assert bits(model) != before
    with ThreadPoolExecutor(1) as pool:
        pool.submit(stack.close).result(60)
    assert bits(model) == before
    assert not has_hooks(model.tl_model)


def test_a_forgotten_edit_waits_for_a_pass_and_holds_nobody(model: Any) -> None:
    """A thread that closes a generator may hold other locks: it goes on, and the edit ends after the pass."""
    before, edit = bits(model), layer_edit(model, 1, 0)

    def session() -> Iterator[None]:
        with edit.applied(model):
            yield

    generator = session()
    next(generator)
    inside = bits(model)
    taken, leave = threading.Event(), threading.Event()

    def hold() -> None:
        with model.lock:
            taken.set()
            leave.wait(60)
            assert bits(model) == inside, "the weights change during a pass"

    with ThreadPoolExecutor(1) as pool:
        holding = pool.submit(hold)
        assert taken.wait(60)
        generator.close()
        assert not holding.done()
        leave.set()
        holding.result(60)
    for thread in threading.enumerate():
        if thread.name == "interp-widgets undo":
            thread.join(60)
    assert bits(model) == before
    assert model.edits == ()


def test_an_edit_that_cannot_be_applied_leaves_those_in_force(model: Any) -> None:
    before, first = bits(model), layer_edit(model, 1, 0)
    with first.applied(model):
        inside = bits(model)
        own = first.layers[0]
        wrong = ModelEdit("wrong", {0: LayerEdit(own.neurons, own.before + 1, own.after, own.added)})
        with pytest.raises(ValueError, match="made for other weights"), wrong.applied(model):
            pytest.fail("entered")
        assert bits(model) == inside
        on_top = ModelEdit("on top", {0: LayerEdit(own.neurons, own.after, 2 * own.after, own.added)})
        with on_top.applied(model):  # made for the edited model
            assert bits(model) != inside
        assert bits(model) == inside
    assert bits(model) == before
