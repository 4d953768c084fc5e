"""The commands of ``vmem``.

Owns their names, options and exit codes: 0, 1 for what cannot be done, 2 for a wrong call. An error is one plain line
on standard error. Does not own what a session does, which store it opens (``opening.py``) or looks (``output.py``).
"""

from __future__ import annotations

import importlib
import importlib.metadata
import importlib.util
import os
import shlex
from types import ModuleType
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from vmem_core import Finding, MemorySession, Record, VmemError
from vmem_core.cli import opening, output
from vmem_core.cli.opening import Stop
from vmem_core.sync import facade


class _Commands(TyperGroup):
    """Turns what cannot be done into one line on standard error, whoever calls the commands."""

    def invoke(self, ctx: Any) -> Any:
        """Run the command that was called."""
        try:
            return super().invoke(ctx)
        except Stop as stop:
            message, code = str(stop), stop.code
        except VmemError as error:
            message, code = _said(error), 1
        except OSError as error:
            named = f"{error.strerror or error}: {error.filename}" if error.filename else str(error)
            message, code = _said(error, named), 1
        typer.echo(f"vmem: {output.visible(message)}", err=True)
        raise typer.Exit(code)


def _said(error: BaseException, words: str | None = None) -> str:
    """An error with its notes, which say how far something came."""
    said = [str(error) if words is None else words, *getattr(error, "__notes__", ())]
    return "\nvmem: ".join(map(output.label, said))


app = typer.Typer(
    cls=_Commands,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,  # our errors are one line; any other is a fault, and its traceback holds no locals
    help="Look at an agent's memory, keep it in order, and forget what it should not hold.",
)

StoreOption = Annotated[
    str,
    typer.Option(
        "--store",
        metavar="PATH_OR_DSN",
        envvar="VMEM_STORE",
        help="The memory file, or postgresql://… with #SCHEMA behind it if the tables are not in public.",
        show_default=True,
    ),
]
ScopeOption = Annotated[
    list[str] | None,
    typer.Option(
        "--scope",
        metavar="FIELD=VALUE",
        help="Whose memory, such as user_id=ada. Join several with commas, or repeat the option. "
        "Not needed when the file holds one scope.",
    ),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON, for scripts.")]
IdArgument = Annotated[str, typer.Argument(metavar="ID", help="A record's id, as `vmem list` shows it.")]
DEFAULT_STORE = "vmem.db"


def _print_version(asked: bool) -> None:
    if asked:
        typer.echo(f"versioned-memory {importlib.metadata.version('versioned-memory')}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Options of ``vmem`` itself."""


@app.command("demo")
def demo(store: StoreOption = DEFAULT_STORE) -> None:
    """A tour in a few seconds: an agent remembers, revises, is refused, and forgets. No key, no network."""
    tour = _load_demo()
    if opening.is_server(store):
        raise Stop("the demo writes to a file: give --store the path of one", 2)
    opening.refuse_other_files(store)
    out = output.console()
    if not out.is_terminal:
        out.width = 100
    named = store != (os.environ.get("VMEM_STORE") or DEFAULT_STORE)
    with opening.closing_store(store) as opened:
        kept = tour.run(opened, store, out, store_option=f"--store {shlex.quote(store)}" if named else "")
    if not kept:
        raise typer.Exit(1)


@app.command("list")
def list_records(
    store: StoreOption = DEFAULT_STORE,
    scope: ScopeOption = None,
    everything: Annotated[bool, typer.Option("--all", help="Retracted records too.")] = False,
    limit: Annotated[int, typer.Option("--limit", "-n", min=1, max=1000, help="How many, newest first.")] = 50,
    as_json: JsonOption = False,
) -> None:
    """List what is remembered, newest first."""
    out = output.console()
    with opening.session_of(store, scope or ()) as session:
        page = session.sync.list(status=None if everything else "active", limit=limit)
        if as_json:
            output.print_json(out, [record.to_json() for record in page.records])
        elif page.records:
            output.print_records(out, page.records)
            more = ", and there are more: raise --limit" if page.cursor is not None else ""
            output.remark(
                out, f"{len(page.records)} shown{more} · {opening.spell_scope(session.scope)} · {opening.shown(store)}"
            )
        else:
            output.remark(
                out, f"nothing is remembered for {opening.spell_scope(session.scope)} in {opening.shown(store)}"
            )


@app.command("show")
def show(
    record_id: IdArgument, store: StoreOption = DEFAULT_STORE, scope: ScopeOption = None, as_json: JsonOption = False
) -> None:
    """Show one record: its text, where it comes from, which operation wrote it."""
    out = output.console()
    with opening.session_of(store, scope or ()) as session:
        record = session.sync.get(record_id)
        expired = record is None
        record = record or _history(session, record_id)[-1]
    if as_json:
        output.print_json(out, record.to_json())
    else:
        output.print_record(out, record, expired=expired)


@app.command("history")
def history(
    record_id: IdArgument, store: StoreOption = DEFAULT_STORE, scope: ScopeOption = None, as_json: JsonOption = False
) -> None:
    """Show every revision of a record, oldest first, with its sources."""
    out = output.console()
    with opening.session_of(store, scope or ()) as session:
        records = _history(session, record_id)
    if as_json:
        output.print_json(out, [record.to_json() for record in records])
    else:
        output.print_history(out, records)


@app.command("search")
def search(
    text: Annotated[str, typer.Argument(metavar="TEXT", help="What to look for, in your own words.")],
    store: StoreOption = DEFAULT_STORE,
    scope: ScopeOption = None,
    limit: Annotated[int, typer.Option("--limit", "-n", min=1, max=1000, help="How many, best first.")] = 5,
    as_json: JsonOption = False,
) -> None:
    """Find what is remembered, by meaning and words."""
    out = output.console()
    with opening.session_of(store, scope or ()) as found:
        session, by_what = opening.searching(found)
        hits = session.sync.recall(text, top_k=limit)
    if as_json:
        output.print_json(out, [hit.to_json() for hit in hits])
        return
    if hits:
        output.print_hits(out, hits)
    output.remark(out, f"{len(hits)} found · {by_what}" if hits else f"nothing found · {by_what}")


@app.command("forget")
def forget(
    record_id: IdArgument,
    store: StoreOption = DEFAULT_STORE,
    scope: ScopeOption = None,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
) -> None:
    """Delete a record for good: every revision, and every byte of its text in the file."""
    out = output.console()
    with opening.session_of(store, scope or ()) as session:
        if session.scope not in facade(session.store).scopes():
            raise _unknown(session, record_id)
        revisions = session.sync.history(record_id)
        if revisions and not yes:
            output.print_history(out, revisions)
            typer.confirm("Forget this record for good?", abort=True)
        result = session.sync.forget(record_id)
        if not result.revisions and not result.already_forgotten:
            raise _unknown(session, record_id)
        facade(session.store).scrub()
    count = len(result.revisions)
    done = f"{count} {'revision' if count == 1 else 'revisions'} deleted" if count else "it was forgotten before"
    where, left = opening.shown(store), "no byte of the record is left in it"
    if opening.is_server(store):
        left = "no row of the record is left in its tables; its log, replicas and archives keep theirs until they go"
    output.remark(out, f"forgotten: {done}, and {where} was scrubbed: {left}")
    output.remark(out, "copies elsewhere (backups, chat logs, checkpoints) are not touched")


@app.command("doctor")
def doctor(store: StoreOption = DEFAULT_STORE, as_json: JsonOption = False) -> None:
    """Check that everything in a store agrees: heads, revisions, index, vectors, receipts. Changes nothing.

    Ends with 0 if all is well, 1 if something was found, 2 if the store could not be looked at.
    """
    out = output.console()
    try:
        with opening.opened(store) as opened, output.progress(out if not as_json else None) as show:
            findings: list[Finding] = opened.sync.diagnose(progress=show)
    except Stop as stop:
        raise Stop(str(stop), 2) from None
    except (VmemError, OSError) as error:
        raise Stop(output.label(str(error)), 2) from None
    if as_json:
        output.print_json(out, [finding.to_json() for finding in findings])
    elif findings:
        output.print_findings(out, findings)
        output.remark(out, f"{len(findings)} found; docs/doctor.md says of each code what to do")
    else:
        output.remark(out, f"nothing found: all that {opening.shown(store)} keeps agrees")
    if findings:
        raise typer.Exit(1)


@app.command("reembed")
def reembed(
    store: StoreOption = DEFAULT_STORE,
    embedder: Annotated[
        str | None,
        typer.Option(
            "--embedder", metavar="MODULE:NAME", help="The new embedder, or its class. Without: the local one."
        ),
    ] = None,
    model_id: Annotated[str | None, typer.Option("--model-id", help="Its model id; without, it is asked.")] = None,
    dims: Annotated[int | None, typer.Option("--dims", min=1, help="Its size; without, it is asked.")] = None,
    batch_size: Annotated[int, typer.Option("--batch-size", min=1, max=1000, help="Texts a call.")] = 64,
    concurrency: Annotated[int, typer.Option("--concurrency", min=1, max=100, help="Calls at a time.")] = 1,
    as_json: JsonOption = False,
) -> None:
    """Move the whole store to another embedding model, or embed what has no vector. Ctrl-C leaves a job to resume."""
    from vmem_core.cli import reembedding

    out = output.console()
    with opening.opened(store) as opened:
        target = reembedding.choose(embedder, model_id, dims)
        try:
            result = reembedding.move(opened, target, batch_size, concurrency)
        except KeyboardInterrupt:
            raise Stop(f"stopped; {reembedding.AGAIN}", 130) from None
    if as_json:
        output.print_json(out, result.to_json())
    else:
        for line in reembedding.describe(result, target, store):
            output.remark(out, line)
    if not result.activated:
        raise typer.Exit(1)


def _load_demo() -> ModuleType:
    # The demo is an agent, so it lives with the adapter. By name: the core knows no framework.
    try:
        if importlib.util.find_spec("wordllama") is not None:
            return importlib.import_module("vmem_langchain.demo")
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in {"vmem_langchain", "langchain", "langchain_core", "langgraph"}:
            raise
    raise Stop('the demo needs the extra "demo": pip install "versioned-memory[demo]"')


def _history(session: MemorySession, record_id: str) -> list[Record]:
    records: list[Record] = session.sync.history(record_id)
    if not records:
        raise _unknown(session, record_id)
    return records


def _unknown(session: MemorySession, record_id: str) -> Stop:
    return Stop(
        f"no record {output.label(record_id)} in scope {opening.spell_scope(session.scope)}: "
        "the id is mistyped, of another scope, or forgotten; `vmem list` shows the ids"
    )
