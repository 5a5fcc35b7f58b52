"""Every public function that computes with a model, as one row each: what is run on the accelerator and on the CPU."""

from __future__ import annotations

import functools
import itertools
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
import torch

import interp_widgets as iw
from interp_widgets.data.problems import Problem
from interp_widgets.data.word_vectors import demo_word_vectors
from tests.models.tiny import tiny_folder, tiny_model
from tests.widgets import probes

Backend = Literal["hooked", "bridge"]

PROMPT = "When Mary and John went to the store, John gave a drink to"
RESPONSE = " Mary. A pilot flies a plane; a nurse helps people."
QUESTION = "What is the capital of France? The capital of France"
WORDS = demo_word_vectors().words[:60]
VECTORS = np.random.default_rng(5).normal(size=(12, 8))[np.arange(60) % 12]
CONCEPTS = (
    iw.Concept(
        "Paris", ("The Eiffel Tower is in Paris.", "Paris is a city.", "In Paris."), ("Go to Paris.",), "places"
    ),
    iw.Concept("store", ("John went to the store.", "A store.", "The store is near."), ("To the store.",), "places"),
    iw.Concept("dog", ("A small dog.", "The dog was happy.", "Once there was a dog."), ("The dog lived.",)),
)
CASES = [
    iw.SaliencyCase("Answer the question. What is the capital of France?", " The capital is Paris.", (0, 20), True),
    iw.SaliencyCase("Write a short story about a small dog.", " Once there was a dog.", (0, 38), True),
    iw.SaliencyCase("Translate the word into French. Input: house.", " maison, one two three four", (0, 31), False),
]
INTRASENTENCE = iw.StereoSetExample(
    "a", "intrasentence", "jobs", "nurse", "A nurse BLANK people.", "A nurse helps people.", "A nurse flies people.",
    "A nurse plane people.",
)  # fmt: skip
INTERSENTENCE = iw.StereoSetExample(
    "b", "intersentence", "jobs", "pilot", "A pilot came", "A pilot flies.", "A pilot helps.", "A plane Mary."
)
EXAMPLES = [("The capital of France is", " Paris"), ("One two", " three"), ("A pilot flies a", " plane")]
PROBLEMS = [Problem("The capital of France is", " Paris", "true", "truth"), Problem("One two", " 3", "3", "number")]
TUNING: dict[str, Any] = {"k": 2, "steps": 2, "batch_size": 2, "learning_rate": 1e-2}

ARRAYS_ONLY = {
    "add_to_map", "annotate_concepts", "bbq_metrics", "chat_prompt", "circuit_edges", "circuit_ranking",
    "circuit_scoreboard", "clustering_scores", "compare_annotations", "compare_sweeps", "concept_map",
    "decompose_state", "demo_bias_texts", "demo_cases", "grade_circuit", "open_sealed", "seal_circuit",
    "sealed_circuit",
    "demo_concepts", "demo_instructions", "demo_problems", "demo_prompts", "demo_stereoset", "demo_task_texts",
    "demo_texts", "demo_word_vectors", "dispersion", "field", "importance_density", "instruction_score",
    "labeled_texts", "layer_sections", "linear_cka", "load_circuit", "load_demo_pair", "make_instruction_task",
    "minibatch_cka", "mossa_sections", "neighbors", "normalize_importance", "position_profile", "rbf_cka", "read_bbq",
    "read_bias_data", "read_concepts", "read_crows_pairs", "read_instruction_run", "read_instructions", "read_problems",
    "read_relation", "read_sentence_pairs", "read_stereoset", "read_sweep", "read_word_vectors", "readability",
    "stereoset_metrics", "subspace_angles", "task_correlations", "words_read",
}  # fmt: skip
"""Public functions that never touch a model's device: they take results, arrays and messages, or read files.
`load_demo_pair` is `load_pair` of two names."""


@dataclass(frozen=True)
class Setup:
    """Two tiny models of one family and backend on one device."""

    family: str
    backend: Backend
    device: str
    float64: bool = True
    """Whether the device has float64: what a model was compared with once is then compared again without."""

    @property
    def model(self) -> iw.Model:
        return _model(self, seed=0)

    @property
    def other(self) -> iw.Model:
        return _model(self, seed=1)

    @property
    def pair(self) -> tuple[iw.Model, iw.Model]:
        return self.model, self.other

    @functools.cached_property
    def tokens(self) -> list[int]:
        return self.model.tokens(QUESTION)

    def direction(self) -> np.ndarray[Any, Any]:
        """(d_model,) something to steer along."""
        return np.random.default_rng(3).normal(size=self.model.d_model)

    def concepts(self) -> iw.ConceptSet:
        return iw.concept_directions(self.model, CONCEPTS, layer=2, shuffles=2)

    def mixture(self, top_k: int | None = None) -> iw.ModModel:
        return iw.untrained_mod(self.model, 2, top_k=top_k)


@functools.cache
def _model(setup: Setup, *, seed: int) -> iw.Model:
    if setup.device == "cpu":
        return tiny_model(setup.family, setup.backend, seed=seed)
    return iw.load_model(tiny_folder(setup.family, seed), device=setup.device, backend=setup.backend)


Run = Callable[[Setup], Any]
ROWS: dict[str, tuple[frozenset[str], Run]] = {}
"""By the name of the row: the public names that it exercises, and what it runs."""


def row(*names: str) -> Callable[[Run], Run]:
    """Enter a function into the table under its own name; ``names`` are the public names that it exercises."""

    def enter(run: Run) -> Run:
        ROWS[run.__name__] = frozenset(names), run
        return run

    return enter


@functools.cache
def on_the_cpu(name: str, family: str, backend: Backend) -> Any:
    """What a row gives on the CPU, which every device is held against."""
    return ROWS[name][1](Setup(family, backend, "cpu"))


def group(family: str, backend: Backend) -> pytest.MarkDecorator:
    """Of several processes, one computes what the CPU says, once."""
    return pytest.mark.xdist_group(f"{family}-{backend}")


# ---- loading, running, writing


@row("load_model", "load_pair", "Model", "ModelPair")
def load(setup: Setup) -> Any:
    pair = iw.load_pair(tiny_folder(setup.family, 0), tiny_folder(setup.family, 1),
                        device=setup.device, backend=setup.backend)  # fmt: skip
    return [(model.self_check.passed, model.run(setup.tokens).logits) for model in pair]


@row("load_model")
def load_processed(setup: Setup) -> Any:
    model = iw.load_model(tiny_folder(setup.family), device=setup.device, backend=setup.backend, processed=True)
    return model.run(setup.tokens).logits


@row("Model")
def run(setup: Setup) -> Any:
    names = ["blocks.1.hook_resid_pre", "blocks.1.attn.hook_pattern", "blocks.2.hook_mlp_out"]
    found = setup.model.run(
        setup.tokens, capture=names, edit={"blocks.1.hook_attn_out": lambda value: 2 * value},
        grad=lambda logits: logits[:, -1].log_softmax(-1)[:, 7].sum(),
    )  # fmt: skip
    return found.logits, dict(found.activations), dict(found.gradients)


@row("Model")
def engine(setup: Setup) -> Any:
    embeddings = setup.model.token_embeddings(setup.tokens)[None]
    start = setup.model.prefix(embeddings[:, :3])
    return setup.model.forward(embeddings), setup.model.forward(embeddings[:, 3:], prefix=start)


@row("Model")
def generate(setup: Setup) -> Any:
    model = setup.model
    return model.generate(PROMPT, max_new_tokens=5), model.generate(PROMPT, max_new_tokens=5, temperature=1, seed=3)


# ---- saliency


@row("prompt_saliency")
def saliency_exact(setup: Setup) -> Any:
    return iw.prompt_saliency(setup.model, PROMPT, RESPONSE)


@row("prompt_saliency")
def saliency_first_order_forward(setup: Setup) -> Any:
    return iw.prompt_saliency(setup.model, "The capital of", RESPONSE, method="first_order", target="log_prob")


@row("prompt_saliency")
def saliency_first_order_reverse(setup: Setup) -> Any:
    model = setup.model
    return iw.prompt_saliency(model, PROMPT, " Mary.", method="first_order", target="logit_difference", foil=20)


@row("prompt_saliency")
def saliency_integrated_gradients(setup: Setup) -> Any:
    found = [
        iw.prompt_saliency(setup.model, prompt, response, method="integrated_gradients", steps=3, baseline=baseline)
        for prompt, response, baseline in ((PROMPT, " Mary.", "mean"), ("The capital of", RESPONSE, "zero"))
    ]
    return found


@row("prompt_saliency")
def saliency_spans_and_draws(setup: Setup) -> Any:
    return [
        iw.prompt_saliency(setup.model, PROMPT, " Mary.", spans="words", baseline="mean"),
        iw.prompt_saliency(setup.model, PROMPT, " Mary.", within=(1, 4), baseline="resample", draws=2),
    ]


@row("prompt_saliency")
def saliency_random(setup: Setup) -> Any:
    return iw.prompt_saliency(setup.model, PROMPT, max_new_tokens=4, method="random")


@row("saliency_dataset")
def saliency_dataset(setup: Setup) -> Any:
    return iw.saliency_dataset(setup.model, CASES, threshold=0, min_response=1, min_importance=0, resamples=99)


@row("faithfulness")
def faithfulness(setup: Setup) -> Any:
    found = iw.prompt_saliency(setup.model, PROMPT, " Mary.")
    return iw.faithfulness(setup.model, found, percent=(10, 50), steps=3, random_orders=2)


# ---- data sets about bias


@row("score_stereoset", "sentence_score")
def stereoset(setup: Setup) -> Any:
    found = [
        iw.score_stereoset(setup.model, [INTRASENTENCE, INTERSENTENCE], intersentence=rule, resamples=20)
        for rule in ("conditional", "official")
    ]
    return found, iw.sentence_score(setup.model, INTRASENTENCE.stereotype)


@row("score_crows")
def crows(setup: Setup) -> Any:
    return iw.score_crows(setup.model, [iw.CrowsPair(RESPONSE, PROMPT, "stereo", "gender")], resamples=20)


@row("score_bbq")
def bbq(setup: Setup) -> Any:
    answers, groups = ("The pilot", "Not known", "A nurse"), (("pilot",), ("unknown",), ("nurse",))
    question = iw.BBQQuestion(
        RESPONSE, "Who flies a plane?", answers, groups, 0, "neg", "disambig", "Jobs", ("pilot",), "1"
    )
    return iw.score_bbq(setup.model, [question], resamples=20)


@row("train_bias_probes", "rank_bias_neurons", "bias_neuron_activity")
def bias_probes(setup: Setup) -> Any:
    return iw.train_bias_probes(setup.model, _bias_pairs(), splits=2)


def _bias_pairs() -> list[iw.SentencePair]:
    texts = [f"{one} {two}." for one in ("A pilot", "A nurse", "John", "Mary", "The dog") for two in ("flies", "helps")]
    return [iw.SentencePair(text, f"{text} Paris.", text) for text in texts]


@row("lope", "lope_edit", "ModelEdit", "LayerEdit")
def edited(setup: Setup) -> Any:
    probes = iw.train_bias_probes(setup.model, _bias_pairs(), splits=2)
    with iw.lope(setup.model, probes, k=2, threshold=0.0):
        return setup.model.run(setup.tokens).logits


@row("inlp_edit", "leace_edit", "subtraction_edit", "random_edit", "StreamEdit")
def edited_streams(setup: Setup) -> Any:
    model, pairs = setup.model, _bias_pairs()
    edits = [iw.inlp_edit(model, pairs, rounds=2), iw.leace_edit(model, pairs, layer=1),
             iw.subtraction_edit(model, iw.train_bias_probes(model, pairs, splits=2))]  # fmt: skip
    found = []
    for edit in [*edits, iw.random_edit(model, edits[1])]:
        with edit.applied(model):
            found.append(model.run(setup.tokens).logits)
    return found


@row("suppression_edit", "ethos_edit")
def edited_matrices(setup: Setup) -> Any:
    model, found = setup.model, []
    edits = [iw.suppression_edit(model, _bias_pairs()[:2], k=3, steps=2),
             iw.ethos_edit(model, ["A pilot flies."], ["A nurse helps."], steps=2, threshold=1.0)]  # fmt: skip
    for edit in edits:
        with edit.applied(model):
            found.append(model.run(setup.tokens).logits)
    return found


@row("compare_debiasing", "DebiasComparison")
def compared_edits(setup: Setup) -> Any:
    example = iw.StereoSetExample("a", "intrasentence", "jobs", "nurse", "The nurse is BLANK.", "The nurse is kind.",
                                  "The nurse is strong.", "The nurse is a stone.")  # fmt: skip
    edit = iw.leace_edit(setup.model, _bias_pairs(), layer=1)
    found = iw.compare_debiasing(setup.model, [edit], [example], texts=["A pilot flies."], resamples=20)
    return [row.perplexity for row in found.rows]


@row("as_lm_eval")
def harness(setup: Setup) -> Any:
    return iw.as_lm_eval(setup.model)._loglikelihood_tokens([(None, setup.tokens, [7, 8]), (None, [5], [9])])


# ---- logit lens


@row("response_probabilities")
def probabilities(setup: Setup) -> Any:
    return iw.response_probabilities(setup.model, PROMPT, RESPONSE)


@row("logit_lens")
def lens(setup: Setup) -> Any:
    return iw.logit_lens(setup.model, PROMPT, target=7, top=5)


@row("sweep")
def lens_over_prompts(setup: Setup) -> Any:
    return iw.sweep(functools.partial(iw.logit_lens, setup.model, target=7), [PROMPT, PROMPT[:3]]).values


@row("logit_lens", "save_translators", "load_translators")
def tuned_lens(setup: Setup) -> Any:
    model, generator = setup.model, torch.Generator().manual_seed(0)
    shapes = [(model.d_model, model.d_model), (model.d_model,)]
    weights, biases = (
        [(0.1 * torch.randn(shape, generator=generator)).to(model.device) for _ in range(model.n_layers)]
        for shape in shapes
    )
    with tempfile.TemporaryDirectory() as folder:
        translators = iw.load_translators(iw.save_translators(Path(folder) / "lens.safetensors", weights, biases))
        return iw.logit_lens(model, PROMPT, translators=translators, top=5)


@row("logit_lens")
def lens_with_hooks(setup: Setup) -> Any:
    with _hooked(setup.model):
        return iw.logit_lens(setup.model, PROMPT, target=7, top=5)


# ---- ablation and tracing


@row("ablate_modules")
def modules(setup: Setup) -> Any:
    return iw.ablate_modules(setup.model, QUESTION, 7)


@row("ablate_modules")
def modules_by_divergence(setup: Setup) -> Any:
    return iw.ablate_modules(setup.model, QUESTION, 7, kinds=["mlp"], metric="kl")


@row("ablate_modules")
def modules_with_hooks(setup: Setup) -> Any:
    with _hooked(setup.model):
        return iw.ablate_modules(setup.model, QUESTION, 7, kinds=["attn", "mlp"])


@row("ablate_heads")
def heads(setup: Setup) -> Any:
    return iw.ablate_heads(setup.model, QUESTION, 7, replacement="mean", reference=[PROMPT, RESPONSE], draws=2)


@row("ablate_neurons")
def neurons(setup: Setup) -> Any:
    first, *others = setup.tokens
    corrupted = [first, *reversed(others)]
    return iw.ablate_neurons(setup.model, setup.tokens, 7, layer=1, replacement="resample", corrupted=corrupted)


@row("causal_trace")
def tracing(setup: Setup) -> Any:
    return iw.causal_trace(setup.model, QUESTION, " capital", 7, samples=2)


@row("activation_patching")
def patching(setup: Setup) -> Any:
    first, *others = setup.tokens
    sites = ("resid_pre", "attn", "mlp", "head", "head_q", "head_k", "head_v", "pattern")
    return iw.activation_patching(setup.model, setup.tokens, [first, *reversed(others)], 7, foil=9, sites=sites)


@row("activation_patching")
def patching_of_pairs(setup: Setup) -> Any:
    texts = ["The capital of France is", "The capital of Italy is"]
    clean, corrupted = (setup.model.tokens(text)[-4:] for text in texts)
    return iw.activation_patching(setup.model, [clean, corrupted], [corrupted, clean], 7, foil=9, sites="head_k")


@row("patched_prediction")
def patched_cell(setup: Setup) -> Any:
    first, *others = setup.tokens
    return iw.patched_prediction(setup.model, setup.tokens, [first, *reversed(others)], "head_k", 1, head=0, position=2)


@row("path_patching")
def paths(setup: Setup) -> Any:
    first, *others = setup.tokens
    receivers = [("head_q", 2, 1), ("head_k", 2, 0), ("head_v", 2, 0), ("mlp", 1), "logits"]
    corrupted = [first, *reversed(others)]
    return iw.path_patching(
        setup.model, setup.tokens, corrupted, [(0, 1), ("mlp", 0)], receivers, 7, foil=9, separate=True
    )


@row("edge_attribution")
def estimated_edges(setup: Setup) -> Any:
    first, *others = setup.tokens
    corrupted = [first, *reversed(others)]
    return iw.edge_attribution(
        setup.model, setup.tokens, corrupted, 7, foil=9, method="integrated_gradients", steps=2, sample=3
    )


@row("activation_patching")
def estimated_patches(setup: Setup) -> Any:
    first, *others = setup.tokens
    sites = ("resid_pre", "head", "pattern")
    return iw.activation_patching(
        setup.model, setup.tokens, [first, *reversed(others)], 7, foil=9, sites=sites, method="attribution", sample=3
    )


@row("greedy_circuit")
def circuit(setup: Setup) -> Any:
    first, *others = setup.tokens
    return iw.greedy_circuit(setup.model, setup.tokens, [first, *reversed(others)], 7, foil=9, most=2, draws=3)


@row("circuit_faithfulness")
def named_circuit(setup: Setup) -> Any:
    first, *others = setup.tokens
    corrupted = [first, *reversed(others)]
    return iw.circuit_faithfulness(setup.model, setup.tokens, corrupted, ["head 0.1", "mlp 1"], 7, foil=9, draws=3)


@row("ablation_null")
def null(setup: Setup) -> Any:
    parts = [iw.Ablation("head", 1, index=2), iw.Ablation("head", 0, index=1)]
    return iw.ablation_null(setup.model, QUESTION, parts, 7, draws=5, replacement="mean", reference=[PROMPT])


@row("Ablation", "ablation", "ablated_prediction")
def ablated(setup: Setup) -> Any:
    model = setup.model
    ablations = [iw.Ablation("head", 1, index=2), iw.Ablation("mlp", 2), iw.Ablation("attn_to_mlp", 0)]
    with iw.ablation(model, ablations):
        written, saliency = model.generate(PROMPT, max_new_tokens=4), iw.prompt_saliency(model, PROMPT, " Mary.")
    return written, saliency, iw.ablated_prediction(model, PROMPT, ablations)


@row("ablation", "mean_ablation")
def mean_ablated(setup: Setup) -> Any:
    model = setup.model
    with iw.ablation(model, iw.mean_ablation(model, iw.Ablation("attn", 1), [PROMPT, RESPONSE])):
        return model.run(setup.tokens).logits, model.generate(PROMPT, max_new_tokens=4)


@row("ablation", "resample_ablation")
def resampled(setup: Setup) -> Any:
    model = setup.model
    one = iw.Ablation("neuron", 1, index=5, position=[1, 2])
    return iw.ablated_prediction(model, PROMPT, iw.resample_ablation(model, one, QUESTION))


# ---- attention


@row("attention_patterns")
def patterns(setup: Setup) -> Any:
    return iw.attention_patterns(setup.model, PROMPT, layers=[0, -1])


@row("head_scores")
def scores_of_heads(setup: Setup) -> Any:
    return iw.head_scores(setup.model, length=6, sequences=2)


@row("direct_logit_attribution")
def direct_attribution(setup: Setup) -> Any:
    return iw.direct_logit_attribution(setup.model, [PROMPT, QUESTION], 7, foil=8)


@row("head_writes")
def tokens_of_a_head(setup: Setup) -> Any:
    return iw.head_writes(setup.model, PROMPT, 1, 2, position=-2, top=3)


@row("attention_reasons")
def reasons(setup: Setup) -> Any:
    return iw.attention_reasons(setup.model, PROMPT, 1, 2, -1, 3)


@row("head_measures")
def measures_of_heads(setup: Setup) -> Any:
    measures = ("induction", "direct_attribution", "ablation_effect")
    return iw.head_measures(setup.model, PROMPT, measures=measures, length=6, sequences=2)


@row("attention_in_texts")
def strongest_in_texts(setup: Setup) -> Any:
    return iw.attention_in_texts(setup.model, [PROMPT, QUESTION], layer=1)


@row("weights_against_text")
def words_in_texts(setup: Setup) -> Any:
    pairs = iw.head_word_pairs(setup.model, words=WORDS, vectors=VECTORS, top=20, keep=9)
    return iw.weights_against_text(setup.model, [" ".join(WORDS[:20]), " ".join(WORDS[5:30])], pairs, shuffles=2)


@row("massive_activations")
def largest_activations(setup: Setup) -> Any:
    return iw.massive_activations(setup.model, PROMPT, others=1, references=1)


# ---- token decomposition


@row("decompose_tokens")
def decomposition(setup: Setup) -> Any:
    return iw.decompose_tokens(setup.model, QUESTION, target=7), iw.decompose_tokens(
        setup.model, QUESTION, lens="frozen"
    )


@row("decompose_logit")
def decomposition_of_a_logit(setup: Setup) -> Any:
    return iw.decompose_logit(setup.model, QUESTION, 7, foil=8, draws=5)


# ---- weights: head words and FFN concepts


@row("head_word_pairs")
def head_words(setup: Setup) -> Any:
    return iw.head_word_pairs(setup.model, words=WORDS, vectors=VECTORS, top=20, keep=9)


@row("head_word_chance")
def head_words_by_chance(setup: Setup) -> Any:
    return iw.head_word_chance(setup.model, words=WORDS, vectors=VECTORS, top=20, shuffles=3)


@row("compare_heads", "verb_table")
def heads_compared(setup: Setup) -> Any:
    options = {"words": WORDS, "vectors": VECTORS, "top": 20, "keep": 9, "resamples": 99}
    return iw.compare_heads(*setup.pair, **options), iw.verb_table(*setup.pair, **options)


@row("ffn_concepts")
def ffn_concepts(setup: Setup) -> Any:
    return iw.ffn_concepts(setup.model, words=WORDS, rank=6, top=6)


@row("compare_concepts", "level_table", "scenario_table")
def concepts_compared(setup: Setup) -> Any:
    options: dict[str, Any] = {"words": WORDS, "rank": 5, "top": 6, "resamples": 99}
    annotator = iw.RuleAnnotator()
    return (
        iw.compare_concepts(*setup.pair, **options),
        iw.level_table(*setup.pair, annotator=annotator, **options),
        iw.scenario_table(*setup.pair, annotator=annotator, **options),
    )


@row("neuron_tokens")
def neuron_tokens(setup: Setup) -> Any:
    return iw.neuron_tokens(setup.model, layer=1, top=5)


@row("neuron_effects")
def neuron_effects(setup: Setup) -> Any:
    return iw.neuron_effects(setup.model, QUESTION, 7, layer=1)


@row("text_activations")
def texts_of_neurons_and_directions(setup: Setup) -> Any:
    directions = np.random.default_rng(0).normal(size=(2, setup.model.d_model))
    texts = [QUESTION, QUESTION]
    return iw.text_activations(setup.model, texts, layer=1), iw.text_activations(
        setup.model, texts, layer=1, directions=directions
    )


# ---- layers alike


TASKS = (
    iw.TaskTexts("facts", ("The capital of France is", "A pilot flies", "One two", "Once there was"), (" Paris",) * 4),
    iw.TaskTexts("words", ("store", "a dog", "the river was", "Mary and John"), (" house",) * 4),
)


@row("layer_similarity", "layer_projections")
def layers_alike(setup: Setup) -> Any:
    texts = [text for task in TASKS for text in task.texts]
    return iw.layer_similarity(*setup.pair, texts), iw.layer_projections(setup.model, TASKS)


@row("tune_control_models", "ControlModels", "mossa")
def control_models(setup: Setup) -> Any:
    with tempfile.TemporaryDirectory() as folder:
        options: dict[str, Any] = {"steps": 2, "batch_size": 2, "rank": 2, "folder": folder}
        return iw.mossa(setup.other, iw.tune_control_models(setup.model, TASKS, **options), TASKS)


# ---- concept directions


@row("concept_directions")
def directions(setup: Setup) -> Any:
    return setup.concepts(), iw.concept_directions(setup.model, CONCEPTS, layer=1, method="discriminant", shuffles=2)


@row("concept_directions", "HiddenStateCache", "last_states")
def kept_states(setup: Setup) -> Any:
    states = iw.HiddenStateCache(setup.model)
    found = [iw.concept_directions(setup.model, CONCEPTS, layer=n, shuffles=2, states=states) for n in (1, 3, 2)]
    return found, iw.last_states(setup.model, [PROMPT, QUESTION], [0, 2, 3], positions=[-1, 4])


@row("read_prompt_concepts", "decompose_prompt")
def concepts_read(setup: Setup) -> Any:
    concepts = setup.concepts()
    return (
        iw.read_prompt_concepts(setup.model, concepts, PROMPT),
        iw.decompose_prompt(setup.model, concepts, PROMPT, n_concepts=2),
    )


@row("steer")
def steered(setup: Setup) -> Any:
    direction = torch.from_numpy(setup.direction()).to(setup.model.device, setup.model.dtype)
    with iw.steer(setup.model, direction, layer=[1, 2], strength=2.0):
        return setup.model.run(setup.tokens).logits, setup.model.generate(PROMPT, max_new_tokens=4)


@row("erase")
def erased(setup: Setup) -> Any:
    with iw.erase(setup.model, setup.direction(), layer=1, positions=[2, 3]):
        return setup.model.run(setup.tokens).logits, setup.model.generate(PROMPT, max_new_tokens=4)


@row("compare_steering")
def steering_compared(setup: Setup) -> Any:
    return iw.compare_steering(setup.model, setup.concepts(), "dog", PROMPT, max_new_tokens=4)


# ---- mixture of depths


@row("untrained_mod", "routing", "ModModel")
def routing(setup: Setup) -> Any:
    return iw.routing(setup.mixture(), PROMPT), iw.routing(setup.mixture(1), PROMPT)


@row("routing_speed")
def routing_speed(setup: Setup) -> Any:
    ticks = itertools.count()
    return iw.routing_speed(setup.mixture(), PROMPT, max_new_tokens=3, repeats=1, clock=lambda: float(next(ticks)))


@row("untrained_mod", "prompt_saliency", "ablate_modules")
def mixture_analysed(setup: Setup) -> Any:
    mixture = setup.mixture()
    return (
        iw.prompt_saliency(mixture, PROMPT, " Mary.", method="first_order"),
        iw.ablate_modules(mixture, QUESTION, 7, kinds=["mlp"]),
        mixture.generate(PROMPT, max_new_tokens=3),
    )


@row("solve")
def solving(setup: Setup) -> Any:
    return iw.solve(setup.model, PROBLEMS, max_new_tokens=3)


@row("cluster_hidden_states", "state_map")
def clusters(setup: Setup) -> Any:
    instances = _instructions()
    found = iw.cluster_hidden_states(setup.model, instances, layers=[1, -1], labels=["task"])
    return found.f1_matched, iw.state_map(setup.model, instances, layer=-1).xy


@row("knn_task")
def neighbours_of_instances(setup: Setup) -> Any:
    instances = _instructions()
    return iw.knn_task(setup.model, instances[::2], instances[1::2], k=2)


def _instructions() -> list[iw.InstructionInstance]:
    words, names = ("A pilot", "A nurse", "The dog"), (" Paris", " Mary", " John", " people")
    return [iw.InstructionInstance(f"{word} flies. {name}", name, word, word, name) for word in words for name in names]


@row("train_instruction_model", "clusters_over_training", "InstructionRun")
def instruction_training(setup: Setup) -> Any:
    task = iw.make_instruction_task(tasks=3, subset_tasks=2, validation_tasks=1, hard_tasks=1, max_distributions=1)
    sizes: dict[str, Any] = {"width": 16, "layers": 1, "heads": 2, "steps": 2, "checkpoints": 2}
    with tempfile.TemporaryDirectory() as folder:
        run = iw.train_instruction_model(task, folder, **sizes, device=setup.device)
        # not setup.backend: HookedTransformer has no GPT-2 whose MLP is not four times as wide as the stream
        models = {step: iw.load_model(path, device=setup.device) for step, path in run.checkpoints.items()}
        over = iw.clusters_over_training(models, task, k=3, n_init=2)
        # AdamW makes a rounding of a gradient near 0 a step: of the trained weights only the losses are compared
        logits = models[0].run(models[0].tokens(task.training()[0].prompt)).logits
        return run.history.loss[1:], over.same_task_chance, logits


@row("tune_mod", "ModReport")
def tuning(setup: Setup) -> Any:
    model, report = iw.tune_mod(setup.model, EXAMPLES, lora=2, distill=0.1, **TUNING)
    with tempfile.TemporaryDirectory() as folder:
        again = iw.load_model(model.save(Path(folder) / "mixture"), device=setup.device, backend=setup.backend)
        return report, model.run(setup.tokens).logits, again.run(setup.tokens).logits


@row("mod_grid")
def tuning_grid(setup: Setup) -> Any:
    options = {name: value for name, value in TUNING.items() if name != "k"}
    return iw.mod_grid(setup.model, EXAMPLES, PROBLEMS, ks=(1, 2), max_new_tokens=2, **options)


@row("mod_ablations")
def tuning_ablations(setup: Setup) -> Any:
    variants: dict[str, dict[str, Any]] = {"MoD": {}, "without norms": {"train_norms": False}}
    return iw.mod_ablations(
        setup.model, EXAMPLES, PROBLEMS, variants=variants, seeds=(0, 1), max_new_tokens=2, **TUNING
    )


@row("late_layer_losses")
def late_layers(setup: Setup) -> Any:
    return iw.late_layer_losses(setup.model, EXAMPLES, problems=PROBLEMS, lora=2, max_new_tokens=2, **TUNING)


@contextmanager
def _hooked(model: iw.Model) -> Iterator[None]:
    """A hook of the user on the model, which changes what it computes."""
    point = model.tl_model.hook_dict["blocks.1.hook_resid_pre"]
    point.add_hook(lambda value, hook: value * 1.1)
    try:
        yield
    finally:
        point.remove_hooks()


# ---- probes


@row("probe")
def probe(setup: Setup) -> Any:
    model = setup.model
    return [
        probes.attention_entropy.analysis(model, PROMPT),
        probes.direct_logit_attribution.analysis(model, PROMPT, " the"),
        probes.refusal_direction.analysis(model, PROMPT, ["One two.", "A dog."], ["Paris.", "Rome is"], 2),
        probes.patchscope.analysis(model, PROMPT, 3, layer=2),
        probes.lens.analysis(model, PROMPT),
    ]


@row("train_probe")
def train_probe(setup: Setup) -> Any:
    texts = [" ".join(words) for words in itertools.permutations(("one", "two", "three", "four", "five"), 3)]
    result = iw.train_probe(setup.model, texts, ["one" in text for text in texts], layer=2, seeds=[0, 1], folds=2)
    return result.weights, result.bias, result.accuracy > 0.6
