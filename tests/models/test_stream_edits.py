"""Edits of the residual stream: what they change, in which threads, that nothing is left of them, and files."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest
import torch

from interp_widgets import ModelEdit, StreamEdit, erase, load_model, logit_lens, response_probabilities
from tests.models.tiny import tiny_folder

PROMPT, RESPONSE = "When Mary and John went to the store, John gave a drink to", " Mary. The end"
KINDS = [("gpt2", "auto"), ("gpt2", "bridge"), ("llama", "auto"), ("llama", "bridge")]


def loaded(family: str, backend: str, dtype: torch.dtype = torch.float64, **options: Any) -> Any:
    return load_model(tiny_folder(family), device="cpu", backend=backend, dtype=dtype, **options)


def edit_of(model: Any, *layers: int) -> ModelEdit:
    """Two directions of the streams at ``layers`` (1 if left out) are mixed about a centre, and a vector is added."""
    draw = torch.Generator().manual_seed(0)
    read, write = torch.randn(model.d_model, 2, generator=draw), torch.randn(2, model.d_model, generator=draw) / 10
    centre, added = torch.randn(2, model.d_model, generator=draw)
    stream = StreamEdit(read / 10, write, centre, added)
    return ModelEdit.of(model, "test", streams=dict.fromkeys(layers or (1,), stream), settings={"rank": 2})


@pytest.mark.parametrize(("family", "backend"), KINDS)
@pytest.mark.parametrize("layer", [0, 1, -1])
def test_a_stream_is_changed_at_every_token_but_the_bos(family: str, backend: str, layer: int) -> None:
    model = loaded(family, backend)
    layer = layer % (model.n_layers + 1)
    edit, ids = edit_of(model, layer), model.tokens(PROMPT)
    first, own = int(ids[0] == model.bos_token_id), edit.streams[layer]

    def change(value: torch.Tensor) -> torch.Tensor:
        new = value.clone()
        for at in range(first, value.shape[1]):
            x = value[0, at]
            new[0, at] = x - (x - own.center.double()) @ own.read.double() @ own.write.double() + own.added.double()
        return new

    name = "blocks.{}.hook_resid_pre" if layer < model.n_layers else "blocks.{}.hook_resid_post"
    wanted = model.run(ids, edit={name.format(min(layer, model.n_layers - 1)): change}).logits
    plain = model.run(ids).logits
    with edit.applied(model):
        found = model.run(ids).logits
    torch.testing.assert_close(found, wanted, rtol=0, atol=1e-9)
    assert float((found - plain).abs().max()) > 1e-3, "the edit changes nothing"
    assert torch.equal(model.run(ids).logits, plain)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_projection_is_what_erase_does(dtype: torch.dtype) -> None:
    model = loaded("llama", "auto", dtype)
    draw = torch.Generator().manual_seed(1)
    basis = torch.linalg.qr(torch.randn(model.d_model, 3, generator=draw))[0]
    nothing = torch.zeros(model.d_model)
    edit = ModelEdit("projection", streams={2: StreamEdit(basis, basis.T, nothing, nothing)})
    ids = model.tokens(PROMPT, prepend_bos=False)
    with erase(model, basis.T, layer=2):
        wanted = model.run(ids).logits
    with edit.applied(model):
        found = model.run(ids).logits
    close = 1e-4 if dtype == torch.float32 else 0.1
    torch.testing.assert_close(found, wanted, rtol=0, atol=close)


@pytest.mark.seconds
@pytest.mark.parametrize("backend", ["auto", "bridge"])
def test_other_threads_analyses_and_generation_see_the_edit_and_its_end(backend: str) -> None:
    model = loaded("gpt2", backend, torch.float32)
    edit, ids = edit_of(model), model.tokens(PROMPT)

    def look() -> tuple[Any, Any, list[int]]:
        """Probabilities, a lens map, and eight greedy tokens written with the cache."""
        new = model.generate_ids(ids, max_new_tokens=8)
        return response_probabilities(model, PROMPT, RESPONSE), logit_lens(model, PROMPT), new

    plain, seen = look(), []
    undo = edit.apply(model)
    assert model.edits == ("test",)
    thread = threading.Thread(target=lambda: seen.append(look()))
    thread.start()
    thread.join()
    own, written = look(), list(ids)
    for _ in own[2]:
        written.append(int(model.run(written).logits[0, -1].argmax()))
    undo()
    undo()  # a second time does nothing
    assert model.edits == ()
    assert seen[0][0].equals(own[0])
    assert seen[0][1].equals(own[1])
    assert len(own[2]) > 2
    assert seen[0][2] == own[2] == written[len(ids) :], "cached steps and whole passes agree"
    assert abs(own[0].probability - plain[0].probability).max() > 1e-6
    again = look()
    assert again[0].equals(plain[0])
    assert again[1].equals(plain[1])
    assert again[2] == plain[2]


def test_results_say_that_the_model_is_edited() -> None:
    model = loaded("gpt2", "auto")
    assert "edited" not in response_probabilities(model, PROMPT, RESPONSE).provenance
    with edit_of(model).applied(model):
        assert "edited" in response_probabilities(model, PROMPT, RESPONSE).provenance


@pytest.mark.seconds
@pytest.mark.parametrize(("family", "backend"), KINDS)
def test_a_saved_edit_of_streams_makes_the_same_model(family: str, backend: str, tmp_path: Path) -> None:
    model = loaded(family, backend)
    edit = edit_of(model, 0, 2)
    path = edit.save(tmp_path / "edit.safetensors")
    again = ModelEdit.load(path)
    assert (again.name, again.settings, list(again.streams), dict(again.layers)) == ("test", {"rank": 2}, [0, 2], {})
    other, ids = loaded(family, backend, edits=[path]), model.tokens(PROMPT)
    with edit.applied(model):
        torch.testing.assert_close(other.run(ids).logits, model.run(ids).logits, rtol=0, atol=1e-12)


@pytest.mark.seconds
def test_an_edit_of_streams_for_another_model_changes_nothing() -> None:
    model, other = loaded("gpt2", "auto"), loaded("llama", "auto")
    ids = model.tokens(PROMPT)
    plain, own = model.run(ids).logits, edit_of(model).streams[1]
    narrow = StreamEdit(torch.ones(3, 1), torch.ones(1, 3), torch.ones(3), torch.ones(3))
    wrong = {
        "for other token embeddings": edit_of(other),
        "of stream 9.*another model": ModelEdit("x", streams={9: own}),
        "of width 3": ModelEdit("x", streams={0: narrow}),
    }
    for sentence, edit in wrong.items():
        with pytest.raises(ValueError, match=sentence), edit.applied(model):
            pass
        assert torch.equal(model.run(ids).logits, plain)
    assert len(loaded("gpt2", "auto", torch.bfloat16, edits=[edit_of(model)]).generate(PROMPT, max_new_tokens=1)) > 0


def test_what_is_no_edit_of_a_stream_is_refused() -> None:
    good = {"read": torch.ones(3, 1), "write": torch.ones(1, 3), "center": torch.ones(3), "added": torch.ones(3)}
    bad: dict[str, dict[str, Any]] = {
        r"write \(rank, d_model\)": {"write": torch.ones(3, 1)},
        r"read of an edit of a stream": {"read": torch.ones(3)},
        "finite": {"added": torch.full((3,), torch.nan)},
    }
    for sentence, change in bad.items():
        with pytest.raises(ValueError, match=sentence):
            StreamEdit(**{**good, **change})
    with pytest.raises(TypeError, match="center of an edit must be a tensor, got None"):
        StreamEdit(**{**good, "center": None})
    one = StreamEdit(**good)
    for streams in ({"a": one}, {1: 3}, {True: one}):
        with pytest.raises(TypeError, match="streams of an edit must map numbers of layers to StreamEdit, got"):
            ModelEdit("x", streams=streams)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="layers of an edit must map numbers of layers to LayerEdit, got 1: None"):
        ModelEdit("x", {1: None})  # type: ignore[dict-item]
