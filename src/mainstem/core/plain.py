"""Text for people: what comes from outside made safe to show, names that repeat, and numbers in the unit that fits."""

from collections.abc import Iterable
from typing import Final

_SHORT: Final = {"\n": r"\n", "\r": r"\r", "\t": r"\t"}


def one_line(text: str, chars_max: int = 1_000) -> str:
    """The text with everything that cannot be printed written as an escape, cut after about `chars_max` characters.

    That is line breaks, terminal escapes, marks that change the direction of writing, and halves of surrogate pairs.
    """
    cut = text if len(text) <= chars_max else f"{text[: chars_max - 1]}…"
    if cut.isprintable():
        return cut
    return "".join(letter if letter.isprintable() else _escaped(letter) for letter in cut)


def _escaped(letter: str) -> str:
    return _SHORT.get(letter) or letter.encode("unicode_escape", "surrogatepass").decode("ascii")


def first_repeated(names: Iterable[str]) -> str | None:
    """The first name that was there before."""
    seen: set[str] = set()
    for name in names:
        if name in seen:
            return name
        seen.add(name)
    return None


def size_text(size: float) -> str:
    """About how many bytes, in decimal units."""
    for unit in ("B", "kB", "MB", "GB"):
        if size < 1000:
            return f"{size:.0f} {unit}" if unit == "B" or size >= 100 else f"{size:.1f} {unit}"
        size /= 1000
    return f"{size:.1f} TB"


def age_text(seconds: float) -> str:
    """About how long: `12s`, `3m 20s`, `5h 12m`, `12d 3h`."""
    whole = max(0, int(seconds))
    for size, unit, small_size, small_unit in ((86_400, "d", 3_600, "h"), (3_600, "h", 60, "m"), (60, "m", 1, "s")):
        if whole >= size:
            rest = whole % size // small_size
            return f"{whole // size}{unit} {rest}{small_unit}" if rest else f"{whole // size}{unit}"
    return f"{whole}s"
