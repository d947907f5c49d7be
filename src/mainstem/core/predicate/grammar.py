"""The grammar: text to tree. sqlglot reads it, with nearly everything that it knows of SQL taken away.

A text is measured before it is parsed: bytes, then tokens and how deep they are nested. What sqlglot then finds is
translated node by node; one that is not in the tables below, or has a part that they do not name, is refused by name.
No function of sqlglot's own is known to this dialect, so that a call is always a name with arguments.

The only module that imports sqlglot; it is loaded with the first predicate, because that takes a moment.
"""

import math
import re
from collections.abc import Callable
from datetime import timedelta
from decimal import Decimal
from typing import Any, ClassVar, Final

from sqlglot import exp
from sqlglot.dialects.dialect import Dialect
from sqlglot.errors import ParseError, TokenError
from sqlglot.parser import Parser as SqlParser
from sqlglot.tokenizer_core import Token, TokenType
from sqlglot.tokens import Tokenizer as SqlTokenizer

from mainstem.core.errors import InvalidPredicate
from mainstem.core.limits import PREDICATE_BYTES_MAX, PREDICATE_DEPTH_MAX, PREDICATE_TOKENS_MAX, PREDICATE_WORDS_MAX
from mainstem.core.predicate import mistakes
from mainstem.core.predicate.functions import INSTEAD
from mainstem.core.predicate.tree import Column, Expression, Literal, Operation


class _Where(Dialect):
    """Standard SQL without functions, comments, parameters and statements."""

    class Tokenizer(SqlTokenizer):
        QUOTES: ClassVar[list[str | tuple[str, str]]] = ["'"]
        IDENTIFIERS: ClassVar[list[str | tuple[str, str]]] = ['"']
        HEX_STRINGS: ClassVar[list[str | tuple[str, str]]] = [("x'", "'"), ("X'", "'")]

    class Parser(SqlParser):
        FUNCTIONS: ClassVar[dict[str, Callable[..., Any]]] = {}
        FUNCTION_PARSERS: ClassVar[dict[str, Callable[..., Any]]] = {
            name: SqlParser.FUNCTION_PARSERS[name] for name in ("CAST", "TRY_CAST")
        }
        ARRAY_CONSTRUCTORS: ClassVar[dict[str, Any]] = {}
        NO_PAREN_FUNCTIONS: ClassVar[dict[TokenType, Any]] = {}
        NO_PAREN_FUNCTION_PARSERS: ClassVar[dict[str, Callable[..., Any]]] = {
            "CASE": SqlParser.NO_PAREN_FUNCTION_PARSERS["CASE"]
        }


_DIALECT: Final = _Where()

# Tokens that begin something no predicate has; the text says what.
_FOREIGN: Final = {
    TokenType.SEMICOLON: "a predicate is one expression, without ;",
    TokenType.SELECT: "a predicate is what stands behind WHERE, and has no subqueries",
    TokenType.WITH: "subqueries are not possible",
    TokenType.OVER: "window functions are not possible",
    TokenType.PARAMETER: "parameters are not possible; write the value",
    TokenType.PLACEHOLDER: "parameters are not possible; write the value",
    TokenType.SESSION_PARAMETER: "parameters are not possible; write the value",
    TokenType.ARROW: "lambdas and JSON operators are not possible",
    TokenType.L_BRACE: "{ is not possible",
}
# The signs and words of the language. Every other word is a name, whatever SQL makes of it elsewhere.
_SIGNS: Final = (
    "L_PAREN R_PAREN L_BRACKET R_BRACKET COMMA DOT DASH PLUS STAR SLASH MOD EQ NEQ LT LTE GT GTE DPIPE DCOLON"
)
_WORDS: Final = "AND OR NOT IN IS NULL TRUE FALSE BETWEEN LIKE ILIKE ESCAPE CASE WHEN THEN ELSE END ALIAS"
_VALUES: Final = "NUMBER STRING HEX_STRING IDENTIFIER VAR"
_KNOWN: Final = frozenset(getattr(TokenType, name) for name in f"{_SIGNS} {_WORDS} {_VALUES}".split())
_LISTED: Final = (TokenType.NUMBER, TokenType.STRING, TokenType.HEX_STRING, TokenType.COMMA)
_OPENING: Final = (TokenType.L_PAREN, TokenType.L_BRACKET, TokenType.CASE)
_CLOSING: Final = (TokenType.R_PAREN, TokenType.R_BRACKET, TokenType.END)
_BRACKETS: Final = (TokenType.L_PAREN, TokenType.L_BRACKET)
_NO_VALUE: Final = (TokenType.COMMA, TokenType.R_PAREN, TokenType.R_BRACKET)
_PREFIXES: Final = (TokenType.NOT, TokenType.DASH, TokenType.PLUS)

_BINARY: Final[dict[type[exp.Expr], str]] = {
    exp.EQ: "=",
    exp.NEQ: "<>",
    exp.LT: "<",
    exp.LTE: "<=",
    exp.GT: ">",
    exp.GTE: ">=",
    exp.NullSafeEQ: "is not distinct from",
    exp.NullSafeNEQ: "is distinct from",
    exp.Add: "+",
    exp.Sub: "-",
    exp.Mul: "*",
    exp.Div: "/",
    exp.Mod: "%",
    exp.DPipe: "||",
    exp.Like: "like",
    exp.ILike: "ilike",
}
_CASTS: Final = {
    "BOOLEAN": "boolean",
    "TINYINT": "tinyint",
    "SMALLINT": "smallint",
    "INT": "integer",
    "BIGINT": "bigint",
    "DOUBLE": "double",
    "TEXT": "text",
    "VARCHAR": "text",
    "BINARY": "binary",
    "VARBINARY": "binary",
    "BLOB": "binary",
    "DATE": "date",
    "TIME": "time",
    "TIMESTAMP": "timestamp",
    "TIMESTAMPTZ": "timestamp",
    "TIMESTAMPNTZ": "timestamp",
}
_UNITS: Final = {
    "week": timedelta(weeks=1),
    "day": timedelta(days=1),
    "hour": timedelta(hours=1),
    "minute": timedelta(minutes=1),
    "second": timedelta(seconds=1),
    "millisecond": timedelta(milliseconds=1),
    "microsecond": timedelta(microseconds=1),
}
_SPAN: Final = re.compile(r"\s*([+-]?\d{1,18}(?:\.\d{1,6})?)\s*([A-Za-z]*)\s*", re.ASCII)


def parse(text: str) -> Expression:
    """The tree of a predicate; InvalidPredicate says what is wrong with the text, or which limit it is over."""
    if (size := len(text.encode(errors="replace"))) > PREDICATE_BYTES_MAX:
        raise InvalidPredicate(f"a predicate of {size} bytes; at most {PREDICATE_BYTES_MAX} are possible")
    tokens = _tokens(text)
    if not tokens:
        raise InvalidPredicate("the predicate is empty; leave it out to select every record")
    if len(tokens) > PREDICATE_TOKENS_MAX:
        raise InvalidPredicate(
            f"a predicate of {len(tokens)} words, signs and values; at most {PREDICATE_TOKENS_MAX} are possible"
        )
    if (words := sum(token.token_type not in _LISTED for token in tokens)) > PREDICATE_WORDS_MAX:
        raise InvalidPredicate(f"a predicate of {words} words and signs; at most {PREDICATE_WORDS_MAX} are possible")
    _check(tokens)
    return _translate(_parsed(text, _plain(tokens)), 0)


def _tokens(text: str) -> list[Token]:
    try:
        return list(_DIALECT.tokenize(text))
    except TokenError:
        raise InvalidPredicate(f"the predicate cannot be read: {mistakes.in_text(text)}") from None


def _check(tokens: list[Token]) -> None:
    """Refuse what nests too deep for a parser that calls itself, and what no predicate has."""
    depth = signs = 0
    before = TokenType.L_PAREN
    for token in tokens:
        kind = token.token_type
        # sqlglot does not mind commas too many.
        if (before is TokenType.COMMA and kind in _NO_VALUE) or (kind is TokenType.COMMA and before in _BRACKETS):
            raise InvalidPredicate(f"a value is missing before {token.text!r} at character {token.start + 1}")
        before = kind
        if token.comments:
            raise InvalidPredicate("comments are not possible in a predicate")
        if kind in _FOREIGN:
            raise InvalidPredicate(f"{_FOREIGN[kind]} ({token.text[:40]!r} at character {token.start + 1})")
        depth += (kind in _OPENING) - (kind in _CLOSING)
        signs = signs + 1 if kind in _PREFIXES else 0
        if depth + signs > PREDICATE_DEPTH_MAX:
            raise InvalidPredicate(f"a predicate nested deeper than {PREDICATE_DEPTH_MAX}")


def _plain(tokens: list[Token]) -> list[Token]:
    """The tokens without what the language does not know: so sqlglot is never led to the rest of SQL, where some texts
    take it exponential time."""
    kinds = [TokenType.SEMICOLON, *(token.token_type for token in tokens), TokenType.SEMICOLON]
    plain: list[Token] = []
    for place, token in enumerate(tokens):
        if token.token_type in _BRACKETS and plain and plain[-1].token_type in SqlParser.TYPE_TOKENS:
            raise InvalidPredicate(f"{token.text} is not possible after {plain[-1].text[:40]!r}")
        plain.append(token if _is_known(*kinds[place : place + 3]) else _as_name(token))
    return plain


def _is_known(before: TokenType, kind: TokenType, after: TokenType) -> bool:
    if kind in _KNOWN:
        return True
    if kind is TokenType.DISTINCT:
        return before in (TokenType.IS, TokenType.NOT) and after is TokenType.FROM
    if kind is TokenType.FROM:
        return before is TokenType.DISTINCT
    if kind is TokenType.INTERVAL:
        return after in (TokenType.STRING, TokenType.NUMBER)
    # A type is one only where it must be: CAST(x AS type), x::type, type 'text'.
    return kind in SqlParser.TYPE_TOKENS and (
        before in (TokenType.ALIAS, TokenType.DCOLON) or after is TokenType.STRING
    )


def _as_name(token: Token) -> Token:
    if not token.text.isidentifier():
        raise InvalidPredicate(f"{token.text[:40]!r} is not possible in a predicate (character {token.start + 1})")
    return Token(TokenType.VAR, token.text, token.line, token.col, token.start, token.end)


def _parsed(text: str, tokens: list[Token]) -> exp.Expr:
    try:
        found = _DIALECT.parser().parse_into(exp.Condition, tokens, text)
    except ParseError as error:
        raise InvalidPredicate(f"the predicate cannot be read: {_why(error, tokens)}") from None
    except Exception as error:  # noqa: BLE001  # whatever trips sqlglot is not a predicate
        raise InvalidPredicate(f"the predicate cannot be read: {type(error).__name__}") from None
    if len(found) != 1 or found[0] is None:
        raise InvalidPredicate("a predicate is one expression")
    _check_betweens(found[0], tokens)
    return found[0]


def _check_betweens(found: exp.Expr, tokens: list[Token]) -> None:
    """sqlglot does not mind a BETWEEN without its AND."""
    kinds = [token.token_type for token in tokens]
    if TokenType.BETWEEN in kinds and kinds.count(TokenType.AND) != len(list(found.find_all(exp.And, exp.Between))):
        raise InvalidPredicate("BETWEEN takes two values with AND between them: BETWEEN 1 AND 5")


def _why(error: ParseError, tokens: list[Token]) -> str:
    for detail in error.errors:
        for cause in detail, *(getattr(detail.get("into_expression"), "errors", None) or []):
            if said := cause.get("description"):
                where = cause.get("line"), cause.get("col")
                at = next((place for place, token in enumerate(tokens) if (token.line, token.col) == where), None)
                return mistakes.in_order(tokens, at) or str(said)[:200]
    return mistakes.in_order(tokens, None) or str(error).split("\n", 1)[0][:200]


def _translate(node: exp.Expr, depth: int) -> Expression:
    if depth > PREDICATE_DEPTH_MAX:
        raise InvalidPredicate(f"a predicate nested deeper than {PREDICATE_DEPTH_MAX}")
    kind = type(node)
    if kind in _BINARY:
        _only(node, "this", "expression", "safe", "typed", "negate")
        found = Operation(_BINARY[kind], (_translate(node.this, depth + 1), _translate(node.expression, depth + 1)))
        return Operation("not", (found,)) if node.args.get("negate") else found
    if kind not in _TRANSLATIONS:
        raise InvalidPredicate(f"{_named(node)} is not possible in a predicate")
    return _TRANSLATIONS[kind](node, depth)


def _named(node: exp.Expr) -> str:
    return re.sub(r"(?<=[a-z])(?=[A-Z])", " ", type(node).__name__).upper()


def _only(node: exp.Expr, *names: str) -> None:
    """Refuse a node that has more to it than these parts."""
    for name, value in node.args.items():
        if name not in names and value not in (None, False, []):
            raise InvalidPredicate(f"{_named(node)} with {name.upper()} is not possible in a predicate")


def _chain(name: str) -> Callable[[Any, int], Expression]:
    """AND and OR of many parts lean to the left; they become one flat operation, however many there are."""

    def translate(node: exp.Expr, depth: int) -> Expression:
        kind, parts = type(node), []
        while type(node) is kind:
            _only(node, "this", "expression")
            parts.append(node.expression)
            node = node.this
        parts.append(node)
        return Operation(name, tuple(_translate(part, depth + 1) for part in reversed(parts)))

    return translate


def _paren(node: exp.Paren, depth: int) -> Expression:
    _only(node, "this")
    return _translate(node.this, depth + 1)


def _not(node: exp.Not, depth: int) -> Expression:
    _only(node, "this")
    return Operation("not", (_translate(node.this, depth + 1),))


def _negative(node: exp.Neg, depth: int) -> Expression:
    _only(node, "this")
    part = _translate(node.this, depth + 1)
    if isinstance(part, Literal) and type(part.value) in (int, float, Decimal, timedelta):
        return Literal(-part.value)  # type: ignore[operator]
    return Operation("negative", (part,))


def _is(node: exp.Is, depth: int) -> Expression:
    _only(node, "this", "expression")
    part, of = _translate(node.this, depth + 1), node.expression
    negated = isinstance(of, exp.Not)
    of = of.this if isinstance(of, exp.Not) else of
    if isinstance(of, exp.Null):
        tested = Operation("is null", (part,))
    elif isinstance(of, exp.Boolean):
        tested = Operation("is true" if of.this else "is false", (part,))
    else:
        raise InvalidPredicate("IS takes NULL, TRUE, FALSE or DISTINCT FROM; compare with a value by =")
    return Operation("not", (tested,)) if negated else tested


def _in(node: exp.In, depth: int) -> Expression:
    items = node.expressions
    if not items:
        raise InvalidPredicate("IN takes at least one value, in parentheses: IN (1, 2)")
    _only(node, "this", "expressions")
    return Operation("in", tuple(_translate(part, depth + 1) for part in (node.this, *items)))


def _between(node: exp.Between, depth: int) -> Expression:
    _only(node, "this", "low", "high")
    part = _translate(node.this, depth + 1)
    low, high = (_translate(node.args[name], depth + 1) for name in ("low", "high"))
    return Operation("and", (Operation(">=", (part, low)), Operation("<=", (part, high))))


def _escape(node: exp.Escape, depth: int) -> Expression:
    _only(node, "this", "expression")
    like, escape = node.this, node.expression
    if type(like) not in (exp.Like, exp.ILike) or not (isinstance(escape, exp.Literal) and escape.is_string):
        raise InvalidPredicate("ESCAPE follows LIKE and takes one character: LIKE '50!%' ESCAPE '!'")
    if len(escape.this) != 1:
        raise InvalidPredicate(f"ESCAPE takes one character, not {escape.this[:40]!r}")
    found = Operation(
        _BINARY[type(like)], (_translate(like.this, depth + 1), _translate(like.expression, depth + 1)), escape.this
    )
    return Operation("not", (found,)) if like.args.get("negate") else found


def _case(node: exp.Case, depth: int) -> Expression:
    _only(node, "this", "ifs", "default")
    of = node.args.get("this")
    operand = None if of is None else _translate(of, depth + 1)
    parts: list[Expression] = []
    for branch in node.args["ifs"]:
        _only(branch, "this", "true")
        condition = _translate(branch.this, depth + 1)
        parts.append(condition if operand is None else Operation("=", (operand, condition)))
        parts.append(_translate(branch.args["true"], depth + 1))
    default = node.args.get("default")
    parts.append(Literal(None) if default is None else _translate(default, depth + 1))
    return Operation("case", tuple(parts))


def _cast(node: exp.Cast, depth: int) -> Expression:
    _only(node, "this", "to", "safe")
    to = node.args["to"]
    name = to.this.name if isinstance(to, exp.DataType) and isinstance(to.this, exp.DataType.Type) else ""
    if name not in _CASTS or to.expressions or to.args.get("nested"):
        raise InvalidPredicate(f"CAST knows the types {', '.join(sorted(set(_CASTS.values())))}, not {to}")
    return Operation("cast", (_translate(node.this, depth + 1),), _CASTS[name])


def _column(node: exp.Column, depth: int) -> Expression:
    _only(node, "this", "table", "db", "catalog")
    return Column(tuple(_name(part) for part in node.parts))


def _dot(node: exp.Dot, depth: int) -> Expression:
    _only(node, "this", "expression")
    inner = _translate(node.this, depth + 1)
    if not isinstance(inner, Column):
        raise InvalidPredicate("only a column has fields: a.b.c")
    return Column((*inner.path, _name(node.expression)))


def _name(node: exp.Expr) -> str:
    if not isinstance(node, exp.Identifier) or not isinstance(node.this, str):
        raise InvalidPredicate(f"{_named(node)} is not possible where the name of a column is expected")
    return node.this


def _bracket(node: exp.Bracket, depth: int) -> Expression:
    _only(node, "this", "expressions")
    if len(node.expressions) != 1:
        raise InvalidPredicate("[ ] takes one key: headers['tenant']")
    return Operation("[]", (_translate(node.this, depth + 1), _translate(node.expressions[0], depth + 1)))


def _literal(node: exp.Literal, depth: int) -> Expression:
    text = str(node.this)
    if node.is_string:
        return Literal(text)
    if not re.fullmatch(r"(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?", text, re.ASCII):
        raise InvalidPredicate(f"{text[:40]!r} is not a number")
    digits = sum(map(str.isdigit, text))
    if "e" in text.lower() or digits > 38:
        if math.isinf(number := float(text)):
            raise InvalidPredicate(f"{text[:40]!r} is larger than every float")
        return Literal(number)
    return Literal(int(text) if text.isdigit() else Decimal(text))


def _binary_literal(node: exp.HexString, depth: int) -> Expression:
    try:
        return Literal(bytes.fromhex(str(node.this)))
    except ValueError:
        raise InvalidPredicate("x'..' takes pairs of hexadecimal digits") from None


def _interval(node: exp.Interval, depth: int) -> Expression:
    _only(node, "this", "unit")
    of, unit = node.args.get("this"), node.args.get("unit")
    if not isinstance(of, exp.Literal) or (found := _SPAN.fullmatch(str(of.this))) is None:
        raise InvalidPredicate("INTERVAL takes a number and a unit: INTERVAL '90' MINUTE")
    name = (found[2] or (unit.name if unit is not None else "")).lower().removesuffix("s")
    if (found[2] and unit is not None) or name not in _UNITS:
        raise InvalidPredicate(
            f"INTERVAL knows {', '.join(_UNITS)}, not {name[:40]!r}; months and years have no fixed length"
        )
    try:
        # In whole microseconds: a timedelta of a float would round.
        microseconds = Decimal(found[1]) * (_UNITS[name] // timedelta(microseconds=1))
        return Literal(timedelta(microseconds=int(microseconds)))
    except (OverflowError, ValueError):
        raise InvalidPredicate(f"INTERVAL {found[1]} {name} is too long") from None


def _star(node: exp.Star, depth: int) -> Expression:
    raise InvalidPredicate(f"* stands between two numbers only; count(*): {INSTEAD['count']}")


def _call(node: exp.Anonymous, depth: int) -> Expression:
    _only(node, "this", "expressions")
    if not isinstance(node.this, str):
        raise InvalidPredicate("a function is called by its name")
    return Operation(f"{node.this.lower()}()", tuple(_translate(part, depth + 1) for part in node.expressions))


_TRANSLATIONS: Final[dict[type[exp.Expr], Callable[[Any, int], Expression]]] = {
    exp.And: _chain("and"),
    exp.Or: _chain("or"),
    exp.Paren: _paren,
    exp.Not: _not,
    exp.Neg: _negative,
    exp.Is: _is,
    exp.In: _in,
    exp.Between: _between,
    exp.Escape: _escape,
    exp.Case: _case,
    exp.Cast: _cast,
    exp.TryCast: _cast,
    exp.Column: _column,
    exp.Dot: _dot,
    exp.Bracket: _bracket,
    exp.Literal: _literal,
    exp.HexString: _binary_literal,
    exp.Interval: _interval,
    exp.Anonymous: _call,
    exp.Star: _star,
    exp.Boolean: lambda node, depth: Literal(bool(node.this)),
    exp.Null: lambda node, depth: Literal(None),
}
