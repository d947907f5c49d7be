"""A cursor in a file: where a reader that comes back goes on."""

import errno
import os
from pathlib import Path

from mainstem.core.cursor import Cursor
from mainstem.core.errors import InvalidCursor
from mainstem.core.limits import CURSOR_TEXT_CHARS_MAX


class CursorFile:
    """One cursor as text, replaced as a whole: a crash leaves the old one or the new one. One thread."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._saved: Cursor | None = None

    def load(self) -> Cursor | None:
        """The cursor saved last; None if there is no file yet."""
        try:
            with self._path.open(encoding="ascii", errors="replace") as file:
                text = file.read(CURSOR_TEXT_CHARS_MAX + 1)
        except FileNotFoundError:
            if not self._path.parent.is_dir():
                raise OSError(
                    errno.ENOENT, "there is no such folder for a cursor file", str(self._path.parent)
                ) from None
            return None
        try:
            self._saved = Cursor.parse(text)
        except InvalidCursor as error:
            raise InvalidCursor(f"{self._path} holds no cursor: {error}") from None
        return self._saved

    def save(self, cursor: Cursor) -> None:
        """Replace what was saved before."""
        if cursor == self._saved:
            return
        part = self._path.with_name(self._path.name + ".part")
        try:
            part.write_text(f"{cursor}\n", encoding="ascii")
            os.replace(part, self._path)
        except OSError as error:
            raise OSError(error.errno, f"the cursor cannot be saved: {error.strerror}", str(self._path)) from None
        self._saved = cursor
