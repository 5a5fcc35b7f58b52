"""Compute the slow results that panels open with on the demo models, and write them into the package.

``python -m interp_widgets.demo.answers`` writes all of them; with names of widgets, only theirs.
"""

from __future__ import annotations

import argparse
import contextlib
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import interp_widgets
from interp_widgets.analysis.bias import BiasActivity, BiasProbes, DebiasComparison, StereoSetResult
from interp_widgets.analysis.circuits import CircuitScoreboard
from interp_widgets.analysis.clusters import HiddenClusters
from interp_widgets.analysis.concepts import ConceptMap, ConceptSet
from interp_widgets.analysis.head_words import HeadWordChance
from interp_widgets.analysis.layer_similarity import LayerProjections, LayerSimilarity, MossaResult
from interp_widgets.analysis.mixture_of_depths import RoutingResult
from interp_widgets.analysis.saliency import SaliencyResult
from interp_widgets.compute.cache import results
from interp_widgets.models import load_demo_pair
from interp_widgets.models.build import BackendChoice
from interp_widgets.sweeps.result import SweepResult
from interp_widgets.widgets.base.shipped import FOLDER, Recorder, ShippedAnswer, recording, shipped_names
from interp_widgets.widgets.bias.debias import Debiased
from interp_widgets.widgets.clusters.instructions import ClustersAndMap

COMMAND = "python -m interp_widgets.demo.answers"


def run(widget: Any) -> None:
    """Run the tab that a widget opens on; raises what that raises."""
    widget.run()


def open_only(widget: Any) -> None:
    """Run the tab that a widget opens on, unless it has a result; raises what that raises."""
    if widget.result is None:
        widget.run()


def run_with_chance(widget: Any) -> None:
    """Run the head word browser, and its search with shuffled word vectors, however long that takes."""
    widget.run()
    widget.current.ask_chance(whatever_it_takes=True)
    widget.wait()


@dataclass(frozen=True)
class Opening:
    """A widget as it opens on the demo models, and which of the results it needs ship."""

    widget: str
    """Name of its class."""
    ships: tuple[type, ...]
    """Classes of the values that ship, as `Answers.once` caches them."""
    options: Mapping[str, Any] = field(default_factory=dict)
    answer: Callable[[Any], None] = run
    """Makes the widget compute what ships."""
    long: bool = False
    """Whether computing it takes so long that the tests compute a part of it."""


OPENINGS = (
    Opening("ConceptBrowser", (ConceptSet, ConceptMap)),
    Opening("ConceptBrowser", (ConceptSet, ConceptMap), {"map_method": "umap"}),
    Opening("ConceptBrowser", (ConceptSet, ConceptMap), {"map_method": "pca"}),
    Opening(
        "SaliencyExplorer", (SaliencyResult,), answer=open_only
    ),  # once a response is generated, its request differs
    Opening("HeadWordBrowser", (HeadWordChance,), answer=run_with_chance),
    Opening("MoDRoutingViewer", (RoutingResult,)),
    Opening("BiasWorkbench", (StereoSetResult,)),
    Opening("BiasWorkbench", (BiasProbes,), {"tab": "probes"}),
    Opening("BiasWorkbench", (BiasProbes, BiasActivity), {"tab": "neurons"}),
    Opening("BiasWorkbench", (Debiased,), {"tab": "debias"}),
    Opening("BiasWorkbench", (DebiasComparison,), {"tab": "judge"}, long=True),
    Opening("CircuitBoard", (CircuitScoreboard,), long=True),
    Opening("DataSetExplorer", (SweepResult,)),
    Opening("ClusterExplorer", (ClustersAndMap, HiddenClusters), {"tab": "instructions"}),
    Opening("ClusterExplorer", (HiddenClusters,), {"tab": "instructions", "method": "tsne"}),
    Opening("LayerSimilarityExplorer", (MossaResult,), long=True),  # a control model per task, unless cached
    Opening("LayerSimilarityExplorer", (LayerSimilarity,), {"tab": "layers"}),
    Opening("LayerSimilarityExplorer", (LayerSimilarity,), {"tab": "layers", "against": "A"}),
    Opening("LayerSimilarityExplorer", (LayerProjections,), {"tab": "projections"}),
)
"""Every opening whose results ship."""


def recorded(
    widgets: Collection[str] = (), *, takes: bool = False, long: bool = True, backend: BackendChoice = "auto"
) -> Iterator[Recorder]:
    """For every opening, on each demo model and on both: what it computes, and which shipped results it uses.

    `widgets` restricts it to these widgets. With `takes`, shipped results are used, not recomputed; without
    `long`, openings that take long are left out.
    """
    pair = load_demo_pair(backend=backend)
    results.clear()  # a cached result would be neither computed nor taken
    for opening in OPENINGS:
        if (widgets and opening.widget not in widgets) or (opening.long and not long):
            continue
        for models in ((pair.base,), (pair.tuned,), (pair.base, pair.tuned)):
            if takes:
                results.clear()  # results of one model are taken again as those of both
            with (
                recording(*opening.ships, takes=takes) as recorder,
                contextlib.closing(getattr(interp_widgets, opening.widget)(*models, **opening.options)) as widget,
            ):
                opening.answer(widget)
            yield recorder


def computed(
    widgets: Collection[str] = (), *, long: bool = True, backend: BackendChoice = "auto"
) -> dict[str, ShippedAnswer]:
    """All results that ship, computed now, by file name; without `long`, only the quick ones."""
    found = recorded(widgets, long=long, backend=backend)
    return {name: answer for recorder in found for name, answer in recorder.computed.items()}


def write(widgets: Collection[str] = ()) -> int:
    """Rewrite the files of all widgets, or of these, and return the size of all files in bytes."""
    answers = computed(widgets)
    panels = {answer.panel for answer in answers.values()}
    FOLDER.mkdir(exist_ok=True)
    for name in shipped_names() - set(answers):
        if not widgets or name.partition("-")[0] in panels:
            (FOLDER / f"{name}.npz").unlink()
    for name, answer in answers.items():
        answer.save(FOLDER / f"{name}.npz")
    shipped_names.cache_clear()
    return sum(path.stat().st_size for path in FOLDER.glob("*.npz"))


def main(arguments: list[str] | None = None) -> None:
    """Write the files and print their size."""
    parser = argparse.ArgumentParser(prog=COMMAND, description=__doc__)
    known = sorted({opening.widget for opening in OPENINGS})
    parser.add_argument("widgets", nargs="*", help=f"of {', '.join(known)}; default: all")
    widgets = parser.parse_args(arguments).widgets
    if unknown := sorted(set(widgets) - set(known)):
        parser.error(f"no results of {unknown[0]} ship: choose from {', '.join(known)}")
    print(f"{write(widgets) / 1e6:.2f} MB in {FOLDER}")


if __name__ == "__main__":
    main()
