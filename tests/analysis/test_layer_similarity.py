"""CKA against loops, closed forms and the published values; sections planted and absent; MOSSA on models known."""

from __future__ import annotations

import functools
import itertools
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

import interp_widgets as iw
from interp_widgets.analysis.concepts.maps import align_to_main_axis
from interp_widgets.analysis.layer_similarity import projections
from interp_widgets.analysis.layer_similarity.cka import (
    alignments,
    cheaper_form,
    compare_layers,
    layers_that_vary,
)
from interp_widgets.analysis.layer_similarity.mossa import dimensions_explaining
from interp_widgets.analysis.layer_similarity.readability import syllable_count
from tests.models.tiny import tiny_model
from tests.shipped import demo_pair

Array = NDArray[np.float64]
TEXTS = [
    "The cat sat on the mat.", "Paris is the capital of France.", "A pilot flies a plane.", "Two and two make four",
    "John gave Mary a drink", "Once there was a dog", "The river is long and wide", "Who wrote Hamlet?",
]  # fmt: skip


def naive(x: Array, y: Array, *, debiased: bool = False) -> float:
    """CKA by loops over pairs (biased) and over quadruples in Song's form (debiased)."""
    n = len(x)
    first, second = ([[float(a @ b) for b in one] for a in one] for one in (x, y))

    def biased(k: Any, m: Any) -> float:
        def centred(k: Any, i: int, j: int) -> float:
            row, column, every = sum(k[i]) / n, sum(k[a][j] for a in range(n)) / n, sum(map(sum, k)) / n**2
            return float(k[i][j] - row - column + every)

        return sum(centred(k, i, j) * centred(m, i, j) for i in range(n) for j in range(n))

    def unbiased(k: Any, m: Any) -> float:
        off = [(i, j) for i in range(n) for j in range(n) if i != j]
        product = sum(k[i][j] * m[i][j] for i, j in off)
        sums = sum(k[i][j] for i, j in off) * sum(m[i][j] for i, j in off)
        chained = sum(k[i][j] * m[j][h] for i, j in off for h in range(n) if h != j)
        return float(product + sums / ((n - 1) * (n - 2)) - 2 * chained / (n - 2))

    hsic = unbiased if debiased else biased
    return float(hsic(first, second) / np.sqrt(hsic(first, first) * hsic(second, second)))


@pytest.fixture
def two() -> tuple[Array, Array]:
    rng = np.random.default_rng(3)
    x = rng.normal(size=(9, 5))
    return x, rng.normal(size=(9, 7)) + np.pad(x, [(0, 0), (0, 2)]) + 4.0


# ---- one pair


def test_the_values_of_the_published_demo() -> None:
    """Kornblith et al.'s notebook draws X (100, 10), then Y = noise + X, from RandomState(1337)."""
    state = np.random.RandomState(1337)  # the published draw
    x = state.randn(100, 10)
    y = state.randn(100, 10) + x
    assert round(iw.linear_cka(x, y), 5) == 0.55761
    assert round(iw.rbf_cka(x, y, threshold=0.5), 5) == 0.65483
    assert round(iw.linear_cka(x, y, debiased=True), 5) == 0.51346


@pytest.mark.parametrize("debiased", [False, True])
def test_linear_cka_is_the_naive_loop(debiased: bool, two: tuple[Array, Array]) -> None:
    assert iw.linear_cka(*two, debiased=debiased) == pytest.approx(naive(*two, debiased=debiased), rel=1e-12)


@pytest.mark.parametrize("debiased", [False, True])
def test_what_cka_does_and_does_not_see(debiased: bool, two: tuple[Array, Array]) -> None:
    x, y = two
    rng = np.random.default_rng(0)
    turned = np.linalg.qr(rng.normal(size=(7, 7)))[0]
    value = iw.linear_cka(x, y, debiased=debiased)
    assert iw.linear_cka(x, -3 * y @ turned + 5, debiased=debiased) == pytest.approx(value, rel=1e-10)
    assert iw.linear_cka(y, x, debiased=debiased) == pytest.approx(value, rel=1e-12)
    assert iw.linear_cka(x, x, debiased=debiased) == pytest.approx(1)
    stretched = y * np.array([30.0, 1, 1, 1, 1, 1, 1])  # invertible, but neither a rotation nor one scale for all
    assert abs(iw.linear_cka(x, stretched, debiased=debiased) - value) > 0.05


@pytest.mark.parametrize("debiased", [False, True])
@pytest.mark.parametrize("scale", [1e-200, 1e200])
def test_no_scale_is_too_small_or_too_large(scale: float, debiased: bool, two: tuple[Array, Array]) -> None:
    x, y = two
    for function in (iw.linear_cka, functools.partial(iw.rbf_cka, threshold=0.5)):
        found = function(scale * x, y, debiased=debiased)
        assert found == pytest.approx(function(x, y, debiased=debiased), rel=1e-9)
    assert iw.minibatch_cka(scale * x, y) == pytest.approx(iw.minibatch_cka(x, y), rel=1e-9)


def test_tensors_of_any_type_are_taken(two: tuple[Array, Array]) -> None:
    for kind in (torch.bfloat16, torch.float16, torch.float32, torch.float64):
        x, y = (torch.tensor(one, dtype=kind, requires_grad=True) for one in two)
        wide = x.detach().double().numpy(), y.detach().double().numpy()
        assert iw.linear_cka(x, y) == iw.linear_cka(*wide)
        assert iw.layer_sections(x, resamples=9).difference.tolist() == wide[0].mean(axis=0).tolist()
        assert iw.importance_density(x).tolist() == iw.importance_density(wide[0]).tolist()
        assert iw.instruction_score(x[0].abs(), torch.ones(5)) == iw.instruction_score(abs(wide[0][0]), np.ones(5))


def test_rounding_makes_no_layer_more_alike_than_alike() -> None:
    states = np.random.default_rng(0).normal(size=(12, 4, 300)).astype(np.float32)
    biased, debiased, _ = alignments(states, states * np.float32(1.7))
    assert biased.max() <= 1
    assert debiased.max() <= 1
    assert np.diag(debiased) == pytest.approx(1, abs=1e-5)


@pytest.mark.parametrize("n", [6, 40])
def test_both_forms_and_any_memory_agree(n: int) -> None:
    rng = np.random.default_rng(n)
    x, y = rng.normal(size=(n, 3, 11)), rng.normal(size=(n, 2, 8))
    made = [
        compare_layers(x, y, form=form, bytes_at_once=size)  # type: ignore[arg-type]
        for form, size in itertools.product(("gram", "feature"), (1.0, 3000.0, 1e9))
    ]
    for own in made[1:]:
        for name in ("cross", "x", "y", "unbiased_cross", "unbiased_x", "unbiased_y"):
            np.testing.assert_allclose(getattr(own, name), getattr(made[0], name), rtol=1e-9, atol=1e-13)
    assert cheaper_form(10, 500, 500, 4, 4) == "gram"
    assert cheaper_form(5000, 20, 20, 2, 2) == "feature"


@pytest.mark.parametrize("kind", [np.float32, np.float64])
def test_all_pairs_of_layers_at_once(kind: Any) -> None:
    rng = np.random.default_rng(5)
    x = rng.normal(size=(12, 3, 6)).astype(kind)
    y = (rng.normal(size=(12, 4, 9)) + 2).astype(kind)
    biased, unbiased, chance = alignments(x, y)
    tolerance = {"rtol": 0, "atol": 1e-5 if kind == np.float32 else 1e-8}
    for i, j in itertools.product(range(3), range(4)):
        pair = x[:, i].astype(np.float64), y[:, j].astype(np.float64)
        np.testing.assert_allclose(biased[i, j], naive(*pair), **tolerance)
        np.testing.assert_allclose(unbiased[i, j], naive(*pair, debiased=True), **tolerance)
    own = alignments(x, x[:, ::-1], paired=True)
    np.testing.assert_allclose(own[0], [alignments(x, x)[0][i, 2 - i] for i in range(3)], **tolerance)
    assert chance.shape == (3, 4)


def test_chance_is_the_mean_over_all_shuffles() -> None:
    rng = np.random.default_rng(1)
    x, y = rng.normal(size=(5, 1, 4)), rng.normal(size=(5, 1, 3))
    shuffled = [alignments(x, y[list(order)]) for order in itertools.permutations(range(5))]
    biased, unbiased, chance = alignments(x, y)
    assert chance[0, 0] == pytest.approx(np.mean([one[0][0, 0] for one in shuffled]))
    assert np.mean([one[1][0, 0] for one in shuffled]) == pytest.approx(0, abs=1e-12)
    assert abs(biased[0, 0] - chance[0, 0]) > 0.01  # the control: this order alone is another number
    assert abs(unbiased[0, 0]) > 0.01


def test_few_inputs_inflate_the_biased_estimate_alone() -> None:
    rng = np.random.default_rng(2)
    x, y = rng.normal(size=(30, 300)), rng.normal(size=(30, 300))
    assert iw.linear_cka(x, y) == pytest.approx(1 / (1 + 30 / 300), abs=0.02)  # of independent Gaussians
    assert abs(iw.linear_cka(x, y, debiased=True)) < 0.1
    wide, other = rng.normal(size=(5000, 5)), rng.normal(size=(5000, 5))
    assert iw.linear_cka(wide, other) < 0.01


@pytest.mark.parametrize("debiased", [False, True])
def test_rbf_against_a_loop(debiased: bool, two: tuple[Array, Array]) -> None:
    def kernel(x: Array) -> Array:
        distances = np.array([[((a - b) ** 2).sum() for b in x] for a in x])
        return np.asarray(np.exp(-distances / (2 * 0.7**2 * np.median(distances))))

    # a kernel matrix is the Gram matrix of its own square root
    roots = []
    for one in two:
        values, vectors = np.linalg.eigh(kernel(one))
        roots.append(vectors * np.sqrt(np.maximum(values, 0)))
    expected = naive(roots[0], roots[1], debiased=debiased)
    assert iw.rbf_cka(*two, threshold=0.7, debiased=debiased) == pytest.approx(expected, rel=1e-8)
    turned = np.linalg.qr(np.random.default_rng(0).normal(size=(7, 7)))[0]
    assert iw.rbf_cka(two[0], 9 * two[1] @ turned, threshold=0.7, debiased=debiased) == pytest.approx(
        expected, rel=1e-8
    )


def test_a_wide_rbf_kernel_is_the_linear_one(two: tuple[Array, Array]) -> None:
    for debiased in (False, True):
        widest = iw.rbf_cka(*two, threshold=1e9, debiased=debiased)
        assert widest == pytest.approx(iw.linear_cka(*two, debiased=debiased), rel=1e-6)
    assert iw.rbf_cka(*two, threshold=1e3) == pytest.approx(iw.linear_cka(*two), rel=1e-4)
    assert abs(iw.rbf_cka(*two, threshold=0.2) - iw.linear_cka(*two)) > 0.05


def test_minibatches() -> None:
    rng = np.random.default_rng(4)
    x = rng.normal(size=(600, 6))
    y = x + rng.normal(size=(600, 6))
    whole = iw.linear_cka(x, y, debiased=True)
    assert iw.minibatch_cka(x, y, batch_size=600) == pytest.approx(whole, rel=1e-12)
    assert iw.minibatch_cka(x, y, batch_size=50) == pytest.approx(whole, abs=0.03)
    assert iw.minibatch_cka(x, y, batch_size=50) == iw.minibatch_cka(x, y, batch_size=50)
    assert iw.minibatch_cka(x, y, batch_size=50, seed=1) != iw.minibatch_cka(x, y, batch_size=50)


def test_minibatches_by_hand() -> None:
    """Each batch is centred by itself and not scaled; the last one, of 3 inputs, is left out."""
    rng = np.random.default_rng(6)
    x = rng.normal(size=(43, 3)) * np.repeat([1.0, 10.0], [20, 23])[:, None]
    y = x @ rng.normal(size=(3, 4)) + 5
    first, second = x @ x.T, y @ y.T
    order, sums = np.random.default_rng(0).permutation(43), np.zeros(3)
    for start in (0, 20):
        rows = np.ix_(order[start : start + 20], order[start : start + 20])
        k, m = first[rows], second[rows]
        sums += [song(k, m), song(k, k), song(m, m)]
    assert iw.minibatch_cka(x, y, batch_size=20) == pytest.approx(sums[0] / np.sqrt(sums[1] * sums[2]), rel=1e-9)


def song(k: Array, m: Array) -> float:
    """The unbiased HSIC of two kernel matrices (Song et al. 2007)."""
    n = len(k)
    k, m = k - np.diag(np.diag(k)), m - np.diag(np.diag(m))
    return float((k * m).sum() + k.sum() * m.sum() / ((n - 1) * (n - 2)) - 2 * (k @ m).sum() / (n - 2))


def test_what_does_not_vary_has_no_similarity() -> None:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(10, 4))
    same = np.tile(rng.normal(size=4), (10, 1)) * 1000
    rounded = same * (1 + 1e-15 * rng.normal(size=(10, 4)))
    for constant in (same, rounded):
        assert np.isnan(iw.linear_cka(x, constant))
        assert np.isnan(iw.linear_cka(x, constant, debiased=True))
        assert np.isnan(iw.rbf_cka(x, constant, threshold=0.5))
    assert layers_that_vary(np.stack([x, same], axis=1)).tolist() == [True, False]
    assert np.isfinite(iw.linear_cka(x, same + 1e-6 * x))  # small, but no rounding


@pytest.mark.parametrize(
    ("x", "y", "says"),
    [
        (np.ones((5, 2)), np.ones((6, 2)), "x and y must be of the same inputs, got 5 rows and 6"),
        (np.ones((3, 2)), np.ones((3, 2)), "x must have at least 4 rows"),
        (np.ones(5), np.ones((5, 2)), r"x must have one row per input, \(n, d\), got shape \(5,\)"),
        (np.full((5, 2), np.inf), np.ones((5, 2)), "x at row 0, column 0 is not finite"),
    ],
)
def test_refusals(x: Any, y: Any, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        iw.linear_cka(x, y)
    with pytest.raises(ValueError, match=says):
        iw.rbf_cka(x, y, threshold=0.5)


def test_more_refusals(two: tuple[Array, Array]) -> None:
    with pytest.raises(ValueError, match="threshold must be above 0"):
        iw.rbf_cka(*two, threshold=0.0)
    with pytest.raises(ValueError, match="batch_size must be 4 or more"):
        iw.minibatch_cka(*two, batch_size=3)
    repeated = np.repeat([[0.0, 1.0], [1.0, 0.0]], [8, 1], axis=0)
    with pytest.raises(ValueError, match="leave repeated inputs out"):
        iw.rbf_cka(repeated, repeated, threshold=0.5)


# ---- layers of models


@pytest.mark.seconds
@pytest.mark.parametrize("family", ["gpt2", "llama"])
def test_layer_similarity_is_cka_of_the_last_states(family: str) -> None:
    a, b = tiny_model(family, "auto", seed=0), tiny_model(family, "auto", seed=1)
    found = iw.layer_similarity(a, b, [*TEXTS, TEXTS[0]])
    states = [iw.last_states(model, TEXTS, range(model.n_layers + 1)).astype(np.float64) for model in (a, b)]
    assert (found.texts, found.debiased) == (len(TEXTS), True)
    for i, j in itertools.product(range(a.n_layers + 1), range(b.n_layers + 1)):
        pair = states[0][:, i], states[1][:, j]
        np.testing.assert_allclose(found.biased[i, j], iw.linear_cka(*pair), atol=1e-5)
        np.testing.assert_allclose(found.cka[i, j], iw.linear_cka(*pair, debiased=True), atol=1e-5)
    assert "fewer than 10 ×" in found.warning
    plain = iw.layer_similarity(a, b, TEXTS, debiased=False)
    assert plain.cka is plain.biased
    assert "does not have this bias" in plain.warning


@pytest.mark.seconds
def test_a_model_with_itself_and_one_of_another_width() -> None:
    pair = demo_pair()
    own = iw.layer_similarity(pair.base, pair.base, TEXTS, layers=[2, -1])
    assert own.layers_a.tolist() == own.layers_b.tolist() == [2, 6]
    np.testing.assert_allclose(np.diag(own.cka), 1, rtol=1e-4)
    np.testing.assert_allclose(own.cka, own.cka.T, rtol=1e-4)
    other = tiny_model("gpt2", "auto", seed=0)
    across = iw.layer_similarity(pair.base, other, TEXTS)
    assert across.cka.shape == (7, other.n_layers + 1)
    assert across.widths == (192, other.d_model)


def test_texts_that_end_alike_have_no_first_layer() -> None:
    base = demo_pair().base
    tasks = iw.demo_task_texts(12, names=["plural"])
    found = iw.layer_similarity(base, base, tasks[0].texts)
    assert np.isnan(found.cka[0]).all()
    assert np.isnan(found.cka[:, 0]).all()
    assert np.isfinite(found.cka[1:, 1:]).all()


def test_enough_texts_are_not_warned_of() -> None:
    found = iw.layer_similarity(demo_pair().base, demo_pair().base, TEXTS, layers=[3])
    assert replace(found, texts=2000, debiased=False).warning == ""


def test_cancel_and_progress() -> None:
    base = demo_pair().base
    seen: list[tuple[int, int]] = []
    iw.layer_similarity(base, demo_pair().tuned, TEXTS, progress=lambda *at: seen.append(at))
    assert seen[-1] == (2 * len(TEXTS), 2 * len(TEXTS))

    def stop() -> None:
        raise KeyboardInterrupt

    for call in (
        lambda: iw.layer_similarity(base, base, TEXTS, check=stop),
        lambda: iw.mossa(base, {"a": base}, [iw.TaskTexts("a", TEXTS)], check=stop),
        lambda: iw.layer_projections(base, [iw.TaskTexts("a", TEXTS)], check=stop),
    ):
        with pytest.raises(KeyboardInterrupt):
            call()


# ---- MOSSA


TASKS = [
    iw.TaskTexts("cities", TEXTS, cluster="facts"),
    iw.TaskTexts("animals", [f"The {word} ran away" for word in ("cat", "dog", "cow", "fox", "hen")], cluster="facts"),
    iw.TaskTexts("numbers", [f"{n} and {n + 1} make" for n in range(6)], unseen=True),
]


def test_mossa_is_cka_with_the_control_of_each_task() -> None:
    experimental, other = tiny_model("llama", "auto", seed=0), tiny_model("llama", "auto", seed=1)
    controls = {"cities": other, "animals": experimental, "numbers": other}
    found = iw.mossa(experimental, controls, TASKS)
    for row, task in enumerate(TASKS):
        states = [
            iw.last_states(model, task.texts, found.layers.tolist()) for model in (experimental, controls[task.name])
        ]
        for column in range(len(found.layers)):
            pair = states[0][:, column], states[1][:, column]
            np.testing.assert_allclose(found.biased[row, column], iw.linear_cka(*pair), atol=1e-5)
            np.testing.assert_allclose(found.cka[row, column], iw.linear_cka(*pair, debiased=True), atol=1e-5)
    np.testing.assert_allclose(found.cka[1], 1, atol=1e-4)
    assert found.layers.tolist() == list(range(1, experimental.n_layers + 1))
    assert found.unseen.tolist() == [False, False, True]
    assert found.of_cluster("facts").tolist() == [True, True, False]
    assert found.texts.tolist() == [8, 5, 6]
    frame = found.to_frame()
    assert len(frame) == 3 * experimental.n_layers
    assert frame[frame.task == "animals"].cka.tolist() == found.cka[1].tolist()
    assert "5 texts are fewer" in found.warning


@pytest.mark.seconds
def test_controls_by_name_are_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    pair = demo_pair()
    found = iw.mossa(pair.base, {"cities": "demo-tuned"}, TASKS[:1])
    np.testing.assert_allclose(found.cka, iw.mossa(pair.base, {"cities": pair.tuned}, TASKS[:1]).cka, atol=1e-4)
    assert found.provenance["controls"] == "cities: demo-tuned"


@pytest.mark.parametrize(
    ("controls", "tasks", "says"),
    [
        ({}, TASKS, "there is none for 'cities'"),
        ({"cities": "demo-base"}, [TASKS[0], TASKS[0]], "each of another name, got cities, cities"),
        ({"a": "demo-base"}, [iw.TaskTexts("a", ["one", "two", "two", "three"])], "at least 4 different ones, got 3"),
    ],
)
def test_mossa_refuses(controls: Any, tasks: Any, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        iw.mossa(demo_pair().base, controls, tasks)


def test_controls_of_another_depth() -> None:
    with pytest.raises(ValueError, match="give control models of the same depth"):
        iw.mossa(demo_pair().base, {"cities": tiny_model("llama", "auto", seed=0)}, TASKS[:1])


@pytest.mark.parametrize("share", [0.5, 0.9, 0.99])
def test_dimensions_are_those_of_the_covariance(share: float) -> None:
    rng = np.random.default_rng(0)
    states = rng.normal(size=(60, 2, 8)) * np.geomspace(1, 0.01, 8)
    for layer, count in enumerate(dimensions_explaining(states, share)):
        values = np.sort(np.linalg.eigvalsh(np.cov(states[:, layer].T)))[::-1]
        assert count == next(k for k in range(1, 9) if values[:k].sum() >= share * values.sum())
    few = rng.normal(size=(5, 1, 50))
    assert dimensions_explaining(few)[0] == 4


@pytest.mark.seconds
def test_correlations_over_tasks() -> None:
    base = demo_pair().base
    found = iw.mossa(base, {task.name: base for task in iw.demo_task_texts(6)}, iw.demo_task_texts(6))
    rng = np.random.default_rng(0)
    cka = rng.normal(size=found.cka.shape)
    cka[:, 2] = found.flesch_kincaid * 0.01 + 1e-4 * rng.normal(size=len(cka))
    found = replace(found, unbiased=cka)
    result = iw.task_correlations(found)
    for row, name in enumerate(result.quantities[:3]):
        np.testing.assert_allclose(result.r[row], [np.corrcoef(getattr(found, name), own)[0, 1] for own in cka.T])
    assert result.r[0, 2] > 0.99 > result.high[0, 1]
    assert (result.low[:3] < result.r[:3]).all()
    assert (result.r[:3] < result.high[:3]).all()
    assert np.isnan(result.r[3]).all()  # every task has 6 texts
    assert len(result.to_frame()) == 4 * 6


# ---- sections


def planted(levels: Any, lengths: Any, *, noise: float, tasks: int = 20, seed: int = 0) -> Array:
    rng = np.random.default_rng(seed)
    return np.repeat(levels, lengths) + noise * rng.normal(size=(tasks, sum(lengths)))


@pytest.mark.parametrize("lengths", [(9, 6, 17), (4, 3, 5), (2, 2, 2)])
def test_planted_sections_are_found(lengths: Any) -> None:
    difference = planted([-0.05, 0.4, 0.2], lengths, noise=0.05)
    found = iw.layer_sections(difference, layers=range(1, sum(lengths) + 1))
    assert found.clear
    assert tuple(found.change_points) == (lengths[0] + 1, lengths[0] + lengths[1] + 1)
    for (low, high), point in zip(found.change_intervals, found.change_points, strict=True):
        assert low <= point <= high <= low + 1
    np.testing.assert_allclose(found.means, [-0.05, 0.4, 0.2], atol=0.02)
    assert "transition layers" in found.summary()
    frame = found.to_frame()
    assert frame.section.tolist() == np.repeat(["shared", "transition", "refinement"], lengths).tolist()


@pytest.mark.seconds
def test_flat_noise_has_no_clear_sections() -> None:
    for layers in (6, 12, 32):
        gains = [iw.layer_sections(planted([0.1], [layers], noise=0.1, seed=seed), resamples=1) for seed in range(60)]
        assert np.mean([found.clear for found in gains]) <= 0.1
    found = gains[0]
    assert found.summary().startswith("No clear sections")
    assert f"(gain −{-found.bic_gain:.1f}, " in found.summary()
    assert "section" not in found.to_frame()


def test_one_parameter_a_change_point_would_find_them_in_noise(monkeypatch: pytest.MonkeyPatch) -> None:
    """The control of the test before: the penalty is what keeps noise out."""
    from interp_widgets.analysis.layer_similarity import sections

    monkeypatch.setattr(sections, "PARAMETERS_OF_SECTIONS", 3)
    gains = [iw.layer_sections(planted([0.1], [12], noise=0.1, seed=seed), resamples=1) for seed in range(60)]
    assert np.mean([found.clear for found in gains]) > 0.3


def test_the_fit_is_the_best_of_all() -> None:
    values = planted([0.0, 0.3, 0.1], (3, 3, 4), noise=0.2, tasks=3)
    found = iw.layer_sections(values, resamples=1)
    mean = values.mean(axis=0)

    def left(first: int, second: int) -> float:
        return sum(float(((part - part.mean()) ** 2).sum()) for part in np.split(mean, [first, second]))

    every = {(i, j): left(i, j) for i in range(2, 9) for j in range(i + 2, 9)}
    assert tuple(found.change_points) == min(every, key=every.get)  # type: ignore[arg-type]
    whole = float(((mean - mean.mean()) ** 2).sum())
    gain = 10 * np.log(whole / min(every.values())) - 8 * np.log(10)
    assert found.bic_gain == pytest.approx(gain)


def test_too_few_layers() -> None:
    found = iw.layer_sections(np.random.default_rng(0).normal(size=(4, 5)))
    assert not found.clear
    assert found.summary() == "No sections: three sections need 6 layers or more, there are 5."


def test_sections_of_two_results() -> None:
    base = demo_pair().base
    one = iw.mossa(base, {task.name: base for task in TASKS}, TASKS)
    raised = np.where(np.arange(6) < 2, 0.0, np.where(np.arange(6) < 4, 0.5, 0.2)) + one.unbiased
    found = iw.mossa_sections(one, replace(one, unbiased=raised), resamples=20)
    assert (found.clear, tuple(found.change_points), found.tasks) == (True, (3, 5), 2)
    with pytest.raises(ValueError, match="give at least 2 unseen ones, got 1"):
        iw.mossa_sections(one, one, unseen=True)
    with pytest.raises(ValueError, match="must have the same estimator"):
        iw.mossa_sections(one, replace(one, debiased=False))
    with pytest.raises(ValueError, match="difference must be"):
        iw.layer_sections(np.zeros((1, 8)))


# ---- projections and readability


@pytest.mark.parametrize("method", ["pca", "tsne"])
def test_projections(method: Any) -> None:
    tasks = iw.demo_task_texts(8, names=["plural", "sum", "story"])
    found = iw.layer_projections(demo_pair().base, tasks, method=method, layers=[0, 3])
    assert found.xy.shape == (2, 24, 2)
    assert np.isnan(found.xy[0]).all()  # the last token of every prompt is the same
    assert np.isfinite(found.xy[1]).all()
    assert found.task == tuple(name for name in ("plural", "sum", "story") for _ in range(8))
    if method == "pca":
        states = iw.last_states(demo_pair().base, found.texts, [3])[:, 0].astype(np.float64)
        centred = states - states.mean(axis=0)
        expected = np.linalg.svd(centred, full_matrices=False)
        np.testing.assert_allclose(np.abs(found.xy[1]), np.abs(expected[0] * expected[1])[:, :2], rtol=1e-3, atol=1e-4)
    again = iw.layer_projections(demo_pair().base, tasks, method=method, layers=[0, 3])
    np.testing.assert_array_equal(found.xy, again.xy)


def test_umap_lays_out_the_components_of_each_layer(monkeypatch: pytest.MonkeyPatch) -> None:
    """UMAP itself, which compiles for many seconds, is that of concept maps: `tests/analysis/test_concepts.py`."""
    seen: list[tuple[Any, int, int]] = []

    def lay_out(parts: Any, near: int, seed: int) -> Any:
        seen.append((parts, near, seed))
        return parts[:, :2]

    monkeypatch.setattr(projections, "umap_places", lay_out)
    tasks = iw.demo_task_texts(8, names=["plural", "sum", "story"])
    found = iw.layer_projections(demo_pair().base, tasks, method="umap", layers=[0, 3, 4], n_neighbors=5, seed=2)
    assert [(near, seed) for _, near, seed in seen] == [(5, 2)] * 2
    states = iw.last_states(demo_pair().base, found.texts, [3, 4])
    for place, (parts, _, _) in enumerate(seen):
        centred = states[:, place] - states[:, place].mean(axis=0)
        np.testing.assert_allclose(parts @ parts.T, centred @ centred.T, rtol=1e-2, atol=1e-2)
        np.testing.assert_allclose(found.xy[place + 1], align_to_main_axis(parts[:, :2]), rtol=1e-4, atol=1e-5)
    assert np.isnan(found.xy[0]).all()


def test_readability_by_hand() -> None:
    """One sentence of 6 words, 7 syllables, 24 letters; counted by hand."""
    found = iw.readability(["The little dog ran home today."])
    assert (found.words, found.sentences, found.syllables, found.letters) == (6, 1, 8, 24)
    assert found.flesch_kincaid == pytest.approx(0.39 * 6 + 11.8 * 8 / 6 - 15.59)
    assert found.coleman_liau == pytest.approx(0.0588 * 400 - 0.296 * 100 / 6 - 15.8)
    more = iw.readability(["The little dog ran home today. It slept!\nThen", "it ate."])
    assert more.sentences == 4
    with pytest.raises(ValueError, match="needs at least one word"):
        iw.readability(["...", "!"])


@pytest.mark.parametrize(
    ("word", "count"),
    [("I", 1), ("the", 1), ("little", 2), ("asked", 1), ("wanted", 2), ("needed", 2), ("makes", 1), ("boxes", 2),
     ("churches", 2), ("people", 2), ("beautiful", 3), ("understanding", 4), ("family", 3), ("university", 5),
     ("école", 2)],
)  # fmt: skip
def test_syllables(word: str, count: int) -> None:
    assert syllable_count(word) == count
