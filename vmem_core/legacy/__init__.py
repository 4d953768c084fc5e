"""Taking over what other memory systems remember: readers, one file a system, and the import.

The names that callers use are in ``vmem_core`` itself.
"""
