"""Print, per system, how many of the listed mechanisms a passing test demonstrates.

    python tools/mechanisms.py REPORT.json

`docs/mechanisms.csv` lists them, each with the paper that describes it; its column `as` says how it is done here:
`built` as described, `adapted` (the note says what differs), `delegated` to a library or engine, or blank while
undecided. REPORT.json comes from `pytest --mechanisms-report`. A mechanism is demonstrated when at least one test that
is marked with its id passed and none failed.

Exit status 1: a marked test failed, a mark names an id that is not listed, an id that tests mark has no `as`, or one
that has an `as` is not demonstrated.
"""

import csv
import json
import sys
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

LIST = Path(__file__).parent.parent / "docs" / "mechanisms.csv"
WAYS = ("built", "adapted", "delegated")
COLUMNS = ("system", "listed", *WAYS, "missing")


@dataclass(frozen=True, slots=True)
class Mechanism:
    """One row of the list."""

    id: str
    system: str
    name: str
    way: str
    note: str


def main(argv: list[str]) -> int:
    if len(argv) != 1:
        print(__doc__, file=sys.stderr)
        return 2
    mechanisms = read_list(LIST)
    outcomes = read_outcomes(Path(argv[0]))
    shown = {name for name, seen in outcomes.items() if "passed" in seen and "failed" not in seen}
    print_table(mechanisms, shown)
    problems = [
        *problems_of_list(mechanisms),
        *problems_of_tests(mechanisms, outcomes),
        *problems_of_claims(mechanisms, shown),
    ]
    for problem in problems:
        print(f"error: {problem}", file=sys.stderr)
    return 1 if problems else 0


def read_list(path: Path) -> list[Mechanism]:
    with path.open(newline="", encoding="utf-8") as file:
        return [
            Mechanism(row["id"], row["system"], row["name"], row["as"].strip(), row["note"].strip())
            for row in csv.DictReader(file)
        ]


def read_outcomes(path: Path) -> dict[str, set[str]]:
    """Mechanism id -> the outcomes of the tests marked with it."""
    try:
        tests = json.loads(path.read_text())["tests"]
    except FileNotFoundError:
        sys.exit(f"error: {path} is not there: the tests did not get as far as writing it")
    outcomes: dict[str, set[str]] = defaultdict(set)
    for test in tests:
        for name in test["ids"]:
            outcomes[name].add(test["outcome"])
    return outcomes


def problems_of_list(mechanisms: list[Mechanism]) -> Iterator[str]:
    seen: set[str] = set()
    for mechanism in mechanisms:
        if mechanism.id in seen:
            yield f"{LIST.name} lists {mechanism.id} twice"
        seen.add(mechanism.id)
        if mechanism.way not in ("", *WAYS):
            yield f"{LIST.name}: {mechanism.id} is {mechanism.way!r}, which is none of {', '.join(WAYS)}"
        if mechanism.way in ("adapted", "delegated") and not mechanism.note:
            yield f"{LIST.name}: {mechanism.id} is {mechanism.way} but has no note"


def problems_of_tests(mechanisms: list[Mechanism], outcomes: dict[str, set[str]]) -> Iterator[str]:
    by_id = {mechanism.id: mechanism for mechanism in mechanisms}
    for name in sorted(outcomes, key=_natural):
        if name not in by_id:
            yield f"a test is marked {name}, which {LIST.name} does not list"
        elif not by_id[name].way:
            yield f"a test is marked {name}, whose column `as` is still blank in {LIST.name}"
        if "failed" in outcomes[name]:
            yield f"a test of {name} failed"


def problems_of_claims(mechanisms: list[Mechanism], shown: set[str]) -> Iterator[str]:
    for mechanism in missing_of(mechanisms, shown):
        yield f"{LIST.name} claims that {mechanism.id} is {mechanism.way}, and no passing test demonstrates it"


def missing_of(mechanisms: list[Mechanism], shown: set[str]) -> list[Mechanism]:
    return [mechanism for mechanism in mechanisms if mechanism.way and mechanism.id not in shown]


def print_table(mechanisms: list[Mechanism], shown: set[str]) -> None:
    """One line per system; `missing` counts what has an `as` but no passing test, and is named below the table."""
    systems: dict[str, list[Mechanism]] = defaultdict(list)
    for mechanism in mechanisms:
        systems[mechanism.system].append(mechanism)
    rows = [_row(system, members, shown) for system, members in systems.items()]
    rows.append(("all", *(sum(int(row[i]) for row in rows) for i in range(1, len(COLUMNS)))))
    print("demonstrated by a passing test:")
    for row in (COLUMNS, *rows):
        print(f"  {row[0]:<14}" + "".join(f"{cell:>11}" for cell in row[1:]))
    missing = missing_of(mechanisms, shown)
    if missing:
        print("\nmissing (claimed in the list, not demonstrated):")
        for mechanism in missing:
            print(f"  {mechanism.id:<5} {mechanism.name} ({mechanism.way})")


def _row(system: str, members: list[Mechanism], shown: set[str]) -> tuple[str | int, ...]:
    done = [mechanism.way for mechanism in members if mechanism.id in shown]
    return (system, len(members), *(done.count(way) for way in WAYS), len(missing_of(members, shown)))


def _natural(name: str) -> tuple[str, int]:
    """S2 before S10."""
    letters = name.rstrip("0123456789")
    return letters, int(name[len(letters) :] or 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
