"""What happens in a small web shop: clicks, and the orders some of them lead to."""

from collections.abc import Iterator
from typing import Final, NamedTuple

import msgspec
import numpy as np

STREAMS: Final = ("demo.orders", "demo.clicks")
ORDERS: Final = 0
CLICKS: Final = 1

_CUSTOMERS: Final = 2_000
_PAGES: Final = ("/", "/search", "/pricing", "/cart", "/product/lamp", "/product/chair", "/product/desk", "/help")
_PRODUCTS: Final = {"lamp": 49.0, "chair": 129.5, "desk": 349.0, "shelf": 89.9, "rug": 75.0}
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
            customer = f"c{int(who * who * _CUSTOMERS):04d}"
            number = numbers[stream]
            numbers[stream] += 1
            content: dict[str, object] = {"writer": writer, "number": number, "customer": customer}
            if stream == ORDERS:
                product = products[int(what * len(products))]
                count = 1 + number % 3
                content |= {"product": product, "count": count, "amount": round(count * _PRODUCTS[product], 2)}
            else:
                country = _COUNTRIES[number % len(_COUNTRIES)]
                content |= {"page": _PAGES[int(what * len(_PAGES))], "country": country, "ms": int(40 + 400 * what)}
            yield Event(stream, number, customer.encode(), _encode(content))
