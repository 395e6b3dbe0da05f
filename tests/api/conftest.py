"""A daemon for the black-box tests.

RUNNELD: the program (default: runneld of the build folder given by RUNNEL_BUILD); RUNNEL_TEST_MODEL: a GGUF file.
RUNNELD_FAKE: the same daemon with a scripted service, for test_ws_protocol.py. What is not given is skipped, with the reason."""
import os
import re
import signal
import subprocess
import threading
import time

import pytest


class Daemon:
    """One running daemon; stop() ends it and returns its exit code, kill() does so without a word."""

    running = []  # processes that a failed test may leave behind

    def __init__(self, program, model, state, *flags):
        command = [program, '--model', model, '--listen', '127.0.0.1:0', '--state-dir', str(state), '--cache-dir', str(state) + '-cache',
                   '--device', 'cpu', *flags]  # of a flag that is given twice the last one counts
        self.started = time.monotonic()
        self.process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
        Daemon.running.append(self.process)
        self.log = []
        self.port = None
        self.heard = threading.Event()
        self.reader = threading.Thread(target=self.listen, daemon=True)  # a full pipe would stop the daemon
        self.reader.start()
        if not self.heard.wait(120):
            self.process.kill()
        if self.port is None:
            code = self.process.wait(20)
            self.reader.join(20)
            raise RuntimeError(f'exit code {code}: {"".join(self.log)}')
        self.http = f'http://127.0.0.1:{self.port}'
        self.ws = f'ws://127.0.0.1:{self.port}/v1/responses'

    def listen(self):
        for line in self.process.stderr:
            self.log.append(line)
            ready = re.match(r'runneld: ready on http://127\.0\.0\.1:(\d+)$', line)
            if ready:
                self.ready_s = time.monotonic() - self.started
                self.port = int(ready[1])
                self.heard.set()
        self.heard.set()

    def stop(self, number=signal.SIGTERM):
        self.process.send_signal(number)
        code = self.process.wait(60)
        self.reader.join(20)
        return code

    def kill(self):
        self.stop(signal.SIGKILL)


def program(variable):
    path = os.environ.get(variable)
    if not path and variable == 'RUNNELD' and os.environ.get('RUNNEL_BUILD'):
        path = os.path.join(os.environ['RUNNEL_BUILD'], 'daemon', 'runneld')
    if not path:
        pytest.skip(f'{variable} is not set')
    return path


@pytest.fixture(scope='module')
def fake(tmp_path_factory):
    d = Daemon(program('RUNNELD_FAKE'), 'fake.gguf', tmp_path_factory.mktemp('fake') / 'state', '--linger', '0')
    yield d
    if d.process.poll() is None:
        assert d.stop() == 0, ''.join(d.log)


@pytest.fixture(scope='module')
def model():
    path = os.environ.get('RUNNEL_TEST_MODEL')
    if not path:
        pytest.skip('RUNNEL_TEST_MODEL is not set')
    return path


@pytest.fixture(scope='module')
def gemma():
    path = os.environ.get('RUNNEL_TEST_MODEL_GEMMA')
    if not path:
        pytest.skip('RUNNEL_TEST_MODEL_GEMMA is not set')
    return path


@pytest.fixture(scope='module')
def path_of(request):
    """A model's path, or the reason to skip."""
    return lambda name: request.getfixturevalue('model' if name == 'smollm2' else 'gemma')


@pytest.fixture(scope='module')
def daemon(tmp_path_factory, model):
    d = Daemon(program('RUNNELD'), model, tmp_path_factory.mktemp('runneld') / 'state')
    yield d
    if d.process.poll() is None:
        assert d.stop() == 0, ''.join(d.log)


def pytest_sessionfinish():
    for process in Daemon.running:
        if process.poll() is None:
            process.kill()


def pytest_configure(config):
    config.addinivalue_line('markers', 'slow: more than a few seconds')
    config.addinivalue_line('markers', 'timing: measures time or memory, which sanitizers change')
    config.addinivalue_line('markers', 'gpu: loads a graphics driver')
