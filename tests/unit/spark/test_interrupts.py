"""Ctrl-C while Spark works: what comes of it is told apart from what else goes wrong."""

import logging

from mainstem.spark.session import _is_worth_a_line, was_interrupt


def line_about(error: BaseException) -> logging.LogRecord:
    return logging.LogRecord("py4j", logging.ERROR, "", 0, "went wrong", None, (type(error), error, None))


def test_what_tidies_up_behind_an_interrupt_and_fails_came_of_it():
    try:
        try:
            raise KeyboardInterrupt
        finally:
            raise ConnectionError("Answer from Java side is empty")
    except ConnectionError as failed:
        error = failed
    assert was_interrupt(error)
    assert not _is_worth_a_line(line_about(error))


def test_other_errors_are_told():
    error = ConnectionError("Answer from Java side is empty")
    assert not was_interrupt(error)
    assert _is_worth_a_line(line_about(error))
    assert _is_worth_a_line(logging.LogRecord("py4j", logging.ERROR, "", 0, "went wrong", None, None))
