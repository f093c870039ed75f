"""A server that records what requests asked for while it has nothing to do."""

from __future__ import annotations

import dataclasses

import pytest

pytest.importorskip("fastapi")
pytest.importorskip("prometheus_client")

from braze.serving.engine.loading import write_random
from braze.serving.engine.sampling import SamplingParams
from braze.serving.policy.sizes import read_traffic, refuse_unwritable
from braze.serving.server.launch import LaunchOptions, make_engine
from braze.serving.server.loop import Delta, EngineLoop
from braze.support import log
from braze.support.errors import UserError
from tests.serving.engine.tiny import LLAMA, engine, tiny
from tests.serving.server.conftest import serving, soon

LAZY = dict(cudagraph_mode="FULL_DECODE_ONLY", capture="lazy")


def ask(client, tokens: int = 5) -> str:
    return (
        client.completions.create(model="tiny", prompt=[3, 4, 5], max_tokens=tokens, temperature=0)
        .choices[0]
        .text
    )


def test_sizes_are_recorded_between_requests_and_the_metrics_tell(simulated):
    with serving() as plain:
        wanted = ask(plain.client())
        assert plain.metric("braze_recordings") == 0
    with serving(graphs=simulated, engine_options=LAZY) as running:
        assert ask(running.client()) == wanted
        assert soon(lambda: running.metric("braze_recordings") == 1)
        assert running.metric("braze_recordings_bytes") > 0
        before = running.metric('braze_steps_total{mode="full"}')
        assert ask(running.client()) == wanted
        assert running.metric('braze_steps_total{mode="full"}') == before + 4


def test_an_error_while_recording_ends_no_request(simulated):
    """From then on nothing more is recorded."""
    served = engine(tiny(), graphs=simulated, **LAZY)
    tried: list[int] = []

    def idle():
        tried.append(1)
        raise ValueError("of the model's own")

    served.idle = idle
    found: list[Delta] = []
    loop = EngineLoop(served).start()
    for _ in range(2):
        loop.submit([3, 4], SamplingParams(2), found.append)
        assert soon(lambda: bool(found) and found[-1].ended is not None)
        found.clear()
    assert loop.healthy
    loop.close()
    assert tried == [1]


@pytest.fixture
def folder(tmp_path):
    """A folder of a tiny model."""
    return write_random(tmp_path / "model", LLAMA)


def test_a_server_is_made_with_what_is_asked_for(folder):
    options = LaunchOptions(
        device="cpu", max_model_len=32, blocks=20, sizes=(1, 2), simulated=True, plain=True
    )
    lazy = make_engine(folder, dataclasses.replace(options, capture="lazy", memory_budget="1GiB"))
    assert lazy.runner.graphs == {}
    assert (lazy.runner.options.capture, lazy.runner.recordings.budget) == ("lazy", 1 << 30)
    assert make_engine(folder, options).runner.graphs


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        (dict(mode="PIECEWISE"), "BZ7102"),
        (dict(sizes="traffic:/there/is/none"), "BZ7109"),
        (dict(sizes="often"), "BZ7411"),
        (dict(sizes=(1 << 20,)), "BZ7105"),
    ],
    ids=str,
)
def test_recordings_that_cannot_be_are_refused(folder, changes, code):
    """The pieces of a model that is not compiled, and sizes that mean nothing or fit nowhere."""
    options = LaunchOptions(device="cpu", max_model_len=32, blocks=20, simulated=True, plain=True)
    with pytest.raises(UserError) as error:
        make_engine(folder, dataclasses.replace(options, **changes))
    assert error.value.code == code


def test_what_is_asked_for_on_a_device_that_cannot_record_is_told_of(folder):
    told: list[str] = []
    with log.listen(told.append):
        engine = make_engine(folder, LaunchOptions(device="cpu", max_model_len=32, blocks=20, mode="FULL"))
    assert [line for line in told if line.startswith("BZ7410: FULL records nothing: cpu cannot")]
    assert engine.runner.graphs == {}


def test_how_large_steps_were_is_written_at_the_end(tmp_path):
    """And stays what it was where a file of an earlier end is named and this one has not come."""
    file = tmp_path / "traffic"
    with serving(traffic=str(file)) as running:
        running.client().completions.create(model="tiny", prompt="ab", max_tokens=4)
        assert not file.exists()
    assert read_traffic(file)[1] == 3
    assert read_traffic(file)[2] == 1
    refuse_unwritable(file)
    assert read_traffic(file)[1] == 3
    with pytest.raises(UserError, match="BZ7109"):
        refuse_unwritable(tmp_path / "none" / "traffic")
