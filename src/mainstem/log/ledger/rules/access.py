"""Access: rows that say who may do what. Their meaning is the business of who wrote them."""

from mainstem.core.errors import InvalidRequest
from mainstem.core.limits import ACCESS_ROW_BYTES_MAX, ACCESS_ROWS_MAX
from mainstem.log.flush import ChangeAccess, Done, Outcome
from mainstem.log.ledger.pending import PendingRows


def change(rows: PendingRows, command: ChangeAccess) -> Outcome:
    changed = {(kind, name): value or None for kind, name, value in command.rows}
    if any(len(name) + len(value or b"") > ACCESS_ROW_BYTES_MAX for (_, name), value in changed.items()):
        raise InvalidRequest(f"a token, rule or quota has at most {ACCESS_ROW_BYTES_MAX} bytes")
    pending = {**rows.changes.access, **changed}
    known = rows.current.access_rows()
    count = len(known) + sum((value is not None) - (key in known) for key, value in pending.items())
    if count > ACCESS_ROWS_MAX:
        raise InvalidRequest(f"there are {ACCESS_ROWS_MAX} tokens, rules and quotas, which is the limit")
    rows.changes.access = pending
    return Done()
