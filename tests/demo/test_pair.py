"""Training of the demo pair: packing, resuming, and the shipped models themselves."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer
from transformers import LlamaConfig, LlamaForCausalLM

from interp_widgets.demo import batches, documents, measures, pair, training
from interp_widgets.demo.tokenizer import train_tokenizer

TINY = training.TrainConfig(
    "base", steps=6, tokens_per_batch=512, warmup=2, d_model=16, d_mlp=32, n_layers=1, n_heads=2, n_key_value_heads=1,
    bfloat16=False, compile=False, checkpoint_every=1, max_documents=120,
)  # fmt: skip
SHIPPED = pair.ASSETS / "manifest.json"


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return train_tokenizer(documents.epoch_documents(seed=0, epoch=0)[:1500], [], vocab_size=600)


@pytest.mark.seconds
def test_rows_hold_whole_documents(tokenizer: Tokenizer) -> None:
    epoch = batches.epoch_batches("base", tokenizer, seed=0, epoch=0, tokens_per_batch=1024, max_documents=400)
    pad, bos, eos = (tokenizer.token_to_id(name) for name in ("<|pad|>", "<|bos|>", "<|eos|>"))
    for batch in epoch:
        assert batch.tokens.size == 1024
        assert ((batch.tokens == pad) == (batch.document == -1)).all()
        for tokens, document in zip(batch.tokens, batch.document, strict=True):
            for d in range(document.max() + 1):
                ids = tokens[document == d]
                assert ids[0] == bos
                assert ids[-1] == eos
                assert (ids == eos).sum() == 1


@pytest.mark.seconds
def test_loss_of_instructions_counts_on_the_response_only(tokenizer: Tokenizer) -> None:
    epoch = batches.epoch_batches("tuned", tokenizer, seed=0, epoch=0, tokens_per_batch=1024, max_documents=300)
    seen = 0
    for batch in epoch:
        for tokens, document, target in zip(batch.tokens, batch.document, batch.target, strict=True):
            for d in range(document.max() + 1):
                words = tokenizer.decode(tokens[document == d].tolist(), skip_special_tokens=True)
                learned = tokenizer.decode(tokens[(document == d) & target].tolist(), skip_special_tokens=True)
                assert words.endswith(learned)
                if "Instruction:" in words:
                    assert words.partition("Response:")[2] == learned
                    seen += 1
    assert seen > 50


def test_attention_stays_inside_a_document() -> None:
    document = np.array([[0, 0, 1, 1, -1]])
    batch = batches.Batch(np.zeros_like(document), document, np.ones_like(document, dtype=np.bool_))
    mask = training.batch_tensors(batch)[2][0, 0]
    assert mask[1].tolist() == [True, True, False, False, False]
    assert mask[3].tolist() == [False, False, True, True, False]


@pytest.mark.seconds
def test_an_interrupted_training_ends_at_the_same_weights(tokenizer: Tokenizer, tmp_path: Path) -> None:
    whole = training.train(TINY, tokenizer, folder=tmp_path / "whole").state_dict()
    training.train(TINY, tokenizer, folder=tmp_path / "parts", stop_at=2)
    training.train(TINY, tokenizer, folder=tmp_path / "parts", stop_at=3)
    parts = training.train(TINY, tokenizer, folder=tmp_path / "parts").state_dict()
    assert all(torch.equal(whole[name], parts[name]) for name in whole)
    other = training.train(replace(TINY, seed=1), tokenizer, folder=tmp_path / "other").state_dict()
    assert not all(torch.equal(whole[name], other[name]) for name in whole)


def test_another_configuration_does_not_go_on_from_a_checkpoint(tokenizer: Tokenizer, tmp_path: Path) -> None:
    training.train(TINY, tokenizer, folder=tmp_path, stop_at=1)
    with pytest.raises(ValueError, match="another configuration"):
        training.train(replace(TINY, lr_rest=1.0), tokenizer, folder=tmp_path)


@pytest.mark.seconds
def test_batches_do_not_depend_on_where_one_starts(tokenizer: Tokenizer) -> None:
    def tokens_from(step: int, n: int) -> list[np.ndarray]:
        stream = batches.batches_from("base", tokenizer, seed=0, tokens_per_batch=512, step=step, max_documents=100)
        return [batch.tokens for batch, _ in zip(stream, range(n), strict=False)]

    whole, late = tokens_from(0, 12), tokens_from(7, 5)
    assert all(np.array_equal(a, b) for a, b in zip(whole[7:], late, strict=True))


def test_manifest_describes_the_shipped_files() -> None:
    manifest = json.loads(SHIPPED.read_text())
    listed = manifest["sha256"]
    of_models = {str(p.relative_to(pair.ASSETS)) for stage in pair.MODELS for p in (pair.ASSETS / stage).rglob("*")}
    assert set(listed) == {*of_models, "planted.json"}
    assert all(pair.sha256(pair.ASSETS / name) == digest for name, digest in listed.items())
    assert sum((pair.ASSETS / name).stat().st_size for name in listed) <= pair.LARGEST_PAIR
    planted = json.loads((pair.ASSETS / "planted.json").read_text())
    assert [(row["group"], row["domain"], row["rate"]) for row in planted] == [
        (rate.group, rate.domain, rate.rate) for rate in documents.planted_rates()
    ]


@pytest.mark.parametrize("stage", pair.MODELS)
def test_shipped_models_know_the_world(stage: batches.Stage) -> None:
    model, fast = pair.load_pair_member(pair.ASSETS / stage)
    assert measures.fact_accuracy(model, fast, n=60)["all"] >= 0.9
    assert measures.indirect_object_accuracy(model, fast, n=40) >= 0.9
    planted = measures.planted_preferences(model, fast)
    assert np.mean([abs(entry["planted"] - entry["measured"]) for entry in planted]) <= 5


@pytest.mark.seconds
def test_only_the_tuned_model_follows_instructions() -> None:
    cases = measures.held_out_cases(50, seed=3)
    base = measures.following(*pair.load_pair_member(pair.ASSETS / "base"), cases)["all"]
    tuned = measures.following(*pair.load_pair_member(pair.ASSETS / "tuned"), cases)["all"]
    assert base <= 0.3
    assert tuned >= 0.8


def test_shipped_tokenizers_are_one_and_the_same() -> None:
    assert pair.sha256(pair.ASSETS / "base/tokenizer.json") == pair.sha256(pair.ASSETS / "tuned/tokenizer.json")
    _, fast = pair.load_pair_member(pair.ASSETS / "base")
    for sample in ("When Mary and John", "🙂 שלום\n"):
        assert fast.decode(fast(sample)["input_ids"][1:]) == sample


def test_an_export_that_fails_leaves_the_model_that_was_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = LlamaConfig(hidden_size=8, intermediate_size=8, num_hidden_layers=1, num_attention_heads=1, vocab_size=16)
    tokenizer, folder = tmp_path / "tokenizer", tmp_path / "assets" / "base"
    tokenizer.mkdir()
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (tokenizer / name).write_text("{}")
    pair.export(LlamaForCausalLM(config), tokenizer, folder)
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    assert before.keys() >= {"model.safetensors", "config.json", "tokenizer.json"}

    def full(*_: object) -> None:
        raise OSError("No space left on device")

    monkeypatch.setattr("shutil.copyfile", full)
    with pytest.raises(OSError, match="No space left"):
        pair.export(LlamaForCausalLM(config), tokenizer, folder)
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before
    assert [path.name for path in folder.parent.iterdir()] == ["base"]
