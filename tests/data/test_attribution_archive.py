"""The reader of published importance matrices: what it reads, and what it refuses."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from interp_widgets.data.attribution_archive import read_importance_archive


def archive_arrays() -> dict[str, Any]:
    """A tiny archive: two cases of 2 x 3 and 1 x 0 tokens."""
    return {
        "case_id": np.array(["a", "b"]),
        "model": np.array(["tuned", "base"]),
        "n_prompt": np.array([2, 1]),
        "n_response": np.array([3, 0]),
        "rating": np.array([2.0, np.nan]),
        "importance": np.arange(6, dtype=np.uint8),
        "importance_offset": np.array([0, 6, 6]),
        "instruction_mask": np.array([0, 1, 1], dtype=np.uint8),
        "mask_offset": np.array([0, 2, 3]),
    }


def test_cases_come_back_in_order(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", **archive_arrays())
    first, second = read_importance_archive(tmp_path / "a.npz")
    assert first.importance.tolist() == [[0, 1, 2], [3, 4, 5]]
    assert first.mask.tolist() == [False, True]
    assert (first.name, first.model, first.rating, first.label, first.score) == ("a", "tuned", 2.0, True, None)
    assert second.importance.shape == (1, 0)
    assert (second.rating, second.label) == (None, None)
    assert [r.name for r in read_importance_archive(tmp_path / "a.npz", model="base")] == ["b"]


@pytest.mark.parametrize(("rating", "label"), [(1.0, False), (2.0, True), (4.0, True), (-1.0, None), (np.nan, None)])
def test_ratings_become_labels(tmp_path: Path, rating: float, label: bool | None) -> None:
    np.savez(tmp_path / "a.npz", **(archive_arrays() | {"rating": np.array([rating, 1.0])}))
    assert read_importance_archive(tmp_path / "a.npz")[0].label is label


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"rating": None}, "has no rating"),
        ({"n_prompt": np.array([3, 1])}, "is damaged"),
        ({"importance": np.zeros(5, dtype=np.uint8)}, "is damaged"),
        ({"model": np.array(["tuned"])}, "is damaged"),
        ({"case_id": np.array("a")}, r"case_id must be a list of numbers, got <U1 of shape \(\)"),
        ({"n_prompt": np.array(["2", "1"])}, "n_prompt must be a list of numbers, got <U1"),
        ({"n_prompt": np.array([[2, 1]])}, r"n_prompt must be a list of numbers, got int64 of shape \(1, 2\)"),
        ({"importance": np.array([0.0, 1, 2, 3, 4, np.nan])}, "importance must be finite, got NaN or infinity"),
        ({"score": np.array([1.0])}, "is damaged"),
        ({"rating": np.array([1, {}], dtype=object)}, "not a readable"),
    ],
)
def test_other_files_are_refused(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    arrays = {name: value for name, value in (archive_arrays() | changes).items() if value is not None}
    np.savez(tmp_path / "a.npz", **arrays)
    with pytest.raises(ValueError, match=message):
        read_importance_archive(tmp_path / "a.npz")


def test_missing_file_and_model(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="no file of importance matrices"):
        read_importance_archive(tmp_path / "none.npz")
    np.savez(tmp_path / "a.npz", **archive_arrays())
    with pytest.raises(ValueError, match=r"no cases of 'gpt'; its models are base, tuned"):
        read_importance_archive(tmp_path / "a.npz", model="gpt")
    (tmp_path / "text.npz").write_text("hello")
    with pytest.raises(ValueError, match="not a readable"):
        read_importance_archive(tmp_path / "text.npz")


def test_published_archive(reference_data: Path) -> None:
    records = read_importance_archive(reference_data / "attribution_self_instruct.npz")
    assert len(records) == 504
    assert {r.model for r in records} == {"vicuna", "llama"}
    assert all(r.importance.shape[0] == len(r.mask) for r in records)
    assert sum(r.label is not None for r in records) == 251
