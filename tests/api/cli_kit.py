"""The `runnel` command and the reference data, for the test_cli_*.py files.

RUNNEL_BIN_DIR: the folder with runnel (default: the build folder given by RUNNEL_BUILD); RUNNEL_TEST_MODEL: the default model's file."""
import json
import math
import os
import subprocess
from pathlib import Path

import pytest

DATA = Path(__file__).resolve().parent.parent / 'data'
THREADS = ['--device', 'cpu', '--threads', os.environ.get('RUNNEL_TEST_THREADS', '2')]  # also where there is a GPU: see test_vulkan.py
SLOW = os.environ.get('RUNNEL_SLOW') == '1'
# Models with reference logits (NAME_logits.json). Bounds of the mean KL by KV type, of the 99th percentile (f16), and of the share of equal top
# tokens.
MODELS = {
    'smollm2': {'sets': ['prose', 'code', 'chat'], 'mean': {'f16': 0.0035, 'q8_0': 0.006}, 'p99': 0.025, 'top': 0.95},
    'gemma': {'sets': ['prose', 'code'], 'mean': {'f16': 0.003, 'q8_0': 0.006}, 'p99': 0.03, 'top': 0.94},
}


def binary(name='runnel'):
    folder, build = os.environ.get('RUNNEL_BIN_DIR'), os.environ.get('RUNNEL_BUILD')
    places = [Path(folder) / name] if folder else [Path(build) / 'daemon' / 'cli' / name, Path(build) / 'daemon' / name] if build else []
    if not places:
        pytest.skip('neither RUNNEL_BIN_DIR nor RUNNEL_BUILD is set')
    for path in places:
        if path.exists():
            return str(path)
    pytest.fail(f'no {name} at {places}')


def runnel(*args, stdin=b'', code=0, timeout=600):
    """Standard output of a command that must end with `code`; with another code than 0: its one line on standard error."""
    if isinstance(stdin, str):
        stdin = stdin.encode()
    done = subprocess.run([binary(), *map(str, args)], input=stdin, capture_output=True, timeout=timeout)
    said = done.stderr.decode().removeprefix('loading the model\n')  # when that takes more than a second
    assert done.returncode == code, f'exit code {done.returncode}, expected {code}: {said}'
    if code == 0:
        return done.stdout
    assert said.startswith('runnel: ') and said.count('\n') == 1 and said.endswith('\n'), said
    return said


def runnel_json(*args, **how):
    return json.loads(runnel(*args, **how))


def load(name):
    return json.loads((DATA / name).read_text())


def ids_file(folder, ids):
    path = folder / f'ids-{len(ids)}-{abs(hash(tuple(ids)))}.json'
    path.write_text(json.dumps(ids))
    return path


def kl(expected_top, expected_lse, logit_of, lse):
    """Kullback-Leibler divergence over the ids in expected_top and one bucket for the rest; logit_of: what is compared, by id."""
    sum_p = sum_q = total = 0.0
    for token, logit in expected_top:
        p, q = math.exp(logit - expected_lse), math.exp(logit_of[token] - lse)
        total += p * (logit - expected_lse - logit_of[token] + lse)
        sum_p, sum_q = sum_p + p, sum_q + q
    p, q = max(1 - sum_p, 0), max(1 - sum_q, 1e-300)
    return total + (p * math.log(p / q) if p > 0 else 0)


def dumped(path, n_vocab):
    """The rows of `logits --dump`, one at a time."""
    from array import array
    with open(path, 'rb') as file:
        while data := file.read(4 * n_vocab):
            row = array('f')
            row.frombytes(data)
            yield row


def log_sum_exp(row):
    top = max(row)
    return top + math.log(sum(map(math.exp, (x - top for x in row))))


def divergence_of(positions, rows):
    """(each row's divergence from the reference, the share of rows with its top token)"""
    divergence, same_top = [], 0
    for expected, row in zip(positions, rows):
        divergence.append(kl(expected['top'], expected['logsumexp'], row, log_sum_exp(row)))
        same_top += row.index(max(row)) == expected['top'][0][0]
    assert len(divergence) == len(positions)
    return divergence, same_top / len(positions)


def percentile(values, share):
    """Linear between the two nearest, as numpy does."""
    values = sorted(values)
    at = share * (len(values) - 1)
    low = math.floor(at)
    return values[low] + (at - low) * (values[min(low + 1, len(values) - 1)] - values[low])
