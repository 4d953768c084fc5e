"""The arguments of the session's verbs: what is refused before anything is written. Pure.

Owns the checks that take more than a value's own constructor. Does not own limits of size (``limits.py``).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, Literal, cast

from vmem_core.errors import InvalidRequestError
from vmem_core.ledger import UsageLedger
from vmem_core.limits import Limits
from vmem_core.messages import ExtractionPolicy
from vmem_core.operations import Unset
from vmem_core.records import (
    KINDS,
    ORIGINS,
    STATUSES,
    Draft,
    Link,
    Origin,
    Source,
    check_metadata,
    check_ttl,
)
from vmem_core.store import check_count
from vmem_core.sync import Facade
from vmem_core.text import check_text
from vmem_core.values import check_choice, check_importance, check_type, check_values

MOST_DRAFTS: Final = 10_000
Supersede = Literal["add", "reconcile", "skip_equal"]
SUPERSEDES: tuple[Supersede, ...] = ("add", "reconcile", "skip_equal")


def check_drafts(drafts: Sequence[Draft], limits: Limits) -> tuple[Draft, ...]:
    """Drafts of ``remember_many``.

    Raises:
        InvalidRequestError: For too many, a wrong one, or an id given twice.
    """
    checked = check_values(drafts, Draft, "drafts")
    if len(checked) > MOST_DRAFTS:
        raise InvalidRequestError(f"has {len(checked)} items, at most {MOST_DRAFTS} are taken at once", path="drafts")
    seen: set[str] = set()
    for index, draft in enumerate(checked):
        limits.check_draft(draft, f"drafts[{index}].")
        if draft.id is not None and draft.id in seen:
            raise InvalidRequestError("is the id of an earlier draft too", path=f"drafts[{index}].id")
        seen.add(draft.id or "")
    return checked


def check_given(given: Mapping[str, Any], limits: Limits) -> dict[str, Any]:
    """The arguments that ``revise`` was given; UNSET ones are left out, and what None clears to is filled in.

    Raises:
        InvalidRequestError: For a wrong argument; None is none for a text or an origin.
    """
    checks: dict[str, Callable[[Any], Any]] = {
        "text": lambda value: check_text(value, "text"),
        "kind": lambda value: "semantic" if value is None else check_choice(value, KINDS, "kind"),
        "importance": check_importance,
        "metadata": check_metadata,
        "ttl": check_ttl,
        "links": lambda value: check_values(value or (), Link, "links"),
        "sources": lambda value: check_values(value or (), Source, "sources"),
        "origin": check_origin,
    }
    checked = {name: checks[name](value) for name, value in given.items() if not isinstance(value, Unset)}
    limits.check_text(checked.get("text", ""))
    limits.check_metadata(checked.get("metadata", {}))
    limits.check_sources(checked.get("sources"))
    limits.check_links(checked.get("links", ()))
    return checked


def check_store(store: object, verb: str) -> None:
    """A store that has a verb, itself: its ``.sync`` would wait on the very loop that is to serve it.

    Raises:
        InvalidRequestError: For anything else.
    """
    if isinstance(store, Facade) or not callable(getattr(store, verb, None)):
        raise InvalidRequestError("must be a store, such as SqliteStore(path), not its .sync", path="store")


def check_parts(store: object, limits: object, new_id: object, ledger: object) -> None:
    """What a session is made of.

    Raises:
        InvalidRequestError: For anything that is not what its name says.
    """
    check_store(store, "run")
    if not isinstance(limits, Limits):
        raise InvalidRequestError("must be Limits", path="limits")
    if new_id is not None and not callable(new_id):
        raise InvalidRequestError("must be a callable that returns a new id", path="new_id")
    if ledger is not None:
        check_type(ledger, UsageLedger, "ledger")


def check_origin(origin: object) -> Origin:
    """``asserted`` or ``inferred``.

    Raises:
        InvalidRequestError: For anything else.
    """
    return cast(Origin, check_choice(origin, ORIGINS, "origin"))


def check_policy(policy: object, path: str = "extraction") -> ExtractionPolicy:
    """What ``extract`` may read.

    Raises:
        InvalidRequestError: For anything but an ExtractionPolicy.
    """
    if not isinstance(policy, ExtractionPolicy):
        raise InvalidRequestError("must be an ExtractionPolicy", path=path)
    return policy


def check_mode(
    supersede: object, top_k: int, instructions: str | None, *, has_llm: bool
) -> tuple[Supersede, dict[str, Any]]:
    """How a write meets similar records, and what of that makes a request another one.

    Raises:
        InvalidRequestError: For a wrong argument, or ``"reconcile"`` without a language model.
    """
    default: Supersede = "reconcile" if has_llm else "add"
    mode = default if supersede is None else cast(Supersede, check_choice(supersede, SUPERSEDES, "supersede"))
    if mode == "reconcile" and not has_llm:
        raise InvalidRequestError('"reconcile" needs a session with an llm; use "add"', path="supersede")
    check_count(top_k, "top_k")
    if instructions is not None:
        check_text(instructions, "instructions")
    # What is left out and its default are the same request, and the default follows the session.
    name = "default" if mode == default else mode
    return mode, {"supersede": name, "top_k": top_k, "instructions": instructions}


def check_listing(kind: object, origin: object, status: object, limit: object) -> int:
    """The filters and the limit of ``list``.

    Returns:
        The limit.

    Raises:
        InvalidRequestError: For a wrong one.
    """
    for name, value, choices in (("kind", kind, KINDS), ("origin", origin, ORIGINS), ("status", status, STATUSES)):
        if value is not None:
            check_choice(value, choices, name)
    return check_count(limit, "limit")
