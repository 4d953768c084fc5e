"""How records and queries meet the search index. Pure.

Owns the codes of kinds and states, the row of a record, the index query of a :class:`Search`, and the search over
what a store knew at an earlier time. Does not own ranking (``index.py``) or tokens (``tokens.py``).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from vmem_core import tokens
from vmem_core.index import Outside, Query, Ranked, Row, ScopeIndex
from vmem_core.operations import check_generation
from vmem_core.records import KINDS, ORIGINS, Kind, Origin, Record
from vmem_core.results import Generation
from vmem_core.store import Search
from vmem_core.values import to_micros

ACTIVE, RETRACTED, FORGOTTEN = 1, 0, -1
KIND_CODES: Mapping[Kind, int] = {kind: code for code, kind in enumerate(KINDS)}
ORIGIN_CODES: Mapping[Origin, int] = {origin: code for code, origin in enumerate(ORIGINS)}


def state_code(record: Record) -> int:
    """The index's code of a record's status."""
    return ACTIVE if record.status == "active" else RETRACTED


def expiry_micros(record: Record) -> int | None:
    """When a record expires, in microseconds since 1970, or None."""
    return None if record.expires_at is None else to_micros(record.expires_at)


def token_bytes(text: str, language: str) -> bytes:
    """A text's search tokens as 64-bit hashes, 8 bytes each."""
    return tokens.text_hashes(text, language)


def token_table(texts: Iterable[str], language: str) -> dict[str, bytes]:
    """The search tokens of texts, by text: made before a store locks anything."""
    return {text: token_bytes(text, language) for text in texts}


def record_row(number: int, entry: int, record: Record, token_hashes: bytes) -> Row:
    """The index row of a record's revision.

    Args:
        number: The record's place in its scope.
        entry: The store's running number of the revision.
        record: The revision.
        token_hashes: Of its text.
    """
    return Row(
        number,
        entry,
        state_code(record),
        KIND_CODES[record.kind],
        expiry_micros(record),
        token_hashes,
        tokens.facets(record.metadata),
    )


def index_query(search: Search, language: str, now: int, generation: Generation | None) -> Query:
    """What a search asks of the index.

    Args:
        search: The search.
        language: The store's language.
        now: The instant that expiry is judged at, microseconds since 1970.
        generation: The store's active generation.

    Raises:
        EmbeddingMismatchError: If the query's vector is of another model or size.
    """
    vector = None
    if search.vector is not None and generation is not None:
        check_generation(generation, search.vector.model, search.vector.dims)
        if search.vector.vector is not None:
            vector = np.frombuffer(search.vector.vector, dtype="<f4")
    words = tokens.query_tokens(search.text, language) if search.text is not None else []
    return Query(
        tokens=tokens.token_hashes(words),
        vector=vector,
        top_k=search.top_k,
        now=now,
        kind=None if search.kind is None else KIND_CODES[search.kind],  # type: ignore[index]
        facets=tuple(tokens.facet_hash(key, value) for key, value in search.metadata.items()),
        include_retracted=search.include_retracted,
        include_expired=search.include_expired,
        fusion=search.fusion,
    )


def rank(
    index: ScopeIndex,
    search: Search,
    query: Query,
    outside: Outside | None = None,
) -> list[Ranked]:
    """The hits of a query: the best for a text, the newest without one."""
    return index.recent(query) if search.text is None else index.search(query, outside)


class Known(NamedTuple):
    """A record as a store knew it at an earlier time; the vector is of that very text, or None."""

    number: int
    entry: int
    record: Record
    vector: bytes | None


def search_known(
    known: Sequence[Known], search: Search, language: str, now: int, generation: Generation | None
) -> list[tuple[Known, Ranked]]:
    """Search what was known at an earlier time, ranked with the counts of that time.

    Args:
        known: Each record of the scope in its revision of that time.
        search: The search.
        language: The store's language.
        now: That time, microseconds since 1970.
        generation: The active generation, whose vectors ``known`` carries.
    """
    query = index_query(search, language, now, generation)
    index = ScopeIndex(generation.dims if generation else None)
    rows = [record_row(k.number, k.entry, k.record, token_bytes(k.record.text, language)) for k in known]
    index.apply(rows, {k.number: k.vector for k in known if k.vector is not None})
    by_number = {k.number: k for k in known}
    return [(by_number[ranked.number], ranked) for ranked in rank(index, search, query)]
