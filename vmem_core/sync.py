"""The sync facade: one background event loop, and the same verbs without ``await``.

Owns the loop's thread, the facade over any object with async verbs, and which loop an async client belongs to. Works
in scripts, threads, notebooks and inside a running loop (which it blocks meanwhile). Does not own any verb: signatures
and docstrings are the object's own.
"""

from __future__ import annotations

import functools
import inspect
import os
import threading
import weakref
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any, TypeVar

from vmem_core.errors import UnsupportedError

if TYPE_CHECKING:
    import asyncio

T = TypeVar("T")
_THREAD = "vmem-sync"  # whose loop serves the sync facades: who runs there was called by sync code


class _Background:
    """An event loop on a daemon thread, made on first use and anew after a fork."""

    def __init__(self) -> None:
        self._reset()

    def _reset(self) -> None:
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._pid = os.getpid()

    def loop(self) -> asyncio.AbstractEventLoop:
        """The running loop; made on first use, and anew in a forked child."""
        import asyncio

        if self._pid != os.getpid():
            self._reset()  # the thread did not survive the fork, and its lock may be held for ever
        with self._lock:
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                self._thread = threading.Thread(target=self._loop.run_forever, name=_THREAD, daemon=True)
                self._thread.start()
            return self._loop

    def call(self, name: str, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine on the loop and wait for it, from any other thread."""
        loop = self.loop()
        if threading.current_thread() is self._thread:
            coroutine.close()
            raise UnsupportedError(
                f"sync.{name}() was called from the library's own event loop, which it would block for ever; "
                f"make the callback async and use `await {name}(...)`"
            )
        import asyncio

        future = asyncio.run_coroutine_threadsafe(coroutine, loop)
        try:
            return future.result()
        except BaseException:
            future.cancel()  # Ctrl-C while waiting: what is queued is not applied
            raise


_BACKGROUND = _Background()


class Facade:
    """An object's async verbs as plain methods. Made by :func:`facade`."""

    def __init__(self, target: Any) -> None:
        self._target = target

    def __getattr__(self, name: str) -> Any:
        # The verbs are methods of the facade's own class; here come the object's other public attributes.
        if name.startswith("_"):
            raise AttributeError(name)
        value = getattr(self._target, name)
        return facade(value) if _verbs_of(value) else value

    def __dir__(self) -> list[str]:
        return [*_verbs_of(self._target), *(name for name in dir(self._target) if not name.startswith("_"))]

    def _call(self, name: str, *args: Any, **kwargs: Any) -> Any:
        return _BACKGROUND.call(name, getattr(self._target, name)(*args, **kwargs))

    def __repr__(self) -> str:
        return f"<sync verbs of {type(self._target).__name__}>"


def _method(name: str, verb: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(verb)
    def call(self: Facade, *args: Any, **kwargs: Any) -> Any:
        return self._call(name, *args, **kwargs)

    # wraps marks nothing as a coroutine function, but keeps the signature, minus the coroutine.
    call.__signature__ = inspect.signature(verb)  # type: ignore[attr-defined]
    return call


def _verbs_of(target: object) -> dict[str, Callable[..., Any]]:
    cls: Any = type(target)
    return _verbs(cls)


@functools.cache
def _verbs(cls: Any) -> dict[str, Callable[..., Any]]:
    """The public coroutine methods of a class."""
    found = inspect.getmembers(cls, inspect.iscoroutinefunction)
    return {name: verb for name, verb in found if not name.startswith("_")}


@functools.cache
def _facade_class(cls: Any) -> type[Facade]:
    verbs = {name: _method(name, verb) for name, verb in _verbs(cls).items()}
    return type(f"Sync{cls.__name__}", (Facade,), {**verbs, "__doc__": f"The verbs of {cls.__name__} without await."})


def facade(target: Any) -> Facade:
    """The sync twin of an object: each public coroutine method, with the same arguments.

    Raises:
        UnsupportedError: From a method that is called on the library's own loop (in an async callback).
    """
    # Loaded here, where threads rarely meet: a fork in the middle of a thread's first import leaves the child with
    # the import's lock, which nobody will ever release.
    import asyncio  # noqa: F401

    cls: Any = type(target)
    return _facade_class(cls)(target)


def run_sync(coroutine: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine to its end on the library's own loop, from any thread, also inside a running loop.

    Args:
        coroutine: It may await anything that is not bound to another loop. Context variables are those of the caller.

    Raises:
        UnsupportedError: If called on the library's own loop, which it would block for ever.

    >>> async def one() -> int:
    ...     return 1
    >>> run_sync(one())
    1
    """
    return _BACKGROUND.call(getattr(coroutine, "__name__", "run_sync"), coroutine)


class FirstLoop:
    """The event loop that an async client belongs to: the first one that it is used on. Another loop cannot use it.

    The library's own loop is never it: who runs there was called by sync code, and wants the client's sync methods.

    >>> async def asks(loop: FirstLoop) -> bool:
    ...     return loop.is_running()
    >>> run_sync(asks(FirstLoop()))
    False
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._loop: weakref.ref[asyncio.AbstractEventLoop] | None = None

    def is_running(self) -> bool:
        """Whether we run on it; on the first call from a loop, it becomes this one."""
        import asyncio

        if threading.current_thread().name == _THREAD:
            return False
        loop = asyncio.get_running_loop()
        with self._lock:
            if self._loop is None:
                self._loop = weakref.ref(loop)
            return self._loop() is loop
