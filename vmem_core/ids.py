"""Ids and salts: time-ordered UUIDs and random bytes.

Owns how they are made. The operations are handed them, so that tests can be exact.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator


def new_id() -> str:
    """A UUID of version 7 (RFC 9562): 48 bits of milliseconds since 1970, then 74 random bits.

    Ids made later sort later, to the millisecond.

    >>> len(new_id()), new_id()[14]
    (36, '7')
    """
    millis = time.time_ns() // 1_000_000
    random = os.urandom(10).hex()
    variant = "89ab"[int(random[3], 16) & 3]
    return f"{millis:012x}"[:8] + f"-{millis & 0xFFFF:04x}-7{random[:3]}-{variant}{random[4:7]}-{random[7:19]}"


def new_salt() -> bytes:
    """16 random bytes for the digest of one request."""
    return os.urandom(16)


def new_salts() -> Iterator[bytes]:
    """Salts without end, drawn many at a time."""
    while True:
        drawn = os.urandom(16 * 256)
        for place in range(0, len(drawn), 16):
            yield drawn[place : place + 16]
