"""The predicate: a WHERE expression of SQL, and the same bound to columns.

    predicate = Predicate.parse("amount > 100 AND country = 'DE'")
    bound = predicate.bind(schema)
    bound.may_match(ranges)     # can any row of a batch match, by what is known of its columns?
    bound.mask(batch)           # which rows do: true, false, or null where it is unknown

The one evaluation of predicates there is: whoever filters, wherever, asks here and gets the same answer.
"""

from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from mainstem.core.clock import SYSTEM_CLOCK, Clock
from mainstem.core.errors import InvalidPredicate
from mainstem.core.predicate import pruning
from mainstem.core.predicate.binding import Binder
from mainstem.core.predicate.bound import And, Applied, Bound, Constant, Or, Value
from mainstem.core.predicate.tree import Expression, columns_of

if TYPE_CHECKING:
    from mainstem.core.statistics import Range


class Predicate:
    """A WHERE expression that could be read. Immutable; any thread may use it."""

    __slots__ = ("_tree", "columns", "text")

    def __init__(self, text: str, tree: Expression) -> None:
        self.text = text
        # The top-level columns that it reads, as it writes them.
        self.columns = frozenset(columns_of(tree))
        self._tree = tree

    @classmethod
    def parse(cls, text: str) -> "Predicate":
        """A predicate; InvalidPredicate says what is wrong with the text, or which limit it is over."""
        if not isinstance(text, str):
            raise InvalidPredicate(f"a predicate is text, not {type(text).__name__}")
        return _parse(text)

    def bind(self, schema: pa.Schema, *, clock: Clock = SYSTEM_CLOCK) -> "BoundPredicate":
        """The predicate for these columns; InvalidPredicate names what does not fit. `now()` is now."""
        return BoundPredicate(self.text, schema, Binder(schema, clock.now_us()).bind(self._tree))

    def __repr__(self) -> str:
        return f"<Predicate {self.text}>"


class BoundPredicate:
    """A predicate whose columns are known. Immutable; any thread may use it."""

    __slots__ = ("_condition", "columns", "indexed", "text")

    def __init__(self, text: str, schema: pa.Schema, condition: Bound) -> None:
        self.text = text
        self._condition = condition
        used = set(_columns(condition))
        # The top-level columns that `mask` needs, in the order of the schema.
        self.columns: tuple[str, ...] = tuple(name for name in schema.names if name in used)
        # The columns whose filters could rule out a batch.
        self.indexed: frozenset[str] = pruning.indexed(condition)

    def mask(self, batch: pa.RecordBatch | pa.Table) -> pa.BooleanArray:
        """Which rows match; null where it is unknown. The batch has at least `columns`."""
        if isinstance(batch, pa.Table):
            return pa.concat_arrays([pa.array([], pa.bool_()), *map(self.mask, batch.to_batches())])
        found = self._condition.evaluate(batch)
        return pa.repeat(found, batch.num_rows) if isinstance(found, pa.Scalar) else found

    def may_match(self, ranges: "Mapping[str, Range]") -> bool:
        """Whether a row can match in a batch whose columns have these ranges. False only if none can."""
        return pruning.outcomes(self._condition, ranges).true

    def __repr__(self) -> str:
        return f"<BoundPredicate {self.text}>"


@lru_cache(maxsize=256)
def _parse(text: str) -> Predicate:
    from mainstem.core.predicate import grammar  # takes a moment, and only those who filter need it

    return Predicate(text, grammar.parse(text))


def _columns(node: Any) -> Iterator[str]:
    if isinstance(node, Value):
        yield node.column
    elif isinstance(node, And | Or | Applied):
        for part in node.parts:
            yield from _columns(part)
    elif not isinstance(node, Constant):
        yield from _columns(node.part)
