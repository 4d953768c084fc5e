"""What tests of reconciliation share: one record that is there, one text that is new, and what a model says."""

from __future__ import annotations

from typing import Any

from fake_models import (
    FakeLLM,
    decisions,
    fact,
    facts,
    user,
)
from fakes import Ids, open_memory

from vmem_core import (
    UNSET,
    Link,
    Record,
    Source,
    Store,
    WriteResult,
    text_digest,
)

OLD, NEW, WORDS = "Ada likes tea", "Ada likes green tea", "Ada is fond of green tea"
SAID = (Source("host", text_digest(NEW)),)
SEEN = Source("user", text_digest("hi"), message_id="m1")


async def write(store: Store, origin: str, *entries: Any, reply: Any = UNSET, **more: Any) -> WriteResult:
    """Write NEW as one origin does: the host remembers it, a model extracts it. The model decides as told."""
    decided = decisions(*entries) if reply is UNSET else reply
    memory = open_memory(store, llm=FakeLLM(facts(fact(NEW, "s0")), [decided, decided]), new_id=Ids("new"))
    if origin == "asserted":
        return await memory.remember(NEW, **more)
    return await memory.extract([user("m1", "hi")], **more)


async def existing(store: Store, origin: Any, **more: Any) -> Record:
    """OLD, as it is there before."""
    return (await open_memory(store).remember(OLD, id="old", origin=origin, supersede="add", **more)).records[0]


def told(record: Record) -> tuple[Any, ...]:
    """What the table speaks of."""
    return record.id, record.revision, record.text, record.origin, record.status, record.links


SUPERSEDES, ABOUT = (Link("supersedes", "old"),), (Link("about", "old"),)
KEPT = {"asserted": ("old", 1, OLD, "asserted", "active", ()), "inferred": ("old", 1, OLD, "inferred", "active", ())}
GONE = {
    "asserted": ("old", 2, OLD, "asserted", "retracted", ()),
    "inferred": ("old", 2, OLD, "inferred", "retracted", ()),
}
