"""The bound tree: a predicate whose columns, types and conversions are settled, ready to be evaluated.

Nodes are immutable and may be evaluated from any thread. A node gives an array with a value for each row, a constant
gives a scalar. Evaluated without rows a tree of constants gives one value: so constant parts are worked out once.

Comparisons with constants are nodes of their own, because batches can be ruled out by them without being read (see
`pruning`); everything else is `Applied`.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import reduce
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from mainstem.core.predicate import kernels


@dataclass(frozen=True, slots=True)
class Bound:
    """A value of each row. `label` is how messages call it."""

    type: pa.DataType
    label: str

    def evaluate(self, rows: pa.RecordBatch | None) -> Any:
        raise NotImplementedError


@dataclass(frozen=True, slots=True)
class Constant(Bound):
    """The same value for every row."""

    scalar: Any

    @property
    def is_null(self) -> bool:
        return not self.scalar.is_valid

    def evaluate(self, rows: pa.RecordBatch | None) -> Any:
        return self.scalar if rows is not None else pa.repeat(self.scalar, 1)


@dataclass(frozen=True, slots=True)
class Value(Bound):
    """A column, or a field inside it: `inside` has the index of the field at each level."""

    column: str
    inside: tuple[int, ...]

    def evaluate(self, rows: pa.RecordBatch | None) -> Any:
        assert rows is not None
        values = rows.column(self.column)
        if self.inside:
            # A field of a struct that is null is null.
            values = pc.struct_field(values, self.inside)
        return values if values.type == self.type else kernels.convert(values, self.type)


@dataclass(frozen=True, slots=True)
class Applied(Bound):
    """What a function makes of other values."""

    function: Callable[..., Any]
    parts: tuple[Bound, ...]

    def evaluate(self, rows: pa.RecordBatch | None) -> Any:
        return self.function(*(part.evaluate(rows) for part in self.parts))


@dataclass(frozen=True, slots=True)
class Condition(Bound):
    """A value that is true, false or unknown."""

    type: pa.DataType = field(default=pa.bool_(), init=False)
    label: str = field(default="a condition", init=False)


@dataclass(frozen=True, slots=True)
class And(Condition):
    parts: tuple[Bound, ...]

    def evaluate(self, rows: pa.RecordBatch | None) -> Any:
        found = self.parts[0].evaluate(rows)
        for part in self.parts[1:]:
            if isinstance(found, pa.Array) and rows is not None and not found.null_count and not found.true_count:
                return found  # false whatever follows
            found = pc.and_kleene(found, part.evaluate(rows))
        return found


@dataclass(frozen=True, slots=True)
class Or(Condition):
    parts: tuple[Bound, ...]

    def evaluate(self, rows: pa.RecordBatch | None) -> Any:
        return reduce(pc.or_kleene, (part.evaluate(rows) for part in self.parts))


@dataclass(frozen=True, slots=True)
class Not(Condition):
    part: Bound

    def evaluate(self, rows: pa.RecordBatch | None) -> Any:
        return pc.invert(self.part.evaluate(rows))


@dataclass(frozen=True, slots=True)
class IsNull(Condition):
    part: Bound

    def evaluate(self, rows: pa.RecordBatch | None) -> Any:
        return pc.is_null(self.part.evaluate(rows))


@dataclass(frozen=True, slots=True)
class IsTruth(Condition):
    """IS TRUE and IS FALSE: never unknown."""

    part: Bound
    truth: bool

    def evaluate(self, rows: pa.RecordBatch | None) -> Any:
        found = self.part.evaluate(rows)
        return pc.fill_null(found if self.truth else pc.invert(found), False)


@dataclass(frozen=True, slots=True)
class Compared(Condition):
    """A value compared with a constant of its own storage type, which is not NaN. `constant` is its storage form."""

    sign: str
    part: Bound
    scalar: Any
    constant: Any

    def evaluate(self, rows: pa.RecordBatch | None) -> Any:
        return kernels.compare_constant(self.sign, self.part.evaluate(rows), self.scalar)


@dataclass(frozen=True, slots=True)
class Settled(Condition):
    """A comparison whose outcome is the same for every value that is there; unknown where there is none."""

    part: Bound
    outcome: bool

    def evaluate(self, rows: pa.RecordBatch | None) -> Any:
        return pc.if_else(pc.is_valid(self.part.evaluate(rows)), self.outcome, pa.scalar(None, pa.bool_()))


@dataclass(frozen=True, slots=True)
class OneOf(Condition):
    """A value that equals one of several constants, none of them NULL."""

    part: Bound
    values: Any
    constants: tuple[Any, ...]

    def evaluate(self, rows: pa.RecordBatch | None) -> Any:
        values = kernels.storage(self.part.evaluate(rows))
        found = pc.is_in(values, self.values)
        return kernels.null_where(pc.is_null(values), found) if values.null_count else found


@dataclass(frozen=True, slots=True)
class Prefixed(Condition):
    """Text or bytes that begin with a constant."""

    part: Bound
    prefix: bytes

    def evaluate(self, rows: pa.RecordBatch | None) -> Any:
        return pc.starts_with(self.part.evaluate(rows), pattern=self.prefix)
