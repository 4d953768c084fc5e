"""``vmem reembed``: embedders by name, what is printed, exit codes, Ctrl-C, and the bar that only a terminal sees."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from fakes import FakeEmbedder
from test_cli import ADA, ROOT, Run, fill, vmem  # noqa: F401 - a fixture is asked for by its name

from vmem_core import Draft, Generation, LocalEmbedder, SqliteStore

EMBEDDERS = """
from vmem_core import Embeddings

class Letters:
    def __init__(self, bad=None, model="letters"):
        self.bad, self.model = bad, model

    def embed(self, texts, *, purpose):
        if self.bad and any(self.bad in text for text in texts):
            raise ValueError(f"cannot embed {texts!r}")
        return Embeddings([[text.count("a") + 1, text.count("e"), 0] for text in texts], self.model)

class Inner:
    letters = Letters()

def function(texts, *, purpose):
    return Letters().embed(texts, purpose=purpose)

picky = Letters("boat")
weak = Letters("a")
empty = lambda texts, *, purpose: Embeddings([[0, 0, 0] for text in texts], "letters")
number = 5
"""


@pytest.fixture
def records(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file with three records and vectors of a fake model, and a module with embedders beside it."""
    session = fill(tmp_path / "vmem.db", embedder=FakeEmbedder())
    texts = ("Ada likes tea.", "SECRET boat", "Ada has two cats.")
    session.sync.remember_many([Draft(text, f"id{n}") for n, text in enumerate(texts)])
    session.store.sync.close()
    (tmp_path / "letter_models.py").write_text(EMBEDDERS, encoding="utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "letter_models", raising=False)
    return tmp_path / "vmem.db"


def active(path: Path) -> Generation | None:
    store = SqliteStore(path)
    found: Generation | None = store.sync.embeddings.active()
    assert len(list(store.sync.scopes())) == 1
    store.sync.close()
    return found


@pytest.mark.parametrize("name", ["Letters", "Inner.letters", "function"])
def test_a_store_moves_to_an_embedder_that_is_named(vmem: Run, records: Path, name: str) -> None:  # noqa: F811
    ran = vmem("reembed", "--embedder", f"letter_models:{name}")
    assert (ran.code, ran.err) == (0, "")
    assert ran.out.splitlines() == [
        "3 records embedded with letters (3 dimensions)", "vmem.db searches with generation 2",
    ]  # fmt: skip
    assert active(records) == Generation(2, "letters", 3, "active")
    again = vmem("reembed", "--embedder", f"letter_models:{name}", "--model-id", "letters", "--dims", "3")
    assert again.out.splitlines()[0] == "0 records embedded with letters (3 dimensions)"


def test_without_a_name_the_local_embedder_is_used(vmem: Run, records: Path) -> None:  # noqa: F811
    ran = vmem("reembed", "--batch-size", "2", "--concurrency", "2", "--json")
    assert ran.code == 0
    assert json.loads(ran.out) == {
        "generation": 2, "embedded": 3, "skipped": 0, "activated": True, "reasons": {}, "failed": [],
    }  # fmt: skip
    assert active(records) == Generation(2, LocalEmbedder.model, 256, "active")
    assert "by meaning and words" in vmem("search", "pets").out


def test_a_text_that_cannot_be_embedded_is_named_by_its_id_and_nothing_switches(
    vmem: Run,  # noqa: F811
    records: Path,
) -> None:
    ran = vmem("reembed", "--embedder", "letter_models:picky")
    assert ran.code == 1
    assert ran.out.splitlines() == [
        "2 records embedded with letters (3 dimensions)", "1 could not be embedded: id1",
        "the store has not switched: revise or forget these records, and run the same command again",
    ]  # fmt: skip
    assert "SECRET" not in ran.out + ran.err
    assert active(records) == Generation(1, "fake-a", 8, "active")
    told = json.loads(vmem("reembed", "--embedder", "letter_models:picky", "--json").out)
    assert (told["reasons"], told["failed"], told["activated"]) == ({"failed": 1}, ["id1"], False)
    vmem("forget", "id1", "--yes")
    assert vmem("reembed", "--embedder", "letter_models:picky").code == 0


def test_texts_without_a_vector_are_told(vmem: Run, records: Path) -> None:  # noqa: F811
    ran = vmem("reembed", "--embedder", "letter_models:empty")
    assert ran.code == 0
    assert "3 have no vector of this model and are found by their words" in ran.out


@pytest.mark.parametrize(
    ("name", "code", "message"),
    [
        ("letter_models", 2, "--embedder 'letter_models' is not module:name, such as my_models:embedder"),
        (":x", 2, "--embedder ':x' is not module:name, such as my_models:embedder"),
        ("no_such_models:x", 2, "cannot be loaded: ModuleNotFoundError: No module named 'no_such_models'"),
        ("letter_models:none", 2, "cannot be loaded: AttributeError: "),
        ("letter_models:number", 1, "embedder: must have embed(texts, *, purpose) or be such a callable"),
        ("letter_models:weak", 1, "the embedder failed: ValueError; what was embedded is kept; run the same command"),
    ],
)
def test_an_embedder_that_is_none_is_refused_in_one_line(
    vmem: Run,  # noqa: F811
    records: Path,
    name: str,
    code: int,
    message: str,
) -> None:
    ran = vmem("reembed", "--embedder", name)
    assert (ran.code, ran.out) == (code, "")
    assert ran.err.startswith("vmem: ")
    assert message in ran.err
    assert len(ran.err.splitlines()) == 1
    assert active(records) == Generation(1, "fake-a", 8, "active")


@pytest.mark.parametrize(("option", "given", "found"), [("--model-id", "other", "letters"), ("--dims", "4", "3")])
def test_what_is_given_about_an_embedder_must_be_what_it_answers_with(
    vmem: Run,  # noqa: F811
    records: Path,
    option: str,
    given: str,
    found: str,
) -> None:
    ran = vmem("reembed", "--embedder", "letter_models:function", option, given)
    assert ran.code == 2
    assert ran.err == f"vmem: {option} {given} is not what the embedder answers with: {found}; leave the option out\n"
    both = vmem("reembed", "--embedder", "letter_models:function", "--model-id", "other", "--dims", "3")
    assert both.code == 1
    assert both.err.startswith("vmem: this vector is of 'letters' with 3 dimensions, the store's generation of 'other'")
    assert active(records) == Generation(1, "fake-a", 8, "active")


def test_a_file_that_is_not_there_is_not_made_by_reembed(vmem: Run, tmp_path: Path) -> None:  # noqa: F811
    ran = vmem("reembed", "--store", "none.db")
    assert ran.code == 1
    assert "there is no file none.db" in ran.err
    assert list(tmp_path.iterdir()) == []


def test_a_bar_is_seen_on_a_terminal_alone(
    vmem: Run,  # noqa: F811
    records: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    ran = vmem("reembed", "--json")
    assert "re-embedding" in ran.err
    assert "3/3" in ran.err
    assert json.loads(ran.out)["activated"] is True


INTERRUPTED = """
import asyncio, os, signal
from vmem_core import Embeddings

signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell in the background lets its children ignore Ctrl-C
calls = 0

async def embed(texts, *, purpose):
    global calls
    calls += 1
    if calls == 2:
        os.kill(os.getpid(), signal.SIGINT)
        await asyncio.Event().wait()
    return Embeddings([[1.0, 2.0] for text in texts], "two")
"""


def test_ctrl_c_leaves_a_job_that_the_next_call_ends(vmem: Run, records: Path, tmp_path: Path) -> None:  # noqa: F811
    (tmp_path / "interrupting.py").write_text(INTERRUPTED, encoding="utf-8")
    options = ["reembed", "--embedder", "interrupting:embed", "--model-id", "two", "--dims", "2", "--batch-size", "2"]
    ran = subprocess.run(
        [sys.executable, "-W", "error", "-c", "from vmem_core.cli import main; main()", *options],
        capture_output=True, text=True, cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    assert (ran.returncode, ran.stdout) == (130, "")
    assert ran.stderr == "vmem: stopped; what was embedded is kept; run the same command again to go on\n"
    assert active(records) == Generation(1, "fake-a", 8, "active")
    store = SqliteStore(records)
    assert store.sync.embeddings.missing(2) == 1
    store.sync.close()
    (tmp_path / "interrupting.py").write_text(INTERRUPTED.replace("calls == 2", "False"), encoding="utf-8")
    again = vmem(*options)
    assert again.code == 0
    assert again.out.splitlines()[0] == "1 record embedded with two (2 dimensions)"


def test_reembed_is_of_every_scope_and_needs_none(vmem: Run, tmp_path: Path) -> None:  # noqa: F811
    from vmem_core import Scope

    for scope in (ADA, Scope(user_id="bob")):
        session = fill(tmp_path / "vmem.db", scope)
        session.sync.remember("likes tea")
        session.store.sync.close()
    assert vmem("reembed").out.startswith("2 records embedded with wordllama-l2-256")
