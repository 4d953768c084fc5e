"""One connection to a SQLite file on a thread of its own, which runs whole functions.

Owns the thread's life. Does not own what runs there (``_sqlite.py``). The thread never touches an event loop, so that
any loop and any thread may call, and a loop that closes with a call in flight does no harm.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Final, TypeVar

import aiosqlite

from vmem_core.errors import StoreUnavailableError
from vmem_core.stores._calls import Call, settle
from vmem_core.stores._sqlite_errors import translate
from vmem_core.stores._sqlite_setup import StoreConnection

T = TypeVar("T")
_JOIN_SECONDS: Final = 60.0


class _Job:
    """A function on its way to a connection's thread. Its repr is bare: the driver logs jobs at debug level."""

    __slots__ = ("_function",)

    def __init__(self, function: Callable[[], object]) -> None:
        self._function = function

    def __call__(self) -> None:
        self._function()

    def __repr__(self) -> str:
        return "<vmem job>"


class Connection(aiosqlite.Connection):
    """An aiosqlite connection that runs whole functions, without a future that belongs to an event loop."""

    def __init__(self, connector: Callable[[], StoreConnection]) -> None:
        super().__init__(connector, iter_chunk_size=64)
        self._gate = threading.RLock()  # a finalizer may close in the middle of run(), on the same thread
        self._closed: Future[None] | None = None
        self._thread.daemon = True  # a process that forgets close() still exits; the store's finalizer drains first
        self._thread.start()

    def __del__(self) -> None:
        """The store's finalizer closes; there is nobody to warn."""

    def run(self, function: Callable[[], object]) -> None:
        """Queue a function; it must not raise.

        Raises:
            StoreUnavailableError: If the end is queued already: nobody would run it.
        """
        with self._gate:
            if self._closed is not None:
                raise StoreUnavailableError("the store is closed; make a new one for the same file", retryable=False)
            self._tx.put_nowait((None, _Job(function)))

    def submit(self, function: Callable[[StoreConnection], T]) -> Future[T]:
        """Queue a function of the open connection. A future cancelled while it waits is never run."""
        future: Future[T] = Future()

        def make() -> None:
            if future.set_running_or_notify_cancel():
                try:
                    future.set_result(function(self.opened()))
                except BaseException as error:  # noqa: BLE001 - handed to the caller, whatever it is
                    future.set_exception(translate(error))

        self.run(make)
        return future

    def call(self, function: Callable[[StoreConnection], T]) -> Call[T]:
        """Queue a function for whoever awaits it in this loop; cancelled while it waits, it never runs."""
        call: Call[T] = Call()

        def make() -> None:
            if call.claim():
                result: object
                try:
                    result = function(self.opened())
                except BaseException as error:  # noqa: BLE001 - handed to the caller, whatever it is
                    result = translate(error)
                settle([(call, result)])

        self.run(make)
        return call

    def opened(self) -> StoreConnection:
        """The connection, opened on first use. Only from its own thread."""
        if self._connection is None:
            self._connection = self._connector()
        assert isinstance(self._connection, StoreConnection)
        return self._connection

    def finish(self) -> Future[None]:
        """Run what is queued, close, and end the thread; the future is done when the file is closed."""
        with self._gate:
            if self._closed is None:
                self._closed = Future()
                self._closed.set_running_or_notify_cancel()  # whoever waits may be cancelled, the end is not
                self._tx.put_nowait((None, _Job(self._end)))
            return self._closed

    def _end(self) -> None:
        assert self._closed is not None
        # stop() from the thread itself finds no event loop there, so it leaves none to be called back.
        self.stop()
        self.let_go()
        self._closed.set_result(None)

    def let_go(self) -> None:
        """Close the file until the next function needs it. Only from its own thread."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def hold(self, release: threading.Event) -> None:
        """Close the file once what is queued is done, and keep the thread still until the event; then go on."""
        held = threading.Event()

        def keep_still() -> None:
            self.let_go()
            held.set()
            release.wait()

        try:
            self.run(keep_still)
        except StoreUnavailableError:
            self.join()  # the end is queued: it closes the file
        else:
            held.wait()

    def join(self) -> None:
        """Wait for the thread's end."""
        self._thread.join(_JOIN_SECONDS)

    @property
    def is_current(self) -> bool:
        """Whether the caller runs on this connection's thread."""
        return threading.current_thread() is self._thread
