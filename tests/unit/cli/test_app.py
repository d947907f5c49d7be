"""The application: quick to answer, complete, and with one line for every error."""

import subprocess
import sys

import pytest
import typer.main

from mainstem.cli.app import app
from mainstem.cli.exits import ExitCode, Failure, UsageProblem, code_of, explain
from mainstem.cli.flags import spell_out
from mainstem.core.errors import BY_CODE
from mainstem.core.settings import for_command

COMMANDS = typer.main.get_group(app).commands


def test_help_loads_nothing_heavy():
    code = (
        "import sys; from mainstem.cli.app import run; run(['--help']);"
        "heavy = {'pyarrow', 'numpy', 'apsw', 'uvloop', 'rich', 'asyncio'} & set(sys.modules);"
        "sys.exit(str(heavy or ''))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert done.stderr.strip() == ""
    assert "Commands:" in done.stdout


def test_a_client_command_does_not_load_the_server():
    """It gets as far as a hub does where nobody listens."""
    code = (
        "import sys; from mainstem.cli import app, hubs; hubs.CONNECT_SECONDS = 0.05;"
        "app.run(['tail', 'orders', '--url', 'mainstem://127.0.0.1:1']);"
        "print([name for name in sys.modules if name.startswith(('mainstem.server', 'mainstem.log.'))])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert "start one with: mainstem serve" in done.stderr
    assert done.stdout == "[]\n"


@pytest.mark.parametrize("command", ["serve", "demo", "write", "tail", "bench"])
def test_every_setting_of_a_command_is_a_flag(command):
    flags = {flag for parameter in COMMANDS[command].params for flag in parameter.opts}
    assert {setting.flag for setting in for_command(command)} | {"--config"} <= flags


@pytest.mark.parametrize("kind", BY_CODE.values(), ids=lambda kind: kind.__name__)
def test_every_error_has_an_exit_code_and_one_line(kind):
    error = kind("it\nhappened.")
    error.add_note("mainstem://somewhere:1")
    assert code_of(error) in set(ExitCode) - {0, 130, 143}
    line = explain(error)
    assert line.startswith("it happened [mainstem://somewhere:1]")
    assert "\n" not in line


CODES = {
    "UnknownStream": 3,
    "StreamDeleted": 3,
    "ConnectionLost": 4,
    "ServerStopping": 4,
    "DeadlineExceeded": 4,
    "StreamExists": 5,
    "ReadOnly": 5,
    "FolderLocked": 5,
    "FolderUnusable": 5,
    "InvalidSetting": 2,
    "InvalidName": 2,
    "InvalidCursor": 2,
    "InvalidRecord": 1,
    "RecordTooLarge": 1,
    "DataLoss": 1,
    "InternalError": 1,
}


@pytest.mark.parametrize("name", CODES)
def test_codes_that_scripts_rely_on(name):
    (kind,) = [kind for kind in BY_CODE.values() if kind.__name__ == name]
    assert code_of(kind("x")) == CODES[name]


def test_other_errors():
    assert code_of(UsageProblem("x")) == 2
    assert code_of(Failure("x")) == 1
    assert explain(KeyError("x")) == "KeyError: 'x'; this is a bug, please report it (MAINSTEM_DEBUG=1 shows more)"


def test_a_switch_may_stand_alone():
    assert spell_out(["serve", "--auto-create"]) == ["serve", "--auto-create=true"]
    assert spell_out(["serve", "--auto-create", "--data", "x"]) == ["serve", "--auto-create=true", "--data", "x"]
    assert spell_out(["serve", "--auto-create", "off"]) == ["serve", "--auto-create", "off"]
