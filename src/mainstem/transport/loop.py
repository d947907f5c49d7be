"""The event loop of a hub's I/O thread."""

import asyncio

import uvloop


def new_loop() -> asyncio.AbstractEventLoop:
    return uvloop.new_event_loop()
