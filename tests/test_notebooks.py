"""Every notebook runs from top to bottom, with no key and no network, and prints no error."""

from __future__ import annotations

import re
import socket
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient
from pytest_socket import SocketBlockedError

from vmem_core.display.style import SHEET

NOTEBOOKS = sorted((Path(__file__).resolve().parent.parent / "notebooks").glob("*.ipynb"))

# Run in the kernel before the first cell: what a notebook may reach is this machine, nothing else.
_OFFLINE = """
import os as _os, socket as _socket
_os.environ["HF_HUB_OFFLINE"] = "1"
_real_connect = _socket.socket.connect
def _connect(self, address):
    if isinstance(address, tuple) and address[0] not in ("127.0.0.1", "::1", "localhost"):
        raise OSError("a notebook must run without a network")
    return _real_connect(self, address)
_socket.socket.connect = _connect
"""


# The kernel talks to its client over ports of this machine.
@pytest.mark.enable_socket
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_runs_from_top_to_bottom(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JUPYTER_PLATFORM_DIRS", "1")
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))
    work = tmp_path / "work"
    work.mkdir()
    notebook = nbformat.read(path, as_version=4)
    notebook.cells.insert(0, nbformat.v4.new_code_cell(_OFFLINE))
    client = NotebookClient(notebook, timeout=240, kernel_name="python3", resources={"metadata": {"path": str(work)}})
    client.execute()
    assert any(cell.get("outputs") for cell in notebook.cells[1:]), "a notebook that shows nothing teaches nothing"


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_is_kept_without_outputs_of_one_machine(path: Path) -> None:
    notebook = nbformat.read(path, as_version=4)
    nbformat.validate(notebook)
    assert not [cell for cell in notebook.cells for out in cell.get("outputs", []) if out.output_type == "error"]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_shows_its_values_as_they_show_themselves_today(path: Path) -> None:
    outputs = [out for cell in nbformat.read(path, as_version=4).cells for out in cell.get("outputs", [])]
    pages = [out.data["text/html"] for out in outputs if "text/html" in out.get("data", {})]
    assert pages, "run it, and keep what it shows"
    assert [page[:200] for page in pages if SHEET not in page] == []


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_ends_with_where_to_go_next(path: Path) -> None:
    last = nbformat.read(path, as_version=4).cells[-1]
    assert last.cell_type == "markdown"
    assert re.search(r"^## (Next|Where to go next)$", last.source, re.MULTILINE)
    links = [link for link in re.findall(r"\]\(([^)]+)\)", last.source) if "://" not in link]
    assert len(links) >= 2
    assert not [link for link in links if not (path.parent / link.partition("#")[0]).exists()]


def test_the_network_is_closed_to_other_tests() -> None:
    with pytest.warns(UserWarning, match="tried to use"), pytest.raises(SocketBlockedError):
        socket.socket(socket.AF_INET)
