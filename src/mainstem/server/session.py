"""One client's connection as the server sees it: requests in, answers out."""

import logging
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from mainstem.access.action import Action
from mainstem.access.principal import ANONYMOUS
from mainstem.consume.feed import Feed
from mainstem.core.errors import (
    Busy,
    InvalidRequest,
    MainstemError,
    ProtocolError,
    Unauthenticated,
)
from mainstem.core.events import Event
from mainstem.core.limits import (
    CALLS_IN_FLIGHT_MAX,
    CLIENT_NAME_CHARS_MAX,
    CREDIT_BYTES_MAX,
    MEMBER_REQUESTS_MAX,
    MESSAGE_BYTES_MAX,
    MESSAGE_HEADER_BYTES_MAX,
    SUBSCRIPTIONS_PER_CONNECTION_MAX,
    WINDOW_US_MAX,
    WINDOW_US_MIN,
)
from mainstem.server.appends import Appends
from mainstem.server.gate import Gate
from mainstem.server.subscription import PushSubscription
from mainstem.server.toll import Toll
from mainstem.transport.connection import FramedConnection
from mainstem.transport.guarding import CreateTokenCall
from mainstem.transport.port import Answer, Call, CommitCall, GetStreamCall, MembershipCall
from mainstem.transport.wire import (
    VERSION,
    VERSION_MIN,
    VERSION_OF_ACCESS,
    VERSION_OF_SHARDS,
    Credit,
    Goodbye,
    Hello,
    Kind,
    Message,
    Share,
    Subscribe,
    Welcome,
    encode_header,
    pack,
    pack_encoded,
    wire_error,
)

if TYPE_CHECKING:
    from mainstem.server.server import Server

logger = logging.getLogger("mainstem.server")


class Session:
    """State of one connection. The loop's thread only; completions arrive through the server's `deliver`."""

    def __init__(self, server: "Server", id_: int = 0) -> None:
        self._server = server
        self.id = id_
        self.connection: FramedConnection | None = None
        self.subscriptions: dict[int, PushSubscription] = {}
        self._reads = server.new_read_line()
        # Calls and requests of members that wait for an answer.
        self.in_flight = 0
        self._calls_in_flight = 0
        # Those of them that make a token.
        self._tokens_in_flight = 0
        # Requests of members of groups that wait for an answer.
        self._members_waiting = 0
        self._welcomed = False
        self.gate = Gate(server.guard.authority, server.guard.audit)
        # Whether it is among the connections of its principal.
        self.is_counted = False
        # Of the protocol, as agreed with the client.
        self._version = VERSION_MIN
        self.opened_at = server.clock.monotonic()
        self.connected_us = server.clock.now_us()
        # What it calls itself: anything.
        self.client = ""
        self.address = ""
        self.toll = Toll(server, self.gate, lambda: self.connection, self._tell_share)
        self.appends = Appends(server, self)
        self._handlers: dict[int, Callable[[Message], None]] = {
            Kind.CALL: self._on_call,
            Kind.APPEND: self.appends.take,
            Kind.STAGE: self.appends.take,
            Kind.SUBSCRIBE: self._on_subscribe,
            Kind.CREDIT: self._on_credit,
            Kind.UNSUBSCRIBE: self._on_unsubscribe,
            Kind.SHARE: self._on_share,
        }

    @property
    def is_welcomed(self) -> bool:
        return self._welcomed

    @property
    def is_idle(self) -> bool:
        """Whether everything that was asked has been answered."""
        return self.in_flight == 0 and self.appends.is_idle

    # From the connection.

    def on_open(self, connection: FramedConnection) -> None:
        self.connection = connection
        self.address = connection.peer
        self._server.on_session_open(self)

    def on_message(self, message: Message) -> None:
        if not self._welcomed:
            self._on_hello(message)
            return
        if self.gate.is_stale:
            self.look_at_rights()
        handler = self._handlers.get(message.kind)
        if handler is None:
            raise ProtocolError(f"a client does not send {Kind(message.kind).name.lower()} messages")
        handler(message)

    def on_blocked(self, is_blocked: bool) -> None:
        if is_blocked:
            return
        for id_, subscription in tuple(self.subscriptions.items()):
            if self.connection is None or self.connection.is_blocked:
                return
            # The next time others come first: else whoever was there first would get everything.
            self.subscriptions[id_] = self.subscriptions.pop(id_)
            subscription.push()

    def on_lost(self, error: BaseException | None) -> None:
        for subscription in self.subscriptions.values():
            subscription.end()
            self._server.unfollow(subscription)
        self.subscriptions.clear()
        self.appends.forget()
        self._server.on_session_lost(self)

    def look_at_rights(self) -> None:
        """What may be done may have changed: Unauthenticated if that is everything, and who may not read any more is
        not sent anything more."""
        try:
            is_changed = self.gate.look()
        except Unauthenticated:
            # Who makes the first token is told by the answer that it is in force, and by nothing else. What is asked
            # meanwhile is refused.
            if self.gate.principal != ANONYMOUS or not self._tokens_in_flight:
                raise
            is_changed = True
        if not is_changed:
            return
        for id_, subscription in tuple(self.subscriptions.items()):
            try:
                self.gate.check(Action.READ, subscription.stream_name)
            except MainstemError as error:
                del self.subscriptions[id_]
                subscription.end(error)
                self._server.unfollow(subscription)

    # Requests.

    def _on_hello(self, message: Message) -> None:
        hello = message.header
        if not isinstance(hello, Hello):
            raise ProtocolError("the first message must be hello")
        version = min(hello.version_max, VERSION)
        if version < max(hello.version_min, VERSION_MIN):
            raise ProtocolError(
                f"the client speaks protocol versions {hello.version_min} to {hello.version_max}, this server "
                f"{VERSION_MIN} to {VERSION}; upgrade the older side"
            )
        self.client = hello.client[:CLIENT_NAME_CHARS_MAX]
        assert self.connection is not None
        self._server.let_in(self, hello.token)
        self._welcomed = True
        self._version = version
        self.toll.can_tell = version >= VERSION_OF_ACCESS
        logger.debug(Event("client connected", client=self.client, address=self.address, principal=self.gate.principal))
        self.connection.allow_large()
        settings, log = self._server.settings, self._server.log
        welcome = Welcome(
            version,
            self._server.name,
            log.uuid,
            log.epoch,
            settings.heartbeat,
            settings.idle_timeout,
            MESSAGE_BYTES_MAX,
            settings.record_bytes_max,
        )
        self.send(Kind.WELCOME, message.id, welcome)

    def _on_call(self, message: Message) -> None:
        call = message.header
        try:
            self._server.guard.check_call(self.gate, call)
            answer = self._server.lookup(call) if isinstance(call, GetStreamCall) else None
        except MainstemError as error:
            self.send(Kind.ERROR, message.id, wire_error(error))
            return
        if answer is not None:
            self.send(Kind.ANSWER, message.id, answer)
            return
        if isinstance(call, MembershipCall | CommitCall):
            self._on_member(message.id, call)
            return
        self.in_flight += 1
        self._calls_in_flight += 1
        self._tokens_in_flight += isinstance(call, CreateTokenCall)
        if self._calls_in_flight >= CALLS_IN_FLIGHT_MAX and self.connection is not None:
            self.connection.pause("calls")
        self._server.run_call(self, call, partial(self._answer_call, message.id, call))

    def _on_member(self, id_: int, call: MembershipCall | CommitCall) -> None:
        """A member's request is answered when there is something to say, and holds nobody up meanwhile."""
        if self._members_waiting >= MEMBER_REQUESTS_MAX:
            self.send(Kind.ERROR, id_, wire_error(Busy(f"{MEMBER_REQUESTS_MAX} requests of members wait already")))
            return
        self._members_waiting += 1
        self.in_flight += 1
        self._server.run_member_call(self, call, partial(self._answer_member, id_))

    def _answer_member(self, id_: int, answer: Answer | MainstemError) -> None:
        self.in_flight -= 1
        self._members_waiting -= 1
        self._send_answer(id_, answer)

    def _answer_call(self, id_: int, call: Call, answer: Answer | MainstemError) -> None:
        self.in_flight -= 1
        self._calls_in_flight -= 1
        self._tokens_in_flight -= isinstance(call, CreateTokenCall)
        if self.connection is not None:
            self.connection.resume("calls")
        self._send_answer(id_, answer)

    def _send_answer(self, id_: int, answer: Answer | MainstemError) -> None:
        if not isinstance(answer, MainstemError):
            encoded = encode_header(answer)
            if len(encoded) <= MESSAGE_HEADER_BYTES_MAX:
                if self.connection is not None:
                    self.connection.send(pack_encoded(Kind.ANSWER, id_, encoded, ()))
                return
            answer = InvalidRequest(
                f"the answer has {len(encoded)} bytes; a message carries {MESSAGE_HEADER_BYTES_MAX}. Ask for less at a "
                "time; of a group, share its streams among more members, or read fewer of them"
            )
        self.send(Kind.ERROR, id_, wire_error(answer))

    def _tell_share(self, share: float) -> None:
        self.send(Kind.SHARE, 0, Share(share))

    def _on_share(self, message: Message) -> None:
        share: Share = message.header
        self.toll.note_share(share.share)

    def _on_subscribe(self, message: Message) -> None:
        subscribe: Subscribe = message.header
        if message.id in self.subscriptions or not message.id:
            raise ProtocolError(f"subscription {message.id} exists already, or has no id")
        try:
            if len(self.subscriptions) >= SUBSCRIPTIONS_PER_CONNECTION_MAX:
                raise InvalidRequest(f"at most {SUBSCRIPTIONS_PER_CONNECTION_MAX} subscriptions on one connection")
            server = self._server
            row = server.log.reader.require_stream(subscribe.stream)
            self.gate.check(Action.READ, row.name)
            if self._version < VERSION_OF_SHARDS and len(subscribe.offsets) != row.shards:
                raise InvalidRequest(f"stream {row.name!r} has {row.shards} shards; give one offset for each")
            if subscribe.window_us and not WINDOW_US_MIN <= subscribe.window_us <= WINDOW_US_MAX:
                raise InvalidRequest(f"a window has {WINDOW_US_MIN} to {WINDOW_US_MAX} microseconds, or 0")
            query = subscribe.query
            select = None if query is None else partial(server.selections.get, row, query)
            feed = Feed(
                server.log.reader,
                row,
                subscribe.offsets,
                subscribe.ends,
                select,
                is_plain=query is not None and query.is_plain,
                window_us=subscribe.window_us,
                schema_of=server.log.schema,
                clock=server.clock,
            )
        except MainstemError as error:
            self.send(Kind.ERROR, message.id, wire_error(error))
            return
        assert self.connection is not None
        credit = min(subscribe.credit, CREDIT_BYTES_MAX)
        subscription = PushSubscription(
            self.connection,
            message.id,
            feed,
            credit,
            server.log.hot,
            server.push_encoder,
            self._reads,
            self._version,
            server.pushed,
            server.reads_under_way,
            server.clock,
            self.toll.charge_read,
            self.toll.turn_to_read,
            whole=subscribe.whole,
        )
        self.subscriptions[message.id] = subscription
        server.follow(subscription)
        subscription.push()

    def _on_credit(self, message: Message) -> None:
        subscription = self.subscriptions.get(message.id)
        if subscription is not None:
            credit: Credit = message.header
            subscription.add_credit(credit.bytes)
            subscription.push()

    def _on_unsubscribe(self, message: Message) -> None:
        subscription = self.subscriptions.pop(message.id, None)
        if subscription is not None:
            subscription.end()
            self._server.unfollow(subscription)

    def mark(self) -> None:
        """Tell the readers of this connection how far the time has come."""
        for subscription in tuple(self.subscriptions.values()):
            subscription.mark(self._server.log.batcher.settled_us)

    # To the connection.

    def say_goodbye(self) -> None:
        self.appends.hold_back_no_longer()
        self.send(Kind.GOODBYE, 0, Goodbye("the server is stopping"))

    def send(self, kind: Kind, id_: int, header: Any) -> None:
        if self.connection is not None:
            self.connection.send(pack(kind, id_, header))
