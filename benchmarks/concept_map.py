"""The map of many concept directions: how long each step takes, what it needs, how it is reused and added to.

    python benchmarks/concept_map.py [--concepts 40000] [--width 4096] [--threads 2] [--umap]

The directions are made up: 400 groups in a subspace of 300 dimensions, and noise in all. What numba compiles for UMAP
is measured apart, by a map of 100 concepts that comes first. `--umap` measures umap-learn's own way too, with its
approximate search for neighbours and its spectral start, on the same principal components.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
from threadpoolctl import threadpool_limits

from interp_widgets.analysis.concepts import ConceptMap, ConceptSet, add_to_map, concept_map, concept_map_cost
from interp_widgets.analysis.concepts.maps import components, neighbor_recall, projected


def made_up(count: int, width: int, seed: int = 0) -> ConceptSet:
    """Concepts in 400 groups."""
    rng = np.random.default_rng(seed)
    basis = rng.normal(size=(300, width)).astype(np.float32)
    kind = rng.integers(0, 400, count)
    middles = rng.normal(size=(400, 300)).astype(np.float32)
    rows = (middles[kind] + 0.8 * rng.normal(size=(count, 300)).astype(np.float32)) @ basis
    for start in range(0, count, 4096):  # noise in parts: all of it at once would be one more copy
        part = rows[start : start + 4096]
        part += 8 * rng.standard_normal(size=part.shape, dtype=np.float32)
        part /= np.linalg.norm(part, axis=1, keepdims=True)
    zeros = np.zeros(count)
    return ConceptSet(
        names=[f"concept {i}" for i in range(count)], directions=rows, layer=1,
        groups=[f"group {k}" for k in kind], center=np.zeros(width), gap=zeros, auc=zeros, group_auc=zeros,
        shuffled_auc=zeros, method="mean_difference",
    )  # fmt: skip


def parted(concepts: ConceptSet, count: int) -> tuple[ConceptSet, ConceptSet]:
    """The first so many concepts, and the others."""

    def part(at: slice) -> ConceptSet:
        arrays = {name: getattr(concepts, name)[at] for name in ("gap", "auc", "group_auc", "shuffled_auc")}
        rows = {"names": concepts.names[at], "groups": concepts.groups[at], "directions": concepts.directions[at]}
        return replace(concepts, **rows, **arrays)

    return part(slice(count)), part(slice(count, None))


def memory(*, forget: bool = False) -> float:
    """Peak resident GiB of this process, since it was last asked to forget (Linux)."""
    if forget:
        Path("/proc/self/clear_refs").write_text("5", encoding="ascii")
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM")) / 2**20


class Clock:
    """Wall and processor seconds since it was last asked."""

    def __init__(self) -> None:
        self.last = (time.perf_counter(), time.process_time())

    def lap(self) -> str:
        """Both, in words."""
        now = (time.perf_counter(), time.process_time())
        wall, own = (b - a for a, b in zip(self.last, now, strict=True))
        self.last = now
        return f"{wall:6.1f} s ({own:5.1f} s of processor)"


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--concepts", type=int, default=40_000)
    parser.add_argument("--width", type=int, default=4096)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--umap", action="store_true", help="umap-learn's own way too")
    chosen = parser.parse_args()
    concepts, more = parted(made_up(chosen.concepts + 1000, chosen.width), chosen.concepts)
    print(f"{chosen.concepts:,} × {chosen.width:,} float32, {chosen.threads} threads, load {os.getloadavg()[0]:.1f}")
    with threadpool_limits(chosen.threads):
        clock = Clock()
        concept_map(made_up(100, 64))
        print(f"first small map (compiled code is kept on disk) {clock.lap()}")
        before = memory(forget=True)
        steps = {1: "principal components", 2: "neighbours and UMAP", 3: "check of neighbours"}
        began, clock = Clock(), Clock()
        places = concept_map(concepts, progress=lambda done, _: print(f"  {steps[done]:<22} {clock.lap()}"))
        print(f"map, all in all          {began.lap()}; 10 nearest kept: {places.recall:.2f}")
        peak = memory() - before
        forecast = concept_map_cost(chosen.concepts, chosen.width).bytes / 2**30
        print(f"memory                   {peak:.2f} GiB more at the peak, forecast {forecast:.2f} GiB")
        clock = Clock()
        again = concept_map(concepts, stored=places)
        print(f"the same again, stored   {clock.lap()}, equal: {again.equals(places)}")
        clock = Clock()
        larger = add_to_map(places, more)
        print(f"1,000 concepts added     {clock.lap()}")
        rows = np.concatenate([concepts.directions, more.directions])
        new = np.arange(chosen.concepts, chosen.concepts + 1000)
        print(f"  their 10 nearest kept: {neighbor_recall(rows, larger.xy, queries=new):.2f}")
        with tempfile.TemporaryDirectory() as folder:
            clock = Clock()
            path = places.save(Path(folder) / "map")
            print(f"saved                    {clock.lap()}, {path.stat().st_size / 2**20:.0f} MiB")
            ConceptMap.load(path)
            print(f"opened                   {clock.lap()}")
        if chosen.umap:
            own_way(concepts)


def own_way(concepts: ConceptSet) -> None:
    """umap-learn with what it takes by default."""
    import warnings

    from umap import UMAP

    axes, middle, _ = components(concepts.directions, 50, 0)
    parts = projected(concepts.directions, axes, middle)
    warnings.simplefilter("ignore")
    for start in ("pca", "spectral"):
        clock = Clock()
        xy = UMAP(metric="cosine", init=start, random_state=0, n_jobs=1).fit_transform(parts)
        print(f"umap-learn, {start:<8}     {clock.lap()}; kept {neighbor_recall(concepts.directions, xy):.2f}")


if __name__ == "__main__":
    main()
