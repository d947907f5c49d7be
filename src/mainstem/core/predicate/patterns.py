"""Patterns of LIKE: % stands for any text, _ for one character, and an escape character takes that from them.

The usual forms need no pattern at all: 'x' is an equality, 'x%' a prefix, which statistics know about, '%x' and '%x%' a
search. The others become a regular expression of RE2, which takes time linear in the text for every expression, made of
nothing but literal characters and two wildcards.
"""

from enum import Enum
from typing import Any, Final, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from mainstem.core.errors import InvalidPredicate
from mainstem.core.limits import PREDICATE_PATTERN_CHARS_MAX
from mainstem.core.predicate.application import applied
from mainstem.core.predicate.bound import And, Bound, Constant, Prefixed, Settled
from mainstem.core.predicate.comparison import compare
from mainstem.core.predicate.families import Family, family_of


class Wildcard(Enum):
    """What a place of a pattern stands for that is not itself."""

    ONE = "_"
    ANY = "%"


Piece: TypeAlias = str | Wildcard
_REGEX: Final = {Wildcard.ONE: "(?s:.)", Wildcard.ANY: "(?s:.)*"}


def like(part: Bound, pattern: str, escape: str = "") -> Bound:
    """A condition; InvalidPredicate for a pattern that is too long or ends with its escape character."""
    if len(pattern) > PREDICATE_PATTERN_CHARS_MAX:
        raise InvalidPredicate(
            f"a pattern of {len(pattern)} characters; at most {PREDICATE_PATTERN_CHARS_MAX} are possible"
        )
    match pieces_of(pattern, escape):
        case []:
            return _equal(part, "")
        case [str() as text]:
            return _equal(part, text)
        case [Wildcard.ANY]:
            return Settled(part, True)
        case [str() as text, Wildcard.ANY]:
            return Prefixed(part, text.encode())
        case [Wildcard.ANY, str() as text]:
            return applied("LIKE", lambda values: pc.ends_with(values, pattern=text.encode()), part)
        case [Wildcard.ANY, str() as text, Wildcard.ANY]:
            return applied("LIKE", lambda values: pc.match_substring(values, text.encode()), part)
        case [str() as text, *_] as pieces:
            return And((Prefixed(part, text.encode()), _matches(part, pieces)))
        case pieces:
            return _matches(part, pieces)


def pieces_of(pattern: str, escape: str) -> list[Piece]:
    """The literal texts and wildcards of a pattern, in order."""
    pieces: list[Piece] = []
    characters = iter(pattern)
    for character in characters:
        if character == escape:
            piece: Piece | None = next(characters, None)
            if piece is None:
                raise InvalidPredicate(f"the pattern {pattern[:40]!r} ends with its escape character")
        else:
            piece = Wildcard(character) if character in "_%" else character
        if isinstance(piece, str) and pieces and isinstance(pieces[-1], str):
            pieces[-1] += piece
        elif not (piece is Wildcard.ANY and pieces and pieces[-1] is Wildcard.ANY):
            pieces.append(piece)
    return pieces


def _equal(part: Bound, text: str) -> Bound:
    return compare("=", part, Constant(pa.string(), repr(text), pa.scalar(text)))


def _matches(part: Bound, pieces: list[Piece]) -> Bound:
    # In binary every byte is a character, so that text is looked for as its UTF-8.
    is_text = family_of(part.type) is Family.TEXT
    regex = "".join(_REGEX[piece] if isinstance(piece, Wildcard) else _literal(piece, is_text) for piece in pieces)
    return applied("LIKE", lambda values: _search(values, rf"\A{regex}\z"), part)


def _search(values: Any, regex: str) -> Any:
    return pc.match_substring_regex(values, regex)


def _literal(text: str, is_text: bool) -> str:
    if is_text:
        return "".join(f"\\x{{{ord(character):x}}}" for character in text)
    return "".join(f"\\x{byte:02x}" for byte in text.encode())
