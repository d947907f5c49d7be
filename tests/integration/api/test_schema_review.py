"""A schema is reviewed where it is kept: a client that does not do so cannot make rows unreadable."""

import pyarrow as pa
import pytest

import mainstem
from mainstem.core.errors import IncompatibleSchema, InvalidSchema
from mainstem.core.schema import Schema, described
from mainstem.testing.server import ServerProcess

BAD_DEFAULT = pa.schema([("a", pa.int64()), described(pa.field("b", pa.int8()), default="no number")])
TWICE = pa.schema([("a", pa.int64()), described(pa.field("b", pa.int8()), aliases=("a",))])
LARGE_DEFAULT = pa.schema([("a", pa.int64()), described(pa.field("b", pa.string()), default="x" * 100_000)])


@pytest.mark.parametrize("arrow", [BAD_DEFAULT, TWICE, LARGE_DEFAULT], ids=["default", "alias", "size"])
@pytest.mark.parametrize("kind", ["embedded", "served"])
def test_a_schema_that_makes_no_sense_is_refused(tmp_path, monkeypatch, kind, arrow):
    monkeypatch.setattr("mainstem.hub.hub.as_schema", Schema)  # a client that looks at nothing
    if kind == "embedded":
        with mainstem.open(tmp_path) as hub:
            refuses(hub, arrow)
    else:
        with ServerProcess(tmp_path / "data") as server, mainstem.connect(server.url) as hub:
            refuses(hub, arrow)


def refuses(hub: mainstem.Hub, arrow: pa.Schema) -> None:
    with pytest.raises(InvalidSchema, match="column 'b'"):
        hub.streams.create("new", schema=arrow)
    hub.streams.create("old", schema=pa.schema([("a", pa.int64())]))
    for mode in ("backward", "none"):
        with pytest.raises(InvalidSchema, match="column 'b'"):
            hub.streams.set_schema("old", arrow, compatibility=mode)
    assert [each.version for each in hub.streams.schemas("old")] == [1]


@pytest.mark.parametrize("mode", ["backward_transitive", "forward_transitive", "full_transitive"])
def test_every_mode_is_one_of_a_stream(tmp_path, mode):
    with mainstem.open(tmp_path) as hub:
        hub.streams.create("a", schema={"id": "int64"}, compatibility=mode)
        hub.streams.set_schema("a", {"id": "int64", "more": "text"})
        with pytest.raises(IncompatibleSchema, match="'id'"):
            hub.streams.set_schema("a", {"id": "text"})
