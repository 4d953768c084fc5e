"""A transaction of many steps, fed by an event loop: on a connection and a thread of its own.

Owns the thread, that a step which is running when its caller is cancelled ends before the transaction does, and that
a transaction which was entered is left. Does not own connections or what the steps do.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, asynccontextmanager, contextmanager
from typing import Any, TypeVar

from vmem_core.waiting import until_done

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

    inside: list[T] = []  # on that thread alone: only it knows whether a cancelled caller's transaction was entered

    async def run(function: Callable[..., Any], *arguments: Any) -> Any:
        with _meant(meaning):
            return await asyncio.get_running_loop().run_in_executor(thread, function, *arguments)

    async def leave(*failure: Any) -> None:
        left = asyncio.get_running_loop().run_in_executor(thread, _leave, transaction, inside, failure)
        await until_done(left)  # a job that was cancelled in the queue would never run
        with _meant(meaning):
            left.result()

    try:
        try:
            await run(_enter, transaction, inside)
            yield inside[0], run
        except BaseException:
            await leave(*sys.exc_info())
            raise
        await leave(None, None, None)
    finally:
        thread.shutdown(wait=False)


@contextmanager
def _meant(meaning: Callable[[BaseException], BaseException]) -> Iterator[None]:
    """Our errors in place of the driver's."""
    try:
        yield
    except Exception as error:
        meant = meaning(error)
        if meant is error:
            raise
        raise meant from None  # the driver's details may quote values


def _enter(transaction: AbstractContextManager[T], inside: list[T]) -> None:
    inside.append(transaction.__enter__())


def _leave(transaction: AbstractContextManager[T], inside: list[T], failure: Any) -> None:
    """Leave what was entered, after whatever ran when the caller was cancelled; an error is raised where it belongs."""
    if not inside:
        return
    try:
        transaction.__exit__(*failure)
    except BaseException as error:
        if error is not failure[1]:
            raise
