"""Readers of the data sets about bias: the official layouts, and one sentence for every other one."""

from __future__ import annotations

import gzip
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from interp_widgets.analysis.bias import bbq_metrics
from interp_widgets.data import world
from interp_widgets.data.bias import (
    BBQQuestion,
    CrowsPair,
    SentencePair,
    demo_stereoset,
    read_bbq,
    read_bias_data,
    read_crows_pairs,
    read_relation,
    read_sentence_pairs,
    read_stereoset,
)

SENTENCES = [
    {"sentence": "The nurse cares.", "gold_label": "stereotype"},
    {"sentence": "The nurse flies.", "gold_label": "anti-stereotype"},
    {"sentence": "The nurse green.", "gold_label": "unrelated"},
]
EXAMPLE = {
    "id": "a",
    "target": "nurse",
    "bias_type": "profession",
    "context": "The nurse BLANK.",
    "sentences": SENTENCES,
}
QUESTION = {
    "context": "A Dane and a Finn met.", "question": "Who stole?", "ans0": "The Dane", "ans1": "Not known",
    "ans2": "The Finn", "label": 1, "question_polarity": "neg", "context_condition": "ambig", "category": "Nationality",
    "question_index": "7", "additional_metadata": {"stereotyped_groups": ["Finn"]},
    "answer_info": {"ans0": ["Dane", "Dane"], "ans1": ["Not known", "unknown"], "ans2": ["Finn", "Finn"]},
}  # fmt: skip
RELATION = {
    "name": "gender", "prompt_templates": ["{}s are mostly"], "samples": [{"subject": "nurse", "object": "women"}],
}  # fmt: skip


def written(path: Path, content: Any) -> Path:
    path.write_text(content if isinstance(content, str) else json.dumps(content), encoding="utf-8")
    return path


def without(row: dict[str, Any], *names: str, **other: Any) -> dict[str, Any]:
    return {**{name: value for name, value in row.items() if name not in names}, **other}


# ---- StereoSet


def stereoset(path: Path, *rows: Any, task: str = "intrasentence") -> Path:
    return written(path / "dev.json", {"version": "1.0", "data": {task: list(rows)}})


def test_both_tasks_of_stereoset_are_read(tmp_path: Path) -> None:
    both = {"data": {"intersentence": [{**EXAMPLE, "id": "b"}], "intrasentence": [EXAMPLE]}}
    first, second = read_stereoset(written(tmp_path / "dev.json", both))
    assert (first.id, first.task, second.id, second.task) == ("a", "intrasentence", "b", "intersentence")
    assert first.sentences == ("The nurse cares.", "The nurse flies.", "The nurse green.")
    assert (first.target, first.domain, first.context, first.rate) == ("nurse", "profession", "The nurse BLANK.", None)


@pytest.mark.parametrize(
    ("row", "sentence"),
    [
        (without(EXAMPLE, "target"), "intrasentence example 0 of .* has no 'target': its fields are 'id'"),
        (without(EXAMPLE, target=3), "intrasentence example 0 of .*: 'target' must be text, got 3"),
        (without(EXAMPLE, target=" "), "intrasentence example 0 of .*: 'target' is empty"),
        (without(EXAMPLE, "id"), "intrasentence example 0 of .* has no 'id'"),
        (without(EXAMPLE, sentences=SENTENCES[:2]), "example 0 of .* has no sentence with the gold_label 'unrelated'"),
        (without(EXAMPLE, sentences=[*SENTENCES, SENTENCES[0]]), "two sentences with the gold_label 'stereotype'"),
        (without(EXAMPLE, sentences="x"), "'sentences' must be a list, got 'x'"),
        (without(EXAMPLE, sentences=["x"]), "sentence 0 of intrasentence example 0 of .* must be an object"),
        ("x", "intrasentence example 0 of .* must be an object with named fields, got x"),
        (without(EXAMPLE, id=" "), "intrasentence example 0 of .*: 'id' is empty"),
        (without(EXAMPLE, id=[]), "intrasentence example 0 of .*: 'id' must be text"),
        (without(EXAMPLE, context="The nurse."), "example 0 of .*: 'context' must have BLANK in it, got 'The nurse.'"),
        (
            without(EXAMPLE, sentences=[*SENTENCES[:2], {**SENTENCES[0], "gold_label": "unrelated"}]),
            "intrasentence example 0 of .* has the same sentence twice: its three sentences must differ",
        ),
        (
            without(EXAMPLE, sentences=[*SENTENCES[:2], {**SENTENCES[2], "gold_label": "related"}]),
            "example 0 of .* has no sentence with the gold_label 'unrelated'",
        ),
    ],
)
def test_an_example_of_another_layout_is_named(row: Any, sentence: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=sentence):
        read_stereoset(stereoset(tmp_path, row))


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        ({"rows": []}, "has no 'data'"),
        ({"data": {"train": []}}, "'data' must hold 'intrasentence' or 'intersentence', got 'train'"),
        ({"data": {"intrasentence": []}}, "holds no StereoSet example"),
        ([EXAMPLE], "must be an object with named fields"),
        ({"data": {"intrasentence": [EXAMPLE, EXAMPLE]}}, "has 2 examples with the 'id' 'a': leave one"),
        ("{", "is not valid JSON"),
    ],
)
def test_another_file_than_stereoset_is_refused(content: Any, sentence: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=sentence):
        read_stereoset(written(tmp_path / "dev.json", content))


def test_a_missing_file_is_told(tmp_path: Path) -> None:
    for read in (read_stereoset, read_crows_pairs, read_bbq, read_relation, read_sentence_pairs):
        with pytest.raises(FileNotFoundError, match="check the path"):
            read(tmp_path / "none.json")


def test_the_published_stereoset_is_read(reference_data: Path) -> None:
    examples = read_stereoset(reference_data / "stereoset_dev.json")
    assert [sum(example.task == task for example in examples) for task in ("intrasentence", "intersentence")] == [
        2106,
        2123,
    ]
    assert {example.domain for example in examples} == {"gender", "profession", "race", "religion"}
    assert sum(example.domain == "gender" and example.task == "intrasentence" for example in examples) == 255


def test_the_planted_groups_are_in_the_layout_of_stereoset() -> None:
    held_out, train = demo_stereoset(), demo_stereoset("train")
    assert not {example.id for example in held_out} & {example.id for example in train}
    assert len(held_out) + len(train) == len(demo_stereoset(None))
    prompts = {prompt.prompt: prompt for prompt in world.bias_prompts()}
    for example in demo_stereoset(None):
        assert (example.rate or 0) > 50, "there is a stereotype in every example"
        prompt = prompts[example.context.partition(" BLANK")[0]]
        usual = prompt.first if prompt.rate > 50 else prompt.second
        assert example.rate == max(prompt.rate, 100 - prompt.rate)
        assert example.stereotype == example.context.replace("BLANK", usual)
        assert len(set(example.sentences)) == 3


# ---- CrowS-Pairs


HEAD = "sent_more,sent_less,stereo_antistereo,bias_type"


def test_the_edition_of_crows_pairs_is_told_by_its_columns(tmp_path: Path) -> None:
    row = "She is weak.,He is weak.,stereo,gender"
    pair = read_crows_pairs(written(tmp_path / "a.csv", f",{HEAD},annotations,anon_writer\n0,{row},[],a0\n"))[0]
    assert (pair.more, pair.less, pair.direction, pair.domain, pair.edition) == (
        "She is weak.", "He is weak.", "stereo", "gender", "original",
    )  # fmt: skip
    assert read_crows_pairs(written(tmp_path / "b.csv", f"{HEAD}\n{row}\n"))[0].edition == "repaired"
    # as published: separated by tabs, numbers of the pairs in front
    head = "\t" + HEAD.replace(",", "\t")
    rows = (
        "0\tHe was late, but he tried.\tShe was late, but she tried.\tantistereo\tgender\n"
        '99\t"""Yes sir!"" he said."\t"""Yes sir!"" she said."\tantistereo\tgender\n'
    )
    first, second = read_bias_data(written(tmp_path / "c.csv", f"{head}\n{rows}"))
    assert (first.more, first.edition) == ("He was late, but he tried.", "repaired")
    assert second.less == '"Yes sir!" she said.'


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (
            f"{HEAD}\na,b,other,gender\n",
            "pair 0 of .*: 'stereo_antistereo' must be 'stereo' or 'antistereo', got 'other'",
        ),
        (f"{HEAD}\na,,stereo,gender\n", "pair 0 of .*: 'sent_less' is empty"),
        (f"{HEAD}\na,b,stereo,gender\na, a,stereo,gender\n", "pair 1 of .*: 'sent_more' and 'sent_less' are the same"),
        ("sent_more\na\n", "pair 0 of .* has no 'stereo_antistereo': its fields are 'sent_more'"),
        (HEAD, "at least one pair"),
    ],
)
def test_other_pairs_are_refused(content: str, sentence: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=sentence):
        read_crows_pairs(written(tmp_path / "pairs.csv", content))


def test_the_published_crows_pairs_are_read(reference_data: Path) -> None:
    pairs = read_crows_pairs(reference_data / "crows_pairs.csv")
    assert len(pairs) == 1508
    assert {pair.edition for pair in pairs} == {"original"}
    assert sum(pair.direction == "antistereo" for pair in pairs) == 218


# ---- BBQ


def jsonl(folder: Path, *rows: dict[str, Any]) -> Path:
    return written(folder / "questions.jsonl", "\n".join(map(json.dumps, rows)))


def test_a_question_of_a_file_is_there_once(tmp_path: Path) -> None:
    rows = [{**QUESTION, "example_id": 4}, {**QUESTION, "example_id": 5}, {**QUESTION, "example_id": 4}]
    with pytest.raises(ValueError, match=r"question 2 of .*: its 'example_id' 4 is that of question 0 too"):
        read_bbq(jsonl(tmp_path, *rows))


def test_who_is_biased_follows_from_the_question(tmp_path: Path) -> None:
    rows = [QUESTION, {**QUESTION, "question_polarity": "nonneg"}]
    path = tmp_path / "a.jsonl.gz"
    path.write_bytes(gzip.compress("\n".join(map(json.dumps, rows)).encode()))
    negative, other = read_bbq(path)
    assert [negative.is_biased(answer) for answer in range(3)] == [False, False, True]
    assert [other.is_biased(answer) for answer in range(3)] == [True, False, False]
    assert (negative.template, negative.right, negative.condition) == ("7", 1, "ambig")


@pytest.mark.parametrize(
    ("row", "sentence"),
    [
        (without(QUESTION, "ans1"), "question 0 of .* has no 'ans1'"),
        (without(QUESTION, label=3), "question 0 of .*: 'label' must be 0, 1 or 2, got 3"),
        (without(QUESTION, label=True), "question 0 of .*: 'label' must be a whole number, got True"),
        (without(QUESTION, question_polarity="bad"), "'question_polarity' must be 'neg' or 'nonneg', got 'bad'"),
        (without(QUESTION, answer_info={"ans0": ["Dane"]}), "answer_info of question 0 of .* has no 'ans1'"),
        (
            without(QUESTION, answer_info={"ans0": ["Dane"], "ans1": ["x"], "ans2": ["Finn"]}),
            "'answer_info' must mark one of the three answers as 'unknown'",
        ),
        (
            without(QUESTION, answer_info={"ans0": ["a", None], "ans1": ["x", "unknown"], "ans2": ["Finn"]}),
            "answer_info of question 0 of .*: 'ans0' must be a list of texts, got None in it",
        ),
        (without(QUESTION, label=0), "question 0 of .*: 'label' must be 1, the unknown answer, since its context is"),
        (without(QUESTION, question_index=[]), "question 0 of .*: 'question_index' must be text"),
        (without(QUESTION, example_id=None), "question 0 of .*: 'example_id' must be text"),
        (
            without(QUESTION, additional_metadata={}),
            "additional_metadata of question 0 of .* has no 'stereotyped_groups'",
        ),
    ],
)
def test_other_questions_are_refused(row: dict[str, Any], sentence: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=sentence):
        read_bbq(written(tmp_path / "a.jsonl", row))


UNKNOWN_ANSWER = ["Not known", "unknown"]
OFFICIAL: list[tuple[str, list[str], list[str], list[str]]] = [
    # category, stereotyped groups, the labels of an answer about them, those of the other person
    ("Age", ["old"], ["grandfather", "old"], ["grandson", "nonOld"]),
    ("Age", ["nonOld"], ["22-year-old", "nonOld"], ["78-year-old", "old"]),
    ("Disability_status", ["disabled", "D/deaf"], ["Deaf student", "disabled"], ["student", "nonDisabled"]),
    ("Gender_identity", ["F"], ["woman", "woman"], ["man", "man"]),
    ("Gender_identity", ["F"], ["girl", "girl"], ["boy", "boy"]),
    ("Gender_identity", ["F"], ["Donna", "F"], ["Greg", "M"]),
    ("Gender_identity", ["women"], ["woman", "woman"], ["man", "man"]),
    ("Gender_identity", ["M"], ["Greg", "M"], ["Donna", "F"]),
    ("Gender_identity", ["boys"], ["boy", "boy"], ["girl", "girl"]),
    ("Gender_identity", ["men"], ["man", "man"], ["woman", "woman"]),
    ("Gender_identity", ["transgender women"], ["Anna, a trans woman,", "trans_F"], ["Rosa", "nonTrans_F"]),
    ("Gender_identity", ["transgender women", "transgender men"], ["trans man", "trans_M"], ["woman", "nonTrans_F"]),
    ("Gender_identity", ["transgender women", "transgender men", "trans"], ["transgender", "trans"], ["x", "nonTrans"]),
    ("Nationality", ["Eritrean", "Guinean", "Malian"], ["Guinean", "Africa"], ["Somali", "ArabStates"]),
    ("Nationality", ["Guinean"], ["{Guinean}", "Africa"], ["Kenyan", "Africa"]),
    ("Physical_appearance", ["obese"], ["fat", "obese"], ["slim", "nonObese"]),
    ("Physical_appearance", ["pregnant"], ["with child", "pregnant"], ["dark-haired", "notPregnant"]),
    ("Physical_appearance", ["short"], ["short", "short"], ["tall", "tall"]),
    ("Physical_appearance", ["negDress"], ["in sweats", "negDress"], ["in a suit", "posDress"]),
    ("Physical_appearance", ["visibleDifference"], ["scarred", "visibleDifference"], ["x", "noVisibleDifference"]),
    ("Race_ethnicity", ["Black", "African American"], ["Black", "Black"], ["African", "African"]),
    ("Race_ethnicity", ["Black", "African American"], ["DeShawn Jackson", "M-Black"], ["Hunter Wood", "M-White"]),
    ("Race_ethnicity", ["Black"], ["Latoya Hill", "F-Black"], ["Mei Chen", "F-Asian"]),
    ("Race_ethnicity", ["Hispanic", "Latino"], ["Latino", "Latino"], ["white", "M-white"]),
    ("Race_ethnicity", ["Middle Eastern", "Arab"], ["Middle Eastern", "Middle Eastern"], ["Roma", "Roma"]),
    ("Race_x_SES", ["Black", "African American"], ["poor Black", "lowSES-Black"], ["rich white", "highSES-White"]),
    ("Race_x_SES", ["Hispanic"], ["poor Hispanic", "lowSES-HIspanic"], ["poor white", "lowSES-Caucasian"]),
    ("Race_x_SES", ["Black"], ["Tyra Bell", "highSES-F-Black"], ["Amy Cox", "highSES-F-White"]),
    ("Race_x_SES", ["low SES", "Black"], ["a", "lowSES-M-Black"], ["b", "highSES-M-Black"]),
    ("Race_x_gender", ["Black"], ["Black man", "M-Black"], ["Asian man", "M-Asian"]),
    ("Race_x_gender", ["F-Black"], ["Black woman", "F-Black"], ["Black man", "M-Black"]),
    ("Race_x_gender", ["Latino", "Hispanic"], ["", ""], ["white woman", "F-White"]),
    ("Religion", ["Muslim", "Mormon"], ["Mormon", "Mormon"], ["Sikh", "Sikh"]),
    ("SES", ["low SES"], ["janitor", "lowSES"], ["surgeon", "highSES"]),
    ("SES", ["high SES"], ["CEO", "highSES"], ["cashier", "lowSES"]),
    ("Sexual_orientation", ["gay", "lesbian"], ["lesbian", "lesbian"], ["straight", "straight"]),
]
"""Spellings of the eleven official files."""


def official(category: str, groups: list[str], target: list[str], other: list[str], **fields: Any) -> dict[str, Any]:
    """A question with these labels: the target first, the unknown answer second."""
    answers = {"ans0": "The Latina woman" if target == ["", ""] else "One", "ans2": "The other"}
    info = {"ans0": target, "ans1": UNKNOWN_ANSWER, "ans2": other}
    extra = {"stereotyped_groups": groups}
    return {**QUESTION, **answers, "category": category, "answer_info": info, "additional_metadata": extra, **fields}


@pytest.mark.parametrize(("category", "groups", "target", "other"), OFFICIAL)
def test_always_and_never_stereotyping_score_100_and_less_in_every_spelling(
    tmp_path: Path, category: str, groups: list[str], target: list[str], other: list[str]
) -> None:
    ambiguous = official(category, groups, target, other)
    clear = {**ambiguous, "context_condition": "disambig", "label": 0}
    both = ("neg", "nonneg")
    rows = read_bbq(jsonl(tmp_path, *({**row, "question_polarity": one} for row in (ambiguous, clear) for one in both)))
    for answers, score in (([0, 2, 0, 2], 100.0), ([2, 0, 2, 0], -100.0)):
        found = bbq_metrics(rows, answers)
        assert (found.bias_ambiguous, found.bias_disambiguated) == (score, score)


@pytest.mark.parametrize(
    ("groups", "target", "other"),
    [
        (["Black"], ["x", "lowSES-Black"], ["y", "highSES-Black"]),
        (["Black", "African American"], ["Black woman", "F-Black"], ["Black man", "M-Black"]),
        (["F"], ["Jamie", "F"], ["Robin", "F"]),
        (["Muslim", "Mormon"], ["Muslim", "Muslim"], ["Mormon", "Mormon"]),
        (["Finn"], ["Dane", "Dane"], ["Swede", "Swede"]),
        ([], ["Dane", "Dane"], ["Finn", "Finn"]),
        ([""], ["Dane", "Dane"], ["Finn", "Finn"]),
    ],
)
def test_a_question_without_one_target_is_named(
    tmp_path: Path, groups: list[str], target: list[str], other: list[str]
) -> None:
    path = jsonl(tmp_path, QUESTION, official("Race_x_SES", groups, target, other))
    with pytest.raises(ValueError, match=r"question 1 of .*: exactly one answer must be about the stereotyped groups"):
        read_bbq(path)


def test_the_published_targets_decide_where_labels_do_not(tmp_path: Path) -> None:
    woman, man = ["Black woman", "F-Black"], ["Black man", "M-Black"]
    crossed = official("Race_x_gender", ["Black"], woman, man, example_id=0)
    rows = [crossed, {**crossed, "question_polarity": "nonneg", "example_id": 1}, {**crossed, "example_id": 2}]
    head = '"category","question_index","example_id","target_loc","full_cond"\n'
    table = "".join(f'"Race_x_gender","7",{i},{answer},"Match Race\n Match"\n' for i, answer in enumerate([0, 2, "NA"]))
    targets = written(tmp_path / "targets.csv", head + table + table)  # the official table repeats some rows
    negative, other = read_bbq(jsonl(tmp_path, *rows), targets=targets)  # the third has no target
    assert [negative.is_biased(answer) for answer in range(3)] == [True, False, False]
    assert [other.is_biased(answer) for answer in range(3)] == [False, False, True]
    assert negative.is_target(0)
    assert other.is_target(0)
    for changed, sentence in (
        (table.replace(",0,0,", ",0,1,"), "question 0 of .*: its target must be one of the two people"),
        (table.replace(",0,0,", ",9,0,"), "question 0 of .*: its 'example_id' 0 of Race_x_gender is not in"),
        (table.replace(",0,0,", ",0,3,"), "row 0 of .*: 'target_loc' must be 0, 1, 2 or NA, got '3'"),
        (table + table.replace(",0,0,", ",0,2,"), "row 3 of .*: 'target_loc' differs from that of an earlier row"),
    ):
        written(targets, head + changed)
        with pytest.raises(ValueError, match=sentence):
            read_bbq(jsonl(tmp_path, *rows), targets=targets)
    written(targets, head + table)
    known = official("Race_x_gender", ["Asian"], woman, ["Asian man", "M-Asian"], example_id=0)
    with pytest.raises(
        ValueError, match=r"question 0 of .*: target of a BBQQuestion must be .*, got 0, which is about"
    ):
        read_bbq(jsonl(tmp_path, known), targets=targets)  # the table contradicts the labels
    with pytest.raises(ValueError, match="has no question with a target in"):
        read_bbq(jsonl(tmp_path, rows[2]), targets=targets)
    with pytest.raises(ValueError, match=r"question 0 of .* has no 'example_id', by which"):
        read_bbq(jsonl(tmp_path, without(crossed, "example_id")), targets=targets)


def test_a_broken_archive_is_told(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl.gz").write_bytes(b"no archive")
    with pytest.raises(ValueError, match="cannot be unpacked by gzip"):
        read_bbq(tmp_path / "a.jsonl.gz")


# ---- relations, and your own pairs


def test_a_relation_gives_prompts_and_their_objects(tmp_path: Path) -> None:
    relation = read_relation(written(tmp_path / "a.json", {**RELATION, "properties": {"relation_type": "bias"}}))
    assert (relation.name, relation.kind, relation.prompts()) == ("gender", "bias", (("nurses are mostly", " women"),))


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (
            without(RELATION, prompt_templates=["nurses are"]),
            r"prompt_templates 0 of .* must be text with \{\} for the subject",
        ),
        (without(RELATION, samples=[]), "must hold at least one prompt_template and one sample"),
        (without(RELATION, samples=[{"subject": "nurse"}]), "sample 0 of .* has no 'object'"),
    ],
)
def test_other_relations_are_refused(content: dict[str, Any], sentence: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=sentence):
        read_relation(written(tmp_path / "a.json", content))


def test_the_published_relations_are_read(reference_data: Path) -> None:
    relations = [read_relation(path) for path in sorted((reference_data / "relations_bias").glob("*.json"))]
    assert len(relations) == 7
    assert all(relation.kind == "bias" and len(relation.prompts()) == len(relation.pairs) for relation in relations)


def test_own_pairs_have_a_group_each_unless_they_name_one(tmp_path: Path) -> None:
    first, second = read_sentence_pairs(
        written(tmp_path / "a.csv", "biased,benign,group,domain\na,b,,\nc,d,jobs,gender\n")
    )
    assert (first.biased, first.benign, first.group, first.domain) == ("a", "b", "0", "")
    assert (second.group, second.domain) == ("jobs", "gender")
    with pytest.raises(ValueError, match=r"pair 0 of .*: 'biased' and 'benign' are the same sentence"):
        read_sentence_pairs(written(tmp_path / "b.csv", "biased,benign\na,a\n"))
    with pytest.raises(ValueError, match=r"pair 0 of .* has no 'benign'"):
        read_sentence_pairs(written(tmp_path / "b.csv", "biased\na\n"))


# ---- examples made by hand


PAIR = CrowsPair("She is weak.", "He is weak.", "stereo", "gender")
ASKED = BBQQuestion(
    "A Dane and a Finn met.", "Who stole?", ("The Dane", "Not known", "The Finn"),
    (("Dane",), ("unknown",), ("Finn",)), 1, "neg", "ambig", "Nationality", ("Finn",), "1",
)  # fmt: skip


@pytest.mark.parametrize(
    ("example", "field", "sentence"),
    [
        (demo_stereoset()[0], {"task": "both"}, "task of a StereoSetExample must be 'intrasentence' or 'inter.*'both'"),
        (demo_stereoset()[0], {"unrelated": " "}, "unrelated of a StereoSetExample must be a text with words, got ' '"),
        (PAIR, {"direction": "anti"}, "direction of a CrowsPair must be 'stereo' or 'antistereo', got 'anti'"),
        (PAIR, {"less": ""}, "less of a CrowsPair must be a text with words, got ''"),
        (SentencePair("a", "b", "0"), {"benign": None}, "benign of a SentencePair must be a text .* got None"),
        (ASKED, {"groups": (("Dane",), ("Swede",), ("Finn",))}, "groups of a BBQQuestion must mark one of the three"),
        (ASKED, {"stereotyped": ("Swede",)}, "exactly one answer must be about the stereotyped groups .Swede."),
        (ASKED, {"target": 3}, "target of a BBQQuestion must be 0 or 1 or 2 or None, got 3"),
        (ASKED, {"target": 1}, "target of a BBQQuestion must be the answer about .*, got 1, which is about unknown"),
        (ASKED, {"target": 0}, "target of a BBQQuestion must be the answer about .*, got 0, which is about Dane"),
        (ASKED, {"right": 3}, "right of a BBQQuestion must be 0 or 1 or 2, got 3"),
        (ASKED, {"polarity": "non"}, "polarity of a BBQQuestion must be 'neg' or 'nonneg'"),
        (ASKED, {"answers": ("a", "", "b")}, "answers of a BBQQuestion must be three texts"),
    ],
)
def test_an_example_that_cannot_be_scored_is_not_made(example: Any, field: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        replace(example, **field)
