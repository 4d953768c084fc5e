"""``vmem import``, ``vmem export`` and ``vmem prune``: memories in, out, and no longer kept.

Owns these commands, how a source is told from its name, and how long ago is spelt. Progress goes to standard error, and
only where that is a terminal. Does not own what an import or a prune does.
"""

from __future__ import annotations

import enum
import itertools
import json
import os
import re
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any, Final

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from vmem_core import (
    ImportResult,
    InMemoryStore,
    LegacyRecord,
    PostgresStore,
    Scope,
    export_jsonl,
    from_deuz_markdown,
    from_deuz_postgres,
    from_deuz_redis,
    from_deuz_sqlite,
    from_jsonl,
    from_mem0,
    import_jsonl,
    import_legacy,
    run_sync,
)
from vmem_core.cli import opening, output
from vmem_core.cli.commands import DEFAULT_STORE, JsonOption, ScopeOption, StoreOption, app
from vmem_core.cli.opening import Stop
from vmem_core.legacy.records import agrees
from vmem_core.portable import FORMAT, Header, Reader

_NOT_FOR_EXPORTS: Final = {"origin": "--origin", "prefix": "--prefix", "text": "--text", "record_id": "--id"}
_SQLITE_MAGIC: Final = b"SQLite format 3\x00"
_AGE: Final = re.compile(r"(\d{1,6})([smhdw])")
_UNITS: Final = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days", "w": "weeks"}
DryRunOption = Annotated[bool, typer.Option("--dry-run", help="Count only; nothing is written.")]
ImportScopeOption = Annotated[
    list[str] | None,
    typer.Option(
        "--scope",
        metavar="FIELD=VALUE",
        help="Only records that agree with it, such as user_id=ada; and the scope of those that have none.",
    ),
]
PruneScopeOption = Annotated[
    list[str] | None,
    typer.Option("--scope", metavar="FIELD=VALUE", help="Only this scope's history; all scopes if left out."),
]


class System(enum.StrEnum):
    """What a source can be."""

    EXPORT = "export"
    MEM0 = "mem0"
    JSONL = "jsonl"
    DEUZ_SQLITE = "deuz-sqlite"
    DEUZ_POSTGRES = "deuz-postgres"
    DEUZ_MARKDOWN = "deuz-markdown"
    DEUZ_REDIS = "deuz-redis"


class Origins(enum.StrEnum):
    """What the imported records are."""

    INFERRED = "inferred"
    ASSERTED = "asserted"


# --- import -----------------------------------------------------------------------------------------------------


@app.command("import")
def import_(
    context: typer.Context,
    source: Annotated[str, typer.Argument(metavar="SOURCE", help="A file, a folder, or the address of a database.")],
    store: StoreOption = DEFAULT_STORE,
    system: Annotated[
        System | None, typer.Option("--from", help="What the source is; told from the source if it is left out.")
    ] = None,
    scope: ImportScopeOption = None,
    origin: Annotated[Origins, typer.Option(help="Whether the records are vouched for.")] = Origins.INFERRED,
    prefix: Annotated[str, typer.Option(help="Operation ids are PREFIX:ID.")] = "import",
    text: Annotated[str, typer.Option(help="JSON lines: the field with the text.")] = "text",
    record_id: Annotated[
        str, typer.Option("--id", help='JSON lines: the field with the id; "" if there is none.')
    ] = "id",
    dry_run: DryRunOption = False,
    as_json: JsonOption = False,
) -> None:
    """Take over memories of another system, or a scope that `vmem export` wrote.

    Run again on another system's memories, it imports nothing twice. An exported scope goes in whole and as it was, and
    only into a store that has none of it.
    """
    found = system or _recognise(source)
    asked = opening.parse_scope(scope or ())
    if not (dry_run and not os.path.exists(store)) and not _is_same(source, store):
        opening.refuse_other_files(store)
    if found is System.EXPORT:
        if not (dry_run or opening.is_server(store) or os.path.exists(store)) and os.path.isfile(source):
            # It is read once more: a store that nothing goes into is not made. What comes through a pipe comes once.
            with _export_lines(source, asked, context) as given:
                _check_export(given)
        with _export_lines(source, asked, context) as given, _target(store, dry_run) as opened:
            result = _import_export(given, opened, dry_run)
    else:
        with _target(store, dry_run) as opened, _progress("importing") as tell:
            result = run_sync(
                import_legacy(
                    _reader(found, source, text, record_id),
                    opened,
                    scope=asked,
                    operation_prefix=prefix,
                    origin=origin.value,
                    dry_run=dry_run,
                    progress=tell,
                )
            )
    _print_result(result, found, dry_run, as_json)


@contextmanager
def _target(target: str, dry_run: bool) -> Iterator[Any]:
    """The store to write to, made if need be; a dry run makes none."""
    with opening.closing_store(target) as store:
        is_there = store.sync.exists() if isinstance(store, PostgresStore) else os.path.exists(target)
        yield store if is_there or not dry_run else InMemoryStore()


def _is_same(source: str, store: str) -> bool:
    return os.path.exists(source) and os.path.exists(store) and os.path.samefile(source, store)


def _recognise(source: str) -> System:
    """What a source is, by its address or its first bytes."""
    scheme = source.partition("://")[0] if "://" in source else ""
    if scheme in ("redis", "rediss", "unix"):
        return System.DEUZ_REDIS
    if scheme in ("postgres", "postgresql"):
        return System.DEUZ_POSTGRES
    if scheme and not os.path.exists(source):
        raise Stop(
            f"an import reads files, folders, redis://… and postgresql://…; it knows no {output.visible(scheme)}://", 2
        )
    if os.path.isdir(source):
        return System.DEUZ_MARKDOWN
    with open(source, "rb") as file:  # an OSError says which file
        begin = file.read(4096).lstrip(b"\xef\xbb\xbf")
    if begin.startswith(_SQLITE_MAGIC):
        return System.DEUZ_SQLITE
    if begin.startswith(f'{{"format":"{FORMAT}"'.encode()):
        return System.EXPORT
    if source.lower().endswith((".jsonl", ".ndjson")):
        return System.JSONL
    if source.lower().endswith(".json"):
        return System.MEM0
    raise Stop(f"cannot tell what {output.visible(source)} is; say it with --from, one of {', '.join(System)}", 2)


def _reader(system: System, source: str, text: str, record_id: str) -> AsyncIterator[LegacyRecord]:
    readers: dict[System, Callable[[], AsyncIterator[LegacyRecord]]] = {
        System.MEM0: lambda: from_mem0(source),
        System.JSONL: lambda: from_jsonl(source, text, id=record_id or None),
        System.DEUZ_SQLITE: lambda: from_deuz_sqlite(source),
        System.DEUZ_POSTGRES: lambda: from_deuz_postgres(source),
        System.DEUZ_MARKDOWN: lambda: from_deuz_markdown(source),
        System.DEUZ_REDIS: lambda: from_deuz_redis(source),
    }
    return readers[system]()


@contextmanager
def _export_lines(source: str, asked: Scope | None, context: typer.Context) -> Iterator[Iterator[str]]:
    """The lines of an export, once nothing was asked for that it cannot be asked for."""
    for name, option in _NOT_FOR_EXPORTS.items():
        given = context.get_parameter_source(name)
        if given is not None and given.name == "COMMANDLINE":
            raise Stop(f"{option} is not for an export, which goes in as it was: leave it out", 2)
    # Some programs put a mark before the first byte. What is no UTF-8 fails the digest, and no decoder.
    with open(source, encoding="utf-8-sig", errors="surrogateescape") as file:
        first = next((line for line in file if line.strip()), "")
        _check_scope(first, asked)
        yield itertools.chain([first], file)  # opened once: it may be a pipe


def _check_scope(first: str, asked: Scope | None) -> None:
    reader = Reader()
    if first:
        reader.read(first)
    if asked is not None and reader.header is not None and not agrees(reader.header.scope, asked):
        raise Stop(
            f"the export is of scope {opening.spell_scope(reader.header.scope)}, which does not agree with --scope "
            f"{opening.spell_scope(asked)}; leave it out to import the export all the same",
            2,
        )


def _import_export(lines: Iterator[str], store: Any, dry_run: bool) -> ImportResult:
    if not dry_run:
        with _progress("importing") as tell:
            return run_sync(import_jsonl(store, _counted(lines, tell)))
    header = _check_export(lines)
    if revision := store.sync.scope_revision(header.scope):
        raise Stop(
            f"scope {opening.spell_scope(header.scope)} is at revision {revision} there, and an export goes only into "
            "a scope that was never written"
        )
    return ImportResult(header.records, header.records, 0, {})


def _check_export(lines: Iterator[str]) -> Header:
    reader = Reader()
    with _progress("checking") as tell:
        for line in _counted(lines, tell):
            if line.strip():
                reader.read(line)
    return reader.finish()


def _counted(lines: Any, tell: Callable[[int, int | None], None]) -> Iterator[str]:
    for number, line in enumerate(lines, 1):
        yield line
        tell(number, None)


def _print_result(result: ImportResult, system: System, dry_run: bool, as_json: bool) -> None:
    out = output.console()
    if as_json:
        output.print_json(out, {"from": system.value, "dry_run": dry_run, **result.to_json()})
        return
    verb = "would be imported" if dry_run else "imported"
    output.print_lines(out, [f"{result.scanned} read, {result.imported} {verb}, {result.skipped} skipped"])
    output.print_lines(out, (f"  {count:>8}  {reason}" for reason, count in result.reasons.items()))
    if dry_run:
        output.remark(out, "a dry run: nothing was written")


# --- export -----------------------------------------------------------------------------------------------------


@app.command("export")
def export(
    store: StoreOption = DEFAULT_STORE,
    scope: ScopeOption = None,
    file: Annotated[
        str | None, typer.Option("--output", "-o", metavar="FILE", help="Where to write; standard output if left out.")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Write over a file that is there.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Write a scope's whole history as JSON lines: every revision, receipt and tombstone.

    The lines hold the texts: keep them like the store itself.
    """
    if as_json and file is None:
        raise Stop("--json tells of what was written, and the export itself goes to standard output: add --output", 2)
    if file is not None and os.path.exists(file) and not force:
        raise Stop(f"{output.visible(file)} is there already; add --force to write over it")
    with opening.opened(store) as opened, _progress("exporting") as tell:
        chosen = opening.choose_scope(opened, scope or ())
        if not opened.sync.scope_revision(chosen):
            raise Stop(
                f"the store holds nothing of scope {opening.spell_scope(chosen)}; nothing was exported; leave out "
                "--scope to choose among those there are"
            )
        if file is None:
            stream = typer.get_text_stream("stdout", encoding="utf-8")
            run_sync(_write(opened, chosen, stream, tell))
            return
        count = _write_file(opened, chosen, file, tell)
    out = output.console()
    if as_json:
        output.print_json(out, {"scope": json.loads(chosen.key), "file": file, "lines": count})
    else:
        output.remark(out, f"{count} lines written to {file} · {opening.spell_scope(chosen)}")


def _write_file(store: opening.AnyStore, scope: Scope, file: str, tell: Callable[[int, int | None], None]) -> int:
    """Write a file that is whole or not there, and that nobody else may read: it holds the texts."""
    part = f"{file}.part"
    try:
        descriptor = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(descriptor, "w", encoding="utf-8", newline="\n") as stream:
            count = run_sync(_write(store, scope, stream, tell))
            stream.flush()
            os.fsync(stream.fileno())
        os.replace(part, file)
    except BaseException:
        if os.path.exists(part):
            os.unlink(part)
        raise
    return count


async def _write(store: opening.AnyStore, scope: Scope, stream: Any, tell: Callable[[int, int | None], None]) -> int:
    count = 0
    async for line in export_jsonl(store, scope):
        stream.write(line)
        count += 1
        tell(count, None)
    return count


# --- prune ------------------------------------------------------------------------------------------------------


@app.command("prune")
def prune(
    history: Annotated[
        str | None,
        typer.Option(metavar="AGE", help="Delete past revisions of what is retracted or expired, if older: 90d, 12h."),
    ] = None,
    operations: Annotated[
        str | None, typer.Option(metavar="AGE", help="Delete receipts, if older. Their operation ids apply again.")
    ] = None,
    store: StoreOption = DEFAULT_STORE,
    scope: PruneScopeOption = None,
    dry_run: DryRunOption = False,
    as_json: JsonOption = False,
) -> None:
    """Delete what is no longer kept: old history, old receipts. Nothing is ever deleted unless this is run.

    AGE is a number with s, m, h, d or w, or a date such as 2026-01-31.
    """
    if history is None and operations is None:
        raise Stop("say what to prune: --history AGE, --operations AGE, or both", 2)
    if scope and operations is not None:
        raise Stop("--scope goes with --history; receipts are pruned in all scopes: run --operations without it", 2)
    now, asked = datetime.now(UTC), opening.parse_scope(scope or ())
    cutoffs = {"history": _cutoff(history, now, "--history"), "operations": _cutoff(operations, now, "--operations")}
    counts: dict[str, int] = {}
    with opening.opened(store) as opened:
        if (cutoff := cutoffs["history"]) is not None:
            counts["revisions"] = opened.sync.prune_history(cutoff, asked, dry_run=dry_run)
        if (cutoff := cutoffs["operations"]) is not None:
            counts["receipts"] = opened.sync.prune_operations(cutoff, dry_run=dry_run)
    out = output.console()
    if as_json:
        told = {f"{name}_before": cutoff.isoformat() for name, cutoff in cutoffs.items() if cutoff is not None}
        output.print_json(out, {"dry_run": dry_run, **told, **counts})
        return
    verb = "would be deleted" if dry_run else "deleted"
    output.print_lines(out, (f"{count} {name} {verb}" for name, count in counts.items()))


def _cutoff(age: str | None, now: datetime, option: str) -> datetime | None:
    """The instant before which things go.

    >>> _cutoff("2d", datetime(2026, 1, 3, tzinfo=UTC), "--history").isoformat()
    '2026-01-01T00:00:00+00:00'
    """
    if age is None:
        return None
    if (found := _AGE.fullmatch(age.strip())) is not None:
        try:
            return now - timedelta(**{_UNITS[found[2]]: int(found[1])})
        except OverflowError:
            raise Stop(f"{option} {age} reaches back before the year 1", 2) from None
    try:
        moment = datetime.fromisoformat(age)
    except ValueError:
        raise Stop(f"{option} must be an age such as 90d, 12h or 2w, or a date such as 2026-01-31", 2) from None
    return moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)


# --- progress ---------------------------------------------------------------------------------------------------


@contextmanager
def _progress(what: str) -> Iterator[Callable[[int, int | None], None]]:
    """A line on standard error that moves, where that is a terminal; it is gone at the end."""
    err = Console(stderr=True)
    if not err.is_terminal:
        yield lambda done, total: None
        return
    columns = (SpinnerColumn(), TextColumn(what), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=err, transient=True) as bar:
        task = bar.add_task(what, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)
