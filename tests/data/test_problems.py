"""Files of the usual data sets become problems whose answers are read as their authors mean them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from interp_widgets.data.problems import Problem, demo_problems, parse_problems, read_problems

ARC = {
    "id": "Mercury_7",
    "question": {
        "stem": "Which gas do plants take in?",
        "choices": [{"text": "oxygen", "label": "A"}, {"text": "carbon dioxide", "label": "B"}],
    },
    "answerKey": "B",
}
ARC_COLUMNS = {
    "question": "Which gas do plants take in?",
    "choices": {"text": ["oxygen", "carbon dioxide"], "label": ["1", "2"]},
    "answerKey": "2",
}
OBQA = {
    "question_stem": "The sun gives",
    "choices": {"text": ["light", "milk", "wood", "rain"], "label": ["A", "B", "C", "D"]},
    "answerKey": "A",
}
BOOLQ = {"question": "is snow cold", "passage": "Snow is frozen water.", "answer": True, "title": "Snow"}
GSM8K = {
    "question": "Ann has 1,000 pens and buys 234. How many has she?",
    "answer": "She has 1000 + 234 = <<1000+234=1234>>1,234 pens.\n#### 1,234",
}
ADAPTERS = [
    {
        "instruction": "Choose.\nAnswer1: a\nAnswer2: b",
        "input": "",
        "output": "the correct answer is answer2",
        "answer": "answer2",
    },
    {"instruction": "How many?", "input": "3 and 4", "output": "3 + 4 = 7", "answer": "7.0"},
    {"instruction": "True?", "output": "the correct answer is true", "answer": "true"},
    {"instruction": "Pick one of A) 3 B) 4", "output": "B", "answer": "B"},
]


def one(record: dict[str, Any]) -> Problem:
    return parse_problems(json.dumps([record]), "x.json")[0]


@pytest.mark.parametrize("record", [ARC, ARC_COLUMNS, OBQA, BOOLQ, GSM8K, *ADAPTERS], ids=str)
def test_the_right_response_solves_and_another_does_not(record: dict[str, Any]) -> None:
    problem = one(record)
    assert problem.response.startswith(" ")
    assert not problem.prompt.endswith(" ")
    assert problem.solved(problem.response)
    assert not problem.solved("")
    assert not problem.solved("I do not know")
    wrong = {"B": "A", "2": "1", "A": "C", "true": "false", "answer2": "answer1"}.get(problem.answer, "99")
    assert not problem.solved(f"The answer is {wrong}")
    assert problem.solved(f"The answer is {problem.answer}.")


def test_prompts_hold_what_the_record_holds() -> None:
    assert one(ARC).prompt == "Question: Which gas do plants take in?\nA. oxygen\nB. carbon dioxide\nAnswer:"
    assert one(ARC_COLUMNS).labels == ("1", "2")
    assert one(OBQA).prompt.startswith("Question: The sun gives\nA. light\n")
    assert one(BOOLQ).prompt == "Snow is frozen water.\nQuestion: is snow cold\nTrue or false?\nAnswer:"
    worked = one(GSM8K)
    assert worked.answer == "1234"
    assert worked.response == " She has 1000 + 234 = 1,234 pens.\nThe answer is 1234"
    assert one(ADAPTERS[1]).prompt == "Instruction: How many?\n3 and 4\nResponse:"
    assert [one(record).kind for record in (ARC, BOOLQ, GSM8K, ADAPTERS[0])] == ["choice", "truth", "number", "choice"]


@pytest.mark.parametrize(
    ("problem", "text", "read"),
    [
        (one(ARC), "B", "B"),
        (one(ARC), "(B) carbon dioxide", "B"),
        (one(ARC), "A dog? No: the answer is B", "B"),
        (one(ARC), "a dog Barks", None),
        (one(ARC), "The correct answer is: B. Not A", "B"),
        (one(BOOLQ), "Yes, it is", "true"),
        (one(BOOLQ), "nothing known", None),
        (one(GSM8K), "1000 + 234 = 1,234", "1234"),
        (one(GSM8K), "first -3.5 then", "-3.5"),
        (one(GSM8K), "none", None),
        (one(ADAPTERS[0]), "the correct answer is Answer 2", "answer2"),
        (one(ADAPTERS[0]), "answer12", "answer12"),
    ],
    ids=str,
)
def test_answers_are_read_out_of_text(problem: Problem, text: str, read: str | None) -> None:
    assert problem.read(text) == read


@pytest.mark.parametrize(
    ("record", "text", "read"),
    [
        # an article, a word or a number that begins like a label
        (ARC, "A plant needs light, so B", "B"),
        (ARC, "A dog", "A"),
        (ARC, "A is right, B is not", "A"),
        (ARC, "Bébé", None),
        (ARC, "the A-bomb", None),
        (ARC, "D'Artagnan eats vitamin B12: B", "B"),
        (ARC, "The answer is not A but B", "B"),
        (ARC, "the answer is (b)", "B"),
        (ARC, "b.", "B"),
        (ARC, "答案是B。", "B"),
        (ARC_COLUMNS, "2.5 litres in 1,200 days: 1", "1"),
        (ARC_COLUMNS, "The answer is 2.", "2"),
        (ARC_COLUMNS, "12", None),
        (BOOLQ, "There is no doubt: true", "true"),
        (BOOLQ, "No, it is not true", "false"),
        (BOOLQ, "that is not true", "false"),
        (BOOLQ, "it isn't false", "true"),
        (BOOLQ, "I say no.", "false"),
        (BOOLQ, "there is no snow", None),
        (GSM8K, "she has 5,6,7", "7"),
        (GSM8K, "12,345,678.50 dollars", "12345678.50"),
        (GSM8K, "10-15", "15"),
        (GSM8K, "covid-19", "19"),
        (GSM8K, "it is −5", "-5"),
        (GSM8K, "-$5", "-5"),
        (GSM8K, "$-5", "-5"),
        (GSM8K, "2 - 7 = -5.", "-5"),
        (GSM8K, ".5", "0.5"),
        (GSM8K, "2e3", "2e3"),
    ],
    ids=str,
)
def test_what_looks_like_an_answer_is_none(record: dict[str, Any], text: str, read: str | None) -> None:
    assert one(record).read(text) == read


def test_answers_in_files_are_read_as_meant() -> None:
    for written, answer in (("−5", "-5"), (".5", "0.5"), ("-1,234.5", "-1234.5"), ("$18", "18")):
        problem = one({**GSM8K, "answer": f"So. #### {written}"})
        assert problem.answer == answer
        assert problem.solved(problem.response)
        assert problem.solved(f"It is {written}.")
    for wrong in ("5,6", "10-15", "3/4"):
        with pytest.raises(ValueError, match="must be one number or a label"):
            one({**GSM8K, "answer": f"#### {wrong}"})
    assert one({**ADAPTERS[3], "answer": "G", "output": "G"}).labels == tuple("ABCDEFG")
    assert not one({**ADAPTERS[3], "answer": "G", "output": "G"}).solved("F, not G")
    for choices, message in (
        ({"text": ["a", "b"], "label": ["A", "a"]}, "a different label for each choice"),
        ({"text": ["a", "b"], "label": ["A", None]}, "a different label for each choice"),
        ({"text": ["a", None], "label": ["A", "B"]}, "a text for each choice"),
    ):
        with pytest.raises(ValueError, match=message):
            one({**OBQA, "choices": choices})


def test_lines_end_where_json_lines_end() -> None:
    """Not at a line separator within a text."""
    records = [{**BOOLQ, "passage": "one\u2028two\u0085three"}, BOOLQ]
    content = "\ufeff" + "\r\n".join(json.dumps(record, ensure_ascii=False) for record in records)
    assert [p.prompt[:3] for p in parse_problems(content, "a.jsonl")] == ["one", "Sno"]
    assert len(parse_problems(content.encode(), "a.jsonl")) == 2
    with pytest.raises(ValueError, match="line 3"):
        parse_problems(content + "\n{", "a.jsonl")
    with pytest.raises(ValueError, match=r"in a file named \.jsonl"):
        parse_problems(content, "a.json")


def test_numbers_may_be_written_differently() -> None:
    problem = one(ADAPTERS[1])
    assert problem.solved("it is 7")
    assert problem.solved("it is 7.0004")
    assert not problem.solved("it is 7.01")
    assert not problem.solved("7 or 8")


def test_files(tmp_path: Path) -> None:
    lines = tmp_path / "mixed.jsonl"
    lines.write_text("\n".join(json.dumps(record) for record in (ARC, BOOLQ, GSM8K)) + "\n")
    assert [problem.kind for problem in read_problems(lines)] == ["choice", "truth", "number"]
    for content, name, message in (
        ("[]", "a.json", "at least one problem"),
        ("{", "a.json", "not valid JSON"),
        ("[1]", "a.json", "problem 0 of a.json is not an object"),
        ("[]", "a.txt", r"must end in \.json or \.jsonl"),
        (b"\xff\xfe\xff", "a.json", "not UTF-8 text"),
        (json.dumps([{"question": "x"}]), "a.json", "problem 0 has none of the known layouts"),
        (json.dumps([ARC, {**ARC, "answerKey": "Z"}]), "a.json", "problem 1: its answerKey 'Z' is none of its labels"),
        (json.dumps([{**OBQA, "choices": ["x"]}]), "a.json", "at least two choices"),
        (json.dumps([{**GSM8K, "answer": "#### many"}]), "a.json", "must be one number"),
        (json.dumps([{**GSM8K, "question": " "}]), "a.json", "problem 0 has no question"),
        (json.dumps([{"instruction": "x", "output": "y"}]), "a.json", "problem 0 has no answer"),
    ):
        with pytest.raises(ValueError, match=message):
            parse_problems(content, name)
    with pytest.raises(FileNotFoundError, match="there is no file of problems"):
        read_problems(tmp_path / "none.json")


def test_tasks_of_the_demo() -> None:
    held_out, train = demo_problems("held_out", 40), demo_problems("train", 40)
    assert all(problem.solved(problem.response) for problem in held_out)
    assert not any(problem.solved(" x") for problem in held_out)
    assert held_out == demo_problems("held_out", 40)
    assert {p.prompt for p in held_out}.isdisjoint(p.prompt for p in train)


@pytest.mark.parametrize(
    ("record", "words"),
    [
        ({**OBQA, "answerKey": "Z"}, "its answerKey 'Z' is none of its labels"),
        (
            {**ARC_COLUMNS, "choices": {"label": ["1", "1"], "text": ["a", "b"]}},
            "needs a different label for each choice",
        ),
        ({**ARC_COLUMNS, "choices": {"label": ["1", [2]], "text": ["a", "b"]}}, r"needs labels and texts .* got \[2\]"),
        ({**ARC_COLUMNS, "choices": {"label": ["1", "2"], "text": ["a", True]}}, "needs labels and texts .* got True"),
        ({**ARC_COLUMNS, "choices": {"label": ["1", "2"], "text": ["a", " "]}}, "needs a text for each choice"),
        ({**BOOLQ, "passage": 5}, "its passage must be a str, got 5"),
        ({**ADAPTERS[1], "input": ["x"]}, r"its input must be a str, got \['x'\]"),
        ({**GSM8K, "question": " "}, "has no question"),
    ],
    ids=str,
)
def test_a_record_that_does_not_mean_what_its_layout_says_is_named(record: dict[str, Any], words: str) -> None:
    content = "\n".join(map(json.dumps, (GSM8K, record)))
    with pytest.raises(ValueError, match=rf"^a\.jsonl: problem 1:? .*{words}"):
        parse_problems(content, "a.jsonl")
