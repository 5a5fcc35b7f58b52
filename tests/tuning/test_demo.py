"""Training of the demo pair: packing, resuming, and the shipped models themselves."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer

from interp_widgets.data import text, world
from interp_widgets.data.tokenizer import train_tokenizer
from interp_widgets.tuning import demo, demo_data, demo_report, demo_train

TINY = demo_train.TrainConfig(
    "base", steps=6, tokens_per_batch=512, warmup=2, d_model=16, d_mlp=32, n_layers=1, n_heads=2, n_key_value_heads=1,
    bfloat16=False, compile=False, checkpoint_every=1, max_documents=120,
)  # fmt: skip
SHIPPED = demo.ASSETS / "manifest.json"


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return train_tokenizer(text.epoch_documents(seed=0, epoch=0)[:1500], [], vocab_size=600)


def test_rows_hold_whole_documents(tokenizer: Tokenizer) -> None:
    batches = demo_data.epoch_batches("base", tokenizer, seed=0, epoch=0, tokens_per_batch=1024, max_documents=400)
    pad, bos, eos = (tokenizer.token_to_id(name) for name in ("<|pad|>", "<|bos|>", "<|eos|>"))
    for batch in batches:
        assert batch.tokens.size == 1024
        assert ((batch.tokens == pad) == (batch.document == -1)).all()
        for tokens, document in zip(batch.tokens, batch.document, strict=True):
            for d in range(document.max() + 1):
                ids = tokens[document == d]
                assert ids[0] == bos
                assert ids[-1] == eos
                assert (ids == eos).sum() == 1


def test_loss_of_instructions_counts_on_the_response_only(tokenizer: Tokenizer) -> None:
    batches = demo_data.epoch_batches("tuned", tokenizer, seed=0, epoch=0, tokens_per_batch=1024, max_documents=300)
    seen = 0
    for batch in batches:
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
    batch = demo_data.Batch(np.zeros_like(document), document, np.ones_like(document, dtype=np.bool_))
    mask = demo_train.batch_tensors(batch)[2][0, 0]
    assert mask[1].tolist() == [True, True, False, False, False]
    assert mask[3].tolist() == [False, False, True, True, False]


def test_an_interrupted_training_ends_at_the_same_weights(tokenizer: Tokenizer, tmp_path: Path) -> None:
    whole = demo_train.train(TINY, tokenizer, folder=tmp_path / "whole").state_dict()
    demo_train.train(TINY, tokenizer, folder=tmp_path / "parts", stop_at=2)
    demo_train.train(TINY, tokenizer, folder=tmp_path / "parts", stop_at=3)
    parts = demo_train.train(TINY, tokenizer, folder=tmp_path / "parts").state_dict()
    assert all(torch.equal(whole[name], parts[name]) for name in whole)
    other = demo_train.train(replace(TINY, seed=1), tokenizer, folder=tmp_path / "other").state_dict()
    assert not all(torch.equal(whole[name], other[name]) for name in whole)


def test_another_configuration_does_not_go_on_from_a_checkpoint(tokenizer: Tokenizer, tmp_path: Path) -> None:
    demo_train.train(TINY, tokenizer, folder=tmp_path, stop_at=1)
    with pytest.raises(ValueError, match="another configuration"):
        demo_train.train(replace(TINY, lr_rest=1.0), tokenizer, folder=tmp_path)


def test_batches_do_not_depend_on_where_one_starts(tokenizer: Tokenizer) -> None:
    def stream(step: int, n: int) -> list[np.ndarray]:
        batches = demo_data.batches_from("base", tokenizer, seed=0, tokens_per_batch=512, step=step, max_documents=100)
        return [batch.tokens for batch, _ in zip(batches, range(n), strict=False)]

    whole, late = stream(0, 12), stream(7, 5)
    assert all(np.array_equal(a, b) for a, b in zip(whole[7:], late, strict=True))


def test_manifest_describes_the_shipped_files() -> None:
    manifest = json.loads(SHIPPED.read_text())
    listed = manifest["sha256"]
    present = {
        str(p.relative_to(demo.ASSETS)) for p in demo.ASSETS.rglob("*") if p.is_file() and p.name != "manifest.json"
    }
    assert set(listed) == present
    assert all(demo.sha256(demo.ASSETS / name) == digest for name, digest in listed.items())
    assert sum((demo.ASSETS / name).stat().st_size for name in listed) <= demo.LARGEST_PAIR
    planted = json.loads((demo.ASSETS / "planted.json").read_text())
    assert [(row["group"], row["domain"], row["rate"]) for row in planted] == [
        (rate.group, rate.domain, rate.rate) for rate in world.planted_rates()
    ]


@pytest.mark.parametrize("stage", demo.MODELS)
def test_shipped_models_know_the_world(stage: demo_data.Stage) -> None:
    model, fast = demo.load_pair_member(demo.ASSETS / stage)
    assert demo_report.fact_accuracy(model, fast, n=60)["all"] >= 0.9
    assert demo_report.indirect_object_accuracy(model, fast, n=40) >= 0.9
    planted = demo_report.planted_preferences(model, fast)
    assert np.mean([abs(entry["planted"] - entry["measured"]) for entry in planted]) <= 5


def test_only_the_tuned_model_follows_instructions() -> None:
    cases = demo_report.held_out_cases(50, seed=3)
    base = demo_report.following(*demo.load_pair_member(demo.ASSETS / "base"), cases)["all"]
    tuned = demo_report.following(*demo.load_pair_member(demo.ASSETS / "tuned"), cases)["all"]
    assert base <= 0.3
    assert tuned >= 0.8


def test_shipped_tokenizers_are_one_and_the_same() -> None:
    assert demo.sha256(demo.ASSETS / "base/tokenizer.json") == demo.sha256(demo.ASSETS / "tuned/tokenizer.json")
    _, fast = demo.load_pair_member(demo.ASSETS / "base")
    for sample in ("When Mary and John", "🙂 שלום\n"):
        assert fast.decode(fast(sample)["input_ids"][1:]) == sample
