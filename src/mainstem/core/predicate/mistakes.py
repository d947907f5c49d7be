"""Mistakes: what is most likely wrong with a text that cannot be read as a predicate, where, and what to write.

Looked at only when the parser has given up. What that says is about all of SQL, and about where it noticed; here the
usual slips are looked for first: a quote or a bracket that is not closed, an operator with nothing on one side.
"""

import re
from collections.abc import Sequence
from itertools import pairwise
from typing import Final

from sqlglot.tokenizer_core import Token, TokenType

from mainstem.core.predicate.functions import INSTEAD

_PAIRS: Final = {
    TokenType.L_PAREN: TokenType.R_PAREN,
    TokenType.L_BRACKET: TokenType.R_BRACKET,
    TokenType.CASE: TokenType.END,
}
_CONDITIONS: Final = (TokenType.AND, TokenType.OR)
# What stands between two values. Signs that may stand before one are not among them.
_BETWEEN: Final = (
    *_CONDITIONS,
    *(TokenType.EQ, TokenType.NEQ, TokenType.LT, TokenType.LTE, TokenType.GT, TokenType.GTE),
    *(TokenType.STAR, TokenType.SLASH, TokenType.MOD, TokenType.DPIPE),
    *(TokenType.IN, TokenType.LIKE, TokenType.ILIKE),
)
# What no value ends with, and what none begins with.
_BRANCHES: Final = (TokenType.WHEN, TokenType.THEN, TokenType.ELSE)
_BEFORE: Final = (
    *(*_BETWEEN, *_BRANCHES, TokenType.CASE, TokenType.BETWEEN, TokenType.NOT, TokenType.DASH, TokenType.PLUS),
    *(TokenType.L_PAREN, TokenType.L_BRACKET, TokenType.COMMA),
)
_BEHIND: Final = (*_BETWEEN, *_BRANCHES, TokenType.END, TokenType.R_PAREN, TokenType.R_BRACKET, TokenType.COMMA)
# Texts and names in quotes, as far as they are closed.
_QUOTED: Final = re.compile(r"""'(?:[^']|'')*'|"(?:[^"]|"")*\"""")


def in_text(text: str) -> str:
    """Why a text has no words and signs: a quote is not closed, or bytes are none."""
    left = _QUOTED.sub(lambda found: " " * len(found[0]), text)
    if (at := left.find("'")) >= 0:
        return f"the text that begins at character {at + 1} has no end; a quote inside a text is written twice: 'it''s'"
    if (at := left.find('"')) >= 0:
        return f'the name that begins at character {at + 1} has no end; a name stands between two of "'
    if (found := re.search(r"[xX]'(?![0-9a-fA-F]*')", text)) is not None:
        return f"x'..' takes pairs of hexadecimal digits (character {found.start() + 1})"
    return "it is no SQL"


def in_order(tokens: Sequence[Token], at: int | None) -> str:
    """Why words and signs make no predicate; `at` is the place of the one at which the parser stopped, if it said."""
    if tokens[0].text.upper() == "WHERE":
        return "a predicate is what stands behind WHERE; leave out the word"
    said = _unclosed(tokens) or _foreign_call(tokens) or _one_sided(tokens)
    return said or ("" if at is None else f"{_shown(tokens[at])} is not expected there; {_expected(tokens[:at])}")


def _expected(before: Sequence[Token]) -> str:
    """What would go on behind these."""
    open_ = _open(before)
    place = before.index(open_[-1]) if open_ else 0
    kinds = [token.token_type for token in before[place:]]
    if TokenType.BETWEEN in kinds and TokenType.AND not in kinds[kinds.index(TokenType.BETWEEN) :]:
        return "BETWEEN takes two values: BETWEEN 1 AND 5"
    if place and before[place - 1].token_type is TokenType.VAR:
        return f"the values of {before[place - 1].text[:40]}(...) are separated by commas"
    return "conditions are joined with AND or OR"


def _open(tokens: Sequence[Token]) -> list[Token]:
    """What is not closed. The last one is a closing bracket if it closes nothing."""
    found: list[Token] = []
    for token in tokens:
        if token.token_type in _PAIRS:
            found.append(token)
        elif token.token_type in _PAIRS.values():
            if not found or _PAIRS[found[-1].token_type] is not token.token_type:
                return [token]
            found.pop()
    return found


def _unclosed(tokens: Sequence[Token]) -> str:
    open_ = _open(tokens)
    if not open_:
        return ""
    if (kind := open_[-1].token_type) not in _PAIRS:
        return f"{_shown(open_[-1])} closes nothing"
    missing = {TokenType.L_PAREN: ")", TokenType.L_BRACKET: "]"}.get(kind, "END")
    return f"{_shown(open_[-1])} is not closed; {missing} is missing"


def _foreign_call(tokens: Sequence[Token]) -> str:
    """Functions with a grammar of their own, such as EXTRACT(year FROM x)."""
    for token, after in pairwise(tokens):
        if after.token_type is TokenType.L_PAREN and (hint := INSTEAD.get(token.text.lower())):
            return f"there is no function {_shown(token)}; {hint}"
    return ""


def _one_sided(tokens: Sequence[Token]) -> str:
    if tokens[-1].token_type in (TokenType.BETWEEN, TokenType.NOT, TokenType.DASH, TokenType.PLUS):
        return f"a value is missing behind {_shown(tokens[-1])}"
    for place, token in enumerate(tokens):
        if token.token_type not in _BETWEEN:
            continue
        what = "a condition" if token.token_type in _CONDITIONS else "a value"
        # NOT IN and NOT LIKE have their value further left.
        before = tokens[place - 1].token_type if place else TokenType.COMMA
        if before in _BEFORE and not (before is TokenType.NOT and place > 1):
            return f"{what} is missing before {_shown(token)}"
        if place + 1 == len(tokens) or tokens[place + 1].token_type in _BEHIND:
            return f"{what} is missing behind {_shown(token)}"
    return ""


def _shown(token: Token) -> str:
    return f"{token.text[:40]!r} at character {token.start + 1}"
