"""A mixture of depths is the weighted sum of its routes' logits: every family, both backends, wherever it runs."""

from __future__ import annotations

import copy
import dataclasses
import itertools
import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from interp_widgets.analysis.ablation import ablate_modules
from interp_widgets.analysis.logit_lens import logit_lens
from interp_widgets.analysis.saliency import prompt_saliency
from interp_widgets.analysis.token_decomposition import decompose_logit, decompose_tokens
from interp_widgets.locks import held_locks
from interp_widgets.models import LoadError, ModModel, engine, load_model, load_pair
from interp_widgets.models.engine import equations, jacobian, read_out, residual_streams
from interp_widgets.models.engine.equations import Equations
from interp_widgets.models.mixture_of_depths.assemble import apply_state, new_mixture, norm_parameters
from interp_widgets.models.mixture_of_depths.checkpoint import MixtureState, base_hash, save_state
from interp_widgets.models.mixture_of_depths.early_exit import EarlyExit
from interp_widgets.models.mixture_of_depths.install import install, installed, late_parts, mixture_of
from interp_widgets.models.mixture_of_depths.mixture import Mixture, gates
from interp_widgets.models.mixture_of_depths.opening import build_mixture, read_base
from interp_widgets.models.read_out import last_route_only, mix
from tests.models.mixtures import naive, random_state, tiny_mixture
from tests.models.tiny import tiny_folder, tiny_hf, tiny_model

IDS = torch.tensor([[5, 17, 300, 44, 8, 261, 99, 30], [7, 3, 120, 9, 201, 33, 64, 2]])
PROMPT = "The Eiffel Tower is located"
FAMILIES = [
    *(pytest.param((name, "hooked"), marks=pytest.mark.hooked) for name in ("gpt2", "llama", "gpt_neox")),
    *((name, "bridge") for name in ("gpt2", "llama", "gpt_neox", "gemma", "gemma2")),
]
HOOKED = [pytest.param(family, marks=pytest.mark.hooked) for family in ("gpt2", "llama", "gpt_neox")]


@pytest.fixture(params=FAMILIES, ids="-".join)
def name(request: pytest.FixtureRequest) -> tuple[str, str]:
    return request.param


def largest(x: Tensor) -> float:
    return float(x.detach().abs().max())


# ---- the mixture itself


@pytest.mark.seconds
@pytest.mark.parametrize(("k", "top_k"), [(2, 2), (3, 3), (3, 2), (3, 1)])
def test_logits_are_the_weighted_sum_of_the_routes(name: tuple[str, str], k: int, top_k: int) -> None:
    model = tiny_mixture(*name, k, top_k=top_k)
    wanted, routes, weights = naive(name[0], model.state, IDS)
    found = model.run(IDS).logits.double()
    scale = largest(wanted)
    assert largest(found - wanted) < 2e-5 * scale
    # the control: neither one route, nor equal weights, nor the wrong order of routes gives these logits
    others = [*routes, torch.stack(routes).mean(0)] if top_k > 1 else routes
    others.append(sum(weights[..., [k - 1 - i]] * routes[i] for i in range(k)))
    if not (k == 3 and name[0].startswith("gemma")):  # a router that reads its scaled embeddings is one-sided
        assert min(largest(other - wanted) for other in others) > 1e-2 * scale


@pytest.mark.seconds
@pytest.mark.parametrize(
    ("family", "backend"),
    [
        *(pytest.param(name, "hooked", marks=pytest.mark.hooked) for name in ("gpt2", "llama", "gpt_neox")),
        *((name, "bridge") for name in ("gpt2", "llama", "gpt_neox", "gemma2")),
    ],
)
def test_one_route_with_the_norm_copied_is_the_base(family: str, backend: str) -> None:
    model, base = tiny_mixture(family, backend, 1, copied=True), tiny_model(family, backend)
    assert largest(model.run(IDS).logits - base.run(IDS).logits) < 1e-5
    assert largest(tiny_mixture(family, backend, 1).run(IDS).logits - base.run(IDS).logits) > 1e-3
    if backend == "hooked":
        assert torch.equal(model.weight("ln_final_w"), base.weight("ln_final_w"))


def test_gates_sum_to_one_and_keep_the_largest() -> None:
    generator = torch.Generator().manual_seed(0)
    stream = torch.randn(3, 5, 32, generator=generator)
    router = 0.3 * torch.randn(32, 4, generator=generator)
    dense = gates(stream, router, 4)
    assert largest(dense.sum(-1) - 1) < 1e-6
    assert torch.equal(dense, (stream @ router).softmax(-1))
    for top_k in (1, 2, 3):
        some = gates(stream, router, top_k)
        assert largest(some.sum(-1) - 1) < 1e-6
        assert bool(((some > 0).sum(-1) == top_k).all())
        kept = dense.topk(top_k, dim=-1)
        wanted = torch.zeros_like(dense).scatter(-1, kept.indices, kept.values / kept.values.sum(-1, keepdim=True))
        assert largest(some - wanted) < 1e-6
        assert largest(some - dense) > 1e-2
    equal = gates(torch.zeros(1, 1, 32), router, 2)  # ties: still exactly two
    assert int((equal > 0).sum()) == 2


def test_gates_of_half_precision_are_made_in_float32() -> None:
    stream, router = torch.randn(4, 32).bfloat16(), torch.randn(32, 3).bfloat16()
    assert gates(stream, router, 3).dtype == torch.float32
    assert mix(gates(stream, router, 3), [stream] * 3).dtype == torch.bfloat16


def test_equal_members_are_the_member() -> None:
    member, weights = torch.randn(2, 5, 32), torch.rand(2, 5, 3).softmax(-1)
    assert largest(mix(weights, [member] * 3) - member) < 1e-6
    assert largest(mix(weights, [member, member, member + 1]) - member) > 0.1


@pytest.mark.seconds
@pytest.mark.parametrize("family", ["llama", "gemma2"])
def test_late_layers_that_write_nothing_leave_the_base_whatever_the_router(family: str) -> None:
    """The streams of all routes are one, so that any mixture of them is the base."""
    hf_model = tiny_hf(family)
    with torch.no_grad():
        for layer in hf_model.model.layers[-1:]:
            layer.self_attn.o_proj.weight.zero_()
            layer.mlp.down_proj.weight.zero_()
    base = load_model(hf_model, device="cpu")
    state = dataclasses.replace(random_state(family, 2, copied=True), base=None, base_hash=base_hash(hf_model))
    model = build_mixture(read_base(hf_model)[0], state, tokenizer=None, name="x", source=None, device="cpu")
    assert largest(model.run(IDS).logits - base.run(IDS).logits) < 1e-5
    other = tiny_mixture(family, "auto", 2, copied=True).run(IDS).logits
    assert largest(other - tiny_model(family).run(IDS).logits) > 0.1


def test_one_unembedding_is_the_sum_of_k_logit_tensors() -> None:
    weights, members = torch.rand(2, 7, 4).softmax(-1), [torch.randn(2, 7, 64) for _ in range(4)]
    table = torch.randn(64, 1000)
    one = mix(weights, members) @ table
    many = sum(weights[..., i, None] * (members[i] @ table) for i in range(4))
    assert largest(one - many) < 1e-5 * largest(many)
    assert largest(one - many.roll(1, 0)) > 0.1 * largest(many)


def uncapped(family: str, state: Any) -> Tensor:
    """The weighted sum of logits that each route's own cap has bent, which is another model."""
    _, routes, weights = naive(family, state, IDS)
    return sum(weights[..., i, None] * routes[i] for i in range(state.k))  # type: ignore[return-value]


def test_a_soft_cap_acts_on_the_mixed_logits() -> None:
    """On the transformers model, where it is tuned, and on the bridge, where it is read."""
    model = tiny_mixture("gemma2", "bridge", 2)
    wanted, routes, _ = naive("gemma2", model.state, IDS)
    hf_model = tiny_hf("gemma2")
    hf_model, mixture = apply_state(hf_model, model.state)
    parts = late_parts(hf_model)
    assert parts.cap == 3.0
    with torch.no_grad(), installed(parts, mixture), mixture.recording() as readings:
        trained = hf_model(IDS).logits
        own = [parts.logits(member) for member in readings[0].members]
    for found in (trained, model.run(IDS).logits, model.forward(model.token_embeddings(IDS[0])[None])):
        assert largest(found.double() - wanted[: len(found)]) < 2e-5
    for found, route in zip(own, routes, strict=True):
        assert largest(found.double() - route) < 2e-5
    # the controls: a sum behind the caps, a cap twice, no cap at all
    assert largest(uncapped("gemma2", model.state) - wanted) > 0.05
    assert largest(3 * torch.tanh(wanted / 3) - wanted) > 0.1
    assert largest(3 * torch.atanh(wanted / 3) - wanted) > 0.1


@pytest.mark.hooked
def test_a_soft_cap_in_a_hooked_transformer() -> None:
    """No family with a cap converts, so that a HookedTransformer is given one."""
    tl_model = copy.deepcopy(build(random_state("llama", 2), backend="hooked").tl_model)
    with torch.no_grad():
        plain = tl_model(IDS)
        tl_model.cfg.output_logits_soft_cap = 2.0
        model = load_model(tl_model)
        wanted = 2 * torch.tanh(plain / 2)
        assert largest(model.run(IDS).logits - wanted) < 1e-4
        assert largest(model.forward(model.token_embeddings(IDS[0])[None]) - wanted[:1]) < 1e-4
        assert largest(wanted - plain) > 0.1


def test_top_k_of_all_routes_is_dense() -> None:
    model = build(random_state("llama", 3))
    dense = model.run(IDS).logits
    model.top_k = 2
    sparse = model.run(IDS).logits
    model.top_k = 3
    assert torch.equal(model.run(IDS).logits, dense)
    assert largest(sparse - dense) > 1e-3


def build(state: Any, family: str = "llama", **options: Any) -> ModModel:
    """A model of its own, to be changed."""
    hf_model, tokenizer = read_base(tiny_folder(family))
    return build_mixture(hf_model, state, tokenizer=tokenizer, name="own", source=None, device="cpu", **options)


def test_bfloat16_is_the_mixture_to_its_precision() -> None:
    state = random_state("llama", 2)
    calm = {**state.weights, "router": state.weights["router"] / 3}  # steep gates turn a rounding into another choice
    model = build(dataclasses.replace(state, weights=calm), dtype=torch.bfloat16)
    wanted, routes, _ = naive("llama", model.state, IDS)
    error = (model.run(IDS).logits.double() - wanted).abs().mean()
    assert error < 0.05 * wanted.abs().mean()
    assert (routes[0] - wanted).abs().mean() > 0.1 * wanted.abs().mean()


@pytest.mark.seconds
@pytest.mark.parametrize("backend", [pytest.param("hooked", marks=pytest.mark.hooked), "bridge"])
def test_half_precision_loads(backend: str) -> None:
    """Even with a steep router, whose weights depend on the rounding of its stream."""
    model = tiny_mixture("llama", backend, 2, copied=True, dtype=torch.bfloat16)
    assert model.self_check.logits_tolerance == 2.0
    assert tiny_mixture("llama", backend, 2).self_check.logits_tolerance < 0.01


def test_a_mixture_that_is_not_the_reference_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """The control of the check: a mixture that is installed wrongly does not load."""
    from interp_widgets.models import SelfCheckError
    from interp_widgets.models.mixture_of_depths import opening

    def wrong(tl_model: Any, mixture: Mixture) -> None:
        mixture.router.data.neg_()
        install(tl_model, mixture)

    monkeypatch.setattr(opening, "install", wrong)
    with pytest.raises(SelfCheckError, match="log-probabilities differ from Hugging Face"):
        build(random_state("llama", 2))


@pytest.mark.seconds
def test_a_steep_router_passes_the_self_check(monkeypatch: pytest.MonkeyPatch) -> None:
    """Such gates bend within a ten-thousandth of a wide stream, which a finite difference must not step over."""
    from interp_widgets.models import SelfCheckError, self_check

    def steep() -> ModModel:
        hf_model, tokenizer = read_base("demo-base")
        parts = late_parts(hf_model)
        router = 0.05 * torch.randn(192, 3, generator=torch.Generator().manual_seed(0))
        mixture, found = new_mixture(parts, router, 3), base_hash(hf_model)
        weights = {"router": router, **{n: p.detach() for n, p in norm_parameters(mixture, parts).items()}}
        state = MixtureState(3, 3, None, "demo-base", "demo-base", found, weights)
        return build_mixture(hf_model, state, tokenizer=tokenizer, name="steep", source=None, device="cpu")

    gradient = steep().self_check.gradient
    assert gradient is not None
    assert gradient < 2e-3
    monkeypatch.setitem(self_check.STEPS, torch.float32, self_check.STEPS[torch.float32][:-2])
    with pytest.raises(SelfCheckError, match="the gradient differs from finite differences"):
        steep()


def test_the_self_check_compares_the_mixture_with_transformers(name: tuple[str, str]) -> None:
    check = tiny_mixture(*name).self_check
    assert check.passed
    assert check.logits is not None
    base = tiny_model(*name).run(IDS).logits
    assert largest(tiny_mixture(*name).run(IDS).logits - base) > 0.1  # so that it could tell the difference


# ---- wherever it runs


def test_the_engine_gives_the_same_logits(name: tuple[str, str]) -> None:
    model = tiny_mixture(*name)
    ids = IDS[0].tolist()
    wanted, embeddings = model.run(ids).logits, model.token_embeddings(ids)[None]
    some = torch.tensor([2, 6])
    with torch.no_grad():
        assert largest(model.forward(embeddings) - wanted) < 3e-5
        assert largest(model.forward(embeddings, positions=some) - wanted[:, some]) < 3e-5
        start = model.prefix(embeddings[:, :5])
        assert largest(model.forward(embeddings[:, 5:], prefix=start) - wanted[:, 5:]) < 1e-4


@pytest.mark.seconds
@pytest.mark.parametrize("family", HOOKED)
def test_the_plain_equations_know_mixtures(family: str) -> None:
    """In float64 too, where norms of transformers would stay in float32."""
    for dtype in (torch.float64, torch.float32):
        model = tiny_mixture(family, "hooked", 3, dtype=dtype)
        assert engine.decodes_in_blocks(model)
        embeddings = model.token_embeddings(IDS[0])[None]
        wanted, routes, _ = naive(family, model.state, IDS[:1])
        with torch.no_grad(), last_route_only(model.tl_model):
            last = model.forward(embeddings)
        assert largest(last.double() - routes[-1]) < 2e-5 * largest(wanted)
        assert largest(model.forward(embeddings).double() - wanted) < 2e-5 * largest(wanted)
        assert largest(routes[-1] - wanted) > 1e-2 * largest(wanted)


@pytest.mark.seconds
@pytest.mark.hooked
def test_a_pair_of_mixtures_from_memory_takes_the_plain_equations() -> None:
    one, other = (tiny_mixture("llama", "hooked", k) for k in (2, 3))
    pair = load_pair(one.tl_model, other.tl_model)
    for model, own in zip(pair, (one, other), strict=True):
        assert engine.decodes_in_blocks(model)
        assert torch.equal(model.run(IDS).logits, own.run(IDS).logits)
        found, wanted = (prompt_saliency(m, [5, 17, 300], [44, 8], method="exact").importance for m in (model, own))
        assert (found == wanted).all()
    assert largest(pair.base.run(IDS).logits - pair.tuned.run(IDS).logits) > 0.1


@pytest.mark.seconds
@pytest.mark.hooked
@pytest.mark.parametrize("only", [0, 1])
def test_a_route_alone_by_the_plain_equations(only: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its weight depends on nothing; the blocks and autograd say the same."""
    state = dataclasses.replace(random_state("llama", 2), only=only)
    model = build(state, backend="hooked", dtype=torch.float64)
    assert engine.decodes_in_blocks(model)
    cases = [([5, 17, 300, 44], [8, 99]), ([5, 17], [300, 44, 8, 99])]
    found = [prompt_saliency(model, *case, method="first_order").importance for case in cases]
    monkeypatch.setattr(Equations, "of", staticmethod(lambda network: None))
    model = build(state, backend="hooked", dtype=torch.float64)  # what was found of the first one is kept
    assert not engine.decodes_in_blocks(model)
    for one, case in zip(found, cases, strict=True):
        wanted = prompt_saliency(model, *case, method="first_order").importance
        assert abs(one - wanted).max() < 1e-9 * abs(wanted).max()


@pytest.mark.seconds
@pytest.mark.hooked
@pytest.mark.parametrize("fault", ["no change of the weights", "no route but the last", "another norm", "none"])
def test_wrong_equations_are_found_and_left_out(fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The control: every model is compared with its own logits and a gradient before the equations stand in for it."""
    match fault:
        case "no change of the weights":
            monkeypatch.setattr(jacobian, "_softmax_jacobian", lambda gates, change: torch.zeros_like(gates * change))
        case "no route but the last":
            for module in (equations, jacobian):
                monkeypatch.setattr(module, "read_out_in_force", lambda tl_model: None)
        case "another norm":
            monkeypatch.setattr(equations.Norm, "__call__", lambda norm, x: x)
    model = build(random_state("llama", 3, top_k=2), backend="hooked")
    assert engine.decodes_in_blocks(model) == (fault == "none")
    found = prompt_saliency(model, [5, 17, 300], [44, 8], method="first_order").importance
    monkeypatch.undo()
    wanted = prompt_saliency(tiny_mixture("llama", "hooked", 3, top_k=2), [5, 17, 300], [44, 8], method="first_order")
    assert abs(found - wanted.importance).max() < 1e-4 * abs(found).max()


def test_an_edit_of_the_stream_reaches_the_route_that_reads_it(name: tuple[str, str]) -> None:
    model = tiny_mixture(*name, 2)
    last = model.n_layers - 1
    before = f"blocks.{last}.hook_resid_pre"
    ids = IDS[:1]
    shift = torch.linspace(-2, 2, model.d_model)
    with model.mixture.recording() as readings:
        model.run(ids)
        edited = model.run(ids, edit={before: lambda x: x + shift}).logits
        same = model.run(ids, edit={f"blocks.{last - 1}.hook_resid_post": lambda x: x + shift}).logits
    clean, changed, _ = readings
    assert torch.equal(clean.gates, changed.gates), "the router reads the stream that enters the layer before"
    assert largest(changed.members[0] - clean.members[0]) > 0.1
    assert largest(edited - same) < 1e-5
    other = model.run(ids, edit={f"blocks.{last - 1}.hook_resid_pre": lambda x: x + shift}).logits
    assert largest(other - edited) > 1e-2


def test_text_is_the_same_with_and_without_a_cache(name: tuple[str, str]) -> None:
    model = tiny_mixture(*name)
    ids = model.tokens(PROMPT)
    wanted = list(ids)
    for _ in range(8):
        wanted.append(int(model.run(wanted).logits[0, -1].argmax()))
    found = model.generate_ids(ids, max_new_tokens=8)
    assert found == wanted[len(ids) :][: len(found)]
    assert len(found) == 8 or wanted[len(ids) + len(found)] in model._stop_ids
    assert found != tiny_model(*name).generate_ids(ids, max_new_tokens=8)


def test_saliency_and_ablation_are_those_of_the_mixture(name: tuple[str, str]) -> None:
    model = tiny_mixture(*name)
    ids = IDS[0].tolist()
    prompt, response = ids[:5], ids[5:]
    found = prompt_saliency(model, prompt, response).importance

    def probabilities(embeddings: Tensor) -> Tensor:
        run = model.run(ids, embeddings=embeddings).logits[0].double().softmax(-1)
        return run[torch.arange(4, 7), response]

    embeddings = model.token_embeddings(ids)
    for n in (0, 3):
        gone = embeddings.clone()
        gone[n] = 0
        wanted = probabilities(embeddings) - probabilities(gone)
        assert largest(torch.from_numpy(found[n].copy()) - wanted) < 1e-5

    layer, position = model.n_layers - 1, 2
    effect = ablate_modules(model, ids, 99, kinds=("mlp",), metric="logit")

    def put(x: Tensor) -> Tensor:
        x = x.clone()
        x[:, position] = 0
        return x

    edited = model.run(ids, edit={f"blocks.{layer - 1}.hook_mlp_out": put}).logits[0, -1, 99]
    wanted_effect = float(edited - model.run(ids).logits[0, -1, 99])
    assert abs(abs(float(effect.effect[0, layer - 1, position])) - abs(wanted_effect)) < 1e-4
    assert abs(wanted_effect) > 1e-4


def test_one_stream_alone_is_read_as_the_last_route_does(name: tuple[str, str]) -> None:
    model = tiny_mixture(*name)
    ids = IDS[0].tolist()
    _, routes, _ = naive(name[0], model.state, IDS[:1])
    lens = logit_lens(model, ids)
    wanted = routes[-1][0].softmax(-1).max(-1)
    assert largest(torch.from_numpy(lens.probability[-1].copy()).double() - wanted.values) < 1e-4
    assert lens.top_ids[-1, :, 0].tolist() == wanted.indices.tolist()
    read = read_out(model)
    streams = residual_streams(model, IDS[0])[-1:]
    assert largest(read.whole(streams).double() - routes[-1]) < 1e-4 * largest(routes[-1])
    # and what follows is a mixture again
    assert largest(model.run(ids).logits.double() - naive(name[0], model.state, IDS[:1])[0]) < 1e-3


def test_decompositions_add_up(name: tuple[str, str]) -> None:
    model = tiny_mixture(*name)
    assert decompose_tokens(model, PROMPT).error.max() < 1e-3
    assert decompose_logit(model, PROMPT).error < 1e-3


def test_a_pass_that_starts_behind_the_router_is_refused(name: tuple[str, str]) -> None:
    model = tiny_mixture(*name)
    model.run(IDS)
    with pytest.raises(ValueError, match="did not go through the last 2 layers"):
        model.tl_model.ln_final(torch.randn(2, 8, 32))
    if model.backend == "hooked":
        with torch.no_grad():
            model.tl_model(IDS, stop_at_layer=model.n_layers)  # leaves streams of that shape behind
            with pytest.raises(ValueError, match="run the model from its first layer on"):
                model.tl_model(torch.randn(2, 8, 32), start_at_layer=model.n_layers)


def test_hooks_of_the_user_see_the_mixture(name: tuple[str, str]) -> None:
    model = tiny_mixture(*name)
    wanted = model.run(IDS).logits
    point = model.tl_model.hook_dict[f"blocks.{model.n_layers - 1}.hook_resid_pre"]
    handle = point.register_forward_hook(lambda module, args, made: made * 1.5)
    try:
        assert largest(model.run(IDS).logits - wanted) > 1e-2
    finally:
        handle.remove()
    assert torch.equal(model.run(IDS).logits, wanted)


def test_a_deep_copy_has_a_mixture_of_its_own(name: tuple[str, str]) -> None:
    model = tiny_mixture(*name)
    with torch.no_grad():
        wanted = model.run(IDS).logits
        twin = copy.deepcopy(model.tl_model)
        assert largest(twin(IDS) - wanted) < 1e-5
        found = mixture_of(twin)
        assert found is not None
        found.router.data.neg_()
        assert largest(twin(IDS) - wanted) > 1e-2
    assert torch.equal(model.run(IDS).logits, wanted)


def test_comparisons_leave_the_number_of_routes() -> None:
    mixture = Mixture(torch.zeros(4, 3), [torch.nn.Identity()] * 2, 1)
    with mixture.dense():
        assert mixture.top_k == 3
    assert mixture.top_k == 1


@pytest.mark.parametrize("order", itertools.permutations(range(3)))
def test_numbers_of_routes_end_in_any_order(order: tuple[int, ...]) -> None:
    mixture = Mixture(torch.zeros(4, 5), [torch.nn.Identity()] * 4, 1)
    model = build(random_state("llama", 3))
    own, entered = model.top_k, [mixture.using(2), mixture.dense(), mixture.using(3)]
    nested = [model.with_top_k(1), model.with_top_k(2), model.with_top_k(3)]
    for one in (*entered, *nested):
        one.__enter__()
    left = [0, 1, 2]
    for number in order:
        entered[number].__exit__(None, None, None)
        nested[number].__exit__(None, None, None)
        left.remove(number)
        assert (mixture.top_k, model.top_k) == (([2, 5, 3][left[-1]], left[-1] + 1) if left else (1, own))


def test_a_number_of_routes_holds_no_lock() -> None:
    """A generator that keeps it open must not stop other threads."""
    model = build(random_state("llama", 3))
    with model.with_top_k(1):
        assert held_locks() == []
    assert held_locks() == []


def test_threads_do_not_meet_in_a_mixture() -> None:
    """Passes of a cell and of a widget may run at once, each with its own streams, recording and reading."""
    mixture = Mixture(torch.randn(4, 2, generator=torch.Generator().manual_seed(0)), [torch.nn.Identity()], 2)
    first, second, third = torch.eye(4)[None, :3].split(1, dim=1)

    def one_pass(scale: float, halfway: Any = lambda: None) -> Tensor:
        mixture.enters(0, scale * first)
        mixture.enters(1, scale * second)
        halfway()
        last = scale * third
        mixture.leaves(last)
        return mixture.read(last, torch.nn.Identity())

    with ThreadPoolExecutor(1) as pool:
        elsewhere = lambda scale: pool.submit(one_pass, scale).result()
        alone, twice = one_pass(1.0), one_pass(2.0)
        found: list[Tensor] = []
        assert torch.equal(one_pass(1.0, lambda: found.append(elsewhere(2.0))), alone)
        assert torch.equal(found[0], twice)
        assert not torch.equal(alone, twice)
        with mixture.recording() as readings:
            elsewhere(1.0)
            assert readings == []
            one_pass(1.0)
            assert len(readings) == 1
        with mixture.by_last():
            assert torch.equal(elsewhere(1.0), alone)
            assert torch.equal(one_pass(1.0), third)
        assert torch.equal(one_pass(1.0), alone)


# ---- identity and checkpoints


def test_what_it_says_about_itself() -> None:
    model = build(random_state("llama", 3))
    assert (model.k, model.top_k, model.route_layers) == (3, 3, (0, 1, 2))
    assert model.added_parameters == 32 * 3 + 32 * 3
    assert "3 routes, top 3" in repr(model)
    assert model.provenance()["mod_base"] == "llama"
    dense = model.weight_hash
    model.top_k = 1
    assert model.weight_hash != dense, "another number of routes is another model to a cache"
    for wrong in (0, 4, True, 1.5):
        with pytest.raises(ValueError, match=r"top_k must be an int in 1\.\.3"):
            model.top_k = wrong
    model.top_k = 3
    assert model.weight_hash == dense
    assert mixture_of(tiny_model("llama").tl_model) is None


@pytest.mark.seconds
def test_a_folder_opens_as_the_same_model(tmp_path: Path, name: tuple[str, str]) -> None:
    model = build(random_state(name[0], 2), name[0], backend=name[1])
    model.top_k = 1
    model.save(tmp_path / "mixture")
    again = load_model(tmp_path / "mixture", device="cpu", backend=name[1])
    assert isinstance(again, ModModel)
    assert torch.equal(again.run(IDS).logits, model.run(IDS).logits)
    assert (again.top_k, again.name, again.weight_hash) == (1, "mixture", model.weight_hash)
    assert again.source == str((tmp_path / "mixture").resolve())
    head = json.loads((tmp_path / "mixture" / "mod.json").read_text())
    assert head["base"]["weight_hash"] == model.state.base_hash
    assert {path.suffix for path in (tmp_path / "mixture").iterdir()} == {".json", ".safetensors"}


def test_another_base_is_refused(tmp_path: Path) -> None:
    tiny_mixture("llama").save(tmp_path)
    with pytest.raises(LoadError, match=r"was tuned on llama with weights .* open it on the model it was made from"):
        load_model(tmp_path, base=tiny_folder("llama", 1))
    half = tiny_hf("llama").to(torch.float32)
    assert isinstance(load_model(tmp_path, base=half, device="cpu"), ModModel)  # the same weights from elsewhere
    with pytest.raises(ValueError, match="base= belongs to the folder of a mixture"):
        load_model("demo-base", base="demo-base")
    with pytest.raises(ValueError, match="leave processed out"):
        load_model(tmp_path, processed=True)


def test_a_base_from_memory_is_asked_for(tmp_path: Path) -> None:
    state = dataclasses.replace(tiny_mixture("llama").state, base=None)
    build(state).save(tmp_path)
    with pytest.raises(LoadError, match="give that model as base="):
        load_model(tmp_path)


def test_damaged_folders_say_what_is_wrong(tmp_path: Path) -> None:
    folder = tiny_mixture("llama").save(tmp_path / "a")
    (weights,) = folder.glob("weights-*.safetensors")
    weights.write_bytes(b"nonsense")
    with pytest.raises(LoadError, match="damaged"):
        load_model(folder)
    weights.unlink()
    with pytest.raises(LoadError, match=r"lacks weights-\w+\.safetensors"):
        load_model(folder)
    (folder / "mod.json").write_text("{}")
    with pytest.raises(LoadError, match="damaged"):
        load_model(folder)
    bad = dict(tiny_mixture("llama").state.weights)
    bad["router"] = bad["router"] * torch.nan
    build_folder = dataclasses.replace(tiny_mixture("llama").state, weights=bad)
    with pytest.raises(LoadError, match="NaN or infinity in router"):
        load_model(save_state(build_folder, tmp_path / "b"))
    extra = dataclasses.replace(
        tiny_mixture("llama").state, weights={**tiny_mixture("llama").state.weights, "x": torch.zeros(1)}
    )
    with pytest.raises(LoadError, match="does not fit the model: x is in only one"):
        load_model(save_state(extra, tmp_path / "c"))


def test_models_whose_logits_are_no_unembedding_are_refused() -> None:
    from transformers import GraniteConfig, GraniteForCausalLM

    scaled = GraniteConfig(
        vocab_size=64, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4,
        logits_scaling=3.0,
    )  # fmt: skip
    with pytest.raises(ValueError, match="its logits are more than the unembedding and a soft cap"):
        late_parts(GraniteForCausalLM(scaled).eval())
    with pytest.raises(ValueError, match="3 routes need 2 norms"):
        Mixture(torch.zeros(4, 3), [], 3)


# ---- layers that are skipped


@pytest.mark.parametrize("family", HOOKED)
@pytest.mark.parametrize("top_k", [1, 2, 3])
def test_skipping_layers_gives_the_logits_of_the_whole_computation(family: str, top_k: int) -> None:
    """Every route is met, so that positions wait, are caught up with, and wait again."""
    model = tiny_mixture(family, "hooked", 3, dtype=torch.float64)
    generator = torch.Generator().manual_seed(3)
    ids = torch.randint(1, 400, (1, 40), generator=generator)
    with model.with_top_k(top_k):
        whole = model.run(ids).logits
    write = EarlyExit(model, model.mixture, top_k)
    pieces = [ids[:, :6], *ids[:, 6:].split(1, dim=1)]
    found = torch.cat([write.feed(piece) for piece in pieces], dim=1)
    assert largest(found - whole[:, 5:]) < 1e-9 * largest(whole)
    assert largest(found - whole[:, 4:-1]) > 1e-2
    gates_there = routing_of(model, ids, top_k)
    assert write.exits == [max(row.nonzero().flatten().tolist()) for row in gates_there[5:]]
    assert write.computed[0] == write.length == 40
    assert write.computed == sorted(write.computed, reverse=True)
    if top_k == 1:
        assert set(write.exits) == {0, 1, 2}, "the test must meet every exit"
    if top_k == 3:
        assert write.computed == [40, 40, 40]


def routing_of(model: ModModel, ids: Tensor, top_k: int) -> Tensor:
    with model.with_top_k(top_k), model.mixture.recording() as readings:
        model.run(ids)
    return readings[0].gates[0]


@pytest.mark.hooked
def test_layers_are_skipped_indeed() -> None:
    """A router that always takes the first route: nothing above it is computed, until a token needs it."""
    model = build(random_state("llama", 2), backend="hooked")
    calls: list[int] = []
    for index, block in enumerate(model.tl_model.blocks):
        own = block.mlp.act_fn
        block.mlp.act_fn = lambda x, own=own, index=index: calls.append(index) or own(x)
    name = "blocks.1.hook_resid_pre"
    streams = model.run([5, 6, 7, 7], capture=name).activations[name][0]

    def prefer(direction: Tensor) -> None:
        """Route 0 where the stream points along ``direction``, route 1 where it points away."""
        model.mixture.router.data = torch.stack([direction, torch.zeros(32)], dim=1)

    write = EarlyExit(model, model.mixture, 1)
    calls.clear()
    prefer(streams[2])
    write.feed(torch.tensor([[5, 6, 7]]))
    assert calls == [0, 1]
    assert write.computed == [3, 3, 0]
    prefer(-streams[3])
    write.feed(torch.tensor([[7]]))
    assert calls == [0, 1, 0, 1, 2]
    assert write.computed == [4, 4, 4]
    assert write.exits == [1, 2]


@pytest.mark.parametrize("family", HOOKED)
@pytest.mark.parametrize("top_k", [1, 2])
def test_text_written_with_skipped_layers_is_the_dense_text(family: str, top_k: int) -> None:
    model = tiny_mixture(family, "hooked", 3)
    assert model.skips_layers
    ids = model.tokens(PROMPT)
    with model.with_top_k(top_k):
        found = model.generate_ids(ids, max_new_tokens=24)
        wanted = list(ids)
        for _ in range(len(found)):
            wanted.append(int(model.run(wanted).logits[0, -1].argmax()))
    assert found == wanted[len(ids) :]
    if top_k == 1:
        assert model.generate_ids(ids, max_new_tokens=24) != found


@pytest.mark.hooked
def test_what_cannot_be_skipped_is_computed() -> None:
    model = tiny_mixture("llama", "hooked", 3)
    assert tiny_mixture("llama", "bridge", 2).skips_layers
    assert not tiny_mixture("gemma2", "bridge", 2).skips_layers
    ids = model.tokens(PROMPT)
    with model.with_top_k(1):
        wanted = model.generate_ids(ids, max_new_tokens=8)
        point = model.tl_model.hook_dict["blocks.2.hook_mlp_out"]
        seen: list[int] = []
        handle = point.register_forward_hook(lambda module, args, made: seen.append(1))
        try:
            assert not model.skips_layers
            assert model.generate_ids(ids, max_new_tokens=8) == wanted
        finally:
            handle.remove()
        assert len(seen) >= len(wanted), "a hook sees every layer of every pass"
    assert model.skips_layers


@pytest.mark.hooked
def test_layers_are_skipped_only_where_that_gives_the_models_own_logits(monkeypatch: pytest.MonkeyPatch) -> None:
    """The control of the comparison on first use: equations that are another model's write no text."""
    own = EarlyExit._advance
    monkeypatch.setattr(EarlyExit, "_advance", lambda write, layer: own(write, layer).roll(1, -1))
    model = build(random_state("llama", 3), backend="hooked")
    assert not model.skips_layers
    monkeypatch.undo()
    assert not model.skips_layers, "compared once"
    assert build(random_state("llama", 3), backend="hooked").skips_layers


@pytest.mark.hooked
def test_an_edited_model_is_compared_anew_before_layers_are_skipped() -> None:
    model = build(random_state("llama", 3), backend="hooked")
    assert model.skips_layers
    mlp = model.tl_model.blocks[0].mlp
    own = mlp.forward
    mlp.forward = lambda x: 3 * own(x)
    assert not model.skips_layers
    del mlp.forward
    assert model.skips_layers


@pytest.mark.hooked
def test_weights_that_are_no_numbers_are_told_while_writing() -> None:
    model = build(random_state("llama", 3), backend="hooked")
    ids = model.tokens(PROMPT)
    assert model.skips_layers
    assert len(model.generate_ids(ids, max_new_tokens=2)) == 2
    model.mixture.router.data[3, 1] = torch.nan
    with pytest.raises(ValueError, match="the model's logits are not finite"):
        model.generate_ids(ids, max_new_tokens=2)
