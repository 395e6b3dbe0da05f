"""A rolling session against an oracle that keeps un-rotated keys in an explicit list of slots and rotates everything at each step."""
import pytest

from cli_kit import THREADS, ids_file, load, runnel, runnel_json

BLOCK = 400
RUNS = [(None, 0, 'token'), (256, 4, 'token'), (256, 0, 'token'), (512, 4, 'token'), (512, 32, 'turn')]
GEMMA_RUNS = [(None, 0, 'token'), (768, 4, 'token'), (768, 0, 'token'), (256, 4, 'token'), (256, 4, 'turn')]  # the last two: 600 tokens


@pytest.fixture(scope='module')
def reference():
    return load('smollm2_rolling.json')


def evaluate(folder, model, reference, run, kv, *flags):
    args = ['eval', '-m', model, '--ids-file', ids_file(folder, reference['ids']), '--kv', kv, '--sinks', run['sinks'], '--evict', run['evict'], '--json', *THREADS]
    if run['window']:
        args += ['--window', run['window']]
    if run['turn_starts']:
        args += ['--turn-starts', ','.join(map(str, run['turn_starts']))]
    return runnel_json(*args, *flags)


def mean(values):
    return sum(values) / len(values)


def find(runs, window, sinks, evict):
    return next(r for r in runs if (r['window'], r['sinks'], r['evict']) == (window, sinks, evict))


def check(folder, model, reference, run, kv):
    """Against the float32 oracle: mean difference of the log-probabilities, perplexity by blocks, no drift, the evictions."""
    window, sinks, evict = run['window'], run['sinks'], run['evict']
    got = evaluate(folder, model, reference, run, kv)
    difference = [abs(a - b) for a, b in zip(got['logprob'], run['logprob'])]
    assert len(got['logprob']) == len(run['logprob'])
    blocks = [2.718281828459045**-mean(run['logprob'][i:i + BLOCK]) for i in range(0, len(run['logprob']), BLOCK)]
    assert len(got['blocks']) == len(blocks)
    worst = max(abs(a / b - 1) for a, b in zip(got['blocks'], blocks))
    first = next((t for t, _ in got['evictions']), 0)
    span = min(BLOCK, (len(difference) - first) // 2)
    early, late = mean(difference[first:first + span]), mean(difference[-span:])
    print(f'{window}/{sinks} {evict} {kv}: mean {mean(difference):.4f}, worst block {worst:.4f}, after the first eviction {early:.4f}, at the end {late:.4f}')
    assert mean(difference) <= (0.11 if kv == 'q8_0' else 0.08 if sinks or not window else 0.09)
    assert worst <= 0.025
    if window:
        assert late <= 1.3 * early
    if evict == 'turn':
        assert got['evictions'] == run['evictions']
    elif window:  # by token: base(t) = S + t + 1 - N from t = N on
        assert got['evictions'] == [[t, sinks + t + 1 - window] for t in range(window, len(reference['ids']))]
    else:
        assert got['evictions'] == []


@pytest.mark.slow
@pytest.mark.parametrize('kv', ['f16', 'q8_0'])
@pytest.mark.parametrize('window, sinks, evict', RUNS)
def test_rolling_is_right(tmp_path, model, reference, window, sinks, evict, kv):
    check(tmp_path, model, reference, find(reference['runs'], window, sinks, evict), kv)


@pytest.mark.slow
@pytest.mark.parametrize('kv', ['f16', 'q8_0'])
@pytest.mark.parametrize('window, sinks, evict', GEMMA_RUNS)
def test_rolling_is_right_with_sliding_layers(tmp_path, gemma, window, sinks, evict, kv):
    reference = load('gemma_rolling.json')
    runs = reference['runs']
    if window == 256:  # smaller than the model's own sliding window of 512
        runs = load('gemma_rolling_256.json')['runs']
        reference['ids'] = reference['ids'][:600]
    check(tmp_path, gemma, reference, find(runs, window, sinks, evict), kv)


@pytest.mark.slow
def test_steps_change_no_bit(tmp_path, model, reference):
    run = next(r for r in reference['runs'] if r['evict'] == 'turn')
    short = dict(reference, ids=reference['ids'][:1100])
    run = dict(run, turn_starts=[t for t in run['turn_starts'] if t < 1100])
    whole = evaluate(tmp_path, model, short, run, 'q8_0')
    assert evaluate(tmp_path, model, short, run, 'q8_0', '--chunk', 37) == whole
    assert evaluate(tmp_path, model, short, run, 'q8_0', '--threads', 1, '--chunk', 200) == whole


def test_evictions_of_a_far_session_keep_their_distance(tmp_path, model, reference):
    short = dict(reference, ids=reference['ids'][:300])
    run = {'window': 64, 'sinks': 4, 'evict': 'turn', 'turn_starts': list(range(10, 300, 25))}
    near, origin = evaluate(tmp_path, model, short, run, 'f16'), 2**33 + 4
    far = evaluate(tmp_path, model, short, run, 'f16', '--origin', origin)
    assert near['evictions'] and far['evictions'] == [[t + origin - 4, base + origin - 4] for t, base in near['evictions']]
    assert mean([abs(a - b) for a, b in zip(near['logprob'], far['logprob'])]) < 0.08


def test_a_text_file_is_evaluated(tmp_path, model):
    path = tmp_path / 'text'
    path.write_text('The capital of France is Paris. The capital of Italy is Rome.')
    got = runnel_json('eval', '-m', model, '-f', path, '--json', *THREADS)
    n = len(runnel_json('tokenize', '-m', model, stdin=path.read_text()))
    assert len(got['logprob']) == n - 1 and len(got['blocks']) == 1 and abs(got['blocks'][0] - got['perplexity']) < 1e-6
    assert 1 < got['perplexity'] < 60
    assert 'perplexity' in runnel('eval', '-m', model, '-f', path, *THREADS).decode()
    assert 'one of --ids-file FILE and -f FILE' in runnel('eval', '-m', model, code=64)
