"""One notion of a model's state: every kind of edit moves it, and nothing else does."""

from __future__ import annotations

import copy
import hashlib
import threading
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from interp_widgets.models import Model, contents, load_model
from interp_widgets.models.patching import interventions
from interp_widgets.models.state import Watch, edits, remembered, state_key, weights_key
from interp_widgets.models.threads import few_threads
from tests.models.mixtures import tiny_mixture
from tests.models.state_edits import EDITS, WEIGHTS, Undo, act_fn_replaced, edited, hook_added, untouched
from tests.models.tiny import tiny_folder, tiny_model

IDS = [5, 17, 300, 44, 8]
BACKENDS = [pytest.param("hooked", marks=pytest.mark.hooked), "bridge"]


def fresh(family: str, backend: str) -> Model:
    """A model that no other test shares."""
    return load_model(tiny_folder(family), device="cpu", backend=backend)  # type: ignore[arg-type]


def sha(model: Model) -> str:
    """The hash of the weights, written out once more."""
    digest = hashlib.sha256()
    for name, parameter in sorted(model.tl_model.named_parameters(), key=lambda item: item[0]):
        digest.update(f"{name} {parameter.dtype} {tuple(parameter.shape)}\n".encode())
        digest.update(parameter.detach().contiguous().numpy().tobytes())
    return digest.hexdigest()


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("edit", EDITS, ids=lambda edit: edit.__name__)
def test_every_edit_moves_the_state_and_its_undoing_brings_it_back(edit: Callable[[Model], Undo], backend: str) -> None:
    model = tiny_model("llama", backend)
    before, weights = state_key(model), model.weight_hash
    assert before.certain
    assert "edited" not in model.provenance()
    with edited(model, edit):
        moved = state_key(model)
        assert (moved.structure, moved.content) != (before.structure, before.content)
        assert model.weight_hash == model.provenance()["weight_hash"] == sha(model)
        if edit in WEIGHTS:
            assert model.weight_hash != weights
            if edit.__name__ in ("in_place", "data_copied", "numpy_element", "rows_swapped", "copied", "state_loaded"):
                assert moved.structure == before.structure, "values alone are no structure"
        else:
            assert str(model.provenance()["edited"])
            assert len(str(model.provenance()["edit_key"])) == 32
    assert state_key(model) == before
    assert model.weight_hash == weights
    assert "edited" not in model.provenance()


@pytest.mark.parametrize("backend", BACKENDS)
def test_what_leaves_the_model_as_it_is_leaves_the_state(backend: str) -> None:
    model = load_model(tiny_folder("llama"), device="cpu", backend=backend)
    before = state_key(model)
    embeddings = model.token_embeddings(IDS)[None]
    steps: list[Callable[[], object]] = [
        *untouched(model),
        lambda: model.run(IDS, capture="blocks.1.attn.hook_pattern"),
        lambda: model.run(IDS, capture="blocks.1.hook_mlp_in"),
        lambda: model.run(IDS, capture="blocks.0.hook_resid_pre", grad=lambda logits: logits[0, -1, 3]),
        lambda: model.run([*IDS] * 20),
        lambda: model.forward(embeddings),
        lambda: model.prefix(embeddings),
        lambda: model.generate_ids(IDS, max_new_tokens=3),
        lambda: model.tl_model(torch.tensor([IDS])),
        lambda: model.weight("W_Q", 1),
        model.provenance,
    ]
    for step in steps:
        step()
        assert state_key(model) == before
    with few_threads(model.parameter_count):
        assert state_key(model) == before
    with model.frozen():
        assert state_key(model) == before
    assert edits(model) is None


@pytest.mark.parametrize("backend", BACKENDS)
def test_an_intervention_is_another_state_in_its_thread_while_it_holds(backend: str) -> None:
    model = tiny_model("gpt2", backend)
    before, seen = state_key(model), list[Any]()
    with interventions(model, [("blocks.1.hook_mlp_out", lambda value, positions: value * 0)]):
        inside = state_key(model)
        assert inside != before
        assert not inside.certain
        assert "intervention" in str(model.provenance()["edited"])
        assert "edit_key" not in model.provenance(), "the model itself is as it was"
        thread = threading.Thread(target=lambda: seen.extend([state_key(model), edits(model)]))
        thread.start()
        thread.join()
    assert seen == [before, None]
    assert state_key(model) == before


@pytest.mark.seconds
@pytest.mark.parametrize("backend", BACKENDS)
def test_equal_models_share_a_state_and_others_do_not(backend: str) -> None:
    one, same = fresh("llama", backend), fresh("llama", backend)
    other = tiny_model("llama_bias" if backend == "bridge" else "mistral", backend)
    assert state_key(one) == state_key(same)
    assert state_key(one) != state_key(other)
    with edited(one, act_fn_replaced), edited(same, act_fn_replaced):
        assert state_key(one) == state_key(same), "the same function in both"
    keys = []
    for model, factor in ((one, 2.0), (same, 3.0)):
        mlp = model.tl_model.blocks[1].mlp
        mlp.register_buffer("scale", torch.tensor(factor))
        keys.append(state_key(model))
    assert keys[0] != keys[1]
    states = {(key.structure, key.content) for key in keys}
    with edited(one, hook_added), edited(same, hook_added):
        states |= {(key.structure, key.content) for key in map(state_key, (one, same))}
    assert len(states) == 4, "two hooks are two hooks, whatever they are called"


def test_code_of_users_is_never_certain() -> None:
    model = fresh("gpt2", "bridge")
    mlp = model.tl_model.blocks[1].mlp.original_component
    with edited(model, hook_added):
        assert not state_key(model).certain
    own = mlp.act

    class Halved(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return own(x) / 2

    mlp.act = Halved()
    assert not state_key(model).certain
    mlp.act = nn.ReLU()
    assert state_key(model).certain
    mlp.forward = lambda x: x
    assert not state_key(model).certain


def test_dropout_is_not_certain() -> None:
    model = fresh("gpt2", "bridge")  # transformers' GPT-2 has dropout of 0.1
    model.tl_model.original_model.train()
    found = state_key(model)
    assert not found.certain
    assert "training" in str(model.provenance()["edited"])
    model.tl_model.original_model.eval()
    assert state_key(model).certain


def test_code_exchanged_within_a_function_is_seen() -> None:
    """As IPython's autoreload does it."""
    model = fresh("llama", "bridge")

    def twice(x: Tensor) -> Tensor:
        return 2 * x

    def thrice(x: Tensor) -> Tensor:
        return 3 * x

    model.tl_model.blocks[1].mlp.original_component.forward = twice
    before = state_key(model)
    assert state_key(model) == before
    twice.__code__ = thrice.__code__
    assert state_key(model) != before


# ---- large models


@pytest.fixture
def large(monkeypatch: pytest.MonkeyPatch) -> Model:
    """A model that counts as too large to be read whole at every call."""
    monkeypatch.setattr(contents, "READ_BYTES", 0)
    monkeypatch.setattr(contents, "SMALL_BYTES", 1024)
    return fresh("llama", "bridge")


@pytest.mark.parametrize("edit", EDITS, ids=lambda edit: edit.__name__)
def test_an_exact_key_of_a_large_model_sees_every_edit(large: Model, edit: Callable[[Model], Undo]) -> None:
    before, weights = state_key(large, exact=True), large.weight_hash
    assert before.certain
    with edited(large, edit):
        moved = state_key(large, exact=True)
        assert (moved.structure, moved.content) != (before.structure, before.content)
        assert (large.weight_hash != weights) == (edit in WEIGHTS)
    assert state_key(large, exact=True) == before
    assert large.weight_hash == weights


def test_a_quick_key_of_a_large_model_says_what_it_does_not_know(large: Model) -> None:
    first = state_key(large)
    assert first.certain, "everything is read at the first time"
    quick = state_key(large)
    assert (quick.structure, quick.content) == (first.structure, first.content)
    assert not quick.certain
    matrix = large.tl_model.blocks[1].mlp.original_component.gate_proj.weight
    matrix = next(matrix.parameters()) if isinstance(matrix, nn.Module) else matrix
    flat = matrix.detach().numpy().reshape(-1)
    flat[SAMPLE_GAP] += 1  # between two samples
    missed = state_key(large)
    assert (missed.content, missed.certain) == (first.content, False)
    exact = state_key(large, exact=True)
    assert exact.content != first.content
    assert exact.certain
    with torch.no_grad():
        matrix.add_(0)  # a trace in PyTorch: this tensor is read again
    assert state_key(large).content == exact.content


SAMPLE_GAP = 25
"""Place of a value that no sample of the tensor above holds: samples are 64 bytes, and begin every 193 bytes."""


@pytest.mark.parametrize("limit", [2**26, 0], ids=["copied", "summed"])
@pytest.mark.parametrize("edit", EDITS, ids=lambda edit: edit.__name__)
def test_what_an_accelerator_holds_is_read_by_itself(
    edit: Callable[[Model], Undo], limit: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The processor's memory is taken for an accelerator's: read with operations on tensors."""
    monkeypatch.setattr(contents, "_is_here", lambda storage: False)
    monkeypatch.setattr(contents, "_buffer", None)
    monkeypatch.setattr(contents, "READ_BYTES", limit)
    model = tiny_model("llama", "bridge")
    before = state_key(model, exact=True)
    with edited(model, edit):
        moved = state_key(model, exact=True)
        assert (moved.structure, moved.content) != (before.structure, before.content)
        quick = state_key(model)
        assert (quick.structure, quick.content, quick.read) == (moved.structure, moved.content, limit > 0)
    assert state_key(model, exact=True) == before


def weighted_sum(tensor: Tensor) -> bytes:
    return bytes(contents._weighted_sums([tensor.untyped_storage()])[0].numpy())


def test_the_sum_of_an_accelerator_tells_edits_apart() -> None:
    """On a processor, where it is not used otherwise."""
    raw = torch.arange(70_001, dtype=torch.int32).to(torch.uint8)  # ends within a word
    seen = {weighted_sum(raw)}
    for place in (0, 1, 4, 35_000, 69_999, 70_000):
        for change in (1, 128):
            other = raw.clone()
            other[place] += change
            seen.add(weighted_sum(other))
    words = raw[:70_000].view(torch.int32).clone()
    words[[3, 9]] = words[[9, 3]]
    seen.add(weighted_sum(words))
    assert len(seen) == 14
    assert weighted_sum(raw.clone()) in seen


def test_the_sum_does_not_depend_on_how_it_is_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    raw = torch.randint(0, 255, (4096,), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    monkeypatch.setattr(contents, "_CHUNK", 128)
    seen = {weighted_sum(raw)}
    for first, second in ((0, 128), (5, 127), (130, 900)):  # words that change places, also between chunks
        words = raw.clone().view(torch.int32)
        words[[first, second]] = words[[second, first]]
        seen.add(weighted_sum(words))
    assert len(seen) == 4


# ---- weights that are no plain tensors


def network_of(module: nn.Module) -> Any:
    return SimpleNamespace(name="made up", tl_model=module, lock=threading.RLock(), _watch=Watch(module))


def test_weights_that_accelerate_keeps_elsewhere_are_read_there() -> None:
    from accelerate import cpu_offload

    module = nn.Sequential(nn.Linear(4, 5), nn.Linear(5, 3))
    cpu_offload(module, execution_device=torch.device("cpu"))
    assert module[0].weight.is_meta
    network = network_of(module)
    before, weights = state_key(network), weights_key(network)
    assert before.certain
    module(torch.zeros(2, 4))
    assert (state_key(network), weights_key(network)) == (before, weights)
    module[0]._hf_hook.weights_map["weight"][1, 2] += 1
    assert state_key(network) != before
    assert weights_key(network) != weights


def test_weights_that_are_nowhere_are_never_certain() -> None:
    network = network_of(nn.Linear(4, 5, device="meta"))
    assert not state_key(network, exact=True).certain
    assert weights_key(network) != weights_key(network)


def test_a_tensor_made_of_others_is_read() -> None:
    """As quantised weights are."""
    from torch.testing._internal.two_tensor import TwoTensor

    module = nn.Linear(4, 5)
    parts = [torch.zeros(5, 4), torch.ones(5, 4)]
    module.weight = nn.Parameter(TwoTensor(*parts))  # type: ignore[no-untyped-call]
    network = network_of(module)
    before = state_key(network)
    assert before.certain
    parts[1].data[0, 3] = 2
    assert state_key(network) != before


# ---- mixtures


@pytest.mark.parametrize("backend", BACKENDS)
def test_the_number_of_routes_is_a_state_and_no_edit(backend: str) -> None:
    model = tiny_mixture.__wrapped__("llama", backend)
    before, weights = state_key(model), model.weight_hash
    with model.with_top_k(1):
        assert state_key(model) != before
        assert model.weight_hash != weights
        assert edits(model) is None
    assert state_key(model) == before
    with torch.no_grad():
        model.mixture.router.add_(1)
    assert state_key(model) != before
    assert model.weight_hash != weights


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_deep_copy_has_the_same_weights(backend: str) -> None:
    model = fresh("gpt2", backend)
    twin = copy.deepcopy(model.tl_model)
    model.tl_model = twin
    assert model.weight_hash == tiny_model("gpt2", backend).weight_hash
    assert edits(model) is None


def test_another_thread_does_not_wait_for_ever() -> None:
    model, seen = fresh("gpt2", "bridge"), list[Any]()

    def ask() -> None:
        try:
            state_key(model, wait=0.01)
        except TimeoutError as error:
            seen.append(str(error))

    with model.lock:
        thread = threading.Thread(target=ask)
        thread.start()
        thread.join()
    assert seen == ["the model computes in another thread"]


# ---- what is remembered of a model


@pytest.mark.seconds
@pytest.mark.parametrize("backend", BACKENDS)
def test_what_is_remembered_is_found_again_after_an_edit(backend: str) -> None:
    model = fresh("llama", backend)

    def asked() -> object:
        return remembered(model, "something", object)

    first, again = asked(), set()
    assert asked() is first
    for edit in EDITS:
        with edited(model, edit):
            inside = asked()
            assert asked() is inside
            values = edit.__name__ == "buffer_edited" or (edit in WEIGHTS and edit.__name__ != "dtype_changed")
            kept = values or "hook" in edit.__name__
            assert (inside is first) == kept, edit.__name__
        first = asked()
        assert (first is inside) == kept
        again |= set() if kept else {edit.__name__}
    assert {"act_fn_replaced", "forward_replaced", "eps_changed", "dtype_changed", "module_replaced"} <= again


@pytest.mark.parametrize("backend", BACKENDS)
def test_an_edit_is_asked_anew_whether_a_hook_reaches_the_output(backend: str) -> None:
    model = fresh("gpt2", backend)
    change = ("blocks.1.mlp.hook_post", lambda value, positions: value * 0)
    with interventions(model, [change]):
        assert model.run(IDS).logits.isfinite().all()
    mlp = model.tl_model.blocks[1].mlp
    mlp.forward = lambda x, *args, **options: torch.zeros_like(x)
    with pytest.raises(ValueError, match=r"blocks\.1\.mlp\.hook_post"), interventions(model, [change]):
        pass
