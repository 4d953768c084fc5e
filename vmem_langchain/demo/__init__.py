"""The demo that ``vmem demo`` runs: a real agent with memory tools over one SQLite file, driven by a scripted model.

Owns the run as a whole. The steps are in ``story.py``, the agent and its printing in ``tour.py``, the model in
``script.py``. Needs no key and no network. A line with a check mark was compared with what the store and the tools
really answered; where that is not as promised the demo says so and ends.
"""

from __future__ import annotations

from rich.console import Console

from vmem_core import SqliteStore
from vmem_langchain.demo.script import NotAsPromised
from vmem_langchain.demo.story import tell
from vmem_langchain.demo.tour import Tour

__all__ = ["run"]


def run(store: SqliteStore, path: str, out: Console, *, store_option: str = "") -> bool:
    """Run the demo in the demo's own scope of a store, which it leaves filled.

    Args:
        store: Where the memory is kept.
        path: Its file, to be searched for what was forgotten.
        out: Where the story is printed.
        store_option: How the commands named at the end are to be told of the file, such as ``"--store other.db"``.

    Returns:
        Whether everything was as promised.

    Raises:
        UnsupportedError: If the store holds vectors of another embedder, or the ``local`` extra is missing.
        VmemError: If the store cannot be used.
    """
    tour = Tour(store, path, out)
    try:
        tell(tour, store_option)
    except NotAsPromised as missed:
        tour.fail(str(missed))
        return False
    return True
