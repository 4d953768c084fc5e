"""Cursors of ``list``: opaque, bound to a scope and its filters, good for ever.

Owns their form. A cursor holds a place in the scope and a digest of what was listed, no text and no id.
"""

from __future__ import annotations

import base64
import binascii
import json
from typing import Any

from vmem_core.errors import InvalidRequestError
from vmem_core.text import check_string

_BYTES = 9


def _binding(scope_key: str, filters: tuple[Any, ...]) -> bytes:
    import hashlib

    return hashlib.sha256(json.dumps([scope_key, filters]).encode("utf-8")).digest()[:_BYTES]


def make(number: int, scope_key: str, filters: tuple[Any, ...]) -> str:
    """The cursor of the page that goes on before a record's number.

    >>> read(make(7, "scope", ()), "scope", ())
    7
    """
    return base64.urlsafe_b64encode(number.to_bytes(6, "big") + _binding(scope_key, filters)).decode("ascii")


def read(cursor: object, scope_key: str, filters: tuple[Any, ...]) -> int:
    """The number a cursor goes on before.

    Raises:
        InvalidRequestError: If the cursor is not one of ours, or is of another scope or other filters.
    """
    text = check_string(cursor, "cursor")
    try:
        data = base64.b64decode(text.encode("ascii"), altchars=b"-_", validate=True)
    except (UnicodeEncodeError, binascii.Error):
        data = b""
    if len(data) != 6 + _BYTES or data[6:] != _binding(scope_key, filters):
        raise InvalidRequestError("is not a cursor of this scope with these filters; start without one", path="cursor")
    return int.from_bytes(data[:6], "big")
