"""What SQLite's errors mean to a caller.

Owns the translation. A driver's message names no memory text: values are bound, never part of a statement.
"""

from __future__ import annotations

import sqlite3
from typing import Final

from vmem_core.errors import StoreUnavailableError, VmemError

_MEANINGS: Final = {
    sqlite3.SQLITE_BUSY: ("another process holds the file; try again, or raise busy_timeout", True),
    sqlite3.SQLITE_LOCKED: ("another connection holds the file; try again, or raise busy_timeout", True),
    sqlite3.SQLITE_FULL: ("the disk, or the file's own limit, is full; free space and try again", True),
    sqlite3.SQLITE_READONLY: ("the file cannot be written; give this process write access to it and its folder", False),
    sqlite3.SQLITE_NOTADB: ("the file is not a SQLite database; check the path", False),
    sqlite3.SQLITE_CORRUPT: ("the file is damaged; restore it from a backup", False),
    sqlite3.SQLITE_CANTOPEN: ("the file cannot be opened; check that its folder exists and can be written", False),
    sqlite3.SQLITE_IOERR: ("reading or writing the file failed; check the disk", True),
}


def _primary_code(error: BaseException) -> int | None:
    code = getattr(error, "sqlite_errorcode", None)
    return None if code is None else int(code) & 0xFF


def is_busy(error: BaseException) -> bool:
    """Whether another connection held the file."""
    return isinstance(error, sqlite3.Error) and _primary_code(error) in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)


def translate(error: BaseException) -> BaseException:
    """Our error for one of the driver's; any other error as it is."""
    if isinstance(error, VmemError) or not isinstance(error, sqlite3.Error):
        return error
    meaning, retryable = _MEANINGS.get(
        _primary_code(error) or 0,
        ("the file cannot be used as a store; check that only this library writes vmem_*", False),
    )
    name = getattr(error, "sqlite_errorname", type(error).__name__)
    translated = StoreUnavailableError(f"{meaning} ({name})", retryable=retryable)
    translated.__cause__ = error
    return translated
