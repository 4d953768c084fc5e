"""Callers that wait in their event loops for what another thread does.

Owns how a result gets from a connection's thread to the loop that waits for it, with one wake-up a loop for a whole
group of results. ``concurrent.futures`` with ``asyncio.wrap_future`` takes a lock, a condition and a wake-up for
each. Does not own what is called (``_sqlite.py``, ``_postgres.py``).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Generator, Iterable
from concurrent.futures import Future
from typing import Any, Generic, TypeVar

T = TypeVar("T")


class Call(Generic[T]):
    """A result to come, awaited in the loop that made it: the cheap form of a future between two threads."""

    __slots__ = ("_unclaimed", "future", "loop")

    def __init__(self) -> None:
        self.loop = asyncio.get_running_loop()
        self.future: asyncio.Future[T] = self.loop.create_future()
        self._unclaimed = [True]

    def __await__(self) -> Generator[Any, None, T]:
        return self.future.__await__()

    def claim(self) -> bool:
        """Whether to make the call now: once only, and not when its waiter was cancelled. From any thread."""
        try:
            self._unclaimed.pop()  # of two threads one gets it
        except IndexError:
            return False
        return not self.future.cancelled()


def awaited(future: Future[T]) -> Awaitable[T]:
    """A future of another thread, for whatever loop runs here."""
    return asyncio.wrap_future(future)


def settle(results: Iterable[tuple[Call[Any], object]]) -> None:
    """Hand results, or errors, to their waiters; from any thread."""
    by_loop: dict[asyncio.AbstractEventLoop, list[tuple[asyncio.Future[Any], object]]] = {}
    for call, result in results:
        by_loop.setdefault(call.loop, []).append((call.future, result))
    for loop, settled in by_loop.items():
        if not loop.is_closed():
            try:
                loop.call_soon_threadsafe(_set, settled)
            except RuntimeError:
                continue  # closed this very moment: nobody waits there any more


def _set(settled: list[tuple[asyncio.Future[Any], object]]) -> None:
    for future, result in settled:
        if future.done():
            continue  # cancelled meanwhile
        if isinstance(result, BaseException):
            future.set_exception(result)
        else:
            future.set_result(result)
