"""``vmem reembed``: which embedder it uses, its progress bar, and what is said at the end.

Owns the way from ``--embedder`` to an embedder, and from one call of ``session.reembed`` to the next while records keep
changing. Does not own the job (``vmem_core/reembed.py``).
"""

from __future__ import annotations

import importlib
import inspect
import os
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from operator import attrgetter
from typing import Any, Final

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from vmem_core import LocalEmbedder, MemorySession, ReembedResult, Scope, Store, VmemError, run_sync
from vmem_core.cli.opening import Stop, shown
from vmem_core.models import ModelCalls, PluggedEmbedder

_ROUNDS: Final = 10
_ANYBODY: Final = Scope(agent_id="vmem reembed")  # the job is of the whole store; nothing is written in this scope
AGAIN: Final = "what was embedded is kept; run the same command again to go on"


@dataclass(frozen=True, slots=True)
class Target:
    """The embedder to move to, with the model id and the size of its vectors."""

    embedder: Any
    model_id: str
    dims: int


def choose(name: str | None, model_id: str | None, dims: int | None) -> Target:
    """The embedder that ``--embedder`` names, or the local one. What is not given about it, it is asked for.

    Args:
        name: ``module:name``; None: ``LocalEmbedder``.
        model_id: Its model id, or None.
        dims: Its size, or None.

    Raises:
        Stop: If it cannot be loaded, or does not answer.
    """
    embedder = LocalEmbedder() if name is None else _load(name)
    if model_id is None or dims is None:
        with _failures():
            plugged = PluggedEmbedder(embedder, model_id)
            answered, matrix = run_sync(ModelCalls(None, None).rows(plugged, ["a"]))
        for option, given, found in (("--model-id", model_id, answered), ("--dims", dims, matrix.shape[1])):
            if given not in (None, found):
                raise Stop(f"{option} {given} is not what the embedder answers with: {found}; leave the option out", 2)
        model_id, dims = answered, matrix.shape[1]
    return Target(embedder, model_id, dims)


def _load(name: str) -> Any:
    module, _, attribute = name.partition(":")
    if not module or not attribute:
        raise Stop(f"--embedder {name!r} is not module:name, such as my_models:embedder", 2)
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        found = attrgetter(attribute)(importlib.import_module(module))
        return found() if inspect.isclass(found) else found
    except Exception as error:  # noqa: BLE001 - whatever a user's module does, it is told in one line
        raise Stop(f"--embedder {name!r} cannot be loaded: {type(error).__name__}: {error}", 2) from None


@contextmanager
def _failures() -> Iterator[None]:
    """An embedder's own error as one line: its class alone, since its message may hold a text."""
    try:
        yield
    except (VmemError, Stop):
        raise
    except Exception as error:  # noqa: BLE001 - an embedder may raise anything
        raise Stop(f"the embedder failed: {type(error).__name__}; {AGAIN}") from None


@contextmanager
def progress_bar() -> Iterator[Callable[[int, int], None] | None]:
    """A bar on standard error while the job runs, where that is a terminal; else nothing."""
    out = Console(stderr=True)
    if not out.is_terminal:
        yield None
        return
    columns = (TextColumn("re-embedding"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=out, transient=True) as bar:
        task = bar.add_task("re-embedding", total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)


def move(store: Store, target: Target, batch_size: int, concurrency: int) -> ReembedResult:
    """Run the job until the store has switched, or a call got nowhere.

    Raises:
        Stop: If the embedder fails.
    """
    session = MemorySession(store, _ANYBODY).sync
    embedded, reasons = 0, Counter[str]()
    with progress_bar() as progress, _failures():
        for _ in range(_ROUNDS):
            result: ReembedResult = session.reembed(
                embedder=target.embedder,
                model_id=target.model_id,
                dims=target.dims,
                batch_size=batch_size,
                concurrency=concurrency,
                progress=progress,
            )
            embedded += result.embedded
            reasons = Counter(reasons) + Counter({**result.reasons, "failed": 0})
            if result.activated or result.reasons.get("failed") or not result.embedded:
                break
    reasons["failed"] = result.reasons.get("failed", 0)
    kept = {code: count for code, count in reasons.items() if count}
    return ReembedResult(
        result.generation, embedded, sum(kept.values()), result.activated, kept, result.failed
    )  # fmt: skip


def describe(result: ReembedResult, target: Target, path: str) -> list[str]:
    """What people are told of a result, in lines."""
    count = result.embedded
    lines = [
        f"{count} {'record' if count == 1 else 'records'} embedded with {target.model_id} ({target.dims} dimensions)"
    ]
    if unembeddable := result.reasons.get("not_embeddable"):
        lines.append(f"{unembeddable} have no vector of this model and are found by their words")
    if result.activated:
        lines.append(f"{shown(path)} searches with generation {result.generation}")
    elif failed := result.reasons.get("failed"):
        lines.append(f"{failed} could not be embedded: {', '.join(result.failed)}")
        lines.append("the store has not switched: revise or forget these records, and run the same command again")
    else:
        lines.append(f"the store has not switched, since records kept changing; {AGAIN}")
    return lines
