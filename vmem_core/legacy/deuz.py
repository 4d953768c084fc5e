"""What all stores of the Deuz SDK's legacy memory share: the fields of a record, and how they are named.

Owns the mapping of a stored record, in snake case or camel case, to a legacy record. Vectors, hashes and the id of an
embedding model are not carried over. Does not own where the records lie (``deuz_sqlite.py``, ``deuz_postgres.py``,
``deuz_markdown.py``, ``deuz_redis.py``).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import fields
from typing import Any, Final

from vmem_core.errors import InvalidRequestError
from vmem_core.legacy.records import LegacyRecord
from vmem_core.records import Scope

TABLE: Final = "deuz_memory"
OWN_TABLE: Final = "vmem_schema"  # of a store of this library, whichever it is in
SCOPE_FIELDS: Final = tuple(field.name for field in fields(Scope))
FIELDS: Final = (
    "id", "text", "kind", "importance", "created_at", "updated_at", "last_accessed_at", "expires_at", "valid_at",
    "invalid_at",
)  # fmt: skip
COLUMNS: Final = (*FIELDS, *SCOPE_FIELDS, "metadata")
_NOT_CARRIED: Final = frozenset({"hash", "embedding", "embedding_json", "embedding_model_id"})


def not_there(name: str, is_store: bool, path: str) -> InvalidRequestError:
    """What is said of a database without the table.

    Args:
        name: Of the file or the database.
        is_store: Whether it holds the tables of this library instead.
        path: The argument that is wrong.
    """
    if is_store:
        return InvalidRequestError(
            f"{name} is a store of this library, and needs no import: open it as one (vmem list --store), or write "
            "each of its scopes with export_jsonl (vmem export) and import those files",
            path=path,
        )
    return InvalidRequestError(f"{name} has no table {TABLE} of memories with id and text", path=path)


def camel(name: str) -> str:
    """A name in camel case.

    >>> camel("last_accessed_at")
    'lastAccessedAt'
    """
    first, *rest = name.split("_")
    return first + "".join(word.title() for word in rest)


_NAMES: Final = {camel(name): name for name in (*COLUMNS, *_NOT_CARRIED)} | {name: name for name in COLUMNS}


def record_of_row(row: Mapping[str, Any]) -> LegacyRecord:
    """A record from a row of a table, its columns in snake case; metadata may be JSON text."""
    metadata = row.get("metadata")
    if isinstance(metadata, str | bytes) and metadata:
        try:
            metadata = json.loads(metadata)
        except (ValueError, RecursionError):
            return LegacyRecord(row.get("id"), fault="unreadable")
    return LegacyRecord(
        scope={name: row.get(name) for name in SCOPE_FIELDS},
        metadata=metadata or None,
        **{name: row.get(name) for name in FIELDS},
    )


def record_of_object(item: Mapping[str, Any], *, more_is_metadata: bool = False) -> LegacyRecord:
    """A record from an object with names in camel case, its scope in ``scope`` or beside the other fields.

    Args:
        item: The object.
        more_is_metadata: Whether a name that no record has is metadata; it is left out else.
    """
    known: dict[str, Any] = {}
    more: dict[str, Any] = {}
    for key, value in item.items():
        if key in _NAMES:
            known[_NAMES[key]] = value
        elif key != "scope":
            more[key] = value
    scope = item.get("scope")
    if scope is not None and not isinstance(scope, Mapping):
        return LegacyRecord(known.get("id"), fault="invalid_scope")
    whose: dict[Any, Any] = {name: known[name] for name in SCOPE_FIELDS if name in known}
    whose |= {_NAMES.get(key, key): value for key, value in (scope or {}).items()}
    metadata = known.get("metadata")
    if more_is_metadata and more and (metadata is None or isinstance(metadata, Mapping)):
        metadata = {**more, **(metadata or {})}
    return LegacyRecord(scope=whose, metadata=metadata, **{name: known.get(name) for name in FIELDS})
