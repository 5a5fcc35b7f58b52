"""The demo world: true, complete, split without overlap, the same for the same seed."""

from __future__ import annotations

from collections import Counter, defaultdict

import pytest

from interp_widgets.data import text, world
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


@pytest.fixture(scope="module", params=["early", "late"])
def documents(request: pytest.FixtureRequest) -> list[str]:
    """One epoch of each phase of the base text."""
    if request.param == "early":
        return text.epoch_documents(seed=0, epoch=0)
    return [given + learned for given, learned in text.late_epoch_documents(seed=0, epoch=9)]


def test_held_out_sentences_are_not_in_the_training_text(documents: list[str]) -> None:
    joined = "\n".join(documents)
    assert not [p.prompt for p in world.fact_prompts("held_out") if f"{p.prompt} {p.answer}" in joined]
    assert not [p.prompt for p in world.bias_prompts("held_out") if p.prompt in joined]
    assert not [p.prompt for p in world.indirect_object_prompts(300, seed=5) if p.prompt in joined]


def test_training_text_is_the_same_for_the_same_seed() -> None:
    assert text.epoch_documents(seed=3, epoch=1) == text.epoch_documents(seed=3, epoch=1)
    assert text.epoch_documents(seed=3, epoch=1) != text.epoch_documents(seed=3, epoch=2)
    assert text.epoch_documents(seed=3, epoch=1) != text.epoch_documents(seed=4, epoch=1)


def test_late_epochs_are_the_same_for_the_same_seed() -> None:
    assert text.late_epoch_documents(seed=3, epoch=9) == text.late_epoch_documents(seed=3, epoch=9)
    assert text.late_epoch_documents(seed=3, epoch=9) != text.late_epoch_documents(seed=3, epoch=10)


def test_base_text_never_shows_the_instruction_format(documents: list[str]) -> None:
    assert not [d for d in documents if "Instruction:" in d or "Response:" in d]


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


def test_planted_counts_are_the_planted_rates(documents: list[str]) -> None:
    prompts = {p.prompt: p for p in world.bias_prompts("train")}
    counts: Counter[tuple[str, str]] = Counter()
    for document in documents:
        words = document.removesuffix(".").split()
        for end in range(3, len(words)):
            prompt = " ".join(words[:end])
            if prompt in prompts:
                counts[prompt, words[end]] += 1
                break
    for prompt, p in prompts.items():
        total = sum(n for (other, _), n in counts.items() if other == prompt)
        assert total > 0
        assert total % world.PLANTED_BLOCK == 0
        assert 100 * counts[prompt, p.first] == p.rate * total
        assert 100 * counts[prompt, p.second] == (100 - p.rate) * total


def test_late_planted_blocks_stay_together() -> None:
    given = [g for g, _ in text.late_epoch_documents(seed=0, epoch=9)]
    planted = {p.prompt for p in world.bias_prompts("train")}
    places: dict[str, list[int]] = defaultdict(list)
    for i, prompt in enumerate(given):
        if prompt in planted:
            places[prompt].append(i)
    assert set(places) == planted
    for found in places.values():
        blocks = [found[i : i + world.PLANTED_BLOCK] for i in range(0, len(found), world.PLANTED_BLOCK)]
        assert all(block[-1] - block[0] == world.PLANTED_BLOCK - 1 for block in blocks)


def test_every_group_has_a_rate_and_prompts() -> None:
    rates = {(r.group, r.domain): r.rate for r in world.planted_rates()}
    assert len(rates) == len(world.planted_rates()) >= 40
    for split in ("train", "held_out"):
        assert {(p.group, p.domain) for p in world.bias_prompts(split)} == set(rates)  # type: ignore[arg-type]
    assert all(p.rate == rates[p.group, p.domain] for p in world.bias_prompts())
    assert len(world.bias_prompts()) == len(world.bias_prompts("train")) + len(world.bias_prompts("held_out"))


def test_wrong_arguments_are_refused() -> None:
    with pytest.raises(ValueError, match="held_out"):
        world.fact_prompts("test")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="0 or more"):
        world.indirect_object_prompts(-1)
    with pytest.raises(ValueError, match="wording must be in"):
        world.fact_prompt(world.facts()[0], 99)


def test_words_are_counted() -> None:
    counts = world.words()
    assert counts["the"] > counts["Paris"] > 0
    assert list(counts.values()) == sorted(counts.values(), reverse=True)
