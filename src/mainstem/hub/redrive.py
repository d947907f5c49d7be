"""Redriving: dead letters that fit by now, or were corrected, are put back into their stream.

What was done is written down where the letters are, so that it outlives everybody who does it: records of the dead
stream with the header `dead.kind` and no `dead.error`,

    redriving   a run begins a page of letters; where the target's shards end now
    redriven    the page is done; the offsets of its letters

and every row that is put back has the header `redriven_from`: the dead stream's UUID and the letter's offset. If a page
was begun and never done, the target is searched for such rows from where it ended then, and their letters count as
done. So a letter is put back once, however often runs are cut short; twice only if retention has taken the row before
anybody looked, or if two runs work at the same time. Anybody may write to both streams: what looks like a note or an
origin and cannot be read as one is passed over.
"""

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final

import msgspec

from mainstem.consume.record import Record
from mainstem.core.cursor import Cursor
from mainstem.core.errors import DataLoss, InvalidCursor, InvalidRequest, InvalidSetting, UnknownStream
from mainstem.core.schema import Schema
from mainstem.produce.admission import check_envelope, check_row, check_size
from mainstem.produce.dead_letters import ERROR, KIND, OWN_HEADERS, UNREADABLE, dead_stream_of
from mainstem.registry.rows import RowConverter, converter_of

if TYPE_CHECKING:
    from mainstem.hub.hub import Hub

REDRIVEN_FROM: Final = "redriven_from"
# Letters between two notes of what is done.
PAGE_LETTERS: Final = 1_000


class _Redriving(msgspec.Struct, frozen=True):
    """The value of a note that a page begins."""

    page: str
    ends: str


class _Redriven(msgspec.Struct, frozen=True):
    """The value of a note that it is done."""

    page: str
    offsets: list[int]


_NOTES: Final[dict[str, type[_Redriving | _Redriven]]] = {"redriving": _Redriving, "redriven": _Redriven}


@dataclass(slots=True, repr=False)
class Redriven:
    """What a redrive did, or would do. Reasons are those of the stream today, each with its number of letters."""

    # Letters that were put back earlier.
    earlier: int = 0
    # Letters that fit now: with their first reason, why they once did not.
    fitting: Counter[str] = field(default_factory=Counter)
    failing: Counter[str] = field(default_factory=Counter)
    # Letters that were put back by this run.
    redriven: int = 0
    # Corrections that belong to no letter, or to one that was put back earlier.
    unused: list[int] = field(default_factory=list)

    def __repr__(self) -> str:
        fitting, failing = self.fitting.total(), self.failing.total()
        unused = f", {len(self.unused)} corrections unused" if self.unused else ""
        return (
            f"<Redriven {self.redriven} put back, {fitting} fitting, {failing} failing, {self.earlier} earlier{unused}>"
        )


class Redrive:
    """One run over the dead letters of a stream. `corrections` has rows that take the place of letters, by offset."""

    def __init__(self, hub: "Hub", stream: str, corrections: Mapping[int, Mapping[str, Any]], bytes_max: int) -> None:
        self._hub = hub
        self._stream = stream
        self._corrections = _checked(corrections)
        self._bytes_max = bytes_max
        self._info = info = hub.streams.get(stream)
        if not info.schema_bytes:
            raise InvalidRequest(f"stream {stream!r} has no schema, so nothing was ever refused for it")
        self._rows: RowConverter = converter_of(Schema.parse(info.schema_bytes))
        try:
            self._dead = hub.streams.get(dead_stream_of(stream))
        except UnknownStream:
            raise UnknownStream(
                f"stream {stream!r} has no dead letters: there is no {dead_stream_of(stream)!r}"
            ) from None

    def run(self, *, dry_run: bool) -> Redriven:
        """Look at every letter; unless it is a dry run, put back those that fit."""
        done, open_pages = self._history()
        if open_pages and not dry_run:
            done |= self._finish(open_pages)
        elif open_pages:
            done |= {offset for page in open_pages for offset in self._found_since(page)}
        report = Redriven(earlier=len(done))
        page: list[tuple[Record, Any]] = []
        for letter in self._letters():
            if letter.offset in done:
                continue
            if UNREADABLE in (letter.headers or {}) and letter.offset not in self._corrections:
                report.failing[f"it was kept as it looks, not as JSON: {_header(letter, UNREADABLE)}"] += 1
                continue
            row = self._corrections.pop(letter.offset, letter.value)
            reason = self._reason(letter, row)
            if reason is not None:
                report.failing[reason] += 1
                continue
            report.fitting[_header(letter, ERROR)] += 1
            page.append((letter, row))
            if len(page) == PAGE_LETTERS:
                report.redriven += 0 if dry_run else self._put_back(page)
                page = []
        if page and not dry_run:
            report.redriven += self._put_back(page)
        report.unused = sorted(self._corrections)
        return report

    def _reason(self, letter: Record, row: Any) -> str | None:
        """Why a row still does not fit its stream; None if it does."""
        try:
            taken, size = self._rows.convert_json(row) if isinstance(row, bytes) else self._rows.convert(row)
            key, headers, _ = check_envelope(self._stream, *self._envelope(letter))
            check_row(self._info, self._rows, taken, size, key)
            check_size(self._stream, size, key, headers, self._bytes_max)
        except InvalidRequest as error:
            return str(error)
        return None

    def _envelope(self, letter: Record) -> tuple[bytes | None, dict[str, bytes], datetime]:
        """Key, headers and time of what is put back for a letter."""
        headers = {name: value for name, value in (letter.headers or {}).items() if name not in OWN_HEADERS}
        headers[REDRIVEN_FROM] = f"{self._dead.uuid}:{letter.offset}".encode()
        return None if self._info.key else letter.key, headers, letter.timestamp

    # What was done before.

    def _history(self) -> tuple[set[int], list[_Redriving]]:
        """The letters that were put back, and the pages that were begun and not done, as the notes say."""
        done: set[int] = set()
        begun: dict[str, _Redriving] = {}
        for record in self._records(self._dead.name, "earliest"):
            note = _note_in(record)
            if isinstance(note, _Redriving):
                begun[note.page] = note
            elif note is not None:
                begun.pop(note.page, None)
                done.update(note.offsets)
        return done, list(begun.values())

    def _finish(self, pages: Iterable[_Redriving]) -> set[int]:
        """Write down what pages that were cut short have put back."""
        done: set[int] = set()
        for page in pages:
            found = self._found_since(page)
            self._note("redriven", _Redriven(page.page, sorted(found)))
            done |= found
        return done

    def _found_since(self, page: _Redriving) -> set[int]:
        """The letters whose rows are in the target, from where it ended when the page began."""
        try:
            return self._found_from(Cursor.parse(page.ends))
        except InvalidCursor:
            # Nobody knows where it ended, or it is another stream by now.
            return self._found_from("earliest")

    def _found_from(self, start: Any) -> set[int]:
        origin = re.compile(f"{re.escape(self._dead.uuid)}:([0-9]{{1,19}})")
        found = (origin.fullmatch(_header(record, REDRIVEN_FROM)) for record in self._records(self._stream, start))
        return {int(match[1]) for match in found if match is not None}

    # Putting back.

    def _put_back(self, page: list[tuple[Record, Any]]) -> int:
        info = self._hub.streams.get(self._stream)
        name = str(page[0][0].offset)
        self._note("redriving", _Redriving(name, str(Cursor(info.uuid, info.epoch, info.ends))))
        with self._hub.producer() as producer:
            for letter, row in page:
                producer.send(self._stream, row, *self._envelope(letter))
            producer.flush()
        self._note("redriven", _Redriven(name, [letter.offset for letter, _ in page]))
        return len(page)

    def _note(self, kind: str, note: _Redriving | _Redriven) -> None:
        with self._hub.producer() as producer:
            producer.send(self._dead.name, msgspec.json.encode(note), headers={KIND: kind}).result()

    def _letters(self) -> Iterator[Record]:
        for record in self._records(self._dead.name, "earliest"):
            if _is_letter(record):
                yield record

    def _records(self, stream: str, start: Any) -> Iterator[Record]:
        """The records from `start` to where the stream ends now. What retention took is passed over."""
        with self._hub.consumer(stream, start=start, follow=False, on_bad="skip") as consumer:
            while True:
                with suppress(DataLoss):
                    yield from consumer
                    return


def _checked(corrections: Mapping[int, Mapping[str, Any]]) -> dict[int, Mapping[str, Any]]:
    if not isinstance(corrections, Mapping):
        raise InvalidSetting(f"corrections are rows by the offset of their letter, not {type(corrections).__name__}")
    for offset, row in corrections.items():
        if type(offset) is not int or offset < 0:
            raise InvalidSetting(f"corrections: {offset!r} is not the offset of a dead letter, which is a whole number")
        if not isinstance(row, Mapping):
            raise InvalidSetting(f"corrections: for letter {offset} give a row as a dict, not {type(row).__name__}")
    return dict(corrections)


def _is_letter(record: Record) -> bool:
    return ERROR in (record.headers or {})


def _note_in(record: Record) -> _Redriving | _Redriven | None:
    """What a record of the dead stream says of letters, if it does."""
    kind = None if _is_letter(record) else _NOTES.get(_header(record, KIND))
    if kind is None or not isinstance(record.value, bytes):
        return None
    try:
        return msgspec.json.decode(record.value, type=kind)
    except msgspec.DecodeError:
        return None


def _header(record: Record, name: str) -> str:
    found = (record.headers or {}).get(name)
    return "" if found is None else bytes(found).decode(errors="replace")
