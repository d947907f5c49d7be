"""A strict reader of Prometheus' text format 0.0.4, and the rules that a linter of metrics would apply."""

import re
from dataclasses import dataclass, field

_NAME = r"[a-zA-Z_:][a-zA-Z0-9_:]*"
_LABEL = r'([a-zA-Z_][a-zA-Z0-9_]*)="((?:[^"\\\n]|\\\\|\\"|\\n)*)"'
_HELP = re.compile(rf"# HELP ({_NAME}) ((?:[^\\\n]|\\\\|\\n)+)")
_TYPE = re.compile(rf"# TYPE ({_NAME}) (counter|gauge|histogram)")
_SAMPLE = re.compile(rf"({_NAME})(?:\{{({_LABEL}(?:,{_LABEL})*)\}})? (-?[0-9.]+(?:e[+-]?[0-9]+)?|[+-]Inf|NaN)")
_SUFFIXES = ("_bucket", "_sum", "_count")
_UNITS = (
    "milliseconds",
    "microseconds",
    "ms",
    "us",
    "minutes",
    "hours",
    "kilobytes",
    "megabytes",
    "kib",
    "mib",
    "percent",
)

Labels = tuple[tuple[str, str], ...]


@dataclass
class Family:
    """One metric with all its samples, by (name of the sample, labels)."""

    name: str
    help: str
    kind: str = ""
    samples: dict[tuple[str, Labels], float] = field(default_factory=dict)

    def value(self, **labels: str) -> float:
        return self.samples[self.name, tuple(sorted(labels.items()))]


def parse(page: str) -> dict[str, Family]:
    """The metrics of a page; AssertionError where the format is not kept."""
    assert page.endswith("\n")
    families: dict[str, Family] = {}
    current: Family | None = None
    for line in page.removesuffix("\n").split("\n"):
        if found := _HELP.fullmatch(line):
            assert found[1] not in families, f"{found[1]} comes twice"
            current = families[found[1]] = Family(found[1], found[2])
        elif found := _TYPE.fullmatch(line):
            assert current is not None
            assert (found[1], current.kind, current.samples) == (current.name, "", {}), line
            current.kind = found[2]
        else:
            found = _SAMPLE.fullmatch(line)
            assert found is not None, f"not a line of the format: {line!r}"
            assert current is not None
            assert current.kind, line
            allowed = [current.name + suffix for suffix in _SUFFIXES] if current.kind == "histogram" else [current.name]
            assert found[1] in allowed, f"{line!r} stands under {current.name}"
            labels = tuple(sorted(re.findall(_LABEL, found[2] or "")))
            assert len({name for name, _ in labels}) == len(labels), line
            assert (found[1], labels) not in current.samples, f"{line!r} comes twice"
            current.samples[found[1], labels] = float(found[len(found.groups())].replace("Inf", "inf"))
    for family in families.values():
        assert family.samples, f"{family.name} has no sample"
        if family.kind == "histogram":
            _check_histogram(family)
    return families


def _check_histogram(family: Family) -> None:
    buckets = [
        (dict(labels)["le"], value) for (name, labels), value in family.samples.items() if name.endswith("_bucket")
    ]
    bounds = [float(bound.replace("Inf", "inf")) for bound, _ in buckets]
    values = [value for _, value in buckets]
    assert bounds == sorted(bounds)
    assert bounds[-1] == float("inf")
    assert values == sorted(values)
    assert values[-1] == family.samples[f"{family.name}_count", ()]
    assert (f"{family.name}_sum", ()) in family.samples


def lint(families: dict[str, Family]) -> list[str]:
    """What a linter would say."""
    problems = []
    for name, family in families.items():
        if name.startswith("kafka_"):
            continue  # others have named these
        words = name.split("_")
        if (family.kind == "counter") != name.endswith("_total"):
            problems.append(f"{name}: counters, and only they, end in _total")
        if family.kind != "histogram" and name.endswith(_SUFFIXES):
            problems.append(f"{name}: the suffix is one of histograms")
        if set(words) & {*_UNITS, "gauge", "counter", "histogram"}:
            problems.append(f"{name}: not in base units, or with its type in the name")
        if name != name.lower() or "__" in name or not name.startswith(("mainstem_", "process_")):
            problems.append(f"{name}: not written as ours are")
        if not family.help.endswith("."):
            problems.append(f"{name}: its help is no sentence")
    return problems
