"""Any analysis over many items: in this process, in others, or on a cluster; what is done is kept as it comes.

The modules are imported one by one, so that the processes of a sweep start with what they need.
"""
