"""One tie rule: of equal numbers the lowest index comes first, whatever names tokens."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from interp_widgets import Ablation, ablated_prediction, load_model, logit_lens, response_probabilities
from interp_widgets.analysis._core.top_k import TopK
from interp_widgets.models.top_k import ranked
from tests.models.tiny import HALF_SEED, tiny_hf, tiny_tokenizer


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


@pytest.mark.seconds
@pytest.mark.parametrize("backend", ["hooked", "bridge"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_everything_names_the_same_token_where_logits_are_equal(backend: str, dtype: torch.dtype) -> None:
    hf_model = tiny_hf("llama", seed=HALF_SEED)
    rows = hf_model.lm_head.weight.data
    rows[1::2] = rows[::2]  # every logit occurs twice
    model = load_model(hf_model, tokenizer=tiny_tokenizer("llama"), backend=backend, dtype=dtype)  # type: ignore[arg-type]
    draw = np.random.default_rng(0)
    for _ in range(8):
        ids = draw.integers(5, 400, size=8).tolist()
        wanted = model.generate_ids(ids, max_new_tokens=1)
        assert wanted[0] % 2 == 0
        wanted.append(wanted[0] + 1)
        lens = logit_lens(model, ids, top=3)
        assert (lens.top_ids[..., 0] % 2 == 0).all()
        assert lens.top_ids[-1, -1, :2].tolist() == wanted
        assert (np.diff(lens.top_ids[..., :2]) == 1).all()
        assert (lens.top_ids[..., 2] % 2 == 0).all()
        read = response_probabilities(model, ids, [7], top=2)
        assert read.top_tokens[0] == model.single_token_strings(wanted)
        assert int(ablated_prediction(model, ids, Ablation("mlp", 0), top=1).ids[0]) == wanted[0]
