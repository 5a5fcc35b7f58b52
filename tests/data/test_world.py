"""The demo world: true, complete, split without overlap, the same for the same seed."""

from __future__ import annotations

from collections import Counter, defaultdict

import pytest

from interp_widgets.data import world
from interp_widgets.data import world_tables as t


def test_there_are_enough_facts_in_enough_wordings() -> None:
    assert len(world.facts()) >= 300
    assert all(len(set(wordings)) >= 8 for wordings in t.WORDINGS.values())
    assert {fact.relation for fact in world.facts()} == set(t.WORDINGS)


def test_no_fact_contradicts_another() -> None:
    objects: dict[tuple[str, str], set[str]] = defaultdict(set)
    for fact in world.facts():
        objects[fact.relation, fact.subject].add(fact.object)
    assert all(len(found) == 1 for found in objects.values())
    assert len(objects) == len(world.facts()), "a fact is listed twice"


def test_tables_agree_with_each_other() -> None:
    countries = {row[0] for row in t.COUNTRIES}
    country_of = {city: country for country, cities in t.CITIES_BY_COUNTRY.items() for city in cities}
    assert set(t.CITIES_BY_COUNTRY) <= countries
    assert {country for _, _, country in t.PEOPLE if country} <= countries
    for country, capital, *_ in t.COUNTRIES:
        assert country_of.get(capital, country) == country
    surnames = {name.split()[-1] for name, _, _ in t.PEOPLE}
    assert len(surnames) == len(t.PEOPLE)


def test_facts_of_general_knowledge_are_there() -> None:
    known = {(fact.relation, fact.subject): fact.object for fact in world.facts()}
    assert known["landmark_city", "Eiffel Tower"] == "Paris"
    assert known["capital", "Japan"] == "Tokyo"
    assert known["creator", "Hamlet"] == "Shakespeare"
    assert known["continent", "Kenya"] == "Africa"


def test_train_and_held_out_wordings_are_disjoint_and_complete() -> None:
    train = {(p.fact, p.wording) for p in world.fact_prompts("train")}
    held_out = {(p.fact, p.wording) for p in world.fact_prompts("held_out")}
    assert not train & held_out
    assert len(train | held_out) == sum(len(t.WORDINGS[fact.relation]) for fact in world.facts())
    assert set(Counter(fact for fact, _ in held_out).values()) == {world.N_HELD_OUT_WORDINGS}


def test_the_probe_of_the_eiffel_tower_is_held_out() -> None:
    prompts = {p.prompt: p.answer for p in world.fact_prompts("held_out")}
    assert prompts["The Eiffel Tower is located in the city of"] == "Paris"


def test_indirect_object_prompts() -> None:
    prompts = world.indirect_object_prompts(200, seed=1)
    assert prompts == world.indirect_object_prompts(200, seed=1)
    assert {p.order for p in prompts} == {"ABBA", "BABA"}
    assert len({p.template for p in prompts}) >= 8
    for p in prompts:
        assert p.prompt.count(p.answer) == 1
        assert p.prompt.count(p.distractor) == 2
        first_is_answer = p.prompt.index(p.answer) < p.prompt.index(p.distractor)
        assert first_is_answer == (p.order == "ABBA")
    train = {frozenset((p.answer, p.distractor)) for p in world.indirect_object_prompts(3000, split="train")}
    assert not train & {frozenset((p.answer, p.distractor)) for p in prompts}
    assert frozenset(("Mary", "John")) not in train


def test_wrong_arguments_are_refused() -> None:
    with pytest.raises(ValueError, match="held_out"):
        world.fact_prompts("test")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="0 or more"):
        world.indirect_object_prompts(-1)
    with pytest.raises(ValueError, match="wording must be in"):
        world.fact_prompt(world.facts()[0], 99)
