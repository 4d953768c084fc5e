"""A listener between a store and its server: counts round trips, and loses what it is told to lose."""

from __future__ import annotations

import os
import socket
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from urllib.parse import parse_qs, urlparse

_PIECE = 2**20


class Proxy:
    """Hands bytes on, in both directions.

    Attributes:
        uri: Where a store finds the server through this.
        trips: How often bytes for the server followed bytes from it: each is a wait for the network.
        sent: What was sent to the server since the last ``count``.
        refusals: What the next connections get instead of the server, each a code and words.
        lose: Asked with each piece of the server's answer; if it says yes, the connection ends without it.
    """

    def __init__(self, uri: str) -> None:
        folder = parse_qs(urlparse(uri).query)["host"][0]
        self._server = next(path for path in Path(folder).glob(".s.PGSQL.*") if path.suffix != ".lock")
        self._folder = Path(tempfile.mkdtemp(prefix="vmem-proxy-"))
        self.uri = uri.replace(folder, str(self._folder))
        self.trips, self.sent = 0, b""
        self.lose: Callable[[bytes], bool] = lambda answer: False
        self.refusals: list[tuple[str, str]] = []
        self._asking = False
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(self._folder / self._server.name))
        self._listener.listen()
        threading.Thread(target=self._accept, daemon=True).start()

    def count(self) -> None:
        """Begin to count anew."""
        self.trips, self.sent, self._asking = 0, b"", False

    def close(self) -> None:
        self._listener.close()
        os.unlink(self._folder / self._server.name)
        os.rmdir(self._folder)

    def _accept(self) -> None:
        with suppress(OSError):  # closed
            while True:
                client, _ = self._listener.accept()
                if self.refusals:
                    _refuse(client, *self.refusals.pop(0))
                    continue
                server = socket.socket(socket.AF_UNIX)
                server.connect(str(self._server))
                threading.Thread(target=self._up, args=(client, server), daemon=True).start()
                threading.Thread(target=self._down, args=(client, server), daemon=True).start()

    def _up(self, client: socket.socket, server: socket.socket) -> None:
        with suppress(OSError), client, server:  # either side may end it
            while piece := client.recv(_PIECE):
                if not self._asking:
                    self._asking = True
                    self.trips += 1
                self.sent += piece
                server.sendall(piece)

    def _down(self, client: socket.socket, server: socket.socket) -> None:
        with suppress(OSError), client, server:
            while piece := server.recv(_PIECE):
                self._asking = False
                if self.lose(piece):
                    client.shutdown(socket.SHUT_RDWR)
                    return
                client.sendall(piece)


def _refuse(client: socket.socket, code: str, words: str) -> None:
    fields = f"SFATAL\0VFATAL\0C{code}\0M{words}\0\0".encode()
    with client:
        client.recv(_PIECE)
        client.sendall(b"E" + (len(fields) + 4).to_bytes(4, "big") + fields)


@contextmanager
def proxy(uri: str) -> Iterator[Proxy]:
    """A proxy before the server, gone at the end."""
    made = Proxy(uri)
    try:
        yield made
    finally:
        made.close()
