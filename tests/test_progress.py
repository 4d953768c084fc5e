"""Progress: a bar where somebody looks, nothing where nobody does."""

from __future__ import annotations

import io
import sys
import types
from typing import Any

import nbformat
import pytest
from nbclient import NotebookClient
from pages import Element, read

from vmem_core import Draft, Embeddings, InMemoryStore, MemorySession, ProgressBar, Scope, import_legacy, run_sync

ADA = Scope(user_id="ada")
OLD = [{"id": f"m-{n}", "text": f"Fact {n}.", "scope": {"user_id": "ada"}} for n in range(7)]


class Cell:
    """Stands in for the output of a cell."""

    def __init__(self, shown: list[dict[str, str]]) -> None:
        self.shown = shown

    def update(self, bundle: dict[str, str], *, raw: bool) -> None:
        assert raw
        self.shown.append(bundle)


@pytest.fixture
def shown(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, str]]:
    """What a notebook was given to show, the first of all included."""
    drawn: list[dict[str, str]] = []

    def display(bundle: dict[str, str], *, raw: bool, display_id: bool) -> Cell:
        assert (raw, display_id) == (True, True)
        drawn.append(bundle)
        return Cell(drawn)

    package, module = types.ModuleType("IPython"), types.ModuleType("IPython.display")
    package.get_ipython = lambda: types.SimpleNamespace(kernel=object())  # type: ignore[attr-defined]
    module.display = display  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "IPython", package)
    monkeypatch.setitem(sys.modules, "IPython.display", module)
    return drawn


def bar_of(bundle: dict[str, str]) -> Element:
    (bar,) = read(bundle["text/html"]).all("progress")
    return bar


def test_an_import_moves_a_bar_in_the_cell_it_was_made_in(shown: list[dict[str, str]]) -> None:
    run_sync(import_legacy(OLD, InMemoryStore(), batch_size=3, progress=ProgressBar("importing")))
    assert [one["text/plain"] for one in shown] == [
        "importing: 0 done", "importing: 3 of 7 (42 %)", "importing: 6 of 7 (85 %)", "importing: 7 of 7 (100 %)"
    ]  # fmt: skip
    assert not read(shown[0]["text/html"]).all("progress")  # how many there are is not known yet
    assert bar_of(shown[1]).attributes == {"max": "7", "value": "3"}
    assert read(shown[1]["text/html"]).all("label")[0].text == "importing: 3 of 7 (42 %)"


def test_a_reembedding_moves_it_from_another_thread(shown: list[dict[str, str]]) -> None:
    memory = MemorySession(InMemoryStore(), ADA).sync
    memory.remember_many([Draft(f"Fact {n}.") for n in range(4)])

    def embed(texts: list[str], *, purpose: str) -> Embeddings:
        return Embeddings([[1.0, len(text)] for text in texts], "m1")

    memory.reembed(embedder=embed, model_id="m1", dims=2, batch_size=2, progress=ProgressBar("re-embedding"))
    lines = [one["text/plain"] for one in shown]
    assert lines[0] == "re-embedding: 0 done"
    assert lines[-1] == "re-embedding: 4 of 4 (100 %)"
    assert "re-embedding: 2 of 4 (50 %)" in lines


def test_a_label_is_no_markup_and_nothing_to_do_is_full(shown: list[dict[str, str]]) -> None:
    ProgressBar("<b>x</b>\x1b[2J")(0, 0)
    assert read(shown[1]["text/html"]).text == "<b>x</b>\\x1b[2J: nothing to do"
    assert bar_of(shown[1]).attributes == {"max": "1", "value": "1"}


class Terminal(io.StringIO):
    def __init__(self, terminal: bool) -> None:
        super().__init__()
        self.terminal = terminal

    def isatty(self) -> bool:
        return self.terminal


@pytest.mark.parametrize("terminal", [True, False])
def test_outside_of_a_notebook_it_is_a_line_on_a_terminal_only(monkeypatch: pytest.MonkeyPatch, terminal: bool) -> None:
    monkeypatch.delitem(sys.modules, "IPython", raising=False)
    monkeypatch.setattr(sys, "stderr", Terminal(terminal))
    bar = ProgressBar("importing")
    bar(3, 7)
    bar(7, 7)
    expected = f"\r{'importing: 3 of 7 (42 %)':<79}\r{'importing: 7 of 7 (100 %)':<79}\n" if terminal else ""
    assert sys.stderr.getvalue() == expected  # type: ignore[attr-defined]


def test_a_shell_that_is_no_notebook_gets_a_line(monkeypatch: pytest.MonkeyPatch) -> None:
    package = types.ModuleType("IPython")
    package.get_ipython = lambda: object()  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "IPython", package)
    monkeypatch.setattr(sys, "stderr", Terminal(True))
    ProgressBar()(1)
    assert sys.stderr.getvalue() == f"\r{'records: 1 done':<79}"  # type: ignore[attr-defined]


@pytest.mark.enable_socket  # the kernel talks to its client over ports of this machine
def test_a_real_notebook_ends_with_a_full_bar(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JUPYTER_PLATFORM_DIRS", "1")
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))
    code = """
from vmem_core import *
memory = MemorySession(InMemoryStore(), Scope(user_id="ada")).sync
memory.remember_many([Draft(f"Fact {n}.") for n in range(6)])
embed = lambda texts, *, purpose: Embeddings([[1.0, len(text)] for text in texts], "m1")
memory.reembed(embedder=embed, model_id="m1", dims=2, batch_size=2, progress=ProgressBar("re-embedding"))
"""
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(code)])
    NotebookClient(
        notebook, timeout=60, kernel_name="python3", resources={"metadata": {"path": str(tmp_path)}}
    ).execute()
    bar, result = notebook.cells[0].outputs
    assert bar["data"]["text/plain"] == "re-embedding: 6 of 6 (100 %)"
    assert bar_of(bar["data"]).attributes == {"max": "6", "value": "6"}
    assert "the store searches with it" in result["data"]["text/html"]
