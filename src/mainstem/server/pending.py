"""An append on its way through the server: what was found of its batches, and what its client hears."""

from mainstem.core.batch import Batch, BatchHeader
from mainstem.core.errors import MainstemError
from mainstem.core.limits import ERROR_TEXT_CHARS_MAX, ERROR_TEXTS_CHARS_MAX
from mainstem.transport.sharing import CommitTransactionCall, Staging
from mainstem.transport.wire import WireError, wire_error


class PendingAppend:
    """An append request: which batches were refused at the door, which wait for their flush."""

    __slots__ = (
        "acknowledge",
        "admitted",
        "commit",
        "deadline",
        "errors",
        "id",
        "patience",
        "places",
        "size",
        "staging",
        "total",
    )

    def __init__(
        self,
        id_: int,
        acknowledge: bool,
        total: int,
        deadline: float,
        patience: float = 0.0,
        staging: Staging | None = None,
        commit: CommitTransactionCall | None = None,
    ) -> None:
        self.id = id_
        # Which part of a transaction it is, if it is one; and its commit, if it is all of one.
        self.staging = staging
        self.commit = commit
        self.acknowledge = acknowledge
        self.total = total
        self.deadline = deadline
        # Until when it may wait for room on the disk: the client should hear the reason before it gives up.
        self.patience = patience
        self.admitted: list[Batch] = []
        self.places: list[int] = []
        self.errors: dict[int, MainstemError] = {}
        self.size = 0

    def take(self, index: int, header: BatchHeader, admitted: Batch | MainstemError) -> None:
        """What was found of the batch at this place."""
        if isinstance(admitted, MainstemError):
            self.errors[index] = admitted
        else:
            self.admitted.append(admitted)
            self.places.append(index)
            self.size += header.stored_len


def wire_errors(errors: dict[int, MainstemError]) -> dict[int, WireError]:
    """The errors of one request. If they are many their texts are short, so that the answer is not too long."""
    chars_max = min(ERROR_TEXT_CHARS_MAX, ERROR_TEXTS_CHARS_MAX // len(errors))
    return {index: wire_error(error, chars_max) for index, error in errors.items()}
