"""What a suite reports: how often it tried, what was acknowledged, and everything that went wrong."""

from dataclasses import dataclass, field

# A suite that fails everywhere says it this often, then only counts.
FINDINGS_SHOWN_MAX = 20


@dataclass(slots=True)
class Trials:
    """The result of one run of one suite. `findings` must be empty; each says which trial and what is wrong."""

    trials: int = 0
    acknowledged: int = 0
    lost: int = 0
    duplicated: int = 0
    # The longest recovery: from the start of a process, or of an open, until it serves.
    worst_seconds: float = 0.0
    findings: list[str] = field(default_factory=list)
    findings_count: int = 0

    def add_finding(self, text: str) -> None:
        self.findings_count += 1
        if len(self.findings) < FINDINGS_SHOWN_MAX:
            self.findings.append(text)

    def took(self, seconds: float) -> None:
        self.worst_seconds = max(self.worst_seconds, seconds)
