"""The doctor's look at a SQLite file: opened read-only, checked by SQLite itself, then by our rules.

Owns the connection that can change nothing, also where the file or its folder cannot be written. Holds no rule
(``diagnosis.py``) and no statement about our rows (``_facts.py``).
"""

from __future__ import annotations

import os
import sqlite3
from datetime import timedelta
from pathlib import Path
from typing import Final

from vmem_core.diagnosis import diagnose
from vmem_core.results import Finding
from vmem_core.store import Progress
from vmem_core.stores._facts import facts_of
from vmem_core.stores._sqlite_setup import StoreConnection

_NO_FOLDER: Final = (sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_READONLY)


def inspecting(path: str, busy_timeout: timedelta) -> StoreConnection:
    """A connection that writes nothing. A file that is not there is as an empty one, and is not made."""
    if not os.path.exists(path):
        return _connect(":memory:", busy_timeout)
    address = Path(path).as_uri()
    # Whoever may write and closes last moves the log into the file. Where there is none, that takes the empty log away
    # that SQLite makes for every reader; where one was left by a process that died, it must stay as it is.
    connection = _connect(f"{address}?mode={'ro' if _has_log(path) else 'rw'}", busy_timeout)
    try:
        connection.execute("pragma query_only = on")
        connection.execute("select count(*) from sqlite_schema").fetchone()
    except sqlite3.OperationalError as error:
        connection.close()
        if error.sqlite_errorcode & 0xFF not in _NO_FOLDER or os.path.exists(f"{path}-wal"):
            raise
        # The folder cannot be written, so that SQLite cannot make a log, and nobody has one: nobody writes.
        connection = _connect(f"{address}?immutable=1", busy_timeout)
    except BaseException:
        connection.close()
        raise
    return connection


def _connect(address: str, busy_timeout: timedelta) -> StoreConnection:
    connection = sqlite3.connect(
        address,
        uri=True,
        factory=StoreConnection,
        timeout=busy_timeout.total_seconds(),
        isolation_level=None,
        check_same_thread=False,
    )
    # A damaged text is a finding, not the end: what is not UTF-8 becomes what no string of ours holds.
    connection.text_factory = lambda text: text.decode("utf-8", "surrogateescape")
    return connection


def _has_log(path: str) -> bool:
    return os.path.exists(f"{path}-wal") and os.path.getsize(f"{path}-wal") > 0


def inspect(connection: StoreConnection, language: str | None, progress: Progress | None) -> list[Finding]:
    """What does not agree in the file, from one snapshot.

    Args:
        connection: From :func:`inspecting`.
        language: That the store was opened with, or None.
        progress: Called with how many records were looked at, and how many there are.

    Raises:
        SchemaVersionError: If a newer library wrote the file.
        InvalidRequestError: If ``language`` is not the file's.
    """
    connection.execute("begin")
    try:
        return _inspect(connection, language, progress)
    finally:
        connection.rollback()


def _inspect(connection: StoreConnection, language: str | None, progress: Progress | None) -> list[Finding]:
    rows = connection.execute(
        "select name from sqlite_schema where type = 'table' and name like 'vmem\\_%' escape '\\'"
    )
    facts = facts_of(connection, {row[0] for row in rows}, language, progress)
    if facts is None:
        return []
    found = []
    try:
        checked = [row[0] for row in connection.execute("pragma integrity_check")]
        found = [Finding("file_damaged", detail=line) for line in checked if line != "ok"]
        found.extend(diagnose(facts))
    except sqlite3.DatabaseError as error:
        if not found and error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_CORRUPT:
            raise
        found.append(Finding("file_damaged", detail=f"the rest cannot be read ({error.sqlite_errorname})"))
    except TypeError:  # in SQLite any column may hold anything
        detail = "the rest cannot be judged: a column holds a value of another type than its own"
        found.append(Finding("file_damaged", detail=detail))
    return found
