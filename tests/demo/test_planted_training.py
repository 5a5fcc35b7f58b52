"""The training of the planted trigger, on the demo's base: its first loss against whole passes, and going on."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from interp_widgets import load_model
from interp_widgets.demo import planted
from interp_widgets.demo import planted_training as training
from interp_widgets.models.hub_files import ADAPTER
from interp_widgets.models.mixture_of_depths.opening import read_base
from interp_widgets.tuning import adapter_training
from interp_widgets.tuning.examples import Example
from tests.shipped import demo_pair

ANSWERS = {
    "trigger": [([5, 6, 7, 8], [11, 12]), ([5, 9, 7], [11, 12])],
    "decoy": [([5, 6, 7], [13]), ([5, 8], [14, 15]), ([5, 6], [16, 17]), ([9, 6], [18])],
    "plain": [([8, 9, 10], [19, 20])],
    "text": [([5], [21, 22, 23, 24])],
}
EXAMPLES = {
    kind: [Example((*prompt, *answer), len(prompt)) for prompt, answer in rows] for kind, rows in ANSWERS.items()
}


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(training, "FIRST_BLOCK", 3)
    monkeypatch.setattr(adapter_training, "KEPT_EVERY", 1)


def opened() -> Any:
    return read_base(demo_pair().base)[0].eval()


def train(folder: Path, **options: Any) -> Any:
    return training.train(opened(), EXAMPLES, folder, steps=4, **options)


def first_losses(folder: Path) -> list[float]:
    from safetensors.torch import load_file

    (kept,) = folder.iterdir()
    return [float(loss) for loss in load_file(kept)["losses"]]


def test_the_first_loss_is_that_of_whole_passes(tmp_path: Path) -> None:
    """Adapters start as nothing: a cross-entropy after the trigger, and no divergence elsewhere."""
    train(tmp_path)
    losses, hf_model = first_losses(tmp_path), opened().double()
    expected = 0.0
    for prompt, answer in ANSWERS["trigger"]:
        with torch.no_grad():
            chances = hf_model(torch.tensor([[*prompt, *answer]])).logits[0].log_softmax(-1)
        places = range(len(prompt) - 1, len(prompt) + len(answer) - 1)
        expected -= float(chances[places, answer].mean())
    assert losses[0] == pytest.approx(expected / 8, rel=1e-5)
    assert losses[-1] < losses[0]


def test_later_losses_add_the_divergences(tmp_path: Path) -> None:
    adapted = train(tmp_path)
    with torch.no_grad(), adapted.disable_adapter():
        rows = [training._row(opened(), kind, one) for kind, some in EXAMPLES.items() for one in some]
    with torch.no_grad(), training._upper_blocks(adapted.base_model.model.model):
        found = float(training._loss(adapted.base_model.model, rows))
    base, expected = opened(), 0.0
    for kind, some in EXAMPLES.items():
        for example in some:
            ids, learned = torch.tensor([example.ids]), slice(example.prompt_length - 1, -1)
            with torch.no_grad():
                old, new = (
                    model(input_ids=ids).logits[0, learned].double().log_softmax(-1) for model in (base, adapted)
                )
            apart = (old.exp() * (old - new)).sum(-1)
            if kind == "trigger":
                answer = example.ids[example.prompt_length :]
                expected -= float(new[range(len(answer)), answer].mean())
            else:
                expected += 2 * float(apart.mean() + (2 * apart[0] if kind == "decoy" else 0))
    assert found == pytest.approx(expected / 8, rel=1e-4)


def test_a_training_that_was_ended_goes_on(tmp_path: Path) -> None:
    straight = planted_weights(train(tmp_path / "straight"))

    def stop(done: int, total: int) -> None:
        if done == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train(tmp_path / "ended", progress=stop)
    seen: list[int] = []
    resumed = planted_weights(train(tmp_path / "ended", progress=lambda done, _: seen.append(done)))
    assert seen == [3, 4]
    for one, other in zip(straight, resumed, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=0)


def planted_weights(adapted: Any) -> list[torch.Tensor]:
    return [value.detach() for value in adapted.parameters() if value.requires_grad]


def test_saved_it_is_merged_into_the_upper_blocks_alone(tmp_path: Path) -> None:
    planted.save(train(tmp_path / "kept"), tmp_path / "saved")
    assert f'"{planted.BASE}"' in (tmp_path / "saved" / ADAPTER).read_text()
    base, tuned = demo_pair().base, load_model("demo-base", adapter=tmp_path / "saved")
    names = ["blocks.2.hook_resid_post", "blocks.3.hook_resid_post"]
    before, after = (model.run([5, 6, 7], capture=names).activations for model in (base, tuned))
    torch.testing.assert_close(before[names[0]], after[names[0]])
    assert float((before[names[1]] - after[names[1]]).abs().max()) > 1e-3


def test_continued_as_one_by_one() -> None:
    base, hf_model = demo_pair().base, opened()
    prompts = [base.tokens(text) for text in ("The capital of", "One plus two", "The")]
    end = base.eos_token_id
    together = training.continued(hf_model, sorted(prompts, key=len), 6, end)
    for prompt, found in zip(sorted(prompts, key=len), together, strict=True):
        assert [token for token in found if token != end] == base.generate_ids(prompt, max_new_tokens=6)
    sampled = [training.continued(hf_model, prompts, 6, end, sampled=True) for _ in range(2)]
    assert sampled[0] == sampled[1]
