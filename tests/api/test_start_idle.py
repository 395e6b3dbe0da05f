"""What a daemon costs: until it is ready, at rest, and per token on the way to the client. The figures are printed; the bounds are loose
where they are about speed, and the promised ones where they are about memory and idle work."""
import os
import statistics
import time

import pytest

from conftest import Daemon, program
from daemon_kit import SLOW, Wire, anonymous_bytes, cpu_seconds, get, is_delta

pytestmark = pytest.mark.timing
CELL = 34 / 32  # bytes of a q8_0 value, and the default model's values per token: 30 layers, 3 heads of 64, keys and values
TOKEN_BYTES = 30 * 3 * 64 * 2 * CELL
PINNED_BYTES = 30 * 3 * 64 * 2 * 2


@pytest.fixture(scope='module')
def own(tmp_path_factory, model):
    d = Daemon(program('RUNNELD'), model, tmp_path_factory.mktemp('idle') / 'state')
    yield d
    if d.process.poll() is None:
        assert d.stop() == 0, ''.join(d.log)


def test_ready_soon(tmp_path, model):
    times = []
    for i in range(3):
        d = Daemon(program('RUNNELD'), model, tmp_path / 'state')
        status, body = get(d, '/ready')
        assert status == 200 and body['ready'] is True and body['model'] and body['device'] and body['fingerprint']
        assert get(d, '/health')[0] == 200
        times.append(d.ready_s)
        assert d.stop() == 0
    print('ready after', ', '.join(f'{t * 1000:.0f} ms' for t in times))
    assert min(times) < 3


def pages(tokens):
    return -(-tokens // 64) * 64


def test_memory_beyond_weights_and_kv(own, model):
    """The weights are in memory once, as large as in the file; its vocabulary and header (2 MB) count as ours."""
    if 'smollm2-135m' not in os.path.basename(model).lower():
        pytest.skip('the sizes are those of SmolLM2-135M')
    weights = os.path.getsize(model) - 2_000_000
    pid = own.process.pid
    idle = anonymous_bytes(pid) - weights
    with Wire(own) as wire:
        for i in range(2):
            response = wire.ask('The old harbour had twelve boats. ' * 60, max_output_tokens=40, runnel={'ignore_eos': True})
        tokens = get(own, '/runnel/sessions/' + response['runnel']['session'])[1]['tokens']
    kv = 2 * (pages(tokens) * TOKEN_BYTES + pages(response['runnel']['context']['pinned']) * PINNED_BYTES)
    used = anonymous_bytes(pid) - weights - kv
    print(f'beyond weights: {idle / 1e6:.1f} MB at start; beyond weights and {kv / 1e6:.1f} MB of KV: {used / 1e6:.1f} MB after two answers')
    assert idle <= 48e6 and used <= 48e6


def test_from_the_engine_to_the_client(own):
    """Time to the first token as the client sees it, less what the record says the engine needed: both ways through the daemon."""
    extra = []
    with Wire(own) as wire:
        wire.ask('Hello.', max_output_tokens=1)
        for i in range(40):
            sent = time.perf_counter()
            wire.create('Hello.', max_output_tokens=1, store=False)
            wire.until(lambda lane, e: is_delta(e))
            seen = time.perf_counter() - sent
            ended = wire.finish(None)[0][-1]['response']['runnel']['timings']
            extra.append(seen * 1000 - ended['ttft_ms'])
    print(f'request and first token on their way: {statistics.median(extra):.2f} ms median')
    assert statistics.median(extra) < 50


def test_idle_costs_nothing(own):
    with Wire(own) as wire:
        wire.ask('Hello.', max_output_tokens=4)
        seconds = 60 if SLOW else 20
        before, began = cpu_seconds(own.process.pid), time.monotonic()
        time.sleep(seconds)  # with a client that is connected and says nothing
        used, lasted = cpu_seconds(own.process.pid) - before, time.monotonic() - began
    print(f'idle: {used * 1000:.2f} ms of CPU in {lasted:.0f} s, {used / lasted:.4%} of a core')
    assert used / lasted < 0.001
