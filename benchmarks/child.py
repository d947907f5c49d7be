"""The other end of ``harness.Child``: ``python -m benchmarks.child module:function``, arguments on standard input."""

from __future__ import annotations

import gc
import importlib
import json
import os
import sys
import traceback
from typing import Any


def main() -> None:
    module, _, function = sys.argv[1].partition(":")
    talk = Talk()
    arguments = talk.hear()
    try:
        result = getattr(importlib.import_module(module), function)(talk, **arguments)
        # Not before: a function decides itself what its process has imported when it is measured.
        for end in importlib.import_module("benchmarks.harness").AT_END:
            end()
    except BaseException as error:
        traceback.print_exc()
        talk.say("error", text=f"{type(error).__name__}: {error}")
        sys.exit(1)
    talk.say("result", **(result or {}))
    # A client library that hangs while the interpreter ends must not hold up the next run.
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


class Talk:
    """What a child function uses to speak with its parent."""

    def __init__(self) -> None:
        # Standard output belongs to the conversation; whatever else prints goes to standard error.
        self._out = os.fdopen(os.dup(1), "w", buffering=1)
        os.dup2(2, 1)

    def say(self, event: str, **fields: Any) -> None:
        self._out.write(json.dumps({"event": event, **fields}) + "\n")
        self._out.flush()

    def hear(self) -> dict[str, Any]:
        message: dict[str, Any] = json.loads(sys.stdin.readline())
        return message


def settle() -> None:
    """Put what exists before a timed loop out of the garbage collector's sight; the same for us and for the peers."""
    gc.collect()
    gc.freeze()


if __name__ == "__main__":
    main()
