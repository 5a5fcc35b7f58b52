"""Runs of a circuit in which all edges but the kept ones are cut: their receivers read the corrupted output."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from interp_widgets.models.engine import Reader, Sender, Trace, trace
from interp_widgets.models.model import Model
from interp_widgets.models.patching import Site, site_hook

from .truth import ROWS, circuit_edges, reader_of, sender_of

Edit = Callable[[Tensor], Tensor]


@torch.no_grad()
def leads_with_edges(model: Model, case: Any, kept: NDArray[np.bool_]) -> NDArray[np.float64]:
    """(runs,) logit of the answer minus that of the foil with only some edges kept.

    A receiver reads what its kept edges' senders write in this run, and what all others write in the corrupted run.
    With every edge kept this is the clean run, with none the corrupted one.

    Args:
        model: a circuit's model.
        case: with its prompt, corrupted prompt, answer and foil.
        kept: (runs, edges), in the order of `circuit_edges`.
    """
    ids = {text: model.tokens(text) for text in (case.prompt, case.corrupted)}
    clean, corrupted = (trace(model, model.token_embeddings(one)[None]) for one in ids.values())
    answer, foil = (model.tokens(word, prepend_bos=False)[0] for word in (case.answer, case.foil))
    leads = []
    for start in range(0, len(kept), ROWS):
        run = _CutRun(model, clean, corrupted, torch.from_numpy(~kept[start : start + ROWS]).to(model.device))
        rows = clean.embeddings.expand(run.count * (1 + run.shadows), -1, -1)
        logits = model.run(ids[case.prompt], embeddings=rows, edit=run.edits()).logits[run.count : 2 * run.count, -1]
        leads.append((logits[:, answer] - logits[:, foil]).double().cpu().numpy())
    return np.concatenate(leads)


class _CutRun:
    """A batch of runs with a row for each of them, and behind these a block of rows for each receiver of a layer, whose
    stream is the one that the receiver reads."""

    def __init__(self, model: Model, clean: Trace, corrupted: Trace, cut: Tensor) -> None:
        self.model, self.corrupted, self.cut, self.count = model, corrupted, cut, len(cut)
        self.edges = [(sender_of(sender), reader_of(model, receiver)) for sender, receiver in circuit_edges(model)]
        readers = dict.fromkeys(reader for _, reader in self.edges)
        self.readers = {
            layer: [reader for reader in readers if reader[1] == layer] for layer in range(model.n_layers + 1)
        }
        self.shadows = max(map(len, self.readers.values()))
        self.missing: dict[Sender, Tensor] = {("embeddings", -1, 0): corrupted.resid[0] - clean.resid[0]}
        """By sender (runs or 1, tokens, d_model) the corrupted output minus that of this run."""

    def edits(self) -> dict[str, Edit]:
        """By hook what is changed there."""
        named: dict[tuple[Site, int], Edit] = {("resid", layer): self._reading(layer) for layer in self.readers}
        for layer in range(self.model.n_layers):
            for site in ("q", "k", "v"):
                named[site, layer] = self._taking(site, layer)
            named["head", layer] = self._writing_heads(layer)
            named["attn", layer] = self._reading_mlp(layer)
            named["mlp", layer] = self._writing_mlp(layer)
        return {site_hook(site, layer, self.model.n_layers): edit for (site, layer), edit in named.items()}

    def _block(self, reader: Reader) -> slice:
        number = 1 + self.readers[reader[1]].index(reader)
        return slice(number * self.count, (number + 1) * self.count)

    def _replaced(self, reader: Reader, layers: Callable[[int], bool]) -> Tensor:
        """(runs, tokens, d_model) by how much the cut edges from some layers change what a reader reads."""
        total = torch.zeros_like(self.missing["embeddings", -1, 0]).repeat(self.count, 1, 1)
        for number, (sender, other) in enumerate(self.edges):
            if other == reader and layers(sender[1]):
                total += self.cut[:, number, None, None] * self.missing[sender]
        return total

    def _reading(self, layer: int) -> Edit:
        def edit(value: Tensor) -> Tensor:
            new = value[: self.count].repeat(1 + self.shadows, 1, 1)
            for reader in self.readers[layer]:
                new[self._block(reader)] += self._replaced(reader, lambda written: written < layer)
            return new

        return edit

    def _reading_mlp(self, layer: int) -> Edit:
        mlp: Reader = ("mlp", layer, 0)

        def edit(value: Tensor) -> Tensor:
            new = value.clone()
            new[self._block(mlp)] = value[: self.count] + self._replaced(mlp, lambda written: written == layer)
            return new

        return edit

    def _taking(self, site: str, layer: int) -> Edit:
        def edit(value: Tensor) -> Tensor:
            new = value.clone()
            for reader in self.readers[layer]:
                if reader[0] == site:
                    new[: self.count, :, reader[2]] = value[self._block(reader), :, reader[2]]
            return new

        return edit

    def _writing_heads(self, layer: int) -> Edit:
        def edit(value: Tensor) -> Tensor:
            moved = self.corrupted.head[layer] - value[: self.count]
            written = torch.einsum("bthd,hdm->hbtm", moved, self.model.weight("W_O", layer))
            self.missing |= {("head", layer, head): one for head, one in enumerate(written)}
            return value

        return edit

    def _writing_mlp(self, layer: int) -> Edit:
        def edit(value: Tensor) -> Tensor:
            new = value.clone()
            new[: self.count] = value[self._block(("mlp", layer, 0))]
            self.missing["mlp", layer, 0] = self.corrupted.mlp[layer] - new[: self.count]
            return new

        return edit
