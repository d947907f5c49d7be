"""What a function does, as a short text that is another one when its code is.

A replay is recognised when it is run again; a function that was changed meanwhile keeps its name, so its name alone
does not say that it is the same. What counts is its code, that of functions beside it which it calls, and plain values
that it uses. Other things that it uses, such as libraries, are not looked into.
"""

import functools
import hashlib
import inspect
import types
from collections.abc import Collection, Iterator
from typing import Final

_PLAIN: Final = (str, bytes, int, float, complex, bool, type(None), type(Ellipsis))


def digest(*parts: object) -> str:
    """The same parts have the same text."""
    return hashlib.sha256("\0".join(map(str, parts)).encode()).hexdigest()[:32]


def code_digest(function: object) -> str:
    """Of what a function does; of nothing if there is none."""
    return "" if function is None else digest(*_parts(function, set()))


def _parts(value: object, seen: set[int]) -> Iterator[str]:
    if isinstance(value, _PLAIN):
        yield repr(value)
    elif isinstance(value, tuple | list | set | frozenset | dict):
        yield from _of_values(value, seen)
    elif isinstance(value, types.CodeType):
        yield from (value.co_code.hex(), *value.co_names, *value.co_varnames)
        yield from _parts(value.co_consts, seen)
    elif isinstance(value, types.FunctionType):
        yield value.__qualname__
        if id(value) not in seen:
            seen.add(id(value))
            yield from _of_function(value, seen)
    elif isinstance(value, functools.partial):
        yield from _parts((value.func, value.args, value.keywords), seen)
    elif isinstance(value, types.MethodType):
        yield from _parts((value.__func__, value.__self__), seen)
    else:
        yield from _of_object(value, seen)


def _of_values(values: Collection[object], seen: set[int]) -> Iterator[str]:
    if isinstance(values, set | frozenset):
        # Their order is another one in every process.
        yield from sorted(digest(*_parts(each, seen)) for each in values)
        return
    for each in values.items() if isinstance(values, dict) else values:
        yield from _parts(each, seen)


def _of_object(value: object, seen: set[int]) -> Iterator[str]:
    """Its name or that of its kind, and what it does when it is called."""
    kind = type(value)
    yield str(getattr(value, "__name__", kind.__qualname__))
    called = vars(kind).get("__call__")
    if isinstance(called, types.FunctionType):
        yield from _parts(called, seen)


def _of_function(function: types.FunctionType, seen: set[int]) -> Iterator[str]:
    """Its code, and what it finds outside of it by name: functions of its module, plain values."""
    yield from _parts((function.__code__, function.__defaults__, function.__kwdefaults__), seen)
    for value in inspect.getclosurevars(function).nonlocals.values():
        yield from _parts(value, seen)
    for name in _names(function.__code__):
        value = function.__globals__.get(name)
        is_beside = isinstance(value, types.FunctionType) and value.__module__ == function.__module__
        if is_beside or isinstance(value, (*_PLAIN, tuple, frozenset)):
            yield name
            yield from _parts(value, seen)


def _names(code: types.CodeType) -> list[str]:
    """Those it uses, and functions within it."""
    inner = [name for each in code.co_consts if isinstance(each, types.CodeType) for name in _names(each)]
    return sorted({*code.co_names, *inner})
