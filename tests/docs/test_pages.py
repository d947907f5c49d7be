"""The pages of docs/ that repeat the code say what the code says."""

import re
import sys
from pathlib import Path
from typing import get_args

import msgspec
import pyarrow as pa
import pytest

from mainstem.cli.exits import ExitCode
from mainstem.core import payload, pieces
from mainstem.core.batch import BatchHeader
from mainstem.core.checksum import crc32c
from mainstem.core.limits import APPEND_BATCHES_MAX, SUBSCRIPTIONS_PER_CONNECTION_MAX
from mainstem.core.schema import Schema
from mainstem.core.statistics import collect
from mainstem.log import frame
from mainstem.log.flush import Command
from mainstem.log.folder import FORMAT
from mainstem.log.frame import BlockHeader, FlushWriter, FrameKind, Place
from mainstem.log.ledger.sqlite import SqliteLedger
from mainstem.produce.options import ProducerOptions
from mainstem.server.main import EXIT_IO_ERROR
from mainstem.transport import wire
from mainstem.transport.port import Call, GetStreamCall, StreamInfo
from mainstem.transport.sharing import BeatGroupCall, Staging
from mainstem.transport.wire import Kind

ROOT = Path(__file__).parents[2]
TIME_US = 1_700_000_000_000_000
PAYLOAD = b"abcd"
BATCH = BatchHeader(
    stream=7,
    shard=2,
    count=1,
    encoding=1,
    layout=0,
    schema_id=0,
    raw_len=4,
    stored_len=4,
    payload_crc=crc32c(PAYLOAD),
    producer=99,
    producer_epoch=0,
    sequence=5,
    generation=0,
    time_low=TIME_US,
    time_high=TIME_US,
)


ROWS = pa.record_batch({"id": ["order 1", "order 2"], "n": pa.array([5, 300])})
# Just enough for pieces: 64 KiB of numbers.
NUMBERS = pa.record_batch({"id": pa.array(range(4_096)), "n": pa.array([7] * 4_096)})
# The same batch stored anew, with four of its records gone.
MOVED = msgspec.structs.replace(BATCH, producer=0, sequence=0, layout=8, span=5)
# The same batch as part of a transaction.
STAGED = msgspec.structs.replace(BATCH, producer=0, sequence=0)


def page(name: str) -> str:
    return (ROOT / "docs" / name).read_text(encoding="utf-8")


def documented(name: str) -> dict[str, bytes]:
    """The bytes of every example of a page: hex at the beginning of a line, words after two spaces."""
    found = re.findall(r"```hex (\w+)\n(.*?)```", page(name), re.DOTALL)
    return {title: b"".join(bytes.fromhex(line.split("  ")[0]) for line in body.splitlines()) for title, body in found}


def flush() -> bytes:
    writer = FlushWriter(Place(block=1, ledger_epoch=1, writer_epoch=1, flush=1, applied=0), position=64)
    writer.add_data(BATCH, PAYLOAD)
    writer.add_commit(TIME_US, 0, 0)
    return b"".join(writer.buffers)


def pieces_of(rows: pa.RecordBatch) -> bytes:
    """Of rows that are stored as they are."""
    schema = Schema(rows.schema)
    encoded = payload.encode(rows, None, schema)
    header = msgspec.structs.replace(BATCH, count=encoded.count, encoding=encoded.encoding, schema_id=1)
    return pieces.collect(header, encoded.payload, schema)


def message(*arguments) -> bytes:
    return b"".join(wire.pack(*arguments))


def test_the_examples_of_the_protocol():
    assert documented("protocol.md") == {
        "hello": message(Kind.HELLO, 1, wire.Hello(wire.VERSION_MIN, wire.VERSION, "example")),
        "ping": message(Kind.PING, 0),
        "get": message(Kind.CALL, 2, GetStreamCall("clicks")),
        "append": message(Kind.APPEND, 3, wire.Append([BATCH], True, 120_000), [PAYLOAD]),
        "appended": message(Kind.APPENDED, 3, wire.Appended([1000])),
        "subscribe": message(Kind.SUBSCRIBE, 4, wire.Subscribe(7, [0, 10], None, 1 << 20)),
        "batches": message(Kind.BATCHES, 4, wire.Batches([(1000, MOVED)]), [PAYLOAD]),
        "credit": message(Kind.CREDIT, 4, wire.Credit(132)),
        "beat_group": message(Kind.CALL, 5, BeatGroupCall("billing", 99, 3, 4, ((7, 0), (7, 2)))),
        "stage": message(Kind.STAGE, 6, wire.Stage([STAGED], Staging(11, 0, 60.0), 120_000), [PAYLOAD]),
    }


def test_the_examples_of_the_format():
    log_uuid = bytes.fromhex("00112233445566778899aabbccddeeff")
    writer = FlushWriter(Place(block=3, ledger_epoch=1, writer_epoch=2, flush=9, applied=8), position=64)
    writer.add_moved(1000, MOVED, PAYLOAD)
    assert documented("format.md") == {
        "block": BlockHeader(1, log_uuid, 1, 1, 1, TIME_US).pack(),
        "moved": b"".join(writer.buffers),
        "flush": flush(),
        "statistics": collect(ROWS, index=["id"], times=(TIME_US, TIME_US)),
        "pieces": collect(NUMBERS, pieces=pieces_of(NUMBERS)),
    }


def test_versions_are_those_of_the_pages():
    assert page("format.md").startswith(f"# The format on disk, version {FORMAT}\n")
    assert page("protocol.md").startswith(f"# The native protocol, version {wire.VERSION}\n")


def fields_by_type(name: str) -> dict[str, set[str]]:
    """Of every row that begins with the type of a command or a call, the words of its second column."""
    rows = re.findall(r"^\| `(\w+)` \| ([^|]*)\|", page(name), re.MULTILINE)
    return {kind: set(re.findall(r"\w+", re.sub(r"\(.*?\)|:.*", "", fields))) for kind, fields in rows}


def test_every_command_is_in_the_format():
    found = fields_by_type("format.md")
    for command in get_args(Command):
        assert found[command.__struct_config__.tag] == set(command.__struct_fields__)


def test_every_call_is_in_the_protocol():
    found = fields_by_type("protocol.md")
    for call in get_args(Call):
        assert found[call.__struct_config__.tag] == set(call.__struct_fields__)
    assert ", ".join(StreamInfo.__struct_encode_fields__) in " ".join(page("protocol.md").split())


def test_every_table_of_the_ledger_is_in_the_format(tmp_path):
    ledger = SqliteLedger.create(tmp_path / "ledger.db", log_uuid="", epoch=1)
    tables = {name for (name,) in ledger._rows("SELECT name FROM sqlite_master WHERE type = 'table'")}
    columns = {name: [row[1] for row in ledger._rows(f"PRAGMA table_info({name})")] for name in tables}
    ledger.close()
    text = page("format.md").split("## The ledger")[1].split("## ")[0]
    rows = re.findall(r"^\| ([a-z_, ]+?)(?: \(\d\))? \|([^|]*)\|", text, re.MULTILINE)
    texts = {name: re.sub(r" \(\d\)", "", fields) for names, fields in rows[1:] for name in names.split(", ")}
    assert texts.keys() == tables
    shown = {name: re.findall(r"\w+", fields) for name, fields in texts.items()}
    # Of tables that are not in use no columns are shown.
    assert [name for name, fields in shown.items() if fields and fields != columns[name]] == []


def test_every_kind_of_message_is_in_the_protocol():
    rows = re.findall(r"^\| (\d+) \| ([A-Z]+) \| .* \| (.*) \|$", page("protocol.md"), re.MULTILINE)
    assert [(int(number), name) for number, name, _ in rows] == [(kind.value, kind.name) for kind in Kind]
    fields = {name: [word.strip() for word in header.split(";")[0].split(",")] for _, name, header in rows}
    for kind, header in ((Kind.HELLO, wire.Hello), (Kind.WELCOME, wire.Welcome), (Kind.SUBSCRIBE, wire.Subscribe)):
        assert fields[kind.name] == list(header.__struct_fields__)
    assert fields["APPEND"] == list(wire.Append.__struct_fields__)
    batch = ", ".join(BatchHeader.__struct_fields__)
    assert batch in " ".join(page("protocol.md").split())


def test_the_limits_of_the_protocol():
    text = " ".join(page("protocol.md").split())
    assert f"{APPEND_BATCHES_MAX} batches in one message" in text
    assert f"{SUBSCRIPTIONS_PER_CONNECTION_MAX} subscriptions on one connection" in text
    assert "a message of 24 MiB, a header of 2 MiB" in text


def test_the_fields_of_a_frame():
    table = page("format.md").split("## A frame")[1].split("## A flush")[0]
    rows = re.findall(r"^\| (\d+) \| (\d+) \| (\w+) \|", table, re.MULTILINE)
    assert [name for *_, name in rows] == list(frame.FrameHeader._fields)
    assert int(rows[-1][0]) + int(rows[-1][1]) == frame.FRAME_BYTES
    places = [int(place) for place, *_ in rows]
    assert places == [sum(int(size) for _, size, _ in rows[:count]) for count in range(len(rows))]
    assert ", ".join(f"{kind.value} {kind.name.lower()}" for kind in FrameKind) in table


@pytest.fixture
def pages(monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "tools")
    monkeypatch.delitem(sys.modules, "pages", raising=False)
    import pages

    return pages


def test_rendered_pages_are_current(pages):
    """To renew them: python tools/pages.py."""
    stale = [name for name, text in pages.pages().items() if page(name) != text]
    assert stale == []


def test_the_architecture_names_every_folder():
    source = ROOT / "src" / "mainstem"
    folders = {path.parent.name for path in source.rglob("__init__.py") if path.parent != source}
    tree = page("architecture.md").split("```")[1]
    assert set(re.findall(r"^ +(\w+)/ ", tree, re.MULTILINE)) == folders


def test_the_exit_codes_are_on_the_page_of_the_commands():
    rows = re.findall(r"^\| (\d+) \|", page("cli.md"), re.MULTILINE)
    assert set(map(int, rows)) == {code.value for code in ExitCode} | {EXIT_IO_ERROR}


def test_the_options_of_a_producer_are_in_the_guide():
    rows = re.findall(r"^\| `(\w+)` \| (.*?) \|", page("guide.md"), re.MULTILINE)
    defaults = msgspec.structs.asdict(ProducerOptions())
    shown = {
        name: f"{value >> 20} MiB" if name.endswith("_bytes") else f"`{value!r}`" for name, value in defaults.items()
    }
    assert {name: text.replace('"', "'") for name, text in rows} == shown


LINK = re.compile(r"\]\((?!https?:)([^)#\s]+)")


@pytest.mark.parametrize("path", [*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")], ids=lambda path: path.name)
def test_links_lead_somewhere(path):
    missing = [link for link in LINK.findall(path.read_text(encoding="utf-8")) if not (path.parent / link).exists()]
    assert missing == []
