"""What PostgreSQL's driver raises: what it means to a caller, and which transactions run again.

Owns the translation of errors and the bounded retries. Does not own transactions (``_postgres.py``).
"""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Callable
from typing import Any, Final, TypeVar

import psycopg
import psycopg.conninfo
import psycopg_pool
import tenacity

from vmem_core.errors import InvalidRequestError, StoreUnavailableError, VmemError
from vmem_core.stores._settings import not_ours

T = TypeVar("T")
_ATTEMPTS: Final = 12
_WHERE: Final = ("service", "host", "hostaddr", "port", "dbname", "user", "options")  # of a connection: no credential
_PORTS: Final = re.compile(r"\d{0,5}(,\d{0,5})*")  # one for each host
AGAIN: Final = (
    psycopg.errors.SerializationFailure,
    psycopg.errors.DeadlockDetected,
    psycopg.errors.UniqueViolation,
    psycopg.errors.DuplicateSchema,
    psycopg.errors.LockNotAvailable,
)
# Two writers may start a generation at once. One that sets up holds a lock, so that a table there is somebody else's.
_TAKEN: Final = (psycopg.errors.DuplicateTable, psycopg.errors.DuplicateObject)


def attempts(of: tuple[type[Exception], ...] = (*AGAIN, *_TAKEN)) -> tenacity.Retrying:
    """For a transaction that others may get in the way of, with one of these errors."""
    return tenacity.Retrying(
        retry=tenacity.retry_if_exception_type(of),
        stop=tenacity.stop_after_attempt(_ATTEMPTS),
        wait=tenacity.wait_random_exponential(multiplier=0.005, max=0.5),
        reraise=True,
    )


def reading_attempts() -> tenacity.Retrying:
    """A generation may be switched, and its table dropped, between a reader's snapshot and its look at the vectors."""
    return tenacity.Retrying(
        retry=tenacity.retry_if_exception_type(psycopg.errors.UndefinedTable),
        stop=tenacity.stop_after_attempt(3),
        reraise=True,
    )


def again(function: Callable[[], T], retrying: tenacity.Retrying) -> T:
    """Call a function until it stands or the attempts are used up."""
    for attempt in retrying:
        with attempt:
            return function()
    raise AssertionError("unreachable: the last attempt returns or raises")


def has_ended(connection: Any) -> bool:
    """Whether the server has closed an idle connection. No round trip: it reads what has come by itself."""
    try:
        for _ in range(2):  # the server's last words, then the end
            connection.pgconn.consume_input()
    except psycopg.OperationalError:
        return True
    return bool(connection.closed)


def check_dsn(dsn: str) -> None:
    """Refuse at once what no server could ever be reached by.

    Raises:
        InvalidRequestError: For a connection string that cannot be read. The driver's own words would quote it.
    """
    try:
        parts = psycopg.conninfo.conninfo_to_dict(dsn)
    except psycopg.ProgrammingError:
        parts = None
    # A host with an @, a port of letters: a password was cut at one of its own characters.
    if parts is None or "@" in str(parts.get("host", ""))[1:] or not _PORTS.fullmatch(str(parts.get("port", ""))):
        raise InvalidRequestError(
            "is not a connection string; percent-encode special characters of the password", path="dsn_or_pool"
        )


def database_of(target: Any) -> str | None:
    """The database that a connection string or a pool leads to, without its password; None if that is not told."""
    dsn = target if isinstance(target, str) else getattr(target, "conninfo", None)
    more = getattr(target, "kwargs", None)
    if not isinstance(dsn, str) or not isinstance(more, dict | None):
        return None
    try:
        told = {**psycopg.conninfo.conninfo_to_dict(dsn), **(more or {})}
    except psycopg.ProgrammingError:
        return None
    return json.dumps([str(told[name]) if told.get(name) is not None else None for name in _WHERE])


def silence_own_pool(name: str) -> None:
    """Keep the driver from logging what fails in a pool of ours: its words may quote the password, we raise ours."""
    logging.getLogger("psycopg.pool").addFilter(lambda record: not (record.args and name in record.args))


def meaning_of(error: BaseException) -> BaseException:
    """Our error for one of the driver's; any other error as it is."""
    if isinstance(error, VmemError) or not isinstance(error, psycopg.Error | psycopg_pool.PoolTimeout):
        return error
    name = type(error).__name__
    if isinstance(error, psycopg.errors.ProgramLimitExceeded):
        return InvalidRequestError(
            "an id, or the scope as a whole, is longer than the 2,600 bytes of a PostgreSQL index entry; shorten it",
            path="scope",
        )
    if isinstance(error, psycopg_pool.PoolTimeout | psycopg.OperationalError | psycopg.InterfaceError):
        return StoreUnavailableError(
            f"the server cannot be reached or has given up the transaction ({name}); try again", retryable=True
        )
    if isinstance(error, psycopg.errors.InsufficientPrivilege):
        return StoreUnavailableError(
            "the role may not do this; grant it create and usage on the schema, or rights on the vmem_* tables",
            retryable=False,
        )
    if isinstance(error, psycopg.errors.ReadOnlySqlTransaction | psycopg.errors.FeatureNotSupported):
        return StoreUnavailableError(
            "the server takes no writes (a standby, or one that was set read-only); write through its primary",
            retryable=False,
        )
    if isinstance(error, _TAKEN):
        return not_ours()
    if isinstance(error, AGAIN):
        return StoreUnavailableError(f"other writers kept getting in the way ({name}); try again", retryable=True)
    return StoreUnavailableError(
        f"the database cannot be used as a store ({name}); check that only this library writes vmem_*", retryable=False
    )
