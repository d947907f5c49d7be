"""Epochs: a log that was restored from a backup gives no id again that was given after the backup."""

from mainstem.core.errors import Refused
from mainstem.log.flush import BeginEpoch, Done, Outcome
from mainstem.log.ledger.pending import PendingRows
from mainstem.log.ledger.rules.schemas import SCHEMA_ID_MAX

# Streams that are created after a restore get ids from (epoch << bits) on.
EPOCH_STREAM_BITS = 31
# And schemas.
EPOCH_SCHEMA_BITS = 20


def begin(rows: PendingRows, command: BeginEpoch) -> Outcome:
    before = rows.current.ledger.epoch()
    if command.epoch != before + 1:
        raise Refused(f"the ledger is of epoch {before}; the next is not {command.epoch}")
    rows.changes.epoch = command.epoch
    # What was created after the backup is not in it; producers may still hold the ids, which must stay nobody's.
    rows.changes.stream_id_max = max(rows.current.stream_id_max, command.epoch << EPOCH_STREAM_BITS)
    rows.changes.schema_id_max = max(
        rows.current.schema_id_max, min(command.epoch << EPOCH_SCHEMA_BITS, SCHEMA_ID_MAX >> 1)
    )
    rows.changes.epoch_ends = {key: row.next for key, row in rows.current.written_shards().items()}
    return Done()
