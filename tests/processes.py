"""Python scripts that run as processes of their own, in step with a test.

They talk in lines through pipes: nobody sleeps, nobody waits for longer than the other takes. A script that writes to
stderr (a traceback, a warning, an "Exception ignored") has failed, whatever its exit code.
"""

from __future__ import annotations

import subprocess
import sys
import textwrap
from pathlib import Path
from types import TracebackType
from typing import Self

ROOT = Path(__file__).resolve().parent.parent
PATIENCE = 50  # seconds until a script that hangs fails its test; no test waits for this

# What every script begins with. argv: the store's file, then what the test hands over.
OPENING = """
import json, os, signal, sys, threading

# A shell that runs the tests in the background lets its children ignore Ctrl-C.
signal.signal(signal.SIGINT, signal.default_int_handler)

PATH, ARGS = sys.argv[1], sys.argv[2:]

def say(value=None):
    print(json.dumps(value), flush=True)

def wait():
    "Until the test goes on."
    assert sys.stdin.readline() == "go\\n"
"""
LIBRARY = """
import asyncio
from datetime import timedelta
from vmem_core import *

SCOPE = Scope(user_id="ada")
"""


class Script:
    """A running script. Leaving the block ends it, by force if it has to be.

    Args:
        code: Follows ``OPENING``, and ``LIBRARY`` if it is wanted.
        path: The store's file.
        arguments: What the script finds in ``ARGS``.
        library: Whether it imports the library, which takes a while.
        environment: Its environment; None: that of the tests.
    """

    def __init__(
        self,
        code: str,
        path: Path,
        *arguments: object,
        library: bool = True,
        environment: dict[str, str] | None = None,
    ) -> None:
        code = OPENING + (LIBRARY if library else "") + textwrap.dedent(code)
        self.process = subprocess.Popen(
            [sys.executable, "-W", "error", "-c", code, str(path), *map(str, arguments)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=ROOT,
            env=environment,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        self.process.kill()
        self.process.communicate()

    def tell(self, line: str = "go") -> None:
        """Let a waiting script go on."""
        assert self.process.stdin is not None
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()

    def hear(self) -> str:
        """The next line that it says, as JSON."""
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            _, errors = self.process.communicate(timeout=PATIENCE)
            raise AssertionError(f"the script ended with {self.process.returncode}: {errors}")
        return line.rstrip("\n")

    def end(self, code: int = 0) -> list[str]:
        """Wait for its end; what it still had to say, in lines."""
        said, errors = self.process.communicate(timeout=PATIENCE)
        if (self.process.returncode, errors) != (code, ""):
            raise AssertionError(f"the script ended with {self.process.returncode}: {said}{errors}")
        return said.splitlines()


def run_script(code: str, path: Path, *arguments: object, environment: dict[str, str] | None = None) -> list[str]:
    """Run a script from beginning to end; the lines it said."""
    with Script(code, path, *arguments, environment=environment) as script:
        return script.end()


def start_together(scripts: list[Script]) -> None:
    """Let scripts go on at the same moment: each has said that it is ready."""
    for script in scripts:
        script.hear()
    for script in scripts:
        script.tell()
