"""The hub for asyncio: streams, producers and consumers of one log, near or far, awaited."""

import asyncio
import sys
import weakref
from collections.abc import Awaitable, Callable, Coroutine, Generator, Sequence
from functools import partial, wraps
from importlib import import_module
from types import TracebackType
from typing import Any, Concatenate, Final, Generic, ParamSpec, Protocol, TypeVar, overload

from mainstem.aio.bridge import Bridge, LoopPort
from mainstem.aio.consumer import Consumer
from mainstem.aio.producer import Producer
from mainstem.aio.sequence import OrderedBatches
from mainstem.aio.shared import GroupConsumer, SeveralConsumer
from mainstem.aio.transaction import Transaction
from mainstem.consume.found import Found, Search
from mainstem.consume.group_consumer import GroupConsumer as CoreGroupConsumer
from mainstem.consume.several import SeveralConsumer as CoreSeveralConsumer
from mainstem.consume.spread_consumer import SpreadConsumer as CoreSpreadConsumer
from mainstem.core.clock import SYSTEM_CLOCK
from mainstem.hub import hub as core
from mainstem.hub.access import Access as CoreAccess
from mainstem.hub.groups import Groups as CoreGroups
from mainstem.transport.credentials import Credentials

P = ParamSpec("P")
T = TypeVar("T")
PREDICATES: Final = "mainstem.core.predicate.grammar"
Opened = TypeVar("Opened", bound="_Closable")


class _Closable(Protocol):
    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> None: ...


class Opening(Generic[Opened]):
    """Something that is opened when it is awaited, or by `async with`, which closes it, too."""

    def __init__(self, open_it: Callable[[], Awaitable[Opened]]) -> None:
        self._open = open_it
        self._opened: Opened | None = None

    def __await__(self) -> Generator[Any, None, Opened]:
        return self._open().__await__()

    async def __aenter__(self) -> Opened:
        self._opened = await self._open()
        return self._opened

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._opened is not None
        await self._opened.__aexit__(kind, error, trace)


class Streams:
    """Creates, lists, changes and deletes streams, as those of a hub of `mainstem` do. Any task of the loop."""

    def __init__(self, streams: core.Streams, bridge: Bridge) -> None:
        self._core = streams
        self._bridge = bridge

    @staticmethod
    def _awaited(
        method: Callable[Concatenate[core.Streams, P], T],
    ) -> Callable[Concatenate["Streams", P], Coroutine[Any, Any, T]]:
        """The same method, done by a worker."""

        @wraps(method)
        async def call(self: "Streams", /, *args: P.args, **kwargs: P.kwargs) -> T:
            return await self._bridge.work(partial(method, self._core, *args, **kwargs))

        return call

    create = _awaited(core.Streams.create)
    set_schema = _awaited(core.Streams.set_schema)
    schemas = _awaited(core.Streams.schemas)
    get = _awaited(core.Streams.get)
    list = _awaited(core.Streams.list)
    alter = _awaited(core.Streams.alter)
    trim = _awaited(core.Streams.trim)
    erase = _awaited(core.Streams.erase)
    delete = _awaited(core.Streams.delete)


class Groups:
    """Lists, shows, resets, holds and deletes groups, as those of a hub of `mainstem` do. Any task of the loop."""

    def __init__(self, groups: CoreGroups, bridge: Bridge) -> None:
        self._core = groups
        self._bridge = bridge

    @staticmethod
    def _awaited(
        method: Callable[Concatenate[CoreGroups, P], T],
    ) -> Callable[Concatenate["Groups", P], Coroutine[Any, Any, T]]:
        """The same method, done by a worker."""

        @wraps(method)
        async def call(self: "Groups", /, *args: P.args, **kwargs: P.kwargs) -> T:
            return await self._bridge.work(partial(method, self._core, *args, **kwargs))

        return call

    list = _awaited(CoreGroups.list)
    get = _awaited(CoreGroups.get)
    reset = _awaited(CoreGroups.reset)
    delete = _awaited(CoreGroups.delete)
    hold = _awaited(CoreGroups.hold)


class Access:
    """Tokens, rules and quotas, as those of a hub of `mainstem`. Any task of the loop."""

    def __init__(self, access: CoreAccess, bridge: Bridge) -> None:
        self._core = access
        self._bridge = bridge

    @staticmethod
    def _awaited(
        method: Callable[Concatenate[CoreAccess, P], T],
    ) -> Callable[Concatenate["Access", P], Coroutine[Any, Any, T]]:
        """The same method, done by a worker."""

        @wraps(method)
        async def call(self: "Access", /, *args: P.args, **kwargs: P.kwargs) -> T:
            return await self._bridge.work(partial(method, self._core, *args, **kwargs))

        return call

    create_token = _awaited(CoreAccess.create_token)
    revoke_token = _awaited(CoreAccess.revoke_token)
    tokens = _awaited(CoreAccess.tokens)
    allow = _awaited(CoreAccess.allow)
    deny = _awaited(CoreAccess.deny)
    delete_rule = _awaited(CoreAccess.delete_rule)
    rules = _awaited(CoreAccess.rules)
    explain = _awaited(CoreAccess.explain)
    set_quota = _awaited(CoreAccess.set_quota)
    delete_quota = _awaited(CoreAccess.delete_quota)
    quotas = _awaited(CoreAccess.quotas)


class Hub:
    """An open log, for the tasks of the event loop that it was opened in. Close it, or use it with `async with`."""

    def __init__(self, hub: core.Hub, bridge: Bridge) -> None:
        # What is asked of this one waits, in a worker; what is opened by the other one never does.
        self._core = hub
        self._inner = core.Hub(LoopPort(hub._port, bridge), hub._where)
        self._bridge = bridge
        self.streams = Streams(hub.streams, bridge)
        self.groups = Groups(hub.groups, bridge)
        self.access = Access(hub.access, bridge)
        self._open: weakref.WeakSet[Producer | Consumer | SeveralConsumer | GroupConsumer | OrderedBatches] = (
            weakref.WeakSet()
        )
        self._closing: asyncio.Task[None] | None = None

    @staticmethod
    def _opens(
        method: Callable[Concatenate[core.Hub, P], T], face: Callable[[T, Bridge], Opened]
    ) -> Callable[Concatenate["Hub", P], Opening[Opened]]:
        """The same method, of which something comes that is awaited."""

        @wraps(method)
        def call(self: "Hub", /, *args: P.args, **kwargs: P.kwargs) -> Opening[Opened]:
            return Opening(partial(self._opened, partial(method, self._inner, *args, **kwargs), face))

        return call

    async def _opened(self, step: "partial[T]", face: Callable[[T, Bridge], Any]) -> Any:
        self._bridge.check_loop()
        await self._load_predicates(step.keywords.get("where"))
        opened = face(await self._bridge.take(step), self._bridge)
        if not isinstance(opened, Transaction):
            self._open.add(opened)
        return opened

    async def _load_predicates(self, where: object) -> None:
        """Import what a predicate needs, which takes longer than others should wait for their turn."""
        if where is not None and PREDICATES not in sys.modules:
            await self._bridge.work(partial(import_module, PREDICATES))

    @staticmethod
    def _awaited(
        method: Callable[Concatenate[core.Hub, P], T],
    ) -> Callable[Concatenate["Hub", P], Coroutine[Any, Any, T]]:
        """The same method, done by a worker."""

        @wraps(method)
        async def call(self: "Hub", /, *args: P.args, **kwargs: P.kwargs) -> T:
            return await self._bridge.work(partial(method, self._core, *args, **kwargs))

        return call

    @staticmethod
    def _opens_aside(
        method: Callable[Concatenate[core.Hub, P], T], face: Callable[[T, Bridge], Opened]
    ) -> Callable[Concatenate["Hub", P], Opening[Opened]]:
        """The same, for what a worker has to open, because its steps wait."""

        @wraps(method)
        def call(self: "Hub", /, *args: P.args, **kwargs: P.kwargs) -> Opening[Opened]:
            return Opening(partial(self._opened_aside, partial(method, self._core, *args, **kwargs), face))

        return call

    async def _opened_aside(self, open_it: Callable[[], Any], face: Callable[[Any, Bridge], Any]) -> Any:
        opened = face(await self._bridge.work(open_it), self._bridge)
        self._open.add(opened)
        return opened

    producer = _opens(core.Hub.producer, Producer)
    sequence = _opens_aside(core.Hub.sequence, OrderedBatches)
    transaction = _opens(core.Hub.transaction, Transaction)
    redrive = _awaited(core.Hub.redrive)
    statistics = _awaited(core.Hub.statistics)
    overview = _awaited(core.Hub.overview)

    @overload
    def consumer(self, stream: str, *, group: None = ..., **options: Any) -> Opening[Consumer]: ...

    @overload
    def consumer(
        self, stream: list[str] | tuple[str, ...] | None = ..., *, group: None = ..., **options: Any
    ) -> Opening[SeveralConsumer]: ...

    @overload
    def consumer(
        self, stream: str | Sequence[str] | None = ..., *, group: str, **options: Any
    ) -> Opening[GroupConsumer]: ...

    @wraps(core.Hub.consumer)
    def consumer(self, stream: str | Sequence[str] | None = None, **options: Any) -> Opening[Any]:
        is_shared = options.get("group") is not None or options.get("pattern") is not None or options.get("spread")
        if is_shared or isinstance(stream, list | tuple):
            return Opening(partial(self._opened_aside, partial(self._core.consumer, stream, **options), _shared))
        return Opening(partial(self._opened, partial(self._inner.consumer, stream, **options), Consumer))

    async def find(
        self, stream: str, where: str, *, limit: int | None = None, columns: Sequence[str] | None = None
    ) -> Found:
        """The records of a stream, as it is now, for which a SQL expression is true; see `mainstem.Hub.find`."""
        await self._load_predicates(where)
        search = await self._bridge.take(
            partial(Search, self._inner._port, stream, where, limit, columns, SYSTEM_CLOCK)
        )
        async with Consumer(search.consumer, self._bridge) as consumer:
            while (batch := await consumer.poll_batch(None)) is not None and search.take(batch):
                pass
            return search.found()

    async def close(self) -> None:
        """Flush and close its producers, close its consumers, then the log or the connection. Raises the first error,
        once everything is closed."""
        self._bridge.check_loop()
        if self._closing is None:
            self._closing = asyncio.create_task(self._close())
        elif self._closing.done():
            return
        # Who is cancelled meanwhile leaves nothing half closed.
        await asyncio.shield(self._closing)

    async def _close(self) -> None:
        try:
            ends = await asyncio.gather(*(user.close() for user in list(self._open)), return_exceptions=True)
        finally:
            # Before the calls that workers wait in: they end with it.
            closing = self._bridge.begin(self._core.close, alone=True)
            self._bridge.close()
            await closing
        for error in ends:
            if error is not None:
                raise error

    async def __aenter__(self) -> "Hub":
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    def __repr__(self) -> str:
        return repr(self._core)


def _shared(
    consumer: CoreSeveralConsumer | CoreGroupConsumer | CoreSpreadConsumer, bridge: Bridge
) -> SeveralConsumer | GroupConsumer:
    if isinstance(consumer, CoreGroupConsumer | CoreSpreadConsumer):
        return GroupConsumer(consumer, bridge)
    return SeveralConsumer(consumer, bridge)


def open_folder(path: object, *, read_only: bool | None = None, auto_create: bool = False) -> Opening[Hub]:
    """See mainstem.aio.open."""
    return Opening(partial(_open, partial(core.open_folder, path, read_only=read_only, auto_create=auto_create)))


def connect_to(url: str, *, timeout: float, credentials: Credentials) -> Opening[Hub]:
    """See mainstem.aio.connect."""
    return Opening(partial(_open, partial(core.connect_to, url, timeout=timeout, credentials=credentials)))


async def _open(open_it: Callable[[], core.Hub]) -> Hub:
    bridge = Bridge()
    opening = bridge.begin(open_it)
    try:
        return Hub(await asyncio.shield(opening), bridge)
    except asyncio.CancelledError:
        # Nobody gets it any more; the folder or the connection must not stay open for it.
        opening.add_done_callback(partial(_close_unwanted, bridge))
        raise
    except BaseException:
        bridge.close()
        raise


def _close_unwanted(bridge: Bridge, opening: "asyncio.Future[core.Hub]") -> None:
    if opening.exception() is None:
        bridge.begin(opening.result().close, alone=True)
    bridge.close()
