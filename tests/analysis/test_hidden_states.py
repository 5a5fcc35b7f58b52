"""Hidden states of many short prompts: equal to passes one by one, on both backends; prefixes, hooks, bad input."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from interp_widgets.analysis import hidden_states
from interp_widgets.analysis.hidden_states import last_states, last_states_cost
from interp_widgets.models import engine
from interp_widgets.models.engine.equations import Block, Equations
from interp_widgets.models.patching import interventions
from tests.models.tiny import HALF_SEED, tiny_model
from tests.tolerances import limit

START = "When Mary and John went to the store"
TEXTS = (
    f"{START}, John gave a drink to Mary.", "The capital", "One two three four five", f"{START} in the city of Paris",
    f"{START}, she", "A pilot flies a plane; a nurse", "Paris", f"{START}, John gave a drink to John.",
)  # fmt: skip
GROUPS = (0, 1, 1, 0, 0, 1, 1, 0)
FAMILIES = ("gpt2", "llama", "gpt_neox", "qwen3")


def one_by_one(model: Any, texts: Any, layers: Any, ends: Any = None) -> Any:
    found = []
    for i, text in enumerate(texts):
        ids = model.tokens(text)
        ids = ids if ends is None else ids[: ends[i]]
        names = [f"blocks.{k}.hook_resid_pre" if k < model.n_layers else f"blocks.{k - 1}.hook_resid_post"
                 for k in layers]  # fmt: skip
        run = model.run(ids, capture=names)
        found.append(torch.stack([run.activations[name][0, -1] for name in names]))
    return torch.stack(found).double().numpy()


def error(found: Any, wanted: Any) -> float:
    return float(np.abs(found - wanted).max() / np.abs(wanted).max())


@pytest.mark.seconds
@pytest.mark.parametrize("backend", ["hooked", "bridge"])
@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("groups", [None, GROUPS])
def test_equal_to_passes_one_by_one(family: str, backend: str, groups: Any) -> None:
    for dtype, single in ((torch.float32, 1e-5), (torch.float64, 3e-6)):
        model = tiny_model(family, backend, dtype=dtype)
        found = last_states(model, TEXTS, [0, 2, 3], groups=groups)
        assert found.dtype == (np.float64 if dtype == torch.float64 else np.float32)
        assert error(found, one_by_one(model, TEXTS, [0, 2, 3])) <= limit(model, single=single)


@pytest.mark.parametrize("backend", ["hooked", "bridge"])
def test_beginnings_are_computed_once_and_change_nothing(backend: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model = tiny_model("gpt2", backend, dtype=torch.float64)
    begun, real = [], engine.shared_prefixes

    def spy(model: Any, ids: Any, top: int) -> Any:
        begun.append(tuple(ids.shape))
        return real(model, ids, top)

    monkeypatch.setattr(hidden_states, "shared_prefixes", spy)
    found = last_states(model, TEXTS, [1, 3], groups=GROUPS)
    lengths = [shape[1] for shape in begun]
    shared = min(len(model.tokens(f"{START},")), len(model.tokens(f"{START} in"))) - 1
    assert max(lengths) >= shared - 1
    monkeypatch.setattr(hidden_states, "shared_prefixes", lambda *args: None)
    assert error(found, last_states(model, TEXTS, [1, 3])) <= 1e-12


@pytest.mark.hooked
def test_blocks_of_transformer_lens_take_beginnings_too(monkeypatch: pytest.MonkeyPatch) -> None:
    model = tiny_model("llama", "hooked", dtype=torch.float64)
    monkeypatch.setattr(Equations, "of", staticmethod(lambda network: None))
    found = last_states(model, TEXTS, [0, 1, 3], groups=GROUPS)
    assert error(found, one_by_one(model, TEXTS, [0, 1, 3])) <= 1e-10


@pytest.mark.parametrize("backend", ["hooked", "bridge"])
def test_wrong_mask_would_show(backend: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model = tiny_model("gpt2", backend, dtype=torch.float64)
    real = Block.attend_one
    monkeypatch.setattr(Block, "attend_one", lambda block, q, k, v, at: real(block, q, k, v, at + 1))
    assert error(last_states(model, TEXTS, 3), one_by_one(model, TEXTS, [3])) > 1e-3


@pytest.mark.parametrize("backend", ["hooked", "bridge"])
def test_stops_at_the_last_layer_and_never_unembeds(backend: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model = tiny_model("gpt_neox", backend)
    touched: list[str] = []
    handles = [
        module.register_forward_hook(lambda *args, name=name: touched.append(name))
        for name, module in (("late", model.tl_model.blocks[2].mlp), ("unembed", model.tl_model.unembed))
    ]
    try:
        monkeypatch.setattr(engine, "has_hooks", lambda tl_model: False)
        monkeypatch.setattr(hidden_states, "can_pad", lambda tl_model: True)
        last_states(model, TEXTS, 1)  # compared with the model's own logits on first use
        touched.clear()
        found = last_states(model, TEXTS, 2)
    finally:
        for handle in handles:
            handle.remove()
    assert touched == []
    assert error(found, one_by_one(model, TEXTS, [2])) <= 1e-5


@pytest.mark.parametrize("backend", ["hooked", "bridge"])
def test_changes_in_force_are_seen(backend: str) -> None:
    model = tiny_model("llama", backend, dtype=torch.float64)
    before = last_states(model, TEXTS, 3)
    with interventions(model, [("blocks.1.hook_mlp_out", lambda value, positions: value * (positions < 2)[..., None])]):
        found = last_states(model, TEXTS, 3)
        assert error(found, one_by_one(model, TEXTS, [3])) <= limit(model)
    assert error(found, before) > 1e-3
    assert error(last_states(model, TEXTS, 3), before) <= 1e-12


@pytest.mark.parametrize("backend", ["hooked", "bridge"])
def test_positions_layer_order_and_ids(backend: str) -> None:
    model = tiny_model("llama", backend, dtype=torch.float64)
    ids = [model.tokens(text) for text in TEXTS[:3]]
    found = last_states(model, ids, [3, 1, 3], positions=[0, -1, -2])
    ends = [2, len(ids[1]), len(ids[2]) - 1]  # a BOS stands in front
    wanted = one_by_one(model, TEXTS[:3], [3, 1, 3], ends)
    assert error(found, wanted) <= limit(model)


def test_bfloat16_is_near() -> None:
    model = tiny_model("gpt2", dtype=torch.bfloat16, seed=HALF_SEED)
    found = last_states(model, TEXTS, [1, 3])
    assert found.dtype == np.float32
    assert error(found, one_by_one(model, TEXTS, [1, 3])) <= 0.05


@pytest.mark.seconds
def test_progress_cancel_and_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    model = tiny_model("gpt2", dtype=torch.float64)
    wanted, steps = last_states(model, TEXTS, 2), []
    last_states(model, TEXTS, 2, batch_size=3, progress=lambda done, total: steps.append((done, total)))
    assert steps[-1] == (len(TEXTS), len(TEXTS))
    assert len(steps) >= 3

    def stop() -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        last_states(model, TEXTS, 2, check=stop)
    real, sizes = engine.streams_at, []

    def narrow(model: Any, ids: Any, *args: Any, **options: Any) -> Any:
        sizes.append(len(ids))
        if len(ids) > 2:
            raise RuntimeError("DefaultCPUAllocator: not enough memory")
        return real(model, ids, *args, **options)

    monkeypatch.setattr(hidden_states, "streams_at", narrow)
    assert error(last_states(model, TEXTS, 2), wanted) <= 1e-12
    assert max(sizes) > 2
    monkeypatch.setattr(hidden_states, "streams_at", lambda *args, **options: torch.full((8, 1, 32), torch.nan))
    with pytest.raises(ValueError, match="hidden state of prompt 0 at layer 2 is not finite"):
        last_states(model, TEXTS, 2, batch_size=8)


def test_bad_input() -> None:
    model = tiny_model("gpt2")
    with pytest.raises(ValueError, match=r"layer must be in -4\.\.3 for this 3-layer model"):
        last_states(model, TEXTS, 4)
    with pytest.raises(ValueError, match="at least one text"):
        last_states(model, [], 1)
    with pytest.raises(
        TypeError, match=r"prompts must be a list of str .*got 'one text': write prompts=\['one text'\]"
    ):
        last_states(model, "one text", 1)
    with pytest.raises(ValueError, match="prompt 1"):
        last_states(model, ["a", ""], 1)
    with pytest.raises(ValueError, match=r"prompt 0 .*reads 128"):
        last_states(model, ["one two " * 200], 1)
    with pytest.raises(ValueError, match="one entry per prompt"):
        last_states(model, ["a", "b"], 1, positions=[0])
    with pytest.raises(ValueError, match="one entry per prompt"):
        last_states(model, ["a", "b"], 1, groups=[0])
    with pytest.raises(ValueError, match="batch_size"):
        last_states(model, ["a", "b"], 1, batch_size=0)


def test_cost_grows_with_layers_and_prompts() -> None:
    model = tiny_model("gpt2")
    one, two = last_states_cost(model, [10] * 5, 1), last_states_cost(model, [10] * 5, 3)
    assert two.flops == pytest.approx(3 * one.flops)
    assert last_states_cost(model, [10] * 50, 3).flops == pytest.approx(10 * two.flops)


def test_texts_on_both_sides_of_a_scaled_context_are_read_alone() -> None:
    """Padding a short text beyond the original context would change the scale of its positions."""
    from interp_widgets.models import load_model
    from tests.architectures.models import BOUNDARY, VOCABULARY, random_model

    model = load_model(random_model("phi3_longrope"), backend="bridge")
    ids = torch.randint(2, VOCABULARY, (BOUNDARY + 9,), generator=torch.Generator().manual_seed(3)).tolist()
    texts = [ids, ids[: BOUNDARY - 5], ids[:7]]
    found = last_states(model, texts, [1, model.n_layers])
    wanted = [
        model.run(text, capture=["blocks.1.hook_resid_pre"]).activations["blocks.1.hook_resid_pre"][0, -1]
        for text in texts
    ]
    assert error(found[:, 0], torch.stack(wanted).double().numpy()) <= limit(model, single=1e-5)
