"""Mixture-of-Depths models: the read-out, its place in a model, checkpoints, and the `ModModel` that holds them."""
