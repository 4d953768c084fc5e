"""Records of the Deuz SDK's legacy memory in a SQLite file: the table ``deuz_memory``.

Owns the reading of the table. The file is opened for reading only, and may be the one that the new store is in.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import TYPE_CHECKING, Final

from vmem_core.errors import InvalidRequestError
from vmem_core.legacy.deuz import COLUMNS, OWN_TABLE, TABLE, not_there, record_of_row
from vmem_core.legacy.files import check_path
from vmem_core.legacy.records import LegacyRecord

if TYPE_CHECKING:
    import sqlite3

_ROWS: Final = 1_000


async def from_deuz_sqlite(path: str | os.PathLike[str]) -> AsyncIterator[LegacyRecord]:
    """Legacy records from the table ``deuz_memory`` of a SQLite file, in the order of its rows.

    Args:
        path: The file.

    Raises:
        InvalidRequestError: If there is no such file, it is no database, or it has no such table.
    """
    import asyncio

    table = await asyncio.to_thread(_Table, check_path(path))
    try:
        while rows := await asyncio.to_thread(table.next_rows):
            for row in rows:
                yield row
    finally:
        table.close()


class _Table:
    """The table, open for reading, page by page: nothing is locked between two pages."""

    def __init__(self, path: str) -> None:
        import sqlite3

        self._path = path
        if not os.path.isfile(path):
            raise InvalidRequestError(f"there is no file {os.path.basename(path)}", path="path")
        uri = f"{Path(path).absolute().as_uri()}?mode=ro"
        try:
            self._connection = sqlite3.connect(uri, uri=True, check_same_thread=False, isolation_level=None)
        except sqlite3.Error as error:
            raise _refuse(path, error) from None
        self._connection.text_factory = _text
        try:
            self._columns, self._key = self._look()
        except BaseException:
            self._connection.close()
            raise
        self._after: object = None

    def _look(self) -> tuple[list[str], str]:
        """The columns there are, and the one that pages are told apart by."""
        import sqlite3

        try:
            rows = self._connection.execute(f"pragma table_info({TABLE})").fetchall()
            schema = dict(
                self._connection.execute("select name, sql from sqlite_schema where type = 'table'").fetchall()
            )
        except sqlite3.Error as error:
            raise _refuse(self._path, error) from None
        found = {row[1] for row in rows}
        if not {"id", "text"} <= found:
            raise not_there(os.path.basename(self._path), OWN_TABLE in schema, "path")
        key = "id" if "without rowid" in (schema.get(TABLE) or "").lower() else "rowid"
        return [name for name in COLUMNS if name in found], key

    def next_rows(self) -> list[LegacyRecord]:
        """The next records; none at the end."""
        import sqlite3

        names = ", ".join(self._columns)
        begin = "" if self._after is None else f"where {self._key} > ?"
        statement = f"select {self._key}, {names} from {TABLE} {begin} order by {self._key} limit {_ROWS}"
        try:
            rows = self._connection.execute(statement, () if self._after is None else (self._after,)).fetchall()
        except sqlite3.Error as error:
            raise _refuse(self._path, error) from None
        if rows:
            self._after = rows[-1][0]
        return [record_of_row(dict(zip(self._columns, row[1:], strict=True))) for row in rows]

    def close(self) -> None:
        """Let go of the file."""
        self._connection.close()


def _text(data: bytes) -> str:
    """A text of the file; what is no UTF-8 becomes U+FFFD, as in other texts from outside."""
    return data.decode("utf-8", "replace")


def _refuse(path: str, error: sqlite3.Error) -> InvalidRequestError:
    name = getattr(error, "sqlite_errorname", None) or type(error).__name__
    return InvalidRequestError(f"{os.path.basename(path)} cannot be read as a SQLite database ({name})", path="path")
