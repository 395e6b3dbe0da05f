"""The Vulkan backend from outside: the command and the daemon on a Vulkan device, also one that fails.

RUNNEL_TEST_GPU: the device, by index or part of its name (default: the first that can be used, a software one included). Without a device all
is skipped. A software device is slow: few tokens, unless RUNNEL_SLOW=1."""
import json
import os
import random
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from cli_kit import DATA, MODELS, SLOW, THREADS, binary, divergence_of, dumped, ids_file, kl, load, log_sum_exp, percentile, runnel_json
from conftest import Daemon, program
from daemon_kit import Wire, get, said

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / 'gpu'))
import random_gguf  # noqa: E402

pytestmark = pytest.mark.gpu


@pytest.fixture(scope='module')
def device():
    wanted = os.environ.get('RUNNEL_TEST_GPU')
    machine = runnel_json('doctor', '--json')['machine']
    usable = [gpu for gpu in machine['gpus'] if not gpu['refused']]
    if not wanted and not usable:
        pytest.skip(f'no Vulkan device: {machine.get("no_gpus") or [gpu["refused"] for gpu in machine["gpus"]]}')
    return f'vulkan:{wanted or usable[0]["index"]}'


@pytest.fixture(scope='module')
def tiny(tmp_path_factory):
    path = tmp_path_factory.mktemp('tiny') / 'tiny.gguf'
    random_gguf.write(path, 'Q4_0')
    return path


@pytest.fixture(scope='module')
def cache(tmp_path_factory):
    return tmp_path_factory.mktemp('cache')


def command(*args, code=0, env=None):
    """(standard output, standard error): a device is told there, which is no error."""
    done = subprocess.run([binary(), *map(str, args)], capture_output=True, timeout=1800, env={**os.environ, **(env or {})})
    assert done.returncode == code, done.stderr.decode()
    return done.stdout.decode(), done.stderr.decode()


def logits(folder, model, ids, n_vocab, *flags):
    """The rows, one at a time."""
    dump = folder / 'rows'
    command('logits', '-m', model, '--ids-file', ids_file(folder, ids), '--top', 0, '--dump', dump, *THREADS, *flags)
    assert dump.stat().st_size == 4 * n_vocab * len(ids)
    try:
        yield from dumped(dump, n_vocab)
    finally:
        dump.unlink()


# ---- The command ------------------------------------------------------------------------------------------------------------------------

def test_doctor_lists_devices(device):
    machine = runnel_json('doctor', '--json', '--device', device)['machine']
    for gpu in machine['gpus']:
        assert gpu['name'] and gpu['driver'] and gpu['memory'] >= gpu['budget'] > 0 and isinstance(gpu['software'], bool)
    assert machine['device']['takes'] in [gpu['name'] for gpu in machine['gpus']]
    masked = runnel_json('doctor', '--json', '--device', device, '--gpu-mask', 'integer-dot,storage8,subgroup,coopmat')['machine']
    assert not any(gpu['features'] for gpu in masked['gpus'])
    automatic = runnel_json('doctor', '--json')['machine']
    if all(gpu['software'] for gpu in machine['gpus']):
        assert automatic['device']['takes'] == 'cpu' and 'only when named' in automatic['device']['reason']


@pytest.mark.parametrize('flags, code, said', [
    (['--device', 'vulkan:no such card'], 69, "'no such card'"),
    (['--device', 'gpu'], 66, 'known are auto, cpu, vulkan'),
    (['--device', 'cpu', '--gpu-layers', 1], 66, 'the device is the CPU'),
    (['--gpu-layers', 0], 66, 'choose the device cpu'),
    (['--gpu-layers', 4], 66, 'the model has 3'),
    (['--gpu-layers', 'many'], 66, 'expected auto or a number'),
    (['--gpu-mask', 'nonsense'], 66, 'nonsense'),
])
def test_what_cannot_be_had_is_refused(device, tiny, flags, code, said):
    given = flags if '--device' in flags else ['--device', device, *flags]
    _, err = command('run', '-m', tiny, '--raw', '-p', 'a', '-n', 1, *given, code=code)
    assert said in err.splitlines()[-1]


def test_the_plan_is_said_first(device, tiny, cache):
    out, err = command('run', '-m', tiny, '-p', 'hello', '-n', 8, '--temp', 0, '--device', device, '--gpu-layers', 2, '--cache-dir', cache)
    assert 'layers 0 to 0 on the CPU' in err and 'layers 1 to 2 and the logits on' in err
    whole, err = command('run', '-m', tiny, '-p', 'hello', '-n', 8, '--temp', 0, '--device', device, '--cache-dir', cache)
    assert 'all 3 layers on' in err
    assert out and whole


SLOW_ONLY = [pytest.mark.slow, pytest.mark.skipif(not SLOW, reason='takes minutes: RUNNEL_SLOW=1')]


@pytest.mark.parametrize('which, kv', [
    ('smollm2', 'f16'),
    pytest.param('smollm2', 'q8_0', marks=[] if SLOW else pytest.mark.slow),
    pytest.param('gemma', 'f16', marks=SLOW_ONLY),
    pytest.param('gemma', 'q8_0', marks=SLOW_ONLY),
])
def test_real_models_are_right(tmp_path, device, path_of, cache, which, kv):
    model, reference, bounds = path_of(which), load(f'{which}_logits.json'), MODELS[which]
    assert [data['name'] for data in reference['sets']] == bounds['sets']
    for data in reference['sets'] if SLOW else reference['sets'][:1]:
        n = len(data['ids']) if SLOW else 32
        common = (tmp_path, model, data['ids'][:n], reference.get('n_vocab', 49152), '--kv', kv, '--device')
        divergence, same = divergence_of(data['positions'][:n], logits(*common, device, '--cache-dir', cache))
        mean, p99, bound = sum(divergence) / n, percentile(divergence, 0.99), bounds['mean'][kv]
        print(f'{which} {data["name"]} {kv}: mean KL {mean:.5f}, 99th percentile {p99:.4f}, equal top token {same:.3f}')
        if not SLOW: # the first tokens alone are off by more than the mean
            by_cpu, _ = divergence_of(data['positions'][:n], logits(*common, 'cpu'))
            bound = max(bound, 1.3 * sum(by_cpu) / n)
        # Which int8 activations happen to round up differs between devices and drivers. On the CPU, by --origin, that makes means of 0.0028 to
        # 0.0045 of 66 positions (SmolLM2, chat), and 99th percentiles of 0.018 to 0.037 of 236 (Gemma, code), for they rest on three of them.
        few = SLOW and n < 100
        assert mean <= (1.3 * bound if few else bound)
        assert not SLOW or few or kv != 'f16' or p99 <= 1.3 * bounds['p99']
        assert same >= (bounds['top'] if SLOW else 0.9)


@pytest.mark.parametrize('name', ['llama', 'gemma3', 'qwen2', 'qwen3', 'llama_bias'] if SLOW else ['llama', 'gemma3'])
def test_families_are_exact(tmp_path, device, cache, name):
    reference = json.loads((DATA / 'families' / f'{name}.json').read_text())
    rows = logits(tmp_path, DATA / 'families' / f'{name}.gguf', reference['ids'], 512, '--kv', 'f16', '--device', device, '--cache-dir', cache)
    divergence = [kl(top['ids'], top['logsumexp'], row, log_sum_exp(row)) for top, row in zip(reference['top'], rows)]
    assert sum(divergence) / len(divergence) <= 1e-5


def test_bench_says_what_steps_cost_the_host(device, tiny, cache):
    out, _ = command('bench', '-m', tiny, '-p', 16, '-n', 16, '-d', 0, '-r', 1, '--json', '--device', device, '--cache-dir', cache)
    decode = json.loads(out)['results'][1]
    assert decode['share'] is None  # the limits measured are the CPU's
    assert 0 < decode['host']['calls_per_step'] <= 5
    # A layer: Q, K and V; RoPE; attention; its partial sums; its output; gate and up; down. A step: embedding, first norm, last norm, logits.
    n_layers = runnel_json('info', tiny, '--json')['sizes']['layers']
    assert decode['host']['dispatches_per_step'] == 7 * n_layers + 4


# ---- The daemon on a device that fails ----------------------------------------------------------------------------------------------------

@pytest.fixture(scope='module')
def shim():
    """Environment for a fault; see tests/gpu/fault_shim.h."""
    path = Path(os.environ.get('RUNNEL_BUILD') or '/nowhere') / 'tests' / 'gpu' / 'libfault_shim.so'
    if not path.exists():
        pytest.skip('the build folder has no tests/gpu/libfault_shim.so')
    if 'libasan' in subprocess.run(['ldd', program('RUNNELD')], capture_output=True, text=True).stdout:
        pytest.skip('the sanitizer must be the first library, so must the shim')
    return {'LD_PRELOAD': str(path)}


class Faulty(Daemon):
    """A daemon with a shim in front of the Vulkan loader."""

    def __init__(self, monkeypatch, shim, fault, model, state, device, *flags):
        self.control = Path(f'{state}-fault')
        with monkeypatch.context() as m:
            for key, value in {**shim, 'RUNNEL_GPU_FAULT': fault, 'RUNNEL_GPU_FAULT_FILE': str(self.control)}.items():
                m.setenv(key, value)
            super().__init__(program('RUNNELD'), str(model), state, '--device', device, '--threads', '1', *flags)

    def fault(self, spec):
        """Takes effect with the next submit."""
        part = self.control.with_suffix('.part')
        part.write_text(spec)
        part.rename(self.control)

    def text(self):
        return ''.join(self.log)


QUESTION = {'said': 'a question', 'max_output_tokens': 40, 'runnel': {'ignore_eos': True, 'seed': 7}, 'temperature': 0.8}


@pytest.fixture(scope='module')
def expected(tmp_path_factory, device, tiny):
    d = Daemon(program('RUNNELD'), str(tiny), tmp_path_factory.mktemp('well') / 'state', '--device', device, '--threads', '1')
    with Wire(d) as wire:
        first = wire.ask(**QUESTION)
        second = wire.ask('and then?', previous_response_id=first['id'], max_output_tokens=20, runnel={'ignore_eos': True})
    assert d.stop() == 0
    return said(first), said(second)


def ask_both(wire):
    first = wire.ask(**QUESTION)
    return said(first), said(wire.ask('and then?', previous_response_id=first['id'], max_output_tokens=20, runnel={'ignore_eos': True}))


@pytest.mark.parametrize('fault', ['lost=30', 'lost-wait=30', 'hang=30'])
def test_an_answer_goes_on_after_a_loss(tmp_path, monkeypatch, shim, device, tiny, expected, fault):
    d = Faulty(monkeypatch, shim, '', tiny, tmp_path / 'state', device)
    with Wire(d) as wire:
        d.fault(fault)
        assert ask_both(wire) == expected
    status, ready = get(d, '/ready')
    assert status == 200 and ready['ready']
    assert d.stop() == 0
    assert 'the device is back' in d.text()


def test_a_second_loss_is_a_typed_error_and_the_process_stays(tmp_path, monkeypatch, shim, device, tiny):
    d = Faulty(monkeypatch, shim, '', tiny, tmp_path / 'state', device)
    with Wire(d) as wire:
        first = wire.ask('hello', max_output_tokens=4)
        d.fault('lost-always=5')
        events = wire.events(**QUESTION)
        assert events[-1]['type'] == 'response.failed'
        assert events[-1]['response']['runnel']['stop']['cause'] == 'error'
        assert wire.refused('again', previous_response_id=first['id'])[:2] == (503, 'device_lost')
        assert get(d, '/ready')[0] == 503 and get(d, '/ready')[1]['error']['code'] == 'device_lost'
        assert get(d, '/health')[0] == 200
        assert get(d, f'/runnel/sessions/{first["runnel"]["session"]}')[0] == 200
    assert d.stop() == 0
    assert 'down for 1 minute' in d.text()


@pytest.mark.slow
@pytest.mark.skipif(not SLOW, reason='takes a minute: RUNNEL_SLOW=1 (test_session_loss has it with a short one)')
def test_the_device_comes_back_after_a_minute(tmp_path, monkeypatch, shim, device, tiny, expected):
    d = Faulty(monkeypatch, shim, '', tiny, tmp_path / 'state', device)
    with Wire(d) as wire:
        d.fault('lost-always=5')
        assert wire.events(**QUESTION)[-1]['type'] == 'response.failed'
        d.fault('')
        back = threading.Event()
        deadline = time.monotonic() + 150
        while 'the device is back' not in d.text() and time.monotonic() < deadline:
            back.wait(1)
        assert get(d, '/ready')[0] == 200
        assert ask_both(wire) == expected
    assert d.stop() == 0


def test_auto_takes_what_is_faster_and_says_so(tmp_path, monkeypatch, shim, device, tiny):
    """A software device that claims to be hardware is taken, found slow and left; with layers asked for it stays."""
    if not device.startswith('vulkan:') or not all(gpu['software'] for gpu in runnel_json('doctor', '--json')['machine']['gpus']):
        pytest.skip('there is a real GPU')
    d = Faulty(monkeypatch, shim, 'hardware', tiny, tmp_path / 'state', 'auto')
    with Wire(d) as wire:
        assert wire.ask('hello', max_output_tokens=4)['runnel']['device'].startswith('cpu ')
    assert d.stop() == 0
    assert 'auto: cpu, faster than' in d.text()
    d = Faulty(monkeypatch, shim, 'hardware', tiny, tmp_path / 'state2', 'auto', '--gpu-layers', '3')
    assert get(d, '/ready')[1]['device'].startswith('vulkan ')
    assert d.stop() == 0
    d = Faulty(monkeypatch, shim, 'hardware,memory=2000000', tiny, tmp_path / 'state3', 'auto')
    assert get(d, '/ready')[1]['device'].startswith('cpu ')
    assert d.stop() == 0
    assert 'auto: cpu, ' in d.text() and 'emory' in d.text()


def test_too_little_memory_is_said_at_start(tmp_path, monkeypatch, shim, device, tiny):
    with pytest.raises(RuntimeError, match='(?si)exit code 69.*memory'):
        Faulty(monkeypatch, shim, 'memory=2000000', tiny, tmp_path / 'state', device)
    with pytest.raises(RuntimeError, match='(?s)exit code 69.*MB free'):
        Faulty(monkeypatch, shim, 'heap=30000000', tiny, tmp_path / 'state2', device)


def test_layers_that_do_not_fit_stay_on_the_cpu(tmp_path, monkeypatch, shim, device, tiny):
    answers = []
    for fault, flags in ('heap=87500000', []), ('', ['--gpu-layers', '2']):
        d = Faulty(monkeypatch, shim, fault, tiny, tmp_path / f'state{len(answers)}', device, *flags)
        assert 'layers 0 to 0 on the CPU' in d.text() and 'layers 1 to 2 and the logits on' in d.text()
        with Wire(d) as wire:
            answer = wire.ask(**QUESTION)
            answers.append(said(answer))
            assert '+ from layer 1 vulkan' in answer['runnel']['device']
        assert d.stop() == 0
    assert answers[0] == answers[1]


def test_memory_that_runs_out_later_costs_no_answer(tmp_path, monkeypatch, shim, device, tiny, expected):
    d = Faulty(monkeypatch, shim, '', tiny, tmp_path / 'state', device)
    with Wire(d) as wire:
        d.fault('alloc=1')
        events = wire.events(**QUESTION)
        assert events[-1]['type'] in ('response.completed', 'response.incomplete', 'response.failed', 'error')
        d.fault('')
        assert ask_both(wire) == expected
    assert d.stop() == 0


@pytest.mark.parametrize('fault', ['cache=file', 'cache=driver'])
def test_a_damaged_cache_is_dropped(tmp_path, monkeypatch, shim, device, tiny, expected, fault):
    for start in range(2):
        d = Faulty(monkeypatch, shim, fault, tiny, tmp_path / 'state', device)
        with Wire(d) as wire:
            assert ask_both(wire)[0] == expected[0]
        assert d.stop() == 0


@pytest.mark.parametrize('seed', range(50 if SLOW else 3))
def test_random_faults_lose_nothing(tmp_path, monkeypatch, shim, device, tiny, expected, seed):
    """At any submit, of any kind: each answer is right or says that it failed, and the session goes on."""
    r = random.Random(seed)
    d = Faulty(monkeypatch, shim, '', tiny, tmp_path / 'state', device)
    with Wire(d) as wire:
        d.fault(f'{r.choice(["lost", "lost-wait", "hang", "alloc"])}={r.randrange(1, 70)}')
        first = wire.events(**QUESTION)[-1]
        if first['type'] in ('response.completed', 'response.incomplete'):
            assert said(first['response']) == expected[0]
            again = wire.events('and then?', previous_response_id=first['response']['id'], max_output_tokens=20, runnel={'ignore_eos': True})[-1]
            if again['type'] in ('response.completed', 'response.incomplete'):
                assert said(again['response']) == expected[1]
        d.fault('')
        assert get(d, '/health')[0] == 200
    assert d.stop() == 0
