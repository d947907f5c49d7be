"""Pauses: requests that wait because who asks has had its share for now."""

import asyncio

from mainstem.core.errors import ServerStopping


async def pause(seconds: float, stop_begun: asyncio.Event) -> None:
    """Let others have their turn, for so long; ServerStopping if the server stops before that is over: it would wait
    for who waits."""
    if seconds <= 0:
        await asyncio.sleep(0)
        return
    try:
        async with asyncio.timeout(seconds):
            await stop_begun.wait()
    except TimeoutError:
        return
    raise ServerStopping("the server is stopping; nothing was done")
