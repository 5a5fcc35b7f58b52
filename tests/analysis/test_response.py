"""How likely a response was: equal to a pass in float64, in pieces, on both backends; bad input."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from interp_widgets import Result, response_probabilities
from interp_widgets.analysis import response as module
from tests.models.tiny import tiny_model
from tests.tolerances import limit

PROMPT, RESPONSE = "When Mary and John went to the store, John gave a drink to", " Mary. The end"


def by_hand(model: Any) -> torch.Tensor:
    """(response, vocabulary) probabilities from one whole pass."""
    before, after = model.split(PROMPT, RESPONSE)
    return model.run([*before, *after]).logits[0, len(before) - 1 : -1].double().softmax(-1).cpu()


@pytest.mark.parametrize("backend", ["hooked", "bridge"])
@pytest.mark.parametrize("family", ["gpt2", "llama"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_equal_to_a_whole_pass(family: str, backend: str, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    model = tiny_model(family, backend, dtype=dtype)
    monkeypatch.setattr(module, "_LOGITS", 2 * model.d_vocab)  # two rows at a time
    found, rows = response_probabilities(model, PROMPT, RESPONSE, top=3), by_hand(model)
    own = torch.tensor(found.response_ids)
    wanted = rows.gather(-1, own[:, None])[:, 0]
    close = 3e-2 if dtype == torch.bfloat16 else limit(model, single=1e-5)
    np.testing.assert_allclose(found.probability, wanted, atol=close)
    np.testing.assert_allclose(found.top_probability, rows.topk(3).values, atol=close)
    if dtype == torch.float64:
        assert found.rank.tolist() == (rows > wanted[:, None]).sum(-1).tolist()
        best = [model.token_strings(ids) for ids in rows.topk(3).indices.tolist()]
        assert [list(tokens) for tokens in found.top_tokens] == [list(tokens) for tokens in best]
    assert found.top_probability[:, 0].max() <= 1
    assert (found.probability <= found.top_probability[:, 0] + 1e-6).all()


def test_it_is_saved_and_tabulated(tmp_path: Any) -> None:
    model = tiny_model("gpt2", "auto")
    found = response_probabilities(model, PROMPT, RESPONSE)
    assert Result.load(found.save(tmp_path / "found")).equals(found)
    table = found.to_frame()
    assert list(table["token"]) == list(found.response_tokens)
    assert (table["rank"] == found.rank).all()


def test_without_a_response_the_model_writes_one() -> None:
    model = tiny_model("gpt2", "auto")
    found = response_probabilities(model, PROMPT, max_new_tokens=4)
    assert found.response_ids == tuple(model.generate_ids(model.tokens(PROMPT), max_new_tokens=4))
    assert (found.rank == 0).all(), "greedy"


def test_bad_input_is_refused_in_a_sentence() -> None:
    model = tiny_model("gpt2", "auto")
    with pytest.raises(ValueError, match="the prompt is empty"):
        response_probabilities(model, "", RESPONSE)
    with pytest.raises(ValueError, match="the response is empty"):
        response_probabilities(model, PROMPT, "")
    with pytest.raises(ValueError, match="top must be"):
        response_probabilities(model, PROMPT, RESPONSE, top=0)
