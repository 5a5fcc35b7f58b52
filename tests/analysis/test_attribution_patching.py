"""First-order estimates of patches against central differences over transformers, and beside real patches."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from interp_widgets import Model, activation_patching, load_circuit
from interp_widgets.analysis.patching import ActivationPatchingResult
from tests.analysis.test_patching import ALL, ANSWER, CLEAN, CORRUPTED, FOIL, MODELS, gap, loaded, put, sites_of
from tests.architectures.functions import reference
from tests.architectures.models import LAYERS
from tests.architectures.naive import Naive

STEP = 1e-3


def slopes(naive: Naive, site: str, run: list[int], source: list[int]) -> Tensor:
    """(layers, heads, positions) derivative of the logit difference along each patch, by central differences."""
    table = []
    for layer in range(LAYERS):
        module, enters, parts = sites_of(naive, site, layer)
        (here,), (there,) = (naive.values(ids, [(module, enters)]) for ids in (run, source))

        def moved(
            at: int, part: Any, step: float, here: Tensor = here, there: Tensor = there, where: Any = (module, enters)
        ) -> Tensor:
            new = here[at, part] + step * (there - here)[at, part]
            return gap(naive.logits(run, [(where[0], put(at, part, new), where[1])]))

        rows = [
            [(moved(at, part, STEP) - moved(at, part, -STEP)) / (2 * STEP) for at in range(len(run))] for part in parts
        ]
        table.append(torch.stack([torch.stack(row) for row in rows]))
    return torch.stack(table)


@pytest.mark.parametrize("direction", ["denoising", "noising"])
@pytest.mark.parametrize(("architecture", "backend"), MODELS)
def test_each_estimate_is_a_derivative_over_transformers(architecture: str, backend: str, direction: Any) -> None:
    naive, model = reference(architecture), loaded(architecture, backend)
    sites = ALL[:-1]
    found = activation_patching(
        model, CLEAN, CORRUPTED, ANSWER, foil=FOIL, sites=sites, direction=direction, method="attribution", sample=3
    )
    run, source = (CORRUPTED, CLEAN) if direction == "denoising" else (CLEAN, CORRUPTED)
    ends = [gap(naive.logits(ids)) for ids in (CLEAN, CORRUPTED)]
    start = 0.0 if direction == "denoising" else 1.0
    for site in sites:
        wanted = start + slopes(naive, site, run, source) / (ends[0] - ends[1])
        own = torch.as_tensor(np.array(found.estimated[site])).double()
        own = own if own.ndim == 3 else own[:, None]
        assert own.shape == wanted.shape, site
        assert float((own - wanted).abs().max()) < 2e-3 * max(1.0, float(wanted.abs().max())), site
        assert float(wanted.std()) > 1e-4, site


@pytest.mark.parametrize(("architecture", "backend"), [MODELS[0], MODELS[4], MODELS[6]])
def test_patterns_are_derivatives_of_the_models_own_patterns(architecture: str, backend: str) -> None:
    model = loaded(architecture, backend)
    found = activation_patching(
        model, CLEAN, CORRUPTED, ANSWER, foil=FOIL, sites="pattern", method="attribution", sample=3
    )
    gaps = [gap(model.run(ids).logits[0].double()) for ids in (CLEAN, CORRUPTED)]
    for layer in range(LAYERS):
        name = f"blocks.{layer}.attn.hook_pattern"
        clean, corrupted = (model.run(ids, capture=name).activations[name] for ids in (CLEAN, CORRUPTED))
        for head in range(model.n_heads):

            def moved(step: float, layer: int = layer, head: int = head, name: str = name,
                      change: Tensor = clean - corrupted) -> Tensor:  # fmt: skip
                def edit(value: Tensor) -> Tensor:
                    value = value.clone()
                    value[:, head] += step * change[:, head]
                    return value

                return gap(model.run(CORRUPTED, edit={name: edit}).logits[0].double())

            slope = (moved(0.01) - moved(-0.01)) / 0.02
            wanted = float(slope / (gaps[0] - gaps[1]))
            assert found.estimated["pattern"][layer, head] == pytest.approx(wanted, abs=2e-3 * max(1.0, abs(wanted)))


def test_the_sample_is_patched_for_real_and_tells_how_good_the_estimate_is(tmp_path: Path) -> None:
    model = loaded("llama", "bridge")
    options: Any = {"foil": FOIL, "sites": ALL}
    exact = activation_patching(model, CLEAN, CORRUPTED, ANSWER, **options)
    found = activation_patching(model, CLEAN, CORRUPTED, ANSWER, method="attribution", sample=7, **options)
    assert exact.estimated == {}
    for site in ALL:
        real, known = exact.recovered[site], np.isfinite(found.recovered[site])
        assert known.sum() == min(7, real.size)
        assert found.recovered[site][known] == pytest.approx(real[known], abs=1e-6)
        assert found.estimated[site].shape == real.shape
        wanted = np.corrcoef(found.estimated[site][known], real[known])[0, 1]
        assert found.correlation(site) == pytest.approx(wanted, nan_ok=True)
        assert set(found.strongest(site, 3)) <= {tuple(map(int, at)) for at in np.argwhere(known)}
        assert found.measures()[f"{site}_correlation"] == pytest.approx(found.correlation(site), nan_ok=True)
    every = activation_patching(model, CLEAN, CORRUPTED, ANSWER, method="attribution", sample=10_000, **options)
    assert every.recovered["head"] == pytest.approx(exact.recovered["head"], abs=1e-6)
    frame = found.to_frame()
    assert frame["recovered"].notna().sum() == sum(min(7, values.size) for values in exact.recovered.values())
    assert frame["estimated"].notna().all()
    assert ActivationPatchingResult.load(found.save(tmp_path / "x")).equals(found)
    other = activation_patching(model, CLEAN, CORRUPTED, ANSWER, method="attribution", sample=7, seed=1, **options)
    assert not np.array_equal(np.isnan(other.recovered["head"]), np.isnan(found.recovered["head"]))
    with pytest.raises(ValueError, match="every cell was patched"):
        exact.correlation("head")


def test_means_over_pairs_and_no_test_of_an_estimate() -> None:
    model = loaded("llama", "bridge")
    clean, corrupted = [CLEAN, [4, 17, 42, 8, 5, 31]], [CORRUPTED, [4, 17, 21, 8, 5, 31]]
    options: Any = {"foil": FOIL, "sites": "attn", "method": "attribution", "sample": 4}
    found = activation_patching(model, clean, corrupted, ANSWER, **options)
    alone = [
        activation_patching(model, one, other, ANSWER, **options) for one, other in zip(clean, corrupted, strict=True)
    ]
    wanted = np.mean([one.estimated["attn"] for one in alone], axis=0)
    assert found.estimated["attn"] == pytest.approx(wanted)
    cells = [("attn", int(layer), int(at)) for layer, at in np.argwhere(np.isfinite(found.recovered["attn"]))]
    assert len(found.test(cells)) == 4
    missing = next(
        ("attn", layer, at) for layer in range(LAYERS) for at in range(6) if ("attn", layer, at) not in cells
    )
    with pytest.raises(ValueError, match="was estimated, not patched"):
        found.test([missing])


def test_a_divergence_has_no_first_order() -> None:
    with pytest.raises(ValueError, match="cannot estimate metric='kl'"):
        activation_patching(loaded("llama", "bridge"), CLEAN, CORRUPTED, ANSWER, metric="kl", method="attribution")
    for metric in ("log_prob", "probability", "logit"):
        model: Any = loaded("llama", "bridge")
        found = activation_patching(model, CLEAN, CORRUPTED, ANSWER, metric=metric, sites="mlp", method="attribution")
        assert found.correlation("mlp") > 0.8
    with pytest.raises(ValueError, match="sample must be"):
        activation_patching(loaded("llama", "bridge"), CLEAN, CORRUPTED, ANSWER, method="attribution", sample=2)


# ---- queries and keys through the softmax


def by_patterns(model: Model, site: Any, run: list[int], source: list[int], metric: Any) -> Tensor:
    """(layers, heads, positions) the exact change of the pattern times the gradient there, one pass per cell."""
    place = {"head_q": "q", "head_k": "k"}[site]
    heads = model.n_heads if site == "head_q" else model.n_kv_heads
    table = torch.zeros(model.n_layers, heads, len(run), dtype=torch.float64)
    for layer in range(model.n_layers):
        at, pattern = f"blocks.{layer}.attn.hook_{place}", f"blocks.{layer}.attn.hook_pattern"
        here = model.run(run, capture=[at, pattern], grad=metric)
        there = model.run(source, capture=at).activations[at]
        for head in range(heads):
            for position in range(len(run)):

                def put(value: Tensor, head: int = head, position: int = position, there: Tensor = there) -> Tensor:
                    new = value.clone().unflatten(-1, (heads, -1)) if value.ndim == 3 else value.clone()
                    new[:, position, head] = there.reshape(new.shape)[:, position, head]
                    return new.reshape(value.shape)

                moved = model.run(run, edit={at: put}, capture=pattern).activations[pattern]
                change = ((moved - here.activations[pattern]) * here.gradients[pattern]).sum()
                table[layer, head, position] = float(change)
    return table


@pytest.mark.parametrize(("architecture", "backend"), MODELS)
def test_the_softmax_is_exact_for_queries_and_keys(architecture: str, backend: str) -> None:
    direction = "denoising" if backend == "bridge" else "noising"
    model, sites = loaded(architecture, backend), ("head_q", "head_k", "head_v")
    options: Any = {"foil": FOIL, "sites": sites, "direction": direction, "sample": 3}
    found, plain = (
        activation_patching(model, CLEAN, CORRUPTED, ANSWER, method=method, **options)
        for method in ("attribution_softmax", "attribution")
    )
    run, source = (CORRUPTED, CLEAN) if direction == "denoising" else (CLEAN, CORRUPTED)
    both = float(found.clean[0] - found.corrupted[0])
    start = 0.0 if direction == "denoising" else 1.0
    for site in sites[:2]:
        wanted = start + by_patterns(model, site, run, source, lambda logits: gap(logits[0])) / both
        own = torch.as_tensor(np.array(found.estimated[site])).double()
        assert float((own - wanted).abs().max()) < 2e-3 * max(1.0, float(wanted.abs().max())), site
        assert np.abs(found.estimated[site] - plain.estimated[site]).max() > 1e-4, site
    np.testing.assert_array_equal(found.estimated["head_v"], plain.estimated["head_v"])


def test_a_saturated_softmax_hides_a_query_from_the_gradient_alone() -> None:
    """The heads of the induction circuit attend to one token only."""
    model, truth = load_circuit("induction")
    case = truth.cases[0]
    options: Any = {"foil": case.foil, "sites": ("head_q", "head_k"), "direction": "noising", "sample": 3}
    exact, plain, softmax = (
        activation_patching(model, case.prompt, case.corrupted, case.answer, method=method, **options)
        for method in ("exact", "attribution", "attribution_softmax")
    )
    lost = 1 - np.concatenate([exact.recovered[site].ravel() for site in ("head_q", "head_k")])
    rest, found = (
        1 - np.concatenate([each.estimated[site].ravel() for site in ("head_q", "head_k")]) for each in (plain, softmax)
    )
    at = int(lost.argmax())
    assert lost[at] > 0.9
    assert abs(rest[at]) < 0.1
    assert found[at] > 0.9
