"""`attention_in_texts` against loops over the patterns of single texts; what is a query and a key; deciles."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from interp_widgets import AttentionInTexts, Result, attention_in_texts, attention_patterns, load_circuit
from tests.models.tiny import tiny_model

TEXTS = ["The capital of France is Paris.", "Once there was a dog who lived near the river.", "a", "The dog was happy"]


@pytest.mark.parametrize("family", ["llama", "gpt2", "gemma2"])  # with a BOS, without, with a sliding window
def test_equals_a_loop_over_single_texts(family: str) -> None:
    model = tiny_model(family, "bridge")
    texts = [*TEXTS, [5, 17, int(model.tokenizer.bos_token_id), 44, 8]]
    result = attention_in_texts(model, texts, layer=-1)
    for text, given in enumerate(texts):
        one = attention_patterns(model, given, layers=[-1])
        bos, n = int(one.bos), len(one.tokens)
        start, stop = result.offsets[text : text + 2]
        assert result.text_tokens(text) == one.tokens[bos:]
        assert stop - start == n - bos
        for head in range(model.n_heads):
            for query in range(bos, n):
                at = result.attention[start + query - bos, head], result.keys[start + query - bos, head]
                keys = [key for key in range(1, query + 1) if not one.special[key]]
                if query == 0 or one.special[query]:
                    assert np.isnan(at[0])
                    assert at[1] == -1
                    continue
                pattern = one.pattern(-1, head)[query]
                assert at[0] == pytest.approx(max(pattern[key] for key in keys), abs=1e-5)
                assert pattern[at[1] + bos] == pytest.approx(at[0], abs=1e-5)
                assert at[1] + bos in keys


def test_an_induction_head_attends_most_behind_the_earlier_occurrence() -> None:
    circuit, _ = load_circuit("induction")
    names = ["beta", "eta", "psi", "rho", "mu"]
    texts = [" ".join([*order, *order]) for order in (names, names[::-1], [*names[2:], *names[:2]])]
    result = attention_in_texts(circuit, texts, layer=1)
    strongest = result.top(1, 3)
    assert {event.text for event in strongest} == {0, 1, 2}
    for event in strongest:
        tokens = result.text_tokens(event.text)
        assert event.decile > 5  # the queries of the second halves are the stronger half
        assert tokens[event.key - 1].strip() == tokens[event.query].strip()
    assert result.measures()["head"] is not None


def test_deciles_are_tenths_of_the_queries() -> None:
    rng = np.random.default_rng(0)
    attention = rng.permutation(np.linspace(0, 1, 40))[:, None].astype(np.float32)
    attention[[0, 20]] = np.nan
    keys = np.where(np.isnan(attention), -1, 0)
    result = AttentionInTexts(0, (2,), tuple("x" * 40), np.array([0, 20, 40]), keys, attention)
    deciles = result.deciles(2)
    assert (deciles[[0, 20]] == 0).all()
    for decile in range(1, 11):
        assert 3 <= (deciles == decile).sum() <= 4
        assert (attention[deciles == decile] > attention[(deciles > 0) & (deciles < decile)].max(initial=-1)).all()
    sample = result.sample(2, 2, seed=1)
    assert [event.decile for event in sample] == [decile for decile in range(10, 0, -1) for _ in range(2)]
    assert result.sample(2, 2, seed=1) == sample != result.sample(2, 2, seed=2)
    for event in sample:
        index = result.offsets[event.text] + event.query
        assert (event.attention, event.decile) == (attention[index, 0], deciles[index])
    best = result.top(2, 2)
    assert [event.text for event in best] in ([0, 1], [1, 0])
    assert best[0].attention == np.nanmax(attention)
    assert len(result.sample(2, 100)) == 38


def test_table_and_file(tmp_path: Any) -> None:
    result = attention_in_texts(tiny_model("llama", "bridge"), TEXTS, layer=0, heads=[3, -3])
    assert result.heads == (3, 1)
    frame = result.to_frame()
    assert len(frame) == 2 * len(result.tokens)
    row = frame[(frame["text"] == 1) & (frame["query"] == 4) & (frame["head"] == 1)].iloc[0]
    assert row["query_token"] == result.text_tokens(1)[4]
    assert row["key_token"] == result.text_tokens(1)[row["key"]]
    assert Result.load(result.save(tmp_path / "texts.npz")).equals(result)


def test_a_text_without_a_query_has_none() -> None:
    result = attention_in_texts(tiny_model("gpt2", "bridge"), [[7], [7, 8]], layer=0)
    assert np.isnan(result.attention[0]).all()
    assert [event.text for event in result.top(0)] == [1]
    assert len(result.sample(0)) == 1
    nothing = attention_in_texts(tiny_model("gpt2", "bridge"), [[7]], layer=0)
    assert nothing.top(0) == nothing.sample(0) == []
    assert nothing.measures()["queries"] == 0


@pytest.mark.parametrize(
    ("texts", "options", "sentence"),
    [
        ([], {"layer": 0}, "texts must be a list of at least one text"),
        ([""], {"layer": 0}, "the text holds only special tokens"),
        (TEXTS, {"layer": 9}, r"layer must be in -3\.\.2 for this 3-layer model, got 9"),
        (TEXTS, {"layer": 0, "heads": [4]}, r"head must be in -4\.\.3 for this model with 4 heads per layer, got 4"),
    ],
)
def test_bad_input(texts: Any, options: Any, sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        attention_in_texts(tiny_model("llama", "bridge"), texts, **options)
    result = attention_in_texts(tiny_model("llama", "bridge"), TEXTS[:1], layer=0, heads=[1])
    for ask in (result.top, result.sample, result.deciles):
        with pytest.raises(ValueError, match="head must be one of 1, which were computed"):
            ask(3)


def test_a_cancelled_run_ends() -> None:
    class Enough(Exception):
        pass

    def check() -> None:
        raise Enough

    with pytest.raises(Enough), torch.no_grad():
        attention_in_texts(tiny_model("llama", "bridge"), TEXTS, layer=0, check=check)
