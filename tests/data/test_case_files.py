"""Cases from the user's own files."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from interp_widgets.data.case_files import parse_cases, read_cases


def test_the_three_formats_give_the_same_cases(tmp_path: Path) -> None:
    same = {"prompt": "Say hi to Ann", "response": " hi", "name": "x"}
    texts = {
        "a.json": json.dumps([{**same, "instruction": "Say hi", "label": True}]),
        "a.jsonl": json.dumps({**same, "instruction": [0, 6], "label": "yes"}) + "\n",
        "a.csv": 'prompt,response,instruction,label,name\nSay hi to Ann," hi",Say hi,followed,x\n',
    }
    found = []
    for name, text in texts.items():
        (tmp_path / name).write_text(text, encoding="utf-8")
        found.append(read_cases(tmp_path / name))
    assert found[0] == found[1] == found[2]
    assert found[0][0].instruction == (0, 6)
    assert found[0][0].label is True


@pytest.mark.parametrize(
    ("text", "name", "sentence"),
    [
        ("[]", "a.json", "at least one case"),
        ("[", "a.json", "not valid JSON"),
        ("x", "a.txt", "must end in .json"),
        ('[{"response": "x"}]', "a.json", "case 0 has no prompt"),
        ('[{"prompt": "x", "instruction": "y"}]', "a.json", "is not in its prompt"),
        ('[{"prompt": "x", "instruction": [0, 9]}]', "a.json", "within its 1 characters"),
        ('[{"prompt": "x", "label": "perhaps"}]', "a.json", "label must be true or false"),
        ('[{"prompt": "x"}, {"prompt": " "}]', "a.json", r"a\.json: case 1 has no prompt"),
        ('[{"prompt": "x", "response": 5}]', "a.json", r"a\.json: case 0: response must be a str, got 5"),
        ('[{"prompt": "x", "name": ["y"]}]', "a.json", r"a\.json: case 0: name must be a str, got \['y'\]"),
        ('[{"prompt": "x", "instruction": [false, true]}]', "a.json", "within its 1 characters"),
    ],
)
def test_what_is_wrong_is_said(text: str, name: str, sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        parse_cases(text, name)


def test_bytes_that_are_no_text_are_refused() -> None:
    with pytest.raises(ValueError, match="not UTF-8 text"):
        parse_cases(b"\xff\xfe\x00", "a.json")


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="there is no file of cases"):
        read_cases(tmp_path / "none.json")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("prompt,response\nfirst,x\nHi Ann, how are you, then,x\n", r"case 1 of a\.csv has 4 fields under 2 headings"),
        ('prompt,response\n"never closed,x\nsecond,y\n', r"case 0 of a\.csv is not valid CSV"),
        ('prompt,response\n"He said "hi" to me",x\n', r"case 0 of a\.csv is not valid CSV"),
    ],
)
def test_a_csv_that_cuts_a_text_is_refused(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message + ".*between double quotes"):
        parse_cases(text, "a.csv")


def test_quoted_texts_and_line_separators_come_whole() -> None:
    cases = parse_cases('prompt,response\n\n"He said ""hi"", then\nleft."," ok",,\n', "a.csv")
    assert [(case.prompt, case.response) for case in cases] == [('He said "hi", then\nleft.', " ok")]
    assert [case.prompt for case in parse_cases('{"prompt": "a\u2028b\x85c"}\r\n{"prompt": "d"}', "a.jsonl")] == [
        "a\u2028b\x85c",
        "d",
    ]
