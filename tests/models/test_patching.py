"""`interventions`: right numbers in every kind of pass, for one thread only, and nothing left afterwards."""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

from interp_widgets.models import Model, load_model
from interp_widgets.models.engine import encode, has_hooks, prefix
from interp_widgets.models.patching import interventions
from tests.models.tiny import BRIDGE_ONLY, HALF_SEED, tiny_model
from tests.tolerances import SINGLE
from tests.waiting import LIMIT

IDS = [5, 17, 300, 44, 8, 9, 120]
BACKENDS = [pytest.param("hooked", marks=pytest.mark.hooked), "bridge"]
FAMILIES = ["gpt2", "llama", "gpt_neox", "gemma2"]
BOTH = [
    pytest.param(family, backend, marks=pytest.mark.hooked if backend == "hooked" else ())
    for family in FAMILIES
    for backend in ("hooked", "bridge")
    if not (backend == "hooked" and family in BRIDGE_ONLY)
]
VALUES = (
    "blocks.0.hook_resid_pre",
    "blocks.1.hook_resid_pre",
    "blocks.1.hook_resid_mid",
    "blocks.1.hook_resid_post",
    "blocks.1.hook_attn_out",
    "blocks.1.hook_mlp_out",
    "blocks.1.hook_mlp_in",
    "blocks.1.attn.hook_v",
    "blocks.1.attn.hook_z",
    "blocks.1.mlp.hook_pre",
    "blocks.1.mlp.hook_post",
)


def even(value: Tensor, positions: Tensor) -> Tensor:
    """Another value at every other position, so that a wrong position shows."""
    mask = (positions % 2 == 0).view(*positions.shape, *[1] * (value.ndim - 2))
    return torch.where(mask, 0.5 * value + 0.3 * value.flip(-1), value)


def same(value: Tensor, positions: Tensor) -> Tensor:
    return value


def all_hooks(model: Model) -> list[tuple[int, int]]:
    """Every hook on every module, TransformerLens' lists included."""
    roots = [model.tl_model, getattr(model.tl_model, "original_model", None)]
    modules = {id(module): module for root in roots if root is not None for module in root.modules()}
    found = []
    for module in modules.values():
        for table in (module._forward_hooks, module._forward_pre_hooks, module._backward_hooks):
            found += [(id(module), key) for key in table]
        found += [
            (id(module), id(handle)) for name in ("fwd_hooks", "bwd_hooks") for handle in getattr(module, name, ())
        ]
    return found


@pytest.fixture(params=BACKENDS)
def model(request: pytest.FixtureRequest) -> Iterator[Model]:
    """A shared model; what a test did must be gone, bit for bit."""
    model = tiny_model("llama", request.param)
    before, logits = all_hooks(model), model.run(IDS).logits
    yield model
    assert all_hooks(model) == before
    assert torch.equal(model.run(IDS).logits, logits)


def in_thread(work: Callable[[], Any]) -> Any:
    """What a function gives in another thread."""
    found: list[Any] = []

    def run() -> None:
        try:
            found.append(work())
        except BaseException as error:
            found.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    if isinstance(found[0], BaseException):
        raise found[0]
    return found[0]


# ---- the numbers


@pytest.mark.seconds
@pytest.mark.parametrize(("family", "backend"), BOTH)
@pytest.mark.parametrize("bos", [False, True])
def test_every_value_in_every_kind_of_pass(family: str, backend: str, bos: bool) -> None:
    model = tiny_model(family, backend)
    ids = ([model.bos_token_id] if bos else []) + IDS
    clean = model.run(ids).logits
    for name in VALUES:
        if name not in model.tl_model.hook_dict:
            assert name == "blocks.1.hook_resid_mid"  # parallel blocks have none
            assert family == "gpt_neox"
            continue
        with interventions(model, [(name, even)]):
            assert has_hooks(model.tl_model)
            written = model.generate_ids(ids, max_new_tokens=5)
            whole = list(ids)
            for token in written:  # a loop of whole passes without a cache
                assert token == int(model.run(whole).logits[0, -1].argmax()), name
                whole.append(token)
            ran = model.run(whole).logits
            forwarded = model.forward(model.token_embeddings(whole)[None])
            reused = model.forward(
                model.token_embeddings(whole)[None, 3:], prefix=model.prefix(model.token_embeddings(whole)[None, :3])
            )
        torch.testing.assert_close(forwarded, ran, atol=SINGLE, rtol=0)
        torch.testing.assert_close(reused, ran[:, 3:], atol=SINGLE, rtol=0)
        assert (ran[:, : len(ids)] - clean).abs().max() > 1e-2, name
        if name.endswith("mlp_in"):
            continue  # `run` has it behind a switch; the ablation tests compare it with equations
        where = torch.arange(len(whole))[None] - int(bos)
        wanted = model.run(whole, edit={name: lambda value, where=where: even(value, where)}).logits
        torch.testing.assert_close(ran, wanted, atol=1e-5, rtol=0)


@pytest.mark.parametrize("backend", BACKENDS)
def test_the_mlp_reads_what_mlp_in_says(backend: str) -> None:
    model = tiny_model("llama", backend, dtype=torch.float64)
    name = "blocks.1.hook_mlp_in"
    seen: list[Tensor] = []

    def swap(value: Tensor, positions: Tensor) -> Tensor:
        seen.append(value)
        return value.flip(-1)

    with interventions(model, [(name, swap)]):
        run = model.run(IDS, capture=["blocks.1.hook_resid_mid", "blocks.1.hook_mlp_out", "blocks.1.hook_resid_post"])
    attention = ["blocks.1.hook_resid_pre", "blocks.1.hook_attn_out"]
    clean = model.run(IDS, capture=[*attention, "blocks.1.hook_mlp_out"])
    stream = clean.activations[attention[0]] + clean.activations[attention[1]]
    torch.testing.assert_close(seen[0], stream)
    other = model.run(
        IDS,
        edit={"blocks.1.hook_attn_out": lambda value: stream.flip(-1) - clean.activations[attention[0]]},
        capture="blocks.1.hook_mlp_out",
    )
    mlp = other.activations["blocks.1.hook_mlp_out"]  # what the MLP gives for the turned stream
    torch.testing.assert_close(run.activations["blocks.1.hook_mlp_out"], mlp)
    torch.testing.assert_close(run.activations["blocks.1.hook_resid_post"], stream + mlp)  # the stream itself stays
    assert (mlp - clean.activations["blocks.1.hook_mlp_out"]).abs().max() > 0.1


def test_how_mlps_read_the_stream() -> None:
    for family in FAMILIES:
        assert tiny_model(family, "bridge").capabilities.parallel_blocks == (family == "gpt_neox")


def test_positions_of_a_mixed_batch(model: Model) -> None:
    bos = model.bos_token_id
    assert bos is not None
    batch = torch.tensor([[bos, *IDS], [*IDS, 77]])
    with interventions(model, [("blocks.1.hook_mlp_out", even)]):
        both = model.run(batch).logits
        apart = [model.run(row).logits[0] for row in batch]
    torch.testing.assert_close(both, torch.stack(apart), atol=SINGLE, rtol=0)


def test_direct_calls_of_the_network_know_their_cache(model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    """TransformerLens' own generation, inside: the rows are counted on from its cache."""
    monkeypatch.setattr(model.tl_model, "tokenizer", None)  # it would look for a padding token
    ids = torch.tensor([[model.bos_token_id, *IDS]])
    with interventions(model, [("blocks.1.hook_resid_post", even)]):
        wanted = model.generate_ids(ids[0].tolist(), max_new_tokens=4)
        found = model.tl_model.generate(
            ids,
            max_new_tokens=4,
            do_sample=False,
            stop_at_eos=False,
            prepend_bos=False,
            verbose=False,
            return_type="tokens",
        )
    assert found[0, ids.shape[1] :].tolist() == wanted
    assert model.generate_ids(ids[0].tolist(), max_new_tokens=4) != wanted


def test_gradients_pass_through(model: Model) -> None:
    def target(logits: Tensor) -> Tensor:
        return logits[:, -1].log_softmax(-1)[:, 7].sum()

    where = torch.arange(len(IDS))[None]
    wanted = model.run(
        IDS, edit={"blocks.1.hook_attn_out": lambda value: even(value, where)}, grad=target, capture="hook_embed"
    )
    with interventions(model, [("blocks.1.hook_attn_out", even)]):
        found = model.run(IDS, grad=target, capture="hook_embed")
    torch.testing.assert_close(found.gradients["hook_embed"], wanted.gradients["hook_embed"])


def test_outer_ones_act_first_and_edits_of_a_run_last(model: Model) -> None:
    name, order = "blocks.1.hook_mlp_out", list[str]()

    def noting(word: str) -> Callable[..., Tensor]:
        def change(value: Tensor, positions: Tensor | None = None) -> Tensor:
            order.append(word)
            return value

        return change

    with interventions(model, [(name, noting("a")), (name, noting("b"))]), interventions(model, [(name, noting("c"))]):
        model.run(IDS, edit={name: noting("d")})
    assert order == ["a", "b", "c", "d"]


# ---- gone afterwards


def test_an_error_inside_leaves_nothing(model: Model) -> None:
    with pytest.raises(RuntimeError, match="boom"), interventions(model, [("blocks.0.hook_mlp_out", even)]):
        raise RuntimeError("boom")

    def broken(value: Tensor, positions: Tensor) -> Tensor:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt), interventions(model, [("blocks.0.hook_mlp_out", broken)]):
        model.generate_ids(IDS)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("blocks.9.hook_mlp_out", r"layer must be in 0\.\.2 for this 3-layer model, got 9"),
        ("blocks.1.hook_mlp_outt", "did you mean blocks.1.hook_mlp_out"),
        ("blocks.1.attn.hook_pattern", "cannot be changed for longer than one pass"),
        ("blocks.1.attn.hook_result", "cannot be changed for longer than one pass"),
    ],
)
def test_entering_halfway_leaves_nothing(model: Model, name: str, message: str) -> None:
    halfway = interventions(model, [("blocks.0.hook_mlp_out", even), (name, even)])
    with pytest.raises(ValueError, match=message), halfway:
        pytest.fail("entered")


def test_an_interrupt_while_attaching_leaves_nothing(model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    point = model.tl_model.hook_dict["blocks.1.hook_mlp_out"]
    monkeypatch.setattr(point, "add_hook", lambda *args, **kwargs: (_ for _ in ()).throw(KeyboardInterrupt))
    halfway = interventions(model, [("blocks.0.hook_mlp_out", even), ("blocks.1.hook_mlp_out", even)])
    with pytest.raises(KeyboardInterrupt), halfway:
        pytest.fail("entered")


def test_a_change_of_shape_is_an_error(model: Model) -> None:
    shorter = interventions(model, [("blocks.0.hook_mlp_out", lambda value, positions: value[:, 1:])])
    message = r"hook_mlp_out must return a tensor of shape \(1, 7, 32\), got \(1, 6, 32\)"
    with pytest.raises(ValueError, match=message), shorter:
        model.run(IDS)


def test_nothing_to_change_attaches_nothing(model: Model) -> None:
    before = all_hooks(model)
    with interventions(model, []):
        assert all_hooks(model) == before


def test_nested_ones_leave_in_any_order(model: Model) -> None:
    clean = model.run(IDS).logits
    one = interventions(model, [("blocks.0.hook_mlp_out", even)])
    other = interventions(model, [("blocks.1.hook_mlp_out", even)])
    one.__enter__()
    first = model.run(IDS).logits
    other.__enter__()
    both = model.run(IDS).logits
    one.__exit__(None, None, None)
    second = model.run(IDS).logits
    other.__exit__(None, None, None)
    for logits in (first, both, second):
        assert (logits - clean).abs().max() > 1e-3
    with interventions(model, [("blocks.1.hook_mlp_out", even)]):
        torch.testing.assert_close(model.run(IDS).logits, second)


def test_generators_that_are_closed_or_forgotten(model: Model) -> None:
    def working() -> Iterator[Tensor]:
        with interventions(model, [("blocks.0.hook_mlp_out", even)]):
            while True:
                yield model.run(IDS).logits

    before = all_hooks(model)
    closed = working()
    next(closed)
    assert all_hooks(model) != before
    closed.close()
    assert all_hooks(model) == before
    forgotten = working()
    next(forgotten)
    del forgotten
    gc.collect()
    assert all_hooks(model) == before
    elsewhere = working()
    next(elsewhere)
    in_thread(elsewhere.close)
    assert all_hooks(model) == before


def test_a_generator_thrown_away_waits_for_nobody(model: Model) -> None:
    def working() -> Iterator[None]:
        with interventions(model, [("blocks.0.hook_mlp_out", even)]):
            yield

    generator = working()
    next(generator)
    taken, leave = threading.Event(), threading.Event()

    def hold() -> None:
        with model.lock:
            taken.set()
            assert leave.wait(LIMIT)

    thread = threading.Thread(target=hold)
    thread.start()
    assert taken.wait(LIMIT)
    generator.close()
    assert thread.is_alive()
    leave.set()
    thread.join()


def test_hooks_of_the_user_stay(model: Model) -> None:
    point = model.tl_model.hook_dict["blocks.0.hook_mlp_out"]
    point.add_hook(lambda value, hook: 0.5 * value)
    try:
        wanted, hooks = model.run(IDS).logits, all_hooks(model)
        with interventions(model, [("blocks.0.hook_mlp_out", even)]):
            assert (model.run(IDS).logits - wanted).abs().max() > 1e-4
            point.add_hook(lambda value, hook: value)  # put on inside, it stays afterwards
            kept = point.fwd_hooks[-1]
        assert point.fwd_hooks[-1] is kept
        kept.hook.remove()
        point.fwd_hooks.pop()
        assert all_hooks(model) == hooks
        assert torch.equal(model.run(IDS).logits, wanted)
    finally:
        point.remove_hooks()


def test_a_reset_by_transformer_lens_does_not_end_it(model: Model) -> None:
    with interventions(model, [("blocks.0.hook_mlp_out", even)]):
        before = model.run(IDS).logits
        model.tl_model.run_with_hooks(
            torch.tensor([IDS]), fwd_hooks=[("blocks.1.hook_mlp_out", lambda value, hook: value)]
        )
        model.tl_model.reset_hooks()
        assert torch.equal(model.run(IDS).logits, before)
    model.tl_model.reset_hooks(including_permanent=True)


# ---- one thread


def test_other_threads_compute_as_if_it_were_not_there(model: Model) -> None:
    embeddings = model.token_embeddings(IDS)[None]

    def compute() -> tuple[bool, Tensor, list[int], Tensor]:
        return (
            has_hooks(model.tl_model),
            model.run(IDS).logits,
            model.generate_ids(IDS, max_new_tokens=4),
            model.forward(embeddings),
        )

    clean = compute()
    shared = prefix(model, embeddings[:, :4])
    with interventions(model, [("blocks.1.hook_mlp_out", even), ("blocks.1.hook_mlp_in", even)]):
        mine, other = compute(), in_thread(compute)
        # begun before in the other thread: its cache still fits
        in_thread(lambda: encode(model, embeddings[:, 4:], prefix=shared))
        with pytest.raises(ValueError, match="compute it again"):
            encode(model, embeddings[:, 4:], prefix=shared)
        again = compute()
    assert (mine[0], other[0]) == (True, False)
    for index in (1, 3):
        assert torch.equal(other[index], clean[index])
        assert (mine[index] - clean[index]).abs().max() > 1e-3
        assert torch.equal(again[index], mine[index])
    assert other[2] == clean[2]


@pytest.mark.seconds
def test_two_threads_with_one_each(model: Model) -> None:
    names = ("blocks.0.hook_mlp_out", "blocks.1.hook_resid_mid")
    wanted = []
    for name in names:
        with interventions(model, [(name, even)]):
            wanted.append((model.run(IDS).logits, model.generate_ids(IDS, max_new_tokens=6)))
    both, failed = threading.Barrier(2), list[str]()

    def work(index: int) -> None:
        for _ in range(5):
            both.wait(LIMIT)
            with interventions(model, [(names[index], even)]):
                logits, written = model.run(IDS).logits, model.generate_ids(IDS, max_new_tokens=6)
            if not torch.equal(logits, wanted[index][0]) or written != wanted[index][1]:
                failed.append(names[index])

    threads = [threading.Thread(target=work, args=(index,)) for index in (0, 1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failed


def test_a_thread_with_the_number_of_an_ended_one_sees_nothing(model: Model) -> None:
    clean = model.run(IDS).logits
    cm = interventions(model, [("blocks.0.hook_mlp_out", even)])
    in_thread(cm.__enter__)  # its thread has ended, the next may get the same number
    assert all(torch.equal(in_thread(lambda: model.run(IDS).logits), clean) for _ in range(3))
    cm.__exit__(None, None, None)


@pytest.mark.parametrize("backend", BACKENDS)
def test_half_precision(backend: str) -> None:
    model = tiny_model("llama", backend, dtype=torch.bfloat16, seed=HALF_SEED)
    ids = [model.bos_token_id, *IDS]
    where = torch.arange(len(ids))[None] - 1
    with interventions(model, [("blocks.1.hook_resid_post", even)]):
        found = model.run(ids).logits
    wanted = model.run(ids, edit={"blocks.1.hook_resid_post": lambda value: even(value, where)}).logits
    assert torch.equal(found, wanted)


def test_a_hook_that_only_watches_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    model = tiny_model("gpt2", "bridge", seed=5)
    from interp_widgets.models import patching as module

    real = module.run_hooked
    monkeypatch.setattr(
        module, "run_hooked", lambda tl_model, ids, *, backend, edit: real(tl_model, ids, backend=backend)
    )
    with pytest.raises(ValueError, match="only observes"), interventions(model, [("blocks.0.hook_mlp_out", same)]):
        pytest.fail("entered")


def test_a_bos_is_known_in_front_of_the_norm_of_embeddings() -> None:
    """BLOOM's embeddings have a norm behind them, whose output the bridge calls hook_embed."""
    from transformers import BloomConfig, BloomForCausalLM

    torch.manual_seed(0)
    config = BloomConfig(
        hidden_size=32, n_layer=2, n_head=4, vocab_size=128, bos_token_id=1, eos_token_id=2, initializer_range=0.3
    )
    model = load_model(BloomForCausalLM(config).eval(), backend="bridge")
    model.bos_token_id = 1
    seen: list[list[int]] = []

    def look(value: Tensor, positions: Tensor) -> Tensor:
        seen.append(positions[0].tolist())
        return value

    with interventions(model, [("blocks.1.hook_mlp_out", look)]):
        model.run([1, 7, 9])
        model.run([7, 9, 1])
    assert seen == [[-1, 0, 1], [0, 1, 2]]
