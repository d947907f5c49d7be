"""What the commands `mainstem job run NAME` share: the options of every job, Spark started for it, its result shown."""

import inspect
import logging
import sys
from collections.abc import Callable
from typing import Annotated, Any, Final

import typer

from mainstem.cli import hubs
from mainstem.cli.exits import UsageProblem
from mainstem.cli.flags import Command, with_settings
from mainstem.cli.hubs import Data, Json
from mainstem.cli.progress import job_progress
from mainstem.core.settings import Loaded
from mainstem.spark.session import log_no_task_errors, was_interrupt

_Master = Annotated[
    str | None, typer.Option(metavar="URL", help="Where Spark runs, such as spark://host:7077; here if not said.")
]
_OF_EVERY_JOB: Final = (("master", _Master, None), ("data", Data, None), ("json", Json, False))

# What every job is given: where the log is and how to get at it, Spark, and what to call with its steps.
Given = dict[str, Any]


def job_command(show: Callable[[Any, bool], int | None]) -> Callable[[Callable[..., Any]], Command]:
    """Make a command of a function that runs a job with what it is `Given`, and with its own arguments and options.

    The command has the settings and options of every job as well. Spark is started for the function, and what it
    returns is given to `show`, with whether JSON is wanted, which says the exit code.
    """

    def decorate(function: Callable[..., Any]) -> Command:
        _, *own = inspect.signature(function).parameters.values()

        def called(loaded: Loaded, master: str | None, data: str | None, json: bool, **chosen: Any) -> int | None:
            return show(_run(function, loaded, data, master, chosen), json)

        loaded_first = inspect.Parameter("loaded", inspect.Parameter.POSITIONAL_OR_KEYWORD, annotation=Loaded)
        common = [
            inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=kind)
            for name, kind, default in _OF_EVERY_JOB
        ]
        called.__signature__ = inspect.Signature([loaded_first, *own, *common])  # type: ignore[attr-defined]
        called.__name__ = function.__name__
        called.__doc__ = function.__doc__
        return with_settings("job")(called)

    return decorate


def _run(
    function: Callable[..., Any], loaded: Loaded, data: str | None, master: str | None, chosen: dict[str, Any]
) -> Any:
    """Start Spark for a job and do its work."""
    if data is not None and loaded.origins["url"].startswith("flag"):
        raise UsageProblem("--url and --data name two logs; give one of them")
    hubs.log_as_told(loaded)
    log_no_task_errors()
    source = hubs.source_options(loaded, data)
    name = function.__name__
    with hubs.noted(source["hub"]), job_progress(name) as on_step:
        on_step("start", 0, 1)
        given: Given = {"hub": source["hub"], "on_step": on_step}
        given |= {"token_file": source.get("tokenFile"), "ca": source.get("ca")}
        given |= {"certificate": source.get("certificate"), "certificate_key": source.get("certificateKey")}
        if master is not None:
            from mainstem.spark import session

            given["spark"] = session(f"mainstem job {name}", master)
        try:
            return function(given, **chosen)
        except BaseException as error:
            # What tidies up behind an interrupt may find Spark gone, and say only that.
            if not was_interrupt(error):
                raise
            print(
                f"mainstem: {name} was interrupted; run the same command again, and it goes on where it stopped",
                file=sys.stderr,
            )
            # What threads have to say that find Spark gone helps nobody.
            logging.disable()
            raise KeyboardInterrupt from None
