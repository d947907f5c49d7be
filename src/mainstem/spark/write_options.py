"""Options of a write to `format("mainstem")`: what they are called, and what they may be."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from mainstem.core.errors import InvalidSetting
from mainstem.core.limits import DELIVERY_JOB_CHARS_MAX
from mainstem.spark.options import ACCESS_OPTIONS, Options
from mainstem.spark.origin import Access

WRITE_OPTIONS: Final = (*ACCESS_OPTIONS, "transactionId", "transactionVersion", "onReplay")
_VERSION_MAX: Final = (1 << 63) - 1
# What Spark itself adds to the options of a streaming query.
_OF_SPARK: Final = ("checkpointlocation", "queryname")


@dataclass(frozen=True, slots=True)
class WriteOptions:
    """What a write was asked for. `accepts`: what the log has of a delivery is right, whatever comes now. `version`:
    which write of its transaction this is."""

    access: Access
    stream: str
    transaction: str | None
    accepts: bool
    version: int = 0
    # Of a streaming query, as far as it was said with the query and not in Spark's settings.
    checkpoint: str = ""


def write_options(given: Mapping[str, str]) -> WriteOptions:
    """The options of a write; InvalidSetting names the one that is wrong and what it may be."""
    options = Options({name: value for name, value in given.items() if name.lower() not in _OF_SPARK}, WRITE_OPTIONS)
    transaction = options.get("transactionId")
    if transaction is not None and not 1 <= len(transaction) <= DELIVERY_JOB_CHARS_MAX:
        raise InvalidSetting(
            f"option transactionId has 1 to {DELIVERY_JOB_CHARS_MAX} characters, not {len(transaction)}"
        )
    version = options.get("transactionVersion")
    if version is not None and transaction is None:
        raise InvalidSetting("option transactionVersion says which write of a transactionId this is; give that, too")
    return WriteOptions(
        access=options.access(),
        stream=options.stream(),
        transaction=transaction,
        accepts=options.choice("onReplay", ("fail", "accept")) == "accept",
        version=_version(version) if version is not None else 0,
        checkpoint=next((value for name, value in given.items() if name.lower() == "checkpointlocation"), ""),
    )


def _version(value: str) -> int:
    if not (value.isascii() and value.isdigit()) or int(value) > _VERSION_MAX:
        raise InvalidSetting(f"option transactionVersion is a whole number from 0 on, not {value!r}")
    return int(value)
