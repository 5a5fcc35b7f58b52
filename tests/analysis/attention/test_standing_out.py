"""The head that stands out in the patterns of a prompt, against plain loops and circuits of known truth."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from interp_widgets import attention_patterns, load_circuit
from interp_widgets.analysis.attention.patterns import AttentionPatterns
from interp_widgets.analysis.attention.standing_out import FEWEST, SINK, standing_out

REPEATS = "beta eta psi rho mu beta eta psi rho mu"


def made(ids: list[int], keys: dict[tuple[int, int], dict[int, int]], share: float = 0.8) -> AttentionPatterns:
    """Patterns of 2 x 2 heads that attend equally to all tokens, but for these keys of some queries."""
    n = len(ids)
    patterns = np.tril(np.ones((2, 2, n, n))) / np.arange(1, n + 1)[:, None]
    for (layer, head), of_query in keys.items():
        for query, key in of_query.items():
            patterns[layer, head, query, : query + 1] = (1 - share) / query
            patterns[layer, head, query, key] = share
    return AttentionPatterns(
        tokens=tuple(map(str, ids)), ids=tuple(ids), special=(False,) * n, layers=(0, 1), heads=(0, 1),
        patterns=patterns, provenance={},
    )  # fmt: skip


def mean_attention(result: AttentionPatterns, layer: int, head: int, pairs: list[tuple[int, int]]) -> float:
    return float(
        sum(result.patterns[layer, head, query, key] for query, key in pairs) / len({query for query, _ in pairs})
    )


def test_each_kind_is_found_where_it_is_put() -> None:
    ids = [9, 1, 2, 3, 4, 1, 2, 3, 4]
    later = range(5, 9)
    kinds = {
        "previous_token": {query: query - 1 for query in range(2, 9)},
        "duplicate_token": {query: query - 4 for query in later},
        "induction": {query: query - 3 for query in later},
    }
    for kind, keys in kinds.items():
        result = made(ids, {(1, 0): keys})
        found = standing_out(result)
        assert found is not None
        assert (found.layer, found.head, found.kind) == (1, 0, kind)
        assert found.score == pytest.approx(mean_attention(result, 1, 0, list(keys.items())))
        assert found.chance == pytest.approx(np.mean([1 / (query + 1) for query in keys]))


def test_several_earlier_occurrences_count_together() -> None:
    ids = [9, 5, 5, 5, 5, 5, 5]
    result = made(ids, {(0, 1): dict.fromkeys(range(2, 7), 1)}, share=0.9)
    pairs = [(query, key) for query in range(2, 7) for key in range(1, query)]
    found = standing_out(result)
    assert found is not None
    assert (found.layer, found.head, found.kind) == (0, 1, "duplicate_token")
    assert found.score == pytest.approx(mean_attention(result, 0, 1, pairs))
    assert found.chance == pytest.approx(sum(1 / (query + 1) for query, _ in pairs) / 5)


def test_a_repetition_seen_by_too_few_queries_decides_nothing() -> None:
    ids = [9, *range(1, 8), *range(1, FEWEST)]
    later = range(8, 8 + FEWEST - 1)
    found = standing_out(made(ids, {(1, 1): {query: query - 7 for query in later}}))
    assert found is not None
    assert found.kind == "narrow"


def test_without_a_known_kind_the_narrowest_head_that_is_no_sink() -> None:
    ids = list(range(9))
    sink, odd = dict.fromkeys(range(1, 9), 0), {query: query // 2 for query in range(1, 9)}
    result = made(ids, {(0, 0): sink, (1, 0): odd}, share=0.9)
    assert result.first_token[0, 0] > SINK > result.first_token[1, 0]
    found = standing_out(result)
    assert found is not None
    assert (found.layer, found.head, found.kind) == (1, 0, "narrow")
    rows = [result.patterns[1, 0, query, : query + 1] for query in range(1, 9)]
    spread = np.mean([np.exp(-sum(p * np.log(p) for p in row if p)) for row in rows])
    assert found.score == pytest.approx(spread)
    assert found.chance == pytest.approx(np.mean(range(2, 10)))
    only = standing_out(result, layers=[0], heads=[0])  # nothing else may be chosen
    assert only is not None
    assert (only.layer, only.head) == (0, 0)


def test_the_heads_of_a_circuit() -> None:
    circuit, _ = load_circuit("induction")
    result = attention_patterns(circuit, REPEATS)
    found, first = standing_out(result), standing_out(result, layers=[0])
    assert found is not None
    assert first is not None
    assert (found.layer, found.head, found.kind) == (1, 1, "induction")
    assert (first.layer, first.head, first.kind) == (0, 0, "previous_token")
    blurred = replace(result, patterns=np.tril(np.ones_like(result.patterns)) / np.arange(1, 12)[:, None])
    none = standing_out(blurred)
    assert none is not None
    assert (none.layer, none.head, none.kind) == (0, 0, "narrow")  # equal heads: the first


def test_a_prompt_of_one_token_has_none() -> None:
    assert standing_out(made([3], {})) is None
