"""`mainstem demo`: watch records flow through a server, then see that none of them was lost."""

import shutil
import signal
import sys
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import TYPE_CHECKING, Annotated, Any

import typer

from mainstem.cli.exits import ExitCode, UsageProblem
from mainstem.cli.flags import given_flags, with_settings
from mainstem.cli.printing import counted
from mainstem.core.clock import SYSTEM_CLOCK as CLOCK
from mainstem.core.errors import Unavailable
from mainstem.core.settings import Loaded

if TYPE_CHECKING:
    from mainstem.demo.account import Verdict
    from mainstem.demo.demonstration import Demonstration, Sample
    from mainstem.demo.pipeline_process import PipelineState
    from mainstem.demo.revenue import RevenueVerdict, Takings
    from mainstem.demo.revenue_reader import RevenueState

_REFRESH_SECONDS = 0.25
_LINE_SECONDS = 2.0
# Windows of revenue that are shown at once.
_SHOWN = 4
_NO_REVENUE = "revenue comes when Spark's watermark has passed the first window"
# The order that --break has Spark leave out: one of the first, so that it was surely sent.
_DROPPED = (1, 3)


@with_settings("demo")
def demo(
    loaded: Loaded,
    seconds: Annotated[float, typer.Option(metavar="SECONDS", min=0.1, help="How long to write.")] = 30.0,
    rate: Annotated[
        float, typer.Option(metavar="RECORDS", min=1, help="How many records a second, all producers together.")
    ] = 20_000,
    kill: Annotated[
        bool, typer.Option("--kill", help="Kill the server (SIGKILL) half-way and start it again.")
    ] = False,
    break_: Annotated[
        bool,
        typer.Option(
            "--break", help="Plant a fault in what is read back, and have Spark leave an order out: both must be found."
        ),
    ] = False,
    fault: Annotated[
        str, typer.Option(metavar="missing|doubled|swapped|changed", help="Which fault --break plants.")
    ] = "missing",
    no_pipeline: Annotated[
        bool, typer.Option("--no-pipeline", help="Without the Spark job, as where Spark is not installed.")
    ] = False,
) -> int:
    """Watch records flow through a server and through Spark, and see that none is lost.

    Starts a server, lets three producers write orders and clicks, and shows them arrive. Beside that a Spark job makes
    sessions of the clicks, joins them with the orders and writes the revenue of every five seconds to a Delta table and
    to a stream; both are read all the time, and shown. Afterwards everything is read back and compared with what was
    acknowledged, and the table, read by DuckDB, and the stream with what the producers took, to the cent: the exit
    code is 1 if one record is missing, doubled, out of order or changed, or a cent is. Without --data the log is
    temporary, without --listen and --http the ports are any free ones.
    """
    from mainstem.demo.account import Fault
    from mainstem.demo.demonstration import Demonstration, DemoOptions

    if fault not in list(Fault):
        raise UsageProblem(f"--fault {fault}: use one of {', '.join(Fault)}")
    flags = {setting.name: text for setting, text in given_flags("demo", loaded)}
    with Demonstration(DemoOptions(rate=rate, flags=flags)) as show:
        show.start()
        _greet(show)
        # With --break an order is left out, whichever other fault is planted in what is read back.
        has_pipeline = not no_pipeline and _start_pipeline(show, _DROPPED if break_ else None, is_killed=kill)
        joining = _Joining(show)
        last = _watch(show, joining, seconds, kill)
        _tell("stopping the producers; every record they sent gets its answer")
        show.finish_writing()
        _tell("reading everything back")
        verdict = show.read_back(Fault(fault) if break_ else None)
        revenue = _finish_pipeline(show, joining) if has_pipeline else ()
        _conclude(show, last, verdict, revenue, Fault(fault).value if break_ else None)
    is_good = verdict.is_good and all(place.is_good for place in revenue)
    return ExitCode.OK if is_good else ExitCode.FAILURE


def _start_pipeline(show: "Demonstration", drop: tuple[int, int] | None, *, is_killed: bool) -> bool:
    """Whether there is a Spark job; said if there could not be one."""
    from mainstem.demo.pipeline_process import missing_requirement

    if missing := missing_requirement():
        _tell(f"without Spark: {missing}")
        return False
    show.start_pipeline(drop, is_killed=is_killed)
    _tell("Spark is starting; it joins when it is up, and reads from the beginning")
    return True


class _Joining:
    """Says once that Spark has joined, which may be after the writing where it is slow to start."""

    def __init__(self, show: "Demonstration") -> None:
        self._show = show
        self._is_told = False

    def tell(self, view: "_Lines | _Screen", state: "PipelineState | None") -> None:
        if state is not None and state.rows and not self._is_told:
            self._is_told = True
            view.say(f"Spark has joined after {self._show.seconds:.0f} s, and catches up from the beginning")


def _finish_pipeline(show: "Demonstration", joining: _Joining) -> "tuple[RevenueVerdict, ...]":
    _tell("letting Spark finish: two last events push its watermark past the end")
    show.close_streams()
    view = _view()
    with view:
        has_ended = False
        while not has_ended:
            has_ended = show.has_pipeline_ended(view.pause)
            state = show.pipeline
            joining.tell(view, state)
            view.show_revenue(state, show.revenue)
    table, stream = show.compare_revenue()
    state = show.pipeline
    assert state is not None
    _tell(
        f"Spark read {state.rows:,} events and wrote {counted(table.windows, 'window')} of revenue to a Delta table, "
        f"and {stream.windows:,} to the stream demo.revenue"
    )
    return table, stream


def _greet(show: "Demonstration") -> None:
    folder = "a temporary folder" if show.is_temporary else show.flags["data"]
    _tell(f"server at {show.server.url}, log in {folder}; three producers, two streams of four shards")


def _view() -> "_Lines | _Screen":
    return _Screen() if sys.stdout.isatty() else _Lines()


def _watch(show: "Demonstration", joining: _Joining, seconds: float, kill: bool) -> "Sample":
    """Show how it goes until the time is over or Ctrl-C; the last sample."""
    view = _view()
    until = CLOCK.monotonic() + seconds
    kill_at = until - seconds / 2 if kill else None
    with _interruptible() as stop, view:
        while True:
            sample = show.sample()
            state = show.pipeline
            if state is not None and state.failure:
                raise Unavailable(f"the Spark job has ended: {state.failure}")
            joining.tell(view, state)
            view.show(sample, state, show.revenue)
            if stop or CLOCK.monotonic() >= until:
                return sample
            if kill_at is not None and CLOCK.monotonic() >= kill_at:
                kill_at = None
                show.kill_server()
                view.say(
                    "killed the server with SIGKILL and started it again; producers and consumers go on by themselves"
                )
            CLOCK.sleep(min(view.pause, max(0.0, until - CLOCK.monotonic())))


@contextmanager
def _interruptible() -> Iterator[list[int]]:
    """A list that is empty until Ctrl-C or SIGTERM: both end the writing, not the comparison."""
    wanted: list[int] = []

    def note(number: int, frame: FrameType | None) -> None:
        if wanted:
            raise KeyboardInterrupt
        wanted.append(number)

    before = {number: signal.signal(number, note) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield wanted
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _conclude(
    show: "Demonstration",
    last: "Sample",
    verdict: "Verdict",
    revenue: "tuple[RevenueVerdict, ...]",
    planted: str | None,
) -> None:
    seconds = max(last.seconds, 0.001)
    rate = sum(last.acknowledged) / seconds
    _tell(
        f"{verdict.acknowledged:,} records acknowledged in {seconds:.1f} s ({rate:,.0f}/s), {verdict.read:,} read back"
    )
    if verdict.unsure:
        _tell(
            f"{verdict.unsure:,} records are there whose acknowledgement never came: allowed, and not counted as lost"
        )
    if planted is not None:
        _tell(f"--break: one record was made {planted} in what was read back")
        if revenue:
            _tell("--break: Spark left one order out")
    for finding in verdict.findings:
        print(f"mainstem: {finding}", file=sys.stderr)
    if verdict.is_good:
        _tell("every acknowledged record is there, once, unchanged, each producer's records of a shard in order")
    for place in revenue:
        _tell_revenue(place)
    if planted is not None:
        _tell(
            "the comparison found it" if verdict.findings else "nothing was found: there were too few records to break"
        )
    if not verdict.is_good or not all(place.is_good for place in revenue):
        return
    print("\nnext:")
    for line in _next_steps(show):
        print(f"  {line}")


def _tell_revenue(revenue: "RevenueVerdict") -> None:
    for text in revenue.findings:
        print(f"mainstem: {text}", file=sys.stderr)
    if revenue.is_good:
        reader = ", read by DuckDB," if revenue.place == "table" else ""
        _tell(
            f"the {revenue.place}{reader} agrees with the producers to the cent: {revenue.total} in "
            f"{counted(revenue.windows, 'window')}"
        )


def _tell(text: str) -> None:
    """A line; on a terminal as many as it takes there, broken between words."""
    if sys.stdout.isatty():
        width = shutil.get_terminal_size().columns
        text = textwrap.fill(text, width, break_long_words=False, break_on_hyphens=False)
    print(text, flush=True)


def _next_steps(show: "Demonstration") -> tuple[str, str, str]:
    if show.is_temporary:
        return (
            "mainstem serve --data ./data",
            "mainstem stream create clicks --shards 4",
            "seq 1000 | mainstem write clicks && mainstem tail clicks --start earliest --no-follow",
        )
    folder = show.flags["data"]
    return (
        f"mainstem stream list --data {folder}",
        f"mainstem tail demo.orders --data {folder} --start earliest --limit 10",
        f"mainstem serve --data {folder}",
    )


class _Lines:
    """Progress where there is no terminal: a line every two seconds."""

    pause = _LINE_SECONDS

    def __enter__(self) -> "_Lines":
        return self

    def __exit__(self, *exc: object) -> None:
        return None

    def show(self, sample: "Sample", state: "PipelineState | None", revenue: "RevenueState") -> None:
        offsets = "; ".join(" ".join(_offset_text(offset) for offset in shards) for shards in sample.offsets)
        self.say(
            f"{sample.seconds:5.1f} s  {sum(sample.acknowledged):>9,} acknowledged, {sample.received:>9,} received, "
            f"delay p50 {_ms_text(sample.delay_p50_ms)} p99 {_ms_text(sample.delay_p99_ms)}, newest offsets {offsets}"
        )
        self.show_revenue(state, revenue)

    def show_revenue(self, state: "PipelineState | None", revenue: "RevenueState") -> None:
        if state is not None:
            self.say(f"         {_pipeline_text(state)}; {_places_text(revenue)}")

    def say(self, text: str) -> None:
        _tell(text)


class _Screen:
    """Progress on a terminal: one picture, drawn again four times a second."""

    pause = _REFRESH_SECONDS

    def __init__(self) -> None:
        from rich.live import Live

        self._live = Live(refresh_per_second=8, transient=False)
        self._rates = _Rates()
        self._notes: list[str] = []

    def __enter__(self) -> "_Screen":
        self._live.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._live.stop()

    def say(self, text: str) -> None:
        self._notes.append(text)

    def show(self, sample: "Sample", state: "PipelineState | None", revenue: "RevenueState") -> None:
        rates = self._rates.update(sample)
        self._draw(
            _streams_table(sample, rates), _delay_line(sample), _newest_table(sample), state=state, revenue=revenue
        )

    def show_revenue(self, state: "PipelineState | None", revenue: "RevenueState") -> None:
        self._draw(state=state, revenue=revenue)

    def _draw(self, *parts: Any, state: "PipelineState | None", revenue: "RevenueState") -> None:
        from rich.console import Group
        from rich.text import Text

        of_spark = [] if state is None else [Text(_pipeline_text(state), style="cyan"), _revenue_part(revenue)]
        notes = [Text(note, style="bold yellow") for note in self._notes]
        # What is said stands above the newest of what it is about: Spark may join when all else is over.
        self._live.update(Group(*parts, *notes, *of_spark))


class _Rates:
    """Records per second of each stream, over about two seconds."""

    def __init__(self) -> None:
        self._samples: list[Any] = []

    def update(self, sample: "Sample") -> list[float]:
        self._samples = [kept for kept in self._samples if sample.seconds - kept.seconds < _LINE_SECONDS] + [sample]
        first = self._samples[0]
        elapsed = max(sample.seconds - first.seconds, 0.001)
        return [(now - before) / elapsed for now, before in zip(sample.acknowledged, first.acknowledged, strict=True)]


def _streams_table(sample: "Sample", rates: list[float]) -> Any:
    from rich import box
    from rich.table import Table

    from mainstem.demo.events import STREAMS

    table = Table(
        box=box.SIMPLE_HEAD,
        title=f"{sample.seconds:.0f} s",
        title_justify="left",
        pad_edge=False,
        collapse_padding=True,
    )
    table.add_column("stream")
    # Two lines, so that all of it fits into 80 columns.
    for name in ("acknowledged", "per\nsecond", *(f"shard\n{shard}" for shard in range(len(sample.offsets[0])))):
        table.add_column(name, justify="right")
    for name, count, rate, shards in zip(STREAMS, sample.acknowledged, rates, sample.offsets, strict=True):
        table.add_row(name, f"{count:,}", f"{rate:,.0f}", *map(_offset_text, shards))
    return table


def _delay_line(sample: "Sample") -> Any:
    from rich.text import Text

    text = f"from send to receive: p50 {_ms_text(sample.delay_p50_ms)}, p99 {_ms_text(sample.delay_p99_ms)}"
    return Text(f"{text}; {sample.received:,} records received\n", style="cyan")


def _newest_table(sample: "Sample") -> Any:
    from rich.table import Table
    from rich.text import Text

    table = Table.grid(padding=(0, 2))
    for record in sample.newest:
        place = f"{record.stream} {record.shard}:{record.offset}"
        value = Text(record.value.decode(errors="replace"), no_wrap=True, overflow="ellipsis")
        table.add_row(Text(place, style="dim"), Text(record.key.decode(errors="replace"), style="green"), value)
    return table


def _pipeline_text(state: "PipelineState") -> str:
    if not state.rows:
        return "Spark: reads its first events" if state.is_up else "Spark: starting"
    return f"Spark: {state.rows:,} events read"


def _places_text(revenue: "RevenueState") -> str:
    """What was read of the table and of the stream."""
    from mainstem.demo.revenue import total_of

    if not revenue.table and not revenue.stream:
        return _NO_REVENUE
    places = (("table", revenue.table), ("stream", revenue.stream))
    return "; ".join(f"{place}: {counted(len(found), 'window')}, {total_of(found)}" for place, found in places)


def _revenue_part(revenue: "RevenueState") -> Any:
    """The newest windows as they are in the table and in the stream, and all together."""
    from rich import box
    from rich.table import Table
    from rich.text import Text

    from mainstem.core.times import from_us
    from mainstem.demo.revenue import WINDOW_SECONDS, total_of

    starts = sorted({*revenue.table, *revenue.stream})
    if not starts:
        return Text(_NO_REVENUE, style="dim")
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, collapse_padding=True, show_footer=True)
    table.add_column(f"{WINDOW_SECONDS} s from", f"all {len(starts)}", justify="right")
    for place, windows in (("table", revenue.table), ("stream", revenue.stream)):
        # Two lines, so that all of it fits into 80 columns.
        heads = (f"{place}:\norders", "revenue", "in\nsessions")
        for head, footer in zip(heads, _cells(total_of(windows)), strict=True):
            table.add_column(head, footer, justify="right")
    for start in starts[-_SHOWN:]:
        row = (*_cells(revenue.table.get(start)), *_cells(revenue.stream.get(start)))
        table.add_row(f"{from_us(start):%H:%M:%S}", *row)
    return table


def _cells(takings: "Takings | None") -> tuple[str, str, str]:
    from mainstem.demo.revenue import money

    if takings is None:
        return "-", "-", "-"
    share = takings.session_cents / max(1, takings.cents)
    return f"{takings.orders:,}", money(takings.cents), f"{share:.0%}"


def _offset_text(offset: int | None) -> str:
    return "-" if offset is None else f"{offset:,}"


def _ms_text(milliseconds: float | None) -> str:
    return "-" if milliseconds is None else f"{milliseconds:.1f} ms"
