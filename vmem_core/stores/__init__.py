"""The stores: in memory (the reference, to be read first) and SQLite."""
