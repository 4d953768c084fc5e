"""Memory text stays out of every log and every error."""

from __future__ import annotations

import logging
import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest
from fakes import FakeEmbedder, Listener, open_memory, refusal
from sqlite_fakes import gated

from vmem_core import SqliteStore


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "memory.db"


class Kept(logging.Handler):
    """Keeps every line, formatted with its traceback."""

    def __init__(self) -> None:
        super().__init__(logging.DEBUG)
        self.lines: list[str] = []
        self.setFormatter(logging.Formatter("%(name)s %(message)s"))

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(f"{self.format(record)} {record.args!r}")


@pytest.fixture
def log() -> Iterator[Kept]:
    """What every logger says at its most talkative."""
    root, kept = logging.getLogger(), Kept()
    before = root.level
    root.addHandler(kept)
    root.setLevel(logging.DEBUG)
    yield kept
    root.setLevel(before)
    root.removeHandler(kept)


async def test_no_line_of_any_log_holds_memory_text(path: Path, log: Kept) -> None:
    word = "Zanzibar"
    listener = Listener(failure=ValueError(f"cannot redact {word}"))
    store, gate = gated(path)
    memory = open_memory(store, embedder=FakeEmbedder(), on_forget=[listener])
    await memory.remember(f"Ada sails to {word}", id="r1", metadata={word: word}, operation_id="k")
    await memory.revise("r1", text=f"{word} again")
    await memory.recall(word, metadata={word: word})
    await refusal(memory.remember(f"another {word}", operation_id="k"))
    await refusal(memory.remember(f"another {word}", id="r1"))
    gate.fail("applied", sqlite3.OperationalError("database or disk is full"))
    await refusal(memory.remember(f"lost {word}"))
    gate.fail("after commit", RuntimeError("a fault"))
    with pytest.raises(RuntimeError):
        await memory.remember(f"answer lost {word}")
    assert (await memory.forget("r1")).redaction == "failed"
    await store.scrub()
    await store.close()
    assert [line for line in log.lines if line.startswith("aiosqlite executing <vmem job>")]
    assert [line for line in log.lines if line.startswith("vmem_core ")]
    assert not [line for line in log.lines if word.lower() in line.lower()]


async def test_no_error_holds_memory_text_nor_does_its_cause(path: Path) -> None:
    word = "Zanzibar"
    store = SqliteStore(path)
    memory = open_memory(store)
    await memory.remember(f"Ada sails to {word}", id="r1", operation_id="k")
    errors: list[BaseException | None] = [
        await refusal(memory.remember(f"another {word}", operation_id="k")),
        await refusal(memory.remember(f"another {word}", id="r1")),
        await refusal(memory.revise("r1", text=word, expected_revision=9)),
        await refusal(memory.remember(word * 20_000)),
        await refusal(memory.remember("x", metadata={"x": [word, {word}]})),
    ]
    while errors:
        error = errors.pop()
        if error is not None:
            assert word not in f"{error!r} {error} {error.args} {vars(error)}"
            errors += [error.__cause__, error.__context__]
    await store.close()
