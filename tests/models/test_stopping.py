"""A cancel acts between two layers, in whichever engine runs the pass, and leaves nothing behind."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.nn.modules import module

from interp_widgets import ablate_heads, decompose_tokens, logit_lens, prompt_saliency
from interp_widgets.models import engine, load_model
from interp_widgets.models.state import state_key
from interp_widgets.models.stopping import stop_point, stopping, unstoppable
from tests.models.tiny import tiny_folder, tiny_model

TEXT = "the cat sat on the mat and the dog"


class Enough(Exception):
    pass


def counting(last: int = 10**9) -> tuple[Callable[[], None], list[int]]:
    """A check that raises when it is called for the `last` time, and its calls."""
    calls: list[int] = []

    def check() -> None:
        calls.append(1)
        if len(calls) >= last:
            raise Enough

    return check, calls


@pytest.fixture(params=[(b, e) for b in ("hooked", "bridge") for e in ("equations", "modules")], ids="-".join)
def model(request: pytest.FixtureRequest) -> Any:
    """A model whose passes are run by the equations, or by its own modules, since it has a hook of the user's."""
    backend, runs = request.param
    model = tiny_model("gpt2", backend)
    if runs == "equations":
        yield model
        return
    with model.tl_model.hooks(fwd_hooks=[("blocks.0.hook_mlp_out", lambda value, hook: value)]):
        yield model


def test_every_layer_of_a_pass_is_a_stop_point(model: Any) -> None:
    embeddings = model.token_embeddings(model.tokens(TEXT))[None]
    check, calls = counting()
    with torch.no_grad(), stopping(check):
        whole = engine.encode(model, embeddings)
    assert len(calls) >= model.n_layers
    check, _ = counting(model.n_layers)
    before = len(module._global_forward_pre_hooks)
    with torch.no_grad(), pytest.raises(Enough), stopping(check):
        engine.encode(model, embeddings)
    assert len(module._global_forward_pre_hooks) == before
    with torch.no_grad():
        assert torch.equal(engine.encode(model, embeddings), whole)


def test_whether_a_route_serves_is_not_decided_by_a_cancel() -> None:
    model = load_model(tiny_folder("llama"), device="cpu", dtype=torch.float64)
    embeddings = model.token_embeddings(model.tokens(TEXT))[None]
    check, _ = counting(1)
    with torch.no_grad(), pytest.raises(Enough), stopping(check):
        engine.encode(model, embeddings)  # the first pass compares the routes
    assert engine.decodes_in_blocks(model), "the equations serve this model, as without a cancel"


@pytest.mark.parametrize(
    "analysis",
    [
        lambda model, check: prompt_saliency(model, TEXT, "the dog sat", check=check),
        lambda model, check: ablate_heads(model, TEXT, check=check),
        lambda model, check: decompose_tokens(model, TEXT, check=check),
        lambda model, check: logit_lens(model, TEXT, check=check),
    ],
    ids=["prompt_saliency", "ablate_heads", "decompose_tokens", "logit_lens"],
)
def test_an_analysis_stops_at_every_call_of_its_check(analysis: Callable[..., Any], model: Any) -> None:
    check, calls = counting()
    whole = analysis(model, check)
    for last in {1, len(calls) // 2, len(calls)} - {0}:
        check, seen = counting(last)
        with pytest.raises(Enough):
            analysis(model, check)
        assert len(seen) == last
    assert analysis(model, None).equals(whole)


def test_a_check_belongs_to_its_thread_and_to_its_block() -> None:
    check, calls = counting()
    stop_point()
    with stopping(check):
        other = threading.Thread(target=stop_point)
        other.start()
        other.join()
        assert calls == []
        with stopping(None):
            stop_point()
        assert len(calls) == 1
        with unstoppable():
            stop_point()
        assert len(calls) == 1
    stop_point()
    assert len(calls) == 1


def test_a_model_that_can_be_stopped_is_what_it_was() -> None:
    """Else nothing that is computed inside a run would be kept."""
    model = tiny_model("gpt2")
    before = state_key(model, exact=True)
    with stopping(lambda: None):
        inside = state_key(model, exact=True)
        assert inside == before
        assert inside.certain
    with stopping(lambda: None):
        handle = module.register_module_forward_pre_hook(lambda part, inputs: None)
        try:
            assert state_key(model, exact=True) != before, "a hook of the user's on every module counts"
        finally:
            handle.remove()
    assert state_key(model, exact=True) == before
