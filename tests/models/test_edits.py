"""Edits of a model: what they change, that undoing restores every bit, files, and models that they are not for."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from interp_widgets import LayerEdit, ModelEdit, load_model, response_probabilities
from interp_widgets.analysis._core.tensors import wide
from tests.models.tiny import tiny_folder

PROMPT, RESPONSE = "When Mary and John went to the store, John gave a drink to", " Mary. The end"
KINDS = [("gpt2", "hooked"), ("gpt2", "bridge"), ("llama", "hooked"), ("llama", "bridge")]
NEURONS = [3, 7]


def loaded(family: str, backend: str, dtype: torch.dtype = torch.float32, **options: Any) -> Any:
    return load_model(tiny_folder(family), device="cpu", backend=backend, dtype=dtype, **options)


def edit_of(model: Any, *, layer: int = 1, added: bool = True) -> ModelEdit:
    """Two neurons of a layer write something else, and its MLP something more."""
    before = wide(model.weight("W_out", layer)[NEURONS]).float().clone()
    more = torch.linspace(-1, 1, model.d_model) if added else torch.zeros(model.d_model)
    after = 0.5 * before.flip(0)
    return ModelEdit("test", {layer: LayerEdit(torch.tensor(NEURONS), before, after, more)}, {"k": 2})


def by_hooks(model: Any, edit: ModelEdit, ids: list[int]) -> torch.Tensor:
    """Logits with the same changes made of the values, at the hooks."""
    layer, own = next(iter(edit.layers.items()))
    kept: list[torch.Tensor] = []

    def keep(value: torch.Tensor) -> torch.Tensor:
        kept[:] = [value[..., NEURONS]]
        return value

    def change(value: torch.Tensor) -> torch.Tensor:
        moved = kept[0] @ (own.after - own.before).to(value.dtype)
        return value + moved + own.added.to(value.dtype)

    hooks = {f"blocks.{layer}.mlp.hook_post": keep, f"blocks.{layer}.hook_mlp_out": change}
    return model.run(ids, edit=hooks).logits[0]


def bits(model: Any) -> dict[str, bytes]:
    return {name: value.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().tobytes()
            for name, value in model.tl_model.state_dict().items()}  # fmt: skip


@pytest.mark.parametrize(("family", "backend"), KINDS)
@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_weights_change_inside_and_are_restored_to_the_last_bit(family: str, backend: str, dtype: torch.dtype) -> None:
    model = loaded(family, backend, dtype)
    before, key = bits(model), model.weight_hash
    ids = model.tokens(PROMPT)
    plain = model.run(ids).logits[0].double()
    edit = edit_of(model)
    wanted = by_hooks(model, edit, ids).double()
    with edit.applied(model):
        inside = bits(model)
        found = model.run(ids).logits[0].double()
        assert model.weight_hash != key
    close = 1e-5 if dtype == torch.float64 else 0.15
    assert float((found - wanted).abs().max()) < close
    assert float((found - plain).abs().max()) > 3 * close, "the edit changes nothing"
    changed = {name for name in inside if inside[name] != before.get(name)}
    assert 1 <= len(changed) <= 4, "one matrix and one bias, under the names that the model has for them"
    assert bits(model) == before
    assert model.weight_hash == key
    assert torch.equal(model.run(ids).logits[0].double(), plain)


@pytest.mark.parametrize(("family", "backend"), KINDS)
def test_neurons_that_are_not_edited_keep_their_bits(family: str, backend: str) -> None:
    model = loaded(family, backend)
    before = model.weight("W_out", 1).clone()
    with edit_of(model).applied(model):
        after = model.weight("W_out", 1).clone()
    same = [row for row in range(len(before)) if row not in NEURONS]
    assert torch.equal(after[same], before[same])
    assert not torch.equal(after[NEURONS], before[NEURONS])


def test_analyses_and_other_threads_see_the_edit_and_its_end() -> None:
    model = loaded("llama", "auto")
    plain = response_probabilities(model, PROMPT, RESPONSE)
    seen: list[Any] = []
    with edit_of(model).applied(model):
        thread = threading.Thread(target=lambda: seen.append(response_probabilities(model, PROMPT, RESPONSE)))
        thread.start()
        thread.join()
        own = response_probabilities(model, PROMPT, RESPONSE)
    assert seen[0].equals(own)
    assert abs(own.probability - plain.probability).max() > 1e-6
    assert response_probabilities(model, PROMPT, RESPONSE).equals(plain)


def test_an_error_inside_undoes_the_edit_too() -> None:
    model = loaded("gpt2", "auto")
    before = bits(model)
    with pytest.raises(KeyboardInterrupt), edit_of(model).applied(model):
        raise KeyboardInterrupt
    assert bits(model) == before


@pytest.mark.seconds
@pytest.mark.parametrize(("family", "backend"), KINDS)
def test_a_saved_edit_makes_the_same_model(family: str, backend: str, tmp_path: Path) -> None:
    model = loaded(family, backend)
    edit = edit_of(model)
    path = edit.save(tmp_path / "edit.safetensors")
    again = ModelEdit.load(path)
    assert (again.name, again.settings, list(again.layers)) == ("test", {"k": 2}, [1])
    other = loaded(family, backend, edits=[path])
    ids = model.tokens(PROMPT)
    with edit.applied(model):
        assert torch.equal(other.run(ids).logits, model.run(ids).logits)
    twice = loaded(family, backend, edits=[edit_of(model, layer=0), path])
    assert not torch.equal(twice.run(ids).logits, other.run(ids).logits)


def test_an_edit_for_another_model_changes_nothing() -> None:
    model = loaded("gpt2", "auto")
    before, edit = bits(model), edit_of(model)
    good = edit.layers[1]
    wrong = {
        "made for other weights": ModelEdit("x", {0: good, 1: good}),
        "it was made for another model": ModelEdit("x", {9: good}),
        r"neuron 100000 of layer 1.*made for another model": ModelEdit(
            "x", {1: LayerEdit(torch.tensor([3, 100_000]), good.before, good.after, good.added)}
        ),
    }
    for sentence, other in wrong.items():
        with pytest.raises(ValueError, match=sentence), other.applied(model):
            pass
    assert bits(model) == before


def test_an_edit_of_wrong_shapes_or_numbers_is_refused() -> None:
    rows = torch.zeros(1, 4)
    with pytest.raises(ValueError, match=r"needs neurons \(n,\), before and after"):
        LayerEdit(torch.tensor([0, 1]), rows, rows, torch.zeros(4))
    for neurons in (torch.tensor([-1]), torch.tensor([0.5]), torch.tensor([2, 2])):
        with pytest.raises(ValueError, match="different ints from 0 on"):
            LayerEdit(neurons, rows.expand(len(neurons), 4), rows.expand(len(neurons), 4), torch.zeros(4))
    with pytest.raises(ValueError, match="must hold finite numbers"):
        LayerEdit(torch.tensor([0]), rows, rows * torch.nan, torch.zeros(4))


@pytest.mark.parametrize("edits", ["lope.safetensors", 3])
def test_edits_must_be_listed(edits: Any) -> None:
    with pytest.raises(TypeError, match=r"edits must be a list of files or edits, got .*: write edits=\["):
        load_model("demo-base", edits=edits)


def test_files_that_are_no_edit_are_refused(tmp_path: Path) -> None:
    model = loaded("gpt2", "auto")
    path = edit_of(model).save(tmp_path / "edit.safetensors")
    with pytest.raises(FileNotFoundError, match="check the path"):
        ModelEdit.load(tmp_path / "none.safetensors")
    save_file({"a": torch.zeros(1)}, tmp_path / "other.safetensors")
    with pytest.raises(ValueError, match="holds no edit of a model"):
        ModelEdit.load(tmp_path / "other.safetensors")
    head = {"edit": '{"format": "interp_widgets edit 1", "name": "x"}'}
    save_file({"0.neurons": torch.zeros(1, dtype=torch.long)}, tmp_path / "part.safetensors", metadata=head)
    with pytest.raises(ValueError, match=r"lacks the tensor '0\.before'"):
        ModelEdit.load(tmp_path / "part.safetensors")
    save_file({"x.y": torch.zeros(1)}, tmp_path / "odd.safetensors", metadata=head)
    with pytest.raises(ValueError, match=r"unknown tensor 'x\.y'"):
        ModelEdit.load(tmp_path / "odd.safetensors")
    path.write_bytes(path.read_bytes()[:40])
    with pytest.raises(ValueError, match="is not a safetensors file"):
        ModelEdit.load(path)


def test_a_change_of_any_bit_of_a_file_is_noticed(tmp_path: Path) -> None:
    model = loaded("gpt2", "auto")
    content = edit_of(model).save(tmp_path / "edit.safetensors").read_bytes()
    damaged = tmp_path / "damaged.safetensors"
    for bit in range(0, 8 * len(content), 397):
        changed = bytearray(content)
        changed[bit // 8] ^= 1 << bit % 8
        damaged.write_bytes(changed)
        with pytest.raises(ValueError, match=r"damaged|is not a safetensors file|holds no edit|not valid JSON"):
            ModelEdit.load(damaged)
