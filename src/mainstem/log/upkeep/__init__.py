"""The upkeep of a log, beside its commits: what is too old goes, what is scattered is put together, space comes back.

Everything here is done by commands of a flush, so that a replay comes to the same ledger. One thread works through
rounds of small steps and rests after each, so that those who write and read keep most of the machine; a step that was
cut short by the end of the process is simply done again.

    trim      the start of a shard moves behind what its stream's retention lets go; readers notice at once
    drop      rows below the start go, some hundreds at a time; their bytes are dead
    merge     runs of tiny entries become one (`merger`)
    compact   of every key only the newest record stays (`compaction`)
    rewrite   what is alive in a block that is mostly dead, or holds what should be off the disk by now, moves elsewhere
    free      the file of a block in which nothing is alive goes, ten minutes later

A block is needed by readers as long as an entry points into it, by a reader that has just looked an entry up for a
moment longer, and by a rebuild of the ledger until both kept snapshots are beyond it.
"""

from mainstem.log.upkeep.pace import Pace
from mainstem.log.upkeep.upkeep import Upkeep

__all__ = ["Pace", "Upkeep"]
