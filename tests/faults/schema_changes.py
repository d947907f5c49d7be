"""A stream whose schema is changed, again and again, while writers and readers know other versions of it.

Most trials are one thread with an embedded hub: producers that keep the version they began with write rows and JSON,
the schema gets fields, loses, renames and widens them, upkeep merges and compacts, and the log dies at any operation of
its disk. Every tenth has a real server, threads, a link that loses answers, and `kill -9`.

Whatever comes out is held against a model (`versions`) that says what a row of one version is in another: every row
that was acknowledged must be there, and mean in the reader's version what it must; a predicate must choose the rows
that the model chooses. What the log does not want it may refuse, with an error of its own and no other.
"""

import contextlib
import itertools
import random
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mainstem.consume.consumer import Consumer
from mainstem.core.cursor import Cursor
from mainstem.core.errors import (
    IncompatibleSchema,
    InvalidPredicate,
    InvalidRequest,
    InvalidSchema,
    MainstemError,
    SchemaMismatch,
)
from mainstem.hub.hub import Hub
from mainstem.produce.producer import Producer
from tests.faults.lives import Lives, Served, run_trials
from tests.faults.mixes import books
from tests.faults.trials import Trials
from tests.faults.versions import Row, Version, condition, plain, to_json

STEPS = 60
STREAM = "changing"
LIVE_EVERY = 10
NAMES = 8
_SECONDS_MAX = 60.0
_SHOWN_MAX = 3
_OWN = ("name", "number")


def run(seed: int, trials: int, folder: Path) -> Trials:
    return run_trials("schema changes", seed, trials, folder, _begin)


def _begin(trial: int, rng: random.Random, folder: Path) -> "_Embedded | _Live":
    return _Live(rng, folder) if trial % LIVE_EVERY == 0 else _Embedded(rng, folder)


@dataclass(slots=True)
class _Sent:
    """A row, and the versions it may have been stored in: that which it was made for, or one that came since."""

    row: Row
    made_for: int
    newest: int


class _Model:
    """The versions of one stream's schema and the rows that were sent. Any thread; one changes the schema."""

    def __init__(self, first: Version, *, compacts: bool) -> None:
        # All that were ever tried, also those that were refused; `newest` is the one that is in force.
        self.versions = [first]
        self.newest = 0
        self.compacts = compacts
        self.sent: dict[tuple[str, int], _Sent] = {}
        self.acknowledged: set[tuple[str, int]] = set()
        self.writers = itertools.count()
        self._next = 0

    @property
    def version(self) -> Version:
        return self.versions[self.newest]

    def send(self, row: Row, made_for: int, name: str) -> tuple[str, int]:
        """A row is about to be sent; its name and number."""
        self._next += 1
        key = name, self._next
        self.sent[key] = _Sent(row, made_for, self.newest)
        return key

    def meanings(self, key: tuple[str, int], reader: int) -> list[Row]:
        """What the row may be in a version: several if it is not known in which it was stored."""
        sent, version = self.sent[key], self.versions[reader]
        row = self.versions[sent.made_for]
        found = [version.promoted(sent.row, row)]
        for number in range(sent.made_for + 1, sent.newest + 1):
            stored = self.versions[number]
            found.append(version.promoted(stored.promoted(sent.row, row), stored))
        return found

    def difference(self, key: tuple[str, int], value: Row) -> str:
        """Why a row that a reader got is not the one that was sent; nothing if it is."""
        if key not in self.sent:
            return "was never sent"
        names = tuple(value)
        kinds = [version for version in self.versions if version.signature() == names]
        if not kinds:
            return f"has columns {names}, which no version has"
        for version in kinds:
            got = {field.name: plain(value[field.name], field.kind) for field in version.fields}
            if got in self.meanings(key, self.versions.index(version)):
                return ""
        return f"is {value}, sent as {self.sent[key].row} of version {self.sent[key].made_for}"

    def missing(self, got: set[tuple[str, int]], chooses: Callable[[tuple[str, int]], bool]) -> list[str]:
        wanted = self.acknowledged
        if self.compacts:
            # The newest of every name; one that nobody was told of may have come after it.
            newest = dict(sorted(got))
            last = dict(sorted(wanted))
            wanted = {(name, number) for name, number in last.items() if newest.get(name, -1) <= number}
        return [f"{key} is missing" for key in sorted(wanted - got) if chooses(key)]


class _Reader:
    """A reader that goes on from the text of its cursor whenever it has let go of its consumer. One thread."""

    def __init__(self, model: _Model, hub: Callable[[], Hub], title: str, where: str | None = None) -> None:
        self.wrong: list[str] = []
        self.got: set[tuple[str, int]] = set()
        self.title = title
        self._model = model
        self._hub = hub
        self._where = where
        self._cursor = ""
        self._consumer: Consumer | None = None
        # A predicate that does not fit the schema any more has no reader.
        self.is_over = False

    def read(self, count: int, timeout: float = 0.0) -> int:
        try:
            return self._read(count, timeout)
        except InvalidPredicate:
            if self._where is None:
                raise
            self.is_over = True
            self.let_go()
            return 0

    def _read(self, count: int, timeout: float) -> int:
        if self._consumer is None:
            start = Cursor.parse(self._cursor) if self._cursor else "earliest"
            self._consumer = self._hub().consumer(STREAM, start=start, where=self._where)
        for index in range(0 if self.is_over else count):
            record = self._consumer.poll(timeout)
            if record is None:
                self._cursor = str(self._consumer.cursor)
                return index
            self.take(record.value)
            self._cursor = str(self._consumer.cursor)
        return count

    def take(self, value: Row) -> None:
        key = value["name"], value["number"]
        rest = {name: item for name, item in value.items() if name not in _OWN}
        text = "came twice" if key in self.got else self._model.difference(key, rest)
        self.got.add(key)
        if text and len(self.wrong) < _SHOWN_MAX:
            self.wrong.append(f"{self.title}: {key} {text}")

    def let_go(self) -> None:
        consumer, self._consumer = self._consumer, None
        if consumer is not None:
            with contextlib.suppress(MainstemError):
                consumer.close()

    def finish(self, *, is_whole: bool) -> None:
        """Read to the end of a stream that nobody writes any more; `is_whole` if all rows were to come."""
        ends = self._hub().streams.get(STREAM).ends
        for _ in range(1_000):
            self.read(1_000, 0.02)
            if self.is_over or (self._cursor and Cursor.parse(self._cursor).offsets == ends):
                break
        else:
            self.wrong.append(f"{self.title}: does not come to the end")
        if is_whole and not self._model.compacts:
            self.wrong += [f"{self.title}: {text}" for text in self._model.missing(self.got, lambda key: True)][:3]


class _Trial:
    """What both kinds of trials have."""

    # Whether there is upkeep that nobody asked for.
    compacts_meanwhile = False

    def __init__(self, rng: random.Random, folder: Path) -> None:
        self.wrong: list[str] = []
        self.history: list[str] = []
        self._rng = rng
        self._folder = folder
        self.model = _Model(Version.first(rng), compacts=rng.random() < 0.4)

    @property
    def acknowledged(self) -> int:
        return len(self.model.acknowledged)

    def _create(self, hub: Hub) -> None:
        cleanup: Any = "compact" if self.model.compacts else "delete"
        indexed = "number" if self._rng.random() < 0.5 else None
        hub.streams.create(STREAM, schema=self.model.version.described(), key="name", cleanup=cleanup, index=indexed)

    def _change_schema(self, hub: Hub) -> None:
        model = self.model
        number = len(model.versions)
        model.versions.append(model.version.changed(self._rng, number))
        try:
            hub.streams.set_schema(STREAM, model.versions[number].described())
        except (IncompatibleSchema, InvalidSchema, InvalidRequest) as error:
            self.history.append(f"refused: {error}"[:80])
            return
        model.newest = number
        self.history.append(f"version {number}")

    def _settle_schema(self, hub: Hub) -> None:
        """After a death: whether the last change has happened is asked of the log."""
        names = [name for name in hub.streams.schemas(STREAM)[-1].schema.arrow.names if name not in _OWN]
        last = len(self.model.versions) - 1
        if tuple(names) == self.model.versions[last].signature() and self._is_in_force(hub, last):
            self.model.newest = last

    def _is_in_force(self, hub: Hub, number: int) -> bool:
        """Whether giving the schema again would change nothing."""
        before = hub.streams.get(STREAM).schema_version
        try:
            described = self.model.versions[number].described()
            return hub.streams.set_schema(STREAM, described, dry_run=True).schema_version == before and (
                hub.streams.set_schema(STREAM, described).schema_version == before
            )
        except (IncompatibleSchema, InvalidSchema, InvalidRequest):
            return False

    def _check_all(self, hub: Hub, when: str) -> None:
        """New readers, without and with predicates: what comes is what the model says, and all of it."""
        model = self.model
        everything = _Reader(model, lambda: hub, "a new reader")
        with hub.consumer(STREAM, start="earliest", follow=False) as consumer:
            for record in consumer:
                everything.take(record.value)
        self.wrong += [f"{when}, {text}" for text in everything.wrong]
        self.wrong += [f"{when}: {text}" for text in model.missing(everything.got, lambda key: True)][:_SHOWN_MAX]
        sure, possible = everything.got, everything.got
        if self.compacts_meanwhile and model.compacts:
            # What has a newer row may be there for one reader, from memory, and not for the other, from disk.
            sure, possible = set(dict(sorted(everything.got)).items()), set(model.sent)
        for _ in range(4):
            where, says = condition(model.version, self._rng)
            found = self._chosen(hub, where)
            may, must = set(), set()
            for key in possible:
                verdicts = [says(row) is True for row in model.meanings(key, model.newest)]
                may |= {key} if any(verdicts) else set()
                must |= {key} if all(verdicts) and key in sure else set()
            if not must <= found <= may:
                extra, missed = sorted(found - may)[:2], sorted(must - found)[:2]
                rows = [model.meanings(key, model.newest) for key in (*extra, *missed)]
                self.wrong.append(f"{when}: where {where!r} gave also {extra}, and not {missed}: {rows}")

    def _chosen(self, hub: Hub, where: str) -> set[tuple[str, int]]:
        columns = self._rng.choice((None, ["name", "number"]))
        with hub.consumer(STREAM, start="earliest", follow=False, where=where, columns=columns) as consumer:
            return {(record.value["name"], record.value["number"]) for record in consumer}


class _Writer:
    """A producer that goes on with the version it began with. One thread."""

    def __init__(self, model: _Model, hub: Hub, rng: random.Random, *, is_alone: bool) -> None:
        self._model = model
        self._made_for = model.newest
        # Its names are its own: so of one name the row with the highest number was written last.
        self._own = next(model.writers)
        self._rng = rng
        # Whether nobody changes the schema before it has looked it up: then its rows are stored in that version.
        self._is_alone = is_alone
        self._producer: Producer = hub.producer()
        self._pending: list[tuple[tuple[str, int], Any]] = []

    def _row(self) -> tuple[tuple[str, int], Row]:
        version = self._model.versions[self._made_for]
        row = version.row(self._rng)
        key = self._model.send(row, self._made_for, f"{self._own}-{self._rng.randrange(NAMES)}")
        if self._is_alone:
            self._model.sent[key].newest = self._made_for
        return key, {"name": key[0], "number": key[1], **row}

    def send(self, count: int = 1) -> None:
        for _ in range(count):
            key, row = self._row()
            value: Any = to_json(row) if self._rng.random() < 0.2 else row
            try:
                self._pending.append((key, self._producer.send(STREAM, value)))
            except SchemaMismatch:
                if self._is_alone:
                    raise
                return

    def send_many(self, count: int) -> None:
        rows = [self._row() for _ in range(count)]
        try:
            ack = self._producer.send_many(STREAM, [row for _, row in rows])
        except SchemaMismatch:
            if self._is_alone:
                raise
            return
        self._pending += [(key, ack) for key, _ in rows]

    def settle(self) -> None:
        pending, self._pending = self._pending, []
        for key, ack in pending:
            ack.result(_SECONDS_MAX)
            self._model.acknowledged.add(key)

    def close(self) -> None:
        with contextlib.suppress(MainstemError):
            self._producer.close()


class _Embedded(_Trial):
    """One thread with an embedded hub that dies now and then."""

    def __init__(self, rng: random.Random, folder: Path) -> None:
        super().__init__(rng, folder)
        self._lives = Lives(folder, rng)
        self._create(self._lives.hub)
        self._writers: list[_Writer] = []
        self._readers = [_Reader(self.model, lambda: self._lives.hub, "a follower") for _ in range(2)]
        for _ in range(2):
            where, _ = condition(self.model.version, rng)
            self._readers.append(_Reader(self.model, lambda: self._lives.hub, f"a reader of {where!r}", where))

    def end(self) -> None:
        for reader in self._readers:
            reader.let_go()
        self._lives.end()

    def play(self) -> None:
        steps: list[Callable[[], None]] = (
            [self._send] * 16
            + [self._send_one_by_one] * 3
            + [self._send_many] * 4
            + [self._settle] * 5
            + [self._begin_writer] * 4
            + [self._change] * 8
            + [self._read] * 14
            + [self._resume] * 4
            + [self._keep] * 6
            + [self._restart] * 2
        )
        self._lives.play(steps, STEPS, self.history, self._next_life)
        self._finish()

    def _next_life(self, *, is_last: bool = False) -> None:
        for reader in self._readers:
            reader.let_go()
        self._writers.clear()
        self._lives.next(is_last=is_last)
        with contextlib.suppress(MainstemError):
            self._settle_schema(self._lives.hub)
        if self._lives.has_failed:
            self._next_life(is_last=True)

    def _writer(self) -> _Writer:
        if not self._writers:
            self._begin_writer()
        return self._rng.choice(self._writers)

    def _begin_writer(self) -> None:
        """It knows the version of now, also when others know a newer one."""
        writer = _Writer(self.model, self._lives.hub, self._rng, is_alone=True)
        writer.send()
        self._writers = [*self._writers[-3:], writer]

    def _send(self) -> None:
        self._writer().send(self._rng.choice((1, 5, 40)))

    def _send_one_by_one(self) -> None:
        """Many tiny entries, for the merger."""
        writer = self._writer()
        for _ in range(self._rng.choice((30, 400))):
            writer.send()
            writer.settle()

    def _send_many(self) -> None:
        self._writer().send_many(self._rng.choice((10, 400)))

    def _settle(self) -> None:
        for writer in self._writers:
            writer.settle()

    def _change(self) -> None:
        self._change_schema(self._lives.hub)

    def _read(self) -> None:
        self._rng.choice(self._readers).read(self._rng.choice((1, 7, 50, 400)))

    def _resume(self) -> None:
        self._rng.choice(self._readers).let_go()

    def _keep(self) -> None:
        self._lives.keep()

    def _restart(self) -> None:
        with contextlib.suppress(MainstemError):
            self._settle()
        self._next_life()

    def _finish(self) -> None:
        with contextlib.suppress(MainstemError):
            self._settle()
        self._next_life(is_last=True)
        for number, reader in enumerate(self._readers):
            reader.finish(is_whole=number < 2)
            self.wrong += reader.wrong
        self._check_all(self._lives.hub, "at the end")
        self._lives.keep()
        self._check_all(self._lives.hub, "after upkeep")
        self.wrong += books(self._lives.log)


class _Live(_Trial):
    """A server that is killed, and threads that write and read through a link that loses answers."""

    compacts_meanwhile = True

    def __init__(self, rng: random.Random, folder: Path) -> None:
        super().__init__(rng, folder)
        self._served = Served(folder, rng)
        self._stopping = threading.Event()
        self._written_up = threading.Event()

    def end(self) -> None:
        self._stopping.set()
        self._written_up.set()
        self._served.end()

    def play(self) -> None:
        served = self._served
        self._create(served.hub)
        where, _ = condition(self.model.version, self._rng)
        writers = [served.start(self._write) for _ in range(2)]
        readers = [served.start(self._follow, one) for one in (None, None, where)]
        for _ in range(3):
            served.disturb(self._change)
            self.history.append("kill")
        self._stopping.set()
        served.join(writers)
        self._written_up.set()
        served.join(readers)
        self._check_all(served.hub, "at the end")
        self.wrong += served.wrong

    def _change(self, _: None) -> None:
        self._change_schema(self._served.hub)

    def _write(self, _: None) -> None:
        rng = random.Random(self._rng.random())
        with self._served.connect() as hub:
            while not self._stopping.is_set():
                writer = _Writer(self.model, hub, rng, is_alone=False)
                for _burst in range(rng.randrange(1, 30)):
                    writer.send(rng.choice((1, 5, 40)))
                    if rng.random() < 0.2:
                        writer.send_many(60)
                    if rng.random() < 0.5:
                        writer.settle()
                    self._stopping.wait(0.002)
                writer.settle()
                writer.close()

    def _follow(self, where: str | None) -> None:
        rng = random.Random(self._rng.random())
        with self._served.connect() as hub:
            reader = _Reader(self.model, lambda: hub, f"a reader of {where!r}" if where else "a follower", where)
            is_all = False
            while not is_all and not reader.is_over:
                is_all = self._written_up.is_set()
                reader.read(rng.choice((1, 30, 300)), 0.05)
                if rng.random() < 0.2:
                    reader.let_go()
            reader.finish(is_whole=where is None)
            reader.let_go()
        self.wrong += reader.wrong
