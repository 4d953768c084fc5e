"""The demo under way: an agent over the memory, and how all that happens is printed.

Owns the agent, the print, and what is done when a promise is not kept. Does not own the story (``story.py``).
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from langchain.agents import create_agent
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, ToolMessage
from langgraph.checkpoint.memory import InMemorySaver
from rich import box
from rich.console import Console
from rich.padding import Padding
from rich.rule import Rule
from rich.table import Table
from rich.text import Text

from vmem_core import LocalEmbedder, MemorySession, Record, Scope, SqliteStore
from vmem_langchain import create_memory_tools
from vmem_langchain.demo.script import Line, NotAsPromised, ScriptedModel, this_turn

SCOPE: Final = Scope(user_id="ada", agent_id="vmem-demo")
_LABEL_WIDTH: Final = 10
_END_OF_ID: Final = 6
_ORIGIN_STYLES: Final = {"asserted": "green", "inferred": "yellow"}


@dataclass
class Tour:
    """A run of the demo.

    Args:
        store: Where the memory is kept.
        path: Its file.
        out: Where the story is printed.
    """

    store: SqliteStore
    path: str
    out: Console
    steps: int = 0
    kept: int = 0
    offered: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.embedder = LocalEmbedder()
        self.session = MemorySession(self.store, SCOPE, embedder=self.embedder)
        self.memory: Any = self.session.sync
        self.tools = create_memory_tools(self.session)
        self.chats = InMemorySaver()

    # --- the agent ------------------------------------------------------------------------------------------------

    def chat(self, name: str, user: str, *lines: Line) -> list[BaseMessage]:
        """One turn of a chat with the agent, printed.

        Args:
            name: Of the chat, which goes on where it was left.
            user: What the user says.
            lines: What the model says, a line a call.

        Returns:
            All messages of the chat so far.
        """
        messages: list[BaseMessage] = self.agent(lines)({"messages": [("user", user)]}, name)
        self.print_messages(name, this_turn(messages))
        return messages

    def agent(self, lines: Sequence[Line], middleware: Sequence[Any] = ()) -> Any:
        """An agent whose model says these lines: a function of the input (None: resume) and the name of the chat."""
        model = ScriptedModel(lines=list(lines))
        self.offered = model.offered
        agent = create_agent(model, self.tools, checkpointer=self.chats, middleware=middleware)

        def invoke(given: Any, chat: str) -> list[BaseMessage]:
            config: Any = {"configurable": {"thread_id": chat}}
            messages: list[BaseMessage] = agent.invoke(given, config)["messages"]
            return messages

        return invoke

    def kept_messages(self, chat: str) -> list[BaseMessage]:
        """The messages of a chat as its checkpoint holds them."""
        checkpoint = self.chats.get({"configurable": {"thread_id": chat}})
        messages: list[BaseMessage] = checkpoint["channel_values"]["messages"] if checkpoint is not None else []
        return messages

    # --- promises -------------------------------------------------------------------------------------------------

    def promise(self, kept: bool, sentence: str) -> None:
        """Say what was seen to be true.

        Raises:
            NotAsPromised: If it is not.
        """
        if not kept:
            raise NotAsPromised(sentence)
        self.kept += 1
        self.out.print(_hanging(Text("✓", "bold green"), Text(sentence, "green")))

    def fail(self, sentence: str) -> None:
        """Say which promise was not kept."""
        self.out.print(_hanging(Text("✗", "bold red"), Text(f"NOT AS PROMISED: {sentence}", "bold red")))

    def record(self, record_id: str) -> Record:
        """A record that must be there.

        Raises:
            NotAsPromised: If it is not.
        """
        found: Record | None = self.memory.get(record_id)
        if found is None:
            raise NotAsPromised(f"record {record_id} is in the store")
        return found

    # --- the print ------------------------------------------------------------------------------------------------

    def step(self, title: str, sentence: str) -> None:
        """Begin a step, with one sentence on what it is about."""
        self.steps += 1
        self.out.print()
        self.out.print(Rule(Text(f"{self.steps}  {title}", "bold cyan"), align="left", style="cyan"))
        self.out.print(Padding(Text(sentence, "italic"), (0, 0, 1, 0)))

    def line(self, label: str, said: str | Text, style: str = "bold") -> None:
        """Who does something, and what."""
        self.out.print(_hanging(Text(label, style), said if isinstance(said, Text) else Text(said)))

    def print_messages(self, chat: str, messages: Sequence[BaseMessage]) -> None:
        """Messages of a chat: what is said, what is called, what is answered."""
        for label, style, said in _spoken(messages):
            self.line(label, Text.assemble(said, (f"  [{chat}]", "dim")) if label == "Ada" else said, style)

    def print_history(self, records: Sequence[Record]) -> None:
        """The revisions of a record, with their sources."""
        table = Table(box=box.SIMPLE_HEAD, header_style="bold", pad_edge=False, show_edge=False)
        for name in ("rev", "text", "origin", "sources"):
            table.add_column(name)
        for record in records:
            sources = "\n".join(f"{source.kind}: {source.tool_name or 'your application'}" for source in record.sources)
            origin = Text(record.origin, _ORIGIN_STYLES[record.origin])
            table.add_row(str(record.revision), Text(record.text), origin, Text(sources))
        self.out.print(Padding(table, (0, 0, 1, _LABEL_WIDTH)))

    def print_commands(self, commands: Sequence[tuple[str, str]]) -> None:
        """Commands to type, each with what it does; a command is never wrapped or cut."""
        for command, what in commands:
            self.out.print(Text(f"  # {what}", "dim"))
            self.out.print(Text(f"  {command}", "bold"), soft_wrap=True)


def _hanging(label: Text, said: Text) -> Table:
    grid = Table.grid(padding=(0, 2), pad_edge=False)
    grid.add_column(width=_LABEL_WIDTH - 2, justify="right")
    grid.add_column(overflow="fold")
    grid.add_row(label, said)
    return grid


def _spoken(messages: Sequence[BaseMessage]) -> Iterator[tuple[str, str, Text]]:
    """Label, its style and text of each line of a chat."""
    for message in messages:
        if isinstance(message, HumanMessage):
            yield "Ada", "bold", Text(str(message.content))
        elif isinstance(message, ToolMessage):
            yield "memory ←", "dim", _answer(json.loads(str(message.content)))
        elif isinstance(message, AIMessage) and message.tool_calls:
            for asked in message.tool_calls:
                arguments = ", ".join(f"{name}={_short(name, value)}" for name, value in asked["args"].items())
                yield "model →", "dim", Text.assemble((asked["name"], "cyan"), f"({arguments})")
        else:
            yield "model", "bold", Text(str(message.content))


def _answer(answer: Any) -> Text:
    """What a tool answered: the records that a recall found, one a line, or the fields of a write."""
    if isinstance(answer, list):
        lines = [f"{item['text']}  ({_fields(item, ('id', 'revision', 'origin'))})" for item in answer]
        return Text("\n".join(lines) or "nothing found")
    return Text(_fields(answer, tuple(answer)), "bold red" if "error" in answer else "")


def _fields(item: dict[str, Any], names: Sequence[str]) -> str:
    return ", ".join(f"{name}={_short(name, item[name])}" for name in names)


def _short(name: str, value: Any) -> str:
    """A value of a call or an answer, as JSON; of an id only the end, which tells ids apart."""
    return f"…{value[-_END_OF_ID:]}" if name == "id" else json.dumps(value, ensure_ascii=False)
