"""A transaction of many steps, fed by an event loop: on a connection and a thread of its own.

Owns the thread, and that a step which is running when its caller is cancelled ends before the transaction does. Does
not own connections or what the steps do.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, asynccontextmanager
from typing import Any, TypeVar

T = TypeVar("T")
Run = Callable[..., Any]


@asynccontextmanager
async def steps(
    transaction: AbstractContextManager[T], meaning: Callable[[BaseException], BaseException]
) -> AsyncIterator[tuple[T, Run]]:
    """A transaction whose steps run one after the other in another thread.

    Args:
        transaction: Entered and left on that thread.
        meaning: Our error for one of the driver's.

    Yields:
        What the transaction gives, and an async function that runs a function with arguments as the next step.
    """
    thread = ThreadPoolExecutor(1, "vmem-steps")

    async def run(function: Callable[..., Any], *arguments: Any) -> Any:
        try:
            return await asyncio.get_running_loop().run_in_executor(thread, function, *arguments)
        except Exception as error:
            meant = meaning(error)
            if meant is error:
                raise
            raise meant from None  # the driver's details may quote values

    try:
        entered = await run(transaction.__enter__)
        try:
            yield entered, run
        except BaseException:
            await run(_leave, transaction, sys.exc_info())
            raise
        await run(transaction.__exit__, None, None, None)
    finally:
        thread.shutdown(wait=False)


def _leave(transaction: AbstractContextManager[Any], failure: Any) -> None:
    """Leave with an error, which is raised where it belongs."""
    try:
        transaction.__exit__(*failure)
    except BaseException as error:
        if error is not failure[1]:
            raise
