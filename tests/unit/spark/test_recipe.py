"""What says that a function is the same one: its code and what it uses, not its name."""

import functools
import subprocess
import sys

from mainstem.spark.jobs.recipe import code_digest

MODULE = """
RATE = {rate}
def beside(x):
    {note}
    return x in {{"a", "b", "c"}} and {inner}
def made(rows):
    return [beside(row) * RATE for row in rows]
"""


def _made(rate=2, note="# nothing", inner="1", seed="0"):
    """The digest of the same function, in a process whose sets have another order."""
    text = MODULE.format(rate=rate, note=note, inner=inner)
    text += "from mainstem.spark.jobs.recipe import code_digest\nprint(code_digest(made))"
    command = [sys.executable, "-c", text]
    return subprocess.run(
        command,
        capture_output=True,
        text=True,
        check=True,
        env={"PYTHONHASHSEED": seed, "PYTHONPATH": ":".join(sys.path)},
    ).stdout


def test_a_function_is_the_same_in_every_process_and_another_when_it_is_changed():
    first = _made()
    assert first == _made(seed="7") == _made(note="# a word about it")
    assert len({first, _made(rate=3), _made(inner="2")}) == 3


def test_what_else_can_be_called():
    def add(x, y=1):
        return x + y

    def closed(z):
        return lambda x: x + z

    def endless(x):
        return endless(x)

    found = [code_digest(each) for each in (None, add, functools.partial(add, y=2), functools.partial(add, y=3))]
    found += [code_digest(each) for each in (closed(1), closed(2), endless, lambda x: x, len, _Called())]
    assert len(set(found)) == len(found)
    assert code_digest(closed(1)) == code_digest(closed(1))


class _Called:
    def __call__(self, rows: object) -> object:
        return rows
