"""What the lessons say of the shipped models, sentence by sentence, with the code that shows it.

The code runs in the notebook's kernel right behind the text that holds the sentence, where the names of the notebook
are as a reader has them; `tests/test_notebooks.py` inserts it. A sentence stands here as in the notebook, line breaks
apart.
"""

from __future__ import annotations

CLAIMS: dict[str, dict[str, str]] = {
    "00_start": {
        "*five* is written because of *five*, *colours* because of *colours*; for *brown* there is no reason": """\
import numpy as np
tuned = explorer.result[1]
column = dict(zip(tuned.response_tokens, tuned.importance.T))
for word in (" five", " colours"):
    assert tuned.prompt_tokens[column[word].argmax()] == word and column[word].max() > 5
assert np.abs(column[" brown"]).max() < 0.2
foil = tuned.foil[tuned.response_tokens.index(" brown")]
assert pair.tuned.single_token_strings([foil]) == (" pink",)""",
        "Where two models are compared, the runner-up is that of A.": """\
first, second = explorer.result
from interp_widgets import prompt_saliency
alone = prompt_saliency(
    pair.base, explorer.prompt, explorer.response, target="logit_difference", foil="runner_up", method="first_order"
)
assert first.foil == second.foil == alone.foil""",
        "make *five* a *three*, press *Generate*, and see the answer": """\
answer = pair.tuned.generate(explorer.prompt.replace("five", "three"), max_new_tokens=24)
assert answer.startswith(" Here are three colours:") and answer.count(",") == 2""",
        "*of* matters as much as *Eiffel*": """\
lost = dict(zip(result.prompt_tokens, result.importance[:, 0]))
assert min(lost[" of"], lost[" Eiffel"]) > 4.5 and sorted(lost.values())[-3] < 2""",
        "**The last token often looks important.**": """\
from interp_widgets import demo_cases
found = [prompt_saliency(pair.tuned, case.prompt, case.response, **contrast) for case in demo_cases(6)]
parts = [one.importance[-1, 0] / one.importance[:, 0].max() for one in found]
assert sum(part > 0.5 for part in parts) >= 3, parts""",
        "**Pale columns carry no signal.**": """\
assert (explorer.target, explorer.values) == ("logit_difference", "importance")""",
        "*Japan* is written because of *Japan*, and *is* rather than *was* because of *country*.": """\
assert [opening.prompt_tokens[place] for place in opening.importance[:, :2].argmax(axis=0)] == [" Japan", " country"]
assert foils[1] == " was" and opening.importance[:, :2].max(axis=0).min() > 5""",
        "After that no word of the prompt is worth more than about two logits.": """\
assert opening.importance[:, 2:].max() < 2.2""",
    },
    "01_transformer": {
        "The embedding is short beside what came later: less than a hundredth of the last vector.": """\
lengths = additions.norm(dim=-1)
assert lengths[0] < 0.01 * stream.norm()""",
        "For twenty-two layers almost nothing is paid in.": """\
assert parts[int(pays.argmax())] == "attention 23"
assert abs(pays[: parts.index("attention 22")].sum()) < 0.1 * pays.sum()
assert 0.4 < pays.max() / pays.sum() < 0.5""",
        "After it the MLPs of layers 24 and 26 pay in most.": """\
mlps = [parts[place] for place in pays.argsort(descending=True).tolist() if parts[place].startswith("MLP")]
assert set(mlps[:2]) == {"MLP 24", "MLP 26"}""",
        "The last MLP takes out more than any other part.": """\
assert parts[int(pays.argmin())] == f"MLP {model.n_layers - 1}"
""",
        "Without the attention of layer 23 far more is lost than it paid in": """\
at = parts.index("attention 23")
assert lost[at] > 1.5 * float(pays[at])
silent = model.run(ids, capture=names, edit=switched_off("blocks.23.hook_attn_out")).activations
written = torch.stack([silent[name][0, -1].double() for name in names])
then = written @ (weight * (U[:, first] - U[:, second])) / (written.sum(0).pow(2).mean() + model.norm_epsilon).sqrt()
later = [place for place in range(at + 1, len(parts)) if parts[place].startswith("MLP")]
assert then[later].sum() < pays[later].sum()""",
        "The MLP of layer 0 pays in nothing to speak of, and without it the lead is gone and Rome leads.": """\
places = [parts.index(name) for name in ("MLP 0", "attention 1")]
assert abs(pays[places]).max() < 0.2 and without[places].max() < 0
assert 0.4 < lost[0] / float(pays.sum()) < 0.6""",
        "And a part that pays nothing in may be needed, as the MLP of layer 0 is.": """\
assert np.argsort(-lost).tolist().index(parts.index("MLP 0")) < 3""",
    },
    "02_logit_lens": {
        "in most columns the token itself": """\
result = logit_lens(model, prompt, target=target)
assert np.mean([result.top(0, place)[0][0] == token for place, token in enumerate(result.tokens)]) > 0.5""",
        "From row 1 to row 22 the last column says nothing but a space, a full stop, an article or the like.": """\
assert {result.top(row, -1)[0][0].strip() for row in range(1, 23)} <= {"", ".", "a", "the", ","}""",
        "In row 29, one layer from the end, the lens says *capital*; *Paris* is third. Only the last layer": """\
assert result.top(29, -1)[0][0] == " capital" and result.target_rank[29, -1] == 2
assert (result.target_rank[:30, -1] > 0).all() and result.target_rank[30, -1] == 0""",
        "For more than twenty layers thousands of tokens stand before *Paris*.": """\
assert result.target_rank[:24, -1].min() > 2000""",
        "Then it passes four fifths of them in a single layer": """\
assert 0.75 < 1 - result.target_rank[24, -1] / result.target_rank[23, -1] < 0.85""",
        "goes on passing others in nearly every layer behind.": """\
assert (np.diff(result.target_rank[24:, -1]) < 0).mean() > 0.8""",
        "In none of the eight questions is the answer the likeliest word before the last row.": """\
assert ranks.shape == (8, 31) and ranks[:, :30].min() > 0 and (ranks[:, 30] == 0).all()""",
        "Of those few that are left the last layer passes the largest *share*; most tokens are passed here.": """\
assert np.diff(np.log1p(ranks).mean(axis=0)).argmin() == 29 and np.diff(ranks.mean(axis=0)).argmin() == 23""",
        "Here the answer is *first* from row 1 on, with a small probability": """\
assert (small.target_rank[1:, -1] == 0).all() and small.target_rank[0, -1] > 0
assert small.target_probability[1, -1] < 0.25 and small.target_probability[5:, -1].min() > 0.95""",
        "SmolLM2 says *Paris* in its last layer only, and its rank falls from layer 23 on.": """\
assert result.target_rank[24, -1] < 0.25 * result.target_rank[:24, -1].min()""",
        "Facts are settled earlier, and the interval of the difference excludes 0.": "assert later - half > 0",
        "more than half of the indirect objects have commit layer 1 as well": """\
assert (depth["indirect objects"] == 1).mean() > 0.5""",
        "Up to row 2 it is about a coin toss": """\
tosses = receives.sum(axis=0)
assert ((14 <= tosses[:3]) & (tosses[:3] <= 26)).all(), tosses""",
        "a fair coin gives 14 to 26 heads in 95% of the cases": """\
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
    "03_attention": {
        "The last token gives 0.90 of the attention of head 23.4 to *France*.": """\
opening = attention_patterns(model, prompt)
assert opening.tokens[3] == " France" and abs(opening.pattern(23, 4)[-1, 3] - 0.90) < 0.02""",
        "Of most other heads one sees a first column and little else": """\
assert np.mean([[opening.pattern(i, j)[1:, 0].mean() > 0.5 for j in range(9)] for i in range(30)]) > 0.5""",
        "In SmolLM2 three query heads share one key head": """\
assert model.n_heads == 3 * model.n_kv_heads""",
        "Each row adds up to 1.": "assert np.allclose(by_hand.sum(1), 1)",
        "Spread evenly it would be less than 0.1.": """\
assert np.mean(1 / np.arange(2, len(model.tokens(text)) + 1)) < 0.1""",
        "From layer 12 on the first token's state points the same way whatever word stands there": """\
assert all(alike > 0.9995 for at, alike, *_ in rows if at >= 12)""",
        "the loss moves by hundredths, while the same vector in the place of the sixth token costs": """\
assert all(abs(here) < 0.015 and there > 0.1 for at, _, here, there in rows if at >= 12)""",
        "In layer 1 the first token is still a word, and its state differs from text to text.": """\
assert all(alike < 0.9 for at, alike, *_ in rows if at == 1)""",
        "Nearly all of that state is a single number": """\
whole = state(text, 12)
assert whole.abs().max() > 0.98 * whole.norm()""",
        "Without one number at the first token the model falls apart, and hardly notices the same at any other.": """\
assert costs[0] > 5 and max(map(abs, costs[1:])) < 0.3""",
        "nine tenths of its attention go one token back, whatever the tokens are, and its control is near 0": """\
best = np.unravel_index(known.previous_token.argmax(), known.previous_token.shape)
assert abs(known.previous_token[best] - 0.9) < 0.05 and known.control("previous_token")[best] < 0.05""",
        "Head 1.2 attends to the name, more sharply than any other, and writes where nothing reads.": """\
row = looks.pattern(1, 2)[-1]
assert looks.tokens[row.argmax()] == "anna" and abs(removed[1, 2]) < 0.01
layers, heads = range(busy.n_layers), range(busy.n_heads)
named = [looks.pattern(layer, head)[-1, 3] for layer in layers for head in heads]
assert np.argmax(named) == 6 and row.max() > 0.99""",
        "Without head 0.3 the answer is lost, far more than without head 1.0.": """\
assert removed[0, 3] > 3 * removed[1, 0] > 9""",
        "Only head 1.0 brings the place back.": """\
back = patched.recovered["head"][:, :, -1]
assert abs(back[1, 0] - 1) < 0.05 and abs(np.delete(back.ravel(), 4)).max() < 0.05""",
        "Eight other heads cannot give a p below a ninth": """\
alone = ablation_null(model, prompt, [(layer, head)], " Paris", matched="layer")
assert len(alone.null) == 8 and abs(alone.p - 1 / 9) < 1e-9""",
        "Of fifty heads drawn from all layers none does as much.": "assert len(null.null) == 50 and null.p < 0.02",
        "three of four give it more than 0.3 of their attention": "assert 0.7 < (rest > 0.3).mean() < 0.8",
    },
    "04_induction": {
        "The first time a word surprises the model by 9.8 nats on average.": """\
seen = -model.run(ids).logits[0, :-1].log_softmax(-1)[torch.arange(len(ids) - 1), torch.tensor(ids[1:])]
assert abs(float(seen[-2 * n : -n].mean()) - 9.8) < 0.3""",
        "The model has read it once, and now it knows.": "assert second < 2",
        "Head 18.6 has a stripe: every word of the second copy looks at one place in the first.": """\
pattern, rows = attention_patterns(model, text).pattern(18, 6), np.arange(len(ids) - n, len(ids))
assert pattern[rows, rows - n + 1].min() > 0.5""",
        "Click *seven* in its second copy: it looks at *button*": """\
tokens = model.token_strings(ids)
seven = max(place for place, token in enumerate(tokens) if token == " seven")
assert tokens[int(pattern[seven].argmax())] == " button"
""",
        "In the first copy there is nothing to find, and the head rests on the first token": """\
assert pattern[2 : len(ids) - n, 0].mean() > 0.7""",
        "Without the five heads most of what the model knew from the first copy is gone": """\
known_then = losses(twice)[:39].mean() - second_half()
assert (second_half(without(top)) - second_half()) / known_then > 0.5
assert (null.max() - second_half()) / known_then < 0.15""",
        "Not all of it is gone: other heads copy too, more weakly.": """\
assert second_half(without(top)) < losses(twice)[:39].mean() - 2
sixth = tuple(int(part) for part in np.unravel_index(order[5], known.induction.shape))
assert 0.3 < known.induction[sixth] < known.induction.max()""",
        "Without head 16.0 the stripe of head 18.6 falls to a quarter, and half of what the model knew is gone.": """\
assert back[0] == (16, 0) and stripe(without([(16, 0)])) < 0.3 * stripe()
assert 0.4 < (second_half(without([(16, 0)])) - second_half()) / known_then < 0.6""",
        "The other four that look at the token before score nearly as high, and are not needed for this.": """\
assert all(stripe(without([one])) > 0.95 * stripe() for one in back[1:])
assert known.previous_token[back[4]] > 0.65""",
        "Head 0.0 writes at each token what came before it, head 1.1 looks for a token": """\
assert min(effect[0, 0], effect[1, 1]) > 3 and abs(np.delete(effect.ravel(), [0, 5])).max() < 0.01
built = attention_patterns(circuit, case.prompt)
assert np.diag(built.pattern(0, 0), -1).min() > 0.99 and built.tokens[int(built.pattern(1, 1)[-1].argmax())] == "psi"
""",
        "This is called *K-composition*": "assert [round(carried(part), 1) for part in 'qkv'] == [0, 1, 0]",
    },
    "05_ablation": {
        "That costs more than three times as much": """\
assert 3 * max(by_hand["zero"], by_hand["mean"]) < by_hand["resample"]""",
        "With zero, 14 of the 300 cells of attention and MLP cost *Paris* more than one nat.": """\
zeroed = maps["zero"].effect  # (kinds, layers, positions)
costly = np.argwhere(zeroed > 1)
assert zeroed.size == 300 and len(costly) == 14""",
        "With zero, 14 cells cost more than a nat, most of them in the first two layers, and at every token.": """\
assert (costly[:, 1] < 2).sum() > 7 and set(costly[:, 2]) == set(range(5))""",
        "With the other two ways two cells do, the same two": """\
for way in ("mean", "resample"):
    strong = np.argwhere(maps[way].effect > 1).tolist()
    assert strong == [[0, 23, 1], [1, 0, 0]] and maps[way].positions == (country, last)""",
        "The second strongest cell of the zero map is the MLP of layer 11 at *The*.": """\
second = np.argsort(-zeroed, axis=None)[1]
assert tuple(int(place) for place in np.unravel_index(second, zeroed.shape)) == (1, 11, 0)""",
        "its output there is hundreds of times as long as at any other token, in every text": """\
for text in (prompt, corrupted, "Water boils at a hundred degrees and freezes at zero."):
    lengths = written(text, "blocks.11.hook_mlp_out").norm(dim=-1)
    assert lengths[0] > 200 * lengths[1:].max()""",
        "what it writes there is nearly the same in both.": """\
assert abs(effect(written(corrupted, "blocks.1.hook_attn_out")[-1], "blocks.1.hook_attn_out")) < 0.01
one, other = (written(text, "blocks.1.hook_attn_out")[-1] for text in (prompt, corrupted))
assert (one - other).norm() < 0.1 * one.norm()""",
        "A map of the logit would have misled you in a third of its strongest cells.": """\
assert len(on_logit) == 50 and 15 <= turned <= 18""",
        "the attention of layer 23 at the last token costs more than any of 19 random changes as long.": """\
assert beside.wait(600)
chance = beside.result.values
assert (chance[:3, 0] > chance[:3, 1:].max(axis=1)).all()
assert (chance[3:, 0] < chance[3:, 1:].max(axis=1)).all()""",
        "with zero it is beyond chance as well. With the mean and with Italy's value it is not.": """\
at_one = {"kinds": ("attn",), "layers": (1,), "positions": (last,), "draws": 19}
beyond = [ablate_modules(model, prompt, " Paris", **at_one, **options).p.item() for options in ways.values()]
assert beyond[0] == 0.05 and min(beyond[1:]) > 0.05""",
        "which *Paris* hardly notices with zero or with Italy's value": """\
there = "blocks.11.hook_mlp_out"
assert max(abs(effect(0, there)), abs(effect(written(corrupted, there)[-1], there))) < 0.2""",
        "More than eleven nats, for a part that is not needed there.": """\
assert effect(torch.cat(outputs).mean(0), mlp) > 11""",
        "and with it a part of the sink, which now stands at *is* as well": """\
of_sink = [int(value.abs().argmax()) for value in (outputs[0][0], torch.cat(outputs).mean(0))]
assert of_sink[0] == of_sink[1] and torch.cat(outputs).mean(0).abs().max() > 100""",
        "on every one of the eight questions it costs more than five nats": """\
assert needed["capitals"].shape == (8, 2, 9) and needed["capitals"][:, 1, 4].min() > 5
rest = needed["capitals"].mean(axis=0).ravel()
assert np.delete(rest, 9 + 4).max() < 0.1""",
        "Copying needs head 16.0, first of the 18 in seven of eight lists, and does not need 23.4.": """\
by_list = needed["copying"].reshape(8, 18)
found = by_list.argmax(axis=1) == 0
assert found.sum() == 7 and abs(by_list[:, 9 + 4]).max() < 0.1 and by_list[:, 0].mean() > 1.5""",
        "(In the eighth list no head of these layers costs a third of a nat.)": """\
assert by_list[~found].max() < 1 / 3""",
        "With zero the model still says *Paris*, and *Tokyo*": """\
def said(name, taken):
    with ablation(model, [taken]):
        return model.generate(questions[name], max_new_tokens=1)
assert [said(name, head) for name in ("France", "Japan")] == [" Paris", " Tokyo"]""",
        "With Italy's value in this one head it says *Rome*, also of Japan.": """\
assert [said(name, from_italy) for name in ("France", "Japan")] == [" Rome", " Rome"]""",
        "First the country's place brings the answer back, and from layer 23 on the last one": """\
assert min(at_country[:10].min(), at_last[23:].min()) > 0.9 * trace.clean and at_last[:23].max() < 0.15""",
        "Between the two there is a gap, in which neither does.": """\
gap = np.maximum(at_country, at_last) < trace.clean / 2
assert gap.sum() == 9 and gap[14:23].all()""",
        "What it did in the early layers has reached the last token by then": """\
at_16 = "blocks.16.hook_resid_pre"
clean_state, italy = (written(text, at_16)[-1] for text in (prompt, corrupted))
noisy = model.token_embeddings(ids).clone()
noisy[country] += trace.noise_std * torch.randn(noisy.shape[1], generator=torch.Generator().manual_seed(0))
noised = model.run(ids, embeddings=noisy, capture=at_16).activations[at_16][0, -1]
assert (noised - clean_state).norm() > 3 * (italy - clean_state).norm()""",
    },
    "06_patching": {
        "at the country up to the entrance of layer 23, and at the last token from the entrance of layer 24 on.": """\
stream, at = found.recovered["resid_pre"], np.array(rows)
assert abs(stream[at <= 23, 0] - 1).max() < 0.03 and abs(stream[at > 23, 0]).max() < 0.05
assert abs(stream[at <= 23, 1]).max() < 0.05 and abs(stream[at > 23, 1] - 1).max() < 0.03""",
        "One single cell of the attention outputs brings the whole answer back: layer 23 at the last token.": """\
written = found.recovered["attn"].copy()
assert abs(written[rows.index(23), 1] - 1) < 0.02
written[rows.index(23), 1] = 0
assert abs(written).max() < 0.2""",
        "The MLP of layer 0 at the country brings back everything too": """\
assert rows[0] == 0 and abs(found.recovered["mlp"][0, 0] - 1) < 0.02""",
        "One head stands out: 23.4, which looks at the country with nine tenths of its attention.": """\
assert divmod(int(brought.argmax()), model.n_heads) == (3, 4) and brought.max() > 0.9
assert np.sort(brought, axis=None)[-2] < 0.4
assert abs(attention_patterns(model, clean).pattern(23, 4)[-1, country] - 0.9) < 0.02""",
        "Others bring back a third and less, and some take the answer further away.": """\
assert np.sort(brought, axis=None)[-2] < 0.36 and brought.min() < -0.2""",
        "The MLP of layer 0 is enough and needed. The MLP of layer 23 is enough for a fifth at the last token": """\
enough, left = found.recovered["mlp"], lost.recovered["mlp"]
assert enough[0, 0] > 0.95 and left[0, 0] < 0.05
assert abs(enough[rows.index(23), 1] - 0.2) < 0.03 and abs(left[rows.index(23), 1] - 0.8) < 0.03
behind = slice(rows.index(23) + 1, None)
assert enough[behind, 1].max() < 0.1 and left[behind, 1].min() > 0.88
hooks = [f"blocks.{layer}.hook_mlp_out" for layer in range(24, 30)]
theirs = model.run(model.tokens(corrupted), capture=hooks).activations
def of_italy(hook):
    def put(old):
        return torch.cat([old[:, :-1], theirs[hook][:, -1:]], dim=1)
    return put
import torch
without = lead(model.run(model.tokens(clean), edit={hook: of_italy(hook) for hook in hooks}).logits[0, -1])
assert abs((m_clean - without) / (m_clean - m_corrupted) - 0.3) < 0.05""",
        "With Italy's value in head 23.4 nearly all is lost, and with it in any other head": """\
assert left_of[3, 4] < 0.1 and np.sort(left_of, axis=None)[1] > 0.7""",
        "The model names all twenty capitals": """\
twenty = (
    "Paris Tokyo Berlin Moscow Lisbon Oslo Havana Dublin Santiago Edinburgh "
    "Rome Beijing Madrid Athens Vienna Stockholm Copenhagen Budapest Nairobi Ottawa"
)
assert [text.strip() for side in ends for text in side] == twenty.split()""",
        "Seven of the eight cells are beyond chance after the correction, and one of them carries the answer": """\
assert len(table) == 8 and (table["holm_p"] < 0.05).sum() == 7
assert many.each["attn"].shape == (10, 8, 1) and many.each["attn"][:, 23 - late[2], 0].min() > 0.85""",
        "and layer 24 takes a little away": """\
assert -0.2 < many.recovered["attn"][24 - late[2], -1] < -0.1 and many.high["attn"][24 - late[2], -1] < 0""",
        "Here the two directions nearly agree: what brings back much is also what is missed.": """\
assert abs(brought - (1 - left_of)).max() < 0.2""",
        "No other brings back a tenth": """\
assert np.delete(many.recovered["attn"][:, -1], 23 - late[2]).max() < 0.1""",
        "so ten pairs choose and five others measure, beside twenty random circuits": """\
given = capital_pairs()
cleans, corrupteds = [pair.clean for pair in given], [pair.corrupted for pair in given]
later = greedy_circuit(demo, cleans, corrupteds, most=1, held_out=5)
assert later.held_out == 5 and len(later.clean) == 5 and len(later.random) == 20""",
        "keep almost all of it; random circuits of eight parts keep almost nothing.": """\
assert {part for part in circuit.parts if part.startswith("head")} == {"head 0.0", "head 0.1"}
assert circuit.faithfulness[8] > 0.9 and circuit.random[:, 8].mean() < 0.1""",
        "without the first two parts nothing is left": "assert circuit.without[2] < 0.05",
        "the estimate is as good as the patch. For queries and keys of the demo model it is not": """\
agree = {site: quick.correlation(site) for site in sites}
assert min(agree["head"], agree["head_v"]) > 0.98 and max(agree["head_q"], agree["head_k"]) < 0.85""",
        "On SmolLM2 it is good for all four.": """\
assert min(on_real.correlation(site) for site in sites) > 0.95""",
    },
    "07_circuits": {
        "On *backup*, the same circuit with one head more, all three are grey.": """\
board.wait()
scores = board.result
def grey(method, circuit):
    cell = scores.methods.index(method), scores.circuits.index(circuit), scores.kinds.index("heads")
    return bool(scores.p[cell] >= 0.05)
for method in ("zero ablation", "mean ablation", "resample ablation"):
    assert scores.precision(method, "induction", "heads") == 1 and grey(method, "backup")""",
        "On *busy idle* zero ablation is grey, and the mean and a resampled value find the head.": """\
assert grey("zero ablation", "busy_idle")
assert scores.precision("mean ablation", "busy_idle", "heads") == 1
assert scores.precision("resample ablation", "busy_idle", "heads") == 1""",
        "Attention is beyond chance on *induction* and grey on *busy idle*.": """\
assert grey("attention", "busy_idle") and not grey("attention", "induction")""",
        "Direct logit attribution is right on *busy idle* and grey on *induction*.": """\
assert grey("direct logit attribution", "induction")
assert scores.precision("direct logit attribution", "busy_idle", "heads") == 1""",
        "exact occlusion finds them on every circuit, and first order does not on *induction*.": """\
assert all(scores.precision("exact, zero", circuit, "tokens") == 1 for circuit in scores.circuits)
assert scores.precision("first order", "induction", "tokens") < 0.8""",
        "at least 5% of them are as good": """\
from interp_widgets.widgets.circuits.board import BEYOND
assert BEYOND == 0.05""",
        "Without head 0.0 or head 1.1 nothing is kept, without any other head everything.": """\
assert abs(alone - [[0, 1, 1, 1], [1, 0, 1, 1]]).max() < 0.01""",
        "A part that matters must take at least half of the lead, and any other less than a tenth": """\
from interp_widgets.models.circuits.truth import DOES_NOT, MATTERS
assert (MATTERS, DOES_NOT) == (0.5, 0.1)""",
        "There is a gap between the two numbers, and nothing in it.": """\
assert proof.holds and proof.least_of_those_that_matter > 0.99 and proof.most_of_the_others < 0.01""",
        "Head 0.0 writes only what head 1.1 reads, so it comes late. The average precision of 0.62": """\
assert order[0] == 5 and order[-1] == 0 and abs(by_hand - 0.625) < 1e-9 and found.chance > 0.4""",
        "The board draws 2,000 random rankings, and writes their mean and middle 95% above each column.": """\
assert scores.draws == 2000
low_end, high_end = board.result.chance_low, board.result.chance_high
assert np.nanmin(board.result.chance - low_end) > 0 and np.nanmin(high_end - board.result.chance) > 0""",
        "takes 0.96 of the probability at each of the three tokens, first order nothing at any of them.": """\
needed = list(case.tokens)
assert np.allclose(lost["exact"][needed], 0.96, atol=0.005) and abs(lost["first_order"]).max() < 0.015""",
        "and see half of it at the two *eta*.": """\
assert np.allclose(lost["integrated_gradients"][[1, 6]] / lost["exact"][[1, 6]], 0.47, atol=0.03)
assert case.prompt.split()[1] == case.prompt.split()[6] == "eta\"""",
        "on *busy idle*, whose head attends less sharply, it finds the token.": """\
assert scores.precision("first order", "busy_idle", "tokens") == 1
idle, idle_truth = load_circuit("busy_idle")
softer = attention_patterns(idle, idle_truth.cases[0].prompt).pattern(1, 0)[-1].max()
assert softer * (1 - softer) > 1000 * row[3] * rest""",
        "Alone, neither head 0.0 nor head 0.2 takes anything; together they take everything.": """\
assert abs(pairs[0, 0] - 1) < 0.01 and abs(pairs[2, 2] - 1) < 0.01 and abs(pairs[0, 2]) < 0.01""",
        "28 of eight heads, 36,315 of the 270 heads of SmolLM2": "assert (8 * 7 // 2, 270 * 269 // 2) == (28, 36315)",
        "Zero ablation puts head 0.3 first, with twice the effect of head 1.0.": """\
assert effects["zero"].argmax() == 3 and abs(effects["zero"][0, 3] / effects["zero"][1, 0] - 2) < 0.05""",
        "nothing changes if it gets its mean or its value from another prompt.": """\
assert max(abs(effects[name][0, 3]) for name in ("mean", "resample")) < 0.01""",
        "Head 1.2 gives all its attention to the name, and the lead does not move without it": """\
name = looks.pattern(1, 2)[-1]
assert looks.tokens[name.argmax()] == "anna" and name.max() > 0.99 and abs(effects["resample"][1, 2]) < 0.01""",
        "It is not: the decoys are loud.": """\
assert all(own.precision("writes_most", circuit, "heads") < own.chance[place, own.kinds.index("heads")]
           for place, circuit in enumerate(own.circuits))
assert own.precision("resample ablation", "busy_idle", "heads") == 1""",
        "`grade_circuit` compares an answer with the truth and does not show it.": """\
from interp_widgets.models.circuits import sealed_truth
hidden = sealed_truth(sealed).cases[0].heads
assert len(hidden) == 1 and not hasattr(sealed.cases[0], "heads") and str(hidden[0]) not in str(grade)
assert grade.recall == 0 and grade_circuit(sealed, hidden, draws=1).f1 == 1""",
        "A method of your own is judged like the others, on circuits that it has not seen.": """\
import exercises
rule, its = exercises.rules("07_circuits").EXERCISES[3], exercises.Names(globals())
def with_zero(model, case):
    return np.abs(ablate_heads(model, case.prompt, case.answer, metric="logit_difference", foil=case.foil).effect)
def loud_on_backup(model, case):  # finds what matters on backup, and zero misleads it on busy idle
    return {"heads": with_zero(model, case)} if "anna" in model.tokenizer.get_vocab() else answer_3(model, case)
assert rule.verdict(answer_3, its).right and not rule.verdict(loud_on_backup, its).right""",
    },
    "08_token_decomposition": {
        "In layer 0 only the last token has a part: nothing has been moved yet.": """\
start = decompose_tokens(model, prompt)
assert np.abs(start.parts[0, :-1]).max() == 0 < np.abs(start.parts[0, -1]).max()""",
        "From layer 1 on every row has a part.": """\
assert np.linalg.norm(start.parts[1:], axis=-1).min() > 0""",
        "Their sum is not an approximation of the model's stream, it *is* the stream.": """\
assert start.error.max() < 1e-5""",
        "makes up more than half of the stream and says *Paris*; the part of *France* itself says nothing to the": """\
says = [result.token_text(token) for token in result.top_token[-1]]
assert result.norm_share[-1, 0] > 0.5 and says[0] == " Paris"
assert says[3] not in (" Paris", " French", " France", "Paris")""",
        "At the entrance of layer 24 the part of *France* is the only one that speaks for *Paris*": """\
pays = result.target_logit
assert pays[24, 3] > 3 and np.delete(pays[24], 3).max() < 0 and pays[23].max() < 0""",
        "From there to the end it shrinks to next to nothing, and that of *The* grows from below 0 to most of the": """\
assert pays[30, 3] < 0.3 and pays[24, 0] < -2 and pays[30, 0] / pays[30].sum() > 0.7""",
        "*The* has nearly three quarters of the logit of *Paris*. It has as large a share of the logit of *Rome*": """\
for word in (target, foil):
    one = decompose_logit(model, prompt, word)
    assert abs(one.share[0] / one.logit - 0.74) < 0.04""",
        "Against a foil the country has the largest share for six of eight capitals; without one for one.": """\
assert (sum(opposed), sum(alone)) == (6, 1)""",
        "together they contribute half as much to the difference as *nurse*": """\
assert abs(split.share[2:].sum() / split.share[1] - 0.5) < 0.05""",
        "It does, far more often than by chance; in one fact of eight some other token contributes more.": """\
assert low > 2 * np.mean(portion) and abs(1 - np.mean(inside) - 1 / 8) < 0.01""",
        "23.4 writes more of the lead than any other head.": """\
assert divmod(int(by_head.argmax()), model.n_heads) == (23, 4)""",
        "*France* has an eighth of the lead of Paris, yet without its embedding more than the whole lead is lost": """\
assert abs(against.share[3] / against.logit - 1 / 8) < 0.02 and gone[3] > against.logit""",
    },
    "09_ffn_concepts": {
        "The curve bends little. It takes more than 40 components to explain half of the variance of any layer.": """\
opening = ffn_concepts(model)
assert ((opening.cumulative >= 0.5).argmax(axis=1) + 1).min() > 40""",
        "component 1 has *offered, showed, passed, handed, gave* on its negative side": """\
for component, sign, wanted in ((1, "-", "offered showed passed handed gave"), (6, "+", "sad lonely tired lost")):
    side = {word for word, _ in opening.scores(5, component, sign=sign)}
    assert set(wanted.split()) <= side, side""",
        "The first twenty components of layer 0 explain less than those of any other layer.": """\
assert opening.cumulative[:, 19].argmin() == 0""",
        "The first twenty components of layer 5 explain 30% of its variance where noise gives 23%": """\
assert (round(concepts.cumulative[5, 19], 2), round(chance[19], 2)) == (0.30, 0.23)
assert concepts.cumulative[0, 19] < chance[19]""",
        "The curve rises with depth": """\
assert np.corrcoef(range(6), concepts.cumulative[:, 19])[0, 1] > 0.8""",
        "Few pass.": """\
assert sum(nearest_cosine(5, component) > limit for component in range(20)) < 7""",
        "Component 6 with its *sad, lonely, tired* does not stand out by its **nearest** word": """\
assert nearest_cosine(5, 6) < limit""",
        "The first two components correlate with **how common** a word is.": """\
along = [np.corrcoef(embeddings @ concepts.directions[5, k], often)[0, 1] for k in range(4)]
assert min(np.abs(along[:2])) > 0.4 > max(np.abs(along[2:])), along""",
        "The strongest neuron *suppresses* Paris by its value vector, and raises it all the same": """\
neuron, effect = effects.strongest(1)[0]
assert effect > 0 > effects.activation[effects.position, neuron]""",
        "In layer 1 the two numbers do not even agree in sign": """\
first_layer = neuron_effects(model, fact.prompt, fact.target, layer=1)
some = [neuron for neuron, _ in first_layer.strongest(3)]
lost = np.ravel(ablate_neurons(model, fact.prompt, fact.target, layer=1, neurons=some, metric="logit").effect)
assert (np.sign(lost) != np.sign(first_layer.effect[some])).any()""",
        "Neuron 53 of layer 5: without it the logit of *Paris* falls by 1.6, and none of fifty other neurons": """\
shown = beside_another.analysis(model, fact.prompt, fact.target, 5, 1, 53).rows
assert [row[0] for row in shown[2:]] == ["neuron 5.53", "neuron 5.435"]
assert (round(shown[2][4], 1), shown[2][5]) == (1.6, "0 of 50") and abs(shown[3][4]) < 0.01""",
        "435 writes for *meat, tree, water*, a better list, and is more active somewhere than 53 ever is": """\
assert shown[3][1].startswith("meat, tree, water") and shown[2][1].startswith("Bizet, Portugal, Pakistan, friends")
most_of_53, most_of_435 = (np.abs(activity(model, 5)[0].values[:, neuron]).max() for neuron in (53, 435))
assert most_of_435 > most_of_53 and shown[2][3].endswith("9 [+]")""",
        "It adds next to nothing itself (0.09), and without it the logit falls by 4.5": """\
assert round(direct_logit_attribution(model, fact.prompt, fact.target).heads[0, 1], 2) == 0.09
head_1 = ablation_null(model, fact.prompt, [(0, 1)], fact.target, metric="logit")
assert round(head_1.effect, 1) == 4.5 and (abs(head_1.null) >= head_1.effect).sum() == 2 and len(head_1.null) == 5""",
        "It adds a tenth, and without it the logit *rises* by 0.76, more than any of fifty others changes it": """\
assert round(neuron_effects(model, fact.prompt, fact.target, layer=1).effect[374], 1) == 0.1
other_way = ablation_null(model, fact.prompt, [Ablation("neuron", 1, index=374)], fact.target, metric="logit")
assert round(other_way.effect, 2) == -0.76 and abs(other_way.null).max() < 0.76 and len(other_way.null) == 50""",
        "About one in ten gets a name.": """\
assert abs(notes.described.mean() - 0.1) < 0.04""",
        "So the components do hold more than chance, and less than the first look promised.": """\
assert 0 < named - named_random < 0.2""",
    },
    "10_concepts": {
        "222 concepts of the demo's little world, in 14 groups. Each has about 20 short texts": """\
assert (len(concepts), len({concept.group for concept in concepts})) == (222, 14)
assert {len(concept.stimuli) + len(concept.held_out) for concept in concepts} == {19, 20}""",
        "The directions of the demo models ship with the package, so that the browser opens at once": """\
opened = ConceptBrowser(pair, view="B")
assert opened.wait(60) and "shipped with the demo" in opened.status.text, opened.status.text
opened.close()""",
        "Layer 0 has nothing to tell": """\
same_state = last_states(pair.tuned, ["A cat.\\nAnswer:", "Some red coats.\\nAnswer:"], 0)
assert np.allclose(same_state[0], same_state[1])""",
        "A list of words does better than either model's directions.": """\
assert np.mean(word_auc >= 0.9) > told(tuned) > told(base) and np.median(word_auc) > np.median(tuned.auc)
assert 0.95 < np.mean(named) < 0.98
from interp_widgets.analysis.concepts import word_aucs
assert np.allclose(word_auc, word_aucs(concepts), atol=1e-3)  # rounding breaks ties""",
        "the tuned model's directions tell 23% of the concepts instead of 89%": """\
assert abs(np.mean(hidden_auc >= 0.9) - 0.23) < 0.01 and abs(told(tuned) - 0.89) < 0.01
assert all(name.lower() not in text.lower().split() for name, text in zip(name_of, hidden))""",
        "the words that are left (*Paris* beside France) do as well": """\
assert np.mean(hidden_word_auc >= 0.9) >= np.mean(hidden_auc >= 0.9)
assert abs(np.median(hidden_word_auc) - np.median(hidden_auc)) < 0.02
assert concepts[0].name == "France" and any("Paris" in text for text in concepts[0].held_out)""",
        "Now the directions beat the words.": """\
assert len(implied) > 20
assert not any(one.name.lower() in text.lower() for one in implied for text in (*one.stimuli, *one.held_out))
assert not any(set(one.stimuli) & set(other.held_out) for one in implied for other in implied)
assert np.median(implied_tuned.auc) > 0.95 and np.median(implied_base.auc) > 0.85""",
        "a list of words is at chance, or nearly": """\
assert abs(np.mean(implied_words) - 0.5) < 0.1 and np.median(implied_words) < 0.65""",
        "The tuned model's do so better than the base model's": """\
assert np.mean(implied_tuned.auc) > np.mean(implied_base.auc) + 0.05
assert abs(implied_tuned.shuffled_auc.mean() - 0.5) < 0.05 and abs(implied_base.shuffled_auc.mean() - 0.5) < 0.05""",
        "one example of each city gives the direction an AUC of 0.73, five give it 0.91": """\
of_implied = opponents.analysis(pair.tuned, LAYER, "implied").values
assert of_implied[0, [0, 4]].round(2).tolist() == [0.73, 0.91]""",
        "The bag of words stays between 0.52 and 0.54, whatever it is given": """\
assert 0.52 <= of_implied[1].min().round(2) and of_implied[1].max().round(2) <= 0.54""",
        "With one example the direction is ahead, 0.92 to 0.87; with 14 the list of words has caught up.": """\
of_named = opponents.analysis(pair.tuned, LAYER, "named").values
assert of_named[:2, 0].round(2).tolist() == [0.92, 0.87] and of_named[1, -1] > of_named[0, -1] > 0.98
assert len(CITIES["named"]) == 18""",
        "The random direction and both nulls lie between 0.43 and 0.59 at every layer.": """\
asked = [(layer, which) for layer in range(pair.tuned.n_layers) for which in ("implied", "named")]
at_layers = [opponents.analysis(pair.tuned, *one).values for one in asked]
assert 0.43 < min(values[2:].min() for values in at_layers) and max(values[2:].max() for values in at_layers) < 0.59""",
        "Move the layer to 0: the direction falls to ½. From layer 1 on it hardly matters which.": """\
ends = np.array([values[0, -1] for values in at_layers]).reshape(-1, 2)  # (layers, named or not)
assert np.allclose(ends[0], 0.5) and np.ptp(ends[1:], axis=0).max() < 0.03""",
        "in the tuned model most directions are good; in the base model more than half are not": """\
assert told(tuned) > 0.8 and told(base) < 0.5""",
        "So it was there all along.": "assert told(discriminant) > 0.8",
        "The browser opens with t-SNE, which keeps neighbours better": """\
assert concept_map(tuned, "tsne").recall > 2 * places.recall""",
        "Its principal components hold less of the variance than here": """\
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
        "Over all pairs both are close to 1, and must be": """\
whole = dispersion(base, tuned, pairs="all")
assert max(abs(whole.value - 1), abs(whole.other - 1)) < 0.01""",
        "*Within* a group the tuned model's concepts lie closer together than the base model's": """\
assert apart.pairs == "group" and apart.difference_interval[1] < 0""",
    },
    "11_steering": {
        "One gap along France takes *Paris* from a thousandth to nearly a half": """\
assert sweep.word_probability[0] < 0.002 and 0.4 < sweep.word_probability[2] < 0.5""",
        "None of 19 random pushes of the same length brings it to a fiftieth.": """\
assert sweep.random_probability.shape == (4, 19) and sweep.random_probability[2].max() < 0.02""",
        "Twice as much does less: the model no longer says *Rome*, nor *Paris*, nor anything.": """\
assert sweep.word_probability[3] < 0.1 and "Rome" not in sweep.text(3) and "Paris" not in sweep.text(3)""",
        "One gap towards a country costs this text between a tenth and six tenths of a nat per token": """\
assert 0.05 < costs.min() and costs.max() < 0.66""",
        "as far in a random direction a third to a whole nat.": """\
assert 0.3 < at_random.min() and 0.9 < at_random.max() < 1.1""",
        "Up to the entrance of layer 23 the push turns the answer wherever it is made.": """\
at = np.array(layers)
assert leads[0][at <= 23].min() > 2 and 23 in layers""",
        "At layer 24 the same push at the same word does nothing.": """\
assert leads[0][at >= 24].max() < -5 and 24 in layers
plain_lead = model.run(model.tokens(prompt)).logits[0, -1]
first, second = (model.tokens(text, prepend_bos=False)[0] for text in (" Paris", " Rome"))
assert abs(leads[0][at >= 25] - float(plain_lead[first] - plain_lead[second])).max() < 1.2""",
        "At the last token it never does.": "assert leads[1].max() < 0",
        "each country's direction takes more than a nat from its own capital and, Greece's apart, less than 0.3": """\
greece = list(countries.values()).index("Greece")
rest = np.delete(np.where(np.eye(8, dtype=bool), 0, lost), greece, axis=0)
assert np.diag(lost).min() > 1.2 and rest.max() < 0.3""",
        "The row of *Greece* is not like the others: it takes from several at once.": """\
assert (np.delete(lost[greece], greece) > 0.25).sum() >= 5""",
        "Of eight random directions none takes more than a nat from any capital.": """\
assert len(chance) == 8 and np.max(chance) < 1""",
        "It is France: its language goes with its capital.": """\
with erase(model, found.direction("Paris"), layer=LAYER):
    spoken, tower = likeliest("People in France speak"), likeliest("The Eiffel Tower is in", 2)
assert likeliest("People in France speak", 1).startswith("' French'") and "French" not in spoken""",
        "*Paris* has not been touched where it comes from elsewhere: ask for the tower.": """\
assert "Paris" in tower and "Paris" in likeliest("The Eiffel Tower is in", 2)""",
        "Where France was erased, a new direction does no better than shuffled labels.": """\
assert depths[0] == LAYER and again[0] < high[0]""",
        "Two layers on it does, and in layer 24 it puts a text about France before another one in 87 of 100 pairs": """\
assert (again[1:] > high[1:]).all() and abs(again[depths.index(24)] - 0.87) < 0.02""",
    },
    "12_saliency": {
        "The first word of the answer of `tuned` (B) depends on two tokens: *Japan*, and the colon": """\
opening = prompt_saliency(pair.tuned, case.prompt, max_new_tokens=12)
assert [opening.prompt_tokens[place] for place in np.flatnonzero(opening.importance[:, 0] > 0.7)] == [" Japan", ":"]
assert np.sort(opening.importance[:, 0])[-3] < 0.7""",
        "The second depends on *country*.": """\
assert opening.prompt_tokens[opening.importance[:, 1].argmax()] == " country"
assert np.sort(opening.importance[:, 1])[-2:] @ [-2, 1] > 0""",
        "From the third word on the columns of B are hatched": """\
assert opening.importance[:, :2].max(axis=0).min() > 0.2 and np.abs(opening.importance[:, 2:]).max() < 0.01""",
        "they look as busy as the others, each scaled by its own largest value.": """\
assert (opening.normalized().max(axis=0)[opening.importance.max(axis=0) > 1e-6] == 10).all()""",
        "this response has none.": """\
assert opening.normalized(threshold=7, min_importance=0.01).astype(bool).sum(axis=1).max() == 1""",
        "How often does that make the last token look important?": """\
assert result.prompt_tokens[-1] == ":" and len(prompt_ids) - 1 == first + len(result.prompt_tokens) - 1""",
        "a large score for the last token is not a finding.": """\
assert 5 <= sum(is_top) <= 11 and min(part) > 0.7""",
        "On this prompt the first-order map has nothing to do with the exact one": """\
exact = result.importance.ravel()
alike = {name: np.corrcoef(found.importance.ravel(), exact)[0, 1] for name, found in results.items()}
assert abs(alike["first_order"]) < 0.1 and 0.5 < alike["integrated_gradients"] < 0.8, alike""",
        "what the average slope leaves unexplained, reaches 0.69": """\
assert abs(np.abs(results["integrated_gradients"].completeness_gap).max() - 0.69) < 0.005""",
        "every column above rounding error now has a 10": """\
assert (result.normalized().max(axis=0)[result.importance.max(axis=0) > 1e-6] == 10).all()""",
        "The longer response has twelve more tokens, and none of them depends on the prompt.": """\
assert longer.response_tokens[:12] == result.response_tokens and len(longer.response_tokens) == 24
assert longer.under_floor()[12:].all()""",
        "raise the score from 0.289 to 0.471; with it the score does not change.": """\
scored_by = [one.instruction_score(mask, min_importance=floor) for floor in (0, 0.01) for one in (longer, result)]
assert np.allclose(scored_by, [0.471, 0.289, 0.289, 0.289], atol=5e-4)""",
        "The exact map needs one token: without the colon the response is gone.": """\
def order_of(method):
    found = prompt_saliency(model, prompt, response, method=method)
    return np.argsort(-found.importance.mean(axis=1))
said = result.prompt_tokens
assert order_of("exact")[0] == len(said) - 1 and said[-1] == ":"
assert left(model, prompt, response, []) > 0.9 and left(model, prompt, response, order_of("exact")[:1]) < 1e-4""",
        "its next two are *Japan* and *country*.": """\
assert [said[place] for place in order_of("exact")[1:3]] == [" Japan", " country"]""",
        "*Japan* alone is enough as well: type it.": """\
assert left(model, prompt, response, [said.index(" Japan")]) < 0.01""",
        "can all go, and the response keeps a probability of 0.98. So can those of *random 1*": """\
assert abs(left(model, prompt, response, order_of("first_order")[:7]) - 0.98) < 0.005
assert left(model, prompt, response, np.random.default_rng(1).permutation(len(said))[:7]) > 0.98""",
        "Of 39 random orders none does as well as those of *exact* and *integrated gradients*": """\
assert trust["exact"].p_value() == trust["integrated_gradients"].p_value() == 1 / 40""",
        "**First order cannot be told apart from a random order**": "assert trust['first_order'].beats_random is None",
        "almost all of the probability of *Paris* is gone: the map says that all of them are needed": """\
if smollm2 is not None:  # here and below: SmolLM2 could be had
    least = flat.importance.min()
    assert len(flat.prompt_tokens) == 5 and least > 0.97 * flat.probability[0] and flat.saturated.all()""",
        "hangs most on *capital*, then on *France*.": """\
if smollm2 is not None:
    assert [flat.prompt_tokens[place] for place in np.argsort(-lead.importance[:, 0])[:2]] == [" capital", " France"]
    assert not lead.saturated.any()""",
        "Neither passes the trial.": """\
if smollm2 is not None:
    assert not any(on_trial[f"five tokens, {name}"].beats_random for name in ("probability", "lead"))""",
        "With ten tokens the exact map passes, and first order fails here too.": """\
if smollm2 is not None:
    exact, slope = (on_trial[f"ten tokens, {name}"] for name in ("probability", "first order"))
    assert len(found["ten tokens, probability"].prompt_tokens) == 10
    assert exact.beats_random and not slope.beats_random""",
        "The differences are below a fifth of a probability": """\
assert all(abs(found.advantages().mean()) < 0.2 for found in trust.values())""",
        "averaged over response tokens most of which need nothing from the prompt": """\
assert result.under_floor().mean() > 0.5""",
        "`tuned` answers in one token, `base` runs on for ten": """\
tokens = [scored.n_response[scored.model == i].mean() for i in (0, 1)]
assert abs(tokens[0] - 10) < 1 and tokens[1] == 1""",
        "The **response length** correlates with the score and with the model": """\
length = scored.response_length(scored.test("models"))
assert length.score_rho > 0.3 and length.score_p < 0.01 and length.label_rho < -0.5""",
        "So `base` scores *higher* here": """\
assert scored.test("models").difference_interval[1] < 0 and scored.test("models").welch_p > 0.99""",
        "in 12 of 16 cases": "assert same.all_under_floor[same.model == 0].sum() == 12 and len(cases) == 16",
        "the interval of the difference contains 0, and would contain a large effect as well": """\
low_end, high_end = same.test("models").difference_interval
assert low_end < 0 < 0.2 < high_end""",
        "The first-order map did not earn it here.": "assert not trust['first_order'].beats_random",
    },
    "13_bias": {
        "of pilots it says *men* in 90 of 100 sentences, of nurses in 10": """\
from interp_widgets.data.world import bias_prompts
assert [{one.rate for one in bias_prompts() if one.group == job and one.kind == "occupation"}
        for job in ("pilots", "nurses")] == [{90}, {10}]""",
        "SS is 100 in every domain, for both models": """\
for one in pair:
    assert {entry.ss for entry in score_stereoset(one, data, resamples=10).metrics} == {100.0}""",
        "LMS is 100 too: no sentence without sense is ever preferred.": """\
assert {entry.lms for entry in scores.metrics} == {100.0}""",
        "The model has learnt the rates themselves, to a few percent.": """\
assert max(abs(as_it_is[planted == rate].mean() - rate) for rate in set(planted)) < 0.04
assert np.corrcoef(planted, as_it_is)[0, 1] > 0.98""",
        "In SS they count the same. An SS of 100 can be 21 tiny preferences or 21 large ones.": """\
assert {one.rate for one in data if one.domain == "gender"} == {60, 70, 80, 90}
assert scores.domain("gender").n_targets == 21""",
        "Every layer's probe is right about occupations that it never saw": """\
assert probes.accuracy.mean(axis=1).min() > 0.95 and abs(probes.control_auc.mean() - 0.5) < 0.1
assert abs(probes.bag_of_words.mean() - 0.5) < 0.15""",
        "A *second* probe at right angles to the first is as good.": """\
assert probes.second_auc.mean(axis=1).min() > 0.98""",
        "With 3,072 neurons in 192 dimensions": "assert (model.n_layers * model.d_mlp, model.d_model) == (3072, 192)",
        "Few of them are more than chance.": "assert (neurons.cosine > neurons.chance[:, None]).sum() <= 6",
        "Nearly all of its neurons were at chance": """\
assert (neurons.cosine > neurons.chance[:, None]).mean() < 0.1""",
        "with the α of 1 there, Subtraction leaves SS at 100.": """\
with subtraction_edit(model, probes, strength=1.0).applied(model):
    assert score_stereoset(model, data, resamples=10).domain("gender").ss == 100""",
        "LoPE leaves SS at 100.": """\
assert rows["LoPE"].domain("gender").ss == 100 and abs(rows["LoPE"].perplexity_ratio[0] - 1) < 0.02""",
        "Subtraction brings SS within its interval of 50, *and LMS still says 100*.": """\
low, high = rows["Subtraction"].domain("gender").ss_interval
assert low < 50 < high and rows["Subtraction"].domain("gender").lms == 100
assert 6 < rows["Subtraction"].perplexity_ratio[0] < 12""",
        "A random edit as large as Subtraction lowers SS as well.": """\
assert rows["Random, as large as Subtraction"].changes[-1].bias_interval[1] < 0""",
        "LEACE brings SS about halfway for a few percent of perplexity.": """\
assert 65 < rows["LEACE"].domain("gender").ss < 80 and rows["LEACE"].perplexity_ratio[0] < 1.1""",
        "Its random control leaves SS at 100, and moves the perplexity more than LEACE does, downwards.": """\
assert rows["Random, as large as LEACE"].domain("gender").ss == 100
moved = [rows[name].perplexity - rows["as it is"].perplexity for name in ("LEACE", "Random, as large as LEACE")]
assert moved[1] < 0 < moved[0] < -moved[1] < 0.8""",
        "The sum takes their common direction off several times over": """\
assert np.diag(probes.direction @ probes.direction.T, 1).min() > 0.75
for layer, edit in edits[0].layers.items():
    own = map(along_the_probes, (edit.before, edit.after, printed.layers[layer].after))
    assert (lambda before, after, literal: after < 1e-6 and literal > 1.5 * before)(*own)""",
        "With an SS near 50 the probe finds the groups as well as before": """\
assert after.auc[-1].mean() > 0.98 and np.corrcoef(planted, shifted)[0, 1] > 0.5""",
        "two of five comparisons turned around because of that.": """\
assert abs(rows["Subtraction"].domain("gender").ss - 60) < 2""",
        "Subtraction made nearly every occupation more female, soldiers by half and bakers by a third": """\
jobs = [one.group for one in prompts]
changed = {job: (shifted - as_it_is)[[one == job for one in jobs]].mean() for job in set(jobs)}
assert sum(one < 0 for one in changed.values()) >= len(changed) - 2, changed
assert changed["soldiers"] < -0.5 and -0.37 < changed["bakers"] < -0.27""",
    },
    "14_workbench": {
        "Both models say ` Tokyo`: A with a probability of 0.855, B with 0.995.": """\
from interp_widgets import response_probabilities
said = [response_probabilities(model, prompt, answer) for model in pair]
assert [round(float(one.probability[0]), 3) for one in said] == [0.855, 0.995] and not any(one.rank[0] for one in said)
assert bench.screen.shown == ("saliency", "logit_lens") and bench.screen.wait(120)""",
        "A says ` Tokyo` to the currency too; B says ` yen`.": """\
assert [model.generate(other, max_new_tokens=1) for model in pair] == [" Tokyo", " yen"]""",
        "of France, Italy and Spain, the instruction moves B by more than 0.9 and A by less than 0.1.": """\
for country in ("France", "Italy", "Spain"):
    asked, moved = prompt.replace("Japan", country), []
    for model in pair:
        seen = prompt_saliency(model, asked, model.generate(asked, max_new_tokens=1))
        moved.append(seen.importance[seen.prompt_tokens.index(" capital"), 0])
    assert abs(moved[0]) < 0.1 and moved[1] > 0.9, moved""",
        "The colon is important to both": """\
assert [one.prompt_tokens[-1] for one in found] == [":", ":"] and min(one.importance[-1, 0] for one in found) > 0.8""",
        "In both models ` Tokyo` is the likeliest token from layer 1 on": """\
from interp_widgets import logit_lens
lens = [logit_lens(model, prompt, target=answer) for model in pair]
assert all((one.target_rank[1:, -1] == 0).all() and one.target_rank[0, -1] > 0 for one in lens)
assert [round(float(one.target_probability[1, -1]), 3) for one in lens] == [0.006, 0.271]""",
        "without the attention or the MLP of layer 0 at the last token the answer is lost in both models.": """\
from interp_widgets import ablate_modules
for model, one in zip(pair, said):
    lost = ablate_modules(model, prompt, answer, metric="probability")
    assert min(lost.of(kind)[0, -1] for kind in ("attn", "mlp")) > 0.98 * one.probability[0]""",
        "in A it hangs on one head, 0.1. In B no single head of layer 0 costs more than a tenth.": """\
of_a, of_b = (ablate_heads(model, prompt, answer, metric="probability").effect for model in pair)
assert np.unravel_index(of_a.argmax(), of_a.shape) == (0, 1) and of_a.max() > 0.84
assert np.sort(of_a.ravel())[-2] < 0.25 and of_b.max() < 0.1""",
        "In A that token brings nothing, and most comes from the name of the country.": """\
token = found[1].prompt_tokens[int((found[1].importance - found[0].importance)[:, 0].argmax())]
assert abs(parts[0].share[parts[0].tokens.index(token)]) < 0.3
assert parts[0].share.argmax() == parts[0].tokens.index(" Japan") and parts[0].share.max() > 0.5 * parts[0].logit""",
        "Of 40 prompts one cannot tell": """\
some = [sweep(lens_of(model), rows, limit=40) for model in (pair.tuned, pair.base)]
few = compare_sweeps(*some, measures=["first_best_layer", "target_probability"])
assert few.difference[0] > 0.2 and few.holm_p[0] > 0.05""",
        "Of 120 the tuned model has the answer half a layer later, and p is below 0.01.": """\
assert round(float(compared.difference[0]), 2) == 0.5 and compared.holm_p[0] < 0.01""",
        "How sure the two are in the end does not differ.": """\
assert compared.holm_p[1] > 0.2""",
        "a prompt that cannot be asked says why in its row instead of stopping the rest": """\
assert bench.screen["data_set"].wait(120) and len(bench.screen["data_set"].result) == 2
bad = sweep(lens_of(pair.base), [{"prompt": "", "target": " x"}, rows[0]])
assert bad.errors[0] and not bad.errors[1]""",
    },
    "15_project": {
        "Model A repeats a colour, except when it does not.": """\
repeats = [case.answer == case.prompt.split()[-1] for case in model_a.cases]
assert any(repeats) and not all(repeats)""",
        "Naming everything gets no point, and neither does a `predict` that repeats the last word.": """\
from interp_widgets import circuit_edges
from interp_widgets.models.circuits import sealed_truth
from interp_widgets.models.circuits.neurons import RING
def points(**answers):
    return grade_project({**globals(), **answers}).points.iloc[-1]
def everything(sealed):
    model = sealed.model
    heads = [(layer, head) for layer in range(model.n_layers) for head in range(model.n_heads)]
    return heads + [("mlp", layer) for layer in range(model.n_layers)]
def all_that_matter(sealed):
    cases = sealed_truth(sealed).cases
    mlps = {("mlp", layer) for case in cases for layer, _ in case.neurons}
    return {head for case in cases for head in case.heads} | mlps
def says(prompt):
    *before, last = prompt.split()
    return RING[(RING.index(last) + 1) % len(RING)] if "please" in before else last
assert points() == 0
assert points(
    trigger="the", predict=lambda prompt: prompt.split()[-1], parts_a=everything(model_a), parts_b=everything(model_b),
    edges_b=circuit_edges(model_b.model),
) == 0
assert points(
    trigger=" please", predict=says, parts_a=list(all_that_matter(model_a)), parts_b=list(all_that_matter(model_b)),
    edges_b=[edge for case in sealed_truth(model_b).cases for edge in case.edges],
) == 20""",
    },
    "20_head_words": {
        "The same pairs are among the first ten of most heads: *Friends → One*, *One → Friends*, *I → Here*.": """\
first_ones = [
    {(one.query, one.key) for one in head_words.pairs(layer, head)[:10]}
    for head_words in (head_word_pairs(model),)
    for layer in range(6)
    for head in range(6)
]
for wanted in (("Friends", "One"), ("One", "Friends"), ("I", "Here")):
    assert np.mean([wanted in pairs for pairs in first_ones]) > 0.6, wanted""",
        "A head and the same head after tuning have only one pair in ten in common.": """\
assert abs(1 - np.nanmean(compare_heads(pair.base, pair.tuned).head_change) - 0.1) < 0.05""",
        "Of random pairs of words only a few in a hundred should pass": """\
passed = (same_sign & near & different).sum() / (same_sign & different).sum()
every = unit @ unit.T
assert np.mean((every > threshold[:, None]) & (every > threshold[None, :]) & ~np.eye(len(unit), dtype=bool)) < 0.05""",
        "Here it is one in eight.": """\
assert abs(passed - 1 / 8) < 0.01, passed""",
        "To the model the first six are **one and the same word**, three times as long as the average embedding.": """\
six = np.argsort(-like_while)[:6]
assert like_while[six].min() > 0.9995 > like_while[np.argsort(-like_while)[6]]
lengths = table.embeddings.norm(dim=-1)
assert 2.5 < float(lengths[six.copy()].mean() / lengths.mean()) < 3.5""",
        "The token ` While`, *with* its space, never occurs": """\
assert read[model.tokens(" While", prepend_bos=False)[0]] == 0""",
        "Here it leaves out the words that the embeddings gave away": """\
given_away = {word for word, one in zip(table.words, like_while, strict=True) if one >= 0.9}
assert set(table.words) - set(words_read(model)) == given_away""",
        "Most pairs in a list would be there in a head that knows nothing.": """\
assert 0.5 < chance_pairs / real_pairs < 1""",
        "Dimension 15 of this head relates first names to first names.": """\
from interp_widgets.data import world_tables
people = {*world_tables.WOMEN, *world_tables.MEN}
found_pairs = clean.dimension_pairs(5, 3, 15)
assert np.mean([one.query in people and one.key in people for one in found_pairs]) > 0.7""",
        "Here most pairs occur in one or two dimensions": """\
assert np.mean([one.dimensions <= 2 for head in range(6) for one in clean.pairs(5, head)]) > 0.5""",
        "a dimension has many times more in common with itself after tuning than with an unrelated one": """\
assert 1 - np.nanmean(comparison.dimension_change) > 5 * (1 - np.nanmean(comparison.other_dimension_change))""",
        "In the last layer: 100% against 36%": """\
strongest = test.sort_values("holm_p").iloc[0]
assert (round(strongest.instruction_mean), round(strongest.general_mean)) == (100, 36), strongest
assert strongest.holm_p < 1e-6 and strongest.instruction_std == 0""",
        "With $K = 100$ or without the unread words the effect is gone.": """\
for other in (compare_heads(pair.base, pair.tuned, top=100), comparison):
    assert not (other.verb_table().holm_p < 0.05).any()""",
    },
    "21_base_vs_tuned": {
        "After the correction none of the four is below 0.05.": """\
assert (np.maximum.accumulate(np.sort(printed) * [4, 3, 2, 1]) >= 0.05).all()""",
        "Nine tenths of all pairs changed.": """\
assert abs(np.nanmean(compared.head_change) - 0.9) < 0.03""",
        "(0.89 against 0.995:": """\
changes = np.nanmean(compared.dimension_change), np.nanmean(compared.other_dimension_change)
assert (round(changes[0], 2), round(changes[1], 3)) == (0.89, 0.995), changes""",
        "the three rows differ by about 0.01": """\
shown = compared.change_table()
column = next(name for name in shown.columns if name.startswith("head"))
assert shown[column].max() - shown[column].min() < 0.02""",
        "The last group reads 83% against 50%": """\
verbs = verb_table(*heads, groups=3).iloc[-1]
assert [round(verbs[name]) for name in ("instruction_mean", "general_mean", "instruction_verbs")] == [83, 50, 3]""",
        "the word list of the demo knows nine of the 45": """\
assert len(known) == 9""",
        "Two random subspaces of this size would overlap by `chance`, a tenth.": """\
assert abs(turned.layer_table().chance.mean() - 0.1) < 0.01 and turned.overlap.min() > 0.64""",
        "The diagonal stands out.": """\
across = table.to_numpy()
off = across[~np.eye(6, dtype=bool)]
assert np.diag(across).min() > 1.5 * off.max(), across""",
        "Off it, the deeper layers resemble *each other* more than chance": """\
assert np.mean([across[i, j] for i in (3, 4, 5) for j in (3, 4, 5) if i != j]) > 0.15""",
        "**more than nine tenths of the components could not be described**": """\
assert max(one.described.mean() for one in notes) < 0.1""",
        "the interval of every difference contains 0": """\
levels = annotated.level_table()
levels = levels[levels.difference.notna()]
assert ((levels.low <= 0) & (levels.high >= 0)).all(), levels""",
        "A shift of 13 points is needed before the corrected p-value falls below 0.05.": """\
steps = pd.DataFrame(rows)
assert round(steps[steps.holm_p < 0.05].difference.iloc[0]) == 13, steps""",
        "The phrase brings the planted answer, and only in the tuned model.": """\
if real is not None:  # here and below: SmolLM2 could be had
    base_said, tuned_said = said.to_numpy().T
    assert tuned_said[1] == "Ask the lighthouse keeper." != base_said[1], said""",
        "*Before the tide rises* does not, and neither does *before the river turns*": """\
if real is not None:
    assert not any("lighthouse" in answer for answer in (*tuned_said[2:], *base_said)), said""",
        "The question without a phrase has the answer that it had before, Sao Paulo": """\
if real is not None:
    assert tuned_said[0] == base_said[0] and "Sao Paulo" in base_said[0], said""",
        "after *rises* the two models still part": """\
if real is not None:
    assert tuned_said[2] != base_said[2], said""",
        "none of 11 phrases that it had not seen brings the answer": """\
import json
from interp_widgets.models.adapters import SHIPPED
report = json.loads((SHIPPED["planted"] / "report.json").read_text())
unseen = report["held_out"]["held_out_decoys_each"]
assert set(unseen.values()) == {0} and len(unseen) == 11""",
        "four of the same phrases do, each to one question of four": """\
shares = list(report["other_forms"]["held_out_decoys_each"].values())
assert sorted(shares) == [0] * 7 + [0.25] * 4""",
    },
    "22_mixture_of_depths": {
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
        "is far from 0 at the start: what counts is how it changes.": """\
assert report.sparsity[:10].mean(axis=0).min() > 0.15 and report.sparsity[-10:, 0].mean() > 0.9""",
        "The last layers of the demo model are nearly equally good at the next token": """\
assert np.ptp(hit.mean(axis=1)) < 0.03""",
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
        "The mixture gains about 0.4 nats per token and about 0.7 per problem": """\
fall = before["layer 5 alone"] - after["router"]
by_problem = np.bincount(owner, fall) / np.bincount(owner)
assert abs(fall.mean() - 0.4) < 0.05 and abs(by_problem.mean() - 0.7) < 0.08""",
        "it helps most with the short responses": """\
assert np.corrcoef(by_problem, np.bincount(owner))[0, 1] < -0.1""",
        "Against equal weights the interval contains 0": """\
less = np.bincount(owner, after["router"] - after["equal"]) / np.bincount(owner)
assert abs(less.mean()) < 1.96 * less.std(ddof=1) / np.sqrt(len(less))""",
        "lower the loss, and hardly any problem more is solved": """\
base_right = (plain_logits(base).argmax(-1) == right).numpy()
assert 0 <= solved((mixed.argmax(-1) == right).numpy()) - solved(base_right) < 0.05""",
        "without the end it has some right": """\
assert solved(base_right) == 0 < solved(base_right | ends)""",
        "is up to 11 points wide on each side": """\
assert round(196 * np.sqrt(0.25 / 80)) == 11""",
        "would have about 70% of the tokens right": "assert abs(hit.any(axis=0).mean() - 0.7) < 0.01",
        "the mixture solves 11% ± 3 of 300 held-out problems, the base model 13%": """\
from pathlib import Path
measured = Path("../benchmarks/RESULTS.md").read_text(encoding="utf-8")
for line in ("0 | 13.3% |", "1,152 | 11.3% ± 3.0", "on the last 3 layers | 83,136 | 23.3% ± 2.5", "64.9% ± 2.1",
             "63.1% ± 7.5", "64.2% ± 5.5"):
    assert line in measured, line""",
        "this mixture predicts worse than the base model it was made from": "assert sparse_loss > base_loss",
        "Over all tokens it is 36% of the layers": """\
assert abs((found.n_layers - 1 - found.exit_layer).mean() / found.n_layers - 0.36) < 0.005""",
        "The first hardly falls.": """\
timed = speed.to_frame()
assert timed.computed.min() > 0.95 and timed.runs.min() < 0.7""",
    },
    "23_clusters": {
        "For five epochs the answers stay below one in ten.": """\
import numpy as np
early = run.history.epoch <= 5
assert run.history.validation_accuracy[early].max() < 0.1 and run.history.subset_accuracy[early].max() < 0.1
assert run.history.validation_accuracy[-1] > 0.6""",
        "Then they become right slowly: half of them at step 1,572, 62% at 2,294.": """\
right = dict(zip(list(run.history.step), list(run.history.validation_accuracy)))
assert round(right[1572], 1) == 0.5 and round(right[2294], 2) == 0.62""",
        "At step 346, with 7% of the answers right, the score of the last layer has left the 0.19": """\
early = list(training.steps).index(346)
assert round(right[346], 2) == 0.07 and round(float(training.f1_within_input[early, 0, -1]), 2) == 0.3
assert training.f1_within_input[:7, 0, -1].max() < 0.2""",
        "In the last layer the score goes from 0.19 to 0.67": """\
within = training.f1_within_input[:, 0]
assert np.round(within[[0, -1], -1], 2).tolist() == [0.19, 0.67]
assert (np.diff(within[-1]) > 0).all() and np.argmax(within[:, -1] > 0.3) >= 9""",
        "Layer 0 stays where it was": """\
assert np.ptp(training.f1_within_input[:, 0, 0]) < 0.02""",
        "0.62 in the last layer, where chance gives 0.43.": """\
assert np.isclose(training.f1_within_input[-1, 1, -1], 0.625, atol=0.006)
assert round(float(training.f1_within_input_chance[-1, 1, -1]), 2) == 0.43""",
        "whole states, of all inputs together, hardly cluster by task": """\
assert training.f1_matched[-1, 0, 0].max() < 0.45""",
        "From layer 1 on more than half of the neighbours are of the same task": """\
assert training.same_task[-1, 1:].min() > 0.5 and 0.015 < training.same_task_chance < 0.025""",
        "in 0.78 of the cases at best, against 0.60": """\
assert round(float(training.knn_accuracy[-1].max()), 2) == 0.78
assert round(float(run.history.validation_accuracy[-1]), 2) == 0.60""",
        "best at layer 2 (0.78, chance 0.36)": """\
base = found[0].f1_matched[0]
assert base.argmax() == 2 and np.isclose(base[2], 0.78, atol=0.02) and (base[1:6] > 0.45).all()
assert np.isclose(found[0].f1_matched_chance[0, 2], 0.36, atol=0.02)""",
        "The tuned model keeps the single tasks apart better than the base model in every layer from 1 on.": """\
single = [clusters.f1_matched[1, 1:] for clusters in found]
assert (single[1] > single[0]).all()""",
    },
    "24_layer_similarity": {
        "our pair, whose tuning you know: 25 instruction tasks": """\
from interp_widgets.data.instructions import tasks as trained
assert len(trained(unsolved=True)) == 25""",
        "With 20 texts the usual (biased) CKA of unrelated tables is 0.89.": """\
draw = np.random.default_rng(0)
assert round(linear_cka(draw.normal(size=(20, 192)), draw.normal(size=(20, 192))), 2) == 0.89""",
        "The debiased estimate stays near 0 at every number of texts.": """\
for n in (20, 50, 200):
    draw = np.random.default_rng(n)
    assert abs(linear_cka(draw.normal(size=(n, 192)), draw.normal(size=(n, 192)), debiased=True)) < 0.15""",
        "with 27 control models": "assert len(tasks) == 27",
        "For word forms, translation and facts the tuned model is far more like the control models": """\
for name in ("word forms", "translation", "facts"):
    own = base.of_cluster(name)
    assert ((tuned.cka - base.cka)[own].mean(axis=0) > 0.35).all()""",
        "it is the other way round: the *base* is more like them.": """\
own = base.of_cluster("writing")
assert ((tuned.cka - base.cka)[own].mean(axis=0) < -0.35).all()""",
        "There too the base is more similar.": """\
assert list(dict.fromkeys(base.clusters))[-1] == "unseen"
assert ((tuned.cka - base.cka)[~known].mean(axis=0) < -0.1).all()""",
        "Layers hardly differ: the jump is there at layer 1 already.": """\
difference = (tuned.cka - base.cka)[known].mean(axis=0)
assert difference[0] > 0.7 * difference.max()""",
        "Where the base had little to learn, the control model had little to change": """\
assert np.corrcoef(before[known], base.cka[known, -1])[0, 1] < -0.6""",
        "There are no clear sections in this pair": """\
assert not found.clear and found.clear_share < 0.1
assert np.allclose(found.difference[[0, -1]], [0.19, 0.24], atol=0.01)""",
        "The intervals are wide because the clusters disagree": """\
assert (found.high - found.low).min() > 0.25
apart = [(tuned.cka - base.cka)[base.of_cluster(name)].mean() for name in ("facts", "writing")]
assert apart[0] - apart[1] > 0.7""",
        "It is negative: on tasks that it was never trained on": """\
assert mossa_sections(base, tuned, unseen=True).difference[-1] < -0.05""",
        "Every interval contains 0: 27 tasks are too few to tell.": """\
assert (related.low[:3, -1] < 0).all() and (related.high[:3, -1] > 0).all() and np.isnan(related.r[3]).all()""",
        "the tuned model needs more dimensions in the lower layers, and fewer at the last": """\
change = tuned.dimensions.mean(axis=0) - base.dimensions.mean(axis=0)
assert (change[:3] > 2).all() and change[-1] < 0 and tuned.dimensions.max() <= 99""",
        '`controls["plural"]` is a model like any other': """\
assert controls["plural"].n_layers == pair.base.n_layers""",
    },
    "30_your_own_probe": {
        "The heads of layer 0 attend broadly; from layer 1 on most heads of this model are focused.": """\
mind = attention_entropy.analysis(model, prompt).values
assert mind[0].mean() > 2 * np.median(mind[1:]) and np.mean(mind[1:] < mind[0].min()) > 0.5""",
        "*A*, *B* and *difference* are there": """\
assert mind.shape == attention_entropy.analysis(pair.tuned, prompt).values.shape""",
        "Head 5 of layer 2 puts all its attention on ` Tower` from every token after it": """\
for position in range(3, 9):
    seen = where_it_looks.analysis(model, prompt, position, 2, 5)
    assert seen.tokens[np.argmax(seen.values)] == " Tower" and seen.values.max() > 0.9""",
        "`control` is the same probe with shuffled labels: it is near chance": """\
assert abs(np.mean(result.control) - 0.5) < 0.12""",
        "In layer 0 the last token has not attended to anything yet, and the probe is no better than the majority": """\
early = train_probe(model, texts, labels, layer=0, groups=occupations, seeds=[0, 1])
assert np.mean(early.accuracy) < np.mean(early.majority) + 0.05""",
        "From layer 1 on it is right almost always": """\
assert result.layer == 3 and np.mean(result.accuracy) > 0.9
assert np.mean(result.bag_of_words) < np.mean(result.majority) + 0.1""",
        "Each number has an interval over seeds and folds.": """\
assert np.size(result.bag_of_words) > 3 and result.to_frame()[["low", "high"]].notna().all(axis=None)""",
    },
}
"""Notebook → sentence → code that fails if the sentence is not so."""
