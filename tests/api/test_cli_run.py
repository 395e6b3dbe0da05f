"""runnel run: one answer without a daemon; and bench."""
import json
import os
import signal
import subprocess

import pytest

from cli_kit import DATA, SLOW, THREADS, binary, dumped, ids_file, load, runnel, runnel_json

PARTS = ['session', 'timings', 'context', 'cache', 'computed', 'stop', 'sampling', 'warnings', 'ignored', 'device', 'fingerprint']


def test_answer_comes_as_text_and_as_json(tmp_path, model):
    common = ['run', '-m', model, '-p', 'What is the capital of France?', '-s', 'Be brief.', '--temp', 0, '-n', 24, *THREADS]
    got = runnel_json(*common, '--json')
    assert set(got) == {'ids', 'text', 'prompt_ids', 'runnel'} and 'Paris' in got['text']
    assert runnel(*common).decode() == got['text'] + '\n'
    record = got['runnel']
    assert set(PARTS) <= set(record)
    rendered = runnel_json('template', '-m', model, '--json', stdin=json.dumps({'messages': [
        {'role': 'system', 'content': 'Be brief.'}, {'role': 'user', 'content': 'What is the capital of France?'}], 'add_generation_prompt': True}))
    assert got['prompt_ids'] == rendered['ids']
    assert record['computed'] == len(got['prompt_ids']) and record['sampling']['temperature'] == 0
    assert runnel('tokenize', '-m', model, '--detokenize', stdin=json.dumps(got['ids'])).decode() == got['text']


def test_ids_are_the_greedy_choices_of_logits(tmp_path, model):
    ids = load('smollm2_logits.json')['greedy'][1]['prompt_ids']
    window = ['--window', 64, '--sinks', 4]  # where the pinned tokens end is a matter of rounding, too
    got = runnel_json('run', '-m', model, '--ids-file', ids_file(tmp_path, ids), '--temp', 0, '-n', 20, '--ignore-eos', '--json', *window, *THREADS)
    assert got['prompt_ids'] == ids and len(got['ids']) == 20 and got['runnel']['stop']['cause'] == 'length'
    top = runnel_json('logits', '-m', model, '--ids-file', ids_file(tmp_path, ids + got['ids']), '--top', 1, '--json', *window, *THREADS)
    assert [p['top'][0][0] for p in top['positions'][len(ids) - 1:-1]] == got['ids']


def test_a_seed_gives_the_same_answer(model):
    common = ['run', '-m', model, '-p', 'Tell me a story.', '--temp', 1, '--top-k', 50, '--top-p', 0.95, '--min-p', 0.01, '-n', 16, '--json']
    first, again = (runnel_json(*common, '--seed', 42, '--threads', n) for n in (1, 2))
    assert first['ids'] == again['ids'] and first['runnel']['sampling']['seed'] == 42
    assert len({json.dumps(runnel_json(*common, '--seed', s, *THREADS)['ids']) for s in (1, 2, 3)}) > 1
    drawn = runnel_json(*common, *THREADS)
    assert runnel_json(*common, '--seed', drawn['runnel']['sampling']['seed'], *THREADS)['ids'] == drawn['ids']


def test_raw_prompts(tmp_path, model):
    path = tmp_path / 'text'
    path.write_text('Once upon a time')
    ids = runnel_json('tokenize', '-m', model, stdin='Once upon a time')
    common = ['run', '-m', model, '--temp', 0, '-n', 8, '--json', *THREADS]
    got = [runnel_json(*common, *how, stdin='Once upon a time') for how in (['--raw', '-p', 'Once upon a time'], ['-f', path], ['--raw'], ['-f', '-'],
                                                                             ['--ids-file', ids_file(tmp_path, ids)])]
    assert all(g['prompt_ids'] == ids and g['ids'] == got[0]['ids'] for g in got)  # add_bos_token is off in this file


def penalised(rows, ids, prompt, window, sinks, biases=(), repeat=1.0, frequency=0.0, presence=0.0):
    """Greedy choices by definition: bias, then repetition over what the row sees, then frequency and presence over the answer so far."""
    chosen = []
    for t in range(prompt - 1, len(ids) - 1):
        logits = list(rows[t])
        base = sinks + max(0, t + 1 - window)
        for token, value in biases:
            logits[token] += value
        for token in set(ids[:min(sinks, t + 1)] + ids[base:t + 1]):
            logits[token] = logits[token] * repeat if logits[token] < 0 else logits[token] / repeat
        for token in set(ids[prompt:t + 1]):
            logits[token] -= frequency * ids[prompt:t + 1].count(token) + presence
        chosen.append(max(range(len(logits)), key=logits.__getitem__))
    return chosen


@pytest.mark.parametrize('how', [{'repeat': 1.3}, {'frequency': 0.5, 'presence': 0.7}, {'repeat': 1.1, 'presence': 1, 'biases': ((30, 4), (284, -100))}])
def test_penalties_do_what_they_say(tmp_path, model, how):
    """Against the definition, on the model's own logits, while the window rolls; and the same again with another number of threads."""
    options = [x for name in ('repeat', 'frequency', 'presence') if name in how for x in (f'--{name}-penalty', how[name])]
    options += ['--logit-bias', ','.join(f'{i}:{b}' for i, b in how['biases'])] if 'biases' in how else []
    window = ['--window', 32, '--sinks', 4, '--evict', 'token']
    common = ['run', '-m', model, '--raw', '-p', 'The cat and the dog and the cat and the', '--temp', 0, '-n', 48, '--ignore-eos', '--json', *window]
    free, got, again = runnel_json(*common, *THREADS), runnel_json(*common, *options, '--threads', 1), runnel_json(*common, *options, '--threads', 2)
    assert got['ids'] == again['ids'] != free['ids']
    told = got['runnel']['sampling']
    assert [told[f'{name}_penalty'] for name in ('repeat', 'frequency', 'presence')] == [how.get(n, d) for n, d in (('repeat', 1), ('frequency', 0), ('presence', 0))]
    assert told['logit_bias'] == {str(i): b for i, b in how.get('biases', ())}
    ids = got['prompt_ids'] + got['ids']
    dump = tmp_path / 'rows'
    runnel('logits', '-m', model, '--ids-file', ids_file(tmp_path, ids), '--dump', dump, *window, *THREADS)
    rows = list(dumped(dump, os.path.getsize(dump) // 4 // len(ids)))
    assert penalised(rows, ids, len(got['prompt_ids']), 32, 4, **how) == got['ids']


def test_logit_bias_bans_and_forces(model):
    common = ['run', '-m', model, '--raw', '-p', '1, 2, 3, 4, 5,', '-n', 12, '--ignore-eos', '--json', '--seed', 3, *THREADS]
    free = runnel_json(*common, '--temp', 0)
    banned = free['ids'][0]
    assert banned not in runnel_json(*common, '--temp', 0, '--logit-bias', f'{banned}:-100')['ids']
    assert banned not in runnel_json(*common, '--temp', 2, '--logit-bias', f'{banned}:-100')['ids']
    assert runnel_json(*common, '--temp', 2, '--logit-bias', '4000:100')['ids'] == [4000] * 12


def test_logprobs_are_those_of_eval(tmp_path, model):
    """The model's own, whatever the sampling did."""
    common = ['run', '-m', model, '--raw', '-p', 'Once upon a time', '-n', 20, '--ignore-eos', '--json', '--seed', 7, '--temp', 1.2, '--presence-penalty', 1,
              '--window', 64, '--sinks', 4, *THREADS]
    got, plain = runnel_json(*common, '--logprobs', 5), runnel_json(*common)
    assert 'logprobs' not in plain and plain['ids'] == got['ids'] and plain['runnel']['sampling']['top_logprobs'] is None
    ids = got['prompt_ids'] + got['ids']
    said = runnel_json('eval', '-m', model, '--ids-file', ids_file(tmp_path, ids), '--window', 64, '--sinks', 4, '--json', *THREADS)['logprob']
    tops = runnel_json('logits', '-m', model, '--ids-file', ids_file(tmp_path, ids), '--window', 64, '--sinks', 4, '--top', 5, '--json', *THREADS)['positions']
    at = len(got['prompt_ids']) - 1
    assert [p['logprob'] for p in got['logprobs']] == said[at:]
    for p, token, top in zip(got['logprobs'], got['ids'], tops[at:]):
        assert p['id'] == token and [q['id'] for q in p['top_logprobs']] == [i for i, _ in top['top']]
        assert set(p) == {'id', 'token', 'bytes', 'logprob', 'top_logprobs'}
        assert bytes(p['bytes']).decode(errors='replace') == p['token']
    assert b''.join(bytes(p['bytes']) for p in got['logprobs']).decode(errors='replace') == got['text']


def test_stop_string_ends_before_it(model):
    common = ['run', '-m', model, '--raw', '-p', '1, 2, 3, 4, 5,', '--temp', 0, '-n', 40, '--ignore-eos', '--json', *THREADS]
    free = runnel_json(*common)
    word = free['text'][10:14]
    got = runnel_json(*common, '--stop', 'never said', '--stop', word)
    assert got['text'] == free['text'][:free['text'].index(word)] and got['runnel']['stop'] == {'cause': 'stop', 'detail': word}


@pytest.mark.parametrize('args, code, said', [
    (['-p', 'a', '--temp', '3'], 64, '--temp'),
    (['-p', 'a', '--top-p', '0'], 64, '--top-p'),
    (['-p', 'a', '--seed', str(2**53)], 64, '--seed'),
    (['-p', 'a', '-n', '0'], 64, '-n'),
    (['-p', 'a', '-f', 'b'], 64, 'more than one'),
    (['-p', 'a', '--raw', '-s', 'b'], 64, '-s'),
    (['-p', 'a', '--window', '100', '--sinks', '51'], 64, '--sinks'),
    (['-p', 'a', '--window', '9000'], 64, '8192'),
    (['-p', 'a', '--nonsense'], 64, '--nonsense'),
    (['-p', 'a', '--repeat-penalty', '0'], 64, '--repeat-penalty'),
    (['-p', 'a', '--presence-penalty', '-2.1'], 64, '--presence-penalty'),
    (['-p', 'a', '--logit-bias', '5'], 64, '--logit-bias'),
    (['-p', 'a', '--logit-bias', '5:1,5:2'], 64, 'twice'),
    (['-p', 'a', '--logit-bias', '5:101'], 64, '--logit-bias'),
    (['-p', 'a', '--logit-bias', '49152:1'], 64, 'logit_bias has the token id 49152'),
    (['-p', 'a', '--json', '--logprobs', '21'], 64, '--logprobs'),
    (['-p', 'a', '--logprobs', '2'], 64, '--json'),
    (['-f', '/nowhere'], 66, '/nowhere'),
    (['-p', ''], 66, 'empty'),
])
def test_errors_are_one_line(model, args, code, said):
    assert said in runnel('run', '-m', model, '--threads', 1, *args, code=code)


def test_a_missing_model_is_named():
    assert '/nowhere.gguf' in runnel('run', '-m', '/nowhere.gguf', '-p', 'a', code=66)
    assert 'GGUF' in runnel('run', '-m', DATA / 'smollm2_chat.json', '-p', 'a', code=66)


def test_interrupt_ends_the_answer_and_keeps_the_record(model):
    process = subprocess.Popen([binary(), 'run', '-m', model, '--raw', '-p', 'Once', '--ignore-eos', '-n', '1000000', '--temp', '0.8', *THREADS],
                               stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stdout.read(20)  # it is answering
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 0 and err in (b'', b'loading the model\n') and out.endswith(b'\n')


def resident_kb(pid):
    with open(f'/proc/{pid}/status') as status:
        return next(int(line.split()[1]) for line in status if line.startswith('RssAnon'))


def cpu_s(pid):
    with open(f'/proc/{pid}/stat') as stat:
        fields = stat.read().rsplit(')', 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf('SC_CLK_TCK')


@pytest.mark.timing
@pytest.mark.slow
def test_for_ever(model):
    """Flat memory and flat time per token. Text arrives as it is made; the clock is the process's own, as others may use the machine."""
    n = 100_500 if SLOW else 6_000
    process = subprocess.Popen([binary(), 'run', '-m', model, '--raw', '-p', 'It was a dark and stormy night', '--ignore-eos', '--window', '512', '-n', str(n),
                                '--seed', '7', '--temp', '0.8', '--threads', '1'], stdout=subprocess.PIPE)
    samples, pieces, size = [], 0, 0
    while data := os.read(process.stdout.fileno(), 1 << 16):
        pieces, size = pieces + 1, size + len(data)
        if pieces % 100 == 1:
            samples.append((size, cpu_s(process.pid), resident_kb(process.pid)))
    assert process.wait(60) == 0
    assert pieces > n / 2 and len(samples) > 20  # it came in pieces
    third = len(samples) // 3
    pace = [(samples[(i + 1) * third - 1][1] - samples[i * third][1]) / (third - 1) for i in range(3)]
    print(f'{n} tokens in {pieces} pieces, {size} bytes; CPU time per 100 pieces, by thirds:', ' '.join(f'{x:.3f} s' for x in pace),
          f'; anonymous memory {samples[0][2]} .. {samples[-1][2]} kB')
    assert pace[2] < 1.5 * pace[0]
    # From 512 + 2048 tokens on the pages behind the window go; only the answer's own ids and text grow.
    assert samples[-1][2] - samples[len(samples) // 2][2] < 2048 + n // 25


@pytest.mark.slow
def test_exactly_the_number_asked_for(model):
    n = 100_500 if SLOW else 6_000
    got = runnel_json('run', '-m', model, '--raw', '-p', 'The', '--ignore-eos', '--window', 512, '-n', n, '--seed', 3, '--json', *THREADS, timeout=7200)
    assert len(got['ids']) == n and got['runnel']['stop']['cause'] == 'length'
    context = got['runnel']['context']
    total = len(got['prompt_ids']) + n
    assert context['n'] == 512 and context['used'] <= 512 and total - 1 <= context['evicted'] + context['used'] <= total


def test_bench_reports_what_it_measured():
    got = runnel_json('bench', '-m', DATA / 'families' / 'llama.gguf', '-p', 64, '-n', 16, '-d', '0,100', '-r', 2, '--json', '--threads', 1)
    assert set(got) == {'model', 'threads', 'kv', 'rows', 'read_gb_per_s', 'int8_tops', 'results'}
    assert got['threads'] == 1 and got['kv'] == 'q8_0' and got['rows'] and got['read_gb_per_s'] > 0 and got['int8_tops'] > 0
    assert [(r['test'], r['tokens'], r['depth']) for r in got['results']] == [('prefill', 64, 0), ('decode', 16, 0), ('prefill', 64, 100), ('decode', 16, 100)]
    for r in got['results']:
        assert set(r) == {'test', 'tokens', 'depth', 'tokens_per_s', 'stdev', 'gb_per_s', 'gmac_per_s', 'share'}
        assert r['tokens_per_s'] > 0 and r['gb_per_s'] > 0 and r['gmac_per_s'] > 0
    ops = runnel_json('bench', '-m', DATA / 'families' / 'llama.gguf', '-p', 64, '-n', 8, '-d', 100, '-r', 1, '--ops', '--json', '--threads', 1)
    for r in ops['results']:
        by = {o['op']: o for o in r['ops']}
        assert set(by) == {'embed', 'matmul', 'gated', 'rope_kv', 'attention', 'logits'}
        assert all(o['ms'] > 0 for o in by.values()) and all(by[k]['gmac_per_s'] > 0 and by[k]['gb_per_s'] > 0 for k in ('matmul', 'gated', 'attention', 'logits'))
    only = runnel_json('bench', '-m', DATA / 'families' / 'llama.gguf', '-p', 0, '-n', 4, '-d', 0, '-r', 1, '--json', '--threads', 1)
    assert [r['test'] for r in only['results']] == ['decode']
    assert 'tokens/s' in runnel('bench', '-m', DATA / 'families' / 'llama.gguf', '-p', 8, '-n', 4, '-d', 0, '-r', 1, '--threads', 1).decode()
    assert '-d has 5000' in runnel('bench', '-m', DATA / 'families' / 'llama.gguf', '-d', 5000, code=64)
