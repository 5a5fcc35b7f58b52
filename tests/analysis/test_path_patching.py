"""Path patching against two-step loops over transformers, and by its identities."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from interp_widgets import activation_patching, circuit_faithfulness, edge_attribution, path_patching
from interp_widgets.analysis.patching import PathPatchingResult
from interp_widgets.models import Model
from interp_widgets.models.engine import PathCells, decode, is_behind, sender_changes, through_paths, trace
from tests.analysis.test_patching import ANSWER, CLEAN, CORRUPTED, FOIL, MODELS, gap, loaded
from tests.architectures.functions import reference
from tests.architectures.models import LAYERS
from tests.architectures.naive import Hook, Naive
from tests.models.tiny import HALF_SEED, tiny_model

SENDERS: list[tuple[Any, ...]] = [(0, 1), (0, 3), ("mlp", 0), ("attn", 0)]


def added(change: Tensor) -> Callable[[Tensor], Tensor]:
    return lambda value: value + change.reshape(value.shape).to(value.dtype)


def put(numbers: Any, new: Tensor) -> Callable[[Tensor], Tensor]:
    def change(value: Tensor) -> Tensor:
        value = value.clone()
        value[..., numbers] = new.reshape(value[..., numbers].shape)
        return value

    return change


def written(naive: Naive, kind: str) -> str:
    """What the module is called whose output goes to the stream."""
    if kind == "mlp":
        return str(naive.names.mlp_norm or naive.names.mlp)
    return "post_attention_layernorm" if naive.names.mlp_norm else str(naive.names.attention)


def change_of(naive: Naive, sender: tuple[Any, ...]) -> Tensor:
    """(tokens, width) by how much what the sender adds to the stream changes."""
    if isinstance(sender[0], str):
        module = naive.part(sender[1], written(naive, sender[0]))
        clean, corrupted = (naive.values(ids, [(module, False)])[0] for ids in (CLEAN, CORRUPTED))
        return corrupted - clean
    layer, head = sender
    heads, module = naive.part(layer, str(naive.names.attention)), naive.part(layer, written(naive, "attn"))
    (z,), (before,) = naive.values(CORRUPTED, [(heads, True)]), naive.values(CLEAN, [(module, False)])
    size = naive.size(layer)
    part = slice(head * size, (head + 1) * size)
    (after,) = naive.values(CLEAN, [(module, False)], [(heads, put(part, z[:, part]), True)])
    return after - before


def by_two_steps(naive: Naive, sender: tuple[Any, ...], receiver: Any, share: float = 1.0) -> Tensor:
    """The logit difference where one receiver reads the stream with a share of the change."""
    change = share * change_of(naive, sender)
    if receiver == "logits":
        return gap(naive.logits(CLEAN, [(naive.layers[-1], added(change), False)]))
    kind, layer, *head = receiver
    if kind == "mlp":
        module, numbers = naive.part(layer, written(naive, "mlp")), torch.arange(naive.config.hidden_size)
        reads = naive.names.mlp_reads
        # a parallel block hands the stream that enters it to attention and MLP
        entering: Hook = (
            (naive.layers[layer], added(change), True)
            if reads is None
            else (naive.part(layer, str(reads)), added(change), True)
        )
    else:
        module, all_numbers = naive.head_numbers(layer, kind[-1])
        numbers = all_numbers[head[0]]
        entering = (naive.layers[layer], added(change), True)
    (new,) = naive.values(CLEAN, [(module, False)], [entering])
    return gap(naive.logits(CLEAN, [(module, put(numbers, new[:, numbers]), False)]))


@pytest.mark.parametrize(("architecture", "backend"), MODELS)
def test_each_path_equals_two_steps_over_transformers(architecture: str, backend: str) -> None:
    naive, model = reference(architecture), loaded(architecture, backend)
    receivers: list[Any] = [("head_q", 1, 2), ("head_k", 1, 1), ("head_v", 1, 0), ("mlp", 1), "logits"]
    found = path_patching(
        model, CLEAN, CORRUPTED, SENDERS, receivers, ANSWER, foil=FOIL, separate=True, batch_size=3
    )  # fmt: skip
    ends = [gap(naive.logits(ids)) for ids in (CLEAN, CORRUPTED)]
    wanted = torch.stack([torch.stack([by_two_steps(naive, one, other) for other in receivers]) for one in SENDERS])
    wanted = (ends[0] - wanted) / (ends[0] - ends[1])
    assert found.paths is not None
    assert found.paths == pytest.approx(wanted.numpy(), abs=1e-3 * max(1.0, float(wanted.abs().max())))
    assert float(wanted.abs().max(0).values.min()) > 1e-4  # every receiver reads something


@pytest.mark.parametrize(("architecture", "backend"), [MODELS[0], MODELS[1], MODELS[3], MODELS[4]])
def test_paths_by_the_equations_are_those_through_the_modules(architecture: str, backend: str) -> None:
    """Also where the rows that readers read come and go, and where the first layers are left out."""
    model = loaded(architecture, backend)
    clean, corrupted = (trace(model, model.token_embeddings(ids)[None]) for ids in (CLEAN, CORRUPTED))
    assert clean.native
    senders: list[Any] = [("head", 0, 1), ("mlp", 0, 0), ("attn", 1, 0), ("head", 0, 3)]
    changes = sender_changes(model, clean, corrupted, senders, torch.arange(clean.tokens))
    last = LAYERS - 1
    for readers in (
        [("q", 0, 1), ("v", last, 0), ("logits", LAYERS, 0)],
        [("k", 1, 0), ("mlp", 1, 0)],
        [("mlp", last, 0), ("q", last, 2)],
        [("logits", LAYERS, 0)],
    ):
        cells = PathCells(
            torch.tensor([layer for _, layer, _ in senders]),
            torch.tensor([kind != "mlp" for kind, _, _ in senders]),
            changes,
            [[reader for reader in readers if is_behind(model, reader, sender)] or readers[-1:] for sender in senders],
        )
        logits = [decode(model, through_paths(model, replace(clean, native=way), cells)) for way in (True, False)]
        moved = (logits[1] - decode(model, clean.hidden)).abs().amax(-1)
        assert float(moved.min()) > 1e-4, "every run differs from the clean one"
        assert ((logits[0] - logits[1]).abs().amax(-1) < 0.01 * moved).all()


def every_receiver(model: Model) -> list[Any]:
    last = LAYERS - 1
    heads = [("head_q", last, head) for head in range(model.n_heads)]
    heads += [(f"head_{site}", last, head) for site in "kv" for head in range(model.n_kv_heads)]
    return [*heads, ("mlp", 0), ("mlp", last), "logits"]


@pytest.mark.parametrize(("architecture", "backend"), MODELS)
def test_every_path_together_is_the_sender_patched(architecture: str, backend: str) -> None:
    model = loaded(architecture, backend)
    receivers = every_receiver(model)
    if model.capabilities.parallel_layers[0]:
        receivers.remove(("mlp", 0))  # reads no attention of its own layer
    options: dict[str, Any] = {"foil": FOIL}
    noising = activation_patching(
        model, CLEAN, CORRUPTED, ANSWER, sites=("head", "attn"), layers=[0], direction="noising", **options
    )
    for position in (2, 4, 5):
        found = path_patching(
            model, CLEAN, CORRUPTED, [(0, 1), (0, 3), ("attn", 0)], receivers, ANSWER, positions=[position], **options
        )
        wanted = 1 - np.array([*noising.recovered["head"][0, [1, 3], position], noising.recovered["attn"][0, position]])
        assert found.effect == pytest.approx(wanted, abs=1e-3)
    assert np.abs(wanted).max() > 1e-3


@pytest.mark.parametrize(("architecture", "backend"), [MODELS[1], MODELS[6]])
def test_a_path_that_does_not_exist_carries_nothing(architecture: str, backend: str) -> None:
    model = loaded(architecture, backend)
    found = path_patching(
        model, CLEAN, CORRUPTED, [(0, 1), ("mlp", 0), (1, 0)], [("mlp", 0), ("mlp", 1), "logits"], ANSWER, foil=FOIL,
        separate=True,
    )  # fmt: skip
    assert found.paths is not None
    assert found.paths[1, 0] == found.paths[2, 0] == 0  # not behind
    assert (found.paths[[0, 0, 1, 2], [0, 1, 1, 1]] != 0).all()
    # an output that no corrupted word has reached is the same
    early = path_patching(model, CLEAN, CORRUPTED, [(0, 1)], ["logits"], ANSWER, foil=FOIL, positions=[0, 1])
    assert early.effect == pytest.approx([0], abs=1e-5)


def test_pairs(tmp_path: Path) -> None:
    model = loaded("llama", "bridge")
    corrupted = [CORRUPTED, [3, 17, 11, 8, 5, 30], [3, 17, 12, 8, 5, 30]]
    call: tuple[Any, ...] = (SENDERS, [("mlp", 1), "logits"], ANSWER)
    found = path_patching(model, [CLEAN] * 3, corrupted, *call, foil=FOIL)
    one = path_patching(model, CLEAN, corrupted[1], *call, foil=FOIL)
    assert found.each[1] == pytest.approx(one.effect, abs=1e-5)
    assert found.effect == pytest.approx(found.each.mean(0))
    assert one.low is None
    assert found.low is not None
    assert found.high is not None
    assert (found.low <= found.effect + 1e-6).all()
    assert (found.effect <= found.high + 1e-6).all()
    assert found.to_frame()["sender"].tolist() == ["head 0.1", "head 0.3", "mlp 0", "attn 0"]
    assert PathPatchingResult.load(found.save(tmp_path / "x")).equals(found)
    assert found.measures()["sender"] == found.senders[int(np.argmax(found.effect))]


@pytest.mark.parametrize("metric", ["logit_difference", "kl"])
def test_the_largest_by_a_gradient_are_patched_first_and_handed_on(metric: Any) -> None:
    model, parts = loaded("llama", "bridge"), list[PathPatchingResult]()
    foil = {"foil": FOIL} if metric == "logit_difference" else {}
    call: tuple[Any, ...] = (None, [("mlp", 0), ("head_q", 1, 1), "logits"], ANSWER)
    options: Any = {"metric": metric, "batch_size": 2, **foil}
    one = path_patching(model, CLEAN, CORRUPTED, *call, **options)
    whole = path_patching(
        model, [CLEAN] * 2, [CORRUPTED, [3, 17, 12, 8, 5, 30]], *call, **options, on_partial=parts.append
    )
    assert (whole.partial, whole.estimated) == (False, None)
    assert whole.each[0] == pytest.approx(one.effect, abs=1e-5)
    first = [part for part in parts if np.isnan(part.effect).any()]
    later = parts[len(first) :]
    assert min(len(first), len(later)) > 0
    assert all(part.partial and part.low is None for part in parts)
    for part in first:
        known = np.isfinite(part.effect)
        assert part.effect[known] == pytest.approx(one.effect[known], abs=1e-6)
        if metric == "kl":
            assert part.estimated is None
            continue
        edges = edge_attribution(model, CLEAN, CORRUPTED, ANSWER, receivers=call[1], sample=0, foil=FOIL)
        wanted = edges.estimated[[edges.senders.index(name) for name in part.senders]].sum(1)
        assert part.estimated == pytest.approx(wanted, abs=1e-6)
        sizes = np.abs(wanted)
        assert sizes[known].min(initial=np.inf) >= sizes[~known].max()
    counts = [int(np.isfinite(part.effect).sum()) for part in first]
    assert counts == sorted(counts)
    assert (counts[0] == 0) == (metric != "kl")
    assert later[-1].effect == pytest.approx(one.effect, abs=1e-6)
    assert later[-1].estimated is None
    quick = list[PathPatchingResult]()
    path_patching(model, CLEAN, CORRUPTED, [(0, 1)], ["logits"], ANSWER, foil=FOIL, on_partial=quick.append)
    assert all(part.estimated is None for part in quick), "an estimate would take longer"


def test_half_precision() -> None:
    """Paths, their estimates and a circuit in bfloat16 are those in single precision, to its rounding."""
    single = tiny_model("llama", "bridge", seed=HALF_SEED)
    half = tiny_model("llama", "bridge", seed=HALF_SEED, dtype=torch.bfloat16)
    clean, corrupted = (single.run(ids).logits[0, -1] for ids in (CLEAN, CORRUPTED))
    answer, foil = int((clean - corrupted).argmax()), int((clean - corrupted).argmin())
    receivers: Any = [("head_q", 1, 1), "mlp 1", "logits"]
    paths, edges, kept = [], [], []
    for model in (single, half):
        found = path_patching(model, CLEAN, CORRUPTED, None, receivers, answer, foil=foil)
        paths.append(found.effect)
        options: Any = {"foil": foil, "receivers": receivers, "sample": 0}
        edges.append(edge_attribution(model, CLEAN, CORRUPTED, answer, **options).estimated)
        parts = ["head 0.1", "mlp 0", "mlp 1"]
        kept.append(circuit_faithfulness(model, CLEAN, CORRUPTED, parts, answer, foil=foil, draws=5).faithfulness)
    assert np.abs(paths[0]).max() > 0.1
    assert paths[1] == pytest.approx(paths[0], abs=0.05)
    assert edges[1] == pytest.approx(edges[0], abs=0.05)
    assert kept[1] == pytest.approx(kept[0], abs=0.05)


def test_names_and_all_senders_before_the_receivers() -> None:
    model = loaded("llama", "bridge")
    options: Any = {"answer": ANSWER, "foil": FOIL}
    named = path_patching(model, CLEAN, CORRUPTED, ["0.1", "mlp 0"], ["head_q 1.0", "logits"], **options)
    numbered = path_patching(model, CLEAN, CORRUPTED, [(0, 1), ("mlp", 0)], [("head_q", 1, 0), "logits"], **options)
    assert named.equals(numbered)
    every = path_patching(model, CLEAN, CORRUPTED, None, ["mlp 1"], **options)
    heads = [f"head {layer}.{head}" for layer in range(2) for head in range(model.n_heads)]
    assert sorted(every.senders) == sorted([*heads, "mlp 0"])
    alone = path_patching(model, CLEAN, CORRUPTED, ["head 1.2"], ["mlp 1"], **options)
    assert every.effect[every.senders.index("head 1.2")] == pytest.approx(alone.effect[0], abs=1e-9)


def bad_calls() -> Iterator[tuple[dict[str, Any], str]]:
    yield {"senders": []}, "senders is empty"
    yield {"receivers": []}, "receivers is empty"
    yield {"senders": [(0, 1), (0, 1)]}, "senders must be different, got head 0.1 twice"
    yield {"receivers": ["logits", "logits"]}, "receivers must be different, got logits twice"
    yield {"senders": [(0, 4)]}, "head must be in"
    yield {"senders": [(2, 0)]}, "layer must be in"
    yield {"senders": [(0,)]}, "a sender must be one of"
    yield {"senders": ["mlp"]}, "a sender must be one of"
    yield {"senders": ["embeddings 0"]}, "a sender must be one of"
    yield {"senders": ["heads 0.1"]}, "or a name such as 'head 3.1', got 'heads 0.1'"
    yield {"senders": None, "receivers": ["head_q 0.1"]}, "there is no path to head_q 0.1 from any head or MLP"
    yield {"receivers": ["head_q 1"]}, "or a name such as 'head_q 4.2', got 'head_q 1'"
    yield {"receivers": [("head", 1, 0)]}, "a receiver must be"
    yield {"receivers": [("head_k", 1, 2)]}, "key/value head must be in"
    yield {"senders": [(1, 0)], "receivers": [("mlp", 0)]}, "there is no path from head 1.0"
    yield {"senders": [(1, 0)], "receivers": [("head_q", 1, 0), "logits"]}, "there is no path to head_q 1.0"
    yield {"corrupted": CORRUPTED[:5]}, "must have equally many tokens"
    yield {"corrupted": CLEAN}, "have the same tokens"
    yield {"foil": ANSWER}, "answer and foil are the same"
    yield {"positions": [6]}, "position must be in"


@pytest.mark.parametrize(("changes", "message"), list(bad_calls()))
def test_bad_input_gets_one_sentence(changes: dict[str, Any], message: str) -> None:
    call = {"clean": CLEAN, "corrupted": CORRUPTED, "senders": [(0, 1)], "receivers": ["logits"], "answer": ANSWER}
    with pytest.raises(ValueError, match=message) as error:
        inspect.unwrap(path_patching)(loaded("llama", "bridge"), **{**call, **changes})
    assert "\n" not in str(error.value)


def test_a_model_without_attention_is_refused() -> None:
    with pytest.raises(ValueError, match="which MambaForCausalLM does not have"):
        path_patching(loaded("mamba", "bridge"), CLEAN, CORRUPTED, [(0, 1)], ["logits"], ANSWER)
