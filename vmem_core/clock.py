"""The clock that stamps commits: handed in, or the machine's.

Owns where time comes from and that it is aware. Does not own when a stamp is taken (the stores) or what it means
(``operations.py``).
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime

from vmem_core.errors import InvalidRequestError
from vmem_core.values import check_instant, to_micros

Clock = Callable[[], datetime]


def system_clock() -> datetime:
    """The machine's time, in UTC."""
    return datetime.now(UTC)


def check_clock(clock: object) -> Clock:
    """A clock of the host, or the machine's for None.

    Raises:
        InvalidRequestError: If it is not callable.
    """
    if clock is None:
        return system_clock
    if not callable(clock):
        raise InvalidRequestError("must be a callable that returns an aware datetime", path="clock")
    return clock


def read_micros(clock: Clock) -> int:
    """The time now, in microseconds since 1970-01-01 UTC.

    Raises:
        InvalidRequestError: If the clock gives a naive datetime or anything else.
    """
    return to_micros(check_instant(clock(), "clock()"))
