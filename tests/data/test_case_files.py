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
        ('[{"prompt": "x", "instruction": "y"}]', "a.json", "does not stand in its prompt"),
        ('[{"prompt": "x", "instruction": [0, 9]}]', "a.json", "within its 1 characters"),
        ('[{"prompt": "x", "label": "perhaps"}]', "a.json", "label must be true or false"),
    ],
)
def test_what_is_wrong_is_said(text: str, name: str, sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        parse_cases(text, name)


def test_bytes_that_are_no_text_are_refused() -> None:
    with pytest.raises(ValueError, match="not text in UTF-8"):
        parse_cases(b"\xff\xfe\x00", "a.json")


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="there is no file"):
        read_cases(tmp_path / "none.json")
