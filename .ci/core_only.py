"""What an installation without any extra must do: import, remember, recall, forget, on both stores.

Run by ``.ci/run`` in an environment that holds the core alone, from a folder that does not hold the sources.
"""

from __future__ import annotations

import importlib.util
import sys
import tempfile
from pathlib import Path
from typing import Any

import vmem_core
from vmem_core import InMemoryStore, MemorySession, Scope, SqliteStore


def check_environment() -> None:
    """The installed wheel is what is tested, and nothing stands by it that the core did not ask for."""
    assert vmem_core.__file__ is not None
    installed = Path(vmem_core.__file__).resolve()
    assert installed.is_relative_to(Path(sys.prefix).resolve()), (
        f"the sources were imported, not the install: {installed}"
    )
    assert (installed.parent / "py.typed").exists(), "py.typed is not in the wheel"
    extras = ("langchain", "langchain_core", "langgraph", "psycopg", "wordllama", "typer", "opentelemetry", "pytest")
    found = [name for name in extras if importlib.util.find_spec(name)]
    assert not found, f"not a core-only environment: {found}"


def check_store(store: Any) -> None:
    """Write, replay, search, revise, forget, count."""
    memory = MemorySession(store, Scope(user_id="ada")).sync
    tea = memory.remember("Ada drinks green tea in the morning", operation_id="op-1").records[0]
    again = memory.remember("Ada drinks green tea in the morning", operation_id="op-1")
    assert again.replayed
    assert again.records == (tea,)
    memory.remember("Ada keeps bees")
    assert [hit.record.id for hit in memory.recall("drinks tea", top_k=1)] == [tea.id]
    revised = memory.revise(tea.id, text="Ada drinks black tea", expected_revision=1).records[0]
    assert [record.revision for record in memory.history(tea.id)] == [1, revised.revision]
    memory.forget(tea.id)
    assert memory.get(tea.id) is None
    assert memory.count() == 1
    store.sync.close()


def main() -> None:
    """Check both stores, and that a file is found again."""
    check_environment()
    check_store(InMemoryStore())
    with tempfile.TemporaryDirectory() as folder:
        check_store(SqliteStore(Path(folder) / "memory.db"))
        reopened = SqliteStore(Path(folder) / "memory.db")
        assert MemorySession(reopened, Scope(user_id="ada")).sync.count() == 1
        reopened.sync.close()
    print("core-only install: ok")


main()
