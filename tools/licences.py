"""Check that every package of a lock file is under a licence that this project may depend on.

    python tools/licences.py requirements/runtime.txt

The packages must be installed: the licence is read from their metadata. Packages whose marker does not apply to this
machine are named and passed over. Exit status 1: a licence outside `ALLOWED`, or none found.
"""

import re
import sys
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

from packaging.requirements import Requirement

# Permissive licences, by SPDX identifier. Copyleft ones may only ever appear in extras, which are not in this lock.
ALLOWED = {
    "0BSD", "Apache-2.0", "BSD-2-Clause", "BSD-3-Clause", "CC0-1.0", "ISC", "MIT", "PSF-2.0", "Unlicense", "Zlib",
}  # fmt: skip

# What metadata older than SPDX expressions says, by its lower-case text.
SPELLINGS = {
    "apache 2.0": "Apache-2.0",
    "apache software license": "Apache-2.0",
    "bsd license": "BSD-3-Clause",
    "isc license": "ISC",
    "isc license (iscl)": "ISC",
    "mit license": "MIT",
    "python software foundation license": "PSF-2.0",
}

# Packages whose metadata cannot be read by rule, with what their licence file says.
KNOWN = {
    "apsw": "Zlib",  # metadata: "any-OSI": zlib's terms, or any licence that the OSI approves
}


def main(argv: list[str]) -> int:
    if len(argv) != 1:
        print(__doc__, file=sys.stderr)
        return 2
    bad = 0
    for requirement in requirements(Path(argv[0])):
        if requirement.marker is not None and not requirement.marker.evaluate():
            print(f"  {requirement.name:<20} not for this machine ({requirement.marker})")
            continue
        licence = licence_of(requirement.name)
        fine = is_allowed(licence)
        bad += not fine
        print(f"  {requirement.name:<20} {licence}{'' if fine else '   <- not allowed'}")
    if bad:
        print(f"error: {bad} packages with a licence outside the list in tools/licences.py", file=sys.stderr)
    return 1 if bad else 0


def requirements(lock: Path) -> Iterator[Requirement]:
    for line in lock.read_text().splitlines():
        if re.match(r"[A-Za-z0-9]", line):
            yield Requirement(line.removesuffix("\\"))


def licence_of(name: str) -> str:
    """The licence as an SPDX expression, or as the package words it where no rule knows better."""
    if name in KNOWN:
        return KNOWN[name]
    facts = metadata.metadata(name)
    if "License-Expression" in facts:
        return facts["License-Expression"]
    classified = [text for text in facts.get_all("Classifier") or [] if text.startswith("License ::")]
    classifiers = [text.split(" :: ")[-1] for text in classified]
    stated = facts["License"].strip() if "License" in facts else ""
    named = classifiers or [(stated or "none given").splitlines()[0]]
    return " AND ".join(SPELLINGS.get(text.lower(), text) for text in named)


def is_allowed(expression: str) -> bool:
    """Every part of an AND, and one part of an OR, is in the list; brackets are not needed so far."""
    return any(
        all(part.strip() in ALLOWED for part in alternative.split(" AND ")) for alternative in expression.split(" OR ")
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
