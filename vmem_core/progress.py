"""How far a long job has come: a bar in a notebook, a line on a terminal.

Owns when and where it is drawn. Does not own its looks in a notebook (``display``); the jobs call any callable.
"""

from __future__ import annotations

import importlib
import sys
from typing import Any, Final

from vmem_core import display

_ROOM: Final = 79


class ProgressBar:
    """Shows how far a job is: pass a new one as ``progress=`` to ``reembed``, ``import_legacy`` or ``diagnose``.

    In a notebook it is a bar that moves in place, on a terminal one line on standard error, elsewhere nothing: a log
    keeps no bars. It may be called from any thread.

    Args:
        label: What is being done, in a few words.

    >>> from vmem_core import InMemoryStore, import_legacy, run_sync
    >>> old = [{"id": "m-1", "text": "Ada prefers tea.", "scope": {"user_id": "ada"}}]
    >>> run_sync(import_legacy(old, InMemoryStore(), progress=ProgressBar("importing"))).imported
    1
    """

    def __init__(self, label: str = "records") -> None:
        self._label = label
        self._cell = _cell(display.progress(label, 0, None))

    def __call__(self, done: int, total: int | None = None) -> None:
        """Draw the bar.

        Args:
            done: How many records are done.
            total: How many there are in all; None if nobody knows.
        """
        page, line = display.progress(self._label, done, total)
        if self._cell is not None:
            self._cell.update({"text/html": page, "text/plain": line}, raw=True)
        elif sys.stderr is not None and sys.stderr.isatty():
            end = "\n" if done == total else ""
            sys.stderr.write(f"\r{line[:_ROOM]:<{_ROOM}}{end}")
            sys.stderr.flush()


def _cell(first: tuple[str, str]) -> Any:
    """A place in the output of the notebook's cell that can be drawn again, or None outside of a notebook."""
    shell = sys.modules["IPython"].get_ipython() if "IPython" in sys.modules else None
    if shell is None or not hasattr(shell, "kernel"):
        return None
    page, line = first
    show = importlib.import_module("IPython.display").display
    return show({"text/html": page, "text/plain": line}, raw=True, display_id=True)
