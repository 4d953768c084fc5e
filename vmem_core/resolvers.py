"""Whose memory: a session, or a host's function that finds one for each run. One agent, many users.

Owns when and where such a function is called and what it may return. Does not own what it is told (the adapters).
"""

from __future__ import annotations

import inspect
from typing import Any

from vmem_core.errors import InvalidRequestError
from vmem_core.session import MemorySession
from vmem_core.sync import run_sync


def check_session_source(source: object, path: str) -> Any:
    """A session, or a function that finds one for each run.

    Raises:
        InvalidRequestError: For anything else.

    >>> check_session_source("ada", "session")
    Traceback (most recent call last):
    vmem_core.errors.InvalidRequestError: session: must be a MemorySession (not its .sync), or a function that takes...
    """
    if isinstance(source, MemorySession) or callable(source):
        return source
    raise InvalidRequestError(
        "must be a MemorySession (not its .sync), or a function that takes a MemoryRequest and returns one", path=path
    )


def resolve_session(source: Any, request: object) -> MemorySession | None:
    """The session of a run, for sync code: a sync resolver is called in the caller's own thread.

    Args:
        source: A session; or a function that is given the request and returns one, or None for no memory.
        request: What the function is told of the run.

    Returns:
        The session, or None if the resolver found none.

    Raises:
        InvalidRequestError: If the resolver returned anything else. What it raises itself is not caught.

    >>> resolve_session(lambda request: None, "a request") is None
    True
    """
    if isinstance(source, MemorySession):
        return source
    found = source(request)
    return _checked(run_sync(_settled(found)) if inspect.isawaitable(found) else found)


async def aresolve_session(source: Any, request: object) -> MemorySession | None:
    """The session of a run, for async code: a sync resolver is called in a thread, so that it may do I/O.

    Args:
        source: A session; or a function that is given the request and returns one, or None for no memory.
        request: What the function is told of the run.

    Returns:
        The session, or None if the resolver found none.

    Raises:
        InvalidRequestError: If the resolver returned anything else. What it raises itself is not caught.

    >>> run_sync(aresolve_session(lambda request: None, "a request")) is None
    True
    """
    if isinstance(source, MemorySession):
        return source
    if inspect.iscoroutinefunction(source) or inspect.iscoroutinefunction(type(source).__call__):
        return _checked(await _settled(source(request)))
    import asyncio

    found = await asyncio.to_thread(source, request)
    return _checked(await _settled(found) if inspect.isawaitable(found) else found)


def required_session(found: MemorySession | None) -> MemorySession:
    """The session of a run that cannot do without one.

    Raises:
        InvalidRequestError: If the resolver found none.
    """
    if found is None:
        raise InvalidRequestError("the resolver found no session for this run, so there is no memory", path="session")
    return found


async def _settled(found: Any) -> Any:
    return await found


def _checked(found: object) -> MemorySession | None:
    if found is None or isinstance(found, MemorySession):
        return found
    raise InvalidRequestError(
        f"the resolver returned {type(found).__name__}; it must return a MemorySession, or None for no memory",
        path="session",
    )
