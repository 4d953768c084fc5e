"""The benchmarks run, on tiny made data, and print what they say they print. How fast anything is, no test asks."""

from __future__ import annotations

import importlib.util
import json
import re
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

FOLDER = Path(__file__).resolve().parent.parent / "benchmarks"


def load(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"benchmark_{name}", FOLDER / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


speed, locomo, imports = load("speed"), load("locomo"), load("imports")


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


def test_both_systems_write_every_text_in_an_operation_of_its_own(tmp_path: Path) -> None:
    work = speed.Workload(60, 20)
    speed.asyncio.run(speed.beside_floor(tmp_path, work, [60]))
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
