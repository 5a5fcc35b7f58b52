"""What the lessons say of the shipped models, sentence by sentence, with the code that shows it.

The code runs in the notebook's kernel right behind the text that holds the sentence, where the names of the notebook
are as a reader has them; `tests/test_notebooks.py` inserts it. A sentence stands here as in the notebook, line breaks
apart.
"""

from __future__ import annotations

CLAIMS: dict[str, dict[str, str]] = {
    "00_start": {},
    "01_saliency": {},
    "02_logit_lens": {
        "in most columns the token itself": """\
opening = logit_lens(model, PRESETS[0].prompt)
assert np.mean([opening.top(0, place)[0][0] == token for place, token in enumerate(opening.tokens)]) > 0.5""",
        "most of them are of the right *kind*: places for the tower, first names for the gift.": """\
from interp_widgets.data import world_tables
places = {fact.object for fact in world._facts()} | {fact.subject for fact in world._facts()}
people = {*world_tables.WOMEN, *world_tables.MEN}
for example, kind in ((PRESETS[0], places), (PRESETS[1], people)):
    reading = logit_lens(model, example.prompt)
    likely = [text.strip() for row in (2, 3, 4) for text, _ in reading.top(row, -1)[:10]]
    assert np.mean([text in kind for text in likely]) > 0.5, likely""",
        "Here the answer is *first* from row 1 on, with a small probability": """\
assert (result.target_rank[1:, -1] == 0).all() and result.target_rank[0, -1] > 0
assert result.target_probability[1:4, -1].max() < 0.2 and result.target_probability[5:, -1].min() > 0.95""",
        "Facts are settled earlier, and the interval of the difference is clear of 0.": "assert later - half > 0",
        "more than half of the indirect objects have commit layer 1 as well": """\
assert (depth["indirect objects"] == 1).mean() > 0.5""",
        "Up to row 2 it is about a coin toss": """\
tosses = receives.sum(axis=0)
assert ((14 <= tosses[:3]) & (tosses[:3] <= 26)).all(), tosses""",
        "a fair coin gives 14 to 26 heads in 95 % of the cases": """\
from scipy.stats import binom
assert binom.interval(0.95, 40, 0.5) == (14, 26)""",
        "it becomes clear in rows 3 to 5.": """\
assert 26 < tosses[3] < 36 and tosses[4] > 35 and tosses[5] > 38 and tosses[6] == 40, tosses""",
        "The tuned model is sure of *Paris* and of *Mary* earlier than the base model, of *she* later.": """\
sure = {}
for example in PRESETS:
    for one in pair:
        reading = logit_lens(one, example.prompt, target=example.target).target_probability[:, -1]
        sure[example.target, one.name] = (reading >= 0.3).argmax()
assert all(sure[name, "demo-tuned"] < sure[name, "demo-base"] for name in (" Paris", " Mary"))
assert sure[" she", "demo-tuned"] > sure[" she", "demo-base"]""",
        "A tuned lens reads more from the middle layers.": """\
assert (kl["tuned lens"][1:5] < 0.6 * kl["logit lens"][1:5]).all()""",
    },
    "03_ablation": {
        "Most cells are nearly white.": """\
shown = ablate_modules(model, fact.prompt, fact.target).effect
assert np.mean(np.abs(shown) < 0.05 * np.abs(shown).max()) > 0.75""",
        "The last column matters most": """\
by_column = np.abs(shown).sum(axis=(0, 1))
assert by_column[-1] > by_column[:-1].sum()""",
        "turns the answer from Paris to Dubai. There are two of them.": """\
assert sum((swapped.of(kind) >= swapped.clean).sum() for kind in ("attn", "mlp")) == 2""",
        "fetches the subject to the last position at once, in the first block": """\
assert np.unravel_index(swapped.of("attn").argmax(), (6, 9)) == (0, 8)
assert np.unravel_index(swapped.of("mlp").argmax(), (6, 9)) == (0, 8)
assert (swapped.of("mlp")[3:, 8] > 5).all()""",
        "(a weaker path runs through the first block at *Eiffel*)": """\
assert found.tokens[1] == " Eiffel"
for kind in ("attn", "mlp"):
    assert 5 < swapped.of(kind)[0, 1] < 0.5 * swapped.of(kind)[0, 8]
    assert np.sort(np.abs(swapped.of(kind)[:, :8]), axis=None)[-2] < 2""",
        "Two heads stand out, both in layer 0; the next one has a third of the smaller effect.": """\
ranked = np.sort(mean, axis=None)[::-1]
assert {int(place) // 6 for place in np.argsort(-mean, axis=None)[:2]} == {0}
assert 0.25 < ranked[2] / ranked[1] < 0.4""",
        "First attention of layer 0 notices, **at the repeated name**": """\
assert by_place[0, 0] > 15 and np.abs(by_place[1:, 0]).max() < 0.2""",
        "attention of layers 2 to 4 uses this at the **end**": """\
assert np.abs(by_place[[0, 1, 5], 1]).max() < 1 < 3 < by_place[2:5, 1].min()""",
        "Two heads are enough to turn the answer, and no other pair does that.": """\
assert sorted(others + order[:2]) == sorted(order) and len(order) == 36 == 2 * len(pairs) + 2
assert share_right(order[:2]) == 0 and (gifts[:, 1:] > 0).all() and gifts.shape == (20, 18)""",
        "Facts hardly need the two heads.": """\
assert (recall[:, 1] > 0).sum() >= 19 and recall[:, 1].mean() > 0.95 * recall[:, 0].mean()""",
        "Two other pairs, each with another head of layer 0, turn a quarter of the facts and more": """\
turned = 2 + np.flatnonzero((recall[:, 2:] > 0).mean(axis=0) <= 0.75)
assert len(turned) == 2
assert all(any(layer == 0 for layer, head in sets[place]) for place in turned)""",
        "resample the 34 others together, and the answer is lost as well": "assert share_right(others) == 0",
        "They are all in one column.": """\
assert set(np.argwhere(trace.effect[0] >= trace.clean / 2)[:, 1]) == {8}""",
        "The clean *embedding* of *Eiffel* brings the answer back": """\
assert trace.embedding_effect[1] > 0.9 * trace.clean and abs(trace.effect[0][0, 1]) < 0.01""",
        "the MLPs of layers 3 and 4 raise the right answer of a fact": """\
low = {name: at_the_end(some, "mlp") for name, some in (("facts", few), ("gifts", prompts[:12]))}
middle = {name: effect.mean(axis=0) for name, effect in low.items()}
half = {name: t_value * effect.std(axis=0, ddof=1) / np.sqrt(12) for name, effect in low.items()}
assert (middle["facts"] - half["facts"])[[3, 4]].min() > 0
assert (np.abs(middle["gifts"]) - half["gifts"])[[3, 4]].max() < 0""",
        "one logit and less beside the 17 of block 0": """\
assert middle["facts"][[3, 4]].max() < 1.5 and abs(middle["facts"][0] - 17) < 1""",
        "layer 2 is too close to 0 to say anything": """\
assert abs((middle["facts"] - half["facts"])[2]) < 0.1""",
    },
    "04_token_decomposition": {},
    "05_head_words": {},
    "06_ffn_concepts": {},
    "07_base_vs_tuned": {},
    "08_concepts": {},
    "09_mixture_of_depths": {},
    "10_your_own_probe": {},
}
"""Notebook → sentence → code that fails if the sentence is not so."""
