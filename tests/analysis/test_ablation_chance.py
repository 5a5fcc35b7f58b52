"""Ablation maps beside changes as long in random directions: the changes, their effects, the level and known heads."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from interp_widgets import load_circuit
from interp_widgets.analysis._core.prompts import Prompt
from interp_widgets.analysis.ablation.map_results import HeadAblationResult, p_of_difference
from interp_widgets.analysis.ablation.maps import ablate_heads, ablate_modules, ablation_cost
from interp_widgets.analysis.ablation.random_changes import in_random_directions
from interp_widgets.models.engine import trace
from interp_widgets.models.patching import Patch
from tests.models.tiny import tiny_model

IDS = [17, 300, 44, 8, 261, 99]
TARGET = 60


def removed(layer: int, heads: list[int], tokens: int, width: int) -> Patch:
    """The patch that sets heads to zero at every token, a cell for each."""
    cells = torch.arange(len(heads)).repeat_interleave(tokens)
    values = torch.zeros(len(cells), width)
    at = torch.arange(tokens).repeat(len(heads))
    return Patch("head", layer, values, at, cells, torch.tensor(heads)[cells])


def test_changes_keep_their_lengths_and_angles() -> None:
    model = tiny_model("llama", "bridge")
    clean = trace(model, model.token_embeddings(IDS)[None])
    z = clean.value("head", 1)[0].double()  # (tokens, heads, d_head)
    patch = removed(1, [0, 3], len(IDS), z.shape[-1])
    turned = in_random_directions(clean, patch, [[0, 0, 0], [0, 0, 1]])
    again = in_random_directions(clean, patch, [[0, 0, 0], [0, 0, 1]])
    torch.testing.assert_close(again.values, turned.values)
    for cell, head in enumerate((0, 3)):
        before = z[:, head]
        change = turned.values[turned.cells == cell].double() - before
        torch.testing.assert_close(change @ change.T, before @ before.T, atol=1e-5, rtol=1e-4)
        assert float((change + before).norm()) > 0.1 * float(before.norm()), "not the removal itself"
    single = Patch("attn", 0, torch.zeros(400, model.d_model), torch.full((400,), 2), torch.arange(400))
    found = in_random_directions(clean, single, [[7, cell] for cell in range(400)])
    before = clean.value("attn", 0)[0, 2]
    directions = (found.values - before) / before.norm()
    torch.testing.assert_close(directions.norm(dim=1), torch.ones(400))
    assert float(directions.mean(0).norm()) < 0.1, "no direction is favoured"
    assert float(directions.square().mean(0).max()) < 1.6 / model.d_model


@pytest.mark.parametrize("family", ["gpt2", "llama"])
def test_the_null_is_that_of_whole_passes(family: str) -> None:
    model = tiny_model(family, "bridge")
    ids = [int(model.bos_token_id or 0), *IDS]
    clean = trace(model, model.token_embeddings(ids)[None])
    plain = ablate_heads(model, ids, TARGET)
    heads = ablate_heads(model, ids, TARGET, draws=2, seed=5)
    modules = ablate_modules(model, ids, TARGET, kinds=("mlp", "both"), draws=2, seed=5)
    np.testing.assert_allclose(heads.effect, plain.effect, atol=1e-5)
    assert (plain.null, plain.p) == (None, None)
    assert heads.null is not None
    assert modules.null is not None
    assert (heads.null.shape, modules.null.shape) == ((2, *heads.effect.shape), (2, *modules.effect.shape))

    def log_prob(edit: Any) -> float:
        return float(model.run(ids, edit=edit).logits[0, -1].double().log_softmax(-1)[TARGET])

    layer, head, draw = 1, 2, 1
    width = clean.value("head", layer).shape[-1]
    number = layer * model.n_heads + head
    turned = in_random_directions(clean, removed(layer, [head], len(ids), width), [[5, draw, number]])

    def put(value: torch.Tensor) -> torch.Tensor:
        value = value.clone().view(1, len(ids), model.n_heads, width)
        value[0, :, head] = turned.values
        return value

    after = log_prob({f"blocks.{layer}.attn.hook_z": put})
    assert heads.null[draw, layer, head] == pytest.approx(log_prob({}) - after, abs=1e-4)
    number = (layer * len(IDS) + 3) * 2  # cells run by layer, position and kind
    one = Patch("mlp", layer, torch.zeros(1, model.d_model), torch.tensor([4]), torch.tensor([0]))
    moved = in_random_directions(clean, one, [[5, draw, number]]).values[0]

    def put_mlp(value: torch.Tensor) -> torch.Tensor:
        return torch.cat([value[:, :4], moved[None, None], value[:, 5:]], dim=1)

    after = log_prob({f"blocks.{layer}.hook_mlp_out": put_mlp})
    assert modules.null[draw, 0, layer, 3] == pytest.approx(log_prob({}) - after, abs=1e-4)


def test_the_heads_of_a_circuit_are_beyond_chance_and_random_heads_rarely() -> None:
    model, truth = load_circuit("indirect_object")
    case = truth.cases[0]
    result = ablate_heads(model, case.prompt, case.answer, draws=19)
    p = np.asarray(result.p)
    assert np.argwhere((p <= 0.05) & (result.effect > 0.1)).tolist() == [[0, 1], [1, 0], [2, 2]]
    assert result.in_words().startswith(f"{(p <= 0.05).sum()} of 12 cells are beyond chance, where at most about 1 ")
    assert result.to_frame()["p"].tolist() == p.ravel().tolist()
    random = tiny_model("gpt2", "bridge")  # whose heads write in random directions
    found = [np.asarray(ablate_heads(random, IDS[:n], TARGET, draws=19, seed=n).p) for n in (2, 3, 4, 6)]
    assert np.mean([each <= 0.05 for each in found]) <= 0.15


@pytest.mark.parametrize("backend", [pytest.param("hooked", marks=pytest.mark.hooked), "bridge"])
def test_the_strongest_cells_alone_have_the_p_of_the_whole_map(backend: Any) -> None:
    model = tiny_model("llama", backend)
    whole, part = (
        ablate_modules(model, IDS, TARGET, kinds=("attn", "mlp"), draws=3, compared=compared) for compared in (None, 7)
    )
    assert whole.p is not None
    assert part.p is not None
    assert part.null is not None
    tested = np.isfinite(part.p)
    assert tested.sum() == 7
    assert (np.isfinite(part.null) == tested).all()
    assert np.abs(whole.effect)[tested].min() >= np.abs(whole.effect)[~tested].max()
    np.testing.assert_array_equal(part.p[tested], whole.p[tested])
    np.testing.assert_allclose(part.null[:, tested], whole.null[:, tested], atol=1e-5)
    every = ablate_modules(model, IDS, TARGET, kinds=("attn", "mlp"), draws=3, compared=10_000)
    np.testing.assert_array_equal(every.p, whole.p)


@pytest.mark.parametrize("ablate", [ablate_modules, ablate_heads])
def test_cells_are_compared_with_nothing_without_draws(ablate: Any) -> None:
    with pytest.raises(ValueError, match=r"^compared= chooses the cells of draws=: give draws=19 or more too"):
        ablate(tiny_model("llama", "bridge"), IDS, TARGET, compared=7)


def test_the_strongest_heads_of_a_circuit_are_beyond_chance(monkeypatch: pytest.MonkeyPatch) -> None:
    model, truth = load_circuit("indirect_object")
    case, done = truth.cases[0], list[tuple[int, int]]()
    result = ablate_heads(model, case.prompt, case.answer, draws=19, compared=4, progress=lambda *at: done.append(at))
    p = np.asarray(result.p)
    assert np.argwhere((p <= 0.05) & (result.effect > 0.1)).tolist() == [[0, 1], [1, 0], [2, 2]]
    assert done[-1] == (12 + 4 * 19, 12 + 4 * 19)
    words = result.in_words()
    assert words.startswith(f"{(p <= 0.05).sum()} of the 4 strongest cells are beyond chance")
    assert "At most about 1 would be by chance alone, since they are the strongest of 12 cells, of which 8" in words
    assert result.provenance["compared"] == 4
    few, all_cells = (ablation_cost(model, 6, what="heads", draws=19, compared=each).flops for each in (4, None))
    assert few < 0.5 * all_cells
    with pytest.raises(ValueError, match="compared must be 1 or more, got 0"):
        ablate_heads(model, case.prompt, case.answer, draws=19, compared=0)
    monkeypatch.setattr(Prompt, "first_is_sink", True)
    found = ablate_modules(model, case.prompt, case.answer, kinds=("attn",), draws=1, compared=6).p
    assert np.isnan(found[..., 0]).all(), "a sink would be all that is compared"


def test_what_a_map_says_of_chance(tmp_path: Any) -> None:
    model, delivered = tiny_model("llama", "bridge"), list[HeadAblationResult]()
    done: list[tuple[int, int]] = []
    options: dict[str, Any] = {"layers": [0, 2], "metric": "kl"}
    few = ablate_heads(
        model, IDS, TARGET, draws=3, progress=lambda *at: done.append(at), on_partial=delivered.append, **options
    )
    assert delivered[-1].null is None, "the exact cells come first"
    np.testing.assert_array_equal(delivered[-1].effect, few.effect)
    assert done[-1] == (4 * few.effect.size, 4 * few.effect.size)
    assert few.in_words() == "With 3 random directions no cell can be told from chance: p cannot be below 0.25"
    assert HeadAblationResult.load(few.save(tmp_path / "heads")).equals(few)
    assert few.provenance["draws"] == 3
    with pytest.raises(ValueError, match="this map was not compared with chance: give draws=19"):
        ablate_heads(model, IDS, TARGET, **options).in_words()
    with pytest.raises(ValueError, match="draws must be 0 or more, got -1"):
        ablate_heads(model, IDS, TARGET, draws=-1)
    other = ablate_heads(model, IDS[::-1], TARGET, draws=3, **options)
    assert few.null is not None
    assert other.null is not None
    wanted = (1 + (abs(other.null - few.null) >= abs(other.effect - few.effect)).sum(0)) / 4
    np.testing.assert_array_equal(p_of_difference(few, other), wanted)
    assert p_of_difference(few, delivered[-1]) is None
    plain, beside = (ablation_cost(model, 20, draws=draws).flops for draws in (0, 19))
    assert 15 * plain < beside <= 20 * plain
