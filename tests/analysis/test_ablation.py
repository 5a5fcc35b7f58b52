"""Ablation maps: every cell is a whole pass with that edit; faults end in a clear sentence."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from interp_widgets.analysis.ablation import maps
from interp_widgets.analysis.ablation.cells import strongest_first
from interp_widgets.analysis.ablation.contexts import Ablation, Part, ablation
from interp_widgets.analysis.ablation.estimates import Estimate, estimate
from interp_widgets.analysis.ablation.map_results import AblationResult, HeadAblationResult, NeuronAblationResult
from interp_widgets.analysis.ablation.maps import ablate_heads, ablate_modules, ablate_neurons, ablation_cost
from interp_widgets.arguments import checked
from interp_widgets.models import Model, load_model
from tests.models.tiny import HALF_SEED, tiny_folder, tiny_hf, tiny_model
from tests.shipped import demo_pair
from tests.tolerances import limit

IDS = [17, 300, 44, 8, 261, 99]
OTHER = [18, 301, 45, 8, 120, 99]
TEXTS = [[5, 17, 77, 9], [30, 31, 7, 120, 77], [44, 8, 12]]
TARGET, FOIL = 60, 77
KINDS = ("attn", "mlp", "both", "attn_to_mlp")
METRICS = ("logit", "probability", "log_prob", "logit_difference", "kl")
HOOKED = pytest.mark.hooked
MODELS = [
    *(pytest.param((name, "hooked"), marks=HOOKED) for name in ("gpt2", "llama", "gpt_neox", "qwen3")),
    *((name, "bridge") for name in ("gpt2", "llama", "gpt_neox", "gemma2")),
]


@pytest.fixture(autouse=True, scope="module")
def one_thread() -> Any:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def with_bos(model: Model, ids: list[int]) -> list[int]:
    return [int(model.bos_token_id or 0), *ids]


def distance(found: NDArray[Any], wanted: NDArray[Any], size: float) -> float:
    """Largest difference against the size of the numbers that were subtracted."""
    return float(np.abs(found - wanted).max() / max(size, 1.0))


def replacing(model: Model, replacement: str) -> dict[str, Any]:
    """Options of a replacement; every sequence begins with a BOS, so that axes and sequences differ by one."""
    if replacement == "mean":
        return {"replacement": "mean", "reference": [with_bos(model, ids) for ids in TEXTS]}
    if replacement == "resample":
        return {"replacement": "resample", "corrupted": with_bos(model, OTHER)}
    return {"replacement": "zero"}


# ---- the straightforward way: one whole pass per cell


def measure(logits: Tensor, before: Tensor, metric: str) -> float:
    """The metric of logits (d_vocab,), or their divergence from those before."""
    logs, old = logits.double().log_softmax(-1), before.double().log_softmax(-1)
    match metric:
        case "logit":
            return float(logits[TARGET])
        case "logit_difference":
            return float(logits[TARGET] - logits[FOIL])
        case "log_prob":
            return float(logs[TARGET])
        case "probability":
            return float(logs[TARGET].exp())
        case _:
            return float((old.exp() * (old - logs)).sum())


class Loop:
    """Effects by whole passes with edits; replacements are read off captured values."""

    def __init__(self, model: Model, replacement: str, metric: str, ids: list[int] = IDS) -> None:
        self.model, self.kind, self.metric = model, replacement, metric
        self.ids = with_bos(model, ids)
        self.before = model.run(self.ids).logits[0, -1]
        self.size = float(self.before.abs().max())
        self.known: dict[tuple[int, ...], Any] = {}

    def values(self, ids: list[int], name: str) -> Tensor:
        """(tokens, ...) what a hook sees in one whole pass, every hook that is needed read at once."""
        if tuple(ids) not in self.known:
            ends = ("hook_resid_pre", "hook_attn_out", "hook_mlp_out", "attn.hook_z", "mlp.hook_post")
            names = [f"blocks.{layer}.{end}" for layer in range(self.model.n_layers) for end in ends]
            self.known[tuple(ids)] = self.model.run(ids, capture=names).activations
        found: Tensor = self.known[tuple(ids)][name][0]
        return found

    def rows(self, name: str) -> Tensor | None:
        """(tokens, ...) what replaces the value of a hook; None for zero."""
        if self.kind == "zero":
            return None
        if self.kind == "resample":
            return self.values(with_bos(self.model, OTHER), name)
        own = self.values(self.ids, name)
        mean = torch.cat([self.values(with_bos(self.model, ids), name)[1:] for ids in TEXTS]).mean(0, keepdim=True)
        return torch.cat([own[:1], mean.expand(len(own) - 1, *mean.shape[1:])])

    def put(self, name: str, places: list[int], index: int | None = None) -> dict[str, Callable[[Tensor], Tensor]]:
        rows = self.rows(name)

        def edit(value: Tensor) -> Tensor:
            value = value.clone()
            for p in places:
                new = torch.zeros_like(value[0, p]) if rows is None else rows[p]
                if index is None:
                    value[0, p] = new
                else:
                    value[0, p, index] = new[index]
            return value

        return {name: edit}

    def effect(self, edits: dict[str, Callable[[Tensor], Tensor]]) -> float:
        after = measure(self.model.run(self.ids, edit=edits).logits[0, -1], self.before, self.metric)
        return after if self.metric == "kl" else measure(self.before, self.before, self.metric) - after

    def module(self, kind: str, layer: int, position: int) -> float:
        block, place = f"blocks.{layer}.", position + 1
        match kind:
            case "attn":
                return self.effect(self.put(block + "hook_attn_out", [place]))
            case "mlp":
                return self.effect(self.put(block + "hook_mlp_out", [place]))
            case "both":
                both = self.put(block + "hook_attn_out", [place]) | self.put(block + "hook_mlp_out", [place])
                return self.effect(both)
        if getattr(self.model.tl_model.cfg, "parallel_attn_mlp", False):
            return 0.0
        stream = self.values(self.ids, block + "hook_resid_pre")
        rows = self.rows(block + "hook_attn_out")

        def edit(value: Tensor) -> Tensor:
            value = value.clone()
            value[0, place] = stream[place] + (0 if rows is None else rows[place])
            return value

        return self.effect({block + "hook_mlp_in": edit})


@pytest.mark.seconds
@pytest.mark.parametrize("replacement", ["zero", "mean", "resample"])
@pytest.mark.parametrize("place", MODELS, ids="-".join)
def test_every_cell_equals_a_whole_pass(place: tuple[str, str], replacement: str) -> None:
    model = tiny_model(*place, dtype=torch.float64)
    metric = "logit" if replacement == "zero" else METRICS[len("".join(place) + replacement) % 5]
    check_modules(model, replacement, metric, None if replacement == "zero" else SOME)


@pytest.mark.parametrize("metric", METRICS)
@pytest.mark.parametrize("place", [MODELS[1], ("gpt2", "bridge")], ids=str)
def test_every_metric(place: tuple[str, str], metric: str) -> None:
    check_modules(tiny_model(*place, dtype=torch.float64), "resample", metric, SOME)


@pytest.mark.parametrize("place", MODELS, ids="-".join)
def test_what_all_logits_share_stands_beside_the_logit(place: tuple[str, str]) -> None:
    """Effect on the logit = effect on the log-probability + what all logits share, in every map and every cell."""
    model = tiny_model(*place, dtype=torch.float64)
    near: dict[str, Any] = {"atol": limit(model, single=1e-5)}
    for run, options in ((ablate_modules, {}), (ablate_heads, {}), (ablate_neurons, {"layer": 1, "neurons": [7, 50]})):
        logit, log_prob = (run(model, IDS, TARGET, metric=kind, **options) for kind in ("logit", "log_prob"))
        np.testing.assert_allclose(logit.effect - logit.common, log_prob.effect, **near)
        assert log_prob.common is None
        assert logit.clean != log_prob.clean < 0
        assert "common" in logit.to_frame().columns
        assert "common" not in log_prob.to_frame().columns
    loop = Loop(model, "zero", "logit")
    after = model.run(loop.ids, edit=loop.put("blocks.1.hook_mlp_out", [3])).logits[0, -1]
    found = ablate_modules(model, with_bos(model, IDS), TARGET, metric="logit", kinds=("mlp",)).common
    assert found is not None
    assert found[0, 1, 2] == pytest.approx(float(loop.before.logsumexp(-1) - after.logsumexp(-1)), abs=near["atol"])


@pytest.mark.parametrize("place", MODELS, ids="-".join)
def test_every_cell_in_single_precision(place: tuple[str, str]) -> None:
    check_modules(tiny_model(*place), "zero", "logit", SOME)


SOME = (0, 3, len(IDS) - 1)
"""Positions whose cells are computed again where all have been in another way: a pass each takes its time."""


def check_modules(model: Model, replacement: str, metric: str, positions: tuple[int, ...] | None) -> None:
    foil = FOIL if metric == "logit_difference" else None
    found = ablate_modules(
        model, with_bos(model, IDS), TARGET, metric=metric, foil=foil, **replacing(model, replacement)
    )
    loop = Loop(model, replacement, metric)
    chosen = range(len(IDS)) if positions is None else positions
    wanted = np.array(
        [[[loop.module(kind, layer, p) for p in chosen] for layer in range(model.n_layers)] for kind in KINDS]
    )
    assert found.effect.shape == (4, model.n_layers, len(IDS))
    assert distance(found.effect[:, :, list(chosen)], wanted, loop.size) < limit(model, single=1e-5)
    assert found.clean == pytest.approx(0 if metric == "kl" else measure(loop.before, loop.before, metric), abs=1e-5)
    assert np.abs(found.effect[:, -1, :-1]).max() == 0  # the last layer is seen by the last position alone
    assert np.abs(found.of("both")[:-1]).min() > 0


@pytest.mark.parametrize("place", MODELS, ids="-".join)
def test_heads_equal_whole_passes(place: tuple[str, str]) -> None:
    replacement = ("zero", "mean", "resample")[len("".join(place)) % 3]
    model = tiny_model(*place, dtype=torch.float64)
    options = {"metric": "probability", **replacing(model, replacement)}
    loop = Loop(model, replacement, "probability")
    everywhere = ablate_heads(model, with_bos(model, IDS), TARGET, **options)
    single = ablate_heads(model, with_bos(model, IDS), TARGET, position=-2, **options)
    assert single.position == len(IDS) - 2
    for found, places in ((everywhere, [*range(len(IDS) + 1)]), (single, [len(IDS) - 1])):
        wanted = np.array(
            [
                [loop.effect(loop.put(f"blocks.{layer}.attn.hook_z", places, h)) for h in range(model.n_heads)]
                for layer in range(model.n_layers)
            ]
        )
        assert distance(found.effect, wanted, 1.0) < limit(model, single=1e-5)
    assert np.abs(everywhere.effect).min() > 0


@pytest.mark.parametrize("place", MODELS, ids="-".join)
def test_neurons_equal_whole_passes(place: tuple[str, str]) -> None:
    replacement = ("zero", "mean", "resample")[len("".join(place)) % 3]
    model, position, chosen = tiny_model(*place, dtype=torch.float64), 3, [0, 7, 50, 95]
    loop = Loop(model, replacement, "logit")
    found = ablate_neurons(
        model,
        with_bos(model, IDS),
        TARGET,
        layer=-2,
        position=position,
        neurons=chosen,
        metric="logit",
        **replacing(model, replacement),
    )
    wanted = [loop.effect(loop.put("blocks.1.mlp.hook_post", [position + 1], i)) for i in chosen]
    assert found.layer == 1
    assert distance(found.effect, np.array(wanted), loop.size) < limit(model, single=1e-5)
    post = model.run(loop.ids, capture="blocks.1.mlp.hook_post").activations["blocks.1.mlp.hook_post"]
    np.testing.assert_allclose(found.activation, post[0, position + 1, chosen], atol=limit(model, single=1e-5))
    everything = ablate_neurons(model, with_bos(model, IDS), TARGET, layer=1)
    assert everything.effect.shape == (model.d_mlp,)


@HOOKED
def test_resampling_is_transformer_lens_activation_patching() -> None:
    from transformer_lens import patching

    model = tiny_model("llama", "hooked", dtype=torch.float64)
    ids, other = torch.tensor([with_bos(model, IDS)]), torch.tensor([with_bos(model, OTHER)])
    _, cache = model.tl_model.run_with_cache(other)
    metric = lambda logits: logits[0, -1, TARGET]
    with torch.no_grad():
        before = metric(model.tl_model(ids))
        theirs = {
            "attn": patching.get_act_patch_attn_out(model.tl_model, ids, cache, metric),
            "mlp": patching.get_act_patch_mlp_out(model.tl_model, ids, cache, metric),
            "head": patching.get_act_patch_attn_head_out_all_pos(model.tl_model, ids, cache, metric),
        }
    options = {"metric": "logit", **replacing(model, "resample")}
    found = ablate_modules(model, ids[0].tolist(), TARGET, kinds=("mlp", "attn"), **options)
    for kind in found.kinds:
        np.testing.assert_allclose(found.of(kind), (before - theirs[kind])[:, 1:], atol=1e-6)  # theirs are float32
    heads = ablate_heads(model, ids[0].tolist(), TARGET, **options)
    np.testing.assert_allclose(heads.effect, before - theirs["head"], atol=1e-6)


@pytest.mark.seconds
@HOOKED
@pytest.mark.parametrize("family", ["gpt2", "llama", "gpt_neox", "qwen3"])
def test_both_backends_mean_the_same(family: str) -> None:
    maps = []
    for backend in ("hooked", "bridge"):
        model = tiny_model(family, backend, dtype=torch.float64)
        options = replacing(model, "resample")
        ids = with_bos(model, IDS)
        found = (ablate_modules, ablate_heads, lambda *a, **k: ablate_neurons(*a, layer=1, **k))
        maps.append([run(model, ids, TARGET, **options).effect for run in found])
    for one, other in zip(*maps, strict=True):
        assert np.abs(one).max() > 0.03
        np.testing.assert_allclose(one, other, atol=1e-4)  # transformers' RMSNorm stays in float32


# ---- what must not change anything


@pytest.mark.parametrize("place", MODELS, ids="-".join)
def test_the_same_prompt_as_replacement_changes_exactly_nothing(place: tuple[str, str]) -> None:
    model = tiny_model(*place)
    same = {"replacement": "resample", "corrupted": IDS}
    for metric in ("logit", "kl"):
        assert np.abs(ablate_modules(model, IDS, TARGET, metric=metric, **same).effect).max() == 0
    assert np.abs(ablate_heads(model, IDS, TARGET, **same).effect).max() == 0
    assert np.abs(ablate_neurons(model, IDS, TARGET, layer=0, **same).effect).max() == 0
    # one word differs: before it nothing changes, from it on everything does
    found = ablate_modules(model, IDS, TARGET, replacement="resample", corrupted=[*IDS[:3], 9, *IDS[4:]]).of("both")
    assert np.abs(found[:, :3]).max() < 1e-5
    assert np.abs(found[:-1, 3:]).min() > 1e-4


@pytest.mark.seconds
@pytest.mark.parametrize("place", MODELS, ids="-".join)
def test_the_size_of_a_chunk_changes_nothing(place: tuple[str, str]) -> None:
    model = tiny_model(*place)
    options: dict[str, Any] = {"kinds": ("both", "attn_to_mlp"), "layers": [0, 1]}
    every = [ablate_modules(model, IDS, TARGET, batch_size=size, **options).effect for size in (1, 5, None)]
    for one in every[1:]:
        np.testing.assert_allclose(one, every[0], atol=1e-5, rtol=1e-5)
    heads = [ablate_heads(model, IDS, TARGET, batch_size=size).effect for size in (1, 3, None)]
    for one in heads[1:]:
        np.testing.assert_allclose(one, heads[0], atol=1e-5, rtol=1e-5)


def test_a_part_of_the_map_is_that_part_of_the_whole() -> None:
    model = tiny_model("llama", dtype=torch.float64)
    whole = ablate_modules(model, IDS, TARGET)
    part = ablate_modules(model, IDS, TARGET, kinds=("mlp", "attn"), layers=[-1, 0], positions=[5, 1, -3])
    assert (part.kinds, part.layers, part.positions) == (("mlp", "attn"), (2, 0), (5, 1, 3))
    assert part.tokens == tuple(part.prompt_tokens[p] for p in (5, 1, 3))
    wanted = whole.effect[[1, 0]][:, [2, 0]][:, :, [5, 1, 3]]
    np.testing.assert_allclose(part.effect, wanted, atol=limit(model, single=1e-5))


def test_an_mlp_beside_the_attention_never_reads_it() -> None:
    for backend in ("auto", "bridge"):
        found = ablate_modules(tiny_model("gpt_neox", backend), IDS, TARGET, metric="kl")
        assert np.abs(found.of("attn_to_mlp")).max() == 0
        assert np.abs(found.of("mlp")[:-1]).min() > 0


@HOOKED
def test_a_model_without_mlps() -> None:
    from tests.models.test_engine import from_config

    model = from_config(attn_only=True)
    found = ablate_modules(model, IDS, TARGET)
    assert np.abs(found.of("mlp")).max() == np.abs(found.of("attn_to_mlp")).max() == 0
    np.testing.assert_allclose(found.of("both"), found.of("attn"), atol=1e-12)
    assert np.abs(found.of("attn")[0]).min() > 0
    with pytest.raises(ValueError, match="no MLP"):
        ablate_neurons(model, IDS, TARGET, layer=0)
    without: tuple[Part, ...] = ("mlp", "both", "attn_to_mlp")
    for kind in without:
        with pytest.raises(ValueError, match=f"has no MLPs, so that it has no '{kind}': ablate 'attn' or a head"):
            ablation(model, Ablation(kind, 0))
    heads = ablate_heads(model, IDS, TARGET).effect
    with model.tl_model.hooks(fwd_hooks=[("blocks.0.hook_attn_out", lambda value, hook: value)]):
        again = ablate_modules(model, IDS, TARGET)
        np.testing.assert_allclose(ablate_heads(model, IDS, TARGET).effect, heads, atol=1e-12)
    np.testing.assert_allclose(again.effect, found.effect, atol=1e-12)


def test_the_mean_per_position() -> None:
    model = tiny_model("llama", dtype=torch.float64)
    texts = [OTHER, [9, 8, 7, 30, 31, 12]]
    found = ablate_modules(
        model, IDS, TARGET, kinds=("mlp",), metric="logit", replacement="mean", reference=texts, pooled=False
    )  # fmt: skip
    name = "blocks.1.hook_mlp_out"
    mean = torch.stack([model.run(ids, capture=name).activations[name][0] for ids in texts]).mean(0)

    def edit(value: Tensor) -> Tensor:
        value = value.clone()
        value[0, 2] = mean[2]
        return value

    wanted = model.run(IDS).logits[0, -1, TARGET] - model.run(IDS, edit={name: edit}).logits[0, -1, TARGET]
    assert found.of("mlp")[1, 2] == pytest.approx(float(wanted), abs=limit(model, single=1e-5))
    same = ablate_modules(model, IDS, TARGET, replacement="mean", reference=[IDS], pooled=False)
    assert np.abs(same.effect).max() == 0  # the mean of the prompt alone is the prompt


def test_a_text_and_its_bos() -> None:
    """A BOS is fed and on no axis; the default target is the model's own next token."""
    model = tiny_model("llama", dtype=torch.float64)
    text = "The Eiffel Tower is in"
    ids = model.tokens(text)
    assert ids[0] == model.bos_token_id
    found, given = ablate_modules(model, text), ablate_modules(model, ids)
    np.testing.assert_array_equal(found.effect, given.effect)
    assert found.bos_id == model.bos_token_id
    assert len(found.prompt_tokens) == len(ids) - 1 == found.effect.shape[2]
    assert found.target == int(model.run(ids).logits[0, -1].argmax())
    assert found.target_token == model.token_strings([found.target])[0]
    assert ablate_modules(model, text, prepend_bos=False).bos_id is None


# ---- the user's hooks, half precision


@pytest.mark.seconds
@pytest.mark.parametrize("backend", [pytest.param("hooked", marks=HOOKED), "bridge"])
def test_hooks_of_the_user_stay_in_force(backend: str) -> None:
    model = load_model(tiny_folder("gpt2"), backend=backend, dtype=torch.float64)
    plain = ablate_modules(model, with_bos(model, IDS), TARGET, metric="logit")

    def mixing(value: Tensor, hook: Any) -> Tensor:
        return value + value.mean(1, keepdim=True)  # every position sees all others

    model.tl_model.hook_dict["blocks.2.hook_resid_post"].add_hook(mixing, is_permanent=True)
    check = ablate_modules(model, with_bos(model, IDS), TARGET, metric="logit")
    loop = Loop(model, "zero", "logit")
    wanted = np.array([[[loop.module(kind, i, p) for p in range(len(IDS))] for i in range(3)] for kind in KINDS])
    assert distance(check.effect, wanted, loop.size) < 1e-10
    assert distance(check.effect, plain.effect, loop.size) > 1e-3
    assert np.abs(check.of("mlp")[-1, 0]) > 1e-3  # through the hook the first position of the last layer matters


def test_half_precision_agrees_roughly() -> None:
    half, single = (
        ablate_modules(tiny_model("llama", dtype=kind, seed=HALF_SEED), IDS, TARGET)
        for kind in (torch.bfloat16, torch.float32)
    )
    assert half.effect.dtype == np.float32
    assert np.abs(half.effect - single.effect).max() < 0.1 * np.abs(single.effect).max()
    assert half.provenance["dtype"] == "bfloat16"


# ---- running


def test_progress_partial_results_and_cancel() -> None:
    model, seen, parts = tiny_model("llama"), [], []

    def progress(done: int, total: int) -> None:
        seen.append((done, total))

    whole = ablate_modules(model, IDS, TARGET, batch_size=4, progress=progress, on_partial=parts.append)
    assert seen[-1] == (72, 72)
    assert [done for done, _ in seen] == sorted(done for done, _ in seen)
    assert 1 <= len(parts) <= 9, "one without numbers, one per group of the strongest, and four"
    counts = [int(np.isfinite(part.effect).sum()) for part in parts]
    assert counts == sorted(set(counts))
    assert counts[0] == 0
    assert parts[0].measures()["mlp_token"] == ""
    assert whole.measures()["mlp_token"] != ""
    assert counts[-1] < whole.effect.size
    for part in parts:
        known = np.isfinite(part.effect)
        assert part.partial
        assert part.strongest_first
        np.testing.assert_array_equal(part.effect[known], whole.effect[known])
    assert not whole.partial
    assert not whole.strongest_first
    assert np.isfinite(whole.effect).all()

    class Cancelled(Exception):
        pass

    calls: list[int] = []

    def check() -> None:
        calls.append(1)
        if len(calls) == 12:
            raise Cancelled

    for analysis in (ablate_modules, ablate_heads):
        calls.clear()
        with pytest.raises(Cancelled):
            analysis(model, IDS, TARGET, check=check, batch_size=2)


@pytest.mark.parametrize("analysis", [ablate_modules, ablate_heads])
def test_cells_that_are_estimated_to_tell_most_run_first(analysis: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    source = tiny_hf("llama")
    for part in (source.model.layers[0].self_attn.o_proj, source.model.layers[0].mlp.down_proj):
        part.weight.data.zero_()  # the cells that come first by layer change nothing
    model, scores, changes = load_model(source), list[Tensor](), list[Tensor]()

    def in_small_groups(score: Tensor, cells: int) -> list[Tensor]:
        scores.append(score)
        return strongest_first(score, cells, group=2)

    def kept(*arguments: Any) -> Estimate:
        guess = estimate(*arguments)
        changes.append(guess.change)
        return guess

    monkeypatch.setattr(maps, "strongest_first", in_small_groups)
    monkeypatch.setattr(maps, "estimate", kept)
    parts: list[Any] = []
    plain = analysis(model, IDS, TARGET, batch_size=2)
    whole = analysis(model, IDS, TARGET, batch_size=2, on_partial=parts.append)
    np.testing.assert_allclose(whole.effect, plain.effect, atol=1e-5)
    assert len(scores) == 1, "a run without partial results estimates nothing"
    first, second = parts[:2]
    assert not np.isfinite(first.effect).any()
    known = np.isfinite(second.effect)
    layers, rest = model.n_layers, whole.effect.size // model.n_layers
    score, change = scores[0].reshape(layers, rest), changes[0].reshape(layers, rest)
    if analysis is ablate_modules:  # cells are numbered by layer, position and kind
        score = score.reshape(layers, -1, len(whole.kinds)).permute(2, 0, 1)
        silent = known[:, 0]
    else:
        silent = known[0]
    order = torch.argsort(score.flatten(), descending=True, stable=True)
    assert known.sum() == 2
    assert known.ravel()[order[:2].numpy()].all()
    assert not silent.any()
    assert not change[0].any()
    assert change.any()


def test_an_estimate_is_the_effect_of_a_small_change(monkeypatch: pytest.MonkeyPatch) -> None:
    source = tiny_hf("llama", dtype=torch.float64)
    source.model.layers[-1].mlp.down_proj.weight.data.mul_(1e-4)
    model, guesses = load_model(source, dtype=torch.float64), list[Estimate]()

    def kept(*arguments: Any) -> Estimate:
        guesses.append(estimate(*arguments))
        return guesses[-1]

    monkeypatch.setattr(maps, "estimate", kept)
    whole = ablate_modules(model, IDS, TARGET, kinds=["mlp"], batch_size=1, on_partial=lambda part: None)
    (guess,) = guesses
    assert abs(whole.effect[0, -1, -1]) > 0
    estimated = -guess.change.reshape(whole.effect.shape[1:])
    np.testing.assert_allclose(estimated[-1], whole.effect[0, -1], rtol=1e-2)


@pytest.mark.parametrize(("positions", "columns"), [("last", [-1]), (range(1, 3), [1, 2])])
def test_positions_by_name_or_span(positions: Any, columns: list[int]) -> None:
    model = tiny_model("llama", "bridge")
    whole, part = ablate_modules(model, IDS, TARGET), ablate_modules(model, IDS, TARGET, positions=positions)
    np.testing.assert_allclose(part.effect, whole.effect[:, :, columns], atol=1e-5)
    assert part.tokens == tuple(whole.tokens[at] for at in columns)


def test_words_as_positions_are_found_or_refused() -> None:
    model = tiny_model("llama", "bridge")
    text = "What is the capital of France? The"
    part = ablate_modules(model, text, TARGET, positions=" France")
    assert "".join(part.tokens).strip() == "France"
    with pytest.raises(ValueError, match="positions ' Spain' is not in the prompt"):
        ablate_modules(model, text, TARGET, positions=" Spain")
    with pytest.raises(ValueError, match="positions, given as text, needs the prompt as text"):
        ablate_modules(model, IDS, TARGET, positions=" France")


def test_memory_that_runs_out_halves_the_chunk(monkeypatch: pytest.MonkeyPatch) -> None:
    from interp_widgets.analysis.ablation import cells as loop

    model = tiny_model("llama")
    wanted, right = ablate_modules(model, IDS, TARGET), loop.patched

    def small(model: Any, trace: Any, patches: Any, cells: int, **options: Any) -> Tensor:
        if cells > 3:
            raise RuntimeError("DefaultCPUAllocator: not enough memory")
        return right(model, trace, patches, cells, **options)

    monkeypatch.setattr(loop, "patched", small)
    found = ablate_modules(model, IDS, TARGET)
    np.testing.assert_allclose(found.effect, wanted.effect, atol=1e-5)
    assert found.provenance["chunk_halvings"] > 0
    assert found.provenance["largest_chunk"] <= 3


def test_results_save_load_and_become_tables(tmp_path: Any) -> None:
    model = tiny_model("llama")
    text = "The Eiffel Tower is in"
    modules = ablate_modules(model, text, metric="logit_difference", foil=FOIL)
    heads, neurons = ablate_heads(model, text, position=2), ablate_neurons(model, text, layer=1)
    for kind, one in (
        (AblationResult, modules), (HeadAblationResult, heads), (NeuronAblationResult, neurons)
    ):  # fmt: skip
        assert kind.load(one.save(tmp_path / "result")).equals(one)
        assert len(one.to_frame()) == one.effect.size
        assert one.to_frame()["effect"].tolist() == one.effect.ravel().tolist()
        assert one.provenance["weight_hash"]
    frame = modules.to_frame()
    row = frame[(frame.kind == "mlp") & (frame.layer == 2) & (frame.position == 1)].iloc[0]
    assert (row.effect, row.token) == (modules.of("mlp")[2, 1], modules.tokens[1])
    assert heads.strongest(1)[0] == tuple(int(i) for i in np.unravel_index(heads.effect.argmax(), heads.effect.shape))
    with pytest.raises(ValueError, match="kind must be one of 'attn', 'mlp', 'both', 'attn_to_mlp' in this result"):
        modules.of("head")


def test_the_forecast_grows_with_the_work() -> None:
    model = tiny_model("llama")
    one, two = ablation_cost(model, 20), ablation_cost(model, 40)
    assert 3 < two.flops / one.flops < 6
    assert ablation_cost(model, 20, kinds=("mlp",)).flops < one.flops / 2
    assert ablation_cost(model, 20, layers=[0]).flops > ablation_cost(model, 20, layers=[1]).flops
    assert ablation_cost(tiny_model("gemma2", "bridge"), 20).flops > one.flops
    for what in ("heads", "neurons"):
        assert ablation_cost(model, 20, what=what).flops > 0
        assert ablation_cost(model, 20, what=what).bytes > 0
    with pytest.raises(ValueError, match="what must be one of 'modules', 'heads', 'neurons', got 'layers'"):
        inspect.unwrap(ablation_cost)(model, 20, what="layers")


@pytest.mark.seconds
@pytest.mark.parametrize(("what", "words"), [("modules", 6), ("modules", 60), ("heads", 6), ("heads", 60)])
def test_the_forecast_is_near_the_count(what: Any, words: int) -> None:
    model = demo_pair().base
    prompt = " ".join(("The Eiffel Tower is located in the city of Paris. " * 12).split()[:words])
    run = {"modules": ablate_modules, "heads": ablate_heads}[what]
    run(model, "Paris is")  # the routes are compared
    with FlopCounterMode(display=False) as counter:
        run(model, prompt)
    cost = ablation_cost(model, len(model.tokens(prompt)), what=what)
    assert 0.85 < cost.flops / counter.get_total_flops() < 1.2


# ---- bad input


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"target": "Eiffel Tower"}, r"the target must be one token, 'Eiffel Tower' is \d \('"),
        ({"target": 9999}, r"the target must be in 0\.\.\d+ for this vocabulary, got 9999"),
        ({"replacement": "resample"}, "replacement='resample' needs corrupted=: give a prompt with as many tokens"),
        (
            {"replacement": "resample", "corrupted": "The tower"},
            r"the corrupted prompt must have as many tokens as the prompt, \d+, got \d+: the prompt's are '.*', the",
        ),
        ({"replacement": "mean"}, "replacement='mean' needs reference=: give a list of texts"),
        ({"replacement": "mean", "reference": []}, "reference is empty: give at least one text"),
        (
            {"replacement": "mean", "reference": "one"},
            "reference must be a list of str or .*, got .*: write reference=",
        ),
        (
            {"replacement": "mean", "reference": ["The tower"], "pooled": False},
            r"a reference text \(pooled=False\) must have as many tokens as the prompt",
        ),
        ({"reference": ["a"]}, "reference is only used by replacement='mean', got replacement='zero': leave reference"),
        ({"corrupted": "a"}, "corrupted is only used by replacement='resample', got replacement='zero'"),
        ({"replacement": "noise"}, "replacement must be 'zero', 'mean' or 'resample', got 'noise'"),
        ({"metric": "loss"}, "metric must be 'logit', 'probability', .* got 'loss'"),
        ({"metric": "logit_difference"}, "metric 'logit_difference' needs a foil"),
        ({"foil": " is"}, "a foil is only used by metric='logit_difference', got metric='log_prob': leave foil out"),
        ({"metric": "logit_difference", "foil": "Eiffel Tower"}, "the foil must be one token"),
        (
            {"kinds": ("block",)},
            r"kinds must be some of 'attn', 'mlp', 'both', .*, each once, got \['block'\]",
        ),
        ({"kinds": ()}, "kinds must be some of"),
        ({"layers": []}, r"layers must not be empty: name at least one of 0\.\.2, or None for all"),
        ({"layers": [3]}, r"layer must be in -3\.\.2 for this 3-layer model, got 3"),
        ({"layers": [1, -2]}, "layers must be different, got 1 twice"),
        ({"positions": []}, "positions must not be empty"),
        ({"positions": [99]}, r"position must be in -\d+\.\.\d+ for this prompt of \d+ tokens, got 99"),
        ({"layers": 1}, r"layers must be a list of int or None, got 1: write layers=\[1\]"),
        ({"layers": [0.5]}, r"layers must be a list of int or None, got \[0\.5\]"),
        ({"positions": -1}, r"positions must be a list of int, a str or None, got -1: write positions=\[-1\]"),
        ({"batch_size": 0}, "batch_size must be an int >= 1 or None, got 0"),
        ({"prompt": ""}, "the prompt is empty: write at least one word"),
    ],
)
def test_bad_input_is_told_in_one_sentence(options: dict[str, Any], message: str) -> None:
    with pytest.raises((ValueError, TypeError), match=message) as caught:
        # unwrapped: the type checker of the tests would refuse some of these before the function does
        checked(inspect.unwrap(ablate_modules))(tiny_model("gpt2"), **{"prompt": "The Eiffel Tower is in", **options})
    assert "\n" not in str(caught.value)


def test_bad_heads_and_neurons() -> None:
    model = tiny_model("gpt2")
    with pytest.raises(ValueError, match="position must be in"):
        ablate_heads(model, "The Eiffel Tower", position=99)
    with pytest.raises(ValueError, match="layers must not be empty"):
        ablate_heads(model, "The Eiffel Tower", layers=[])
    with pytest.raises(ValueError, match=r"layer must be in -3\.\.2"):
        ablate_neurons(model, "The Eiffel Tower", layer=3)
    with pytest.raises(
        ValueError, match=r"neuron must be in -128\.\.127 for this model with 128 neurons per layer, got 128"
    ):
        ablate_neurons(model, "The Eiffel Tower", layer=0, neurons=[128])
    with pytest.raises(ValueError, match="neurons must not be empty"):
        ablate_neurons(model, "The Eiffel Tower", layer=0, neurons=[])
    with pytest.raises(TypeError, match=r"neurons must be a list of int or None, got \[1\.5\]"):
        checked(inspect.unwrap(ablate_neurons))(model, "The Eiffel Tower", layer=0, neurons=[1.5])
    with pytest.raises(TypeError, match=r"neurons must be a list of int or None, got 3: write neurons=\[3\]"):
        checked(inspect.unwrap(ablate_neurons))(model, "The Eiffel Tower", layer=0, neurons=3)


def test_broken_weights_are_told() -> None:
    model = load_model(tiny_hf("llama"))
    model.tl_model.blocks[2].mlp.W_out.data[0, 0] = torch.nan
    with pytest.raises(ValueError, match="the model's logit of token 0 for this prompt is not finite"):
        ablate_modules(model, IDS, TARGET)


def test_an_effect_that_overflows_is_told() -> None:
    model = load_model(tiny_hf("llama"))
    seen: list[Tensor] = []

    def overflow(value: Tensor, hook: Any) -> Tensor:
        seen.append(value[:1])
        return torch.where(value == seen[0], value, torch.inf)  # whatever is changed

    model.tl_model.hook_dict["blocks.1.hook_resid_post"].add_hook(overflow, is_permanent=True)
    message = r"the effect of removing 'mlp' at layer 0, position 0 is not finite, as are \d+ of 18 in all"
    with pytest.raises(ValueError, match=message):
        ablate_modules(model, IDS, TARGET, kinds=("mlp",))
