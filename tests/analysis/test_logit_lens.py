"""The lens against naive loops in float64, against TransformerLens, and on what the demo models were taught."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from interp_widgets.analysis._core.result import Result
from interp_widgets.analysis.logit_lens import (
    LogitLensResult,
    Translators,
    logit_lens,
    logit_lens_cost,
    save_translators,
)
from interp_widgets.analysis.logit_lens.online_softmax import Readings
from interp_widgets.data.world import fact_prompts
from interp_widgets.models import load_model
from interp_widgets.models.threads import threads_kept
from tests.models.tiny import HALF_SEED, tiny_folder, tiny_model
from tests.shipped import demo_pair
from tests.tolerances import limit

IDS = [5, 17, 300, 44, 8, 261, 99, 30]
TARGET = 77
FAMILIES = [(name, "hooked") for name in ("gpt2", "llama", "gpt_neox")] + [
    (name, "bridge") for name in ("gpt2", "llama", "gpt_neox", "gemma2")
]
Array = NDArray[Any]


@pytest.fixture(autouse=True, scope="module")
def one_thread() -> Iterator[None]:
    """Tiny models run faster on one thread, and far faster where other programs use the cores."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(params=FAMILIES, ids="-".join)
def name(request: pytest.FixtureRequest) -> tuple[str, str]:
    return request.param


def rows_of_logits(model: Any, ids: list[int]) -> Array:
    """(layers + 1, positions, vocabulary) the model's own logits with its last residual stream replaced by each."""
    hooks = [f"blocks.{layer}.hook_resid_pre" for layer in range(model.n_layers)]
    last = f"blocks.{model.n_layers - 1}.hook_resid_post"
    streams = model.run(ids, capture=[*hooks, last]).activations
    rows = []
    for hook in [*hooks, last]:
        run = model.run(ids, edit={last: lambda _, stream=streams[hook]: stream})
        rows.append(run.logits[0].double().numpy())
    return np.stack(rows)


def naive(logits: Array, target: int) -> dict[str, Array]:
    """Every number of the lens, one cell at a time."""
    rows, positions, vocab = logits.shape
    keys = ("entropy", "kl", "rank", "target", "final", "sure")
    found: dict[str, Any] = {key: np.zeros((rows, positions)) for key in keys}
    found["ids"] = np.zeros((rows, positions, vocab), dtype=int)
    found["p"] = np.zeros((rows, positions, vocab))
    for t in range(positions):
        final = log_softmax(logits[-1, t])
        word = int(logits[-1, t].argmax())
        for row in range(rows):
            log_p = log_softmax(logits[row, t])
            p = np.exp(log_p)
            found["entropy"][row, t] = -sum(p * log_p)
            found["kl"][row, t] = sum(p * (log_p - final))
            found["rank"][row, t] = sum(1 for x in logits[row, t] if x > logits[row, t, target])
            found["final"][row, t] = sum(1 for x in logits[row, t] if x > logits[row, t, word])
            found["target"][row, t], found["sure"][row, t] = p[target], p[word]
            order = sorted(range(vocab), key=lambda i, p=p: (-p[i], i))
            found["ids"][row, t], found["p"][row, t] = order, p[order]
    return found


def log_softmax(x: Array) -> Array:
    return x - x.max() - np.log(np.exp(x - x.max()).sum())


# ---- the numbers


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_every_number_is_the_naive_loops(name: tuple[str, str], dtype: torch.dtype) -> None:
    model = tiny_model(*name, dtype=dtype)
    allowed = limit(model, single=1e-5)
    wanted = naive(rows_of_logits(model, IDS), TARGET)
    result = logit_lens(model, IDS, target=TARGET, top=10)
    assert result.provenance["in_blocks"] is True
    assert result.entropy.dtype == (np.float64 if dtype == torch.float64 else np.float32)
    assert np.abs(result.entropy - wanted["entropy"]).max() < 10 * allowed
    assert np.abs(result.kl - wanted["kl"]).max() < 10 * allowed
    assert np.abs(result.target_probability - wanted["target"]).max() < allowed
    assert np.abs(result.final_probability - wanted["sure"]).max() < allowed
    assert np.abs(result.top_probability - wanted["p"][..., :10]).max() < allowed
    assert result.target_rank is not None
    if dtype == torch.float64:
        assert np.array_equal(result.target_rank, wanted["rank"])
        assert np.array_equal(result.final_rank, wanted["final"])
        assert wanted["final"].max() > 50
        assert np.array_equal(result.top_ids, wanted["ids"][..., :10])
        assert wanted["rank"].max() > 50
    assert not result.kl[-1].any()
    assert (result.kl >= 0).all()
    assert result.kl[0].min() > 0.01


def test_the_last_row_is_the_models_own_output(name: tuple[str, str]) -> None:
    for dtype in (torch.float64, torch.float32):
        model = tiny_model(*name, dtype=dtype)
        allowed = limit(model, single=1e-5)
        own = model.run(IDS).logits[0].double().softmax(-1)
        result = logit_lens(model, IDS, target=TARGET, top=model.d_vocab)
        spread = np.zeros(own.shape)
        np.put_along_axis(spread, result.top_ids[-1], result.top_probability[-1].astype(float), axis=-1)
        assert np.abs(spread - own.numpy()).max() < allowed
        assert np.abs(result.target_probability[-1] - own[:, TARGET].numpy()).max() < allowed
        assert np.abs(spread - np.roll(own.numpy(), 1, axis=0)).max() > 1e-2  # the bound is not empty


@pytest.mark.parametrize("family", ["gpt2", "llama", "gpt_neox"])
@pytest.mark.parametrize("backend", ["hooked", "bridge"])
def test_transformer_lens_own_lens_gives_the_same(family: str, backend: str) -> None:
    # a copy of its own: on a bridge, run_with_cache leaves hooks behind
    model = load_model(tiny_folder(family), device="cpu", backend=backend, dtype=torch.float64)
    with torch.no_grad():
        _, cache = model.tl_model.run_with_cache(torch.tensor([IDS]))
        stack = cache.accumulated_resid(apply_ln=True)
        wanted = torch.cat([model.tl_model.unembed(row) for row in stack]).softmax(-1)
    result = logit_lens(model, IDS, target=TARGET)
    best = wanted.topk(10, dim=-1)
    assert np.array_equal(result.top_ids, best.indices.numpy())
    # the bridge's own norm is in float32 for LLaMA
    assert np.abs(result.top_probability - best.values.numpy()).max() < 1e-6
    assert np.abs(result.target_probability - wanted[..., TARGET].numpy()).max() < 1e-6


@pytest.mark.seconds
def test_blocks_of_any_size_give_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    from interp_widgets.analysis.logit_lens import lens

    model = tiny_model("llama", dtype=torch.float64)
    whole = logit_lens(model, IDS, target=300, top=25)
    for columns, cells in ((1, 4), (7, 9), (20, 1000), (419, 1)):
        monkeypatch.setattr(lens, "_block_size", lambda *_, size=(cells, columns): size)
        part = logit_lens(model, IDS, target=300, top=25)
        for field in ("top_ids", "target_rank", "final_rank"):
            assert np.array_equal(getattr(part, field), getattr(whole, field))
        for field in ("top_probability", "entropy", "kl", "target_probability"):
            assert np.allclose(getattr(part, field), getattr(whole, field), rtol=0, atol=limit(model))


def test_large_logits_neither_overflow_nor_vanish() -> None:
    """Sums are kept relative to the largest logit so far: it grows from block to block here."""
    from interp_widgets.analysis.logit_lens.online_softmax import Readings

    generator = torch.Generator().manual_seed(0)
    logits = 200 * torch.randn(5, 3, 400, generator=generator).double() + torch.linspace(0, 3000, 400).double()
    readings = Readings(5, 3, top=4, target=9, dtype=torch.float32, device=torch.device("cpu"))
    last = readings.followed[:, 0] = logits[:, -1].argmax(-1)
    readings.note_followed(slice(0, 5), slice(0, 3), 0, logits.float())
    for first in range(0, 400, 50):
        block = logits[..., first : first + 50].float()
        readings.add(slice(0, 5), slice(0, 3), first, block, block[:, -1])
    log_p = logits.float().double().log_softmax(-1)
    assert torch.allclose(readings.entropy(), -(log_p.exp() * log_p).sum(-1), atol=1e-4)
    kl = (log_p.exp() * (log_p - log_p[:, -1:])).sum(-1)
    assert torch.allclose(readings.kl(), kl, rtol=1e-5, atol=1e-3)
    assert kl[:, 0].min() > 100
    assert torch.equal(readings.above[..., 1], (logits.float() > logits.float()[..., 9:10]).sum(-1))
    own = logits.float().gather(-1, last[:, None, None].expand(-1, 3, -1))
    assert torch.equal(readings.above[..., 0], (logits.float() > own).sum(-1))


def test_equal_logits_share_a_rank_and_stand_by_id() -> None:
    model = load_model(_gpt2(vocab=60, width=16, layers=2))
    with torch.no_grad():
        table = model.weight("W_U")
        table[:, 40:44] = table[:, 3:4]  # five tokens with one and the same logit
    result = logit_lens(model, [1, 2, 3], target=42, top=60)
    first = logit_lens(model, [1, 2, 3], target=3, top=60)
    assert np.array_equal(result.target_rank, first.target_rank)
    for cell in result.top_ids.reshape(-1, 60):
        place = int(np.flatnonzero(cell == 3)[0])
        assert cell[place : place + 5].tolist() == [3, 40, 41, 42, 43]
    assert np.array_equal(np.sort(result.top_ids), np.broadcast_to(np.arange(60), result.top_ids.shape))
    at_target = np.take_along_axis(result.top_probability, result.target_rank[..., None], axis=-1)[..., 0]
    assert np.allclose(at_target, result.target_probability, rtol=1e-5)


def test_a_target_changes_nothing_else() -> None:
    """Equal logits in several blocks of the vocabulary: padding of a vocabulary often has one row many times."""
    model = load_model(_gpt2(vocab=3000, width=16, layers=2))
    with torch.no_grad():
        table = model.weight("W_U")
        table[:, [1500, 2600]] = table[:, 3:4].clone()
        table[:, [3, 1500, 2600]] *= 40  # first or last of all
    plain = logit_lens(model, list(range(10, 30)), top=1)
    assert 3 in plain.top_token
    assert not plain.final_rank[-1].any(), "of equal logits none counts"
    for target in (2600, 1500, 2999):
        found = logit_lens(model, list(range(10, 30)), target=target, top=1)
        for name in ("top_ids", "top_probability", "entropy", "kl", "final_rank", "commit_layer"):
            np.testing.assert_allclose(getattr(found, name), getattr(plain, name), rtol=1e-5, err_msg=name)


@pytest.mark.parametrize("backend", ["hooked", "bridge"])
def test_half_precision_is_read_in_float32(backend: str) -> None:
    model = tiny_model("llama", backend, dtype=torch.bfloat16, seed=HALF_SEED)
    result = logit_lens(model, IDS, target=TARGET)
    own = model.run(IDS).logits[0].float().softmax(-1)
    assert result.entropy.dtype == np.float32
    assert not result.final_rank[-1].any()
    assert ((result.final_rank == 0) >= (result.top_token == result.top_token[-1])).all()
    assert np.abs(result.target_probability[-1] - own[:, TARGET].numpy()).max() < 0.05
    values = result.top_probability[-1].ravel().copy()
    assert not np.array_equal(values, torch.from_numpy(values).bfloat16().float().numpy())


@pytest.mark.hooked
def test_a_processed_model_has_the_same_readings() -> None:
    raw = logit_lens(tiny_model("gpt2", "hooked", dtype=torch.float64), IDS, target=TARGET)
    folded = logit_lens(tiny_model("gpt2", "hooked", processed=True, dtype=torch.float64), IDS, target=TARGET)
    assert np.array_equal(raw.top_ids, folded.top_ids)
    for field in ("entropy", "kl", "target_probability"):
        assert np.abs(getattr(raw, field) - getattr(folded, field)).max() < 1e-4  # folding is done in float32


# ---- commit layer, interference, texts


def made(top: list[list[int]], rank: list[list[int]] | None = None, **changes: Any) -> LogitLensResult:
    """A result with the given top tokens (rows, positions) and ranks of the target."""
    ids = np.array(top)[..., None]
    shape = ids.shape[:2]
    fields: dict[str, Any] = {
        "tokens": ["a"] * shape[1], "ids": [1] * shape[1], "special": [False] * shape[1],
        "top_ids": ids, "top_probability": np.full(ids.shape, 0.5), "entropy": np.ones(shape), "kl": np.zeros(shape),
        "final_rank": np.zeros(shape, dtype=int), "final_probability": np.full(shape, 0.5),
        "names": {i: f"<{i}>" for i in range(10)},
    }  # fmt: skip
    if rank is not None:
        fields |= {"target": 7, "target_rank": np.array(rank), "target_probability": np.full(shape, 0.25)}
    return LogitLensResult(**(fields | changes))


def test_the_commit_layer_is_the_first_after_which_nothing_changes() -> None:
    result = made([[1, 2, 5, 9], [1, 5, 5, 5], [2, 5, 5, 4], [1, 5, 5, 5]])
    assert result.commit_layer.tolist() == [3, 1, 0, 3]
    for t, commit in enumerate(result.commit_layer):
        wanted = min(row for row in range(4) if all(result.top_token[k, t] == result.top_token[3, t]
                                                    for k in range(row, 4)))  # fmt: skip
        assert commit == wanted


def test_cells_that_repeat_the_token_just_read() -> None:
    result = made([[1, 1, 2], [3, 1, 1]])
    assert result.repeats.tolist() == [[True, True, False], [False, True, True]]
    assert made([[1, 1, 2], [3, 1, 1]], ids=[3, 2, 1]).repeats.tolist() == [[False, False, False], [True, False, True]]


def test_interference_marks_the_row_where_the_target_is_lost() -> None:
    rank = [[0, 3, 0, 5], [4, 0, 0, 4], [0, 0, 0, 3], [2, 0, 0, 0]]
    result = made([[1] * 4] * 4, rank)
    assert result.interference is not None
    assert np.argwhere(result.interference).tolist() == [[1, 0], [3, 0]]
    assert made([[1]]).interference is None


def test_a_models_commit_layers_and_interference_are_the_loops() -> None:
    model = tiny_model("gpt2", dtype=torch.float64)
    wanted = naive(rows_of_logits(model, IDS), TARGET)
    best = wanted["ids"][..., 0]
    target = int(best[1, 2])  # top after the first block at one position
    result = logit_lens(model, IDS, target=target)
    ranks = naive(rows_of_logits(model, IDS), target)["rank"]
    for t in range(len(IDS)):
        commit = max((row + 1 for row in range(4) if best[row, t] != best[-1, t]), default=0)
        assert result.commit_layer[t] == commit
        for row in range(4):
            lost = row > 0 and ranks[row - 1, t] == 0 and ranks[row, t] != 0
            assert bool(result.interference[row, t]) == lost
    assert result.interference.any()
    assert len(set(result.commit_layer.tolist())) > 1


def test_texts_of_cells() -> None:
    model = tiny_model("llama")
    result = logit_lens(model, "the city of", target="city" if len(model.tokens("city")) == 2 else 300)
    for row in (0, -1):
        for position in (0, -1):
            cell = result.top(row, position)
            assert len(cell) == 10
            assert [p for _, p in cell] == sorted((p for _, p in cell), reverse=True)
            assert [t for t, _ in cell] == [model.token_strings([i])[0] for i in result.top_ids[row, position].tolist()]
    assert result.target_token == model.token_strings([result.target])[0]
    with pytest.raises(ValueError, match=r"layer must be in -4\.\.3 .* got 4"):
        result.top(4, 0)
    with pytest.raises(
        ValueError, match=rf"position must be in -{len(result.tokens)}\.\.{len(result.tokens) - 1} .* got 99"
    ):
        result.top(0, 99)
    with pytest.raises(ValueError, match="token id 5000 is neither"):
        result.token_text(5000)


def test_tables_and_files(tmp_path: Path) -> None:
    result = logit_lens(tiny_model("gpt2"), IDS, target=TARGET)
    frame = result.to_frame()
    assert len(frame) == 4 * 8
    cell = frame[(frame.layer == 2) & (frame.position == 5)].iloc[0]
    assert (cell.top_id, cell.target_rank) == (result.top_token[2, 5], result.target_rank[2, 5])
    assert cell.top_token == result.token_text(int(result.top_token[2, 5]))
    assert cell.committed == (result.commit_layer[5] <= 2)
    assert (cell.commit_layer, cell.final_rank) == (result.commit_layer[5], result.final_rank[2, 5])
    assert cell.final_token == result.token_text(int(result.top_token[-1, 5]))
    assert "target_rank" not in logit_lens(tiny_model("gpt2"), IDS).to_frame()
    path = result.trajectory(5)
    assert np.array_equal(path["kl"], result.kl[:, 5])
    assert path["interference"].shape == (4,)
    again = Result.load(result.save(tmp_path / "lens"))
    assert isinstance(again, LogitLensResult)
    assert again.equals(result)
    assert again.token_text(TARGET) == result.target_token
    assert result.provenance["model"] == "gpt2_0"


def test_a_result_checks_its_shapes() -> None:
    with pytest.raises(ValueError, match=r"LogitLensResult\.kl must have shape \(1, 1\), got \(2, 1\)"):
        made([[1]], kl=np.zeros((2, 1)))
    with pytest.raises(ValueError, match="must be given together"):
        made([[1]], target=3)


# ---- prompts and bad input


def test_a_bos_is_fed_and_is_on_no_axis() -> None:
    model = tiny_model("llama", dtype=torch.float64)
    assert model.prepend_bos
    text = "the city of Paris"
    result = logit_lens(model, text, target=TARGET)
    ids = model.tokens(text)
    assert result.bos_id == ids[0] == model.bos_token_id
    assert list(result.ids) == ids[1:]
    assert result.entropy.shape == (4, len(ids) - 1)
    wanted = naive(rows_of_logits(model, ids), TARGET)
    assert np.abs(result.entropy - wanted["entropy"][:, 1:]).max() < 10 * limit(model)
    bare = logit_lens(model, text, target=TARGET, prepend_bos=False)
    assert bare.bos_id is None
    assert np.abs(bare.entropy - result.entropy).max() > 1e-3


def test_bad_input_is_named() -> None:
    model = tiny_model("gpt2")
    with pytest.raises(ValueError, match=r"the target must be one token, '.*' is \d+ \("):
        logit_lens(model, "the city", target=" antidisestablishment")
    with pytest.raises(ValueError, match=r"the target must be in 0\.\.419"):
        logit_lens(model, "the city", target=420)
    with pytest.raises(ValueError, match="the prompt is empty"):
        logit_lens(model, "")
    with pytest.raises(ValueError, match="reads 128"):
        logit_lens(model, [5] * 129)
    for top in (0, 421):
        with pytest.raises(ValueError, match=r"top must be in 1\.\.420 for this vocabulary"):
            logit_lens(model, "the city", top=top)
    with pytest.raises(TypeError, match="top must be an int, got True"):
        logit_lens(model, "the city", top=True)
    assert logit_lens(model, "the city", top=420).top_ids.shape[-1] == 420


def test_broken_numbers_are_an_error_that_says_where() -> None:
    model = load_model(_gpt2(vocab=60, width=16, layers=2))
    logit_lens(model, [1, 2])
    broken = model.tl_model.hooks(fwd_hooks=[("blocks.1.hook_mlp_out", lambda value, hook: value * torch.nan)])
    with broken, pytest.raises(ValueError, match=r"at layer 2 and position 0 .* is not finite, as are 3 of 9"):
        logit_lens(model, [1, 2, 3])


def test_progress_and_cancel() -> None:
    model = tiny_model("gpt2")
    told: list[tuple[int, int]] = []
    logit_lens(model, IDS, progress=lambda done, total: told.append((done, total)))
    assert told[-1][0] == told[-1][1]

    def stop() -> None:
        raise InterruptedError

    with pytest.raises(InterruptedError):
        logit_lens(model, IDS, check=stop)


# ---- hooks in force


@pytest.mark.parametrize("backend", ["hooked", "bridge"])
def test_hooks_are_seen_by_every_row(backend: str) -> None:
    model = tiny_model("llama", backend, dtype=torch.float64)
    clean = logit_lens(model, "the city of", target=TARGET)
    hooks: list[Any] = [
        ("blocks.1.hook_attn_out", lambda value, hook: 0 * value),
        ("ln_final.hook_normalized", _triple_the_second),
    ]
    with model.tl_model.hooks(fwd_hooks=hooks):
        result = logit_lens(model, "the city of", target=TARGET)
        own = model.run(model.tokens("the city of")).logits[0, 1:].softmax(-1)
    assert result.provenance["in_blocks"] is False
    assert np.abs(result.target_probability[-1] - own[:, TARGET].numpy()).max() < limit(model)
    assert np.abs(result.entropy[0, 1:] - clean.entropy[0, 1:]).max() < 1e-6  # before both hooks' effects
    assert np.abs(result.entropy[0, 0] - clean.entropy[0, 0]) > 1e-3  # the tripled position, the BOS counted
    assert np.abs(result.entropy[2] - clean.entropy[2]).max() > 1e-3


def _triple_the_second(value: Tensor, hook: Any) -> Tensor:
    value = value.clone()
    value[:, 1] *= 3
    return value


@pytest.mark.hooked
def test_forbidden_tokens_are_no_error() -> None:
    model = tiny_model("gpt2", "hooked", dtype=torch.float64)

    def forbid(value: Tensor, hook: Any) -> Tensor:
        value = value.clone()
        value[..., :50] = -torch.inf
        return value

    with model.tl_model.hooks(fwd_hooks=[("unembed.hook_out", forbid)]):
        result = logit_lens(model, IDS, target=TARGET)
        wanted = naive(rows_of_logits(model, IDS)[..., 50:], TARGET - 50)
        assert np.array_equal(result.final_rank, wanted["final"])
    assert np.abs(result.entropy - wanted["entropy"]).max() < 1e-10
    assert np.abs(result.kl - wanted["kl"]).max() < 1e-10
    assert result.top_ids.min() >= 50


# ---- the tuned lens


def translators(model: Any, *, identity: bool, form: Any = "residual") -> Translators:
    generator = torch.Generator().manual_seed(5)
    width = model.d_model
    scale = 0.0 if identity else 0.2
    eye = torch.eye(width) if form == "affine" else torch.zeros(width, width)
    weights = [eye + scale * torch.randn(width, width, generator=generator) for _ in range(model.n_layers)]
    biases = [scale * torch.randn(width, generator=generator) for _ in range(model.n_layers)]
    return Translators(tuple(weights), tuple(biases), form)


@pytest.mark.parametrize("form", ["residual", "affine"])
def test_identity_translators_give_the_logit_lens(name: tuple[str, str], form: Any) -> None:
    model = tiny_model(*name)
    plain = logit_lens(model, IDS, target=TARGET)
    tuned = logit_lens(model, IDS, target=TARGET, translators=translators(model, identity=True, form=form))
    assert (plain.lens, tuned.lens) == ("logit", "tuned")
    for field in ("top_ids", "top_probability", "entropy", "kl", "final_rank", "final_probability", "target_rank"):
        assert np.array_equal(getattr(tuned, field), getattr(plain, field))


@pytest.mark.parametrize("form", ["residual", "affine"])
def test_translators_move_every_row_but_the_last(tmp_path: Path, form: Any) -> None:
    model = tiny_model("gpt2", dtype=torch.float64)
    maps = translators(model, identity=False, form=form)
    path = save_translators(tmp_path / "lens.safetensors", maps.weights, maps.biases, form=form)
    plain = logit_lens(model, IDS, target=TARGET)
    tuned = logit_lens(model, IDS, target=TARGET, translators=path)
    assert np.array_equal(tuned.entropy[-1], plain.entropy[-1])
    assert (np.abs(tuned.entropy[:-1] - plain.entropy[:-1]).max(axis=1) > 1e-2).all()
    assert tuned.provenance["translators"] == str(path)
    hook = "blocks.2.hook_resid_post"
    for layer in range(3):
        stream = model.run(IDS, capture=f"blocks.{layer}.hook_resid_pre").activations[f"blocks.{layer}.hook_resid_pre"]
        moved = stream @ maps.weights[layer].T.double() + maps.biases[layer].double()
        moved = moved + stream if form == "residual" else moved
        own = model.run(IDS, edit={hook: lambda _, moved=moved: moved}).logits[0].softmax(-1)
        assert np.abs(tuned.target_probability[layer] - own[:, TARGET].numpy()).max() < 1e-10


def test_translators_of_another_model_are_refused(tmp_path: Path) -> None:
    model = tiny_model("gpt2")
    maps = translators(model, identity=True)
    short = save_translators(tmp_path / "short.safetensors", maps.weights[:2], maps.biases[:2])
    with pytest.raises(ValueError, match=r"short\.safetensors is for 2 layers of width 32, but gpt2_0 has 3 layers"):
        logit_lens(model, IDS, translators=short)
    (tmp_path / "words.txt").write_text("no tensors", encoding="utf8")
    with pytest.raises(ValueError, match="is not a safetensors file"):
        logit_lens(model, IDS, translators=str(tmp_path / "words.txt"))


# ---- memory


def _gpt2(vocab: int, width: int, layers: int, n_ctx: int = 128) -> Any:
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(0)
    ids = {"bos_token_id": 0, "eos_token_id": 0}
    config = GPT2Config(vocab_size=vocab, n_embd=width, n_layer=layers, n_head=2, n_positions=n_ctx,
                        initializer_range=0.3, **ids)  # fmt: skip
    return GPT2LMHeadModel(config).eval()


class Largest(TorchDispatchMode):
    """Counts the elements of the largest tensor that any operation returns, views left out."""

    def __init__(self) -> None:
        super().__init__()
        self.elements = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        found = func(*args, **(kwargs or {}))
        for part in found if isinstance(found, tuple | list) else (found,):
            if isinstance(part, Tensor) and not part._is_view():
                self.elements = max(self.elements, part.numel())
        return found


def peak_bytes(function: Any) -> int:
    """Most bytes that tensors made inside hold at one time, from the allocator's own record."""
    activities = [torch.profiler.ProfilerActivity.CPU]
    with torch.profiler.profile(activities=activities, profile_memory=True) as profile:
        function()
    events = [e for e in profile.profiler.kineto_results.events() if e.name() == "[memory]"]
    held = np.cumsum([e.nbytes() for e in sorted(events, key=lambda e: e.start_ns())])
    return int(held.max())


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["hooked", "bridge"])
def test_the_tensor_of_all_logits_is_never_made(backend: str) -> None:
    """13 rows, 128 positions, 50,257 tokens: under 5% of that tensor, streams of a 768 wide model included."""
    vocab, width, layers, length = 50257, 16, 12, 128
    model = load_model(_gpt2(vocab, width, layers), backend=backend)
    ids = [(7919 * i) % vocab for i in range(length)]
    logit_lens(model, ids[:3])  # compared once per model, and hashed
    full = (layers + 1) * length * vocab
    with Largest() as largest:
        logit_lens(model, ids, target=77)
    assert largest.elements < 0.01 * full
    rest = 4 * (layers + 1) * length * (768 - width)
    assert peak_bytes(lambda: logit_lens(model, ids, target=77)) + rest < 0.05 * 4 * full
    # the measure sees the tensor where it is made: the way that holds it, on a tenth of the vocabulary
    with Largest() as largest:
        torch.zeros(layers + 1, length, width) @ torch.zeros(width, vocab // 10)
    assert largest.elements >= 0.09 * full
    wasteful = peak_bytes(lambda: torch.zeros(layers + 1, length, width) @ torch.zeros(width, vocab // 10))
    assert wasteful > 0.05 * 4 * full


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("backend", [pytest.param("hooked", marks=pytest.mark.hooked), "bridge"])
def test_partial_results_hold_the_last_tokens_as_the_whole_has_them(
    backend: str, threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = tiny_model("llama", backend=backend)
    monkeypatch.setattr("interp_widgets.analysis.logit_lens.lens._block_size", lambda *_: (8, 64))
    prompt, parts = IDS * 4, list[LogitLensResult]()
    whole = logit_lens(model, prompt, target=TARGET)
    with threads_kept():
        torch.set_num_threads(threads)
        found = logit_lens(model, prompt, target=TARGET, on_partial=parts.append)
    assert found.equals(whole)
    assert whole.computed.all()
    assert not whole.partial
    counts = [int(part.computed.sum()) for part in parts]
    assert threads == 2 or len(parts) > 3
    assert counts == sorted(set(counts))
    assert counts[-1] < whole.n_positions
    for part in parts:
        there = part.computed
        assert part.partial
        assert there[-1], "the last token is read first"
        for name in ("entropy", "kl", "final_probability", "top_probability", "target_probability"):
            np.testing.assert_array_equal(getattr(part, name)[:, there], getattr(whole, name)[:, there])
            assert np.isnan(getattr(part, name)[:, ~there]).all()
        for name in ("final_rank", "top_ids", "target_rank"):
            np.testing.assert_array_equal(getattr(part, name)[:, there], getattr(whole, name)[:, there])
            assert (getattr(part, name)[:, ~there] == -1).all()
        np.testing.assert_array_equal(part.commit_layer, np.where(there, whole.commit_layer, -1))
        for name in ("repeats", "interference"):
            np.testing.assert_array_equal(getattr(part, name), getattr(whole, name) & there)
        assert part.measures() == whole.measures()
        table = part.to_frame()
        assert not table[~np.tile(there, len(part.entropy))]["committed"].any()
    kept: list[LogitLensResult] = []

    def cancel() -> None:
        if kept:
            raise InterruptedError

    with pytest.raises(InterruptedError):
        logit_lens(model, prompt, check=cancel, on_partial=kept.append)
    assert len(kept) == 1
    never: list[LogitLensResult] = []
    with model.tl_model.hooks(fwd_hooks=[("blocks.0.hook_resid_post", lambda value, hook: value)]):
        logit_lens(model, prompt, on_partial=never.append)
    assert not never


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_parts_of_a_long_prompt_are_read_side_by_side(dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also while this thread holds the model's lock, as an edit does; a cancel or an error ends all threads."""
    model = tiny_model("llama", dtype=dtype)
    monkeypatch.setattr("interp_widgets.analysis.logit_lens.lens._block_size", lambda *_: (8, 64))
    whole = logit_lens(model, IDS * 4, target=TARGET)
    used: set[str] = set()
    add = Readings.add

    def noted(self: Readings, *args: Any) -> None:
        used.add(threading.current_thread().name)
        add(self, *args)

    monkeypatch.setattr(Readings, "add", noted)
    with threads_kept():
        torch.set_num_threads(2)
        with model.lock:
            found = logit_lens(model, IDS * 4, target=TARGET)
        assert len(used) == 2
        assert torch.get_num_threads() == 2
        for name in ("entropy", "kl", "final_rank", "top_ids", "top_probability", "target_rank", "target_probability"):
            np.testing.assert_array_equal(getattr(found, name), getattr(whole, name))
        calls = iter(range(100))

        def cancel() -> None:
            if next(calls) > 5:
                raise InterruptedError

        before = threading.active_count()
        with pytest.raises(InterruptedError):
            logit_lens(model, IDS * 4, check=cancel)

        def broken(self: Readings, *args: Any) -> None:
            raise MemoryError("no room")

        monkeypatch.setattr(Readings, "add", broken)
        with pytest.raises(MemoryError, match="no room"):
            logit_lens(model, IDS * 4)
        assert threading.active_count() == before


def test_the_cost_grows_with_the_text_and_the_vocabulary() -> None:
    model = tiny_model("gpt2")
    one, two = logit_lens_cost(model, 20), logit_lens_cost(model, 40)
    assert 1.9 < two.flops / one.flops < 2.2
    assert one.bytes < two.bytes
    assert one.flops > 20 * 4 * 2 * model.d_model * model.d_vocab


def test_blocks_on_a_gpu_grow_with_the_text_within_bounds() -> None:
    from interp_widgets.analysis.logit_lens.lens import _block_size

    for cells, vocab in ((13 * 128, 50257), (33 * 2000, 128000), (33 * 2000, 50257)):
        size, columns = _block_size(cells, vocab, torch.device("cuda"))
        assert 2 * size * columns < 0.04 * cells * vocab
        assert 2**20 <= size * columns <= 2**26


# ---- what the demo models were taught


@pytest.mark.slow
def test_the_object_of_a_fact_is_found_before_the_last_layer() -> None:
    """40 facts in wordings never seen with them: top at an earlier row for most, and never before the first block."""
    model = demo_pair().base
    prompts = [p for p in fact_prompts("held_out") if len(model.tokens(" " + p.answer, prepend_bos=False)) == 1]
    sample = prompts[:: len(prompts) // 40][:40]
    ranks = np.stack(
        [logit_lens(model, p.prompt, target=" " + p.answer, top=1).target_rank[:, -1] for p in sample]  # type: ignore[index]
    )
    assert (ranks[:, :-1] == 0).any(axis=1).mean() >= 0.85  # measured: 39 of 40
    assert (ranks[:, -1] == 0).mean() >= 0.85  # measured: 38 of 40
    assert not (ranks[:, 0] == 0).any()  # the last word itself does not carry the answer
    others = [(p, q) for p, q in itertools.pairwise(sample) if p.answer != q.answer]
    wrong = [logit_lens(model, p.prompt, target=" " + q.answer, top=1).target_rank[:, -1] for p, q in others]  # type: ignore[index]
    assert (np.stack(wrong)[:, :-1] == 0).any(axis=1).mean() < 0.3  # another fact's object is not
