"""Head word pairs: the authors' own numbers, a naive loop in float64, comparisons with known answers, saving."""

from __future__ import annotations

import inspect
import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from interp_widgets.analysis._core.result import Result
from interp_widgets.analysis._core.word_embeddings import word_table
from interp_widgets.analysis.head_words import (
    HeadComparison,
    HeadWordResult,
    WordPair,
    compare_heads,
    head_word_pairs,
    head_words_cost,
    word_pairs,
)
from interp_widgets.analysis.head_words.word_cosines import cosines
from interp_widgets.data.word_vectors import WordVectors, demo_word_vectors
from interp_widgets.models import load_model
from tests.analysis.reference_llama import reference, reference_model
from tests.models.tiny import HALF_SEED, tiny_hf, tiny_model
from tests.shipped import demo_pair

WORDS = tuple(dict.fromkeys(["cat", "sat", "on", "mat", "dog", "jumps", "lazy", *demo_word_vectors().words]))[:90]
RNG = np.random.default_rng(5)
# words of one group are near each other, so that there is something to pair
VECTORS = RNG.normal(size=(12, 8))[np.arange(90) % 12] + 0.4 * RNG.normal(size=(90, 8))
TOP, KEEP = 20, 9


@pytest.fixture(autouse=True, scope="module")
def one_thread() -> Any:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def few(model: Any, **options: Any) -> HeadWordResult:
    return head_word_pairs(model, **{"words": WORDS, "vectors": VECTORS, "top": TOP, "keep": KEEP, **options})


# ---- the authors' own numbers


@pytest.mark.parametrize("backend", ["hooked", "bridge"])
def test_pairs_are_those_of_the_authors_code(reference_data: Path, backend: str) -> None:
    data = reference(reference_data)
    words = [str(word) for word in data["words"]]
    found = head_word_pairs(reference_model(reference_data, backend), words=words, vectors=data["glove"], top=20)
    assert found.missing == found.unknown == ()
    compared = 0
    for layer in range(2):
        for head in range(4):
            name = f"L{layer}H{head}"
            assert found.dimensions(layer, head) == data[f"att_dims_{name}"].tolist()
            energy = np.sort(found.energy[layer, head])[::-1]
            assert np.allclose(energy, data[f"att_energy_{name}"], rtol=1e-5)
            wanted = json.loads(str(data[f"att_pairs_{name}"]))
            for rank, dimension in enumerate(found.dimensions(layer, head)):
                pairs = found.dimension_pairs(layer, head, dimension)
                # the reference writes key=query, nearest first; two words in both orders have equal cosines
                assert untied(pairs) == untied(pairs, [text.split("=") for text in wanted[rank]])
                compared += len(pairs)
            everywhere = Counter(tuple(text.split("=")[::-1]) for pairs in wanted for text in pairs)
            assert {(pair.query, pair.key): pair.dimensions for pair in found.pairs(layer, head)} == everywhere
    assert compared > 50


def untied(pairs: Sequence[WordPair], order: Sequence[Sequence[str]] | None = None) -> list[set[tuple[str, str]]]:
    """(query, key) in order, those of equal cosine as one set; with ``order`` in the order of (key, query) there."""
    score = {(pair.query, pair.key): round(pair.score, 5) for pair in pairs}
    named = list(score) if order is None else [(query, key) for key, query in order]
    groups: dict[float | None, set[tuple[str, str]]] = {}
    for pair in named:
        groups.setdefault(score.get(pair), set()).add(pair)
    return list(groups.values())


# ---- a naive loop


def naive(model: Any, words: Sequence[str], vectors: np.ndarray[Any, Any], top: int, frequent: int) -> dict[Any, Any]:
    """Head by head, dimension by dimension, pair by pair, in float64: {(layer, head, dimension): {(q, k): cosine}}."""
    embeddings = word_table(model, words).embeddings.double().numpy()
    length = np.linalg.norm(vectors, axis=1)
    has = length > 0

    def cosine(a: int, b: int) -> float:
        return float(vectors[a] @ vectors[b] / (length[a] * length[b]))

    often = [i for i in range(len(words)) if has[i]][:frequent]
    limit = {}
    for word in np.flatnonzero(has).tolist():
        near = [cosine(word, other) for other in often]
        limit[word] = np.mean(near) + 1.96 * np.std(near)
    found = {}
    for layer in range(model.n_layers):
        scale = model.weight("ln1_w", layer).double().numpy()[:, None]
        for head in range(model.n_heads):
            query = embeddings @ (scale * model.weight("W_Q", layer)[head].double().numpy())
            key = embeddings @ (scale * model.weight("W_K", layer)[head].double().numpy())
            for d in range(model.d_head):
                queries, keys = (np.argsort(-np.abs(x[:, d]))[:top].tolist() for x in (query, key))
                found[layer, head, d] = {
                    (words[a], words[b]): cosine(a, b)
                    for a in queries
                    for b in keys
                    if a != b and has[a] and has[b] and query[a, d] * key[b, d] > 0
                    and cosine(a, b) > max(limit[a], limit[b], 0)
                }  # fmt: skip
    return found


@pytest.mark.parametrize("backend", ["hooked", "bridge"])
@pytest.mark.parametrize("family", ["gpt2", "llama", "gpt_neox"])
def test_pairs_are_those_of_a_naive_loop(family: str, backend: str) -> None:
    model = tiny_model(family, backend, dtype=torch.float64)
    found = few(model, keep=500)
    total = check_against(found, naive(model, WORDS, VECTORS, TOP, 1000), model)
    assert total > 200


def check_against(found: HeadWordResult, wanted: dict[Any, Any], model: Any) -> int:
    """All pairs with their cosines and counts; nothing is cut, so ties do not matter."""
    total = 0
    for layer in range(model.n_layers):
        for head in range(model.n_heads):
            own = [wanted[layer, head, d] for d in range(model.d_head)]
            for d, pairs in enumerate(own):
                kept = found.dimension_pairs(layer, head, d)
                assert {(pair.query, pair.key) for pair in kept} == set(pairs)
                scores = [pair.score for pair in kept]
                assert np.allclose(scores, [pairs[pair.query, pair.key] for pair in kept], atol=1e-6)
                assert scores == sorted(scores, reverse=True)
                assert found.dimension_counts[found.row(layer), head, d] == len(pairs)
                total += len(pairs)
            times = Counter(pair for pairs in own for pair in pairs)
            kept = found.pairs(layer, head)
            assert {(pair.query, pair.key): pair.dimensions for pair in kept} == times
            order = [(-pair.dimensions, -pair.score) for pair in kept]
            assert order == sorted(order)
            assert found.n_pairs[found.row(layer), head] == len(times)
    return total


def test_what_is_cut_is_the_end_of_the_order() -> None:
    model = tiny_model("llama")
    whole, cut = few(model, keep=500), few(model, keep=5)
    assert np.array_equal(whole.n_pairs, cut.n_pairs)
    assert np.array_equal(whole.dimension_counts, cut.dimension_counts)
    assert whole.dimension_counts.max() > 5
    for layer in range(3):
        for head in range(4):
            assert cut.pairs(layer, head) == whole.pairs(layer, head)[:5]
            for d in range(8):
                assert cut.dimension_pairs(layer, head, d) == whole.dimension_pairs(layer, head, d)[:5]


def test_ties_are_ordered_by_the_word_list() -> None:
    found, tied = few(tiny_model("gpt2"), top=50, keep=500), 0
    for layer in range(3):
        for head in range(4):
            place = {pair[:2]: (i, pair) for i, pair in enumerate(found.pairs(layer, head))}
            for (query, key), (i, pair) in place.items():
                # a pair and its reverse have the same cosine to the last bit
                j, other = place.get((key, query), (None, pair))
                assert pair.score == other.score
                if j is not None and pair.dimensions == other.dimensions and WORDS.index(query) < WORDS.index(key):
                    assert i < j
                    tied += 1
    assert tied > 10


# ---- controls: what the pairs depend on


def same_pairs(a: HeadWordResult, b: HeadWordResult) -> float:
    """Share of the heads with the same list of pairs."""
    return float((a.head_pairs == b.head_pairs).all(axis=(2, 3)).mean())


def test_the_norms_scale_the_vectors_and_the_shared_keys_matter() -> None:
    hf_model = tiny_hf("llama", dtype=torch.float64)
    model = load_model(hf_model, tokenizer=tiny_model("llama").tokenizer, dtype=torch.float64)
    before = few(model)
    assert same_pairs(before, few(model)) == 1
    assert same_pairs(before, few(model, vectors=VECTORS[::-1].copy())) < 0.3
    # each pair of query heads reads one key head: changing the first key head changes heads 0 and 1 only
    with torch.no_grad():
        key = hf_model.model.layers[1].self_attn.k_proj.weight[: model.d_head]  # (d_head, d_model)
        key.copy_(key.flip(1))
    after = few(model)
    changed = (before.head_pairs != after.head_pairs).any(axis=(2, 3))
    assert changed.tolist() == [[False] * 4, [True, True, False, False], [False] * 4]
    with torch.no_grad():
        hf_model.model.layers[2].input_layernorm.weight[::2] *= 5
    changed = (after.head_pairs != few(model).head_pairs).any(axis=(2, 3))
    assert changed[2].all()
    assert not changed[:2].any()


def test_thresholds_come_from_the_most_frequent_words() -> None:
    model = tiny_model("gpt2", dtype=torch.float64)
    check_against(few(model, frequent=10, keep=500), naive(model, WORDS, VECTORS, TOP, 10), model)
    assert same_pairs(few(model), few(model, frequent=10)) < 1
    near = cosines(VECTORS, np.ones(len(WORDS), dtype=bool), frequent=10, device=torch.device("cpu"))
    units = VECTORS / np.linalg.norm(VECTORS, axis=1, keepdims=True)
    table = units @ units[:10].T
    assert np.allclose(near.thresholds, np.maximum(table.mean(1) + 1.96 * table.std(1), 0), atol=1e-6)


def test_words_without_a_vector_are_counted_and_in_no_pair() -> None:
    model = tiny_model("llama", dtype=torch.float64)
    holes = VECTORS.copy()
    holes[[1, 2, 20]] = 0
    found = few(model, vectors=holes, keep=500)
    assert found.missing == (WORDS[1], WORDS[2], WORDS[20])
    check_against(found, naive(model, WORDS, holes, TOP, 1000), model)
    assert not any(found.word_counts(word).any() for word in found.missing)
    assert few(model, keep=500).word_counts(WORDS[2]).any()
    by_word = {word: row.tolist() for word, row in zip(WORDS, holes, strict=True) if row.any()}
    again = few(model, vectors=by_word, keep=500)
    assert again.missing == found.missing
    assert np.array_equal(again.head_pairs, found.head_pairs)


def test_words_that_the_tokenizer_cannot_write_are_listed(reference_data: Path) -> None:
    data = reference(reference_data)
    words = [*map(str, data["words"]), "zebra"]
    vectors = np.concatenate([data["glove"], np.ones((1, 12), dtype=np.float32)])
    model = reference_model(reference_data)
    found = head_word_pairs(model, words=words, vectors=vectors, top=20)
    assert found.unknown == ("zebra",)
    assert found.missing == ()
    without = head_word_pairs(model, words=words[:-1], vectors=data["glove"], top=20)
    assert np.array_equal(found.head_pairs, without.head_pairs)


# ---- ways to ask


@pytest.mark.hooked
def test_tiles_chunks_backends_and_chosen_layers_do_not_change_pairs(monkeypatch: pytest.MonkeyPatch) -> None:
    model = tiny_model("llama", "hooked", dtype=torch.float64)
    whole = few(model)
    assert same_pairs(whole, few(tiny_model("llama", "bridge", dtype=torch.float64))) == 1
    part = few(model, layers=[2, 1])
    assert tuple(part.layers) == (1, 2)
    assert part.pairs(2, 3) == whole.pairs(2, 3)
    assert part.dimension_pairs(1, 0, 5) == whole.dimension_pairs(1, 0, 5)
    monkeypatch.setattr(word_pairs, "_WORDS", 7)
    monkeypatch.setattr(word_pairs, "_NUMBERS", {"cpu": 7 * 16})
    monkeypatch.setattr(word_pairs, "_COSINES", {"cpu": 3 * TOP**2})
    tiled = few(model)
    assert np.array_equal(tiled.head_pairs, whole.head_pairs)
    assert np.array_equal(tiled.dimension_word_pairs, whole.dimension_word_pairs)
    assert np.allclose(tiled.energy, whole.energy, rtol=1e-12)


def test_half_precision_runs_in_float32() -> None:
    half, full = (few(tiny_model("llama", dtype=kind, seed=HALF_SEED)) for kind in (torch.bfloat16, torch.float32))
    assert np.allclose(half.energy, full.energy, rtol=0.05)
    assert np.median(compare_heads(full, half).head_change) < 0.5


def test_vectors_come_in_many_forms(tmp_path: Path) -> None:
    model = tiny_model("gpt2")
    whole = few(model)
    known = WordVectors(tuple(WORDS), VECTORS)
    lines = [f"{word} {' '.join(map(str, row))}" for word, row in zip(WORDS, VECTORS, strict=True)]
    (tmp_path / "vectors.txt").write_text("\n".join(lines), encoding="utf8")
    for vectors in (known, tmp_path / "vectors.txt", str(tmp_path / "vectors.txt")):
        assert same_pairs(few(model, vectors=vectors), whole) == 1
    own = head_word_pairs(model, vectors=known, top=TOP, keep=KEEP)  # the words are those of the vectors
    assert own.vocabulary == tuple(WORDS)
    assert same_pairs(own, whole) == 1
    counted = {word: len(WORDS) - i for i, word in enumerate(WORDS)}
    assert same_pairs(few(model, words=counted), whole) == 1


def test_more_words_asked_for_than_there_are_means_all() -> None:
    found = few(tiny_model("gpt2"), top=1000)
    assert found.top == len(WORDS)


def test_a_cancel_is_heard_and_progress_adds_up() -> None:
    model = tiny_model("llama")
    seen: list[tuple[int, int]] = []
    partial: list[HeadWordResult] = []
    found = few(model, progress=lambda done, total: seen.append((done, total)), on_partial=partial.append)
    assert [done for done, _ in seen] == sorted(done for done, _ in seen)
    assert seen[-1][0] == seen[-1][1]
    assert [tuple(part.layers) for part in partial] == [(0,), (0, 1)]
    assert all(part.partial for part in partial)
    assert not found.partial
    assert partial[1].pairs(1, 2) == found.pairs(1, 2)

    class Cancelled(Exception):
        pass

    calls = 0

    def check() -> None:
        nonlocal calls
        calls += 1
        if calls == 5:
            raise Cancelled

    with pytest.raises(Cancelled):
        few(model, check=check)
    assert model.lock.acquire(blocking=False)
    model.lock.release()


# ---- the result


def test_a_result_is_saved_and_reopened(tmp_path: Path) -> None:
    holes = VECTORS.copy()
    holes[3] = 0
    found = few(tiny_model("gpt_neox"), vectors=holes)
    again = Result.load(found.save(tmp_path / "pairs"))
    assert isinstance(again, HeadWordResult)
    assert again.equals(found)
    assert again.missing == (WORDS[3],)
    assert again.pairs(2, 1) == found.pairs(2, 1)
    assert again.provenance["top"] == TOP


def test_words_are_found_in_heads_and_the_table_has_every_pair() -> None:
    found = few(tiny_model("llama"))
    frame = found.to_frame()
    assert len(frame) == (found.head_counts > 0).sum()
    one = frame[(frame.layer == 1) & (frame["head"] == 2)]
    assert [tuple(row) for row in one[["query", "key"]].to_numpy()] == [p[:2] for p in found.pairs(1, 2)]
    word = found.pairs(1, 2)[0].query
    cells = found.heads_with(word)
    assert (1, 2) in [cell[:2] for cell in cells]
    for layer, head, count in cells:
        assert count == sum(word in pair[:2] for pair in found.pairs(layer, head)) > 0
    assert sum(count for *_, count in cells) == found.word_counts(word).sum()


def test_the_places_of_a_word_and_of_a_pair() -> None:
    found = few(tiny_model("llama"), layers=[0, 2])
    every = [
        (layer, head, d, *pair[:2], pair.score)
        for layer in (0, 2)
        for head in range(4)
        for d in range(8)
        for pair in found.dimension_pairs(layer, head, d)
    ]
    word, key = next(one[3:5] for one in every if one[0] == 2)
    wanted = [one for one in every if word in one[3:5]]
    places = found.places_of(word)
    assert sorted(places) == sorted(wanted)
    assert [one.score for one in places] == sorted((one.score for one in places), reverse=True)
    counts, nearest = found.find(word)
    assert counts.sum() == len(wanted)
    best: dict[tuple[int, int], float] = {}
    for layer, head, *_, score in wanted:
        best[layer, head] = max(score, best.get((layer, head), -1.0))
    assert {(one.layer, one.head): one.score for one in nearest} == best
    assert all(tuple(one) in wanted for one in nearest)
    lonely = next((word for word in found.vocabulary if not found.places_of(word)), "")
    assert not lonely or (found.find(lonely).nearest == [] and not found.find(lonely).counts.any())
    for layer, head, d, *_ in wanted:
        assert counts[found.row(layer), head, d] == sum(one[:3] == (layer, head, d) for one in wanted)
    for layer in (0, 2):
        for head in range(4):
            behind = [one[2] for one in every if one[:2] == (layer, head) and one[3:5] == (word, key)]
            order = [d for d in found.dimensions(layer, head) if d in behind]
            assert found.dimensions_with(layer, head, word, key) == order
            kept = found.pairs(layer, head)
            mean = np.mean([one.dimensions for one in kept]) if kept else np.nan
            assert found.mean_count[found.row(layer), head] == pytest.approx(mean, nan_ok=True)
    heads = {}
    for layer in (0, 2):
        for head in range(4):
            for one in {words for pair in found.pairs(layer, head) for words in pair[:2]}:
                heads[one] = heads.get(one, 0) + 1
    assert dict(found.head_words()) == heads
    assert [count for _, count in found.head_words()] == sorted(heads.values(), reverse=True)
    np.testing.assert_allclose(found.head_energy, found.energy.sum(-1))


def test_the_forecast_grows_with_the_work() -> None:
    model = tiny_model("llama")
    one = head_words_cost(model, 1000, width=50, top=20)
    assert head_words_cost(model, 2000, width=50, top=20).flops > one.flops
    assert head_words_cost(model, 1000, width=50, top=40).flops > one.flops
    assert head_words_cost(model, 2000, width=50, top=20).bytes > one.bytes > 0


def test_the_demo_pair_has_pairs_in_every_head() -> None:
    found = head_word_pairs(demo_pair().base)
    assert found.vocabulary == demo_word_vectors().words
    assert found.missing == found.unknown == ()
    assert (found.n_pairs > 100).all()
    assert (found.head_counts > 0).all()
    assert found.provenance["vectors"] == "demo"


# ---- two models


def test_a_model_has_not_changed_from_itself_and_another_has() -> None:
    a, b = (few(tiny_model("llama", seed=seed)) for seed in (0, 1))
    same = compare_heads(a, a)
    assert np.nanmax(same.head_change) == np.nanmax(same.dimension_change) == 0
    assert not same.pair_change.any()
    assert not same.gained.any()
    assert not same.lost.any()
    other = compare_heads(a, b, groups=2)
    assert np.nanmin(other.head_change) > 0.5
    assert [other.group_name(group) for group in range(2)] == ["0-1", "2"]
    for layer in range(3):
        for head in range(4):
            one, two = ({pair[:2] for pair in r.pairs(layer, head)} for r in (a, b))
            assert other.head_change[layer, head] == pytest.approx(1 - len(one & two) / len(one | two))
            for d in range(8):
                one, two = ({pair[:2] for pair in r.dimension_pairs(layer, head, d)} for r in (a, b))
                wanted = 1 - len(one & two) / len(one | two) if one | two else np.nan
                assert other.dimension_change[layer, head, d] == pytest.approx(wanted, nan_ok=True)
    table = other.change_table()
    assert table.head_mean[0] == pytest.approx(np.nanmean(other.head_change[:2]))
    assert table.dimension_std[1] == pytest.approx(np.nanstd(other.dimension_change[2]))
    assert table.n_heads.tolist() == [8, 4]


def test_what_unrelated_heads_have_in_common() -> None:
    a, b = (few(tiny_model("llama", seed=seed)) for seed in (0, 1))
    found = compare_heads(a, b)

    def change(one: list[WordPair], two: list[WordPair]) -> float:
        first, second = ({pair[:2] for pair in pairs} for pairs in (one, two))
        return 1 - len(first & second) / len(first | second) if first | second else np.nan

    for layer in range(3):
        for head in range(4):
            others = [change(a.pairs(layer, head), b.pairs(layer, other)) for other in range(4) if other != head]
            assert found.other_head_change[layer, head] == pytest.approx(np.nanmean(others))
            for d in range(8):
                wanted = change(a.dimension_pairs(layer, head, d), b.dimension_pairs(layer, head, (d + 1) % 8))
                assert found.other_dimension_change[layer, head, d] == pytest.approx(wanted, nan_ok=True)
    table = found.change_table()
    assert table.other_head_mean[0] == pytest.approx(np.nanmean(found.other_head_change[0]))
    # a head is itself, and no other one
    same = compare_heads(a, a)
    assert np.nanmax(same.head_change) == 0
    assert np.nanmin(same.other_head_change) > 0.5


def with_pairs(found: HeadWordResult, wanted: dict[tuple[int, int], list[tuple[str, str]]]) -> HeadWordResult:
    """A result whose heads have exactly these pairs."""
    pairs, counts = np.full_like(found.head_pairs, -1), np.zeros_like(found.head_counts)
    for cell, named in wanted.items():
        for rank, words in enumerate(named):
            pairs[cell][rank] = [found.word_index(word) for word in words]
            counts[cell][rank] = 1
    return replace(found, head_pairs=pairs, head_counts=counts)


def test_the_share_of_heads_that_gained_a_verb() -> None:
    found = few(tiny_model("llama"))
    base = with_pairs(
        found, {(0, 0): [("cat", "mat")], (0, 1): [("sat", "mat"), ("cat", "sat")], (2, 0): [("sat", "on")]}
    )
    tuned = with_pairs(found, {(0, 0): [("sat", "mat")], (0, 1): [("sat", "mat")], 
                               (0, 2): [("cat", "dog"), ("sat", "cat")], (2, 0): [("on", "sat")]})  # fmt: skip
    given = {"instruction_verbs": ["sat", "write"], "general_verbs": ["cat", "mat", "jumps"]}
    compared = compare_heads(base, tuned, groups=3, **given)
    assert compared.verbs == ("sat", "cat", "mat", "jumps")
    assert compared.missing_verbs == ("write",)
    assert compared.instruction.tolist() == [True, False, False, False]
    # head 0: sat +1, cat -1, mat same; head 1: sat -1, cat -1; head 2: cat +2, sat +1; layer 2: pairs turned, none more
    assert compared.gained.tolist() == [[2, 1, 0, 0], [0] * 4, [0] * 4]
    assert compared.lost.tolist() == [[1, 2, 0, 0], [0] * 4, [0] * 4]
    assert compared.share[0][:2].tolist() == pytest.approx([2 / 3, 1 / 3])
    assert np.isnan(compared.share[0][2:]).all()
    table = compared.verb_table()
    assert table.instruction_mean[0] == pytest.approx(200 / 3)
    assert table.general_verbs.tolist() == [1, 0, 0]
    assert compared.tests == (None, None, None)  # one verb a side is no group
    assert len(compared.to_frame()) == 12


def test_a_real_gain_of_instruction_verbs_is_found_and_no_gain_is_not(tmp_path: Path) -> None:
    found = few(tiny_model("llama"), keep=40)
    asking, common = WORDS[:10], WORDS[10:30]
    rng = np.random.default_rng(0)

    def heads(gain: float) -> HeadWordResult:
        """Every head has each verb once by chance, instruction verbs more often by ``gain``."""
        wanted = {
            (layer, head): [(w, "lazy") for w in asking if rng.random() < 0.5 + gain]
            + [(w, "lazy") for w in common if rng.random() < 0.5]
            for layer in range(3)
            for head in range(4)
        }
        return with_pairs(found, wanted)

    verbs = {"instruction_verbs": asking, "general_verbs": common, "groups": 1}
    changed = compare_heads(heads(-0.4), heads(0.4), **verbs)
    (test,) = changed.tests
    assert test is not None
    assert test.welch_p < 1e-4
    assert test.difference > 20
    assert test.holm_p == test.welch_p
    (chance,) = compare_heads(heads(0.0), heads(0.0), **verbs).tests
    assert chance is not None
    assert chance.welch_p > 0.05
    again = Result.load(changed.save(tmp_path / "heads"))
    assert isinstance(again, HeadComparison)
    assert again.equals(changed)


def test_models_and_results_can_be_mixed() -> None:
    pair = demo_pair()
    options: dict[str, Any] = {"words": demo_word_vectors().words[:300], "layers": [0, 5], "top": 30}
    base, tuned = (head_word_pairs(model, **options) for model in (pair.base, pair.tuned))
    seen: list[tuple[int, int]] = []
    found = compare_heads(pair.base, pair.tuned, groups=2, progress=lambda *at: seen.append(at), **options)
    assert found.layers == (0, 5)
    assert found.equals(compare_heads(base, tuned, groups=2))
    assert found.equals(compare_heads(base, pair.tuned, groups=2, **options))
    assert [done for done, _ in seen] == sorted(done for done, _ in seen)
    assert seen[-1][0] == seen[-1][1]
    assert 0 < found.head_change.mean() < 1
    assert found.provenance["tuned"] == "demo-tuned"


# ---- bad input


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"words": []}, "the list of words is empty"),
        ({"words": ["cat", ""]}, "word 1 of the list must be a str"),
        ({"words": ["cat", "mat", "cat"]}, "the word 'cat' is in the list twice, at 0 and 2"),
        ({"vectors": VECTORS[:5]}, r"vectors as an array must have one row per word \(90\), got 5"),
        ({"vectors": VECTORS * np.nan}, "vectors must be finite numbers"),
        ({"vectors": np.zeros_like(VECTORS)}, "only 0 of the 90 words have a vector"),
        ({"vectors": {"zebra": [1.0, 2.0]}}, "only 0 of the 90 words have a vector"),
        ({"vectors": "nowhere.txt"}, "there is no file of word vectors at nowhere.txt"),
        ({"top": 0}, r"top must be in 1\.\.1000, got 0"),
        ({"top": 1001}, r"top must be in 1\.\.1000, got 1001: time and memory grow with top x top"),
        ({"keep": 0}, r"keep must be in 1\.\.100000, got 0"),
        ({"keep": 10**9}, r"keep must be in 1\.\.100000, got 1000000000"),
        ({"frequent": 1}, "frequent must be 2 or more, got 1"),
        ({"layers": [3]}, r"layer must be in -3\.\.2 for this 3-layer model, got 3"),
    ],
)
def test_bad_input_is_one_clear_sentence(options: dict[str, Any], message: str) -> None:
    given = {"words": WORDS, "vectors": VECTORS, **options}
    with pytest.raises((ValueError, FileNotFoundError), match=message):
        # unwrapped: the type checker of the tests would refuse some of these before the function does
        inspect.unwrap(head_word_pairs)(tiny_model("llama"), **given)


def test_broken_weights_are_named() -> None:
    hf_model = tiny_hf("gpt2")
    model = load_model(hf_model, tokenizer=tiny_model("gpt2").tokenizer)
    hf_model.transformer.h[1].attn.c_attn.weight.data[3, 5] = torch.nan  # queries come first, 8 numbers a head
    with pytest.raises(ValueError, match="dimension 5 of a query or key in layer 1 is not finite"):
        few(model)


def test_what_is_not_in_a_result_is_named() -> None:
    found = few(tiny_model("llama"), layers=[0, 2])
    for call, message in (
        (lambda: found.pairs(1, 0), "layer must be one of 0, 2, which were computed, .* got 1"),
        (lambda: found.pairs(0, 4), r"head must be in -4\.\.3 .* got 4"),
        (lambda: found.dimension_pairs(0, 0, 8), r"dimension must be in -\d+\.\.7 .* got 8"),
        (lambda: found.heads_with("zebra"), "the word 'zebra' is not in the list of 90 words"),
    ):
        with pytest.raises(ValueError, match=message):
            call()


def test_results_that_do_not_fit_are_refused() -> None:
    model = tiny_model("llama")
    found = few(model)
    for other, message in (
        (few(model, words=[*WORDS[:-1], "zebra"]), f"different words .first difference: {WORDS[-1]!r} and 'zebra'"),
        (few(model, layers=[0, 1]), r"the same layers, got \(0, 1, 2\) and \(0, 1\)"),
        (few(model, keep=4), "the same keep, got 9 and 4"),
        (few(model, top=4), "the same top, got 20 and 4"),
    ):
        with pytest.raises(ValueError, match=message):
            compare_heads(found, other)
    with pytest.raises(ValueError, match="groups must be 1 or more, got 0"):
        compare_heads(found, found, groups=0)
    with pytest.raises(ValueError, match="the verb 'write' is in both instruction_verbs and general_verbs"):
        compare_heads(found, found, general_verbs=["write"])
    with pytest.raises(TypeError, match="'top' is an option for models, but two results were given"):
        compare_heads(found, found, top=5)
    with pytest.raises(ValueError, match=r"group must be in -3\.\.2 for this comparison of 3 layer groups, got 3"):
        compare_heads(found, found).group_name(3)
