"""The times of a group: what its state machines go by."""

from dataclasses import dataclass

from mainstem.core.errors import InvalidSetting


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupOptions:
    """The times of a group, in seconds: how long a quiet request waits for its answer; how long a member may be silent;
    how long one that lives may keep what it was asked for; how often loads are compared, which are averages of about
    that long."""

    heartbeat: float = 3.0
    # With the time until it is noticed, who was killed is replaced within ten seconds.
    session_timeout: float = 8.0
    revocation_timeout: float = 30.0
    rebalance_interval: float = 30.0

    def __post_init__(self) -> None:
        for name in ("heartbeat", "session_timeout", "revocation_timeout", "rebalance_interval"):
            if not 0.01 <= getattr(self, name) <= 3600:
                raise InvalidSetting(f"{name} of {getattr(self, name)!r} s is out of bounds (10ms to 1h)")
        if self.session_timeout < 2 * self.heartbeat:
            raise InvalidSetting(
                f"session_timeout ({self.session_timeout} s) must be at least twice the heartbeat "
                f"({self.heartbeat} s): one beat may come late"
            )
