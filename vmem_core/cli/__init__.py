"""The command line ``vmem``: look at a memory file, take memories in and out, and forget what it should not hold.

Owns the entry point, which needs nothing but the standard library, so that it can say what to install. The commands
are in ``commands.py`` and ``moving.py``, which file and scope they work on in ``opening.py``, how things look in
``output.py``. Loaded by no other part of the library.
"""

from __future__ import annotations

import logging
import sys

_EXTRA = {"typer", "rich"}


def main() -> None:
    """Run ``vmem``, or say which extra it needs. Ends the process with the command's exit code."""
    try:
        from vmem_core.cli import moving  # noqa: F401 - its commands join the others
        from vmem_core.cli.commands import app
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in _EXTRA:
            raise
        sys.stderr.write('vmem: the command line needs the extra "cli": pip install "versioned-memory[cli]"\n')
        sys.exit(1)
    for stream in (sys.stdout, sys.stderr):
        if callable(getattr(stream, "reconfigure", None)):
            # A terminal that cannot show a letter of a memory shows its code point; it is no reason to stop.
            stream.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]
    # A pool of the driver logs each attempt to connect; what came of it is said by the command, in one line.
    logging.getLogger("psycopg").addHandler(logging.NullHandler())
    app(prog_name="vmem")
