"""What may be pruned, and when: the owner's rules for what is kept. Pure.

Owns the rules and the words of the warning. Does not own deleting (the stores); nothing is ever deleted unless a host
asks for it.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from vmem_core.values import check_instant, to_micros


@dataclass(slots=True, repr=False)
class PastRevision:
    """A revision of a record that is not forgotten; all times in microseconds since 1970.

    Args:
        revision: Its number.
        recorded_at: When it was committed.
        current: The record's current revision.
        active: Whether the record is active, by its current revision.
        expires_at: When the record expires, by its current revision; None: never.
    """

    revision: int
    recorded_at: int
    current: int
    active: bool
    expires_at: int | None


def check_cutoff(older_than: object) -> int:
    """A cutoff, in microseconds since 1970.

    Raises:
        InvalidRequestError: For anything but an aware datetime.
    """
    return to_micros(check_instant(older_than, "older_than"))


def is_prunable(past: PastRevision, cutoff: int, now: int) -> bool:
    """Whether a revision's content may go: it is not current, was recorded before the cutoff, and the record is over.

    >>> is_prunable(PastRevision(1, 10, current=2, active=False, expires_at=None), cutoff=11, now=50)
    True
    >>> is_prunable(PastRevision(1, 10, current=2, active=False, expires_at=None), cutoff=10, now=50)
    False
    """
    is_over = not past.active or (past.expires_at is not None and past.expires_at <= now)
    return is_over and past.revision < past.current and past.recorded_at < cutoff


def is_old(committed_at: int, cutoff: int) -> bool:
    """Whether a receipt was committed before the cutoff."""
    return committed_at < cutoff


def warning(count: int, older_than: datetime) -> str:
    """What the log says of receipts that were deleted."""
    return (
        f"prune_operations: {count} receipts committed before {older_than.isoformat()} were deleted; their operation "
        "ids are free again, and a request that is redelivered under one of them will be applied again"
    )
