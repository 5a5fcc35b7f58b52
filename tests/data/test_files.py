"""The readers that all others use: what they read, and one sentence for what they refuse."""

from __future__ import annotations

import csv
import gzip
import io
import json
import os
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.torch
import torch

from interp_widgets.data import files
from interp_widgets.data.attribution_archive import read_importance_archive
from interp_widgets.data.bias import (
    read_bbq,
    read_bias_data,
    read_crows_pairs,
    read_relation,
    read_sentence_pairs,
    read_stereoset,
)
from interp_widgets.data.case_files import read_cases
from interp_widgets.data.concepts import read_concepts
from interp_widgets.data.files import decoded, lines_of, parse_rows, read_arrays, read_rows, read_tensors, read_text
from interp_widgets.data.instruction_task import InstructionTask
from interp_widgets.data.problems import read_problems
from interp_widgets.data.prompt_files import read_known_facts, read_known_receivers
from interp_widgets.data.word_lists import read_word_list
from interp_widgets.data.word_vectors import read_word_vectors
from interp_widgets.models.translators import load_translators
from interp_widgets.sweeps.items import read_items
from interp_widgets.widgets.base.fields import Lines

READERS = [
    read_cases, read_problems, read_known_facts, read_known_receivers, read_word_list, read_word_vectors,
    read_importance_archive, load_translators, read_stereoset, read_crows_pairs, read_bbq, read_relation,
    read_sentence_pairs, read_bias_data, InstructionTask.load,
]  # fmt: skip


@pytest.mark.parametrize("read", READERS, ids=lambda read: read.__name__)
def test_a_missing_file_is_the_same_error_everywhere(read: Callable[[Path], Any], tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    for name in ("nothing.json", "nothing", "folder"):
        with pytest.raises(FileNotFoundError, match=rf"there is no file of [a-zA-Z ]+ at .*{name}: check the path"):
            read(tmp_path / name)


def test_a_home_folder_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "a.json").write_text('[{"prompt": "x"}]')
    assert read_rows("~/a.json", "case") == [{"prompt": "x"}]
    assert read_cases("~/a.json")[0].prompt == "x"


@pytest.mark.parametrize("mark", [",", "\t", ";", " , "])
def test_a_csv_may_be_separated_by_tabs_or_semicolons(mark: str) -> None:
    rows = parse_rows(f'text{mark}label\n"a, b; c"{mark.strip(" ")}1\n', "a.csv", "row")
    assert rows == [{"text": "a, b; c", "label": "1"}]


@pytest.mark.parametrize("name", ["a.csv", "a.json", "a.jsonl", "a.CSV"])
@pytest.mark.parametrize("mark", ["", "\ufeff"], ids=["plain", "byte order mark"])
@pytest.mark.parametrize("binary", [True, False], ids=["bytes", "text"])
def test_every_format_gives_the_same_rows(name: str, mark: str, binary: bool) -> None:
    rows = [{"a": 'x, "y"\nz', "b": "é"}, {"a": "1\u2028", "b": ""}]
    text = {
        "a.json": json.dumps(rows),
        "a.jsonl": "\r\n".join(json.dumps(row, ensure_ascii=False) for row in rows) + "\n\n",
        "a.csv": 'a,b\r\n"x, ""y""\nz",é\r\n\r\n1\u2028,\r\n',
    }[name.lower()]
    content = (mark + text).encode() if binary else mark + text
    assert parse_rows(content, name, "row") == rows


@pytest.mark.parametrize(
    ("content", "name", "sentence"),
    [
        ("[]", "a.txt", r"cannot read rows from 'a\.txt': the name must end in \.json, \.jsonl or \.csv"),
        ("[]", "a.json", "must hold a list of at least one row, got an empty list"),
        ("{}", "a.json", "must hold a list of at least one row, got a dict"),
        ("", "a.csv", "must hold a list of at least one row, got an empty list"),
        ("a,b\n", "a.csv", "must hold a list of at least one row"),
        ("[1]", "a.json", r"row 0 of a\.json is not an object with named fields: 1"),
        ('{"a": 1}\n[2]', "a.jsonl", r"row 1 of a\.jsonl is not an object"),
        ('{"a": 1}\n{', "a.jsonl", r"line 2 of a\.jsonl is not valid JSON"),
        ('{"a": 1}\n{"a": 1}', "a.json", r"not valid JSON \(Extra data.*: one object per line belongs in .*\.jsonl"),
        ("[" * 100_000, "a.json", r"a\.json is not valid JSON \(maximum recursion depth"),
        ("[" + "9" * 5000 + "]", "a.json", r"a\.json is not valid JSON \(Exceeds the limit"),
        (b"\xff\xfe\x00", "a.csv", r"a\.csv is not UTF-8 text \(invalid start byte at byte 0\): save it in that"),
        (
            "naïve".encode("latin-1"),
            "a.csv",
            r"a\.csv is not UTF-8 text \(invalid continuation byte at byte 2\): save it",
        ),
        ("a,b\n1,2\n".encode("utf-16-le"), "a.csv", r"a\.csv is not UTF-8 text \(character 1 is NUL, as in UTF-16\)"),
        ("a,b,a\n1,2,3\n", "a.csv", r"a\.csv has two columns 'a': rename one of them"),
        ('[{"a": 1, "a": 2}]', "a.json", r"a\.json is not valid JSON \(an object has two fields 'a'\)"),
        ('[{"a": NaN}]', "a.json", r"a\.json is not valid JSON \(NaN is no number in JSON: write null\)"),
        ('{"a": -Infinity}', "a.jsonl", r"line 1 of a\.jsonl is not valid JSON \(-Infinity is no number"),
        (
            '[{"a": "\\ud800"}]',
            "a.json",
            r"a\.json is not valid JSON \(it has one half of a surrogate pair\): remove it",
        ),
        ('[{"\\uDFFF": 1}]', "a.json", r"a\.json is not valid JSON \(it has one half of a surrogate pair\): remove it"),
    ],
    ids=range(20),
)
def test_what_is_no_rows_is_said(content: str | bytes, name: str, sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        parse_rows(content, name, "row")


SEPARATORS = ("\u2028", "\u2029", "\x85", "\x0b", "\x0c", "\x1c", "\x1d", "\x1e")
"""Characters at which str.splitlines splits, though no line of a file ends there."""


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
@pytest.mark.parametrize("mark", SEPARATORS, ids=ascii)
def test_lines_end_at_line_ends_only(tmp_path: Path, mark: str, end: str) -> None:
    texts = [f"one{mark}more", f"two{mark}", "three"]
    lines = end.join(texts) + end
    assert lines_of(lines) == [*texts, ""]
    assert read_items(str(written(tmp_path / "a.txt", lines)))[0] == texts
    assert read_word_list(written(tmp_path / "words.txt", lines)) == (texts[0], texts[1].strip(), "three")
    for name in ("rain", "snow"):
        written(tmp_path / f"concepts/{name}.txt", f"{name} {lines}")
    assert read_concepts(tmp_path / "concepts", held_out=0)[0].stimuli.count(texts[0].join(["rain ", ""])) == 1
    assert sum(len(concept.stimuli) for concept in read_concepts(tmp_path / "concepts", held_out=0)) == 6
    assert [row["a"] for row in parse_rows(f"a{end}{lines}", "a.csv", "row")] == texts
    rows = end.join(json.dumps({"a": text}, ensure_ascii=False) for text in texts)
    if mark >= "\x20":  # JSON must escape the others
        assert [row["a"] for row in parse_rows(rows, "a.jsonl", "row")] == texts
    assert Lines.read(lines) == texts


def test_a_long_field_of_a_csv_is_read_and_the_limit_of_the_process_stays() -> None:
    limit = csv.field_size_limit()
    assert parse_rows("a,b\n" + "x" * 200_000 + ",1\n", "a.csv", "row") == [{"a": "x" * 200_000, "b": "1"}]
    with pytest.raises(ValueError, match=r"row 0 of a\.csv is not valid CSV \(unexpected end of data\)"):
        parse_rows('a,b\n"' + "x" * 200_000, "a.csv", "row")
    assert csv.field_size_limit() == limit


def test_packed_rows_are_read_and_a_file_that_is_cut_off_is_said(tmp_path: Path) -> None:
    packed = gzip.compress(b'{"prompt": "x"}\n' * 500)
    path = tmp_path / "a.jsonl.gz"
    path.write_bytes(packed)
    assert len(read_cases(path)) == 500
    damaged = bytearray(packed)
    damaged[20] ^= 0xFF
    for content in (packed[:-9], bytes(damaged), b"", b"text", packed + b"x"):
        path.write_bytes(content)
        with pytest.raises(ValueError, match=r"a\.jsonl\.gz (cannot be unpacked by gzip|must hold a list)"):
            read_cases(path)


def test_no_more_is_read_than_memory_can_hold(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "_MOST_BYTES", 3_000_000)
    bomb = tmp_path / "a.json.gz"
    bomb.write_bytes(gzip.compress(bytes(10_000_000)))
    huge = tmp_path / "huge.json"
    with huge.open("wb") as file:
        file.truncate(10**12)  # takes no room on disk
    for path in (bomb, huge):
        with pytest.raises(ValueError, match=r"holds more than 3,000,000 bytes: split it into smaller files"):
            read_cases(path)
    with pytest.raises(ValueError, match=r"line 1 of .*huge\.json is not text of a word and its numbers"):
        read_word_vectors(huge)


UNREADABLE = ["/dev/zero", "/proc/self/mem", "fifo", "folder", "a\0b", "a\ud800", "~nobody-here/x", "x" * 300]
"""What is no file that can be read: endless, of the system, waiting, a name that no file can have."""


@pytest.mark.parametrize("name", UNREADABLE, ids=ascii)
@pytest.mark.parametrize("read", READERS, ids=lambda read: read.__name__)
def test_what_is_no_file_is_one_sentence_everywhere(read: Callable[[Any], Any], name: Any, tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "fifo")
    path = tmp_path / name if name in ("fifo", "folder") else name
    with pytest.raises((ValueError, OSError)) as caught:
        read(path)
    message = str(caught.value)
    message.encode()
    sentences = (
        "check the path", "cannot be read", "must be a name that a file can have", "is not a ", "has no home folder",
    )  # fmt: skip
    assert any(sentence in message for sentence in sentences), message


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_protected_file_is_said(tmp_path: Path) -> None:
    path = written(tmp_path / "a.json", "[]")
    path.chmod(0)
    with pytest.raises(PermissionError, match=r"a\.json cannot be read: Permission denied"):
        read_cases(path)


def test_text_is_read_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes("\ufeffgrün\r\nx".encode())
    assert read_text(tmp_path / "a.txt", "words") == "grün\r\nx"
    assert decoded("\ufeffa", "name") == "a"


def test_arrays_are_read_by_name(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", one=np.arange(3), two=np.ones(2), three=np.array([{}], dtype=object))
    found = read_arrays(tmp_path / "a.npz", "numbers", names=("one", "two", "four"))
    assert found.keys() == {"one", "two"}
    np.testing.assert_array_equal(found["one"], np.arange(3))
    with pytest.raises(ValueError, match=r"a\.npz is not a readable \.npz archive of numbers \(three holds object"):
        read_arrays(tmp_path / "a.npz", "numbers")


def test_what_is_no_archive_is_said(tmp_path: Path) -> None:
    start = r"a\.npz is not a readable \.npz archive of numbers"
    path = tmp_path / "a.npz"
    np.savez_compressed(path, one=np.arange(1000))
    whole = path.read_bytes()
    for content in (b"", b"text", whole[:-30], whole[:100] + b"\0" * 200 + whole[300:]):
        path.write_bytes(content)
        with pytest.raises(ValueError, match=start):
            read_arrays(path, "numbers")
    locked = bytearray(whole)
    for header, flag in ((b"PK\x03\x04", 6), (b"PK\x01\x02", 8)):  # says that its content is encrypted
        locked[whole.index(header) + flag] |= 1
    path.write_bytes(locked)
    assert zipfile.is_zipfile(path)
    with pytest.raises(ValueError, match=start + r" \(.*encrypted"):
        read_arrays(path, "numbers")


def test_tensors_keep_their_type_and_metadata(tmp_path: Path) -> None:
    path = tmp_path / "a.safetensors"
    safetensors.torch.save_file({"x": torch.ones(2, dtype=torch.bfloat16)}, path, metadata={"form": "affine"})
    tensors, metadata = read_tensors(path, "numbers")
    assert tensors["x"].dtype == torch.bfloat16
    assert metadata == {"form": "affine"}
    path.write_bytes(b"text")
    with pytest.raises(ValueError, match=r"a\.safetensors is not a safetensors file"):
        read_tensors(path, "numbers")


def written(path: Path, text: str) -> Path:
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(text.encode())
    return path


def npy(descr: Any, shape: Any, data: bytes = b"") -> bytes:
    """An array as a file that promises these sizes."""
    made = io.BytesIO()
    np.lib.format.write_array_header_1_0(made, {"descr": descr, "fortran_order": False, "shape": shape})
    return made.getvalue() + data


def odd_header(text: bytes, version: bytes = b"\1\0") -> bytes:
    """An array whose header is this text."""
    return b"\x93NUMPY" + version + len(text).to_bytes(2 * version[0], "little") + text + bytes(8)


ODD_HEADERS = (
    b"", b"(", b"'\\", b"\'\'\'", b"  1\n 2\n", b"{1: 2, 'a': 3}", b"\0", b"[" * 9000, b"-" * 9000 + b"1", b"9" * 5000,
    b"x" * 20_000, b"{'descr': [('a', '<f8'), ('a', '<f8')], 'fortran_order': False, 'shape': (1,)}",
)  # fmt: skip


@pytest.mark.parametrize(
    "member",
    [
        *(odd_header(text, version) for text in ODD_HEADERS for version in (b"\1\0", b"\2\0")),
        npy("|S0", (10**11,)),
        npy("<f8", (10**12,)),
        npy("<f8", (2**40, 2**40)),
        npy("<f8", (-1, -5), bytes(40)),
        npy("<f8", (-1,), bytes(8)),
        npy("|O", (5,), bytes(40)),
        npy([("a", "<f8")], (5,), bytes(40)),
        npy("<U1000000000", (5,)),
        npy("<f8", (2,), bytes(24)),
        b"\x93NUMPY\x09\x00" + bytes(100),
        b"\x93NUMPY\x01\x00\xff\xff" + b"(" * 65535,
    ],
)
def test_sizes_that_an_archive_does_not_hold_take_no_memory(
    tmp_path: Path, member: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "arrays.npz"
    monkeypatch.setattr(np, "load", lambda *_, **__: pytest.fail("the sizes are checked before"))
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("x.npy", member)
    with pytest.raises(ValueError, match=r"is not a readable \.npz archive of things") as caught:
        read_arrays(path, "things")
    assert len(str(caught.value)) < 400


@pytest.mark.parametrize("method", [zipfile.ZIP_LZMA, zipfile.ZIP_BZIP2])
def test_arrays_that_numpy_has_not_packed_are_not_unpacked(method: int, tmp_path: Path) -> None:
    path = tmp_path / "arrays.npz"
    with zipfile.ZipFile(path, "w", method) as archive:
        archive.writestr("x.npy", npy("<f8", (1,), bytes(8)))
    content = bytearray(path.read_bytes())
    content[40:50] = b"\xff" * 10  # of the settings and the data
    for part in (path.read_bytes(), bytes(content)):
        path.write_bytes(part)
        with pytest.raises(ValueError, match="x is compressed in a way that NumPy does not use"):
            read_arrays(path, "things")


def test_a_small_archive_does_not_fill_the_memory(tmp_path: Path) -> None:
    path, many = tmp_path / "arrays.npz", 21
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
        for number in range(many):  # each of them by itself is small enough
            archive.writestr(f"{number}.npy", npy("|u1", (10**7,), bytes(10**7)))
    with pytest.raises(ValueError, match=r"would unpack to 210,000,000 bytes, more than 100 times its size"):
        read_arrays(path, "things")
    assert read_arrays(path, "things", names=("3",))["3"].size == 10**7


def test_a_size_forged_in_the_directory_takes_no_memory(tmp_path: Path) -> None:
    path = tmp_path / "arrays.npz"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("x.npy", npy("<f8", (10**8,)))
        size = archive.getinfo("x.npy").file_size
    content = path.read_bytes()
    forged = (size + 8 * 10**8).to_bytes(4, "little")
    assert content.count(size.to_bytes(4, "little")) >= 2
    path.write_bytes(content.replace(size.to_bytes(4, "little"), forged))
    with pytest.raises(ValueError, match="x does not hold the numbers that it promises"):
        read_arrays(path, "things")


def tensor_file(path: Path, header: Any, data: bytes = b"") -> Path:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + data)
    return path


def entry(shape: list[int], start: int, end: int, kind: str = "F32") -> dict[str, Any]:
    return {"dtype": kind, "shape": shape, "data_offsets": [start, end]}


@pytest.mark.parametrize(
    ("header", "data"),
    [
        ({"0.weight": entry([10**6, 10**6], 0, 4 * 10**12), "0.bias": entry([10**6], 0, 4)}, b""),
        ({"0.weight": entry([-1, -1], 0, 4), "0.bias": entry([1], 4, 8)}, bytes(8)),
        ({"99999999.weight": entry([1, 1], 0, 4)}, bytes(4)),
        ({"9" * 5000 + ".weight": entry([1, 1], 0, 4)}, bytes(4)),
        ({"../../etc/x": entry([1, 1], 0, 4)}, bytes(4)),
        ({"x" * 100_000: entry([1, 1], 0, 4)}, bytes(4)),
        ({"0.weight": entry([1, 1], 0, 1, "BOOL"), "0.bias": entry([1], 1, 2, "BOOL")}, bytes(2)),
        ({"0.weight": entry([1, 1], 0, 1, "F8_E4M3"), "0.bias": entry([1], 1, 2, "F8_E4M3")}, bytes(2)),
        ({"0.weight": entry([0, 0], 0, 0), "0.bias": entry([0], 0, 0)}, b""),
        (
            {
                "__metadata__": {"form": "z" * 3000},
                "0.weight": entry([1, 1], 0, 4),
                "0.bias": entry([1], 4, 8),
            },
            bytes(8),
        ),
        (b"[" * 100_000, b""),
    ],
)
def test_crafted_translators_are_refused_in_a_sentence(tmp_path: Path, header: Any, data: bytes) -> None:
    with pytest.raises(ValueError, match=r"translators|lens|layer|form") as caught:
        load_translators(tensor_file(tmp_path / "lens.safetensors", header, data))
    assert len(str(caught.value)) < 500
