"""The tree: what a predicate says, before it is known which columns there are.

Three kinds of nodes are enough: a column, a literal, and an operation on other nodes. Operations are named as SQL
writes them (`=`, `and`, `like`, `lower()`); whatever can be said by others is not here: BETWEEN is two comparisons, a
CASE with an operand is one without.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta
from decimal import Decimal
from typing import TypeAlias

LiteralValue: TypeAlias = bool | int | Decimal | float | str | bytes | timedelta | None


@dataclass(frozen=True, slots=True)
class Column:
    """A column, or a field inside one: `a.b.c` is ("a", "b", "c")."""

    path: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Literal:
    """A value that was written down. A time span is a timedelta."""

    value: LiteralValue


@dataclass(frozen=True, slots=True)
class Operation:
    """Something done with other nodes. `detail` is the target of a cast, or the escape character of LIKE."""

    name: str
    parts: tuple["Expression", ...]
    detail: str = ""


Expression: TypeAlias = Column | Literal | Operation


def columns_of(expression: Expression) -> Iterator[str]:
    """The top-level columns that an expression reads, as it writes them, some perhaps repeatedly."""
    if isinstance(expression, Column):
        yield expression.path[0]
    elif isinstance(expression, Operation):
        for part in expression.parts:
            yield from columns_of(part)
