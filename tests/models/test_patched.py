"""Resuming from a layer with values replaced gives what a whole pass with the same edits gives, on both backends."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import Any

import pytest
import torch
from torch import Tensor

from interp_widgets.models import Model, engine, load_model
from interp_widgets.models.engine import Trace, modules, patched, trace
from interp_widgets.models.engine.routes import checked_routes
from interp_widgets.models.patching import HEAD_INPUTS, PassPatch, Patch, as_text_positions, patched_passes
from interp_widgets.models.stopping import stopping
from tests.architectures.models import random_model
from tests.models.mixtures import tiny_mixture
from tests.models.tiny import HALF_SEED, tiny_hf, tiny_model
from tests.tolerances import limit

IDS = [5, 17, 300, 44, 8, 261, 99, 30, 31, 7]
LAST = len(IDS) - 1
HOOKED = pytest.mark.hooked
MODELS = [
    *(pytest.param((name, "hooked"), marks=HOOKED) for name in ("gpt2", "llama", "gpt_neox", "qwen3")),
    *((name, "bridge") for name in ("gpt2", "llama", "gpt_neox", "gemma2")),
    *(pytest.param(place, marks=HOOKED) for place in (("gpt2", "hooked", "2 routes"), ("llama", "hooked", "3 routes"))),
]
HOOKS = {
    "resid": "hook_resid_pre",
    "attn": "hook_attn_out",
    "mlp": "hook_mlp_out",
    "head": "attn.hook_z",
    "neuron": "mlp.hook_post",
    "q": "attn.hook_q",
    "k": "attn.hook_k",
    "v": "attn.hook_v",
    "pattern": "attn.hook_pattern",
}


@pytest.fixture(params=MODELS, ids="-".join)
def model(request: pytest.FixtureRequest) -> Model:
    name, backend, *routes = request.param
    if not routes:
        return tiny_model(name, backend, dtype=torch.float64)
    return tiny_mixture(name, backend, int(routes[0][0]), dtype=torch.float64)


def embeddings(model: Model, ids: list[int] = IDS) -> Tensor:
    return model.token_embeddings(ids)[None]


def largest(x: Tensor) -> float:
    return float(x.detach().abs().max())


def floor(model: Model) -> float:
    """Largest difference by rounding, of logits that grow to some tens."""
    return limit(model, single=2e-5)


def random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def width(model: Model, part: str) -> int:
    heads = dict.fromkeys(("head", "q", "k", "v"), model.d_head)
    return {**heads, "neuron": 1, "pattern": len(IDS)}.get(part, model.d_model)


# ---- the same by a whole pass per cell


def edit_of(patch: Patch, row: int, n_layers: int) -> tuple[str, Callable[[Tensor], Tensor]]:
    """One row of a patch as an edit of a hook of the whole model."""
    at, new = int(patch.positions[row]), patch.values[row]
    index = None if patch.index is None else int(patch.index[row])
    last = patch.site == "resid" and patch.layer == n_layers
    name = f"blocks.{n_layers - 1}.hook_resid_post" if last else f"blocks.{patch.layer}.{HOOKS[patch.site]}"

    def edit(value: Tensor) -> Tensor:
        value = value.clone()
        if index is None:
            value[0, at] = new
        elif patch.site == "pattern":
            value[0, index, at] = new
        else:
            value[0, at, index] = new[0] if patch.site == "neuron" else new
        return value

    return name, edit


def by_whole_passes(model: Model, patches: list[Patch], cells: int, ids: list[int] = IDS) -> Tensor:
    """(cells, d_vocab) logits of the last position."""
    rows = []
    for cell in range(cells):
        edits: dict[str, Callable[[Tensor], Tensor]] = {}
        for patch in patches:
            for row in (patch.cells == cell).nonzero()[:, 0].tolist():
                name, edit = edit_of(patch, row, model.n_layers)
                before = edits.get(name)
                edits[name] = edit if before is None else lambda x, f=before, g=edit: g(f(x))
        rows.append(model.run(ids, edit=edits).logits[0, -1])
    return torch.stack(rows)


def resumed(model: Model, clean: Trace, patches: list[Patch], cells: int, **options: Any) -> Tensor:
    return engine.decode(model, patched(model, clean, patches, cells, **options))


def every_place(model: Model, part: str, layer: int) -> Patch:
    """One cell per position, one row each."""
    at = torch.arange(len(IDS))
    by_head = {"k": at % model.n_kv_heads, "v": at % model.n_kv_heads}
    by_head |= dict.fromkeys(("head", "q", "pattern"), at % model.n_heads)
    index = {**by_head, "neuron": 3 * at}.get(part)
    return Patch(part, layer, random(len(IDS), width(model, part), seed=layer), at, at, index)  # type: ignore[arg-type]


@pytest.mark.parametrize("n_bos", [0, 1])
def test_maps_count_the_bos_and_passes_count_the_text(n_bos: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A patch of a map and one of passes change the same row, which they call by two numbers where there is a BOS."""
    model = tiny_model("gpt2", "bridge", dtype=torch.float64)
    monkeypatch.setattr(model, "bos_token_id", 2)
    ids = [2] * n_bos + IDS
    at, value = torch.tensor([4]), random(1, model.d_model)
    clean = trace(model, embeddings(model, ids))
    (wanted,) = resumed(model, clean, [Patch("mlp", 1, value, at, torch.tensor([0]))], 1)

    def in_passes(text_positions: Tensor) -> Tensor:
        with patched_passes(model, [PassPatch("mlp", 1, value, text_positions)]):
            return model.run(ids).logits[0, -1]

    assert largest(in_passes(as_text_positions(at, n_bos)) - wanted) < floor(model) * largest(wanted)
    assert (largest(in_passes(at) - wanted) > 1e-3) == bool(n_bos)


@pytest.mark.parametrize("part", ["resid", "attn", "mlp", "head", "neuron", "q", "k", "v", "pattern"])
def test_one_row_per_cell_equals_whole_passes(model: Model, part: str) -> None:
    clean = trace(model, embeddings(model), neurons=range(model.n_layers), sites=HEAD_INPUTS)
    for layer in range(model.n_layers + (part == "resid")):
        patch = every_place(model, part, layer)
        wanted = by_whole_passes(model, [patch], len(IDS))
        assert largest(resumed(model, clean, [patch], len(IDS)) - wanted) < floor(model) * max(1, largest(wanted))
        assert largest(wanted[LAST] - wanted[0]) > 1e-3


def test_the_trace_holds_the_models_values(model: Model) -> None:
    clean = trace(model, embeddings(model), neurons=(1,), sites=HEAD_INPUTS)
    names = {part: f"blocks.1.{hook}" for part, hook in HOOKS.items()}
    run = model.run(IDS, capture=names.values())
    for part, name in names.items():
        value = clean.value(part, 1)  # type: ignore[arg-type]
        found = value[..., 0] if part == "neuron" else value.transpose(1, 2) if part == "pattern" else value
        assert largest(found - run.activations[name]) < floor(model) * 10
    assert largest(engine.decode(model, clean.hidden) - run.logits[:, -1]) < floor(model) * 10


def test_many_patches_in_one_cell(model: Model) -> None:
    """Rows of several layers, parts and positions: windows, whole streams, patches behind patches."""
    clean = trace(model, embeddings(model), neurons=range(model.n_layers), sites=HEAD_INPUTS)
    count, d = len(IDS), model.d_model
    at, first = torch.arange(count), torch.zeros(count, dtype=torch.long)
    patches = [
        Patch("resid", 0, random(count, d, seed=1), at, first),  # cell 0: a whole other stream
        Patch("mlp", 1, random(1, d, seed=2), at[3:4], first[:1]),
        Patch("mlp", 0, random(3, d, seed=3), at[2:5], first[:3] + 1),  # cell 1: windows
        Patch("mlp", 1, random(2, d, seed=4), at[1:3], first[:2] + 1),
        Patch("attn", 1, random(2, d, seed=5), at[2:4], first[:2] + 1),
        Patch("resid", 2, random(1, d, seed=6), at[6:7], first[:1] + 1),
        Patch("head", 1, torch.zeros(count, model.d_head), at, first + 2, first + 1),  # cell 2: a head everywhere
        Patch("attn", 2, random(2, d, seed=7), at[-2:], first[:2] + 3),  # cell 3: the last layer only
        Patch("neuron", 2, random(1, 1, seed=8), at[-1:], first[:1] + 3, first[:1] + 5),
        Patch("resid", 1, random(2, d, seed=9), at[4:6], first[:2] + 4),  # cell 4: two entries, and the same row twice
        Patch("resid", 1, random(1, d, seed=10), at[7:8], first[:1] + 4),
        Patch("resid", 3, random(1, d, seed=11), at[-1:], first[:1] + 5),  # cell 5: what the final norm reads
        Patch("resid", 1, random(1, d, seed=12), at[3:4], first[:1] + 6),  # cell 6: inside of attention, a head behind
        Patch("k", 1, random(2, model.d_head, seed=13), at[3:5], first[:2] + 6, first[:2] + 1),
        Patch("q", 1, random(1, model.d_head, seed=14), at[-1:], first[:1] + 6, first[:1]),
        Patch("pattern", 1, random(3, count, seed=15), at[-3:], first[:3] + 6, first[:3] + 2),
        Patch("head", 1, random(1, model.d_head, seed=16), at[-2:-1], first[:1] + 6, first[:1] + 2),
        Patch("v", 2, random(1, model.d_head, seed=17), at[4:5], first[:1] + 6, first[:1] + 1),
        Patch("pattern", 2, random(1, count, seed=18), at[-1:], first[:1] + 7, first[:1] + 3),  # cell 7: the last layer
    ]
    wanted = by_whole_passes(model, patches, 9)
    found = resumed(model, clean, patches, 9)  # cell 8 has none
    assert largest(found - wanted) < 10 * floor(model) * max(1, largest(wanted))


LONG = [3 + 7 * i % 390 for i in range(40)]


@pytest.mark.parametrize("places", [[1, 3, 9], [26, 30, 38], [38], [39]], ids=str)
@pytest.mark.parametrize("kind", [pytest.param(name, marks=HOOKED) for name in ("gpt2", "llama", "windows")])
def test_few_and_many_positions_behind_a_long_prefix(kind: str, places: list[int]) -> None:
    """Keys and values before the first patch are copied for long rests and shared for short ones."""
    if kind == "windows":
        from tests.models.test_engine import UNUSUAL, from_config

        model = from_config(**UNUSUAL[kind])
    else:
        model = tiny_model(kind, "hooked", dtype=torch.float64)
    clean = trace(model, embeddings(model, LONG))
    cell, at = torch.arange(len(places)), torch.tensor(places)
    for patch in (
        Patch("mlp", 0, random(len(places), model.d_model), at, cell),
        Patch("attn", 1, random(len(places), model.d_model), at, cell),
    ):
        found = resumed(model, clean, [patch], len(places))
        wanted = by_whole_passes(model, [patch], len(places), LONG)
        assert largest(found - wanted) < 1e-10 * max(1, largest(wanted))


def test_several_sequences_share_one_pass(model: Model) -> None:
    other = [*IDS[:2], 77, 120, *IDS[4:]]
    both = torch.cat([embeddings(model), embeddings(model, other)])
    clean = trace(model, both, neurons=(1,))
    cell = torch.arange(6)
    patch = Patch("mlp", 1, random(6, model.d_model), torch.tensor([3, 5, 9, 3, 5, 9]), cell)
    found = resumed(model, clean, [patch], 6, sequence=torch.tensor([0, 0, 0, 1, 1, 1]))
    wanted = by_whole_passes(model, [patch], 3)
    assert largest(found[:3] - wanted) < floor(model) * max(1, largest(wanted))
    wanted = by_whole_passes(model, [patch], 6, other)[3:]
    assert largest(found[3:] - wanted) < floor(model) * max(1, largest(wanted))


def test_the_mlp_alone_reads_another_attention(model: Model) -> None:
    """By the definition: the MLP of the stream before the block plus the rows, everything else as it was."""
    clean, layer = trace(model, embeddings(model)), 1
    at = torch.arange(len(IDS))
    rows = random(len(IDS), model.d_model)
    hidden = patched(model, clean, [Patch("attn_to_mlp", layer, rows, at, at)], len(IDS))
    if model.capabilities.parallel_blocks:
        assert torch.equal(hidden, clean.hidden.expand_as(hidden))
        return
    found = engine.decode(model, hidden)
    # the MLP's output for that input, read off a whole pass in which attention itself is replaced
    for p in (2, LAST):
        edit = dict([edit_of(Patch("attn", layer, rows, at, at), p, model.n_layers)])
        mlp = f"blocks.{layer}.hook_mlp_out"
        out = model.run(IDS, edit=edit, capture=mlp).activations[mlp][0, p]
        wanted = by_whole_passes(model, [Patch("mlp", layer, out[None], at[p : p + 1], at[:1])], 1)
        assert largest(found[p] - wanted[0]) < 10 * floor(model) * max(1, largest(wanted))


# ---- nothing changed, nothing computed


def test_what_is_there_anyway_changes_nothing_at_all(model: Model) -> None:
    clean = trace(model, embeddings(model), neurons=(1,))
    at = torch.arange(len(IDS))
    for part in ("resid", "attn", "mlp", "attn_to_mlp", "head", "neuron"):
        index = torch.ones_like(at) if part in ("head", "neuron") else None
        value = clean.value(part, 1)[0]  # type: ignore[arg-type]
        rows = value[at] if index is None else value[at, index]
        found = patched(model, clean, [Patch(part, 1, rows, at, at, index)], len(IDS))  # type: ignore[arg-type]
        assert torch.equal(found, clean.hidden.expand_as(found))


def test_the_last_layer_matters_at_the_last_position_only(model: Model) -> None:
    clean = trace(model, embeddings(model))
    for part in ("attn", "mlp"):
        found = patched(model, clean, [every_place(model, part, model.n_layers - 1)], len(IDS))
        assert torch.equal(found[:-1], clean.hidden.expand_as(found[:-1]))
        assert largest(found[-1] - clean.hidden[0]) > 1e-3


def test_check_is_heard_between_layers(model: Model) -> None:
    class Stop(Exception):
        pass

    calls: list[int] = []

    def check() -> None:
        calls.append(1)
        if len(calls) == 2:
            raise Stop

    clean = trace(model, embeddings(model))
    before = engine.has_hooks(model.tl_model)
    with pytest.raises(Stop), stopping(check):
        patched(model, clean, [every_place(model, "mlp", 0)], len(IDS))
    assert engine.has_hooks(model.tl_model) == before


@HOOKED
def test_stale_keys_and_values_would_be_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The comparison above finds a reuse that goes too far."""
    from interp_widgets.models.engine.equations import Block

    model = tiny_model("llama", "hooked", dtype=torch.float64)
    clean, patch = trace(model, embeddings(model)), every_place(model, "mlp", 0)
    wanted = by_whole_passes(model, [patch], len(IDS))
    right = Block.attend

    def stale(block: Block, query: Tensor, key: Tensor, value: Tensor, **options: Any) -> Tensor:
        old = [part.expand_as(key) for part in clean.projected[block.index][1:]]
        return right(block, query, *old, **options)

    assert largest(resumed(model, clean, [patch], len(IDS)) - wanted) < 1e-10
    monkeypatch.setattr(Block, "attend", stale)
    assert largest(resumed(model, clean, [patch], len(IDS)) - wanted) > 1e-3


# ---- hooks of the user


@pytest.mark.parametrize("backend", [pytest.param("hooked", marks=HOOKED), "bridge"])
def test_hooks_of_the_user_stay_in_force(backend: str) -> None:
    model = load_model(tiny_hf("llama", dtype=torch.float64), backend=backend, dtype=torch.float64)
    before = trace(model, embeddings(model))

    def mixing(value: Tensor, hook: Any) -> Tensor:
        return value + 0.3 * value.flip(1)  # positions see later ones

    model.tl_model.hook_dict["blocks.2.hook_resid_post"].add_hook(mixing, is_permanent=True)
    patch = every_place(model, "mlp", 2)
    with pytest.raises(ValueError, match="make it again"):
        patched(model, before, [patch], len(IDS))
    clean = trace(model, embeddings(model))
    wanted = by_whole_passes(model, [patch], len(IDS))
    found = resumed(model, clean, [patch], len(IDS))
    assert largest(found - wanted) < floor(model) * max(1, largest(wanted))
    assert largest(found[0] - found[1]) > 1e-3  # not cut short: the first position matters through the user's hook


@pytest.mark.seconds
@HOOKED
def test_blocks_of_unusual_models_start_at_the_layer() -> None:
    from tests.models.test_engine import REFUSED, from_config

    for kind in REFUSED:
        model = from_config(**REFUSED[kind])
        clean = trace(model, embeddings(model), neurons=(0, 1))
        for part in ("resid", "attn", "mlp", "head", "neuron"):
            index = {"head": torch.arange(len(IDS)) % 2, "neuron": torch.arange(len(IDS))}.get(part)
            at = torch.arange(len(IDS))
            patch = Patch(part, 1, random(len(IDS), width(model, part)), at, at, index)  # type: ignore[arg-type]
            wanted = by_whole_passes(model, [patch], len(IDS))
            assert largest(resumed(model, clean, [patch], len(IDS)) - wanted) < 1e-10, (kind, part)


def test_half_precision_agrees_roughly() -> None:
    model, double = (tiny_model("llama", dtype=kind, seed=HALF_SEED) for kind in (torch.bfloat16, torch.float64))
    patch = every_place(model, "mlp", 1)
    found = resumed(model, trace(model, embeddings(model)), [patch], len(IDS))
    wanted = resumed(double, trace(double, embeddings(double)), [patch], len(IDS))
    assert found.dtype == torch.bfloat16
    assert largest(found.double() - wanted) < 0.1 * largest(wanted)


# ---- a bridge that the engine has no equations of

SMALL = [number % 60 for number in IDS]


@contextmanager
def counted(model: Model) -> Iterator[list[list[int]]]:
    """The positions that each block computes in every pass."""
    blocks = [block.original_component for block in model.tl_model.blocks]
    seen: list[list[int]] = [[] for _ in blocks]
    own = type(blocks[0]).forward

    @wraps(own)
    def counting(block: Any, hidden_states: Tensor, *inputs: Any, **keywords: Any) -> Any:
        seen[blocks.index(block)].append(hidden_states.shape[1])
        return own(block, hidden_states, *inputs, **keywords)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(type(blocks[0]), "forward", counting)
        yield seen


def counts_of(model: Model, patch: Patch) -> list[list[int]]:
    """The positions that each block computes in one patched run, after a trace."""
    with counted(model) as seen:
        clean = trace(model, embeddings(model, SMALL))
        patched(model, clean, [patch], 1)  # keys and values too
        for numbers in seen:
            numbers.clear()
        patched(model, clean, [patch], 1)
    return seen


def at_seven(model: Model, layer: int) -> Patch:
    return Patch("resid", layer, torch.ones(1, model.d_model), torch.tensor([7]), torch.tensor([0]))


@pytest.mark.parametrize("name", ["gemma2", "gemma3"])
def test_a_bridge_starts_at_the_first_patched_layer_and_position(name: str) -> None:
    model = load_model(random_model(name), backend="bridge")
    layer = model.n_layers - 2
    assert counts_of(model, at_seven(model, layer + 1)) == [[]] * (layer + 1) + [[len(IDS) - 7]]
    assert counts_of(model, at_seven(model, layer)) == [[]] * layer + [[len(IDS) - 7]] * 2
    assert all("forward" not in vars(block) for block in model.tl_model.blocks)


def test_blocks_that_return_more_than_the_stream_run_from_the_first_on() -> None:
    model = load_model(random_model("bloom"), backend="bridge")
    assert counts_of(model, at_seven(model, 1)) == [[len(IDS) - 7]] * model.n_layers


def test_a_start_that_gives_other_numbers_is_not_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    """The comparison is what stands between another cache and wrong maps."""
    own = modules.keys_values
    model = load_model(random_model("gemma3"), backend="bridge")
    checked_routes(model, len(SMALL))
    monkeypatch.setattr(modules, "keys_values", lambda *given: [(key, value * 1.1) for key, value in own(*given)])
    clean = trace(model, embeddings(model, SMALL))
    assert not clean.native
    assert clean.computed(7) == len(IDS)
    monkeypatch.undo()
    assert trace(load_model(random_model("gemma3"), backend="bridge"), clean.embeddings).computed(7) == len(IDS) - 7


def test_an_error_in_a_started_run_leaves_the_blocks_as_they_were() -> None:
    model = load_model(random_model("gemma3"), backend="bridge")
    clean = trace(model, embeddings(model, SMALL))
    patch = Patch("mlp", model.n_layers - 1, torch.ones(1, 3), torch.tensor([LAST]), torch.tensor([0]))
    with pytest.raises(RuntimeError):
        modules.patched(model, clean, [patch], torch.tensor([0]), split=True, start=modules.Start(Tensor))
    assert all("forward" not in vars(block) for block in model.tl_model.blocks)
    assert model.run(SMALL).logits.isfinite().all()
