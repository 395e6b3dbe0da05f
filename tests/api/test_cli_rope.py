"""RoPE scaling that the user adds: what it allows, what it changes, what is said about it."""
import json
import os
import subprocess
from pathlib import Path

import pytest

from cli_kit import THREADS, ids_file, load, runnel, runnel_json

IDS = load('smollm2_tokens.json')['rows'][60]['ids'] * 40


def evaluate(model, tmp_path, *args):
    return runnel_json('eval', '-m', model, *THREADS, '--ids-file', ids_file(tmp_path, IDS[:200]), '--json', *args)['logprob']


def test_angles_follow_the_scaling(model, tmp_path):
    plain = evaluate(model, tmp_path)
    # Nothing is scaled by 1, or without a factor where N fits the trained length.
    assert evaluate(model, tmp_path, '--rope-scaling', 'linear:1') == plain == evaluate(model, tmp_path, '--rope-scaling', 'yarn')
    by_kind = {kind: evaluate(model, tmp_path, '--rope-scaling', kind) for kind in ('linear:2', 'yarn:2', 'linear:1.5')}
    for kind, got in by_kind.items():
        far = max(abs(a - b) for a, b in zip(plain, got))
        assert far > 0.05, kind
    assert len({json.dumps(got) for got in by_kind.values()}) == 3


def test_a_window_beyond_the_trained_length(model):
    question = ['-m', model, *THREADS, '-p', 'Hi', '-n', '4', '--temp', '0', '--json', '--window', '10000']
    assert 'expected 16 to 8192' in runnel('run', *question, code=64)
    assert 'expected 16 to 9011' in runnel('run', *question, '--rope-scaling', 'linear:1.1', code=64)
    record = runnel_json('run', *question, '--rope-scaling', 'yarn')['runnel']
    assert record['context']['n'] == 10000
    assert any('yarn:1.25' in w and 'trained length 8192' in w for w in record['warnings']), record['warnings']
    record = runnel_json('run', *question[:-2], '--rope-scaling', 'yarn')['runnel']
    assert record['warnings'] == []  # N fits: nothing is scaled


@pytest.mark.parametrize('verb', ['run', 'eval', 'logits', 'bench'])
def test_wrong_words_are_named(model, verb):
    more = {'run': ['-p', 'x'], 'eval': ['--ids-file', 'x'], 'logits': ['--ids-file', 'x'], 'bench': []}[verb]
    assert "--rope-scaling: the RoPE scaling is 'ntk'" in runnel(verb, '-m', model, *more, '--rope-scaling', 'ntk', code=64)


def test_bench_beyond_the_trained_length(model):
    short = ['-m', model, *THREADS, '-p', '16', '-n', '2', '-r', '1', '--json', '-d', '8193']
    assert '--rope-scaling' in runnel('bench', *short, code=64)


def test_the_daemon_takes_it_too():
    build = os.environ.get('RUNNEL_BUILD', '')
    program = os.environ.get('RUNNELD') or str(Path(build) / 'daemon' / 'runneld')
    if not (os.environ.get('RUNNELD') or build):
        pytest.skip('neither RUNNELD nor RUNNEL_BUILD is set')
    done = subprocess.run([program, '--model', 'x', '--rope-scaling', 'ntk'], capture_output=True, timeout=60)
    assert done.returncode == 64 and b"'ntk'" in done.stderr
