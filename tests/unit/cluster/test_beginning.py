"""Where a group begins in a stream that it has never read."""

import pytest

from mainstem.cluster.beginning import Wish, is_read_from_beginning
from mainstem.cluster.events import SharedStream, Subscription

ORDERS = SharedStream(1, "orders", 2, created_us=100)
NAMED = Subscription(frozenset({"orders"}))
FOUND = Subscription(pattern="ord*")
KNOWN, UNKNOWN = {1: (7, 8)}, {2: (9,)}


@pytest.mark.parametrize(
    ("wishes", "group_created_us", "expected"),
    [
        ([Wish(NAMED, KNOWN)], None, False),
        ([Wish(NAMED, KNOWN)], 50, False),
        ([Wish(FOUND, KNOWN)], None, False),
        ([Wish(FOUND, KNOWN)], 150, False),
        ([Wish(FOUND, KNOWN)], 50, True),
        ([Wish(FOUND, KNOWN), Wish(NAMED, KNOWN)], 50, False),
        ([Wish(NAMED, KNOWN), Wish(NAMED, UNKNOWN)], 150, True),
        ([Wish(FOUND, UNKNOWN)], None, True),
    ],
    ids=[
        "a new group, as its member wants",
        "named: whatever is older",
        "found by the first member of a new group",
        "found, and there before the group",
        "found, and younger than the group",
        "found by one, named by another",
        "one did not know it when it joined",
        "nobody knew it",
    ],
)
def test_a_stream_is_read_from_its_beginning_where_it_could_not_be_wished_for(wishes, group_created_us, expected):
    assert is_read_from_beginning(ORDERS, wishes, group_created_us) is expected
