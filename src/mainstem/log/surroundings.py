"""What surrounds a data folder: the disk it is on, and the process that writes it. Only looked at, never touched."""

import os
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from mainstem.log.folder import LOCK_NOTE

# Kinds of file systems that several machines may have at once.
_OF_NETWORKS: Final = frozenset(
    (
        *("nfs", "nfs4", "cifs", "smb3", "smbfs", "9p", "virtiofs", "afs", "ceph", "glusterfs", "lustre", "gpfs"),
        *("beegfs", "gfs2", "ocfs2", "fuse.sshfs", "fuse.ceph", "fuse.ceph-fuse", "fuse.glusterfs"),
    )
)


@dataclass(frozen=True, slots=True)
class Surroundings:
    """As of one moment. `file_system` is empty and `writer` None where the system does not tell."""

    free_bytes: int
    total_bytes: int
    file_system: str
    # A folder among the temporary ones is meant to go.
    is_temporary: bool
    writer: int | None

    @classmethod
    def of(cls, folder: Path) -> "Surroundings":
        stat = os.statvfs(folder)
        is_temporary = folder.resolve().is_relative_to(Path(tempfile.gettempdir()).resolve())
        return cls(
            stat.f_bavail * stat.f_frsize,
            stat.f_blocks * stat.f_frsize,
            _file_system(folder.resolve()),
            is_temporary,
            _writer(folder),
        )


def is_on_network(folder: Path) -> bool:
    """Whether other machines may have this folder, too: SQLite's shared memory is not shared with them, so that who
    reads the ledger here may not see what is written there."""
    return is_of_network(_file_system(folder.resolve()))


def is_of_network(file_system: str) -> bool:
    return file_system in _OF_NETWORKS


def _file_system(folder: Path) -> str:
    """The kind of file system, as in `ext4`, from the longest mount point above the folder."""
    found, kind = 0, ""
    for line in _lines("/proc/self/mountinfo"):
        before, _, after = line.partition(" - ")
        mount = before.split()[4].encode().decode("unicode_escape") if len(before.split()) > 4 else ""
        if mount and folder.is_relative_to(mount) and len(mount) >= found:
            found, kind = len(mount), after.split()[0] if after else ""
    return kind


def _writer(folder: Path) -> int | None:
    """The process that holds the folder's lock. Nothing is locked to find out: a writer that starts could meet it."""
    try:
        note = (folder / LOCK_NOTE).read_text(errors="replace").partition("\n")[0]
        process = int(note.removeprefix("process ").strip())
    except (OSError, ValueError):
        return None
    inode = folder.stat().st_ino
    try:
        locks = Path("/proc/locks").read_text(errors="replace").splitlines()
    except OSError:
        return process if _is_alive(process) else None
    # 3: FLOCK  ADVISORY  WRITE 19873 fe:00:10092856 0 EOF
    held = (fields for line in locks if len(fields := line.split()) > 5 and fields[1] == "FLOCK")
    is_held = any(fields[4] == str(process) and fields[5].endswith(f":{inode}") for fields in held)
    return process if is_held else None


def _is_alive(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True
    return True


def _lines(path: str) -> list[str]:
    try:
        return Path(path).read_text(errors="replace").splitlines()
    except OSError:
        return []
