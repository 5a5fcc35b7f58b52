"""One tie rule: of equal numbers the lowest index comes first, whatever names tokens."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from interp_widgets import Ablation, ablated_prediction, logit_lens, response_probabilities
from interp_widgets.analysis._core.top_k import TopK
from interp_widgets.models.top_k import ranked
from tests.models.tiny import HALF_SEED, tiny_model


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("length", [5, 100, 300, 5000])
def test_equal_numbers_come_in_the_order_of_their_indices(length: int, dtype: torch.dtype) -> None:
    draw = torch.Generator().manual_seed(0)
    rows = torch.randint(-6, 6, (7, length), generator=draw).to(dtype)
    rows[:3] = torch.randn(3, length, generator=draw).to(dtype)
    for count in (1, 3, 10, 40):
        for by_size in (False, True):
            sizes = rows.abs() if by_size else rows
            wanted = sizes.sort(dim=-1, descending=True, stable=True).indices[:, :count]
            best = TopK(count, by_size=by_size)
            for first in range(0, length, 1700):
                best.add(rows[:, first : first + 1700], first)
            assert torch.equal(best.indices, wanted)
            values, indices = ranked(sizes, count)
            assert torch.equal(indices, wanted)
            assert torch.equal(values, sizes.gather(-1, wanted))


def test_nan_counts_as_the_largest() -> None:
    row = torch.ones(300)
    row[[7, 200]] = torch.nan
    assert ranked(row, 3)[1].tolist() == [7, 200, 0]
    assert ranked(row, 1)[1].tolist() == [7]


@pytest.mark.parametrize("family", ["gpt2", "gemma2"])
def test_everything_names_the_same_token_where_logits_are_equal(family: str) -> None:
    model = tiny_model(family, "bridge", dtype=torch.bfloat16, seed=HALF_SEED)
    draw, ties = np.random.default_rng(0), 0
    for _ in range(30):
        ids = draw.integers(5, 400, size=8).tolist()
        logits = model.run(ids).logits[0, -1].double()
        ties += int((logits == logits.max()).sum() > 1)
        wanted = logits.sort(descending=True, stable=True).indices[:5].tolist()
        if wanted[0] in model._stop_ids:
            continue
        assert model.generate_ids(ids, max_new_tokens=1) == wanted[:1]
        assert logit_lens(model, ids, top=5).top_ids[-1, -1].tolist() == wanted
        read = response_probabilities(model, ids, [wanted[1]], top=5)
        assert read.top_tokens[0] == model.single_token_strings(wanted)
        assert ablated_prediction(model, ids, Ablation("mlp", 0), top=3).ids[:3].tolist() == wanted[:3]
    assert ties, "the case is not met"
