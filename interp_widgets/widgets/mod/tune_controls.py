"""The options of the Tune tab, which the Grid tab uses too."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import ipywidgets as W

from ..base.controls import row, shown_if
from ..base.workbench import model_name

if TYPE_CHECKING:
    from .viewer import MoDRoutingViewer


def option_rows(panel: MoDRoutingViewer) -> list[Any]:
    """Rows of controls, each bound to its trait."""
    return [row(*_what(panel)), row(*_mixture(panel)), row(*_how(panel))]


def _short(box: Any) -> Any:
    box.add_class("iw-short")
    return box


def _what(panel: MoDRoutingViewer) -> list[Any]:
    """Base model and data set."""
    parts: list[Any] = []
    if len(panel.models) > 1:
        names = [(f"{'AB'[slot]}: {model_name(model)}", slot) for slot, model in enumerate(panel.models)]
        parts.append(panel.bind(W.Dropdown(description="Base model", options=names), "slot"))
    else:
        parts.append(W.Label(f"Base model: {model_name(panel.models[0])}"))
    if panel.dataset is not None:
        return [*parts, W.Label(f"Data set: {len(panel.dataset):,} examples as given")]
    count = panel.bind(
        W.BoundedIntText(
            description="Demo tasks", min=1, max=100_000, tooltip="How many of the demo's tasks are learned"
        ),
        "examples",
    )
    file = panel.bind(
        W.Text(description="or a data file", continuous_update=False, placeholder="problems as .json or .jsonl"),
        "data_file",
    )
    file.add_class("iw-grow")

    def fit(_: Any) -> None:
        count.disabled = bool(panel.data_file.strip())

    panel.watch(panel, "data_file", fit)
    fit(None)
    return [*parts, _short(count), file]


def _mixture(panel: MoDRoutingViewer) -> list[Any]:
    most = max(int(model.n_layers) for model in panel.models)
    k = W.BoundedIntText(description="k", min=1, max=10_000, tooltip=f"Routes: the last k layers, 1 to {most}")
    top = W.BoundedIntText(
        description="top-K (0: all)", min=0, max=10_000, tooltip="Routes that each token uses; 0: all k"
    )
    lora = panel.bind(W.Checkbox(description="LoRA", indent=False), "lora")
    rank = _short(panel.bind(W.BoundedIntText(description="rank", min=1, max=4096), "rank"))
    layers = panel.bind(
        W.Dropdown(
            description="on",
            options=[("the last k layers", "last"), ("the layers below", "below"), ("all layers", "all")],
        ),
        "lora_layers",
    )
    distill = panel.bind(
        W.FloatText(description="λ", step=1e-4, tooltip="Weight of the distillation term: each earlier route's "
                    "divergence from the last layer; 0 leaves it out"),
        "distill",
    )  # fmt: skip

    def fit(_: Any) -> None:
        for part in (rank, layers):
            shown_if(part, panel.lora)

    panel.watch(panel, "lora", fit)
    fit(None)
    return [_short(panel.bind(k, "k")), _short(panel.bind(top, "top_k")), _short(distill), lora, rank, layers]


def _how(panel: MoDRoutingViewer) -> list[Any]:
    steps = W.BoundedIntText(
        description="steps", min=1, max=10_000_000, tooltip="In all, those before a resume included"
    )
    batch = W.BoundedIntText(description="batch", min=1, max=4096, tooltip="Examples per step")
    rate = W.FloatText(description="learning rate", step=1e-4)
    seed = W.BoundedIntText(description="seed", min=0, max=2**31 - 1)
    named = ((steps, "steps"), (batch, "batch_size"), (rate, "learning_rate"), (seed, "seed"))
    return [_short(panel.bind(box, name)) for box, name in named]
