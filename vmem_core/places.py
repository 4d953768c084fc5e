"""What tells two stores apart, whichever objects stand for them.

Owns the name of a place that records are kept in. Does not own what a place is: each store says it. No name holds a
credential or shows a path: it is a digest.
"""

from __future__ import annotations

import uuid
import weakref
from typing import Any

from vmem_core.text import text_digest

_NAMES: dict[int, str] = {}  # of objects that are in this process


def store_digest(store: Any) -> str:
    """A digest of where a store keeps its records: equal for two stores of one file or of one schema of a database.

    Scopes are equal in the stores of two tenants that each name their first user ``"1"``: whose memory it is, a scope
    and a store say together.

    Args:
        store: A store. One of your own may have a ``place``, a string that is equal for stores of the same records;
            without one, each object is a place of its own.

    Returns:
        ``"sha256:"`` and 64 hex digits.

    >>> from vmem_core import InMemoryStore, SqliteStore
    >>> store_digest(SqliteStore("memory.db")) == store_digest(SqliteStore("./memory.db"))
    True
    >>> store_digest(InMemoryStore()) == store_digest(InMemoryStore())
    False
    """
    place = getattr(store, "place", None)
    return text_digest(place if isinstance(place, str) and place else name_of(store))


def name_of(thing: Any) -> str:
    """A name for an object, as long as it lives: no other object of this or any process ever has it."""
    if id(thing) not in _NAMES:
        weakref.finalize(thing, _NAMES.pop, id(thing), None).atexit = False
    return _NAMES.setdefault(id(thing), uuid.uuid4().hex)
