"""The ipywidgets classes a notebook shows."""
