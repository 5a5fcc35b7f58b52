"""Mixture-of-Depths models: the mixture, putting it into a model, checkpoints, and `ModModel`."""
