"""The map of a large set of directions from a file is kept beside the file, and found again."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from interp_widgets.analysis.concepts import ConceptMap, ConceptSet
from interp_widgets.widgets.concepts import direction_map as map_tab
from interp_widgets.widgets.concepts.direction_map import MapRequest
from interp_widgets.widgets.concepts.directions import OpenedSet


def a_set(seed: int = 0, count: int = 20) -> ConceptSet:
    rows = np.random.default_rng(seed).normal(size=(count, 6))
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    zeros = np.zeros(count)
    return ConceptSet(names=[f"c{i}" for i in range(count)], directions=rows, layer=1, groups=[""] * count,
                      center=np.zeros(6), gap=zeros, auc=zeros, group_auc=zeros, shuffled_auc=zeros,
                      method="mean_difference")  # fmt: skip


@pytest.fixture
def asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> MapRequest:
    monkeypatch.setattr(map_tab, "KEPT_FROM", 10)
    return MapRequest(OpenedSet.at(str(a_set().save(tmp_path / "mine"))), "pca")


def place(asked: MapRequest, found: ConceptSet, other: ConceptSet | None = None) -> Any:
    return asked.map_of(found, other, lambda: None)


def test_a_kept_map_is_taken_and_another_set_makes_its_own(asked: MapRequest, tmp_path: Path) -> None:
    found, kept = a_set(), tmp_path / "mine.pca-map.npz"
    first = place(asked, found)
    assert ConceptMap.load(kept).equals(first)
    replace(first, xy=first.xy + 1).save(kept)  # told by its places
    np.testing.assert_array_equal(place(asked, found).xy, first.xy + 1)
    changed = a_set(1)
    assert not np.allclose(place(asked, changed).xy, first.xy + 1)
    assert ConceptMap.load(kept).fingerprint == place(asked, changed).fingerprint
    place(asked, found, changed)
    assert ConceptMap.load(tmp_path / "mine.pca-pair-map.npz").other_xy is not None


def test_a_damaged_file_is_replaced_and_small_sets_keep_none(asked: MapRequest, tmp_path: Path) -> None:
    kept = tmp_path / "mine.pca-map.npz"
    kept.write_text("no map")
    found = place(asked, a_set())
    assert ConceptMap.load(kept).equals(found)
    kept.unlink()
    place(asked, a_set(count=9))
    place(MapRequest(asked.source, "tsne"), a_set())
    assert {path.name for path in tmp_path.glob("*map.npz")} == {"mine.tsne-map.npz"}
