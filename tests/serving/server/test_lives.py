"""Requests end and blocks come back, whatever clients, clocks and steps do."""

from __future__ import annotations

import random
import threading
import time

import httpx
import openai
import pytest

from tests.serving.server.conftest import PATIENCE, serving

SLOW = dict(model="tiny", prompt="x", max_tokens=90, temperature=0)


def slowed(found, seconds: float = 0.1) -> None:
    """Each step takes so long at least: ninety of them longer than a test has to wait."""
    step = found.engine.step
    found.engine.step = lambda *only: (time.sleep(seconds), step(*only))[1]


def test_a_client_that_leaves_a_stream_frees_its_blocks():
    with serving() as found:
        slowed(found)
        with httpx.stream(
            "POST", f"{found.url}/v1/completions", json={**SLOW, "stream": True}, timeout=PATIENCE
        ) as response:
            lines = response.iter_lines()
            next(lines)
            assert found.metric("braze_running") == 1
        assert found.ended("abort", 1)
        assert found.settled()


def test_a_client_that_leaves_without_a_stream_frees_its_blocks():
    with serving() as found:
        slowed(found)
        with pytest.raises(httpx.ReadTimeout):
            httpx.post(f"{found.url}/v1/completions", json=SLOW, timeout=httpx.Timeout(PATIENCE, read=0.3))
        assert found.ended("abort", 1)
        assert found.settled()


def test_a_request_has_its_seconds():
    with serving(request_seconds=0.3) as found:
        slowed(found)
        answer = httpx.post(f"{found.url}/v1/completions", json=SLOW, timeout=PATIENCE)
        assert answer.status_code == 504
        assert "0.3 seconds" in answer.json()["error"]["message"]
        assert found.settled()
        lines = httpx.post(
            f"{found.url}/v1/completions", json={**SLOW, "stream": True}, timeout=PATIENCE
        ).text
        assert "0.3 seconds" in lines.strip().splitlines()[-1]
        assert found.settled()


def test_more_than_may_be_served_are_told_to_come_again():
    with serving(most_requests=1) as found:
        slowed(found)
        with httpx.stream(
            "POST", f"{found.url}/v1/completions", json={**SLOW, "stream": True}, timeout=PATIENCE
        ) as response:
            lines = response.iter_lines()
            next(lines)
            with pytest.raises(openai.RateLimitError):
                found.client().completions.create(**SLOW)
        assert found.settled()
        assert found.client().completions.create(**{**SLOW, "max_tokens": 2}).choices


def test_more_than_may_wait_are_told_to_come_again():
    with serving(limits=dict(max_waiting=1)) as found:
        answer = httpx.post(
            f"{found.url}/v1/completions", json={**SLOW, "prompt": ["x"] * 30}, timeout=PATIENCE
        )
        assert answer.status_code == 429
        assert found.settled()


def test_what_is_being_served_ends_before_the_server_does():
    with serving() as found:
        slowed(found, 0.01)
        answers = []
        client = found.client()
        thread = threading.Thread(
            target=lambda: answers.append(client.completions.create(**{**SLOW, "max_tokens": 60}))
        )
        thread.start()
        while not found.engine.scheduler.running:
            time.sleep(0.01)
        found.uvicorn.should_exit = True
        thread.join(PATIENCE)
    assert answers[0].usage.completion_tokens == 60
    assert found.engine.scheduler.pool.used == 0


@pytest.mark.parametrize("stream", [False, True])
def test_a_step_that_fails_ends_its_requests_and_no_others(stream):
    with serving() as found:
        step, failing = found.engine.step, [True]

        def failed(*only):
            if failing:
                failing.pop()
                raise RuntimeError("the device is on fire")
            return step(*only)

        found.engine.step = failed
        answer = httpx.post(f"{found.url}/v1/completions", json={**SLOW, "stream": stream}, timeout=PATIENCE)
        assert answer.status_code == (200 if stream else 500)
        assert "the device is on fire" in answer.text
        assert "BZ7504" in answer.text
        assert found.settled()
        assert found.client().completions.create(**{**SLOW, "max_tokens": 3}).usage.completion_tokens == 3


def test_steps_that_go_on_failing_make_the_server_unhealthy():
    with serving() as found:

        def failed(*only):
            raise RuntimeError("broken")

        found.engine.step = failed
        for _ in range(3):
            assert httpx.get(f"{found.url}/health", timeout=PATIENCE).status_code == 200
            assert httpx.post(f"{found.url}/v1/completions", json=SLOW, timeout=PATIENCE).status_code == 500
        assert httpx.get(f"{found.url}/health", timeout=PATIENCE).status_code == 503


def test_sixty_four_streams_with_clients_that_are_killed_leave_nothing_behind():
    numbers = random.Random(0)
    plans = [(numbers.randint(1, 20), numbers.randint(5, 60), numbers.random() < 0.4) for _ in range(64)]
    with serving(blocks=60) as found:
        whole: list[int] = []

        def one(size: int, count: int, killed: bool) -> None:
            body = dict(model="tiny", prompt="y" * size, max_tokens=count, stream=True)
            with httpx.stream("POST", f"{found.url}/v1/completions", json=body, timeout=PATIENCE) as response:
                lines = 0
                for line in response.iter_lines():
                    lines += line.startswith("data: {")
                    if killed and lines > count // 2:
                        return
                whole.append(lines - count)

        threads = [threading.Thread(target=one, args=plan) for plan in plans]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(PATIENCE)
        assert whole == [0] * sum(not killed for *_, killed in plans), (
            "each token came in an event of its own"
        )
        assert found.settled()
        assert found.server.open == 0
