"""One setting: its kind, its bounds, and what is said about a value that it does not take."""

from dataclasses import dataclass
from typing import Any, Final

from mainstem.core.errors import InvalidSetting
from mainstem.core.kinds import Kind

PREFIX: Final = "MAINSTEM_"
MASK: Final = "********"


@dataclass(frozen=True, slots=True)
class Setting:
    """What is known about one field of `Settings`. `commands` empty means every command."""

    name: str
    kind: Kind
    default: Any
    help: str
    example: str
    commands: tuple[str, ...] = ()
    minimum: float | None = None
    maximum: float | None = None
    secret: bool = False

    @property
    def flag(self) -> str:
        return "--" + self.name.replace("_", "-")

    @property
    def variable(self) -> str:
        return PREFIX + self.name.upper()

    @property
    def default_text(self) -> str:
        return self.kind.render(self.default)

    @property
    def bounds_text(self) -> str:
        """`64 KiB to 4 GiB`, `at least 1s`, or nothing."""
        low = None if self.minimum is None else self.kind.render(self.minimum)
        high = None if self.maximum is None else self.kind.render(self.maximum)
        if low is not None and high is not None:
            return f"{low} to {high}"
        return f"at least {low}" if low is not None else f"at most {high}" if high is not None else ""

    def parse(self, raw: object) -> Any:
        """The checked value of a text or TOML value. ValueError says what is wrong."""
        value = self.kind.parse(raw)
        self.check(value)
        return value

    def check(self, value: Any) -> None:
        """Refuse a value of the wrong type or out of bounds. ValueError says what is wrong."""
        self.kind.check(value)
        below = self.minimum is not None and value < self.minimum
        above = self.maximum is not None and value > self.maximum
        # NaN is neither below nor above anything, and not equal to itself.
        if below or above or value != value:
            raise ValueError(f"it is out of bounds ({self.bounds_text})")

    def shown(self, value: Any) -> str:
        """The value as people may see it."""
        return MASK if self.secret else self.kind.render(value)


def parsed(setting: Setting, given: object, origin: str) -> Any:
    """The value of what was given. InvalidSetting says what is wrong and where it came from."""
    try:
        return setting.parse(given)
    except ValueError as error:
        raise invalid(setting, given, origin, error) from None


def check(setting: Setting, value: Any) -> None:
    """Refuse a value that the setting does not take, with an InvalidSetting."""
    try:
        setting.check(value)
    except ValueError as error:
        raise invalid(setting, value, "", error) from None


def invalid(setting: Setting, given: object, origin: str, problem: ValueError) -> InvalidSetting:
    # A value may be anything a file holds; its text is cut so that the message stays readable.
    shown = MASK if setting.secret else repr(str(given))[:120]
    what = f"{setting.kind.article} {setting.kind.name}"
    return InvalidSetting(
        f"{setting.name} = {shown}{said_from(origin)} is not {what} that can be used: {problem}."
        f" Write {setting.kind.form.replace('`', '')}; for example {setting.example}."
    )


def said_from(origin: str) -> str:
    """Where a value came from, for a message; nothing if that is not known."""
    return f" ({origin})" if origin else ""
