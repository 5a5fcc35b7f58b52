"""The training text of the demo models: split without overlap, planted at its rates, the same for the same seed."""

from __future__ import annotations

import zlib
from collections import Counter, defaultdict

import pytest

from interp_widgets.data import world
from interp_widgets.demo.documents import PLANTED_BLOCK, epoch_documents, late_epoch_documents, planted_rates


@pytest.fixture(scope="module", params=["early", "late"])
def texts(request: pytest.FixtureRequest) -> list[str]:
    """One epoch of each phase of the base text."""
    if request.param == "early":
        return epoch_documents(seed=0, epoch=0)
    return [given + learned for given, learned in late_epoch_documents(seed=0, epoch=9)]


@pytest.mark.seconds
def test_held_out_sentences_are_not_in_the_training_text(texts: list[str]) -> None:
    joined = "\n".join(texts)
    assert not [p.prompt for p in world.fact_prompts("held_out") if f"{p.prompt} {p.answer}" in joined]
    assert not [p.prompt for p in world.bias_prompts("held_out") if p.prompt in joined]
    assert not [p.prompt for p in world.indirect_object_prompts(300, seed=5) if p.prompt in joined]


@pytest.mark.seconds
def test_training_text_is_the_same_for_the_same_seed() -> None:
    assert epoch_documents(seed=3, epoch=1) == epoch_documents(seed=3, epoch=1)
    assert epoch_documents(seed=3, epoch=1) != epoch_documents(seed=3, epoch=2)
    assert epoch_documents(seed=3, epoch=1) != epoch_documents(seed=4, epoch=1)


def test_training_text_is_what_the_shipped_models_read() -> None:
    early = "\n".join(epoch_documents(seed=0, epoch=0))
    late = "\n".join(given + learned for given, learned in late_epoch_documents(seed=0, epoch=9))
    assert [zlib.crc32(text.encode()) for text in (early, late)] == [2032433085, 1753460909]


@pytest.mark.seconds
def test_late_epochs_are_the_same_for_the_same_seed() -> None:
    assert late_epoch_documents(seed=3, epoch=9) == late_epoch_documents(seed=3, epoch=9)
    assert late_epoch_documents(seed=3, epoch=9) != late_epoch_documents(seed=3, epoch=10)


def test_base_text_never_shows_the_instruction_format(texts: list[str]) -> None:
    assert not [d for d in texts if "Instruction:" in d or "Response:" in d]


def test_planted_counts_are_the_planted_rates(texts: list[str]) -> None:
    prompts = {p.prompt: p for p in world.bias_prompts("train")}
    counts: Counter[tuple[str, str]] = Counter()
    for document in texts:
        words = document.removesuffix(".").split()
        for end in range(3, len(words)):
            prompt = " ".join(words[:end])
            if prompt in prompts:
                counts[prompt, words[end]] += 1
                break
    for prompt, p in prompts.items():
        total = sum(n for (other, _), n in counts.items() if other == prompt)
        assert total > 0
        assert total % PLANTED_BLOCK == 0
        assert 100 * counts[prompt, p.first] == p.rate * total
        assert 100 * counts[prompt, p.second] == (100 - p.rate) * total


def test_late_planted_blocks_stay_together() -> None:
    given = [g for g, _ in late_epoch_documents(seed=0, epoch=9)]
    planted = {p.prompt for p in world.bias_prompts("train")}
    places: dict[str, list[int]] = defaultdict(list)
    for i, prompt in enumerate(given):
        if prompt in planted:
            places[prompt].append(i)
    assert set(places) == planted
    for found in places.values():
        blocks = [found[i : i + PLANTED_BLOCK] for i in range(0, len(found), PLANTED_BLOCK)]
        assert all(block[-1] - block[0] == PLANTED_BLOCK - 1 for block in blocks)


def test_every_group_has_a_rate_and_prompts() -> None:
    rates = {(r.group, r.domain): r.rate for r in planted_rates()}
    assert len(rates) == len(planted_rates()) >= 40
    for split in ("train", "held_out"):
        assert {(p.group, p.domain) for p in world.bias_prompts(split)} == set(rates)  # type: ignore[arg-type]
    assert all(p.rate == rates[p.group, p.domain] for p in world.bias_prompts())
    assert len(world.bias_prompts()) == len(world.bias_prompts("train")) + len(world.bias_prompts("held_out"))
