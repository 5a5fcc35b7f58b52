"""Results drawn as Bokeh figures and as static pictures."""
