"""Run any analysis over many items: in this process, in worker processes, or on a cluster. Rows are saved as they come.

This package imports none of its modules, so that worker processes import only what they need.
"""
