"""What both SQL stores' connections can do: run the shared statements, and number scopes and revisions.

Owns the shape. The statements are written for SQLite (``_sql.py``); PostgreSQL's connection translates them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Protocol


class Rows(Protocol):
    """The rows of a statement; a pipelined connection may send it only when they are asked for."""

    def fetchone(self) -> Any:
        """The next row, or None."""
        ...

    def fetchall(self) -> list[Any]:
        """All rows that are left."""
        ...

    def fetchmany(self, size: int) -> list[Any]:
        """The next rows, at most so many."""
        ...

    def __iter__(self) -> Iterator[Any]: ...


class Database(Protocol):
    """A connection inside a transaction."""

    def execute(self, statement: str, values: Sequence[Any] = ..., /) -> Rows:
        """Run one of the shared statements."""
        ...

    def add_scope(self, key: str) -> int:
        """Make the row of a scope.

        Returns:
            Its scope id.
        """
        ...

    def add_revision(self, values: tuple[int, int, int, int, str]) -> int:
        """Append a revision: number, revision, scope revision, recorded at, body.

        Returns:
            Its entry: greater than that of every revision of the scope before it.
        """
        ...

    def make_vectors(self, generation: int, dims: int) -> None:
        """Make the tables of a generation's vectors, each of so many dimensions."""
        ...

    def add_revisions(self, rows: Sequence[tuple[int, int, int, int, str]]) -> Sequence[int]:
        """Append revisions of records that are new, each as for ``add_revision``.

        Returns:
            Their entries, ascending.
        """
        ...

    def execute_many(self, statement: str, rows: Sequence[Sequence[Any]], /) -> None:
        """Run a shared statement, which is no query, once for each row of values."""
        ...

    def drop_vectors(self, table: str) -> None:
        """Drop a table of vectors of records that are still there, however large, without keeping writers waiting."""
        ...

    def hold_generations(self, *, exclusively: bool = False) -> None:
        """Keep others from beginning or switching generations until the end of the transaction.

        Args:
            exclusively: Keep writers out too. Readers are never kept out.
        """
        ...

    def hold_scopes(self, scope_ids: Sequence[int]) -> None:
        """Keep the writers of some scopes out until the end of the transaction."""
        ...
