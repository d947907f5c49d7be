"""Clients that are slow, gone, hostile or many: typed errors, bounded memory, no effect on others."""

import gzip
import json
import random
import socket
import threading
import time
from contextlib import suppress
from pathlib import Path

import pyarrow as pa
import pytest

from mainstem.core.limits import HTTP_BODY_BYTES_MAX, HTTP_HEAD_BYTES_MAX, HTTP_HEAD_LINES_MAX
from mainstem.testing.server import ServerProcess
from tests.integration.http.client import NDJSON, Client, Events

SCHEMA = {"id": "int64", "name": "string"}
JSON = "application/json"
ARROW = "application/vnd.apache.arrow.stream"


def dial(server) -> socket.socket:
    host, _, port = server.http.rpartition(":")
    return socket.create_connection((host, int(port)), 15)


def talk(server, data: bytes) -> bytes:
    """What a server says to these bytes until it closes, or for a moment."""
    with dial(server) as peer:
        peer.settimeout(3)
        heard = b""
        try:
            peer.sendall(data)
            while more := peer.recv(1 << 16):
                heard += more
        except (TimeoutError, ConnectionError):
            pass
        return heard


def test_pages_of_other_sites_cannot_use_a_loopback_server(client: Client):
    assert client.get("/streams", host="evil.example").status == 421
    assert client.get("/streams", host="evil.example:7071").json()["title"] == "Refused"
    assert client.get("/streams", origin="http://evil.example").status == 403
    assert client.get("/streams", origin="null").status == 403
    assert client.get("/streams", sec_fetch_site="cross-site").status == 403
    own = f"{client.address[0]}:{client.address[1]}"
    assert client.get("/streams", origin=f"http://{own}", sec_fetch_site="same-origin").status == 200
    assert client.get("/streams", host="localhost").status == 200
    assert client.get("/streams", host="[::1]:7071").status == 200
    assert client.get("/streams", host="localhost:7071", origin="https://localhost:7071").status == 403
    # What watches a server may know it by any name.
    assert client.get("/livez", host="mainstem.internal").status == 200
    assert "access-control-allow-origin" not in client.get("/streams").headers


def test_bodies_that_are_too_large(client: Client):
    client.create("sizes", schema=SCHEMA)
    client._connection.putrequest("POST", "/streams/sizes/records")
    client._connection.putheader("Content-Length", str(HTTP_BODY_BYTES_MAX + 1))
    client._connection.endheaders()
    assert client._connection.getresponse().status == 413
    client._connection.close()
    row = b'{"id": 1, "name": "' + b"x" * 1_000_000 + b'"}\n'
    answer = client.post("sizes", (row for _ in range(40)))
    assert (answer.status, answer.json()["title"]) == (413, "RecordTooLarge")
    assert client.get("/streams/sizes").json()["records"] == 0


@pytest.mark.parametrize("encoding", ["gzip", "zstd"])
def test_a_compressed_bomb_is_refused_and_takes_no_memory(client: Client, server, encoding):
    client.ask("PUT", "/streams/bombs", {"schema": SCHEMA})
    zeros = b" " * (1 << 20)
    whole = zeros * 200
    packed = gzip.compress(whole, 9) if encoding == "gzip" else pa.Codec("zstd").compress(whole, asbytes=True)
    before = server.memory_bytes()
    for _ in range(5):
        answer = client.post("bombs", packed, content_encoding=encoding)
        assert (answer.status, answer.json()["title"]) == (413, "RecordTooLarge")
    assert server.memory_bytes() - before < 150e6


@pytest.mark.parametrize("encoding", ["gzip", "zstd"])
def test_what_is_compressed_is_read_a_piece_at_a_time(own_server, encoding):
    """A kilobyte of it may be millions of lines."""
    whole = b"\n" * 16_000_000
    packed = gzip.compress(whole, 9) if encoding == "gzip" else pa.Codec("zstd").compress(whole, asbytes=True)
    with Client(own_server.http) as client:
        client.create("lines", schema=SCHEMA)
        client.post("lines", b'{"id": 1, "name": "n"}\n')
        before = own_server.memory_bytes()
        assert client.post("lines", packed, content_encoding=encoding).status == 200
    assert peak_bytes(own_server) - before < 60e6


EMPTY = gzip.compress(b"")
# The head of a member, and blocks of it that hold nothing.
BLOCKS = b"\x1f\x8b\x08\x00\x00\x00\x00\x00\x00\x03", b"\x00\x00\x00\xff\xff" * 200_000
FRAME = pa.Codec("zstd").compress(b"", asbytes=True)


@pytest.mark.parametrize(
    ("encoding", "first", "more"),
    [("gzip", b"", EMPTY * 50_000), ("gzip", *BLOCKS), ("zstd", b"", FRAME * 100_000)],
    ids=["members", "blocks", "frames"],
)
def test_what_is_sent_and_comes_to_nothing_has_an_end_and_holds_up_nobody(
    client: Client, server, encoding, first, more
):
    """Nothing of it is ever decompressed, so it is limited as it is sent."""
    client.ask("PUT", "/streams/nothings", {"schema": SCHEMA})
    waits: list[float] = []
    is_over = threading.Event()

    def live() -> None:
        with Client(server.http) as healthy:
            while not is_over.wait(0.01):
                began = time.monotonic()
                assert healthy.get("/livez").status == 200
                waits.append(time.monotonic() - began)

    beside = threading.Thread(target=live)
    beside.start()
    with dial(server) as peer:
        head = f"POST /streams/nothings/records HTTP/1.1\r\nHost: localhost\r\nContent-Encoding: {encoding}\r\n"
        peer.sendall(head.encode() + b"Transfer-Encoding: chunked\r\n\r\n")
        peer.settimeout(0.01)
        heard, sent = b"", 0
        for piece in (first, *[more] * (40_000_000 // len(more))):
            if piece:
                sent += send_piece(peer, piece)
            with suppress(TimeoutError, ConnectionError):
                heard += peer.recv(1 << 16)
            if heard:
                break
    is_over.set()
    beside.join()
    assert heard.startswith(b"HTTP/1.1 413 "), (sent, heard)
    assert sent <= HTTP_BODY_BYTES_MAX + 2 * len(more)
    assert len(waits) > 1
    assert max(waits) < 0.5


def send_piece(peer: socket.socket, piece: bytes) -> int:
    """A chunk of a body; how much of it the server took."""
    peer.settimeout(15)
    with suppress(ConnectionError):
        peer.sendall(b"%x\r\n%b\r\n" % (len(piece), piece))
    peer.settimeout(0.01)
    return len(piece)


@pytest.mark.parametrize(
    ("body", "status"), [(b"[" + b"{}," * 1_500_000 + b"{}]", 200), (b"[" + b"5," * 15_000_000, 422)]
)
def test_an_array_of_very_many_tiny_rows_is_not_decoded_at_once(own_server, body, status):
    """What is tens of kilobytes of gzip would be objects of many times the size of the body."""
    packed = gzip.compress(body, 9)
    assert len(packed) < 50_000
    with Client(own_server.http) as client:
        client.create("tiny")
        client.post("tiny", b'[{"value": "warm"}]', JSON)
        before = own_server.memory_bytes()
        answer = client.post("tiny", packed, JSON, content_encoding="gzip")
    assert answer.status == status, answer
    assert peak_bytes(own_server) - before < 60e6


def peak_bytes(server: ServerProcess) -> int:
    """The most memory that it has ever had."""
    status = Path(f"/proc/{server.pid}/status").read_text()
    return int(status.partition("VmHWM:")[2].split()[0]) << 10


def test_rows_that_are_far_larger_than_their_text(client: Client, server):
    client.create("wide", schema={f"column_{number}": "int64" for number in range(1500)})
    before = server.memory_bytes()
    answer = client.post("wide", b"{}\n" * 1_000_000)
    assert (answer.status, answer.json()["title"]) == (413, "RecordTooLarge")
    assert server.memory_bytes() - before < 300e6


def test_heads_that_are_too_large_or_never_end(server):
    heard = talk(server, b"GET / HTTP/1.1\r\nX: " + b"x" * (2 * HTTP_HEAD_BYTES_MAX))
    assert (heard.startswith(b"HTTP/1.1 431") and b"at most 65536 bytes" in heard) or heard == b""
    # One that comes at once.
    whole = b"GET /livez HTTP/1.1\r\nHost: localhost\r\nX: " + b"x" * HTTP_HEAD_BYTES_MAX + b"\r\n\r\n"
    assert talk(server, whole).startswith(b"HTTP/1.1 431")
    assert b"problem+json" in talk(server, b"nonsense\r\n\r\n")
    assert b'"code":120' in talk(server, b"GET /a b HTTP/1.1\r\n\r\n")


def test_heads_of_too_many_lines(server):
    """Each becomes objects of some hundred bytes, before anybody knows who asks."""
    few = b"GET /livez HTTP/1.1\r\nHost: localhost\r\n" + b"a:b\r\n" * (HTTP_HEAD_LINES_MAX - 10)
    many = few + b"a:b\r\n" * 20
    heard = talk(server, few + b"\r\n" + few + b"Connection: close\r\n\r\n")
    assert heard.count(b"HTTP/1.1 200") == 2
    assert talk(server, many + b"\r\n").startswith(b"HTTP/1.1 431")
    # Also behind another request, in lines of other forms, and after a body.
    heard = talk(server, few + b"\r\n" + many.replace(b"\r\n", b"\n") + b"\n")
    assert (heard.count(b"HTTP/1.1 200"), heard.count(b"HTTP/1.1 431")) == (1, 1)
    chunked = b"POST /streams/x/records HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n"
    assert b"HTTP/1.1 431" in talk(server, chunked + b"a:b\r\n" * 10_000 + b"\r\n")


@pytest.mark.parametrize("part", ["a/b,", ",", ";"])
def test_a_wish_that_is_too_long_is_not_looked_into(client: Client, part):
    client.ask("PUT", "/streams/wishes", {"schema": SCHEMA})
    browser = "text/html,application/xhtml+xml,application/xml;q=0.9,image/avif,image/webp,*/*;q=0.8"
    assert client.get("/streams/wishes/records", accept=browser).status == 200
    answer = client.get("/streams/wishes/records", accept=part * (15_000 // len(part)) + "*/*")
    assert (answer.status, answer.json()["title"]) == (400, "InvalidRequest")


@pytest.mark.parametrize(
    ("target", "version", "status"),
    [
        ("http://localhost:1/streams?after=0", "1.1", 200),
        ("http://LOCALHOST", "1.1", 404),
        # What the target says counts, not what Host says.
        ("http://evil.example/streams", "1.1", 421),
        ("/livez", "1.0", 200),
        ("/livez", "9.9", 505),
        ("/livez", "2.0", 505),
    ],
)
def test_forms_and_versions_of_requests(server, target, version, status):
    head = f"GET {target} HTTP/{version}\r\nHost: localhost\r\nConnection: close\r\n\r\n"
    assert talk(server, head.encode()).startswith(f"HTTP/1.1 {status} ".encode())


@pytest.mark.slow("waits until the server loses its patience")
def test_a_head_that_does_not_come_ends_the_connection(server):
    with dial(server) as silent, dial(server) as slow:
        slow.sendall(b"GET /livez HTTP/1.1\r\nHo")
        for peer in (silent, slow):
            peer.settimeout(30)
            assert peer.recv(1) == b""


@pytest.mark.parametrize(
    "head",
    [
        b"Content-Length: 4\r\nContent-Length: 40\r\n",
        b"Content-Length: 4\r\nTransfer-Encoding: chunked\r\n",
        b"Transfer-Encoding: chunked, identity\r\n",
        b"Transfer-Encoding: xchunked\r\n",
        b"Content-Length: +4\r\n",
        b"Content-Length : 4\r\n",
        b"Transfer-Encoding\x0b: chunked\r\n",
    ],
)
def test_no_request_can_be_smuggled_in_a_body(server, head):
    smuggled = b"PUT /streams/smuggled HTTP/1.1\r\nHost: localhost\r\nContent-Length: 2\r\n\r\n{}"
    body = b"0\r\n\r\n" + smuggled
    heard = talk(server, b"POST /streams/nowhere/records HTTP/1.1\r\nHost: localhost\r\n" + head + b"\r\n" + body)
    assert b" 201 " not in heard
    with Client(server.http) as client:
        assert client.get("/streams/smuggled").status == 404


def test_a_client_that_goes_away_in_mid_body_writes_nothing(client: Client, server):
    client.create("left", schema=SCHEMA)
    line = b'{"id": 1, "name": "n"}\n'
    for announced in (b"Content-Length: 1000000\r\n\r\n", b"Transfer-Encoding: chunked\r\n\r\n17\r\n"):
        with dial(server) as peer:
            peer.sendall(b"POST /streams/left/records HTTP/1.1\r\nHost: localhost\r\n" + announced + line)
    time.sleep(0.3)
    assert client.get("/streams/left").json()["records"] == 0
    assert client.post("left", line).status == 200


def test_slow_senders_and_readers_hold_up_nobody(client: Client, server):
    client.create("slow", schema=SCHEMA)
    body = b"".join(b'{"id": %d, "name": "%s"}\n' % (number, b"x" * 200) for number in range(50_000))
    client.post("slow", body)
    before = server.memory_bytes()
    peers = []
    for _ in range(40):
        reader = dial(server)
        reader.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        reader.sendall(b"GET /streams/slow/records HTTP/1.1\r\nHost: localhost\r\n\r\n")
        sender = dial(server)
        sender.sendall(b"POST /streams/slow/records HTTP/1.1\r\nHost: localhost\r\nContent-Length: 999999\r\n\r\n{")
        peers += [reader, sender]
    time.sleep(1)
    began = time.monotonic()
    statuses = [client.post("slow", b'{"id": %d, "name": "quick"}\n' % number).status for number in range(20)]
    seconds, grown = time.monotonic() - began, server.memory_bytes() - before
    for peer in peers:
        peer.close()
    assert statuses == [200] * 20
    assert seconds < 10
    # A piece each, and what the kernel has not taken.
    assert grown < 40 * 6e6


def test_idle_connections_cost_little(own_server):
    with Client(own_server.http) as client:
        client.get("/livez")
        before = own_server.memory_bytes()
        peers = [dial(own_server) for _ in range(500)]
        time.sleep(0.5)
        status, grown = client.get("/livez").status, own_server.memory_bytes() - before
    for peer in peers:
        peer.close()
    assert status == 200
    assert grown / len(peers) < 64 * 1024


def test_too_many_clients_are_told_so(tmp_path):
    with ServerProcess(tmp_path / "data", "--http", "127.0.0.1:0", "--connections-max", "5") as server:
        with Client(server.http) as client:
            client.create("followed", schema=SCHEMA)
        tails = [Events(server.http, "/streams/followed/records") for _ in range(5)]
        with Client(server.http) as client:
            answer = client.get("/streams")
        assert (answer.status, answer.json()["code"]) == (503, 301)
        assert "connections_max" in answer.json()["detail"]
        # Whether it lives can be asked all the same.
        with Client(server.http) as client:
            assert client.get("/livez").status == 200
        for tail in tails:
            tail.__exit__()
        time.sleep(0.2)
        with Client(server.http) as client:
            assert client.get("/streams").status == 200


def test_who_connects_and_says_nothing_keeps_nobody_out(tmp_path):
    with (
        ServerProcess(tmp_path / "data", "--http", "127.0.0.1:0", "--connections-max", "5") as server,
        Client(server.http) as known,
    ):
        assert known.get("/livez").status == 200
        peers = [dial(server) for _ in range(100)]
        with Client(server.http) as client:
            assert client.get("/livez").status == 200
            assert client.get("/streams").status == 200
        # The first of them was told why it had to go.
        assert peers[0].recv(1 << 16).startswith(b"HTTP/1.1 503")
        for peer in peers:
            peer.close()


def test_hostile_arrow_streams_are_refused_and_the_server_lives(client: Client, server):
    client.create("hostile", schema=SCHEMA)
    table = pa.table({"id": list(range(1000)), "name": ["n"] * 1000})
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    whole = sink.getvalue().to_pybytes()
    dice = random.Random(7)
    seen: dict[int, int] = {}
    for _ in range(300):
        body = bytearray(whole)
        for _ in range(dice.randint(1, 6)):
            body[dice.randrange(0, 700 if dice.random() < 0.8 else len(body))] = dice.randrange(256)
        if dice.random() < 0.2:
            del body[dice.randrange(len(body)) :]
        answer = client.post("hostile", bytes(body), ARROW)
        seen[answer.status] = seen.get(answer.status, 0) + 1
        assert answer.status in (200, 400, 413, 422), answer
    assert seen.get(400, 0) > 50, seen
    dictionary = pa.table({"id": [1], "name": pa.array(["a"]).dictionary_encode()})
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, dictionary.schema) as writer:
        writer.write_table(dictionary)
    answer = client.post("hostile", sink.getvalue().to_pybytes(), ARROW)
    assert answer.status in (400, 422)
    assert client.get("/livez").status == 200


def test_fuzzed_requests_get_typed_errors_or_are_cut(server):
    """A look at what the torture suite does at length."""
    dice = random.Random(11)
    seeds = [
        b"GET /streams HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"GET /streams/fuzz/records?limit=3&where=id%20%3D%201 HTTP/1.1\r\nHost: localhost\r\nAccept: text/csv\r\n\r\n",
        b'POST /streams/fuzz/records HTTP/1.1\r\nHost: localhost\r\nContent-Length: 23\r\n\r\n{"id": 1, "name": "n"}\n',
        b"PUT /streams/fuzz HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n",
    ]
    for _ in range(400):
        data = bytearray(dice.choice(seeds))
        for _ in range(dice.randint(1, 8)):
            data[dice.randrange(len(data))] = dice.randrange(256)
        with dial(server) as peer:
            peer.settimeout(0.05)
            try:
                peer.sendall(data)
                heard = peer.recv(1 << 16)
            except (TimeoutError, ConnectionError):
                continue
            assert not heard or heard.startswith(b"HTTP/1.1 "), heard
            assert b" 500 " not in heard.partition(b"\r\n")[0], (bytes(data), heard)
    with Client(server.http) as client:
        assert client.get("/livez").status == 200
    assert "Traceback" not in server.stderr()


def test_many_at_once(client: Client, server):
    client.create("many", schema=SCHEMA)
    failures: list[object] = []

    def work(number: int) -> None:
        with Client(server.http) as own:
            for turn in range(10):
                row = json.dumps({"id": number * 100 + turn, "name": "n"}).encode() + b"\n"
                answer = own.post("many", row, NDJSON)
                if answer.status != 200:
                    failures.append(answer)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
    assert client.get("/streams/many").json()["records"] == 200


@pytest.mark.slow("readers that take their time")
@pytest.mark.parametrize("query", ["", "?where=id+%25+2+%3D+0"])
def test_slow_readers_get_everything_once(client: Client, server, query):
    """What was let go of meanwhile is read again, from where each reader stands."""
    name = "patient" + ("_where" if query else "")
    client.create(name, schema=SCHEMA, key="id", shards=2)
    for begin in range(0, 60_000, 30_000):
        rows = (b'{"id": %d, "name": "%s"}\n' % (number, b"x" * 200) for number in range(begin, begin + 30_000))
        client.post(name, b"".join(rows))
    found: dict[int, list[int]] = {}

    def read(number: int) -> None:
        with dial(server) as peer:
            peer.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 16_384)
            peer.settimeout(30)
            peer.sendall(
                b"GET /streams/%s/records%s HTTP/1.0\r\nHost: localhost\r\n\r\n" % (name.encode(), query.encode())
            )
            pieces = []
            while piece := peer.recv(1 << 18):
                pieces.append(piece)
                if len(pieces) in (1, 5, 40):
                    time.sleep(0.8)
        body = b"".join(pieces).partition(b"\r\n\r\n")[2]
        found[number] = [json.loads(line)["id"] for line in body.splitlines()]

    threads = [threading.Thread(target=read, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    wanted = range(0, 60_000, 2) if query else range(60_000)
    assert len(found) == 6
    for ids in found.values():
        assert sorted(ids) == list(wanted)


@pytest.mark.slow("a server is stopped under its readers")
def test_a_server_stops_although_its_readers_and_senders_do_nothing(own_server):
    with Client(own_server.http) as client:
        client.create("stop", schema=SCHEMA)
        client.post("stop", b"".join(b'{"id": %d, "name": "%s"}\n' % (n, b"x" * 200) for n in range(60_000)))
    peers = []
    for _ in range(5):
        for query in (b"", b"?limit=30000"):
            peers.append(dial(own_server))
            peers[-1].setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            peers[-1].sendall(b"GET /streams/stop/records%s HTTP/1.1\r\nHost: localhost\r\n\r\n" % query)
        peers.append(dial(own_server))
        peers[-1].sendall(b"POST /streams/stop/records HTTP/1.1\r\nHost: localhost\r\nContent-Length: 99\r\n\r\n{")
    time.sleep(1)
    began = time.monotonic()
    code = own_server.stop()
    seconds = time.monotonic() - began
    for peer in peers:
        peer.close()
    assert code == 0
    assert seconds < 20
    assert "Traceback" not in own_server.stderr(), own_server.stderr()
