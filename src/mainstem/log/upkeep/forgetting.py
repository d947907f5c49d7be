"""Forgetting: transactions that ended long ago, or before many others, are not remembered any more, nor what jobs
delivered that were seen before many others."""

from collections.abc import Iterator
from typing import Final

from mainstem.core.limits import (
    DELIVERY_JOBS_MAX,
    PRODUCER_IDLE_US_MAX,
    TRANSACTION_REMEMBERED_US_MAX,
    TRANSACTIONS_REMEMBERED_MAX,
)
from mainstem.log.flush import ForgetTransactions
from mainstem.log.upkeep.work import Work

# Transactions forgotten in one flush.
_ROWS: Final = 2_000


class Forgetting:
    """Looks for what is too old. One thread."""

    def __init__(self, work: Work) -> None:
        self._work = work

    def forget(self) -> Iterator[None]:
        work = self._work
        now_us = work.clock.now_us()
        too_many_us = work.ledger.transaction_ended_us(TRANSACTIONS_REMEMBERED_MAX)
        before_us = max(now_us - TRANSACTION_REMEMBERED_US_MAX, too_many_us + 1)
        idle_us = now_us - PRODUCER_IDLE_US_MAX
        jobs_us = work.ledger.job_seen_us(DELIVERY_JOBS_MAX) + 1
        while (
            work.ledger.transactions_before(before_us, 1)
            or work.ledger.writers_before(idle_us)
            or work.ledger.job_seen_us(DELIVERY_JOBS_MAX)
        ):
            work.execute(ForgetTransactions(before_us, _ROWS, idle_us, jobs_us))
            yield
