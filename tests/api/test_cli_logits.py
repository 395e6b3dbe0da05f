"""The default model's logits against a float32 oracle, and at far positions against themselves."""
import json

import pytest

from cli_kit import MODELS, THREADS, divergence_of, dumped, ids_file, kl, load, log_sum_exp, percentile, runnel, runnel_json

N_VOCAB = 49152


@pytest.fixture(scope='module')
def references():
    return {name: load(f'{name}_logits.json') for name in MODELS}


@pytest.fixture(scope='module')
def reference(references):
    return references['smollm2']


def of(reference, name):
    return next(s for s in reference['sets'] if s['name'] == name)


@pytest.mark.parametrize('kv', ['f16', 'q8_0'])
@pytest.mark.parametrize('which, name', [pytest.param(which, name, marks=[pytest.mark.slow] * (which == 'gemma')) for which in MODELS for name in MODELS[which]['sets']])
def test_logits_are_right(tmp_path, path_of, references, which, name, kv):
    data, bounds = of(references[which], name), MODELS[which]
    dump = tmp_path / 'rows'
    runnel('logits', '-m', path_of(which), '--ids-file', ids_file(tmp_path, data['ids']), '--kv', kv, '--top', 0, '--dump', dump, *THREADS)
    divergence, share = divergence_of(data['positions'], dumped(dump, references[which].get('n_vocab', N_VOCAB)))
    dump.unlink()
    mean, p99 = sum(divergence) / len(divergence), percentile(divergence, 0.99)
    print(f'{which} {name} {kv}: mean KL {mean:.5f}, 99th percentile {p99:.4f}, largest {max(divergence):.4f}, equal top token {share:.4f}')
    assert mean <= bounds['mean'][kv]
    assert kv != 'f16' or p99 <= bounds['p99']
    assert share >= bounds['top']


@pytest.mark.parametrize('kv', ['f16', 'q8_0'])
@pytest.mark.parametrize('which', ['smollm2', pytest.param('gemma', marks=pytest.mark.slow)])
def test_greedy_choices_are_right_where_the_margin_is_clear(tmp_path, path_of, references, which, kv):
    n_clear = 0
    for data in references[which]['greedy']:
        ids = data['prompt_ids'] + data['ids']
        got = runnel_json('logits', '-m', path_of(which), '--ids-file', ids_file(tmp_path, ids), '--kv', kv, '--top', 1, '--json', *THREADS)
        top = [p['top'][0][0] for p in got['positions'][len(data['prompt_ids']) - 1:-1]]
        clear = [i for i, margin in enumerate(data['margin']) if margin >= 0.6]
        assert [top[i] for i in clear] == [data['ids'][i] for i in clear], data['prompt']
        n_clear += len(clear)
    print(f'{which} {kv}: {n_clear} clear choices')
    assert n_clear > 20


@pytest.mark.slow
@pytest.mark.parametrize('kv, bound', [('f16', 0.006), ('q8_0', 0.01)])
@pytest.mark.parametrize('sinks', [0, 4])
def test_far_positions_are_like_near_ones(tmp_path, model, reference, kv, bound, sinks):
    ids = ids_file(tmp_path, of(reference, 'prose')['ids'])
    common = ['logits', '-m', model, '--ids-file', ids, '--kv', kv, '--sinks', sinks, '--json', *THREADS]
    near = runnel_json(*common, '--top', 64)['positions']
    far = runnel_json(*common, '--top', 4096, '--origin', 2**33)['positions']
    assert [p['t'] for p in far[sinks:sinks + 2]] == [2**33, 2**33 + 1] and near[-1]['t'] == len(near) - 1
    divergence = []
    for a, b in zip(near, far):
        logits = dict(map(tuple, b['top']))
        divergence.append(kl([x for x in a['top'] if x[0] in logits], a['logsumexp'], logits, b['logsumexp']))
    mean = sum(divergence) / len(divergence)
    print(f'{kv}, {sinks} sinks: mean KL {mean:.6f}')
    assert mean <= bound


def test_output_in_lines_json_and_dump_agree(tmp_path, model):
    ids = [504, 3575, 282, 4649, 314]
    dump = tmp_path / 'rows'
    common = ['logits', '-m', model, '--ids-file', ids_file(tmp_path, ids), '--top', 3, *THREADS]
    lines = runnel(*common, '--dump', dump).decode().split('\n')[:-1]
    positions = runnel_json(*common, '--json')['positions']
    rows = list(dumped(dump, N_VOCAB))
    assert dump.stat().st_size == 4 * N_VOCAB * len(ids) and len(lines) == len(positions) == len(rows) == len(ids)
    for i, (line, position, row) in enumerate(zip(lines, positions, rows)):
        top = [[int(a), float(b)] for a, b in (x.split(':') for x in line.split()[2:])]
        assert line.split()[:2] == [str(i), str(ids[i])] and position['t'] == i and position['id'] == ids[i]
        best = sorted(range(N_VOCAB), key=lambda token: (-row[token], token))[:3]
        for got in top, position['top']:
            assert [token for token, _ in got] == best
            assert all(abs(logit - row[token]) <= 1e-6 * abs(logit) for token, logit in got)
        assert abs(position['logsumexp'] - log_sum_exp(row)) < 1e-4


@pytest.mark.parametrize('ids, flags, code, said', [
    ([], [], 64, 'no token ids'),
    ([1, 49152], [], 1, '49152'),
    ([1, 2], ['--window', 9000], 64, '8192'),
    ([1, 2], ['--window', 16, '--sinks', 9], 64, '--sinks is 9, expected at most 8'),
    ([1] * 9000, [], 64, '--window'),
    ([1, 2], ['--turn-starts', '2'], 64, '--turn-starts'),
    ([1, 2], ['--turn-starts', '1,1'], 64, '--turn-starts'),
    ([1, 2], ['--sinks', 4, '--origin', 3], 64, '--origin'),
    ([1, 2], ['--chunk', 0], 64, '--chunk'),
    ([1, 2], ['--cpu-mask', 'neon9'], 66, 'neon9'),
    ([1, 2], ['--kv', 'f8'], 64, 'q8_0|f16'),
    ([1, 2], ['--dump', '/nowhere/rows'], 1, '/nowhere/rows'),
])
def test_errors_are_one_line(tmp_path, model, ids, flags, code, said):
    assert said in runnel('logits', '-m', model, '--ids-file', ids_file(tmp_path, ids), '--threads', 1, *flags, code=code)


def test_a_file_that_is_no_list_is_refused(tmp_path, model):
    path = tmp_path / 'ids'
    for text in '{"a": 1}', '[1, "a"]', '[1, 2', '':
        path.write_text(text)
        runnel('logits', '-m', model, '--ids-file', path, '--threads', 1, code=66)
    assert json.loads(path.read_text() or '[]') == []
