"""`mainstem find`: the records of a stream that match, and nothing else."""

import sys
from typing import Annotated

import typer

from mainstem.cli import hubs
from mainstem.cli.columns import ColumnsOption, check_columnar, column_names, column_writer, tell_undecoded
from mainstem.cli.exits import ExitCode
from mainstem.cli.flags import with_settings
from mainstem.cli.hubs import Data
from mainstem.cli.printing import counted
from mainstem.core.names import check_stream_name
from mainstem.core.settings import Loaded


@with_settings("find")
def find(
    loaded: Loaded,
    name: Annotated[str, typer.Argument(metavar="STREAM", help="The stream to look in.")],
    where: Annotated[str, typer.Argument(metavar="WHERE", help='A SQL expression, as in "id = 7".')],
    limit: Annotated[
        int | None, typer.Option("--limit", "-n", metavar="COUNT", min=1, help="Stop after so many records.")
    ] = None,
    columns: ColumnsOption = None,
    output: Annotated[
        str, typer.Option(metavar="table|json|csv|arrow|avro", help="table: for people; json: a row a line.")
    ] = "table",
    data: Data = None,
) -> int:
    """Find the records of a stream for which an expression is true.

    Batches in which nothing can match are not read: an equality on the key or on an indexed column takes milliseconds.
    How many batches were opened and skipped stands on standard error. The exit code is 0 also if nothing was found, and
    1 if records were left out because they could not be read: how many and why is said, too.
    """
    check_stream_name(name, reserved=True)
    if output != "json":
        check_columnar(output, ("json",))
    wanted = column_names("--columns", columns)
    with hubs.reading(loaded, data) as hub:
        found = hub.find(name, where, limit=limit, columns=wanted)
    table = found.to_arrow()
    if output == "json":
        from mainstem.registry import formats

        for piece in formats.ndjson_pieces(table):
            sys.stdout.buffer.write(piece)
        sys.stdout.buffer.flush()
    else:
        with column_writer(output, table.schema) as writer:
            for batch in table.to_batches():
                writer.write(batch)
    print(
        f"{counted(len(found), 'record')}; opened {counted(found.opened, 'batch')}, skipped {found.skipped:,}, in "
        f"{found.seconds * 1000:.1f} ms".replace("batchs", "batches"),
        file=sys.stderr,
    )
    is_short = tell_undecoded(found.undecoded, name, found.why_undecoded)
    return ExitCode.FAILURE if is_short else ExitCode.OK
