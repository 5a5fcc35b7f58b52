"""The readers of published prompts: what they read, and what they refuse."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from interp_widgets.data.prompt_files import KnownFact, KnownReceiver, read_known_facts, read_known_receivers

PUBLISHED = Path(__file__).resolve().parents[3] / "shared" / "data"
FACT = {"subject": "Oslo", "prompt": "Oslo is the capital of", "attribute": "Norway", "relation_id": "P1376"}
HEAD = "one_prefix_prefix,one_prefix_word_good,one_prefix_word_bad\n"


def test_facts_are_read(tmp_path: Path) -> None:
    path = tmp_path / "facts.json"
    path.write_text(json.dumps([FACT]))
    assert read_known_facts(path) == (KnownFact("Oslo is the capital of", "Oslo", " Norway", "P1376"),)


def test_receivers_are_read_and_corrupted(tmp_path: Path) -> None:
    path = tmp_path / "names.csv"
    path.write_text(HEAD + '"Then, Ann and Bob met. Bob gave tea to",Ann,Bob\n')
    (one,) = read_known_receivers(path)
    assert one == KnownReceiver("Then, Ann and Bob met. Bob gave tea to", " Ann", " Bob")
    assert one.corrupted == "Then, Ann and Bob met. Ann gave tea to"


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("{", "is not valid JSON"),
        ("{}", "must hold a list of at least one fact, got a dict"),
        ([{**FACT, "subject": "Bergen"}], "the subject 'Bergen' is not in its prompt"),
        ([FACT, {**FACT, "prompt": " "}], "fact 1 of .* has no 'prompt'"),
        ([{**FACT, "attribute": " "}], "fact 0 of .* has no 'attribute'"),
        ([{**FACT, "relation_id": None}], "fact 0 of .* has no 'relation_id'"),
        ([5], "fact 0 of .* is not an object"),
        ([{**FACT, "attribute": 7}], "fact 0 of .* has no 'attribute'"),
        ([{key: FACT[key] for key in ("subject", "prompt", "attribute")}], "fact 0 of .* has no 'relation_id'"),
    ],
)
def test_other_layouts_of_facts_are_refused(tmp_path: Path, content: Any, words: str) -> None:
    path = tmp_path / "facts.json"
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    with pytest.raises(ValueError, match=words):
        read_known_facts(path)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("prompt,answer\na,b\n", "prompt 0 of .* has no 'one_prefix_prefix'"),
        (HEAD + "Ann slept,Ann,Bob\n", "prompt 0 of .*'Bob'"),
        (HEAD + "Ann met Bob,Ann,Ann\n", "prompt 0 of .*: the good and the bad word are both 'Ann'"),
        (HEAD + "Ann met Bob,Ann,Bob\n,,\n", "prompt 1 of .*"),
    ],
)
def test_other_layouts_of_receivers_are_refused(tmp_path: Path, content: str, words: str) -> None:
    path = tmp_path / "names.csv"
    path.write_text(content)
    with pytest.raises(ValueError, match=words):
        read_known_receivers(path)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    for read, what in ((read_known_facts, "facts"), (read_known_receivers, "prompts")):
        with pytest.raises(FileNotFoundError, match=rf"there is no file of {what} at .*nowhere"):
            read(tmp_path / "nowhere")


@pytest.mark.skipif(not (PUBLISHED / "known_facts.json").is_file(), reason="the published prompts are not here")
def test_the_published_files_are_read_whole() -> None:
    facts = read_known_facts(PUBLISHED / "known_facts.json")
    receivers = read_known_receivers(PUBLISHED / "ioi_prompts.csv")
    assert (len(facts), len(receivers)) == (1209, 1000)
    assert facts[0] == KnownFact("Vinson Massif is located in the continent of", "Vinson Massif", " Antarctica", "P30")
    assert all(one.corrupted != one.prompt for one in receivers)
