"""Compute what takes long of the panels' opening answers with the demo models, and write it into the package.

``python -m interp_widgets.demo.answers`` writes all of it, with names of widgets behind it only theirs.
"""

from __future__ import annotations

import argparse
import contextlib
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import interp_widgets
from interp_widgets.analysis.bias import BiasActivity, BiasProbes, DebiasComparison, StereoSetResult
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
    """Have the tab that a widget opens on answer; raises what that raises."""
    widget.run()


def open_only(widget: Any) -> None:
    """Have the tab that a widget opens on answer, unless it has; raises what that raises."""
    if widget.result is None:
        widget.run()


def run_with_chance(widget: Any) -> None:
    """Have the head word browser search, and search with shuffled word vectors, however long that takes."""
    widget.run()
    widget.current.ask_chance(whatever_it_takes=True)
    widget.wait()


@dataclass(frozen=True)
class Opening:
    """A widget as it is opened on the demo models, and which of the answers that it needs ship."""

    widget: str
    """The class."""
    ships: tuple[type, ...]
    """Results of these classes, or what else a result may hold, as `Answers.once` keeps them."""
    options: Mapping[str, Any] = field(default_factory=dict)
    answer: Callable[[Any], None] = run
    """Has the widget compute what ships."""
    minutes: bool = False
    """Whether that takes minutes."""


OPENINGS = (
    Opening("ConceptBrowser", (ConceptSet, ConceptMap)),
    Opening("ConceptBrowser", (ConceptSet, ConceptMap), {"map_method": "umap"}),
    Opening("ConceptBrowser", (ConceptSet, ConceptMap), {"map_method": "pca"}),
    Opening(
        "SaliencyExplorer", (SaliencyResult,), answer=open_only
    ),  # with the response written, it asks something else
    Opening("HeadWordBrowser", (HeadWordChance,), answer=run_with_chance),
    Opening("MoDRoutingViewer", (RoutingResult,)),
    Opening("BiasWorkbench", (StereoSetResult,)),
    Opening("BiasWorkbench", (BiasProbes,), {"tab": "probes"}),
    Opening("BiasWorkbench", (BiasProbes, BiasActivity), {"tab": "neurons"}),
    Opening("BiasWorkbench", (Debiased,), {"tab": "debias"}),
    Opening("BiasWorkbench", (DebiasComparison,), {"tab": "judge"}),
    Opening("DataSetExplorer", (SweepResult,)),
    Opening("ClusterExplorer", (ClustersAndMap, HiddenClusters), {"tab": "instructions"}),
    Opening("ClusterExplorer", (HiddenClusters,), {"tab": "instructions", "method": "tsne"}),
    Opening("LayerSimilarityExplorer", (MossaResult,), minutes=True),  # a control model per task, where not kept
    Opening("LayerSimilarityExplorer", (LayerSimilarity,), {"tab": "layers"}),
    Opening("LayerSimilarityExplorer", (LayerSimilarity,), {"tab": "layers", "against": "A"}),
    Opening("LayerSimilarityExplorer", (LayerProjections,), {"tab": "projections"}),
)
"""What ships of which widgets."""


def recorded(
    widgets: Collection[str] = (), *, takes: bool = False, minutes: bool = True, backend: BackendChoice = "auto"
) -> Iterator[Recorder]:
    """For every opening, on one demo model, on the other and on both: what it computes, and takes of what ships.

    Of all widgets, or of these. With `takes`, what ships already is not computed; without `minutes`, what takes
    minutes is left out.
    """
    pair = load_demo_pair(backend=backend)
    results.clear()  # what was computed before is neither computed nor taken
    for opening in OPENINGS:
        if (widgets and opening.widget not in widgets) or (opening.minutes and not minutes):
            continue
        for models in ((pair.base,), (pair.tuned,), (pair.base, pair.tuned)):
            if takes:
                results.clear()  # what was asked of a model alone, of both is taken again
            with (
                recording(*opening.ships, takes=takes) as recorder,
                contextlib.closing(getattr(interp_widgets, opening.widget)(*models, **opening.options)) as widget,
            ):
                opening.answer(widget)
            yield recorder


def computed(
    widgets: Collection[str] = (), *, minutes: bool = True, backend: BackendChoice = "auto"
) -> dict[str, ShippedAnswer]:
    """All answers that ship, computed now, by the names of their files; without `minutes`, the quick ones."""
    found = recorded(widgets, minutes=minutes, backend=backend)
    return {name: answer for recorder in found for name, answer in recorder.computed.items()}


def write(widgets: Collection[str] = ()) -> int:
    """Write the files anew, of all widgets or of these, and give their size in bytes."""
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
    """Write the files and say how large they are."""
    parser = argparse.ArgumentParser(prog=COMMAND, description=__doc__)
    known = sorted({opening.widget for opening in OPENINGS})
    parser.add_argument("widgets", nargs="*", help=f"of {', '.join(known)}; all without any")
    widgets = parser.parse_args(arguments).widgets
    if unknown := sorted(set(widgets) - set(known)):
        parser.error(f"nothing ships of {unknown[0]}: choose from {', '.join(known)}")
    print(f"{write(widgets) / 1e6:.2f} MB in {FOLDER}")


if __name__ == "__main__":
    main()
