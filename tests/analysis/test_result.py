"""The base of all results: checked, frozen, saved without pickle, read back the same."""

from __future__ import annotations

import dataclasses
import gc
import json
import weakref
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from interp_widgets.analysis._core.arrays import Bools, Floats, Ints
from interp_widgets.analysis._core.result import (
    Record,
    Result,
    Results,
    Unreadable,
    by_itself,
    digest_of,
    provenance,
    record,
    with_axes,
)  # fmt: skip
from interp_widgets.analysis._core.tables import table
from interp_widgets.renamed import renamed


@record
class InnerPart(Record):
    low: float
    values: NDArray[np.float64]


@record
class SampleResult(Result):
    scores: Floats = with_axes("tokens", "columns")
    counts: Ints = with_axes("tokens")
    flags: Bools = with_axes("tokens")
    tokens: Sequence[str] = with_axes("tokens")
    parts: Sequence[InnerPart] = with_axes("parts", default=())
    options: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    names: Mapping[int, str] = dataclasses.field(default_factory=dict)
    missing: NDArray[np.float64] | None = None
    step: float = 0.5


@record
class OtherResult(Result):
    scores: NDArray[np.float64]


def sample(**changes: Any) -> SampleResult:
    fields: dict[str, Any] = {
        "scores": np.array([[0.1, np.nan], [-np.inf, 3.0]]),
        "counts": np.array([1, 2]),
        "flags": np.array([True, False]),
        "tokens": ["<img onerror=x>", "שלום 👩‍👩‍👧\x00\n\udc80"],
        "parts": [InnerPart(1.5, np.arange(3.0)), InnerPart(float("nan"), np.zeros(0))],
        "options": {"steps": 32, "nested": {"names": ("a", "b"), "none": None}},
        "names": {7: "seven", -1: "none"},
        "partial": True,
        "provenance": {"model": "demo", "seed": 0, "processed": False, "dropout": 0.0, "hub": None},
    }
    return SampleResult(**(fields | changes))


def test_saved_and_read_back_the_same(tmp_path: Path) -> None:
    result = sample()
    path = result.save(tmp_path / "sample")
    assert path == tmp_path / "sample.npz"
    for name in ("sample", "sample.npz"):
        back = SampleResult.load(tmp_path / name)
        assert back.equals(result)
        assert isinstance(back.parts[0], InnerPart)
        assert back.options["nested"]["names"] == ("a", "b")
        assert back.missing is None
        assert back.partial is True
    assert [p.name for p in tmp_path.iterdir()] == ["sample.npz"]
    assert Result.load(path).equals(result)


@pytest.mark.parametrize(
    "changes",
    [
        {"scores": np.array([[0.1, np.nan], [-np.inf, 3.0 + 1e-12]])},
        {"counts": np.array([1, 2], dtype=np.int32)},
        {"tokens": ["a", "b"]},
        {"parts": []},
        {"missing": np.zeros(1)},
        {"partial": False},
        {"provenance": {}},
        {"options": {"steps": 33}},
    ],
)
def test_equals_sees_every_difference(changes: dict[str, Any]) -> None:
    assert sample().equals(sample())
    assert not sample().equals(sample(**changes))


def test_a_field_keeps_in_files_the_name_that_it_had(tmp_path: Path) -> None:
    @renamed(colour="color")
    @record
    class Painted(Result):
        color: Floats = with_axes("pixels", saved_as="colour")

    result = Painted([0.5, 1.0])
    path = result.save(tmp_path / "painted.npz")
    with np.load(path) as archive:
        assert sorted(archive) == ["colour", "header.json"]
        assert set(json.loads(archive["header.json"].tobytes())["fields"]) == {"colour", "partial", "provenance"}
    assert Painted.load(path).color.tolist() == [0.5, 1.0]
    with pytest.warns(DeprecationWarning, match=r"Painted\.colour is called Painted\.color now"):
        assert result.colour.tolist() == [0.5, 1.0]  # type: ignore[attr-defined]
    with pytest.warns(DeprecationWarning, match=r"Painted\(colour=\) is called Painted\(color=\) now"):
        assert Painted(colour=[1.0]).color == 1  # type: ignore[call-arg]


def test_a_file_of_another_class_version_or_origin_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = sample().save(tmp_path / "sample.npz")
    with pytest.raises(ValueError, match=r"holds a SampleResult, not a OtherResult: use SampleResult.load"):
        OtherResult.load(path)
    monkeypatch.setattr(SampleResult, "VERSION", 2)
    with pytest.raises(ValueError, match="has version 1 of SampleResult, this program reads version 2"):
        SampleResult.load(path)
    with pytest.raises(FileNotFoundError, match=r"no result file at .*: give a path that save\(\) returned"):
        SampleResult.load(tmp_path / "absent")
    (tmp_path / "text.npz").write_text("not an archive")
    with pytest.raises(ValueError, match=r"not a readable \.npz archive of a result: it is not an archive"):
        SampleResult.load(tmp_path / "text.npz")
    np.savez(tmp_path / "foreign.npz", scores=np.zeros(3))
    with pytest.raises(ValueError, match="was not written by"):
        SampleResult.load(tmp_path / "foreign.npz")
    path.write_bytes(path.read_bytes()[:200])
    with pytest.raises(ValueError, match=r"not a readable \.npz archive of a result"):
        SampleResult.load(path)


def test_an_unknown_class_names_what_to_import(tmp_path: Path) -> None:
    head = {"format": "interp_widgets result", "class": "LensResult", "version": 1, "fields": {}}
    np.savez(tmp_path / "lens.npz", **{"header.json": np.frombuffer(json.dumps(head).encode(), dtype=np.uint8)})
    with pytest.raises(ValueError, match=r"holds a LensResult; import that class"):
        Result.load(tmp_path / "lens.npz")


def test_pickled_content_is_never_read_or_written(tmp_path: Path) -> None:
    path = sample().save(tmp_path / "sample")
    with np.load(path, allow_pickle=False) as archive:
        for name in archive.files:
            assert archive[name].dtype.kind in "fiub"
    with pytest.raises(TypeError, match=r"options\.f"):
        sample(options={"f": print}).save(tmp_path / "bad")
    with pytest.raises(TypeError, match="missing"):
        sample(missing=np.array([None])).save(tmp_path / "bad")
    with np.load(path) as archive:
        arrays = {name: archive[name] for name in archive.files}
    np.savez(tmp_path / "evil.npz", **(arrays | {"scores": np.array([{"a": 1}], dtype=object)}))
    with pytest.raises(ValueError, match=r"pickle|Object arrays"):
        SampleResult.load(tmp_path / "evil.npz")


def test_a_failed_save_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = sample().save(tmp_path / "kept")

    def full_disk(*_: Any, **__: Any) -> None:
        raise OSError("no space left on device")

    monkeypatch.setattr(np, "savez_compressed", full_disk)
    with pytest.raises(OSError, match="no space"):
        sample(partial=False).save(path)
    monkeypatch.undo()
    assert SampleResult.load(path).partial
    assert [p.name for p in tmp_path.iterdir()] == ["kept.npz"]


def test_frozen_and_the_callers_array_stays_their_own() -> None:
    mine = np.zeros((2, 2))
    result = sample(scores=mine)
    with pytest.raises(dataclasses.FrozenInstanceError):
        result.step = 1.0  # type: ignore[misc]
    with pytest.raises(ValueError, match="read-only"):
        result.scores[0, 0] = 1
    mine[0, 0] = 5
    assert mine.flags.writeable
    assert hash(result) != hash(sample(scores=mine))


@pytest.mark.parametrize("make", [np.zeros, lambda shape: torch.zeros(shape).numpy()], ids=["array", "tensor"])
def test_a_part_of_a_larger_array_does_not_keep_it_alive(make: Callable[[tuple[int, ...]], Any]) -> None:
    whole = make((5, 2, 2))
    part, counts = whole[3, :, :], np.arange(2)
    result, owner = sample(scores=part, counts=counts), weakref.ref(whole if whole.base is None else whole.base)
    del whole, part
    gc.collect()
    assert owner() is None
    assert result.scores.shape == (2, 2)
    assert not result.scores.any()
    assert np.shares_memory(result.counts, counts), "what it needs whole is not copied"
    with pytest.raises(ValueError, match="read-only"):
        result.scores[0, 0] = 1


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"scores": np.zeros((3, 2))}, r"SampleResult.scores must have shape \(2, any\), got \(3, 2\)"),
        ({"scores": np.zeros(2)}, r"must have shape \(2, any\), got \(2,\)"),
        ({"counts": np.zeros(2)}, "SampleResult.counts must hold int values, got float64"),
        ({"flags": np.zeros(2, dtype=int)}, "SampleResult.flags must hold bool values"),
    ],
)
def test_wrong_shapes_and_kinds_are_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        sample(**changes)


@record
class Strict(Record):
    values: Floats = with_axes(2, nan=False)
    names: Sequence[str] = with_axes(1, default=("x",))
    more: Floats | None = with_axes("rows", "columns", default=None)
    square: Floats | None = with_axes("columns", "columns", default=None)
    nested: Sequence[Sequence[int]] = with_axes("pairs", 2, default=())


def test_nan_and_length_checks() -> None:
    assert Strict([1.0, 2.0]).values.shape == (2,)
    with pytest.raises(ValueError, match="finite, got NaN or infinity in 1 places"):
        Strict([1.0, float("nan")])
    with pytest.raises(ValueError, match="names must have 1 entries, got 2"):
        Strict([1.0, 2.0], names=["x", "y"])


def test_axes_of_one_name_have_one_size() -> None:
    strict = Strict([1.0, 2.0], more=np.zeros((3, 2)), square=np.ones((2, 2)), nested=[[1, 2]])
    assert strict.nested == ((1, 2),)
    with pytest.raises(ValueError, match=r"Strict.square must have shape \(2, 2\), got \(3, 3\)"):
        Strict([1.0, 2.0], more=np.zeros((3, 2)), square=np.ones((3, 3)))
    with pytest.raises(ValueError, match=r"Strict.nested must have 2 entries, got 3"):
        Strict([1.0, 2.0], nested=[[1, 2, 3]])
    assert Strict([1.0, 2.0], square=np.zeros((0, 0), dtype=int)).square is not None
    with pytest.raises(ValueError, match=r"Strict.values must hold float values, got object"):
        Strict(None)


def test_an_array_of_an_unknown_type_is_a_mistake_in_the_declaration() -> None:
    @record
    class Wrong(Record):
        values: NDArray[np.float64] = with_axes("rows")

    with pytest.raises(TypeError, match=r"Wrong.values has axes, so its type must be one of Floats, Ints, Bools"):
        Wrong(np.zeros(1))


def test_tables_hold_the_grid_and_broadcast() -> None:
    made = table(
        {"layer": (4, 5), "token": ("a", "b", "c")},
        {"value": np.arange(6.0).reshape(2, 3), "of_layer": np.array([[10], [20]]), "of_token": [1, 2, 3], "no": None},
    )
    assert made.columns.tolist() == ["layer", "token", "value", "of_layer", "of_token"]
    assert made.to_numpy().tolist() == [
        [4, "a", 0.0, 10, 1],
        [4, "b", 1.0, 10, 2],
        [4, "c", 2.0, 10, 3],
        [5, "a", 3.0, 20, 1],
        [5, "b", 4.0, 20, 2],
        [5, "c", 5.0, 20, 3],
    ]
    assert len(table({"layer": ()}, {"value": np.zeros(0)})) == 0


def test_printed_in_one_short_line() -> None:
    text = repr(sample(tokens=["a", "b"]))
    assert "\n" not in text
    assert "scores=<float64 (2, 2)>" in text
    assert len(text) < 600


def test_no_table_form_says_so() -> None:
    with pytest.raises(TypeError, match="OtherResult has no table form"):
        OtherResult(np.zeros(1)).to_frame()


def test_provenance_holds_model_options_and_versions() -> None:
    found = provenance({"model": "demo", "weight_hash": "abc"}, steps=32, path=Path("x"))
    assert found["weight_hash"] == "abc"
    assert found["steps"] == 32
    assert found["path"] == "x"
    assert {"python", "numpy", "torch"} <= set(found)

    class Kept(SampleResult):
        VERSION: ClassVar[int] = 7

    assert Kept.VERSION == 7


def rewritten(path: Path, change: Callable[[dict[str, Any]], Any]) -> None:
    """Put another header into a result's file."""
    with np.load(path) as archive:
        arrays = dict(archive)
    head = change(json.loads(arrays["header.json"].tobytes()))
    text = head if isinstance(head, bytes) else json.dumps(head).encode()
    np.savez(path, **{**arrays, "header.json": np.frombuffer(text, dtype=np.uint8)})


WRONG = [
    5, None, "x", [1], {"a": 1}, {"kind": "zzz"}, {"kind": "array", "name": "nope"}, {"kind": "array", "name": [1]},
    {"kind": "mapping", "items": [1]}, {"kind": "record", "class": ["x"], "fields": {}}, {"kind": "record"},
    {"kind": "record", "class": "InnerPart", "fields": {}}, {"kind": "record", "class": "InnerPart", "fields": 5},
]  # fmt: skip


@pytest.mark.parametrize("wrong", WRONG, ids=str)
@pytest.mark.parametrize("name", [item.name for item in dataclasses.fields(SampleResult)])
def test_a_field_of_another_kind_is_refused_in_a_sentence(tmp_path: Path, name: str, wrong: Any) -> None:
    path = sample().save(tmp_path / "a.npz")
    rewritten(path, lambda head: {**head, "fields": {**head["fields"], name: wrong}})
    if (name, wrong) in [("missing", None), ("step", 5)]:
        assert getattr(SampleResult.load(path), name) == wrong
        return
    for kind in (SampleResult, Result):
        with pytest.raises(ValueError, match=r"a\.npz cannot be read as a SampleResult: ") as caught:
            kind.load(path)
        assert len(str(caught.value)) < 400


@pytest.mark.parametrize(
    "change",
    [
        lambda head: b"[" * 100_000,
        lambda head: b"null",
        lambda head: [1],
        lambda head: {**head, "fields": [1]},
        lambda head: {name: value for name, value in head.items() if name != "fields"},
        lambda head: {**head, "class": [1]},
        lambda head: {**head, "fields": {**head["fields"], "x" * 10_000: 1}},
        lambda head: json.dumps({**head, "fields": {"tokens": 0}}).replace("0}", "[" * 900 + "]" * 900 + "}").encode(),
    ],
)
def test_a_crafted_header_is_refused_in_a_sentence(tmp_path: Path, change: Callable[[dict[str, Any]], Any]) -> None:
    path = sample().save(tmp_path / "a.npz")
    rewritten(path, change)
    for kind in (SampleResult, Result):
        with pytest.raises(ValueError, match=r"a\.npz") as caught:
            kind.load(path)
        assert len(str(caught.value)) < 400


def test_a_header_that_is_nested_too_deeply_is_refused_in_a_sentence(tmp_path: Path) -> None:
    for depth in (2_000, 200_000):
        text = np.frombuffer(b"[" * depth + b"]" * depth, dtype=np.uint8)
        np.savez(tmp_path / "deep.npz", **{"header.json": text})
        with pytest.raises(ValueError, match=r"deep\.npz cannot be read as a result: its header is nested too deeply$"):
            Result.load(tmp_path / "deep.npz")


@pytest.mark.parametrize("depth", [101, 300, 700])
@pytest.mark.parametrize("ends", [("[", "]"), ('{"kind": "mapping", "items": {"a": ', "}}")], ids=["lists", "mappings"])
def test_values_that_are_nested_too_deeply_are_refused_long_before_pythons_limit(
    depth: int, ends: tuple[str, str], tmp_path: Path
) -> None:
    path = Results(["A"], [sample()]).save(tmp_path / "deep.npz")
    with np.load(path) as archive:
        arrays = dict(archive)
    deep = ends[0] * depth + "1" + ends[1] * depth
    header = arrays["header.json"].tobytes().replace(b'"steps": 32', f'"steps": {deep}'.encode())
    arrays["header.json"] = np.frombuffer(header, dtype=np.uint8)
    np.savez(path, **arrays)
    with pytest.raises(ValueError, match=r"nested too deeply$"):
        Results.load(path)


def test_a_small_file_does_not_become_millions_of_objects(tmp_path: Path) -> None:
    header = b'{"fields": [' + b"[]," * 1_400_000 + b"1]}"
    np.savez_compressed(tmp_path / "many.npz", **{"header.json": np.frombuffer(header, dtype=np.uint8)})
    with pytest.raises(ValueError, match=r"many\.npz cannot be read as a result: its header would unpack to 4,200,0"):
        Result.load(tmp_path / "many.npz")


@pytest.mark.parametrize(
    "parts",
    [
        {"a.b": 1.0, "a": {"b": 2.0}},
        {"a": {"b": 1.0}, "a.b": 2.0},
        {"a\0b": 1.0, "a\0c": 2.0},
        {"x" * 70_000: 1.0, "é": 2.0},
        {"\ud800": 1.0, "a/../b": 2.0},
        {"array 0": 1.0, "array 1": {"array 0": 2.0}},
    ],
)
def test_arrays_under_any_keys_stay_apart(tmp_path: Path, parts: dict[str, Any]) -> None:
    def filled(value: Any) -> Any:
        return {key: filled(one) for key, one in value.items()} if isinstance(value, dict) else np.full(2, value)

    result = sample(options=filled(parts))
    assert SampleResult.load(result.save(tmp_path / "keys")).equals(result)


def test_the_digest_of_a_value_is_that_of_what_is_read_of_it(tmp_path: Path) -> None:
    result = sample(options={"a b": np.ones(2), "steps": (1, 2)})
    digest = digest_of(result)
    assert digest_of(SampleResult.load(result.save(tmp_path / "sample"))) == digest
    for other in (np.ones(3), np.ones((2, 1)), np.ones(2, np.float32), np.zeros(2), (1.0, 1.0)):
        assert digest_of(sample(options={"a b": other, "steps": (1, 2)})) != digest
    with pytest.raises(TypeError, match="array of complex128"):
        digest_of({"a": np.ones(1, complex)})


def test_a_result_that_packs_tightly_is_read_again(tmp_path: Path) -> None:
    count = 1_000_000
    same = Results(["A"] * 1, [sample(options={"tokens": (" a",) * count})])
    assert Results.load(same.save(tmp_path / "same.npz")).equals(same)


def test_every_result_inside_a_file_carries_the_version_of_its_class(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = Results(["A", "B"], [sample(), sample()]).save(tmp_path / "both.npz")
    assert Results.load(path)["A"].equals(sample())
    monkeypatch.setattr(SampleResult, "VERSION", 2)
    with pytest.raises(ValueError, match="it holds version 1 of SampleResult, this program reads version 2: compute"):
        Results.load(path)
    newer = Results(["A", "B"], [sample(), sample()]).save(tmp_path / "newer.npz")
    assert Results.load(newer)["A"].equals(sample())


def test_a_part_that_is_read_by_itself_does_not_spoil_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    @record
    class Shelf(Result):
        book: Any = by_itself()
        others: Mapping[str, Any] = by_itself()

    path = Shelf(sample(), {"a": sample(), "b": 3}).save(tmp_path / "shelf.npz")
    assert Shelf.load(path).equals(Shelf(sample(), {"a": sample(), "b": 3}))
    monkeypatch.setattr(SampleResult, "VERSION", 2)
    shelf = Shelf.load(path)
    assert isinstance(shelf.book, Unreadable)
    assert "version 1 of SampleResult" in shelf.book.reason
    assert isinstance(shelf.others["a"], Unreadable)
    assert isinstance(shelf.book.again(), Unreadable)
    monkeypatch.setattr(SampleResult, "VERSION", 1)
    assert shelf.book.again().equals(sample())
    assert shelf.others["b"] == 3
