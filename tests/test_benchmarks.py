"""The benchmarks run, on tiny made data, and print what they say they print. How fast anything is, no test asks."""

from __future__ import annotations

import asyncio
import importlib.util
import json
import re
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from postgres_server import server_uri

FOLDER = Path(__file__).resolve().parent.parent / "benchmarks"


def load(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"benchmark_{name}", FOLDER / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


speed, locomo, adapters = load("speed"), load("locomo"), load("adapters")
reembed, scaling, imports = load("reembed"), load("scaling"), load("imports")
large_scope = load("large_scope")


def turn(turn_id: str, speaker: str, text: str, **more: str) -> dict[str, str]:
    return {"dia_id": turn_id, "speaker": speaker, "text": text, **more}


def asked(question: str, category: int, *evidence: str) -> dict[str, Any]:
    return {"question": question, "category": category, "evidence": list(evidence), "answer": "made"}


CONVERSATIONS = [
    {
        "sample_id": "conv-1",
        "conversation": {
            "speaker_a": "Ada",
            "session_2_date_time": "9 May, 2031",
            "session_2": [turn("D2:1", "Ada", "We adopted a kitten called Pixel.")],
            "session_1_date_time": "8 May, 2031",
            "session_1": [
                turn("D1:1", "Ada", "I bought a violin."),
                turn("D1:2", "Bob", "Look at this!", blip_caption="a lighthouse at dusk"),
            ],
        },
        "qa": [
            asked("Who bought a violin?", 4, "D1:1"),
            asked("What shows a lighthouse or a kitten?", 1, "D:1:2; D2:01"),
            asked("Who sold a violin?", 5, "D1:1"),
            asked("Who is asked about nothing?", 4, "D"),
            asked("Who speaks of a turn that is not there?", 4, "D9:9"),
        ],
    },
    {
        "sample_id": "conv-2",
        "conversation": {"session_1": [turn("D1:1", "Cleo", "I bought a violin, and a drum.")]},
        "qa": [asked("Which drum?", 4, "D1:1"), asked("Where is the lighthouse?", 2, "D1:1")],
    },
]


@pytest.fixture
def data(tmp_path: Path) -> str:
    path = tmp_path / "conversations.json"
    path.write_text(json.dumps(CONVERSATIONS), encoding="utf-8")
    return str(path)


def test_a_turn_becomes_a_record_with_date_speaker_text_and_caption_in_the_order_of_the_talk() -> None:
    first = locomo.read(CONVERSATIONS)[0]
    assert [(draft.id, draft.text) for draft in first.drafts] == [
        ("conv-1/D1:1", "[8 May, 2031] Ada: I bought a violin."),
        ("conv-1/D1:2", "[8 May, 2031] Bob: Look at this! [image: a lighthouse at dusk]"),
        ("conv-1/D2:1", "[9 May, 2031] Ada: We adopted a kitten called Pixel."),
    ]


def test_only_questions_that_some_turn_answers_are_asked_and_slips_in_their_evidence_are_mended() -> None:
    first = locomo.read(CONVERSATIONS)[0]
    assert [(question.category, set(question.answers)) for question in first.questions] == [
        (4, {"conv-1/D1:1"}),
        (1, {"conv-1/D1:2", "conv-1/D2:1"}),
    ]


def test_locomo_measures_each_question_within_its_own_conversation(
    data: str, capsys: pytest.CaptureFixture[str]
) -> None:
    locomo.main(["--data", data, "--embedder", "none", "--json"])
    measured = json.loads(capsys.readouterr().out)
    assert (measured["conversations"], measured["turns"]) == (2, 4)
    found = {"questions": 2, "R@1": 1.0, "R@5": 1.0, "R@10": 1.0, "MRR": 1.0}
    assert measured["by_category"]["single-hop"] == found
    assert measured["by_category"]["multi-hop"] == {**found, "questions": 1, "R@1": 0.5}
    # The lighthouse is in the other conversation: here nothing matches.
    assert measured["by_category"]["temporal"] == dict.fromkeys(found, 0.0) | {"questions": 1}
    assert measured["by_category"]["all"]["questions"] == 4


@pytest.mark.parametrize("embedder", ["local", "none"])
def test_locomo_prints_a_row_for_each_category(data: str, embedder: str, capsys: pytest.CaptureFixture[str]) -> None:
    locomo.main(["--data", data, "--embedder", embedder])
    printed = capsys.readouterr().out.splitlines()
    assert printed[0].startswith("2 conversations, 4 turns, ingested in ")
    assert printed[1].split() == ["questions", "R@1", "R@5", "R@10", "MRR"]
    assert [line.split()[0] for line in printed[2:-1]] == ["multi-hop", "temporal", "single-hop", "all"]
    assert all(len(line.split()) == 6 for line in printed[2:-1])
    assert re.fullmatch(r"\d+\.\d\d ms a query \(.+\)", printed[-1])


def test_locomo_refuses_a_file_without_a_question_to_judge(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "empty.json"
    path.write_text("[]", encoding="utf-8")
    with pytest.raises(SystemExit):
        locomo.main(["--data", str(path)])
    assert "no question that can be judged" in capsys.readouterr().err


def test_speed_prints_the_library_beside_its_floor_at_each_size(capsys: pytest.CaptureFixture[str]) -> None:
    speed.main(["--records", "40", "20", "--queries", "8"])
    printed = capsys.readouterr().out.splitlines()
    rows = [line.split() for line in printed[1:5]]
    assert [row[:2] for row in rows] == [
        ["20", "remember"], ["20", "recall"], ["40", "remember"], ["40", "recall"],
    ]  # fmt: skip
    assert all(float(figure) >= 0 for row in rows for figure in row[2:])
    assert "  heavy modules it loads                    none" in printed
    assert [line.split("  ")[0] for line in printed if line.startswith("remember")] == [
        "remember, async", "remember, .sync", "remember, 8 tasks at once", "remember_many of 40",
    ]  # fmt: skip


def test_speed_gives_the_same_figures_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    speed.main(["--records", "6", "--queries", "2", "--json"])
    measured = json.loads(capsys.readouterr().out)
    assert [(row["records"], row["call"]) for row in measured["beside_floor"]] == [(6, "remember"), (6, "recall")]
    for row in measured["beside_floor"]:
        assert row["ratio"] == pytest.approx(row["vmem"]["p50"] / row["floor"]["p50"])
        assert row["floor"]["p50"] <= row["floor"]["p95"]
    assert measured["loaded"] == []
    assert measured["many"]["records"] == 6
    assert measured["recall_while_written_ms"]["commits_a_second"] >= 0


def test_both_systems_write_every_text_in_an_operation_of_its_own(tmp_path: Path) -> None:
    work = speed.Workload(60, 20)
    speed.asyncio.run(speed.beside_floor(tmp_path, work, [60], 60))
    with speed.sqlite3.connect(tmp_path / "floor.db") as floor:
        texts = [row[0] for row in floor.execute("select body from revisions order by number")]
    floor.close()
    store = speed.SqliteStore(tmp_path / "vmem.db")
    session = speed.MemorySession(store, speed.SCOPE)
    assert texts == work.texts
    assert [record.text for record in reversed(session.sync.list(limit=100).records)] == work.texts
    assert session.sync.scope_revision() == 60  # one durable operation each, none of them shared
    store.sync.close()


@pytest.mark.parametrize("arguments", [["--records", "0"], ["--queries", "0"]])
def test_speed_refuses_sizes_below_one(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        speed.main(arguments)
    assert "must be 1 or more" in capsys.readouterr().err


postgres = load("postgres")


def test_the_benchmark_of_postgresql_times_both_systems_on_one_server() -> None:
    rows = asyncio.run(postgres.run(server_uri(), records=30, calls=4))
    assert [row["job"] for row in rows] == ["remember", "recall"]
    assert all(row["vmem_p50_ms"] > 0 for row in rows)


def test_scaling_prints_recalls_memory_and_bytes_of_every_kind_of_store(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    server_uri()  # skips without a server
    scaling.main(["--scopes", "3", "--records", "8", "--calls", "4", "--dsn", server_uri(), "--folder", str(tmp_path)])
    printed = capsys.readouterr().out.splitlines()
    assert printed[0] == "3 scopes of 8 records, 384 dimensions"
    labels = [line.split("  ")[0] for line in printed]
    for kind in ("sqlite", "postgres"):
        assert [label for label in labels if label.startswith(kind)] == [
            f"{kind}, index kept",
            f"{kind}, index built each time",
            kind,
            f"{kind}, on disk",
            *(label for label in labels if label.startswith(f"{kind}: ")),
        ]
        assert any(label.startswith(f"{kind}: doctor in ") and label.endswith("s, 0 findings") for label in labels)
    assert labels.count("whole") == labels.count("vmem_revisions") == 2
    assert list(tmp_path.iterdir()) == []


def test_scaling_gives_the_same_figures_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    scaling.main(["--scopes", "2", "--records", "5", "--calls", "2", "--stores", "memory", "sqlite", "--json"])
    memory, sqlite = json.loads(capsys.readouterr().out)
    assert (memory["store"], sqlite["store"]) == ("memory", "sqlite")
    assert "bytes" not in memory
    for told in (memory["recall"], sqlite["recall"], sqlite["first_recall"]):
        assert told["ratio"] == pytest.approx(told["all"] / told["one"])
    assert memory["cache"]["counted"] == sqlite["cache"]["counted"] > 10 * 384 * 4
    tables = {name: size for name, size in sqlite["bytes"].items() if name != "whole"}
    assert {"vmem_records", "vmem_revisions", "vmem_receipts", "vmem_vectors_1"} <= tables.keys()
    assert 0 < sum(tables.values()) <= sqlite["bytes"]["whole"]


async def test_scaling_writes_each_scope_in_one_operation_of_its_own(tmp_path: Path) -> None:
    store, work = scaling.SqliteStore(tmp_path / "all.db"), scaling.Made()
    await scaling.fill(store, work, range(3), 4)
    for number in range(3):
        session = scaling.MemorySession(store, scaling.scope_of(number))
        assert await session.scope_revision() == 1
        page = await session.list()
        assert [record.text for record in reversed(page.records)] == work.texts(number, 4)
    await store.close()


def test_scaling_refuses_sizes_below_one(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        scaling.main(["--scopes", "0"])


def test_large_scope_tells_recalls_memory_and_first_recalls(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(large_scope, "OPENINGS", 1)
    large_scope.main(["--records", "40", "--scopes", "2", "--queries", "3", "--json"])
    measured = json.loads(capsys.readouterr().out)
    assert measured["vector_bytes"] == 40 * 384 * 4
    assert measured["recall"].keys() == {"vmem", "floor", "ratio"}
    for name in ("with_vectors", "words_alone", "beyond_the_limit", "small_scope_first"):
        assert measured[name]["first_ms"] > 0
    table = "\n".join(large_scope.lines(measured))
    for label in (
        "recall, 40 records",
        "floor",
        "first of a process",
        "half of the vectors",
        "recall, one of 2 scopes",
    ):
        assert label in table


def test_large_scope_refuses_sizes_too_small(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        large_scope.main(["--records", "4"])
    assert "--records must be 5 or more" in capsys.readouterr().err


def test_adapters_prints_a_row_for_each_call_with_what_each_adapter_adds(capsys: pytest.CaptureFixture[str]) -> None:
    adapters.main(["--records", "20", "--calls", "3"])
    header, *rows = capsys.readouterr().out.splitlines()
    assert header.split() == [
        "p50", "in", "ms", "session", "langchain", "alone", "added", "llamaindex", "alone", "added"
    ]  # fmt: skip
    assert [row[:16].strip() for row in rows] == ["tool: remember", "tool: recall", "retrieve"]
    assert [len([float(figure) for figure in row[16:].split()]) for row in rows] == [7, 7, 7]


def test_adapters_gives_the_same_figures_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    adapters.main(["--records", "5", "--calls", "2", "--json"])
    for row in json.loads(capsys.readouterr().out):
        for name in ("langchain", "llamaindex"):
            rest = row[f"{name}_alone"]["p50"] + row["session"]["p50"]
            assert row["added"][name] == pytest.approx(row[name]["p50"] - rest)


async def test_each_adapter_makes_the_calls_that_are_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every system writes every text in an operation of its own, and finds what the session finds."""
    sessions: list[Any] = []

    def watched(records: int) -> Any:
        sessions.append(adapters.MemorySession(adapters.InMemoryStore(), adapters.SCOPE))
        return sessions[-1]

    monkeypatch.setattr(adapters, "filled", watched)
    taken = await adapters.workflow_that_measures(0, 30).run()
    assert {name for systems in taken.values() for name in systems} == {
        "session", "langchain", "langchain_alone", "llamaindex", "llamaindex_alone"
    }  # fmt: skip
    assert all(len(ms) == 30 for systems in taken.values() for ms in systems.values())
    for session in sessions:
        assert await session.count() == await session.scope_revision() == 31  # with the one that warms up
    _, langchain, llamaindex = sessions
    for session in (langchain, llamaindex):
        operations = {record.operation_id for record in (await session.list(limit=100)).records}
        assert all(operation.startswith("vmem-op-1:") for operation in operations)


@pytest.mark.parametrize("arguments", [["--records", "0"], ["--calls", "0"]])
def test_adapters_refuses_sizes_below_one(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        adapters.main(arguments)
    assert "must be 1 or more" in capsys.readouterr().err


def test_reembed_moves_a_store_in_use_and_is_killed_on_the_way(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reembed, "SETTLE_SECONDS", 0.4)
    sizes = "--records 24 --batch-size 4 --writers 1 --kills 1 --model-ms 0 --pause-ms 50"
    reembed.main([*sizes.split(), "--json"])
    measured = json.loads(capsys.readouterr().out)
    assert (measured["kills"], measured["switches"], measured["lacking"]) == (1, 1, 0)
    assert measured["model"] == "made-new"
    assert measured["write_errors"] == []
    assert measured["revised"] > 0
    assert measured["paid"] >= 4 + 4  # a batch that was killed, and what the writer had not embedded meanwhile
    assert measured["alone"]["result"]["embedded"] == 24
    for phase in measured["phases"].values():
        assert phase["searches"] > 0
        assert (phase["errors"], phase["empty"]) == (0, 0)
    printed = list(reembed.lines(measured))
    assert [line.split()[0] for line in printed[1:4]] == ["before", "during", "after"]
    assert "calls of reembed, of which killed" in printed[7]


def test_reembed_refuses_sizes_below_one(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        reembed.main(["--records", "0"])
    assert "must be 1 or more" in capsys.readouterr().err


# -------------------------------------------------------------------------------------------------------- imports


def test_imports_prints_each_way_in_beside_its_floor(capsys: pytest.CaptureFixture[str]) -> None:
    imports.main(["--records", "30", "--batch", "7", "--rounds", "1"])
    printed = capsys.readouterr().out.splitlines()
    assert printed[0] == "30 records, 7 a transaction, one durable SQLite file"
    assert [line[:26].rstrip() for line in printed[2:]] == [
        "executemany, plain rows", "import_legacy", "import_legacy, again", "export, import_jsonl", "remember_many",
    ]  # fmt: skip
    assert all(len(line[26:].split()) == 4 for line in printed[2:])


def test_imports_gives_the_same_figures_as_json_and_the_use_of_memory(capsys: pytest.CaptureFixture[str]) -> None:
    imports.main(["--records", "5", "--rounds", "1", "--json"])
    measured = json.loads(capsys.readouterr().out)
    assert set(measured["seconds"]) == set(measured["processor_seconds"])
    assert all(seconds > 0 for seconds in measured["seconds"].values())
    imports.main(["--records", "5", "--memory"])
    printed = capsys.readouterr().out.splitlines()
    assert [line.split("  ")[0] for line in printed[1:]] == ["begin", "import_legacy", "export, import_jsonl"]


@pytest.mark.parametrize("arguments", [["--records", "0"], ["--batch", "0"], ["--rounds", "0"]])
def test_imports_refuses_sizes_below_one(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        imports.main(arguments)
    assert "must be 1 or more" in capsys.readouterr().err
