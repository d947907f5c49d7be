"""All commands in one application, and what becomes of an error that none of them handles."""

import os
import sys
import traceback
from collections.abc import Sequence
from typing import Any

import typer
import typer.core
import typer.main

from mainstem.cli import (
    access,
    backup,
    bench,
    config,
    demo,
    doctor,
    find,
    groups,
    job,
    quota,
    redrive,
    restore,
    schema,
    serve,
    stream,
    tail,
    token,
    top,
    version,
    write,
)
from mainstem.cli.exits import ExitCode, code_of, explain
from mainstem.cli.flags import spell_out
from mainstem.core.redaction import redacted

DEBUG_VARIABLE = "MAINSTEM_DEBUG"


class _InOrder(typer.core.TyperGroup):
    """Lists the commands in the order of use: first what starts a log, then what works with it."""

    def list_commands(self, ctx: Any) -> list[str]:
        order = (
            *("serve", "demo", "stream", "schema", "write", "tail", "find", "groups", "redrive", "top", "job"),
            *("token", "access", "quota"),
            *("backup", "restore", "doctor", "config", "bench", "version"),
        )
        assert set(order) == set(self.commands)
        return list(order)


app = typer.Typer(
    name="mainstem",
    cls=_InOrder,
    help="A durable, ordered log: serve it, write to it, read it.",
    epilog="Exit codes: 0 done, 1 failed, 2 wrong usage, 3 no such stream, 4 cannot connect, 5 refused, "
    "6 and 7 of doctor: warnings, damage, 130 Ctrl-C.",
    add_completion=False,
    pretty_exceptions_enable=False,
    # Plain help: it fits narrow terminals, and what is copied from it is complete.
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.callback()(version.root)
app.command("serve")(serve.serve)
app.command("demo")(demo.demo)
app.add_typer(stream.app, name="stream")
app.add_typer(schema.app, name="schema")
app.command("write")(write.write)
app.command("tail")(tail.tail)
app.command("find")(find.find)
app.add_typer(groups.app, name="groups")
app.command("redrive")(redrive.redrive)
app.command("top")(top.top)
app.add_typer(job.app, name="job")
app.add_typer(token.app, name="token")
app.add_typer(access.app, name="access")
app.add_typer(quota.app, name="quota")
app.command("backup")(backup.backup)
app.command("restore")(restore.restore)
app.command("doctor")(doctor.doctor)
app.command("config")(config.config)
app.command("bench")(bench.bench)
app.command("version")(version.version)


def run(arguments: Sequence[str]) -> int:
    """Run one command line; the exit code. Errors become one line on standard error."""
    command = typer.main.get_command(app)
    try:
        with command.make_context("mainstem", spell_out(arguments) or ["--help"]) as context:
            code = command.invoke(context)
        _flush_stdout()
        return int(code or ExitCode.OK)
    except typer.Exit as ending:
        return ending.exit_code
    except typer.TyperException as error:
        return _refuse_usage(error)
    except typer.Abort:
        _say("stopped; nothing was done")
        return ExitCode.FAILURE
    except KeyboardInterrupt:
        return ExitCode.INTERRUPTED
    except BrokenPipeError:
        # The reader of a listing has seen enough.
        _close_stdout()
        return ExitCode.OK
    except Exception as error:  # noqa: BLE001  # the last one who can explain it
        if os.environ.get(DEBUG_VARIABLE, "") not in ("", "0"):
            traceback.print_exc()
        _say(explain(error))
        return code_of(error)


def _refuse_usage(error: typer.TyperException) -> ExitCode:
    context = getattr(error, "ctx", None)
    path = "mainstem" if context is None else context.command_path
    text = " ".join(error.format_message().split()).rstrip(".")
    print(redacted(f"{path}: {text}; see {path} --help"), file=sys.stderr)
    return ExitCode.USAGE


def _say(text: str) -> None:
    print(redacted(f"mainstem: {text}"), file=sys.stderr)


def _flush_stdout() -> None:
    try:
        sys.stdout.flush()
    except OSError as error:
        error.filename = "standard output"
        raise


def _close_stdout() -> None:
    """Let go of a pipe nobody reads, so that the interpreter's last flush does not complain."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
