"""HTTP behind a guard: what the guard says happens, before a request, while it lasts, and to what it may see."""

import http.client
import socket
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from mainstem.access.principal import Principal
from mainstem.core.sampling import SHARE_HEADER
from mainstem.server.http import port, tails
from mainstem.server.http.append import HttpAppend
from mainstem.transport.guarding import Quota, Rule
from mainstem.transport.port import AlterStreamCall, DeleteStreamCall
from tests.integration.http.client import Answer, Client, Events
from tests.unit.server.http.serving import SCHEMA, GuardedHttp, guarded

RECORDS = "/streams/rows/records"


def line(number: int, text: str = "a") -> bytes:
    return b'{"id": %d, "text": "%s"}\n' % (number, text.encode())


def prepare(server: GuardedHttp) -> None:
    assert server.ask(server.root, "PUT", "/streams/rows", {"schema": SCHEMA}).status == 201


def post(server: GuardedHttp, token: object, body: bytes, query: str = "", **headers: str) -> Answer:
    return server.ask(token, "POST", RECORDS + query, body, **headers)  # type: ignore[arg-type]


def test_calls_are_checked_one_by_one(tmp_path):
    """Whatever a route does beside what it is for passes the same table as the calls of every other client."""

    def test(server: GuardedHttp) -> None:
        prepare(server)
        post(server, server.root, line(1))
        cursor = server.ask(server.root, "GET", RECORDS).headers["mainstem-cursor"]
        server.allow(Rule("allow", "other", "group", "billing"))
        commit = {"stream": "rows", "cursor": cursor}
        assert server.ask(server.other, "POST", "/groups/billing/commit", commit).status == 403
        server.allow(Rule("allow", "other", "read", "rows"))
        assert server.ask(server.other, "POST", "/groups/billing/commit", commit).status == 204
        # Who reads for a group must have a right to that, too.
        assert server.ask(server.other, "GET", f"{RECORDS}?group=reports").status == 403
        assert server.ask(server.other, "GET", f"{RECORDS}?group=billing").body == b""

    guarded(tmp_path, test)


def test_lists_have_what_may_be_seen(tmp_path):
    def test(server: GuardedHttp) -> None:
        prepare(server)
        server.allow(Rule("allow", "other", "read", "ro*"))
        found = server.ask(server.other, "GET", "/streams").json()
        assert [stream["name"] for stream in found["streams"]] == ["rows"]

    guarded(tmp_path, test)


def test_dead_letters_are_written_by_who_may(tmp_path):
    def test(server: GuardedHttp) -> None:
        prepare(server)
        server.allow(Rule("allow", "other", "write", "rows"))
        bad = b'{"id": "x"}\n'
        assert post(server, server.other, bad, "?on_bad=dead_letter").status == 403
        server.allow(Rule("allow", "other", "write", "rows.dead"), Rule("allow", "other", "create", "rows.dead"))
        assert post(server, server.other, bad, "?on_bad=dead_letter").json()["dead"] == 1

    guarded(tmp_path, test)


def test_a_stream_that_comes_into_being_by_itself_needs_the_right_to_create(tmp_path):
    def test(server: GuardedHttp) -> None:
        server.allow(Rule("allow", "other", "write", "rows"))
        assert post(server, server.other, b'{"value": "x"}\n').status == 403
        server.allow(Rule("allow", "other", "create", "rows"))
        assert post(server, server.other, b'{"value": "x"}\n').status == 200

    guarded(tmp_path, test, auto_create=True)


def test_what_was_done_and_what_was_refused_is_in_the_audit(tmp_path):
    def test(server: GuardedHttp) -> None:
        prepare(server)
        assert server.ask(server.other, "DELETE", "/streams/rows").status == 403
        server.rig.server.guard.record(server.rig.server.guard.audit.take())
        server.allow(Rule("allow", "root", "read", "_audit"))
        records = server.ask(server.root, "GET", "/streams/_audit/records?metadata=true").rows()
        said = b"".join(str(record).encode() for record in records)
        assert b'"act": "create"' in said
        assert b"no rule allows it" in said
        assert server.root.secret.encode() not in said

    guarded(tmp_path, test)


def test_a_limit_slows_down_and_tells_when_to_come_back(tmp_path):
    def test(server: GuardedHttp) -> None:
        prepare(server)
        server.limit(Quota("root", "write_bytes", 10_000))
        body = line(1, "x" * 20_000)
        # What may be used at once, and a little.
        began = time.monotonic()
        assert post(server, server.root, body).status == 200
        assert time.monotonic() - began < 5
        before = server.refusals()
        answer = post(server, server.root, body)
        assert answer.status == 429
        told = answer.json()
        assert (told["title"], int(answer.headers["retry-after"]) >= told["retry_after"] > 0) == ("QuotaExceeded", True)
        assert server.refusals() == before + 1
        server.rig.clock.advance(10)
        assert post(server, server.root, line(2)).status == 200

    guarded(tmp_path, test)


def test_who_is_blocked_from_reading_is_told_so(tmp_path):
    def test(server: GuardedHttp) -> None:
        prepare(server)
        server.limit(Quota("root", "read_requests", 1, "block"))
        statuses = [server.ask(server.root, "GET", RECORDS, accept="text/csv").status for _ in range(3)]
        assert statuses == [200, 200, 429]
        assert server.ask(server.root, "GET", RECORDS, accept="text/event-stream").status == 429

    guarded(tmp_path, test)


def test_what_is_larger_than_a_blocking_quota_passes_when_it_is_paid(tmp_path):
    def test(server: GuardedHttp) -> None:
        prepare(server)
        server.limit(Quota("root", "write_bytes", 10_000, "block"))
        body = b"".join(map(line, range(5_000)))
        assert post(server, server.root, body).status == 200
        refused = post(server, server.root, body)
        assert (refused.status, refused.json()["retriable"]) == (429, True)
        # Who comes back when it was told to is let in.
        server.rig.clock.advance(float(refused.headers["retry-after"]))
        assert post(server, server.root, body).status == 200

    guarded(tmp_path, test)


def test_an_answer_that_was_begun_is_not_cut_by_a_blocking_quota(tmp_path):
    def test(server: GuardedHttp) -> None:
        prepare(server)
        body = b"".join(line(number, "x" * 100) for number in range(40_000))
        assert post(server, server.root, body).status == 200
        # So much that what is over it waits for a moment only.
        server.limit(Quota("root", "read_bytes", 2_000_000, "block"))
        assert len(server.ask(server.root, "GET", RECORDS).rows()) == 40_000
        refused = server.ask(server.root, "GET", RECORDS)
        assert refused.status == 429
        server.rig.clock.advance(float(refused.headers["retry-after"]))
        assert server.ask(server.root, "GET", RECORDS + "?limit=100").status == 200

    guarded(tmp_path, test)


def test_who_posts_too_much_keeps_a_share_and_is_told_which(tmp_path):
    def test(server: GuardedHttp) -> None:
        prepare(server)
        body = b"".join(map(line, range(1_000)))
        server.limit(Quota("root", "write_bytes", len(body), "sample"))
        written = left_out = 0
        share = 1.0
        for _ in range(20):
            server.rig.clock.advance(0.5)
            answer = post(server, server.root, body).json()
            written += answer["records"]
            left_out += answer.get("left_out", 0)
            share = answer.get("share", 1.0)
            assert answer["records"] + answer.get("left_out", 0) == 1_000
        # Half of it fits.
        assert written + left_out == 20_000
        assert written == pytest.approx(10_000, rel=0.3)
        assert share == pytest.approx(0.5, abs=0.25)
        # Those that are kept say so, and what may come again is whole.
        server.allow(Rule("allow", "other", "read", "rows"))
        query = f"{RECORDS}?columns=_headers&where=_offset%20%3E%3D%20{written - 1}"
        (last,) = server.ask(server.other, "GET", query).rows()
        assert SHARE_HEADER in last["_headers"]
        assert post(server, server.root, line(1), idempotency_key="k").json()["records"] == 1

    guarded(tmp_path, test)


def test_who_reads_too_much_is_told_what_is_left_out(tmp_path):
    def test(server: GuardedHttp) -> None:
        prepare(server)
        with Client(server.http) as client:
            for number in range(80):
                assert client.ask("POST", RECORDS, line(number, "x" * 50), **server.known(server.root)).status == 200
        size = len(server.ask(server.root, "GET", RECORDS).body)
        server.limit(Quota("other", "read_bytes", size // 20, "sample"))
        server.allow(Rule("allow", "other", "read", "rows"))
        cursor, read, left_out = "earliest", 0, 0
        for _ in range(60):
            server.rig.clock.advance(0.5)
            page = server.ask(server.other, "GET", f"{RECORDS}?limit=10&from={cursor}")
            cursor = page.headers["mainstem-cursor"]
            read += len(page.rows())
            told = page.headers.get("mainstem-left-out", "records=0, share=1")
            left_out += int(told.partition(",")[0].partition("=")[2])
            if page.headers["mainstem-end"] == "true":
                break
        assert read + left_out == 80
        assert 0 < left_out < 80
        # A tail says it in between.
        with Events(server.http, f"{RECORDS}?from=earliest", token=server.other.secret) as events:
            found = {"message": 0, "left-out": 0}
            for event in events:
                found[event.kind] += event.data["records"] if event.kind == "left-out" else 1
                if sum(found.values()) == 80:
                    break
            assert found["left-out"] > 0

    guarded(tmp_path, test)


def test_limits_of_what_is_held(tmp_path):
    def test(server: GuardedHttp) -> None:
        prepare(server)
        server.limit(Quota("root", "connections", 1), Quota("root", "memory_bytes", 1_000))
        with Events(server.http, RECORDS, token=server.root.secret) as events:
            events.skip_to_position()
            assert server.ask(server.root, "GET", "/streams").status == 429
            # A probe is nobody's.
            assert server.ask(server.root, "GET", "/livez").status == 200
        deadline = time.monotonic() + 10
        while server.ask(server.root, "GET", "/streams").status == 429:
            assert time.monotonic() < deadline
        # A body that is too much by itself need not come again.
        assert post(server, server.root, line(1, "x" * 2_000)).status == 413
        server.rig.server.guard.quotas.add(Principal("root"), "memory_bytes", 800)
        assert post(server, server.root, line(1, "x" * 500)).status == 429
        server.rig.server.guard.quotas.let_go(Principal("root"), "memory_bytes", 800)
        assert post(server, server.root, line(1, "x" * 500)).status == 200
        assert {key for key in server.rig.server.guard.quotas._held if key[0] == "root"} == set()

    guarded(tmp_path, test)


def test_who_is_revoked_gets_nothing_more(tmp_path, monkeypatch):
    monkeypatch.setattr(tails, "_LOOK_SECONDS", 0.05)

    def test(server: GuardedHttp) -> None:
        prepare(server)
        reader = server.token("reader", Rule("allow", "reader", "read", "rows"))
        rows = b"".join(line(number, "x" * 500) for number in range(30_000))
        assert post(server, server.root, rows).status == 200
        # A long answer, of which some has come, and a tail that waits.
        connection = http.client.HTTPConnection(server.http, timeout=20)
        connection.request("GET", RECORDS, headers=server.known(reader))
        response = connection.getresponse()
        assert len(response.read(1_000)) == 1_000
        with Events(server.http, RECORDS, token=reader.secret) as events:
            events.skip_to_position()
            server.revoke(reader)
            (event,) = events.take(1)
            assert (event.kind, event.data["title"]) == ("error", "Unauthenticated")
        with pytest.raises((http.client.IncompleteRead, ConnectionError)):
            response.read()
        connection.close()

    guarded(tmp_path, test)


def test_who_waits_for_its_quota_does_not_hold_up_a_stop(tmp_path):
    """Neither one that writes nor one that reads: each is told that the server stops, and nothing is written."""
    took: list[float] = []

    def test(server: GuardedHttp) -> None:
        prepare(server)
        post(server, server.root, b"".join(map(line, range(1_000))))
        server.limit(Quota("root", "write_bytes", 1_000), Quota("other", "read_bytes", 1_000))
        server.allow(Rule("allow", "other", "read", "rows"))
        with ThreadPoolExecutor(2) as pool:
            posted = pool.submit(post, server, server.root, line(1, "x" * 30_000))
            read = pool.submit(server.ask, server.other, "GET", f"{RECORDS}?limit=1000")
            deadline = time.monotonic() + 5
            while server.app._under_way < 2 and time.monotonic() < deadline:
                time.sleep(0.01)
            time.sleep(0.3)
            assert not posted.done()
            assert not read.done()
            began = time.monotonic()
            loop = server.rig.server._loop
            assert loop is not None
            loop.call_soon_threadsafe(server.rig.server.stop_begun.set)
            for answer in (posted.result(5), read.result(5)):
                assert (answer.status, answer.json()["title"]) == (503, "ServerStopping")
            took.append(time.monotonic() - began)

    guarded(tmp_path, test)
    assert took[0] < 1


@pytest.mark.parametrize("key", [{}, {"idempotency_key": "k"}], ids=["without a key", "with one"])
@pytest.mark.parametrize("spoilt", ["rows.dead", "rows"])
def test_what_cannot_be_written_as_a_whole_is_not_in_part(tmp_path, monkeypatch, spoilt, key):
    """One of the two streams is not any more what it was when the body was parsed."""

    def test(server: GuardedHttp) -> None:
        prepare(server)
        body, query = line(1) + b'{"id": "x"}\n', "?on_bad=dead_letter"
        assert post(server, server.root, body, query).json()["dead"] == 1

        def submit(append: HttpAppend) -> bool:
            monkeypatch.setattr(HttpAppend, "submit_waiting", usual)
            # The log takes first what comes first.
            call = DeleteStreamCall(spoilt) if spoilt.endswith("dead") else AlterStreamCall(spoilt, shards=2)
            server.rig.server.carry_out(call)
            return usual(append)

        usual = HttpAppend.submit_waiting
        monkeypatch.setattr(HttpAppend, "submit_waiting", submit)
        refused = post(server, server.root, body, query, **key)
        assert refused.status >= 400, refused
        counts = [server.ask(server.root, "GET", f"/streams/{name}") for name in ("rows", "rows.dead")]
        assert [answer.json().get("records", 0) for answer in counts] == [1, 1 if spoilt == "rows" else 0]
        # It has used no key.
        again = post(server, server.root, body, query, **key)
        assert (again.status, again.json()["duplicate"]) == (200, False), again
        assert (again.json()["records"], again.json()["dead"]) == (1, 1)

    guarded(tmp_path, test)


@pytest.mark.parametrize("query", ["/find?where=id+%3D+-1", "?where=id+%3D+-1"])
def test_nobody_reads_on_for_a_client_that_went_away(tmp_path, monkeypatch, query):
    """Nothing matches, so nothing is sent by which it would be noticed."""

    def test(server: GuardedHttp) -> None:
        prepare(server)
        post(server, server.root, line(1))
        with monkeypatch.context() as patched:
            # Every turn is over before it begins: there is no end to such a reading.
            patched.setattr(port, "_TURN_SECONDS", 0.0)
            host, _, number = server.http.rpartition(":")
            with socket.create_connection((host, int(number))) as peer:
                known = f"Authorization: Bearer {server.root.secret}"
                path = RECORDS.removesuffix("/records") + query if "find" in query else RECORDS + query
                peer.sendall(f"GET {path} HTTP/1.1\r\nHost: localhost\r\n{known}\r\n\r\n".encode())
                wait_until(lambda: server.app.is_busy)
                time.sleep(0.2)
                assert server.app.is_busy
            wait_until(lambda: not server.app.is_busy)

    guarded(tmp_path, test)


def wait_until(is_so: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 5
    while not is_so():
        assert time.monotonic() < deadline
        time.sleep(0.01)
