"""Demo concepts and folders in the layout of PaCE-1M: sizes, splits, bad input."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from interp_widgets.data.concepts import Concept, check_concepts, demo_concepts, read_concepts, split_stimuli


def test_demo_concepts_are_many_and_in_groups() -> None:
    concepts = demo_concepts()
    check_concepts(concepts)
    groups = Counter(concept.group for concept in concepts)
    assert len(concepts) == 222
    assert len(groups) == 14
    assert min(groups.values()) >= 8
    assert {len(c.stimuli) + len(c.held_out) for c in concepts} <= {19, 20}
    assert all(len(c.held_out) >= 5 for c in concepts)
    assert demo_concepts() == concepts


def test_wordings_do_not_tell_concepts_of_a_group_apart() -> None:
    by_name = {concept.name: concept for concept in demo_concepts()}
    wordings = [{text.replace(name, "X") for text in by_name[name].stimuli + by_name[name].held_out}
                for name in ("Velins", "Zorans")]  # fmt: skip
    assert len(wordings[0] & wordings[1]) >= 5


def test_a_held_out_wording_is_new_to_its_concept() -> None:
    flute = next(concept for concept in demo_concepts() if concept.name == "flute")
    made = {text.split()[1] for text in flute.stimuli if text.startswith("There")}
    tested = {text.split()[1] for text in flute.held_out if text.startswith("There")}
    assert not (made and tested)


def test_pace_folder(tmp_path: Path) -> None:
    (tmp_path / "concept").mkdir()
    (tmp_path / "concept_index.txt").write_text("['night', 'day']")
    (tmp_path / "concept" / "day.txt").write_text(str([f"A day, no. {i}" for i in range(10)]))
    (tmp_path / "concept" / "night.txt").write_text("\n".join(f'It\'s "night" {i}' for i in range(4)) + "\n\n")
    night, day = read_concepts(tmp_path)
    assert (night.name, day.name) == ("night", "day")
    assert (len(night.stimuli), len(night.held_out)) == (3, 1)
    assert (len(day.stimuli), len(day.held_out)) == (7, 3)
    assert set(day.stimuli + day.held_out) == {f"A day, no. {i}" for i in range(10)}
    assert read_concepts(tmp_path, held_out=0)[1].held_out == ()
    (tmp_path / "concept_index.txt").unlink()
    assert [concept.name for concept in read_concepts(tmp_path)] == ["day", "night"]
    (tmp_path / "concept_index.txt").write_text("night\nday\nnoon")
    with pytest.raises(FileNotFoundError, match="'noon'"):
        read_concepts(tmp_path)
    with pytest.raises(ValueError, match="at least 2 concepts"):
        read_concepts(tmp_path, limit=1)
    (tmp_path / "concept_index.txt").write_text("night\nnight")
    with pytest.raises(ValueError, match="two concepts are called 'night'"):
        read_concepts(tmp_path)
    (tmp_path / "concept_index.txt").write_text("[night")
    with pytest.raises(ValueError, match="but is not a list"):
        read_concepts(tmp_path)
    (tmp_path / "concept_index.txt").write_text("night\n../../day")
    with pytest.raises(FileNotFoundError):
        read_concepts(tmp_path)
    with pytest.raises(FileNotFoundError, match="no folder"):
        read_concepts(tmp_path / "nothing")
    with pytest.raises(ValueError, match="share"):
        read_concepts(tmp_path, held_out=1)


@pytest.mark.parametrize(
    ("concepts", "words"),
    [
        ([Concept("a", ("x", "y", "z"))], "at least 2 concepts"),
        ([Concept("a", ("x", "y", "z")), Concept("a", ("p", "q", "r"))], "two concepts are called 'a'"),
        ([Concept("a", ("x", "y", "z")), Concept("b", ("p", "q"))], "'b' has 2 stimuli .* at least 3"),
        ([Concept("a", ("x", "y", "z")), Concept("b", ("p", "q", " "))], "empty stimulus"),
        ([Concept("a", ("x", "y", "z")), Concept(" ", ("p", "q", "r"))], "empty name"),
        ([Concept("a", ("x", "y", "z")), Concept("b", ("p", "q", "r"), ("p",))], "tested on a text"),
    ],
)
def test_what_is_wrong_is_said(concepts: list[Concept], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        check_concepts(concepts)


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("concept_index.txt", "a\nb\na\n", "two concepts are called 'a'"),
        ("concept_index.txt", "a\n" + "b" * 300, "has no file"),
        ("concept_index.txt", "a\n../b\n", "has no file"),
        ("concept_index.txt", '["a", "\\ud800"]', "concept_index.txt has one half of a surrogate pair in its list"),
        ("concept/a.txt", '["x", 1]', "a.txt must hold a list of str only"),
        ("concept/a.txt", "['x'", "a.txt starts with .* but is not a list of str"),
        ("concept/a.txt", "x", "the concept 'a' has 1 stimuli"),
        ("concept/a.txt", "", "the concept 'a' has 0 stimuli"),
    ],
)
def test_a_folder_that_is_no_list_of_concepts_is_named(tmp_path: Path, name: str, content: str, words: str) -> None:
    (tmp_path / "concept").mkdir()
    for concept in "ab":
        (tmp_path / f"concept/{concept}.txt").write_text("x\ny\nz\n")
    assert len(read_concepts(tmp_path)) == 2
    (tmp_path / name).write_text(content)
    with pytest.raises((ValueError, FileNotFoundError), match=words) as caught:
        read_concepts(tmp_path)
    assert str(tmp_path) in str(caught.value)
    with pytest.raises(ValueError, match="limit must be 1 or more, got -1"):
        read_concepts(tmp_path, limit=-1)


def test_split_keeps_enough() -> None:
    assert split_stimuli("a", ["x", "y", "z"]).held_out == ()
    assert len(split_stimuli("a", [str(i) for i in range(30)]).held_out) == 9


def test_stimuli_are_a_list_of_texts(tmp_path: Path) -> None:
    concept = Concept("a", ["b", "c", "d"])
    assert concept.stimuli == ("b", "c", "d")
    assert hash(concept) == hash(Concept("a", ("b", "c", "d")))
    with pytest.raises(TypeError, match=r"stimuli must be a list of str, got 'A dog ran\.': write stimuli=\['A dog"):
        Concept("dog", "A dog ran.")  # each letter would be a stimulus
    with pytest.raises(TypeError, match="held_out must be a list of str"):
        Concept("dog", ["a", "b", "c"], "A dog ran.")
    (tmp_path / "night.txt").write_bytes("['Es ist spät']".encode("latin-1"))
    with pytest.raises(ValueError, match=r"night.txt is not UTF-8 text .* at byte 11"):
        read_concepts(tmp_path)
