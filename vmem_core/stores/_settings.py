"""What a SQL store keeps about itself: its schema's version, its language, its tokenizer's version.

Owns these rows and what they refuse, once for both SQL stores. Does not own the tables or when they are made
(``_sqlite_setup.py``, ``_postgres.py``).
"""

from __future__ import annotations

from vmem_core.errors import InvalidRequestError, SchemaVersionError, StoreUnavailableError
from vmem_core.stores import _sql
from vmem_core.stores._database import Database
from vmem_core.tokens import DEFAULT_LANGUAGE, TOKENIZER_VERSION


def write_settings(connection: Database, language: str | None) -> None:
    """The first rows of a new store."""
    connection.execute("insert into vmem_schema values(?)", (_sql.SCHEMA_VERSION,))
    for row in (("language", language or DEFAULT_LANGUAGE), ("tokenizer", str(TOKENIZER_VERSION))):
        connection.execute("insert into vmem_store values(?, ?)", row)


def is_current(connection: Database) -> bool:
    """Whether the search tokens are of this library's tokenizer; an older one's must be made anew.

    Raises:
        SchemaVersionError: If a newer library wrote the store.
        StoreUnavailableError: If the tables are somebody else's.
    """
    # The version first: a newer schema may keep its settings elsewhere.
    version = _number(connection.execute("select max(version) from vmem_schema").fetchone()[0])
    if version > _sql.SCHEMA_VERSION:
        raise SchemaVersionError(version, _sql.SCHEMA_VERSION)
    tokenizer = _number(setting(connection, "tokenizer"))
    if tokenizer > TOKENIZER_VERSION:
        raise SchemaVersionError(version, _sql.SCHEMA_VERSION)
    return tokenizer == TOKENIZER_VERSION


def setting(connection: Database, name: str) -> str:
    """A setting that the store keeps, such as its language."""
    row = connection.execute("select value from vmem_store where name = ?", (name,)).fetchone()
    if row is None:
        raise not_ours()
    return str(row[0])


def check_language(connection: Database, language: str | None) -> None:
    """Refuse another language than the store's.

    Raises:
        InvalidRequestError: Naming both.
    """
    kept = setting(connection, "language")
    if language is not None and language != kept:
        raise InvalidRequestError(
            f"the store's language is {kept!r}, {language!r} was given; leave it out or give the store's",
            path="language",
        )


def _number(value: object) -> int:
    if not str(value).isdecimal():
        raise not_ours()
    return int(str(value))


def not_ours() -> StoreUnavailableError:
    """What is said of a place whose tables are somebody else's."""
    return StoreUnavailableError(
        "there are vmem_* tables that this library did not make; rename them, or use another place", retryable=False
    )
