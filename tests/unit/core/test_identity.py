"""What a process calls itself."""

import os
import sys

import pytest

from mainstem.core.identity import program_name
from mainstem.core.limits import CLIENT_NAME_CHARS_MAX


@pytest.mark.parametrize(
    ("command", "name"),
    [
        (["/usr/bin/billing.py", "--secret"], "billing.py"),
        (["/site-packages/mainstem/__main__.py"], "mainstem"),
        (["-c"], "python"),
        ([""], "python"),
        ([], "python"),
        (["/x/\udcff\n"], r"\udcff\n"),
    ],
)
def test_the_name_of_a_program(monkeypatch, command, name):
    monkeypatch.setattr(sys, "argv", command)
    assert program_name() == f"{name}[{os.getpid()}]"


def test_a_long_name_is_cut_and_keeps_its_number(monkeypatch):
    monkeypatch.setattr(sys, "argv", ["x" * 1_000])
    assert len(program_name()) == CLIENT_NAME_CHARS_MAX
    assert program_name().endswith(f"[{os.getpid()}]")
