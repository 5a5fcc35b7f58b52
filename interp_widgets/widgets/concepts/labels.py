"""What the choices of the concept browser are called."""

from __future__ import annotations

METHOD_LABELS = {
    "mean_difference": "mean difference",
    "pca": "first component of paired differences",
    "discriminant": "linear discriminant",
}
MAP_LABELS = {"pca": "principal components", "tsne": "t-SNE", "umap": "UMAP"}
ROW_LABELS = {
    "strongest": "strongest at the token",
    "nearest": "nearest to the concept",
    "chosen": "selected on the map",
}
SOLVER_LABELS = {"omp": "orthogonal matching pursuit", "elastic_net": "elastic net"}
PAIR_LABELS = {"group": "concepts of one group", "all": "all concepts"}
MODE_LABELS = {"add": "added", "erase": "erased"}
