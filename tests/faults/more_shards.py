"""A stream that gets more shards, again and again, while keyed producers write it, readers read it and the log dies.

Most trials are one thread with an embedded hub, in which everything comes in random order: records (one at a time, in
bursts nobody waits for, many at once, some for a shard that was chosen), more shards, erasures, upkeep, readers that
read a little and go on from a saved cursor, and deaths of the log at any operation of its disk. Every tenth has a real
server, threads, a link that loses answers, and `kill -9`.

Some readers have a predicate, one reads the folder beside its writer. What each of them gets is held against a model of
names and numbers (`keyed`): so the records of a key come in the order in which they were acknowledged, across every
change. At the end every cursor that was saved on the way must give exactly the rest.
"""

import contextlib
import random
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import mainstem
from mainstem.consume.consumer import Consumer
from mainstem.consume.record import Record
from mainstem.core.cursor import Cursor
from mainstem.core.errors import MainstemError
from mainstem.hub.hub import Hub
from mainstem.produce.chunk import Ack
from mainstem.produce.producer import Producer
from tests.faults.keyed import LOOSE, Filter, Reading, Written
from tests.faults.lives import Lives, Served, run_trials
from tests.faults.mixes import books
from tests.faults.trials import Trials

STEPS = 60
STREAM = "moving"
LIVE_EVERY = 10
NAMES = 9
PRODUCERS = 2
# Names of this beginning always go to the shard that was chosen for them.
_FIXED = "fixed"
_SHARDS_MAX = 24
_SECONDS_MAX = 60.0


def run(seed: int, trials: int, folder: Path) -> Trials:
    return run_trials("more shards", seed, trials, folder, _begin)


def _begin(trial: int, rng: random.Random, folder: Path) -> "_Embedded | _Live":
    return _Live(rng, folder) if trial % LIVE_EVERY == 0 else _Embedded(rng, folder)


class _Form:
    """What the records of a trial are: bytes with keys, or rows whose key is a column."""

    def __init__(self, *, is_rows: bool) -> None:
        self.is_rows = is_rows

    def create(self, hub: Hub, shards: int) -> None:
        if self.is_rows:
            schema = {"name": "string", "number": "int64", "pad": "string"}
            hub.streams.create(STREAM, shards=shards, schema=schema, key="name", index="number")
        else:
            hub.streams.create(STREAM, shards=shards)

    def names(self, producer: int) -> list[str]:
        names = [f"{producer}-{number}" for number in range(NAMES)]
        return [*names, f"{_FIXED}-{producer}", *([] if self.is_rows else [f"{LOOSE}-{producer}"])]

    def value(self, name: str, number: int, pad: int) -> Any:
        text = "x" * pad
        return {"name": name, "number": number, "pad": text} if self.is_rows else f"{name} {number} {text}".encode()

    def key(self, name: str) -> str | None:
        return None if self.is_rows or name.startswith(LOOSE) else name

    def parse(self, record: Record) -> tuple[str, int]:
        if self.is_rows:
            return record.value["name"], record.value["number"]
        name, number, _ = record.value.decode().split(" ")
        assert record.key == (None if name.startswith(LOOSE) else name.encode()), record
        return name, int(number)

    def filter(self, rng: random.Random) -> Filter:
        name = f"{rng.randrange(PRODUCERS)}-{rng.randrange(NAMES)}"
        chosen = [Filter("_offset % 2 = 1", lambda name, number, place: place[1] % 2 == 1)]
        if self.is_rows:
            chosen += [
                Filter("number % 3 = 1", lambda name, number, place: number % 3 == 1),
                Filter("number BETWEEN 10 AND 25", lambda name, number, place: 10 <= number <= 25),
                Filter(f"name = '{name}'", lambda other, number, place: other == name),
            ]
        else:
            chosen += [Filter(f"_key = '{name}'", lambda other, number, place: other == name)]
        return rng.choice(chosen)


class _Writer:
    """A producer that writes names of its own. One thread. What it was not told of stays unknown."""

    def __init__(self, form: _Form, number: int, written: Written, rng: random.Random) -> None:
        self._form = form
        self._names = form.names(number)
        self._written = written
        self._rng = rng
        self._pending: list[tuple[str, int, Any]] = []

    def send(self, producer: Producer) -> None:
        name = self._rng.choice(self._names)
        number = self._written.next(name)
        value = self._form.value(name, number, self._rng.choice((0, 10, 300)))
        shard = 0 if name.startswith(_FIXED) else None
        self._pending.append((name, number, producer.send(STREAM, value, self._form.key(name), shard=shard)))

    def send_many(self, producer: Producer, count: int) -> None:
        """Records of which no single acknowledgement tells the place: only that they are there."""
        names = [self._rng.choice(self._names[:NAMES]) for _ in range(count)]
        numbers = [self._written.next(name) for name in names]
        values = [self._form.value(name, number, 5) for name, number in zip(names, numbers, strict=True)]
        ack = producer.send_many(STREAM, values, None if self._form.is_rows else names)
        self._pending += [(name, number, ack) for name, number in zip(names, numbers, strict=True)]

    def settle(self) -> None:
        """Wait for all that is under way."""
        pending, self._pending = self._pending, []
        for name, number, ack in pending:
            place = ack.result(_SECONDS_MAX)
            self._written.acked(name, number, place if isinstance(ack, Ack) else None)

    def forget(self) -> None:
        """Its producer is dead."""
        self._pending.clear()


class _Reader:
    """A reader that goes on from the text of its cursor whenever it has let go of its consumer. One thread."""

    def __init__(self, form: _Form, reading: Reading, hub: Callable[[], Hub]) -> None:
        self.reading = reading
        self.cursor = ""
        self._form = form
        self._hub = hub
        self._consumer: Consumer | None = None

    def read(self, count: int, timeout: float = 0.0) -> int:
        """Read up to `count` records that are there; how many there were."""
        consumer = self._consumer or self._open()
        for index in range(count):
            record = consumer.poll(timeout)
            if record is None:
                self.cursor = str(consumer.cursor)
                return index
            self.reading.take(*self._form.parse(record), (record.shard, record.offset))
            # Before the next poll, which may raise: what was taken must not come again.
            self.cursor = str(consumer.cursor)
        return count

    def _open(self) -> Consumer:
        start = Cursor.parse(self.cursor) if self.cursor else "earliest"
        where = None if self.reading.chosen is None else self.reading.chosen.where
        self._consumer = self._hub().consumer(STREAM, start=start, where=where)
        return self._consumer

    def let_go(self) -> None:
        consumer, self._consumer = self._consumer, None
        if consumer is not None:
            with contextlib.suppress(MainstemError):
                consumer.close()

    def is_at(self, ends: tuple[int, ...]) -> bool:
        offsets = Cursor.parse(self.cursor).offsets if self.cursor else ()
        return (*offsets, *[0] * (len(ends) - len(offsets))) == ends

    def finish(self) -> None:
        """Read to the end of a stream that nobody writes any more."""
        deadline = time.monotonic() + _SECONDS_MAX
        while not self.is_at(self._hub().streams.get(STREAM).ends):
            self.read(1_000, 0.02)
            if time.monotonic() > deadline:
                self.reading.wrong.append(f"does not come to the end, but to {self.cursor}")
                return

    def read_bounded(self) -> None:
        """Read from the cursor to where the stream ends now, as one does who does not follow."""
        start = Cursor.parse(self.cursor) if self.cursor else "earliest"
        where = None if self.reading.chosen is None else self.reading.chosen.where
        with self._hub().consumer(STREAM, start=start, where=where, follow=False) as consumer:
            for record in consumer:
                self.reading.take(*self._form.parse(record), (record.shard, record.offset))


class _Trial:
    """What both kinds of trials have."""

    def __init__(self, rng: random.Random, folder: Path) -> None:
        self.wrong: list[str] = []
        self.history: list[str] = []
        self.written = Written()
        self._rng = rng
        self._folder = folder
        self._form = _Form(is_rows=rng.random() < 0.5)
        # Cursors that were saved on the way, with what their reader had by then.
        self._saved: list[tuple[str, Reading]] = []
        self._writers = [
            _Writer(self._form, number, self.written, random.Random(rng.random())) for number in range(PRODUCERS)
        ]

    @property
    def acknowledged(self) -> int:
        return len(self.written.places)

    def _save(self, reader: _Reader) -> None:
        self._saved.append((reader.cursor, reader.reading.copy(f"cursor {reader.cursor!r} of {reader.reading.title}")))

    def _reshard(self, hub: Hub) -> None:
        before = hub.streams.get(STREAM)
        shards = min(_SHARDS_MAX, before.shards + self._rng.randrange(1, 5))
        hub.streams.alter(STREAM, shards=shards)

    def _erase(self, hub: Hub) -> None:
        name = f"{self._rng.randrange(PRODUCERS)}-{self._rng.randrange(NAMES)}"
        certain = self.written.begin_erasing(name)
        hub.streams.erase(STREAM, name)
        self.written.end_erasing(name, certain)

    def _check_all(self, hub: Hub, when: str) -> None:
        """A reader from the beginning, and one from each cursor that was saved."""
        whole = Reading("a new reader")
        self._check_rest(hub, "", whole, when, is_fresh=True)
        self.written.learn(whole)
        chosen = self._form.filter(self._rng)
        self._check_rest(hub, "", Reading(f"a new reader of {chosen.where!r}", chosen), when, is_fresh=True)
        for cursor, reading in self._saved:
            self._check_rest(hub, cursor, reading.copy(reading.title), when, is_fresh=False)

    def _check_rest(self, hub: Hub, cursor: str, reading: Reading, when: str, *, is_fresh: bool) -> None:
        reader = _Reader(self._form, reading, lambda: hub)
        reader.cursor = cursor
        reader.read_bounded()
        self.wrong += [f"{when}, {text}" for text in reading.judge(self.written, is_fresh=is_fresh)]


class _Embedded(_Trial):
    """One thread with an embedded hub that dies now and then."""

    def __init__(self, rng: random.Random, folder: Path) -> None:
        super().__init__(rng, folder)
        self._lives = Lives(folder, rng)
        self._form.create(self._lives.hub, rng.choice((1, 1, 2, 3)))
        self._beside = mainstem.open(folder, read_only=True)
        self._producers: dict[int, Producer] = {}
        filters = [self._form.filter(rng) for _ in range(2)]
        titles = [Reading("a follower"), *(Reading(f"a reader of {one.where!r}", one) for one in filters)]
        self._readers = [_Reader(self._form, reading, lambda: self._lives.hub) for reading in titles]
        self._readers.append(_Reader(self._form, Reading("a reader of the folder"), lambda: self._beside))

    def end(self) -> None:
        for reader in self._readers:
            reader.let_go()
        self._beside.close()
        self._lives.end()

    def play(self) -> None:
        steps: list[Callable[[], None]] = (
            [self._send] * 20
            + [self._send_one_by_one] * 3
            + [self._send_many] * 4
            + [self._settle] * 6
            + [self._read] * 16
            + [self._resume] * 5
            + [self._save_cursor] * 3
            + [self._get_shards] * 6
            + [self._erase_name] * 3
            + [self._keep] * 6
            + [self._restart] * 2
        )
        self._lives.play(steps, STEPS, self.history, self._next_life)
        self._finish()

    def _next_life(self, *, is_last: bool = False) -> None:
        for reader in self._readers[:-1]:
            reader.let_go()
        self._producers.clear()
        for writer in self._writers:
            writer.forget()
        self._lives.next(is_last=is_last)

    def _producer(self) -> tuple[_Writer, Producer]:
        number = self._rng.randrange(PRODUCERS)
        if number not in self._producers:
            self._producers[number] = self._lives.hub.producer(batch_bytes=self._rng.choice((4 << 10, 1 << 20)))
        return self._writers[number], self._producers[number]

    def _send(self) -> None:
        writer, producer = self._producer()
        for _ in range(self._rng.choice((1, 5, 40))):
            writer.send(producer)

    def _send_one_by_one(self) -> None:
        """Many tiny entries, for the merger."""
        writer, producer = self._producer()
        for _ in range(self._rng.choice((30, 300))):
            writer.send(producer)
            writer.settle()

    def _send_many(self) -> None:
        writer, producer = self._producer()
        writer.send_many(producer, self._rng.choice((10, 400)))

    def _settle(self) -> None:
        for writer in self._writers:
            writer.settle()

    def _read(self) -> None:
        self._rng.choice(self._readers).read(self._rng.choice((1, 7, 50, 400)))

    def _resume(self) -> None:
        self._rng.choice(self._readers).let_go()

    def _save_cursor(self) -> None:
        if len(self._saved) < 8:
            self._save(self._rng.choice(self._readers))

    def _get_shards(self) -> None:
        self._reshard(self._lives.hub)

    def _erase_name(self) -> None:
        self._erase(self._lives.hub)

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
        for reader in self._readers:
            reader.finish()
        self._check_all(self._lives.hub, "at the end")
        for reader in self._readers:
            self.wrong += reader.reading.judge(self.written)
        self._lives.keep()
        self._check_all(self._lives.hub, "after upkeep")
        self.wrong += books(self._lives.log)


class _Live(_Trial):
    """A server that is killed, and threads that write and read through a link that loses answers."""

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
        served, hub = self._served, self._served.hub
        self._form.create(hub, self._rng.choice((1, 2, 3)))
        chosen = self._form.filter(self._rng)
        readings = [Reading("a follower"), Reading("another"), Reading(f"a reader of {chosen.where!r}", chosen)]
        writers = [served.start(self._write, writer) for writer in self._writers]
        readers = [served.start(self._follow, reading) for reading in readings]
        for _ in range(3):
            served.disturb(self._change)
            self.history.append("kill")
        self._stopping.set()
        served.join(writers)
        self._written_up.set()
        served.join(readers)
        self._check_all(hub, "at the end")
        for reading in readings:
            self.wrong += reading.judge(self.written)
        self.wrong += served.wrong

    def _change(self, _: None) -> None:
        if self._rng.random() < 0.7:
            self.history.append("get shards")
            self._reshard(self._served.hub)
        else:
            self.history.append("erase")
            self._erase(self._served.hub)

    def _write(self, writer: _Writer) -> None:
        rng = random.Random(self._rng.random())
        with self._served.connect() as hub, hub.producer(batch_bytes=rng.choice((4 << 10, 1 << 20))) as producer:
            while not self._stopping.is_set():
                for _ in range(rng.choice((1, 5, 40))):
                    writer.send(producer)
                if rng.random() < 0.1:
                    writer.send_many(producer, 50)
                if rng.random() < 0.5:
                    writer.settle()
                time.sleep(0.002)
            writer.settle()

    def _follow(self, reading: Reading) -> None:
        rng = random.Random(self._rng.random())
        with self._served.connect() as hub:
            reader = _Reader(self._form, reading, lambda: hub)
            is_all = False
            while not is_all:
                # Asked first: all that was written by then is there to be read.
                is_all = self._written_up.is_set()
                reader.read(rng.choice((1, 30, 300)), 0.05)
                if rng.random() < 0.2:
                    reader.let_go()
                if rng.random() < 0.1 and len(self._saved) < 12:
                    self._save(reader)
            reader.finish()
            reader.let_go()
