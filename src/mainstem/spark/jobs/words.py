"""What errors say that can be done about them, in the words of a job: it has no consumer that could be called again,
and no checkpoint."""

import contextlib
from collections.abc import Iterator
from typing import Final

from mainstem.core.errors import DataLoss, DeliveryRefused, UndecodedRecords
from mainstem.spark.jobs.history import GO_ON

# What is said elsewhere, and what there is instead of it here.
_SAID_HERE: Final = {
    "reading goes on after them if you call the consumer again": GO_ON,
    "reading goes on after it if you call the consumer again, or opens with on_bad='skip'": (
        "run the job with on_bad='skip' (--on-bad skip) to go on after it"
    ),
    "its checkpoint was set back, or its query": "its manifests were lost, or its query or function",
    "Its checkpoint was set back": "Its manifests are of an earlier state",
    "begin a new checkpoint where the stream's rows end, or say that what the log has is right (Spark: option "
    'onReplay="accept")': "give the replay another name (--name): it then delivers all of its range, also what the "
    "stream has of it",
}


@contextlib.contextmanager
def in_words_of_jobs() -> Iterator[None]:
    """Of what is raised here."""
    try:
        yield
    except (DataLoss, UndecodedRecords) as error:
        raise type(error)(_said(error), **error.facts()) from error.__cause__
    except DeliveryRefused as error:
        raise DeliveryRefused(_said(error)) from error.__cause__


def _said(error: Exception) -> str:
    text = str(error)
    for elsewhere, here in _SAID_HERE.items():
        text = text.replace(elsewhere, here)
    return text
