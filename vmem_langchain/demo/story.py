"""What the demo tells, step by step, and what it checks at each.

Owns the story. Does not own the agent or the print (``tour.py``).
"""

from __future__ import annotations

import mmap
import secrets
import shlex
from pathlib import Path

from rich.panel import Panel
from rich.text import Text

from vmem_core import RecordConflictError, UnsupportedError
from vmem_langchain.demo.script import BreakOff, answers, call, calls, recalled, say
from vmem_langchain.demo.tour import SCOPE, Tour


def tell(tour: Tour, store_option: str) -> None:
    """The whole story.

    Raises:
        NotAsPromised: If something is not as the demo is about to claim.
        UnsupportedError: If the store holds vectors of another embedder.
    """
    open_demo(tour)
    allergy = the_application_asserts(tour)
    home = the_model_remembers(tour)
    before_move = tour.memory.scope_revision()
    two_chats_at_once(tour, home)
    the_phone_comes_too_late(tour, home)
    a_broken_run_is_resumed(tour)
    note = the_hosts_words_stay(tour, allergy)
    why_and_when(tour, home, before_move)
    forget_means_gone(tour)
    close_demo(tour, home, note, store_option)


def open_demo(tour: Tour) -> None:
    """Say what is used, and start the demo's scope over."""
    others = [scope for scope in tour.store.sync.scopes() if scope != SCOPE]
    generation = tour.store.known_generation
    if generation is not None and generation.model_id != tour.embedder.model:
        raise UnsupportedError(
            f"the store holds vectors of {generation.model_id!r}, the demo embeds with {tour.embedder.model!r}; "
            "give the demo a file of its own with --store"
        )
    intro = Text.assemble(
        ("An agent with memory tools, on one SQLite file\n", "bold"),
        f"file      {tour.path}\n",
        f"scope     user_id={SCOPE.user_id}, agent_id={SCOPE.agent_id}\n",
        "agent     langchain.agents.create_agent, its model reads from a script: no key, no network\n",
        f"embedder  {tour.embedder.model}, on this machine",
    )
    tour.out.print(Panel(intro, border_style="cyan", expand=False))
    earlier = len(tour.memory.forget_scope().record_ids) if tour.memory.list(status=None, limit=1).records else 0
    if earlier:
        tour.line("", f"The demo was here before. It forgot its {_counted(earlier, 'record')}, and starts over.")
    if others:
        tour.line("", f"The file holds {_counted(len(others), 'other scope')}: the demo does not touch them.")


def _counted(count: int, thing: str) -> str:
    return f"{count} {thing}" if count == 1 else f"{count} {thing}s"


def the_application_asserts(tour: Tour) -> str:
    """The host's own fact; its id."""
    tour.step("Your application says what it knows", "A fact from your own code is asserted: no model can change it.")
    text = "Ada is allergic to peanuts."
    tour.line("app →", f'session.remember("{text}")')
    written = tour.memory.remember(text)
    record = tour.record(written.records[0].id)
    changes = [(change.record_id, change.action) for change in written.receipt.changes]
    tour.promise(
        (record.revision, record.origin, record.text) == (1, "asserted", text) and changes == [(record.id, "create")],
        f"stored as revision {record.revision}, origin {record.origin}, with a receipt of {len(changes)} change",
    )
    return record.id


def the_model_remembers(tour: Tour) -> str:
    """The model's fact; its id."""
    tour.step("The model remembers", "What a model stores is inferred, and cites the tool call that it came from.")
    messages = tour.chat(
        "laptop",
        "I live in Lisbon. Please remember that.",
        call("memory_recall", query="Where does Ada live?"),
        call("memory_remember", text="Ada lives in Lisbon."),
        say("I will remember that you live in Lisbon."),
    )
    record = tour.record(answers(messages, "memory_remember")[-1].get("id", ""))
    source = record.sources[0]
    tour.promise(
        (record.origin, source.kind, source.tool_name) == ("inferred", "assistant", "memory_remember"),
        f"origin {record.origin}, source {source.kind}, by {source.tool_name} ({source.tool_call_id})",
    )
    tour.promise(
        bool(tour.offered) and not any("forget" in name for name in tour.offered),
        f"the model has {len(tour.offered)} tools, and none that forgets: {', '.join(tour.offered)}",
    )
    return record.id


def two_chats_at_once(tour: Tour, home: str) -> None:
    """A read, and then a revise from elsewhere."""
    tour.step(
        "Two chats at once", "The phone reads a fact; then the laptop revises it, under the revision it was given."
    )
    tour.chat(
        "phone",
        "Where do I live?",
        call("memory_recall", query="Where does Ada live?"),
        say("My notes say: {text}", text=recalled("lives in", "text")),
    )
    laptop = tour.chat(
        "laptop",
        "I have moved to Porto.",
        call("memory_recall", query="Where does Ada live?"),
        call(
            "memory_revise",
            id=recalled("lives in", "id"),
            expected_revision=recalled("lives in", "revision"),
            text="Ada lives in Porto.",
        ),
        say("Noted: you live in Porto now."),
    )
    given = recalled("lives in", "revision")(laptop)
    asked, written = calls(laptop, "memory_revise")[-1], tour.record(home)
    tour.promise(
        asked["expected_revision"] == given == 1 and (written.revision, written.text) == (2, "Ada lives in Porto."),
        f"the same record, revision {given} → {written.revision}",
    )


def the_phone_comes_too_late(tour: Tour, home: str) -> None:
    """The refusal of a stale revision."""
    written = tour.record(home)
    tour.step(
        "A second writer is refused", "The phone still holds revision 1, so what it writes cannot overwrite Porto."
    )
    phone = tour.chat(
        "phone",
        "I have moved to Madrid.",
        call(
            "memory_revise",
            id=recalled("lives in", "id", recall=0),
            expected_revision=recalled("lives in", "revision", recall=0),
            text="Ada lives in Madrid.",
        ),
        call("memory_recall", query="Where does Ada live?"),
        say("Another chat was faster, my notes now say: {text} Is it Madrid?", text=recalled("lives in", "text")),
    )
    refused, now = answers(phone, "memory_revise")[-1], tour.record(home)
    tour.promise(
        refused == {"error": "revision_conflict", "actual_revision": 2} and now == written,
        f"refused, and told that revision {refused.get('actual_revision')} is current; nothing was overwritten",
    )


def a_broken_run_is_resumed(tour: Tour) -> None:
    """The same call twice, applied once."""
    tour.step(
        "A run breaks off and is resumed",
        "A call that is made again under its old operation id is answered, not applied a second time.",
    )
    text, breaking, before = "Grace, Ada's sister, visits in May.", BreakOff(), tour.memory.scope_revision()
    invoke = tour.agent([call("memory_remember", text=text), say("I have noted the visit.")], [breaking])
    broke = False
    try:
        invoke({"messages": [("user", "My sister Grace visits in May.")]}, "tablet")
    except BreakOff.Broken:
        broke = True
    after, kept = tour.memory.scope_revision(), tour.kept_messages("tablet")
    tour.print_messages("tablet", kept)
    tour.line("crash", "the run breaks off: the tool has written, its answer is lost", "bold red")
    tour.promise(
        broke and after == before + 1, f"the run is broken, the write is done: scope revision {before} → {after}"
    )
    tour.line("app →", "agent.invoke(None, config)  resumes the run, and the same call is made again")
    tour.print_messages("tablet", invoke(None, "tablet")[len(kept) :])
    first, again = breaking.answers[0], breaking.answers[-1]
    tour.promise(
        len(breaking.answers) == 2 and not first["replayed"] and again["replayed"] and first["id"] == again["id"],
        "the tool ran again, and answered with the stored receipt (replayed) and the same record",
    )
    found = [hit for hit in tour.memory.recall(text, top_k=20) if hit.record.text == text]
    tour.promise(
        len(found) == 1 and tour.memory.scope_revision() == after,
        f"applied once: {len(found)} such record, and the scope is still at revision {after}",
    )


def the_hosts_words_stay(tour: Tour, allergy: str) -> str:
    """The refusal of a model that would overwrite the host; the id of what it stored instead."""
    tour.step("Your words stay yours", "A model that would reword what your application said is refused.")
    before = tour.record(allergy)
    messages = tour.chat(
        "laptop",
        "Peanuts are fine for me now.",
        call("memory_recall", query="Is Ada allergic to peanuts?"),
        call(
            "memory_revise",
            id=recalled("allergic", "id"),
            expected_revision=recalled("allergic", "revision"),
            text="Ada can eat peanuts.",
        ),
        call("memory_remember", text="Ada says that peanuts are fine for her now."),
        say("Your allergy stays on file. I noted beside it what you told me."),
    )
    refused = answers(messages, "memory_revise")[-1]
    tour.promise(
        refused == {"error": "asserted_record"} and tour.record(allergy) == before,
        f"refused as {refused.get('error')}: “{before.text}” is still revision {before.revision}",
    )
    note = tour.record(answers(messages, "memory_remember")[-1].get("id", ""))
    tour.promise(note.origin == "inferred" and note.id != allergy, f"what it was told stands beside it, {note.origin}")
    return note.id


def why_and_when(tour: Tour, home: str, before_move: int) -> None:
    """The history of a record, and what was known before."""
    tour.step(
        "Why does it believe that?", "Every revision is kept, with its origin, its sources and its place in time."
    )
    history = tour.memory.history(home)
    tour.print_history(history)
    tour.promise(
        [record.text for record in history] == ["Ada lives in Lisbon.", "Ada lives in Porto."]
        and [source.tool_name for source in history[-1].sources] == ["memory_remember", "memory_revise"],
        f"{len(history)} revisions; the last one cites both tool calls that made it",
    )
    tour.line("app →", f'session.recall("Where does Ada live?", at_scope_revision={before_move})')
    then = tour.memory.recall("Where does Ada live?", at_scope_revision=before_move)
    now = tour.memory.recall("Where does Ada live?")
    known = [{hit.record.id: hit.record.text for hit in hits}.get(home) for hits in (then, now)]
    tour.promise(
        known == ["Ada lives in Lisbon.", "Ada lives in Porto."], f"known then: “{known[0]}” Known now: “{known[1]}”"
    )


def forget_means_gone(tour: Tour) -> None:
    """A forget, a scrub, and the search of the files for every byte of it."""
    tour.step(
        "Forget means gone", "Every revision goes, and a scrub leaves no byte of its text in any file of the store."
    )
    codes = [secrets.token_hex(8), secrets.token_hex(8)]  # new each time: nothing else in the file can hold them
    record = tour.memory.remember(f"Ada's door code is {codes[0]}.").records[0]
    tour.memory.revise(record.id, text=f"Ada's door code is {codes[1]}.", expected_revision=1)
    tour.line("app →", "remembers a door code and revises it once; both codes are random")
    before = [holders(tour.path, code) for code in codes]
    tour.promise(all(before), f"before: both codes are found in {', '.join(sorted({*before[0], *before[1]}))}")
    tour.line("app →", f'session.forget("…{record.id[-6:]}"); store.scrub()')
    forgotten = tour.memory.forget(record.id)
    tour.store.sync.scrub()
    after = [holders(tour.path, code) for code in codes]
    files = ", ".join(file.name for file in store_files(tour.path))
    tour.promise(
        forgotten.revisions == (1, 2) and after == [[], []],
        f"after: {len(forgotten.revisions)} revisions deleted, and neither code is found in {files}",
    )
    gone = (tour.memory.get(record.id), tour.memory.history(record.id))
    tour.promise(
        gone == (None, []) and _is_taken(tour, record.id), "no history is left, and its id can never be used again"
    )


def _is_taken(tour: Tour, record_id: str) -> bool:
    try:
        tour.memory.remember("Anything.", id=record_id)
    except RecordConflictError:
        return True
    return False


def store_files(path: str) -> list[Path]:
    """The files of a store: the database and what SQLite keeps beside it."""
    main = Path(path)
    return sorted(
        file for file in main.absolute().parent.iterdir() if file.name.startswith(main.name) and file.is_file()
    )


def holders(path: str, word: str) -> list[str]:
    """The names of a store's files that hold the bytes of a word."""
    return [file.name for file in store_files(path) if _holds(file, word.encode())]


def _holds(file: Path, word: bytes) -> bool:
    if not file.stat().st_size:
        return False
    with file.open("rb") as opened, mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ) as content:
        return content.find(word) >= 0


def close_demo(tour: Tour, home: str, note: str, store_option: str) -> None:
    """What was shown, and what to type next."""
    alone = list(tour.store.sync.scopes()) == [SCOPE]
    scope_option = "" if alone else f"--scope user_id={SCOPE.user_id},agent_id={SCOPE.agent_id}"
    options = "".join(f" {option}" for option in (store_option, scope_option) if option)
    tour.out.print()
    tour.out.print(
        Panel(Text(f"{tour.kept} promises checked, all kept.", "bold green"), border_style="green", expand=False)
    )
    tour.out.print(f"The memory is left in {tour.path}, with {tour.memory.count()} records. Look around:\n")
    tour.print_commands(
        [
            (f"vmem list{options}", "what is remembered"),
            (f"vmem show {home}{options}", "one record, with all that is known about it"),
            (f"vmem history {home}{options}", "its revisions"),
            (f"vmem search {shlex.quote('Where does Ada live?')}{options}", "by meaning and words"),
            (f"vmem forget {note}{options}", "the model's note on peanuts, for good"),
        ]
    )
