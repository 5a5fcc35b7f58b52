"""What the lessons say of the shipped models, sentence by sentence, with the code that shows it.

The code runs in the notebook's kernel right behind the text that holds the sentence, where the names of the notebook
are as a reader has them; `tests/test_notebooks.py` inserts it. A sentence stands here as in the notebook, line breaks
apart.
"""

from __future__ import annotations

CLAIMS: dict[str, dict[str, str]] = {
    "00_start": {
        "*of* matters as much as *Eiffel*": """\
lost = dict(zip(result.prompt_tokens, result.importance[:, 0]))
assert min(lost[" of"], lost[" Eiffel"]) > 0.99 and sorted(lost.values())[-3] < 0.01""",
        "**The last token always looks important.**": """\
from interp_widgets import demo_cases
for case in demo_cases(6):
    first = prompt_saliency(pair.tuned, case.prompt, case.response).importance[:, 0]
    assert first[-1] > 0.7 * first.max()""",
        "After its second word this response depends on the prompt hardly at all": """\
assert opening.under_floor().tolist() == [False, False, *[True] * 6] and largest[1] > 0.2""",
    },
    "01_saliency": {
        "The first word of the answer of `tuned` (B) depends on two tokens: *Japan*, and the colon": """\
opening = prompt_saliency(pair.tuned, case.prompt, max_new_tokens=12)
assert [opening.prompt_tokens[place] for place in np.flatnonzero(opening.importance[:, 0] > 0.7)] == [" Japan", ":"]
assert np.sort(opening.importance[:, 0])[-3] < 0.7""",
        "The second depends on *country*.": """\
assert opening.prompt_tokens[opening.importance[:, 1].argmax()] == " country"
assert np.sort(opening.importance[:, 1])[-2:] @ [-2, 1] > 0""",
        "From the third word on, no prompt token changes a probability of B by as much as 0.01": """\
assert opening.importance[:, :2].max(axis=0).min() > 0.2 and np.abs(opening.importance[:, 2:]).max() < 0.01""",
        "this response has none.": """\
assert opening.normalised(threshold=7, min_importance=0.01).astype(bool).sum(axis=1).max() == 1""",
        "How often does that make the last token look important?": """\
assert result.prompt_tokens[-1] == ":" and len(prompt_ids) - 1 == first + len(result.prompt_tokens) - 1""",
        "a large score of the last token is no finding.": """\
assert 5 <= sum(is_top) <= 11 and min(part) > 0.7""",
        "On this prompt the first-order map has nothing to do with the exact one": """\
exact = result.importance.ravel()
alike = {name: np.corrcoef(found.importance.ravel(), exact)[0, 1] for name, found in results.items()}
assert abs(alike["first_order"]) < 0.1 and 0.5 < alike["integrated_gradients"] < 0.8, alike""",
        "what the average slope leaves unexplained, reaches 0.69": """\
assert abs(np.abs(results["integrated_gradients"].completeness_gap).max() - 0.69) < 0.005""",
        "every column that is more than rounding has a 10 now": """\
assert (result.normalised().max(axis=0)[result.importance.max(axis=0) > 1e-6] == 10).all()""",
        "The longer response has twelve more tokens, and none of them depends on the prompt.": """\
assert longer.response_tokens[:12] == result.response_tokens and len(longer.response_tokens) == 24
assert longer.under_floor()[12:].all()""",
        "make a score of 0.471 out of 0.289; with it the score stays what it was.": """\
scored_by = [one.instruction_score(mask, min_importance=floor) for floor in (0, 0.01) for one in (longer, result)]
assert np.allclose(scored_by, [0.471, 0.289, 0.289, 0.289], atol=5e-4)""",
        "costs more than a random order does, and the intervals are clear of 0.": """\
assert trust["exact"].beats_random and trust["integrated_gradients"].beats_random""",
        "**First order is not told apart from a random order**": "assert trust['first_order'].beats_random is None",
        "The differences are a few hundredths of a probability": """\
assert all(abs(found.advantage()[0]) < 0.1 for found in trust.values())""",
        "a mean over response tokens most of which need nothing from the prompt": """\
assert result.under_floor().mean() > 0.5""",
        "`tuned` answers in one token, `base` runs on for ten": """\
tokens = [scored.n_response[scored.model == i].mean() for i in (0, 1)]
assert abs(tokens[0] - 10) < 1 and tokens[1] == 1""",
        "The **response length** goes with the score and with the model": """\
length = scored.response_length(scored.test("models"))
assert length.score_rho > 0.3 and length.score_p < 0.01 and length.label_rho < -0.5""",
        "So `base` scores *higher* here": """\
assert scored.test("models").difference_interval[1] < 0 and scored.test("models").welch_p > 0.99""",
        "in 12 of 16 cases": "assert same.all_under_floor[same.model == 0].sum() == 12 and len(cases) == 16",
        "the interval of the difference contains 0, and would contain a large effect as well": """\
low_end, high_end = same.test("models").difference_interval
assert low_end < 0 < 0.2 < high_end""",
        "The first-order map did not earn it here.": "assert trust['first_order'].advantage()[0] < 0",
    },
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
    "08_concepts": {
        "222 concepts of the demo's little world, in 14 groups. Each has about 20 short texts": """\
assert (len(concepts), len({concept.group for concept in concepts})) == (222, 14)
assert {len(concept.stimuli) + len(concept.held_out) for concept in concepts} == {19, 20}""",
        "Layer 0 has nothing to tell": """\
same_state = last_states(pair.tuned, ["A cat.\\nAnswer:", "Some red coats.\\nAnswer:"], 0)
assert np.allclose(same_state[0], same_state[1])""",
        "A list of words does better than either model's directions.": """\
assert np.mean(word_auc >= 0.9) > told(tuned) > told(base) and np.median(word_auc) > np.median(tuned.auc)
assert 0.95 < np.mean(named) < 0.98""",
        "the tuned model's directions tell 23 % of the concepts instead of 89 %": """\
assert abs(np.mean(hidden_auc >= 0.9) - 0.23) < 0.01 and abs(told(tuned) - 0.89) < 0.01
assert all(name.lower() not in text.lower().split() for name, text in zip(name_of, hidden))""",
        "the words that are left (*Paris* beside France) do as well": """\
assert np.mean(hidden_word_auc >= 0.9) >= np.mean(hidden_auc >= 0.9)
assert abs(np.median(hidden_word_auc) - np.median(hidden_auc)) < 0.02
assert concepts[0].name == "France" and any("Paris" in text for text in concepts[0].held_out)""",
        "in the tuned model most directions are good; in the base model more than half are not": """\
assert told(tuned) > 0.8 and told(base) < 0.5""",
        "So it was there all along.": "assert told(discriminant) > 0.8",
        "The browser's map holds less of the variance: opened on two models, it is one plane for both.": """\
assert concept_map(tuned, "pca", other=base).explained < places.explained""",
        "*coat*, *red* and *doctor* are all among the first five in the frame": """\
framed_text = strongest(pair.tuned, tuned, NEUTRAL_TEMPLATE.replace("<stimulus>", text))
assert all(word in framed_text for word in ("coat", "red", "doctor"))
assert not any(word in strongest(pair.tuned, tuned, text) for word in ("coat", "red", "doctor"))
assert not any(
    word in strongest(pair.base, base, NEUTRAL_TEMPLATE.replace("<stimulus>", text))
    for word in ("coat", " red", "doctor")
)""",
        "One gap turns the story to a lion; four gaps leave nothing but lions.": """\
for strength, at_least in ((1, 1), (4, 14)):
    with steer(pair.tuned, lion, layer=LAYER, strength=strength * gap):
        assert pair.tuned.generate(prompt, max_new_tokens=14).count("lion") >= at_least""",
        "The random push is not harmless here: it makes the words *less* likely on average.": """\
assert jobs[:, 1].mean() + 2 * jobs[:, 1].std(ddof=1) / np.sqrt(len(jobs)) < 0""",
        "*Within* a group the tuned model's concepts lie closer together than the base model's": """\
assert apart.pairs == "group" and apart.difference_interval[1] < 0""",
    },
    "09_mixture_of_depths": {
        "ahead of layer 4 by five tokens of 775, which is nothing": """\
assert hit[2].sum() - hit[1].sum() == 5 and hit.shape == (3, 775)
from scipy.stats import binomtest
assert binomtest(int((hit[2] & ~hit[1]).sum()), int((hit[2] != hit[1]).sum())).pvalue > 0.2""",
        "together they know more than any of them": "assert hit.any(axis=0).mean() > hit.mean(axis=1).max() + 0.03",
        "The last layer's own three best guesses are right more often still.": """\
guessed = logits(fresh, fresh_states[-1]).topk(3).indices
assert (guessed == right[:, None]).any(-1).float().mean() > hit.any(axis=0).mean()""",
        "Many tokens give nearly all their weight to one layer.": """\
assert (fresh_weights.max(dim=-1).values > 0.9).float().mean() > 0.3""",
        "Layer 4 is better at this task before anything is tuned": """\
assert before["layer 4 alone"].mean() < before["layer 5 alone"].mean()""",
        "Untrained, a random router does harm.": """\
assert before["router"].mean() > before["layer 5 alone"].mean()""",
        "Tuned, the mixture does better than the base model, and better than any one of its own layers.": """\
single = [after[f"layer {layer} alone"].mean() for layer in (3, 4, 5)]
assert after["router"].mean() < min(before["layer 5 alone"].mean(), *single)""",
        "Shuffling hurts": "assert after['router'].mean() < after['router, shuffled'].mean() - 0.1",
        "**equal weights do about as well**, and come close before any tuning": """\
assert abs(after["equal"].mean() - after["router"].mean()) < 0.05
assert before["equal"].mean() - after["router"].mean() < 0.15""",
        "The mixture gains 0.38 nats per token and 0.69 per problem": """\
fall = before["layer 5 alone"] - after["router"]
by_problem = np.bincount(owner, fall) / np.bincount(owner)
assert abs(fall.mean() - 0.38) < 0.02 and abs(by_problem.mean() - 0.69) < 0.02""",
        "it helps most with the short responses": """\
assert np.corrcoef(by_problem, np.bincount(owner))[0, 1] < -0.1""",
        "Against equal weights the interval contains 0": """\
less = np.bincount(owner, after["router"] - after["equal"]) / np.bincount(owner)
assert abs(less.mean()) < 1.96 * less.std(ddof=1) / np.sqrt(len(less))""",
        "lower the loss, and hardly any problem more is solved": """\
more = solved((mixed.argmax(-1) == right).numpy()) - solved((plain_logits(base).argmax(-1) == right).numpy())
assert 0 <= more < 0.05""",
        "without the end it has some right": """\
base_right = (plain_logits(base).argmax(-1) == right).numpy()
assert solved(base_right) == 0 < solved(base_right | ends)""",
        "is up to 11 points wide on each side": """\
assert round(196 * np.sqrt(0.25 / 80)) == 11""",
        "would have about 70 % of the tokens right": "assert abs(hit.any(axis=0).mean() - 0.7) < 0.01",
        "the mixture solves 11 % ± 3 of 300 held-out problems, the base model 13 %": """\
from pathlib import Path
measured = Path("../benchmarks/RESULTS.md").read_text(encoding="utf-8")
for line in ("0 | 13.3 % |", "1,152 | 11.3 % ± 3.0", "on the last 3 layers | 83,136 | 23.3 % ± 2.5", "64.9 % ± 2.1",
             "63.1 % ± 7.5", "64.2 % ± 5.5"):
    assert line in measured, line""",
        "this mixture predicts worse than the base model it was made from": "assert sparse_loss > base_loss",
        "The first hardly falls.": """\
timed = speed.to_frame()
assert timed.computed.min() > 0.95 and timed.runs.min() < 0.7""",
    },
    "10_your_own_probe": {},
}
"""Notebook → sentence → code that fails if the sentence is not so."""
