"""Input data: the demo world, its instructions and concepts, and readers of public data sets; without torch."""
