"""Waiting for what must come to its end, whoever is cancelled meanwhile.

Owns that a cancellation is kept until then. Does not own what is waited for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import asyncio


async def until_done(future: asyncio.Future[Any]) -> None:
    """Wait until a future is done; a cancellation that came meanwhile is raised then, and not passed on to it.

    ``asyncio.shield`` also spares the future, but lets its waiter go on at once, with the work still under way.

    Args:
        future: Or a task. Its own error is not raised: ask it for its result.

    Raises:
        asyncio.CancelledError: If the waiter was cancelled, once or more.
    """
    import asyncio

    cancelled: asyncio.CancelledError | None = None
    while not future.done():
        try:
            await asyncio.wait({future})
        except asyncio.CancelledError as error:
            cancelled = error
    if cancelled is not None:
        if not future.cancelled():
            future.exception()  # looked at here: whoever is cancelled asks for no result
        raise cancelled
