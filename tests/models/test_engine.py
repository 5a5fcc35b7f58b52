"""The fast engine gives the model's own numbers: logits, prefixes, derivatives, hooks in force, on both backends."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import transformers
from torch import Tensor

from interp_widgets.models import Model, engine, load_model
from interp_widgets.models.engine import modules
from interp_widgets.models.engine.equations import Equations
from interp_widgets.models.engine.jacobian import AutogradJacobian
from interp_widgets.models.engine.routes import checked_routes, last_checked_routes
from tests.architectures.models import BOUNDARY, random_model
from tests.models.mixtures import tiny_mixture
from tests.models.tiny import HALF_SEED, tiny_config, tiny_hf, tiny_model
from tests.tolerances import limit

IDS = [5, 17, 300, 44, 8, 261, 99, 30, 31, 7, 120, 77, 9, 14, 15, 60]
FAMILIES = [
    *(pytest.param((name, "hooked"), marks=pytest.mark.hooked) for name in ("gpt2", "llama", "gpt_neox", "qwen3")),
    *((name, "bridge") for name in ("gpt2", "llama", "gpt_neox", "gemma", "gemma2")),
]
MIXTURES = [
    pytest.param(place, marks=pytest.mark.hooked)
    for place in (("gpt2", "hooked", 2), ("llama", "hooked", 3, 2), ("gpt_neox", "hooked", 1), ("llama", "hooked", 3))
]
"""With the number of routes, and of those that a token uses."""


@pytest.fixture(params=[*FAMILIES, *MIXTURES], ids=lambda place: "-".join(map(str, place)))
def model(request: pytest.FixtureRequest) -> Model:
    name, backend, *routes = request.param
    if not routes:
        return tiny_model(name, backend, dtype=torch.float64)
    k, top_k = (*routes, None)[:2]
    return tiny_mixture(name, backend, k, top_k=top_k, dtype=torch.float64)


def own_logits(model: Model, ids: list[int] = IDS) -> Tensor:
    """What the TransformerLens model itself computes from ids."""
    with torch.no_grad():
        return model.tl_model(torch.tensor([ids]))


def rows(model: Model, ids: list[int] = IDS) -> Tensor:
    return model.token_embeddings(ids)[None]


def largest(x: Tensor) -> float:
    return float(x.detach().abs().max())


def floor(model: Model) -> float:
    """Largest difference by rounding, of logits and slopes that grow to some tens."""
    return limit(model, single=2e-5)


# ---- logits


def test_logits_are_the_models_own(model: Model) -> None:
    wanted = own_logits(model)
    assert largest(model.forward(rows(model)) - wanted) < floor(model)
    chosen = model.forward(rows(model).expand(2, -1, -1), positions=torch.tensor([3, 9]))
    assert chosen.shape == (2, 2, model.d_vocab)
    assert largest(chosen - wanted[:, [3, 9]]) < floor(model)


def test_a_prefix_is_shared_by_a_batch(model: Model) -> None:
    embeddings = rows(model)
    start = model.prefix(embeddings[:, :9])
    for length in (1, 6, 9):
        rest = torch.cat([embeddings[:, length:], 2 * embeddings[:, length:]])
        part = model.forward(rest, positions=slice(2, 5), prefix=start.first(length))
        whole = torch.cat([embeddings[:, :length].expand(2, -1, -1), rest], dim=1)
        assert largest(part - model.forward(whole)[:, length + 2 : length + 5]) < floor(model)
    assert largest(part[0] - part[1]) > 1e-3  # the batch is not one and the same row


def test_float32_agrees_with_the_model_to_a_hundred_thousandth() -> None:
    for family in ("gpt2", "llama", "gpt_neox"):
        model = tiny_model(family)
        wanted = own_logits(model)
        assert largest(model.forward(rows(model)) - wanted) < 1e-5 * largest(wanted)


@pytest.mark.parametrize("family", ["gpt2", "llama"])
def test_half_precision_runs_and_agrees_roughly(family: str) -> None:
    model = tiny_model(family, dtype=torch.bfloat16, seed=HALF_SEED)
    assert engine.decodes_in_blocks(model)
    wanted = own_logits(model).float()
    found = model.forward(rows(model))
    assert found.dtype == torch.bfloat16
    assert largest(found.float() - wanted) < 0.1 * largest(wanted)


@pytest.mark.parametrize("backend", [pytest.param("hooked", marks=pytest.mark.hooked), "bridge"])
def test_a_sliding_window_survives_the_prefix(backend: str) -> None:
    config = tiny_config("mistral")
    config.sliding_window = 4
    from transformers import AutoModelForCausalLM

    torch.manual_seed(0)
    model = load_model(AutoModelForCausalLM.from_config(config).double().eval(), backend=backend, dtype=torch.float64)
    wanted, embeddings = own_logits(model), rows(model)
    assert largest(model.forward(embeddings) - wanted) < floor(model)
    rest = model.forward(embeddings[:, 7:], prefix=model.prefix(embeddings[:, :7]))
    assert largest(rest - wanted[:, 7:]) < floor(model)


# ---- many sequences in one row

SEQUENCES = [IDS, [*IDS[:6], 7, 8, 9], [*IDS[:6], 7, 80], [5], [40, 41], [*IDS[:6], 7, 8], IDS]


def test_sequences_share_their_beginnings() -> None:
    (row,) = engine.pack(SEQUENCES, 256)
    assert [[row.ids[token] for token in row.paths[number]] for number in range(len(SEQUENCES))] == SEQUENCES
    assert len(row) == len(IDS) + len([7, 8, 9]) + len([80]) + len([40, 41])
    for path in row.paths.values():
        assert [row.parents[token] for token in path] == [-1, *path[:-1]]


def test_long_sequences_without_a_beginning_in_common_stay_alone() -> None:
    rng = torch.Generator().manual_seed(0)
    sequences = torch.randint(0, 9999, (5, 60), generator=rng).tolist()
    assert [len(row.paths) for row in engine.pack(sequences, 64)] == [1] * 5
    assert engine.pack([], 64) == []


def test_rows_of_many_sequences_stay_short_enough_to_save_work() -> None:
    """A row of all would hold 21,000 tokens, and its attention would take longer than all else."""
    rng = torch.Generator().manual_seed(0)
    beginning = torch.randint(0, 9999, (500,), generator=rng).tolist()
    sequences = [[*beginning, *tail] for tail in torch.randint(0, 9999, (1000, 20), generator=rng).tolist()]

    def cost(rows: list[engine.TokenTree]) -> int:
        return sum(len(row) * 6 * 768 + 8 * len(row) ** 2 for row in rows)

    rows = engine.pack(sequences, 768)
    assert len(rows[0]) < 1500
    for most in (600, 900, 2500, 5000):
        others = engine.pack(sequences, 768, most=most)
        assert len(others[0]) <= most
        assert cost(rows) <= cost(others)
    assert {number for row in rows for number in row.paths} == set(range(1000))
    assert len(engine.pack(sequences, 768, most=520)) == 1000, "alone they may be longer than that"


@pytest.mark.seconds
def test_short_sequences_fill_rows() -> None:
    rng = torch.Generator().manual_seed(0)
    lengths = torch.randint(5, 16, (20_000,), generator=rng).tolist()
    sequences = [torch.randint(0, 9999, (length,), generator=rng).tolist() for length in lengths]
    rows = engine.pack(sequences, 768)
    assert {number for row in rows for number in row.paths} == set(range(len(sequences)))
    assert max(map(len, rows)) == 96
    assert sum(map(len, rows)) / (96 * len(rows)) > 0.97, "rows are nearly full"


def in_rows(model: Model, sequences: list[list[int]]) -> list[Tensor]:
    """The logits of each sequence, from one row that holds all and a second, shorter one."""
    first, second = engine.pack(sequences, 256)[0], engine.pack(sequences[1:3], 256)[0]
    tree = engine.TreeMasks.of([first, second], model.device)
    ids = [[*row.ids, *[0] * (len(first) - len(row))] for row in (first, second)]
    hidden = engine.encode(model, model.embed(torch.tensor(ids)), tree=tree)
    logits = engine.decode(model, hidden)
    again = [logits[1, second.paths[number]] for number in range(2)]
    found = [logits[0, first.paths[number]] for number in range(len(sequences))]
    assert all(largest(a - b) < floor(model) for a, b in zip(again, found[1:3], strict=True))
    return found


def test_sequences_in_one_row_are_as_alone(model: Model) -> None:
    assert engine.can_pack(model, len(IDS)) == engine.decodes_in_blocks(model)
    if not engine.decodes_in_blocks(model):  # the equations do not describe it
        return
    for ids, logits in zip(SEQUENCES, in_rows(model, SEQUENCES), strict=True):
        assert largest(logits - own_logits(model, ids)[0]) < floor(model)


@pytest.mark.parametrize(
    ("family", "backend"),
    [*(pytest.param(name, "hooked", marks=pytest.mark.hooked) for name in ("gpt2", "llama")), ("llama", "bridge")],
)
def test_a_row_may_be_longer_than_the_context(family: str, backend: str) -> None:
    model = tiny_model(family, backend, dtype=torch.float64)
    rng = torch.Generator().manual_seed(0)
    sequences = torch.randint(3, 400, (20, 10), generator=rng).tolist()
    (row,) = engine.pack(sequences, 8 * 200)
    assert len(row) > model.n_ctx
    tree = engine.TreeMasks.of([row], model.device)
    hidden = engine.encode(model, model.embed(torch.tensor([row.ids])), tree=tree)
    logits = engine.decode(model, hidden)[0]
    for number, ids in enumerate(sequences):
        assert largest(logits[row.paths[number]] - own_logits(model, ids)[0]) < floor(model)


@pytest.mark.seconds
def test_a_window_counts_positions_not_tokens_of_the_row() -> None:
    config = transformers.MistralConfig(
        vocab_size=400, hidden_size=32, intermediate_size=48, num_hidden_layers=3, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=64, sliding_window=5, bos_token_id=None, eos_token_id=None,
    )  # fmt: skip
    torch.manual_seed(0)
    hf_model = transformers.AutoModelForCausalLM.from_config(config, attn_implementation="eager")
    model = load_model(hf_model.double(), backend="bridge", dtype=torch.float64)
    assert engine.can_pack(model, len(IDS))
    for ids, logits in zip(SEQUENCES, in_rows(model, SEQUENCES), strict=True):
        assert largest(logits - own_logits(model, ids)[0]) < floor(model)


@pytest.mark.seconds
@pytest.mark.parametrize("name", ["sliding_window", "attention_chunk_size"])
def test_routes_are_compared_again_past_every_length_that_the_config_declares(name: str) -> None:
    hf_model = tiny_hf("llama", dtype=torch.float64)
    setattr(hf_model.config, name, 20)  # which this architecture does not read
    model = load_model(hf_model, backend="bridge", dtype=torch.float64)
    short = checked_routes(model, 8).tokens
    assert 8 <= short <= 20
    assert checked_routes(model, 20).tokens == short
    assert checked_routes(model, 21).tokens == 24
    assert last_checked_routes(model, 40).cover(40)


@pytest.mark.seconds
def test_generation_past_a_declared_length_uses_a_route_that_was_compared_there() -> None:
    """This architecture scales its queries past the original context of its rotary positions; equations do not."""
    model = load_model(random_model("ministral3"), backend="bridge", dtype=torch.float64)
    for start in (BOUNDARY - 3, BOUNDARY + 16):  # across it and behind it, the engine unused before
        ids = torch.randint(0, model.d_vocab, (start,), generator=torch.Generator().manual_seed(5)).tolist()
        own = list(ids)
        for _ in range(8):
            own.append(int(model.run(own).logits[0, -1].argmax()))
        assert model.generate_ids(ids, max_new_tokens=8) == own[start:]
    step = engine.incremental_decoder(model)
    for cut in (slice(0, 40), slice(40, 41), slice(41, None)):
        logits = step(torch.tensor([ids[cut]]))
    assert largest(logits[0, -1] - own_logits(model, ids)[0, -1]) < floor(model)


def test_equations_that_let_sequences_see_each_other_are_never_used(monkeypatch: pytest.MonkeyPatch) -> None:
    right = engine.TreeMasks.seen
    monkeypatch.setattr(engine.TreeMasks, "seen", lambda tree, window: right(tree, window) | tree.ancestors.any())
    model = load_model(tiny_hf("gpt2", dtype=torch.float64), dtype=torch.float64)
    assert not engine.can_pack(model, 16)


def test_packed_sequences_are_refused_while_hooks_are_on_the_model() -> None:
    model = tiny_model("gpt2", "auto")
    (row,) = engine.pack(SEQUENCES, 256)
    tree = engine.TreeMasks.of([row], model.device)
    embeddings = model.embed(torch.tensor([row.ids]))
    with model.tl_model.hooks(fwd_hooks=[("blocks.0.hook_resid_pre", lambda value, hook: value)]):
        assert not engine.can_pack(model, len(IDS))
        with pytest.raises(ValueError, match="hooks were added to the model while its sequences were being packed"):
            engine.encode(model, embeddings, tree=tree)


# ---- derivatives


def through_the_model(model: Model, embeddings: Tensor) -> Tensor:
    """Logits by TransformerLens' own forward pass, its embedding replaced."""

    def put(value: Tensor, hook: Any) -> Tensor:
        return embeddings

    with model.tl_model.hooks(fwd_hooks=[("hook_embed", put)]):
        logits: Tensor = model.tl_model(torch.tensor([IDS]))
    return logits


def test_gradients_flow_through_forward(model: Model) -> None:
    weights = torch.randn(1, len(IDS), model.d_vocab, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    found = []
    for run in (model.forward, lambda x: through_the_model(model, x)):
        leaf = rows(model).requires_grad_(True)
        found.append(torch.autograd.grad((run(leaf) * weights).sum(), leaf)[0])
    assert largest(found[0] - found[1]) < max(1e-9, floor(model)) * largest(found[1])


def test_forward_mode_is_the_transpose_of_reverse_mode(model: Model) -> None:
    generator = torch.Generator().manual_seed(2)
    embeddings = rows(model)
    change = torch.randn(embeddings.shape, dtype=torch.float64, generator=generator)
    _, moved = torch.func.jvp(model.forward, (embeddings,), (change,))
    weights = torch.randn(moved.shape, dtype=torch.float64, generator=generator)
    leaf = embeddings.clone().requires_grad_(True)
    (back,) = torch.autograd.grad((model.forward(leaf) * weights).sum(), leaf)
    assert float((moved * weights).sum().detach()) == pytest.approx(
        float((back * change).sum()), rel=max(1e-6, floor(model))
    )


def test_slopes_are_those_of_autograd(model: Model) -> None:
    embeddings, first = rows(model), 6
    generator = torch.Generator().manual_seed(3)
    slope = engine.jacobian_at(model, embeddings, first)
    leaf = embeddings.clone().requires_grad_(True)
    hidden = engine.encode(model, leaf, positions=slice(first, None))[0]
    assert largest(slope.hidden[0] - hidden.detach()) < floor(model)
    at = torch.tensor([7, 8, 11])
    seeds = torch.randn(3, hidden.shape[-1], dtype=torch.float64, generator=generator)
    pulled = slope.vjp(seeds[None], at)[0]
    each = [
        torch.autograd.grad(hidden[p - first], leaf, s, retain_graph=True)[0][0] for p, s in zip(at, seeds, strict=True)
    ]
    wanted = torch.stack(each)
    assert pulled.shape == (3, 12, model.d_model)
    assert largest(pulled - wanted[:, :12]) < max(1e-9, floor(model)) * largest(wanted)
    assert largest(wanted[:, 12:]) == 0
    at = torch.tensor([0, 2, 5, 7])
    tangents = torch.randn(4, model.d_model, dtype=torch.float64, generator=generator)
    pushed = slope.jvp(tangents[None], at)[0]

    def one(place: Tensor, tangent: Tensor) -> Tensor:
        change = torch.zeros_like(embeddings)
        change[0, place] = tangent
        # twice reverse mode: another way to the same number than forward mode
        run = lambda x: engine.encode(model, x, positions=slice(first, None))[0]
        result: Tensor = torch.autograd.functional.jvp(run, embeddings, change)[1]
        return result

    wanted = torch.stack([one(place, tangent) for place, tangent in zip(at, tangents, strict=True)])
    assert largest(pushed - wanted) < max(1e-8, floor(model)) * largest(wanted)


def test_several_points_are_as_many_single_ones(model: Model) -> None:
    first, at = 6, torch.tensor([7, 12, 9])
    generator = torch.Generator().manual_seed(8)
    points = rows(model) * torch.tensor([0.3, 1.0, -0.7], dtype=torch.float64)[:, None, None]
    together = engine.jacobian_at(model, points, first)
    seeds = torch.randn(3, 3, together.hidden.shape[-1], dtype=torch.float64, generator=generator)
    tangents = torch.randn(3, 3, model.d_model, dtype=torch.float64, generator=generator)
    pulled, pushed = together.vjp(seeds, at), together.jvp(tangents, at - 5)
    assert largest(pulled[0] - pulled[1]) > 1e-3 * largest(pulled), "a derivative depends on its point"
    for number in range(3):
        only = slice(number, number + 1)
        alone = engine.jacobian_at(model, points[only], first)
        assert largest(together.hidden[only] - alone.hidden) < floor(model)
        for found, wanted in (
            (pulled[only], alone.vjp(seeds[only], at)),
            (pushed[only], alone.jvp(tangents[only], at - 5)),
        ):
            assert largest(found - wanted) < max(1e-9, floor(model)) * largest(wanted)


@pytest.mark.seconds
@pytest.mark.hooked
def test_plain_slopes_do_not_differ_from_autograd_in_float32() -> None:
    for family in ("gpt2", "llama", "gpt_neox"):
        model = tiny_model(family, "hooked")
        embeddings, at = rows(model), torch.arange(6, 16)
        seeds = torch.eye(model.d_model)[None, :10]
        slow = AutogradJacobian(lambda x, p, m=model: engine.encode(m, x, positions=p), model.frozen, embeddings, 6)
        fast, wanted = engine.jacobian_at(model, embeddings, 6).vjp(seeds, at), slow.vjp(seeds, at)
        assert largest(fast - wanted) < 1e-5 * largest(wanted)


def test_long_sequences_cross_the_blocks_of_queries() -> None:
    model = tiny_model("llama", dtype=torch.float64)
    ids = [i % 400 for i in range(7, 7 + 3 * 90, 3)]
    embeddings, at = rows(model, ids), torch.tensor([63, 64, 89])
    fast = engine.jacobian_at(model, embeddings, 60)
    slow = AutogradJacobian(lambda x, p: engine.encode(model, x, positions=p), model.frozen, embeddings, 60)
    seeds = torch.randn(1, 3, model.d_model, dtype=torch.float64, generator=torch.Generator().manual_seed(4))
    assert largest(fast.vjp(seeds, at) - slow.vjp(seeds, at)) < floor(model) * largest(slow.vjp(seeds, at))
    at = torch.tensor([3, 66, 88])
    assert largest(fast.jvp(seeds, at) - slow.jvp(seeds, at)) < max(1e-9, floor(model)) * largest(slow.jvp(seeds, at))


@pytest.mark.hooked
def test_positions_beyond_the_first_rotary_table() -> None:
    model = load_model(tiny_hf("llama", n_ctx=2100, n_layers=1), backend="hooked")
    ids = torch.randint(3, 400, (2080,), generator=torch.Generator().manual_seed(5)).tolist()
    with torch.no_grad():
        found = model.forward(rows(model, ids[:2079])[:, 2000:], prefix=model.prefix(rows(model, ids[:2000])))
        wanted = own_logits(model, ids)
    assert largest(found[0, -1] - wanted[0, 2078]) < 1e-5 * largest(wanted)


def from_config(**changes: Any) -> Model:
    """A random HookedTransformer of an unusual kind, in float64."""
    from transformer_lens import HookedTransformer, HookedTransformerConfig

    options: dict[str, Any] = {
        "n_layers": 2, "d_model": 16, "n_ctx": 64, "d_head": 8, "n_heads": 2, "d_vocab": 400, "act_fn": "gelu",
        "seed": 3, "init_weights": True, "dtype": torch.float64, "initializer_range": 0.4,
    }  # fmt: skip
    inner = HookedTransformer(HookedTransformerConfig(**{**options, **changes}), move_to_device=False).eval()
    generator = torch.Generator().manual_seed(6)
    with torch.no_grad():
        for name, parameter in inner.named_parameters():
            if ".b" in name or name.endswith(".w"):  # biases and norm scales begin as constants
                parameter.add_(0.3 * torch.randn(parameter.shape, dtype=torch.float64, generator=generator))
    return load_model(inner)


UNUSUAL: dict[str, dict[str, Any]] = {
    "adjacent rotary pairs": {"positional_embedding_type": "rotary", "rotary_dim": 4, "rotary_adjacent_pairs": True},
    "parallel layers": {"parallel_attn_mlp": True},
    "gated, shared keys": {"gated_mlp": True, "n_key_value_heads": 1, "normalization_type": "RMS"},
    "windows": {"use_local_attn": True, "window_size": 5, "attn_types": ["local", "global"]},
    "windows at the end": {"use_local_attn": True, "window_size": 5, "attn_types": ["global", "local"]},
    "attention only": {"attn_only": True},
    "no norm": {"normalization_type": None, "initializer_range": 0.1},
    "folded norms": {"normalization_type": "LNPre"},
    "folded RMS norms": {"normalization_type": "RMSPre"},
    "other scale": {"use_attn_scale": False, "act_fn": "gelu_new"},
    "scale by layer": {"scale_attn_by_inverse_layer_idx": True, "act_fn": "relu"},
}
REFUSED: dict[str, dict[str, Any]] = {
    "alibi": {"positional_embedding_type": "alibi"},
    "soft caps": {"output_logits_soft_cap": 3.0, "attn_scores_soft_cap": 2.0},
    "shortformer": {"positional_embedding_type": "shortformer"},
    "solu": {"act_fn": "solu_ln"},
}


@pytest.mark.hooked
@pytest.mark.parametrize("kind", [*UNUSUAL, *REFUSED])
def test_unusual_models_too(kind: str) -> None:
    model = from_config(**{**UNUSUAL, **REFUSED}[kind])
    assert engine.decodes_in_blocks(model) == (kind not in REFUSED)
    embeddings, wanted = rows(model), own_logits(model)
    assert largest(model.forward(embeddings) - wanted) < floor(model)
    rest = model.forward(embeddings[:, 7:], positions=slice(2, 6), prefix=model.prefix(embeddings[:, :7]))
    assert largest(rest - wanted[:, 9:13]) < 1e-10
    slow = AutogradJacobian(lambda x, p: engine.encode(model, x, positions=p), model.frozen, embeddings, 6)
    fast = engine.jacobian_at(model, embeddings, 6)
    seeds = torch.randn(1, 4, model.d_model, dtype=torch.float64, generator=torch.Generator().manual_seed(7))
    for at in (torch.tensor([6, 9, 10, 15]), torch.tensor([8, 8, 12, 7])):
        assert largest(fast.vjp(seeds, at) - slow.vjp(seeds, at)) < 1e-9 * largest(slow.vjp(seeds, at))
    for at in (torch.tensor([0, 3, 5, 6]), torch.tensor([9, 2, 14, 11])):
        assert largest(fast.jvp(seeds, at) - slow.jvp(seeds, at)) < 1e-9 * largest(slow.jvp(seeds, at))


@pytest.mark.parametrize(("family", "matrices"), [("gpt2", 1), ("llama", 3)])
def test_projections_that_lie_in_one_matrix_are_one_product(family: str, matrices: int) -> None:
    model = tiny_model(family, "bridge", dtype=torch.float64)
    equations = Equations.of(model)
    assert equations is not None
    block, x = equations.block(1), rows(model)[0]
    assert len(block.w_in) == len(block.b_in) == matrices
    for number, part in enumerate(block.project(x, None)):
        weight, bias = (model.weight(f"{kind}_{'QKV'[number]}", 1, grouped=True) for kind in "Wb")
        assert largest(part - (x @ weight + bias[:, None])) < 1e-12
    in_memory = {weight.untyped_storage().data_ptr() for weight in model.tl_model.parameters()}
    assert {weight.untyped_storage().data_ptr() for weight in block.w_in} <= in_memory, "nothing is copied"


@pytest.mark.hooked
@pytest.mark.parametrize("family", ["gpt2", "llama"])
def test_processed_weights_take_the_fast_way(family: str) -> None:
    model = tiny_model(family, "hooked", processed=True, dtype=torch.float64)
    assert engine.decodes_in_blocks(model)
    assert largest(model.forward(rows(model)) - own_logits(model)) < 1e-10


# ---- what stays as it was


def test_flags_and_gradients_of_the_users_model_are_left_alone(model: Model) -> None:
    parameters = list(model.tl_model.parameters())
    flags = [parameter.requires_grad for parameter in parameters]
    parameters[0].requires_grad_(not flags[0])
    try:
        slope = engine.jacobian_at(model, rows(model), 10)
        slope.vjp(torch.ones(1, 1, slope.hidden.shape[-1], dtype=torch.float64), torch.tensor([12]))
        slope.jvp(torch.ones(1, 1, model.d_model, dtype=torch.float64), torch.tensor([3]))
        assert [p.requires_grad for p in parameters] == [not flags[0], *flags[1:]]
        assert all(p.grad is None for p in parameters)
    finally:
        parameters[0].requires_grad_(flags[0])


@pytest.fixture
def edited(request: pytest.FixtureRequest) -> Model:
    """A model that a user has put permanent hooks on: one at a fixed position, one on the embedding."""
    model = load_model(tiny_hf(request.param[0], dtype=torch.float64), backend=request.param[1], dtype=torch.float64)

    def at_a_position(value: Tensor, hook: Any) -> Tensor:
        value = value.clone()
        value[:, 4] = value[:, 4] * 0.5
        return value

    model.forward(rows(model))  # the fast way is already known when the hooks come
    model.tl_model.hook_dict["blocks.1.hook_resid_pre"].add_hook(at_a_position, is_permanent=True)
    model.tl_model.hook_dict["hook_embed"].add_hook(lambda value, hook: value * 1.5, is_permanent=True)
    return model


@pytest.mark.parametrize(
    "edited", [pytest.param(("llama", "hooked"), marks=pytest.mark.hooked), ("gpt2", "bridge")], indirect=True
)
def test_permanent_hooks_stay_in_force(edited: Model) -> None:
    wanted, embeddings = own_logits(edited), rows(edited)
    assert engine.has_hooks(edited.tl_model)
    assert largest(edited.forward(embeddings) - wanted) < 1e-10
    # with a prefix the hook still sees position 4 of the whole sequence
    rest = edited.forward(embeddings[:, 8:], positions=slice(3, 6), prefix=edited.prefix(embeddings[:, :8]))
    assert largest(rest - wanted[:, 11:14]) < 1e-10
    slope = engine.jacobian_at(edited, embeddings, 10)
    leaf = embeddings.clone().requires_grad_(True)
    hidden = engine.encode(edited, leaf)[0, 12]
    seed = torch.ones(hidden.shape, dtype=torch.float64)
    (wanted_gradient,) = torch.autograd.grad(hidden, leaf, seed)
    assert largest(slope.vjp(seed[None, None], torch.tensor([12]))[0, 0] - wanted_gradient[0, :13]) < 1e-10


@pytest.mark.hooked
def test_a_hook_that_comes_between_is_noticed() -> None:
    model = load_model(tiny_hf("llama", dtype=torch.float64), backend="hooked", dtype=torch.float64)
    embeddings = rows(model)
    start, before = model.prefix(embeddings[:, :8]), model.forward(embeddings)
    model.tl_model.hook_dict["blocks.0.hook_mlp_out"].add_hook(lambda value, hook: 0 * value)
    with pytest.raises(ValueError, match="before hooks were added"):
        model.forward(embeddings[:, 8:], prefix=start)
    assert largest(model.forward(embeddings) - before) > 1e-3
    model.tl_model.reset_hooks()
    assert largest(model.forward(embeddings) - before) == 0


@pytest.mark.hooked
def test_an_edit_of_weights_takes_effect_at_once() -> None:
    model = load_model(tiny_hf("gpt2", dtype=torch.float64), backend="hooked", dtype=torch.float64)
    before = model.forward(rows(model))
    model.tl_model.blocks[1].mlp.W_out.data.mul_(0.5)
    assert largest(model.forward(rows(model)) - own_logits(model)) < 1e-10
    assert largest(model.forward(rows(model)) - before) > 1e-3


@pytest.mark.hooked
def test_a_changed_module_takes_the_models_own_way(monkeypatch: pytest.MonkeyPatch) -> None:
    model = load_model(tiny_hf("gpt2", dtype=torch.float64), backend="hooked", dtype=torch.float64)
    assert engine.decodes_in_blocks(model)
    mlp = model.tl_model.blocks[0].mlp
    monkeypatch.setattr(mlp, "forward", lambda x: 3 * x)
    assert not engine.decodes_in_blocks(model)
    assert largest(model.forward(rows(model)) - own_logits(model)) < 1e-10


def test_a_bridge_that_is_asked_for_states_computes_no_logits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Reading the weights of a vocabulary of 262,144 for one row takes as long as all layers."""
    model = tiny_model("gemma2", "bridge")
    ids, unembedded = torch.tensor([[5, 17, 300, 44]]), list[Any]()
    usual = torch.nn.Linear.forward

    def counted(own: Any, x: Tensor) -> Tensor:
        if own.out_features == model.d_vocab:
            unembedded.append(x)
        return usual(own, x)

    monkeypatch.setattr(torch.nn.Linear, "forward", counted)
    hidden = modules.encode(model, model.embed(ids))
    past = modules.keys_values(model, model.embed(ids))
    assert (len(past), len(unembedded)) == (model.n_layers, 0)
    torch.testing.assert_close(modules.decode(model, hidden), model.run(ids).logits)
    assert len(unembedded) == 2


@pytest.mark.hooked
def test_wrong_equations_are_never_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("interp_widgets.models.engine.equations._activation", lambda mlp: torch.relu)
    model = load_model(tiny_hf("gpt2", dtype=torch.float64), backend="hooked", dtype=torch.float64)
    assert not engine.decodes_in_blocks(model)
    assert largest(model.forward(rows(model)) - own_logits(model)) < 1e-10


def test_mean_embedding(model: Model) -> None:
    every = torch.cat(
        [model.token_embeddings(range(i, min(i + 100, model.d_vocab))) for i in range(0, model.d_vocab, 100)]
    )
    assert largest(engine.mean_embedding(model) - every.mean(0)) < 1e-12


@pytest.mark.parametrize(
    ("shape", "message"),
    [
        ((1, 4, 31), "shape \\(batch, tokens, 32\\)"),
        ((4, 32), "shape \\(batch, tokens, 32\\)"),
        ((1, 0, 32), "at least one token"),
        ((1, 129, 32), "129 tokens do not fit the model's context of 128"),
    ],
)
def test_wrong_shapes_are_refused(shape: tuple[int, ...], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        tiny_model("llama").forward(torch.zeros(shape))


def test_a_prefix_belongs_to_one_sequence() -> None:
    model = tiny_model("llama")
    with pytest.raises(ValueError, match="batch 1, got 2"):
        model.prefix(torch.zeros(2, 3, 32))
    start = model.prefix(rows(model)[:, :5])
    with pytest.raises(ValueError, match=r"length must be in 0\.\.5 for this prefix, got 6"):
        start.first(6)
