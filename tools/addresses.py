"""Check that no tracked file names a package index: where packages come from is the business of each machine.

    python tools/addresses.py

Lock files hold names, versions and hashes. Exit status 1: an address or an index option was found.
"""

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parent.parent

# Options and settings that name an index, and addresses that look like one. Written so as not to match themselves.
INDEX = re.compile(
    r"--(?:extra-)?index-url[ =]+\S"
    r"|--default-index[ =]+\S"
    r"|--index[ =]+\S*:/"
    r"|--find-links[ =]+\S"
    r"|--trusted-host[ =]+\S"
    r"|^\s*(?:extra-)?index[-_]url\s*="
    r"|\b(?:PIP|UV)_(?:EXTRA_|DEFAULT_)?INDEX(?:_URL)?\s*="
    r"|\[\[tool\.uv\.index\]\]"
    r"|https?://[^\s\"'>)]*/simple\b"
    r"|https?://[^\s\"'>)]*pythonhosted\.org",
    re.MULTILINE,
)


def main() -> int:
    found = 0
    for path in tracked_files():
        for line, text in matches(path):
            print(f"{path.relative_to(ROOT)}:{line}: names a package index: {text}", file=sys.stderr)
            found += 1
    return 1 if found else 0


def tracked_files() -> Iterator[Path]:
    """What is tracked, and what is new and not ignored."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    names = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout
    for name in names.split("\0"):
        path = ROOT / name
        if name and path.is_file() and path != Path(__file__):
            yield path


def matches(path: Path) -> Iterator[tuple[int, str]]:
    text = path.read_text(encoding="utf-8", errors="replace")
    for match in INDEX.finditer(text):
        yield text.count("\n", 0, match.start()) + 1, match.group().strip()


if __name__ == "__main__":
    sys.exit(main())
