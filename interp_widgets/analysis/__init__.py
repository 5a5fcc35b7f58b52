"""Analyses: a model or arrays in, a frozen result out."""
