"""Clusters of hidden states: agreement with labels, nearest neighbours and maps, for one model or over training."""

from .clustering import HiddenClusters, cluster_hidden_states
from .neighbours import TaskNeighbors, knn_task
from .over_training import ClusterTraining, clusters_over_training
from .scores import ClusteringScores, clustering_scores
from .state_maps import StateMap, state_map

__all__ = [
    "ClusterTraining",
    "ClusteringScores",
    "HiddenClusters",
    "StateMap",
    "TaskNeighbors",
    "cluster_hidden_states",
    "clustering_scores",
    "clusters_over_training",
    "knn_task",
    "state_map",
]
