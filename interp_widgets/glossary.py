"""The terms of the field and of the papers, one sentence each: what the widgets say of them under the pointer."""

from __future__ import annotations

import re
from functools import cache

TERMS = {
    "activation patching": "Values of one run put into another run, to see which of them carry the answer.",
    "AUC": "Probability that a positive example scores higher than a negative one; 0.5 is chance.",
    "BOS": "The beginning-of-sequence token, which a model reads first.",
    "causal tracing": "Noise is put on the subject's embeddings, then the clean value of one site is restored.",
    "circuit": "The heads and MLPs that are enough for a behavior when all others have their corrupted values.",
    "CKA": "Centered kernel alignment: how similar the geometry of two sets of states is, 0 to 1.",
    "commit layer": "The first layer from which on the likeliest token never changes again.",
    "context score": "The instruction score of the rest of the prompt, for comparison.",
    "cosine": "Cosine of the angle between two vectors: 1 for the same direction, −1 for opposite ones.",
    "debiased": "Corrected for the small number of texts, so that unrelated states score 0 on average.",
    "denoising": "Clean values put into the corrupted run: what is enough to bring the answer back.",
    "density": "Roughly the number of response tokens that a prompt token is important for (l1 norm over lp norm).",
    "direct logit attribution": "The part of a logit that one component writes directly into the residual stream.",
    "duplicate token head": "A head that attends to an earlier occurrence of the token.",
    "entropy": "How spread a probability distribution is: 0 if one token has it all.",
    "faithfulness": "The share of the model's behavior that is left when only the kept parts work.",
    "floor": "The importance below which a response token is left out of the scores: it depends on no prompt token.",
    "foil": "The token that the answer is compared with, such as a wrong answer.",
    "gap": "Mean projection of a concept's states on its direction minus that of all others: a unit of steering.",
    "gradient × embedding": "First order: the derivative by an embedding times the change of the embedding.",
    "indirect object": "In “When Mary and John …, John gave a drink to”, the name that has to come next.",
    "induction head": "A head that attends to the token after an earlier occurrence of the present one.",
    "INLP": "Iterative null-space projection: removes the directions that linear probes find, one after the other.",
    "instruction score": "Mean density of the instruction's tokens.",
    "integrated gradients": "Gradients averaged on the way from a baseline to the input, times the difference.",
    "interference": "A layer where the target was the likeliest token and is no longer in the next one.",
    "LEACE": "Least-squares concept erasure: the smallest change after which no linear probe finds the concept.",
    "level": "Importance rescaled per response token to whole steps, so that each has the same largest score.",
    "LMS": "Language modeling score: percent of sentences whose meaningful choice beats the unrelated one.",
    "log-probability": "Natural logarithm of the probability: 0 is certain, −0.7 is one half.",
    "logit": "The number of a token before the softmax turns all of them into probabilities.",
    "logit difference": "The logit of one token minus that of another: what all logits share drops out.",
    "logit lens": "The state of every layer read out as if it were the last: what the model would say there.",
    "LoRA": "Low-rank adapter: a small trained addition to a weight matrix.",
    "matched F1": "Mean F1 of labels with the clusters that they are matched to, one to one.",
    "MLP": "The feed-forward part of a layer.",
    "mixture of depths": "Logits of several late layers mixed by learned weights.",
    "MOSSA": "Model-Oriented Sub-population and Spectral Analysis: a model's layers against models of one task.",
    "noising": "Corrupted values put into the clean run: what is needed for the answer.",
    "null": "What the same number is by chance, from shuffled, random or unrelated inputs.",
    "path patching": "Activation patching of one edge only: what a sender gives to one receiver.",
    "permutation": "The statistic of many random relabelings; p is the share that reaches the one found.",
    "perplexity": "Exponential of the mean loss per token: between how many tokens the model is undecided.",
    "previous token head": "A head that attends to the token before.",
    "principal component": "A direction along which the states vary most, uncorrelated with the ones before.",
    "rank": "How many tokens are likelier: 0 is the likeliest.",
    "recovered": "Share of the difference between corrupted (0) and clean (1) that comes back.",
    "resample": "Replaced by the value on other texts.",
    "residual stream": "The vector of a position that every layer reads and adds to.",
    "runner-up": "The likeliest token besides the answer.",
    "self-check": "The loaded model against transformers' own computation: logits, gradients and edits on short texts.",
    "sink": "A token, mostly the first, that heads attend to when they have nothing to do.",
    "SS": "Stereotype score: percent of pairs where the stereotype is likelier than the anti-stereotype; 50 is none.",
    "steering": "A concept's direction is added to the residual stream while the model writes.",
    "t-SNE": "A map that keeps neighbors together; long distances mean little.",
    "tenth": "One of ten groups of equal size by a number: 1 has the smallest, 10 the largest.",
    "tuned lens": "A logit lens with a trained affine map per layer.",
    "UMAP": "A map that keeps neighbors together; long distances mean little.",
    "word pair": "Two words that a head relates by its weights: one as query, one as key.",
}
"""Definitions by term; where a term has a formula, the docstring of its function has it."""


@cache
def _pattern() -> re.Pattern[str]:
    longest_first = sorted(TERMS, key=len, reverse=True)
    return re.compile(rf"(?<!\w)({'|'.join(map(re.escape, longest_first))})(?:e?s)?(?!\w)", re.IGNORECASE)


@cache
def _spelled() -> dict[str, str]:
    return {term.lower(): term for term in TERMS}


def terms_in(text: str) -> tuple[str, ...]:
    """The terms of the glossary that occur in a text, in their order there; the longest where one is part of another.

    An abbreviation counts only as it is written: *SS*, not the end of a word in small letters.

    >>> terms_in("Logit difference to the foil, by commit layer")
    ('logit difference', 'foil', 'commit layer')
    """
    found = dict[str, None]()
    for match in _pattern().finditer(text):
        term = _spelled()[match[1].lower()]
        if not term.isupper() or match[1] == term:
            found[term] = None
    return tuple(found)


def explain(text: str) -> str:
    """A line ``term: definition`` for each term of the glossary in a text; empty if there is none."""
    return "\n".join(f"{term}: {TERMS[term]}" for term in terms_in(text))
