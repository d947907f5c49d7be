"""What happens in a small web shop: clicks, and the orders some of them lead to."""

from collections.abc import Iterator
from typing import Final, NamedTuple

import msgspec
import numpy as np

STREAMS: Final = ("demo.orders", "demo.clicks")
ORDERS: Final = 0
CLICKS: Final = 1

# Customers that are in the shop at once, and after how many events the first of them leaves and another comes.
_CUSTOMERS: Final = 100
_EVENTS_PER_CUSTOMER: Final = 50
# The customer of the events that end a stream: nobody's sessions, and no revenue.
CLOSING: Final = "closing"
_PAGES: Final = ("/", "/search", "/pricing", "/cart", "/product/lamp", "/product/chair", "/product/desk", "/help")
# What they cost, in cents.
_PRODUCTS: Final = {"lamp": 4_900, "chair": 12_950, "desk": 34_900, "shelf": 8_990, "rug": 7_500}
_COUNTRIES: Final = ("DE", "FR", "US", "IN", "BR", "JP")
_ORDERS_SHARE: Final = 0.2
_encode = msgspec.json.Encoder().encode


class Stamp(msgspec.Struct):
    """Who wrote an event and which of its events it is: enough to recognise it anywhere."""

    writer: int
    number: int


class Event(NamedTuple):
    """One event on its way: the stream (as an index), the key that keeps a customer's events in order, the value."""

    stream: int
    number: int
    key: bytes
    value: bytes
    cents: int = 0


_stamps = msgspec.json.Decoder(Stamp)


def read_stamp(value: bytes | None) -> Stamp | None:
    """The stamp in a value, if there is one."""
    try:
        return _stamps.decode(value or b"")
    except msgspec.MsgspecError:
        return None


def events(writer: int, random: np.random.Generator) -> Iterator[Event]:
    """Events of one writer without end, numbered from 0 in each stream."""
    numbers = [0] * len(STREAMS)
    products = list(_PRODUCTS)
    while True:
        # Drawn in blocks: one draw costs more than the rest of the event.
        draws = random.random((512, 3))
        for kind, who, what in draws.tolist():
            stream = ORDERS if kind < _ORDERS_SHARE else CLICKS
            # A few customers do most of it.
            visit = sum(numbers) // _EVENTS_PER_CUSTOMER + int(who * who * _CUSTOMERS)
            customer = f"c{writer}-{visit:05d}"
            number = numbers[stream]
            numbers[stream] += 1
            cents = 0
            content: dict[str, object] = {"writer": writer, "number": number, "customer": customer}
            if stream == ORDERS:
                product = products[int(what * len(products))]
                count = 1 + number % 3
                cents = count * _PRODUCTS[product]
                content |= {"product": product, "count": count, "amount": cents / 100}
            else:
                country = _COUNTRIES[number % len(_COUNTRIES)]
                content |= {"page": _PAGES[int(what * len(_PAGES))], "country": country, "ms": int(40 + 400 * what)}
            yield Event(stream, number, customer.encode(), _encode(content), cents)


def closing_events() -> Iterator[Event]:
    """One of each stream, from nobody: they only say that time has gone on."""
    for stream in range(len(STREAMS)):
        content = {"writer": 0, "number": 0, "customer": CLOSING, "amount": 0}
        yield Event(stream, 0, CLOSING.encode(), _encode(content))
