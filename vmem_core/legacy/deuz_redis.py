"""Records of the Deuz SDK's legacy memory in Redis.

Owns the keys: the set ``<prefix>:mem:ix:all`` holds the ids, some of which may have no record any more, and the string
``<prefix>:mem:rec:<URL-encoded id>`` one record as JSON. Does not own a record's fields (``deuz.py``).
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Sequence
from typing import Any, Final
from urllib.parse import quote

from vmem_core.errors import InvalidRequestError, StoreUnavailableError, UnsupportedError
from vmem_core.legacy.deuz import record_of_object
from vmem_core.legacy.records import LegacyRecord
from vmem_core.text import check_text

_KEYS: Final = 500
_UNESCAPED: Final = "!'()*~-_."  # what encodeURIComponent of JavaScript leaves as it is, besides letters and digits


async def from_deuz_redis(url: str, prefix: str = "deuz") -> AsyncIterator[LegacyRecord]:
    """Legacy records from Redis, in no particular order. An id without a record is passed over.

    Args:
        url: Such as ``redis://localhost:6379/0`` or ``unix:///run/redis.sock``.
        prefix: Before every key.

    Raises:
        InvalidRequestError: For a wrong argument.
        StoreUnavailableError: If the server cannot be reached or gives up.
        UnsupportedError: Without the extra ``redis``.
    """
    client = _client(check_text(url, "url"))
    prefix = check_text(prefix, "prefix")
    errors = _errors()
    try:
        async for ids in _ids(client, f"{prefix}:mem:ix:all"):
            keys = [f"{prefix}:mem:rec:".encode() + quote(one, safe=_UNESCAPED).encode() for one in ids]
            for one, text in zip(ids, await client.mget(keys), strict=True):
                if text is not None:
                    yield _record(one, text)
    except errors as error:
        raise StoreUnavailableError(
            f"Redis cannot be read ({type(error).__name__}); check its address and the prefix", retryable=True
        ) from None
    finally:
        await client.aclose()


def _client(url: str) -> Any:
    try:
        from redis import asyncio as redis
    except ImportError:
        raise UnsupportedError(
            'from_deuz_redis needs the extra "redis": pip install "versioned-memory[redis]"'
        ) from None
    try:
        return redis.Redis.from_url(url)
    except ValueError:
        raise InvalidRequestError("must be a URL such as redis://localhost:6379/0", path="url") from None


def _errors() -> tuple[type[Exception], ...]:
    from redis.exceptions import RedisError

    return (RedisError, OSError)


async def _ids(client: Any, key: str) -> AsyncIterator[Sequence[bytes]]:
    """The ids of the set, some at a time. A scan may give one twice, which an import then finds imported already."""
    cursor = 0
    while True:
        cursor, ids = await client.sscan(key, cursor, count=_KEYS)
        if ids:
            yield list(ids)
        if cursor == 0:
            return


def _record(record_id: bytes, text: bytes) -> LegacyRecord:
    try:
        item = json.loads(text)
    except (ValueError, RecursionError):
        item = None
    if not isinstance(item, dict):
        return LegacyRecord(record_id.decode("utf-8", "replace"), fault="unreadable")
    return record_of_object({"id": record_id.decode("utf-8", "replace"), **item})
