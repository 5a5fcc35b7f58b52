"""Routing shows the weights and the readings that the model mixes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from interp_widgets.analysis.mixture_of_depths import RoutingResult, RoutingSpeed, routing, routing_speed, speed
from tests.models.mixtures import naive, tiny_mixture
from tests.models.tiny import tiny_model

IDS = [5, 17, 300, 44, 8, 261, 99, 30]
NAMES = [("gpt2", "hooked"), ("llama", "hooked"), ("gpt_neox", "hooked"), ("gpt2", "bridge"), ("llama", "bridge")]
CAPPED = ("gemma2", "bridge")
"""A model whose logits have a soft cap, of 3."""


def test_routing_behind_a_soft_cap() -> None:
    """The ensemble is capped once, behind the mixture; a route's own reading is capped as well."""
    model = tiny_mixture(*CAPPED, 2)
    total, routes, weights = naive("gemma2", model.state, torch.tensor([IDS]))
    found = routing(model, IDS, top=3)
    assert np.allclose(found.weights, weights[0], atol=1e-5)
    own = total[0].softmax(-1)
    assert np.allclose(found.ensemble_probability, own.topk(3, dim=-1).values, atol=1e-5)
    for i, logits in enumerate(routes):
        p = logits[0].softmax(-1)
        assert np.allclose(found.route_probability[i], p.topk(3, dim=-1).values, atol=1e-5)
        assert np.allclose(found.kl[i], (p * (p / own).log()).sum(-1), atol=1e-4)
        bare = (3 * torch.atanh(logits[0] / 3)).softmax(-1)
        assert not np.allclose(found.route_probability[i], bare.topk(3, dim=-1).values, atol=1e-3)


@pytest.mark.parametrize("name", NAMES, ids="-".join)
@pytest.mark.parametrize("top_k", [3, 2, 1])
def test_routing_is_what_the_definition_gives(name: tuple[str, str], top_k: int) -> None:
    model = tiny_mixture(*name, 3, top_k=top_k)
    total, routes, weights = naive(name[0], model.state, torch.tensor([IDS]))
    found = routing(model, IDS, top=3)
    assert np.allclose(found.weights, weights[0], atol=1e-5)
    assert np.allclose(found.weights.sum(1), 1, atol=1e-6)
    own = total[0].softmax(-1)
    assert found.ensemble_ids[:, 0].tolist() == own.argmax(-1).tolist()
    for i, logits in enumerate(routes):
        p = logits[0].softmax(-1)
        best = p.topk(3, dim=-1)
        assert np.allclose(found.route_probability[i], best.values, atol=1e-4)
        assert found.route_ids[i].tolist() == best.indices.tolist()
        assert found.agreement[i].tolist() == (p.argmax(-1) == own.argmax(-1)).tolist()
        assert np.allclose(found.kl[i], (p * (p / own).log()).sum(-1), atol=1e-3)
    last = [max(i for i in range(3) if weights[0, t, i] > 0) for t in range(len(IDS))]
    assert found.exit_layer.tolist() == last  # routes of a three-layer model are its layers
    assert (found.layers, found.top_k, found.k) == ((0, 1, 2), top_k, 3)
    if top_k == 3:
        assert found.exit_layer.tolist() == [2] * len(IDS)
        assert found.skipped_share == 0
    if top_k == 1:  # one route: it is the ensemble
        chosen = found.main_route
        assert all(found.agreement[chosen[t], t] for t in range(len(IDS)))
        assert np.allclose(found.kl[chosen, np.arange(len(IDS))], 0, atol=1e-5)
        assert found.skipped_share == pytest.approx(np.mean([(2 - layer) / 3 for layer in last]))
        assert len(set(last)) > 1


def test_a_number_of_routes_for_this_look_only() -> None:
    model = tiny_mixture("llama", "auto", 3)
    dense, sparse = routing(model, IDS), routing(model, IDS, top_k=1)
    assert (sparse.top_k, model.top_k) == (1, 3)
    assert (sparse.weights.max(1) == 1).all()
    assert dense.weights.max() < 1
    assert sparse.provenance["mod_top_k"] == 1
    assert not np.array_equal(dense.ensemble_probability, sparse.ensemble_probability)
    assert np.array_equal(dense.route_ids, sparse.route_ids)


def test_text_leaves_the_bos_off_the_axis() -> None:
    model = tiny_mixture("llama", "auto", 2)
    found = routing(model, "The city of Paris")
    assert found.bos_id == model.bos_token_id
    assert "".join(found.tokens).strip() == "The city of Paris"
    whole = routing(model, [model.bos_token_id, *found.ids])
    assert np.array_equal(whole.weights, found.weights)


def test_blocks_of_positions_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    from interp_widgets.analysis.mixture_of_depths import routing as module

    model = tiny_mixture("llama", "auto", 2)
    wanted = routing(model, IDS)
    told: list[tuple[int, int]] = []
    monkeypatch.setitem(
        __import__("sys").modules["interp_widgets.analysis.mixture_of_depths.routes"]._LOGITS, "cpu", 3 * 460
    )
    found = routing(model, IDS, progress=lambda a, b: told.append((a, b)))
    assert module is routing
    assert len(told) > 2
    assert told[-1] == (len(told), len(told))
    assert np.allclose(found.route_probability, wanted.route_probability, atol=1e-6)
    assert np.array_equal(found.route_ids, wanted.route_ids)


def test_an_edit_by_the_user_shows() -> None:
    model = tiny_mixture("llama", "auto", 2)
    before = routing(model, IDS)
    point = model.tl_model.hook_dict["blocks.1.hook_resid_pre"]
    handle = point.register_forward_hook(lambda module, args, made: -made)
    try:
        edited = routing(model, IDS)
    finally:
        handle.remove()
    assert not np.allclose(edited.weights, before.weights, atol=1e-2)
    assert np.array_equal(routing(model, IDS).weights, before.weights)


def test_tables_and_files(tmp_path: Path) -> None:
    found = routing(tiny_mixture("llama", "auto", 2), IDS, top=2)
    frame = found.to_frame()
    assert len(frame) == 2 * len(IDS)
    assert frame["weight"].sum() == pytest.approx(len(IDS))
    assert frame.loc[3, "top_token"] == found.token_text(int(found.route_ids[1, 1, 0]))
    assert RoutingResult.load(found.save(tmp_path / "routing")).equals(found)
    with pytest.raises(ValueError, match="is not among the likeliest"):
        found.token_text(-1)


def test_what_is_refused() -> None:
    model = tiny_mixture("llama", "auto", 2)
    with pytest.raises(TypeError, match="needs a mixture of depths, as tune_mod makes it, got Model"):
        routing(tiny_model("llama"), IDS)
    with pytest.raises(ValueError, match=r"top must be in 1\.\."):
        routing(model, IDS, top=0)
    with pytest.raises(ValueError, match=r"top_k must be an int in 1\.\.2 for 2 routes, got 3"):
        routing(model, IDS, top_k=3)
    with pytest.raises(ValueError, match="the prompt is empty"):
        routing(model, [])

    class Stop(Exception):
        pass

    def stop() -> None:
        raise Stop

    with pytest.raises(Stop):
        routing(model, IDS, check=stop)


@pytest.mark.slow
@pytest.mark.parametrize(("family", "backend"), [("llama", "hooked"), ("llama", "bridge"), CAPPED])
def test_speed_is_measured_for_every_number_of_routes(tmp_path: Path, family: str, backend: str) -> None:
    """Whatever the clock says: a made-up one here, which counts its calls."""
    model = tiny_mixture(family, backend, 3)
    ticks = iter(range(10_000))
    told: list[tuple[int, int]] = []
    found = routing_speed(
        model, IDS, max_new_tokens=12, repeats=2, clock=lambda: float(next(ticks)), progress=lambda *a: told.append(a)
    )
    assert tuple(found.top_k) == (1, 2, 3)
    assert found.seconds.shape == (3, 2)
    assert np.array_equal(found.tokens_per_second, [12, 12, 12])
    assert np.array_equal(found.speed_up, [1, 1, 1])
    assert told[-1] == (9, 9)
    assert found.skips_layers == (family != "gemma2")
    assert found.computed[-1] == 1
    assert (found.computed[0] < 1) == (found.runs[0] < 0.9) == (family != "gemma2")
    assert found.runs[-1] == 1
    for count, text in zip(found.top_k, found.texts, strict=True):
        ids = list(IDS)
        with model.with_top_k(count):
            for _ in range(12):
                ids.append(int(model.run(ids).logits[0, -1].argmax()))
        assert model.decode(ids[len(IDS) :]) == text
    assert RoutingSpeed.load(found.save(tmp_path / "speed")).equals(found)
    assert list(found.to_frame()["top_k"]) == [1, 2, 3]
    assert model.top_k == 3


def test_the_first_text_of_every_number_of_routes_is_not_counted() -> None:
    """It fills caches; and with different times each is where it belongs."""
    model = tiny_mixture("llama", "bridge", 2)
    lengths = [
        100.0,
        100.0,
        3.0,
        1.0,
        2.0,
        8.0,
    ]  # of one route, two routes, two, one, one, two
    clock = iter([tick for length in lengths for tick in (0.0, length)])
    found = routing_speed(model, IDS, max_new_tokens=6, repeats=2, clock=lambda: next(clock))
    assert found.seconds.tolist() == [[1, 2], [3, 8]]
    np.testing.assert_allclose(found.tokens_per_second, [6 / np.sqrt(2), 6 / np.sqrt(24)])
    np.testing.assert_allclose(found.speed_up, [np.sqrt(12), 1])
    half = 12.7062 * (np.log(4) - np.log(3)) / 2  # Student's t with one degree of freedom
    np.testing.assert_allclose(
        found.speed_up_interval, [[np.sqrt(12) / np.exp(half), 1], [np.sqrt(12) * np.exp(half), 1]], rtol=1e-4
    )
    assert found.significant == (False, False)


def test_a_ratio_of_speeds_has_an_interval_and_agrees_with_tokens_per_second() -> None:
    model, rng = tiny_mixture("llama", "bridge", 2), np.random.default_rng(0)
    found = routing_speed(model, IDS, max_new_tokens=2, repeats=2)
    held, apart = [], []
    for true in (1.0, 1.6):
        for _ in range(400):
            seconds = np.exp(rng.normal(0, 0.1, size=(2, 6)) + rng.normal(0, 1, size=6)) / [[true], [1]]
            one = replace(found, seconds=seconds)
            low, high = one.speed_up_interval[:, 0]
            assert one.speed_up[0] == pytest.approx(one.tokens_per_second[0] / one.tokens_per_second[1])
            assert low < one.speed_up[0] < high
            held.append(low <= true <= high)
            apart.append((true, one.significant[0]))
    assert abs(np.mean(held) - 0.95) < 0.03
    assert np.mean([told for true, told in apart if true > 1]) > 0.99, "a difference is told"
    assert np.mean([told for true, told in apart if true == 1]) < 0.08, "and none is not"
    single = replace(found, seconds=found.seconds[:, :1])
    assert np.isnan(single.speed_up_interval[:, 0]).all()
    assert single.significant == (False, False)


def test_speed_on_a_device_that_cannot_wait_for_all_its_streams(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise RuntimeError("Backend doesn't support synchronizing all streams")

    monkeypatch.setattr(torch.accelerator, "synchronize", refuse)
    monkeypatch.setattr(speed, "device_kind", lambda device: "accelerator", raising=False)
    found = routing_speed(tiny_mixture("llama", "bridge", 2), IDS, max_new_tokens=2, repeats=1)
    assert (found.seconds > 0).all()
