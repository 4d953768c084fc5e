"""Ids and salts: time-ordered UUIDs and random bytes.

Owns how they are made. The operations are handed them, so that tests can be exact.
"""

from __future__ import annotations

import os
import time
import uuid

_VERSION_7 = 0x7 << 76
_VARIANT = 0x2 << 62


def new_id() -> str:
    """A UUID of version 7 (RFC 9562): 48 bits of milliseconds since 1970, then 74 random bits.

    Ids made later sort later, to the millisecond.

    >>> len(new_id()), new_id()[14]
    (36, '7')
    """
    millis = time.time_ns() // 1_000_000
    random = int.from_bytes(os.urandom(10), "big")
    high, low = random >> 68 & 0xFFF, random & (1 << 62) - 1
    return str(uuid.UUID(int=millis << 80 | _VERSION_7 | high << 64 | _VARIANT | low))


def new_salt() -> bytes:
    """16 random bytes for the digest of one request."""
    return os.urandom(16)
