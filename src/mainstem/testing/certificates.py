"""Certificates for tests of TLS, made by the `openssl` command.

authority = Authority(tmp_path / "ca")
server = authority.issue("localhost", addresses=["127.0.0.1"])
"""

import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple


class Issued(NamedTuple):
    """A certificate and its key, as files."""

    certificate: Path
    key: Path


def is_possible() -> bool:
    """Whether there is an `openssl` here."""
    return shutil.which("openssl") is not None


class Authority:
    """Signs certificates; `certificate` is its own. One thread."""

    def __init__(self, folder: Path, name: str = "test authority") -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder
        self._issued = 0
        self.certificate, self._key = folder / "ca.crt", folder / "ca.key"
        _openssl(
            *("req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "30"),
            *("-subj", f"/CN={name}", "-keyout", str(self._key), "-out", str(self.certificate)),
            *("-addext", "basicConstraints=critical,CA:TRUE", "-addext", "keyUsage=critical,keyCertSign"),
        )

    def issue(self, name: str, *, addresses: Sequence[str] = ()) -> Issued:
        """A certificate with this common name, for a server at these addresses or for a client."""
        self._issued += 1
        stem = self._folder / f"{self._issued}-{name}"
        made = Issued(stem.with_suffix(".crt"), stem.with_suffix(".key"))
        request, extensions = stem.with_suffix(".csr"), stem.with_suffix(".ext")
        names = ",".join([f"DNS:{name}", *(f"IP:{address}" for address in addresses)])
        extensions.write_text(f"subjectAltName={names}\nbasicConstraints=CA:FALSE\n")
        _openssl(
            *("req", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-subj", f"/CN={name}"),
            *("-keyout", str(made.key), "-out", str(request)),
        )
        _openssl(
            *("x509", "-req", "-in", str(request), "-CA", str(self.certificate), "-CAkey", str(self._key)),
            *("-CAcreateserial", "-days", "30", "-extfile", str(extensions), "-out", str(made.certificate)),
        )
        return made


def _openssl(*arguments: str) -> None:
    done = subprocess.run(["openssl", *arguments], capture_output=True, check=False)  # noqa: S603, S607  # for tests
    assert done.returncode == 0, done.stderr.decode()
