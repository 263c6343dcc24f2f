"""A thread for blocking work: order, errors, cancellation, its end."""

from __future__ import annotations

import asyncio
import gc
import subprocess
import sys
import threading
import weakref

import pytest

from magnetar.base.executor import ThreadExecutor


async def test_calls_run_in_order_on_one_named_thread() -> None:
    executor, seen = ThreadExecutor("side"), []

    def work(number: int) -> str:
        seen.append(number)
        return threading.current_thread().name

    answers = await asyncio.gather(*(executor.run(work, number) for number in range(50)))
    executor.close()
    assert (seen, set(answers)) == (list(range(50)), {"side"})


async def test_what_a_call_raises_is_raised_to_its_caller_and_others_go_on() -> None:
    executor = ThreadExecutor("side")
    with pytest.raises(ZeroDivisionError):
        await executor.run(divmod, 1, 0)
    assert await executor.run(divmod, 7, 2) == (3, 1)
    executor.close()


async def test_a_call_that_is_cancelled_before_its_turn_is_not_made() -> None:
    executor, go, made = ThreadExecutor("side"), threading.Event(), []
    first = asyncio.ensure_future(executor.run(go.wait))
    second = asyncio.ensure_future(executor.run(made.append, 2))
    await asyncio.sleep(0)
    second.cancel()
    with pytest.raises(asyncio.CancelledError):
        await second
    go.set()
    await first
    await executor.run(made.append, 3)
    executor.close()
    assert made == [3]


async def test_closing_waits_for_what_was_submitted_and_refuses_what_comes() -> None:
    executor, go, made = ThreadExecutor("side"), threading.Event(), []
    running = [asyncio.ensure_future(executor.run(work)) for work in (go.wait, lambda: made.append(1))]
    await asyncio.sleep(0)
    threading.Timer(0.01, go.set).start()
    executor.close()
    assert made == [1]
    await asyncio.gather(*running)
    with pytest.raises(RuntimeError, match="the thread side has ended"):
        await executor.run(made.append, 2)
    executor.close()


async def test_a_result_is_not_kept_until_the_next_call() -> None:
    executor = ThreadExecutor("side")
    result = object()
    before = sys.getrefcount(result)
    assert await executor.run(lambda: result) is result
    await executor.run(int)
    assert sys.getrefcount(result) == before
    executor.close()


def test_a_process_ends_although_nobody_closed_it() -> None:
    program = "import asyncio; from magnetar.base.executor import ThreadExecutor; e = ThreadExecutor('side'); asyncio.run(e.run(int))"
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)


async def test_an_error_is_freed_without_a_collection_of_garbage() -> None:
    class Failed(Exception):
        pass

    def fail() -> None:
        raise Failed

    executor, seen = ThreadExecutor("side"), []
    gc.collect()
    gc.disable()
    try:
        for _ in range(3):
            try:
                await executor.run(fail)
            except Failed as error:
                seen.append(weakref.ref(error))
        await executor.run(int)
        assert [error() for error in seen] == [None, None, None]
    finally:
        gc.enable()
        executor.close()
