"""``vmem import``, ``vmem export``, ``vmem prune``: what they print, what they refuse, and their exit codes."""

# ruff: noqa: F811 - a fixture is asked for by its name
from __future__ import annotations

import io
import json
import os
import shutil
import stat
import sys
import threading
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from test_cli import ADA, Ran, Run, fill, lines, vmem  # noqa: F401 - a fixture
from test_import_deuz import make_sqlite, make_vault, row

from vmem_core import Scope, SqliteStore
from vmem_core.cli import moving

DATA = Path(__file__).parent / "data"
OLD = datetime(2026, 1, 1, tzinfo=UTC)


@pytest.fixture
def mem0(tmp_path: Path) -> str:
    shutil.copy(DATA / "mem0-get-all-2.2.1.json", tmp_path / "mem0.json")
    return "mem0.json"


def at(moment: datetime) -> Callable[[], datetime]:
    return lambda: moment


# --------------------------------------------------------------------------------------------------------- import


def test_import_counts_what_it_took_and_what_it_left_and_again_takes_nothing(vmem: Run, mem0: str) -> None:
    dry = vmem("import", mem0, "--dry-run")
    assert lines(dry.out) == [
        "6 read, 5 would be imported, 1 skipped", "         1  expired", "a dry run: nothing was written",
    ]  # fmt: skip
    assert not Path("vmem.db").exists()
    first = vmem("import", mem0)
    assert (first.code, lines(first.out), first.err) == (
        0,
        ["6 read, 5 imported, 1 skipped", "         1  expired"],
        "",
    )
    assert json.loads(vmem("import", mem0, "--json").out) == {
        "from": "mem0", "dry_run": False, "scanned": 6, "imported": 0, "skipped": 6,
        "reasons": {"already_imported": 5, "expired": 1},
    }  # fmt: skip
    assert lines(vmem("import", mem0, "--dry-run").out)[0] == "6 read, 0 would be imported, 6 skipped"
    assert "Ada prefers green tea." in vmem("search", "green tea", "--scope", "user_id=ada").out


def test_import_tells_what_a_source_is_by_its_address_and_its_first_bytes(vmem: Run, tmp_path: Path) -> None:
    make_sqlite(tmp_path / "app.db", [row("a", "from a table")])
    (tmp_path / "vault").mkdir()
    make_vault(tmp_path / "vault", [row("b", "from a vault")])
    (tmp_path / "old.jsonl").write_text('{"key": "c", "said": "from lines"}\n{"said": "no id"}\n')
    assert "1 imported" in vmem("import", "app.db").out
    assert "1 imported" in vmem("import", "vault").out
    options = ("--text", "said", "--id", "key", "--scope", "user_id=ada", "--origin", "asserted", "--prefix", "old")
    assert lines(vmem("import", "old.jsonl", *options).out) == ["2 read, 1 imported, 1 skipped", "         1  no_id"]
    assert "2 imported" in vmem("import", "old.jsonl", "--text", "said", "--id", "", "--scope", "user_id=bob").out
    shown = json.loads(vmem("show", "c", "--scope", "user_id=ada", "--json").out)
    assert (shown["text"], shown["origin"], shown["operation_id"]) == ("from lines", "asserted", "old:c")


def test_a_legacy_file_may_become_the_store_itself_and_no_other_program_s_file_does(vmem: Run, tmp_path: Path) -> None:
    make_sqlite(tmp_path / "app.db", [row("a", "one")])
    make_sqlite(tmp_path / "other.db", [row("b", "two")])
    refused = vmem("import", "app.db", "--store", "other.db")
    assert (refused.code, "is the database of another program" in refused.err) == (1, True)
    assert "1 imported" in vmem("import", "app.db", "--store", "app.db").out
    assert "1 imported" in vmem("import", "other.db", "--store", "app.db").out


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (("missing.json",), 1, "vmem: No such file or directory: missing.json\n"),
        (("notes.txt",), 2, "cannot tell what notes.txt is; say it with --from, one of export, mem0, jsonl"),
        (("notes.txt", "--from", "mem0"), 1, "vmem: path: notes.txt is not JSON in UTF-8\n"),
        (("notes.txt", "--from", "deuz-sqlite"), 1, "cannot be read as a SQLite database"),
        (("notes.txt", "--from", "export"), 1, "vmem: lines[0]: is not JSON; nothing was imported"),
        (("notes.txt", "--from", "tape"), 2, "Invalid value"),
        (("redis://x:1/y",), 1, "vmem: "),
        (("mysql://ada:S3@x/y",), 2,
         "vmem: an import reads files, folders, redis://… and postgresql://…; it knows no mysql://\n"),
        (("notes.txt", "--from", "jsonl", "--store", "mysql://ada:S3@x/y"), 2,
         "vmem: --store takes the path of a file, or postgresql://USER@HOST/DATABASE; mysql:// is neither\n"),
 (("empty.json",), 1, "is no answer of mem0's get_all or export"),
        (("notes.txt", "--from", "jsonl", "--scope", "ada"), 2, "is not field=value"),
        (("notes.txt", "--from", "jsonl", "--prefix", " "), 1, "vmem: operation_prefix: must not be blank\n"),
    ],
)  # fmt: skip
def test_a_mistake_of_an_import_is_one_plain_line(
    vmem: Run,
    tmp_path: Path,
    arguments: tuple[str, ...],
    code: int,
    words: str,
) -> None:
    (tmp_path / "notes.txt").write_bytes(b"just notes \xff\n" * 40)
    (tmp_path / "empty.json").write_text("{}")
    ran = vmem("import", *arguments)
    assert (ran.code, ran.out) == (code, "")
    assert words in ran.err
    assert "Traceback" not in ran.err
    assert "S3" not in ran.err
    assert not Path("vmem.db").exists()


@pytest.mark.parametrize("options", [(), ("--dry-run",), ("--from", "deuz-sqlite")])
def test_a_store_of_this_library_is_no_source_and_the_way_in_is_told(
    vmem: Run, tea: None, options: tuple[str, ...]
) -> None:
    for store in ("copy.db", "vmem.db"):  # also the store itself
        ran = vmem("import", "vmem.db", "--store", store, *options)
        assert (ran.code, ran.out) == (1, "")
        assert lines(ran.err) == [
            "vmem: path: vmem.db is a store of this library, and needs no import: open it as one (vmem list --store), "
            "or write each of its scopes with export_jsonl (vmem export) and import those files"
        ]
    assert not Path("copy.db").exists()


def test_an_import_whose_source_fails_says_how_far_it_came(
    vmem: Run,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def failing(*_: object, **__: object):
        yield moving.LegacyRecord("a", "tea", ADA)
        raise OSError("the disk is gone")

    monkeypatch.setattr(moving, "from_mem0", failing)
    (tmp_path / "x.json").write_text("{}")
    ran = vmem("import", "x.json")
    assert (ran.code, lines(ran.err)) == (1, [
        "vmem: the disk is gone",
        "vmem: import: the source failed after record 1; 1 of them are imported, 0 skipped; what is imported stays, "
        "run the import again to go on",
    ])  # fmt: skip


# --------------------------------------------------------------------------------------------------------- export


@pytest.fixture
def tea(tmp_path: Path) -> None:
    """A store with a past revision, a retracted record and a forgotten one, all of them old."""
    session = fill(tmp_path / "vmem.db", clock=at(OLD))
    memory = session.sync
    memory.remember("Ada drinks tea.", id="tea", operation_id="op")
    memory.revise("tea", text="Ada drinks coffee.")
    memory.retract("tea")
    memory.remember("secret", id="gone")
    memory.forget("gone")
    session.store.sync.close()


def test_a_scope_goes_out_and_in_again_whole(vmem: Run, tea: None, tmp_path: Path) -> None:
    written = vmem("export", "-o", "ada.jsonl", "--json")
    assert json.loads(written.out) == {"scope": {"user_id": "ada"}, "file": "ada.jsonl", "lines": 12}
    assert stat.S_IMODE(Path("ada.jsonl").stat().st_mode) == 0o600
    assert not list(tmp_path.glob("*.part"))
    printed = vmem("export")
    assert (printed.out, printed.err) == (Path("ada.jsonl").read_text(encoding="utf-8"), "")
    assert lines(vmem("import", "ada.jsonl", "--store", "copy.db", "--dry-run").out)[0] == (
        "2 read, 2 would be imported, 0 skipped"
    )
    assert not Path("copy.db").exists()
    assert lines(vmem("import", "ada.jsonl", "--store", "copy.db").out) == ["2 read, 2 imported, 0 skipped"]
    assert vmem("export", "--store", "copy.db").out == printed.out
    for options in ((), ("--dry-run",)):
        refused = vmem("import", "ada.jsonl", "--store", "copy.db", *options)
        assert (refused.code, "an export goes only into a scope that was never written" in refused.err) == (1, True)


def test_a_file_that_was_cut_is_refused_also_by_a_dry_run(vmem: Run, tea: None, tmp_path: Path) -> None:
    vmem("export", "-o", "ada.jsonl")
    whole = Path("ada.jsonl").read_bytes()
    Path("ada.jsonl").write_bytes(whole[: len(whole) // 2])
    for options in ((), ("--dry-run",)):
        ran = vmem("import", "ada.jsonl", "--store", "copy.db", *options)
        assert (ran.code, ran.out) == (1, "")
        assert ran.err.startswith("vmem: lines[")
        assert not list(tmp_path.glob("copy.db*"))


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--scope", "user_id=bob"), "is of scope user_id=ada, which does not agree with --scope user_id=bob"),
        (("--scope", "user_id=ada,chat_id=c"), "does not agree with --scope user_id=ada,chat_id=c"),
        (("--origin", "inferred"), "--origin is not for an export"), (("--prefix", "x"), "--prefix is not for"),
        (("--text", "text"), "--text is not for an export"), (("--id", "id"), "--id is not for an export"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("more", [(), ("--dry-run",), ("--from", "export")])
def test_what_an_export_cannot_be_asked_for_is_refused_before_a_store_is_made(
    vmem: Run, tea: None, options: tuple[str, ...], words: str, more: tuple[str, ...]
) -> None:
    vmem("export", "-o", "ada.jsonl")
    ran = vmem("import", "ada.jsonl", "--store", "copy.db", *options, *more)
    assert (ran.code, ran.out) == (2, "")
    assert words in ran.err
    assert not Path("copy.db").exists()


def test_an_export_whose_scope_agrees_with_the_one_asked_for_goes_in(vmem: Run, tmp_path: Path) -> None:
    session = fill(tmp_path / "vmem.db", Scope(user_id="ada", chat_id="c"))
    session.sync.remember("tea")
    session.store.sync.close()
    vmem("export", "-o", "ada.jsonl")
    ran = vmem("import", "ada.jsonl", "--store", "copy.db", "--scope", "user_id=ada")
    assert (ran.code, ran.out) == (0, "1 read, 1 imported, 0 skipped\n")


def test_an_export_before_which_a_program_put_a_mark_is_read_all_the_same(vmem: Run, tea: None) -> None:
    printed = vmem("export").out
    Path("ada.jsonl").write_text(printed, encoding="utf-8-sig", newline="\r\n")
    for options in (("--dry-run",), ()):
        assert vmem("import", "ada.jsonl", "--store", "copy.db", *options).code == 0
    assert vmem("export", "--store", "copy.db").out == printed


def test_an_export_may_come_through_a_pipe(vmem: Run, tea: None) -> None:
    printed = vmem("export").out
    os.mkfifo("pipe")
    writing = threading.Thread(target=Path("pipe").write_text, args=(printed,), daemon=True)
    writing.start()
    ran = vmem("import", "pipe", "--from", "export", "--store", "copy.db", "--scope", "user_id=ada")
    assert (ran.code, lines(ran.out)) == (0, ["2 read, 2 imported, 0 skipped"])
    writing.join()
    assert vmem("export", "--store", "copy.db").out == printed


@pytest.mark.parametrize("options", [(), ("-o", "typo.jsonl"), ("-o", "there.jsonl", "--force")])
def test_a_scope_that_was_never_written_is_not_exported(vmem: Run, tea: None, options: tuple[str, ...]) -> None:
    Path("there.jsonl").write_text("kept")
    ran = vmem("export", "--scope", "user_id=typo", *options)
    assert (ran.code, ran.out) == (1, "")
    assert lines(ran.err) == [
        "vmem: the store holds nothing of scope user_id=typo; nothing was exported; leave out --scope to choose among "
        "those there are"
    ]
    assert sorted(one.name for one in Path().glob("*.jsonl*")) == ["there.jsonl"]
    assert Path("there.jsonl").read_text() == "kept"


def test_export_writes_over_nothing_unless_it_is_told_to(vmem: Run, tea: None) -> None:
    Path("there.jsonl").write_text("kept")
    refused = vmem("export", "-o", "there.jsonl")
    assert (refused.code, Path("there.jsonl").read_text()) == (1, "kept")
    assert "add --force to write over it" in refused.err
    assert vmem("export", "-o", "there.jsonl", "--force").code == 0
    assert Path("there.jsonl").read_text().startswith('{"format":"vmem-export"')
    assert vmem("export", "--json").code == 2
    missing = vmem("export", "-o", "no/such/folder.jsonl")
    assert (missing.code, missing.err) == (1, "vmem: No such file or directory: no/such/folder.jsonl.part\n")


# ---------------------------------------------------------------------------------------------------------- prune


def test_prune_deletes_what_is_older_and_counts_it(vmem: Run, tea: None) -> None:
    assert vmem("prune", "--history", "2020-01-01").out == "0 revisions deleted\n"
    dry = vmem("prune", "--history", "1d", "--operations", "2026-01-02", "--dry-run")
    assert lines(dry.out) == ["2 revisions would be deleted", "5 receipts would be deleted"]
    told = json.loads(vmem("prune", "--history", "2026-01-02T00:00:00+00:00", "--json").out)
    assert told == {"dry_run": False, "history_before": "2026-01-02T00:00:00+00:00", "revisions": 2}
    assert vmem("prune", "--operations", "1s").out == "5 receipts deleted\n"
    assert vmem("prune", "--history", "1d", "--operations", "1d").out == "0 revisions deleted\n0 receipts deleted\n"


def test_prune_of_another_scope_deletes_nothing(vmem: Run, tea: None) -> None:
    assert vmem("prune", "--history", "1d", "--scope", "user_id=bob").out == "0 revisions deleted\n"
    assert vmem("prune", "--history", "1d", "--scope", "user_id=ada").out == "2 revisions deleted\n"


@pytest.mark.parametrize("arguments", [(), ("--history", "soon"), ("--operations", "-1d"), ("--history", "999999w")])
def test_a_wrong_call_of_prune_is_told_so_and_deletes_nothing(vmem: Run, tea: None, arguments: tuple[str, ...]) -> None:
    ran = vmem("prune", *arguments)
    assert (ran.code, ran.out) == (2, "")
    assert "Traceback" not in ran.err
    assert vmem("prune", "--history", "1d", "--dry-run").out == "2 revisions would be deleted\n"


def test_prune_of_receipts_is_of_all_scopes_and_takes_no_scope(vmem: Run, tea: None) -> None:
    ran = vmem("prune", "--operations", "1s", "--scope", "user_id=bob")
    assert (ran.code, ran.out) == (2, "")
    assert "receipts are pruned in all scopes" in ran.err
    assert vmem("prune", "--operations", "1s", "--dry-run").out == "5 receipts would be deleted\n"


def test_prune_makes_no_file(vmem: Run) -> None:
    assert vmem("prune", "--history", "1d").code == 1
    assert not Path("vmem.db").exists()


# ------------------------------------------------------------------------------------------------------- progress


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_progress_is_shown_on_a_terminal_and_only_there(
    vmem: Run,
    mem0: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    shown = Terminal()
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(sys, "stderr", shown)
    assert vmem("import", mem0).out.startswith("6 read, 5 imported")
    assert "importing" in shown.getvalue()
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    vmem("export", "--scope", "user_id=ada", "-o", "ada.jsonl")
    assert sys.stderr.getvalue() == ""  # type: ignore[attr-defined]


def test_a_cutoff_is_so_long_before_now() -> None:
    now = datetime(2026, 3, 1, tzinfo=UTC)
    ages = {"90s": timedelta(seconds=90), "5m": timedelta(minutes=5), "12h": timedelta(hours=12), "2w": timedelta(14)}
    for age, span in ages.items():
        assert moving._cutoff(age, now, "--history") == now - span
    assert moving._cutoff(None, now, "--history") is None


def test_what_was_imported_on_the_command_line_is_in_the_store(vmem: Run, mem0: str, tmp_path: Path) -> None:
    vmem("import", mem0)
    store = SqliteStore(tmp_path / "vmem.db")
    assert store.sync.scope_revision(ADA) == 4
    store.sync.close()
