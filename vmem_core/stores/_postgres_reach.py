"""Whether a server can be reached, asked once before a pool is filled; and if not why, in words of ours.

A pool tries again and again, and tells in the end only that it gave up: a wrong name would be waited for, and not be
told. Owns that first attempt and what is said of it. Does not own the pool (``_postgres.py``) or the errors of a
connection that was made (``_postgres_errors.py``).
"""

from __future__ import annotations

import os
import re
from typing import Any, Final

import psycopg
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from psycopg.pq import Conninfo

from vmem_core.errors import StoreUnavailableError

_TIMEOUT: Final = 5  # seconds, for a server that does not even refuse; the connection string may say another
# It is there, and will take connections soon, or again: that is what a pool is for.
_PASSING: Final = re.compile(
    r"the database system is|too many (clients|connections)|connection slots|no more connections|closed the connection|"
    r"reset by peer"
)
# What libpq and the server say, in the order in which it counts where several attempts failed. They give no codes.
_REASONS: Final = (
    (
        r'database ".*" does not exist|no such database',
        "the server has no database {dbname}; create it (createdb), or correct its name in the connection string",
        False,
    ),
    (
        r'role ".*" does not exist|not permitted to log in|no such user',
        "the server knows no role {user} that may log in; create it (createuser), or correct the user in the "
        "connection string",
        False,
    ),
    (
        r"no password supplied",
        "the server wants a password of role {user}; put it into the connection string, PGPASSWORD or a .pgpass file",
        False,
    ),
    (
        r"authentication failed|SASL|SCRAM",
        "the server does not accept role {user} with this password; correct them, and percent-encode special "
        "characters of the password",
        False,
    ),
    (
        r"permission denied for database",
        "role {user} may not connect to database {dbname}; grant it connect on the database",
        False,
    ),
    (
        r"pg_hba\.conf",
        "the server lets role {user} into database {dbname} neither from here nor in this way; add a line to its "
        "pg_hba.conf, or try sslmode=require",
        False,
    ),
    (r"resolve|translate host name", "there is no host {host}; correct its name in the connection string", True),
    (
        r"refused|No such file or directory|Permission denied",
        "no PostgreSQL server listens at {host}, port {port}; start it, or correct host and port in the connection "
        "string",
        True,
    ),
    (
        r"timeout|timed out|unreachable|No route",
        "nothing answers at {host}, port {port}; correct host and port in the connection string, or let the network "
        "through to them",
        True,
    ),
    (
        r"SSL|certificate",
        "the server at {host}, port {port} and this connection string do not agree on SSL; correct sslmode and the "
        "certificates",
        False,
    ),
)
_UNKNOWN: Final = (
    "no connection can be made to the server at {host}, port {port}; check host, port, database, user, password and "
    "options of the connection string"
)


def reach(dsn: str) -> None:
    """Make one connection and end it.

    Args:
        dsn: A connection string that can be read.

    Raises:
        StoreUnavailableError: If none can be made and waiting a little would not mend it: why, and what to do, with
            no password.
    """
    has_timeout = "connect_timeout" in _parts(dsn) or "PGCONNECT_TIMEOUT" in os.environ
    try:
        psycopg.connect(dsn if has_timeout else make_conninfo(dsn, connect_timeout=_TIMEOUT)).close()
    except psycopg.Error as error:
        refusal = refusal_of(str(error), dsn)
    else:
        return
    if refusal is not None:
        raise refusal  # outside of the handler: the driver's own words go nowhere


def refusal_of(words: str, dsn: str) -> StoreUnavailableError | None:
    """Why no connection was made; None if it may be made in a moment.

    Args:
        words: The driver's.
        dsn: The connection string.
    """
    if _PASSING.search(words):
        return None
    for pattern, message, retryable in _REASONS:
        if re.search(pattern, words):
            return StoreUnavailableError(message.format_map(_names(dsn)), retryable=retryable)
    return StoreUnavailableError(_UNKNOWN.format_map(_names(dsn)), retryable=True)


def _names(dsn: str) -> dict[str, str]:
    """What the connection string names, or else the environment, quoted.

    An ``@`` beyond the user tells that the string was read otherwise than it was meant: any of its parts may then be a
    part of the password, and none is named.
    """
    defaults = {option.keyword.decode(): option.val.decode() for option in Conninfo.get_defaults() if option.val}
    parts = defaults | _parts(dsn)
    read_well = not any("@" in str(parts.get(name, "")) for name in ("host", "hostaddr", "port", "dbname"))
    named = {name: repr(str(value)) for name, value in parts.items()} if read_well else {}
    user = named.get("user", "of this name")
    return {
        "host": named.get("host") or named.get("hostaddr", "this machine" if read_well else "the given host"),
        "port": named.get("port", "as given").strip("'"),
        "dbname": named.get("dbname", user),
        "user": user,
    }


def _parts(dsn: str) -> dict[str, Any]:
    return conninfo_to_dict(dsn)
