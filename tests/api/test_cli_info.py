"""runnel info and runnel doctor: what a file holds, what a machine offers, and what is said when something is missing."""
import json
import os
import struct
import subprocess

import pytest

from cli_kit import binary, runnel, runnel_json


def gguf(keys, tensors):
    """A GGUF file; a value is a text, a bool, a number (u32) or a float; a tensor is (name, type number, cols, rows, bytes)."""
    def text(s):
        return struct.pack('<Q', len(s.encode())) + s.encode()

    def value(v):
        if isinstance(v, str):
            return struct.pack('<I', 8) + text(v)
        if isinstance(v, bool):
            return struct.pack('<IB', 7, v)
        return struct.pack('<If', 6, v) if isinstance(v, float) else struct.pack('<II', 4, v)

    out = b'GGUF' + struct.pack('<IQQ', 3, len(tensors), len(keys)) + b''.join(text(k) + value(v) for k, v in keys.items())
    offset, data = 0, b''
    for name, number, cols, rows, size in tensors:
        out += text(name) + struct.pack('<IQQIQ', 2, cols, rows, number, offset)
        data += bytes(size) + bytes(-size % 32)
        offset = len(data)
    return out + bytes(-len(out) % 32) + data


def test_the_default_model(model):
    said = runnel_json('info', model, '--json')
    assert said['architecture'] == 'llama' and said['runs'] is True and 'reason' not in said
    assert said['bytes'] == os.path.getsize(model) and said['files'] == 1
    assert said['sizes'] == {'layers': 30, 'd_model': 576, 'd_ff': 1536, 'heads': 9, 'kv_heads': 3, 'head_dim': 64, 'vocabulary': 49152}
    assert said['parameters'] == 134515008 == sum(t['parameters'] for t in said['tensors']['types'])
    assert said['context_length'] == 8192 and said['rope']['base'] == 100000
    assert [(t['type'], t['tensors']) for t in said['tensors']['types']] == [('Q4_1', 210), ('Q8_0', 1), ('F32', 61)]
    assert said['tokenizer']['model'] == 'gpt2' and said['tokenizer']['pre'] == 'smollm' and said['tokenizer']['tokens'] == 49152
    assert said['tokenizer']['special']['eos'] == {'id': 2, 'text': '<|im_end|>'}
    assert said['chat_template'] > 0
    # 30 layers, 3 heads of 64, keys and values: 2 bytes each, or 34 for 32
    assert said['kv_bytes_per_token'] == {'f16': 30 * 3 * 64 * 2 * 2, 'q8_0': 30 * 3 * 64 * 2 * 34 // 32}
    assert said['memory']['kv']['f16'] == 4096 * said['kv_bytes_per_token']['f16']
    text = runnel('info', model).decode()
    for word in ('llama', 'Q4_1', 'smollm', '8192', '<|im_end|>', 'runs here       yes'):
        assert word in text, word


def test_an_unknown_architecture_says_what_can_be_read(tmp_path):
    path = tmp_path / 'new.gguf'
    keys = {'general.architecture': 'quokka', 'general.name': 'Quokka\n1B', 'quokka.block_count': 4, 'quokka.context_length': 1024,
            'quokka.embedding_length': 256, 'quokka.attention.head_count': 4, 'quokka.rope.freq_base': 5000.0, 'tokenizer.ggml.model': 'new',
            'tokenizer.chat_template': '{{ x }}'}
    path.write_bytes(gguf(keys, [('token_embd.weight', 10, 256, 8, 84 * 8), ('a', 0, 4, 2, 32)]))  # 10: Q2_K, which we do not read
    said = runnel_json('info', path, '--json')
    assert said['architecture'] == 'quokka' and said['name'] == 'Quokka?1B' and said['runs'] is False and 'quokka' in said['reason']
    assert said['sizes'] == {'layers': 4, 'd_model': 256, 'heads': 4, 'kv_heads': 4, 'head_dim': 64, 'vocabulary': 8}
    assert said['tensors']['types'] == [{'type': 'Q2_K', 'tensors': 1, 'parameters': 2048, 'bytes': 672},
                                        {'type': 'F32', 'tensors': 1, 'parameters': 8, 'bytes': 32}]
    assert said['kv_bytes_per_token']['f16'] == 4 * 4 * 64 * 4 and said['memory']['window'] == 1024 and 'decode' not in said
    assert said['chat_template'] == 7 and said['rope']['base'] == 5000
    assert 'no: ' in runnel('info', path).decode()
    path.write_bytes(gguf({}, []))
    said = runnel_json('info', path, '--json')
    assert said['runs'] is False and said['sizes'] == {} and 'architecture' not in said and 'memory' not in said
    assert runnel('info', path)


def test_a_split_model_is_one(tmp_path):
    for i, keys in enumerate([{'general.architecture': 'quokka'}, {}]):
        split = {'split.no': i, 'split.count': 2, 'split.tensors.count': 2}
        (tmp_path / f'm-0000{i + 1}-of-00002.gguf').write_bytes(gguf({**keys, **split}, [(f't{i}', 0, 8, 1, 32)]))
    said = runnel_json('info', tmp_path / 'm-00002-of-00002.gguf', '--json')
    assert said['files'] == 2 and said['tensors']['count'] == 2 and said['architecture'] == 'quokka'
    assert said['bytes'] == sum(p.stat().st_size for p in tmp_path.iterdir())
    (tmp_path / 'm-00001-of-00002.gguf').unlink()
    assert 'part 1 of 2 is missing' in runnel('info', tmp_path / 'm-00002-of-00002.gguf', code=66)


def test_info_without_a_usable_file(tmp_path):
    assert 'FILE' in runnel('info', code=64)
    assert 'nowhere' in runnel('info', tmp_path / 'nowhere', code=66)
    (tmp_path / 'text').write_text('hello, this is no model')
    assert 'not a GGUF file' in runnel('info', tmp_path / 'text', code=66)


@pytest.fixture
def home(tmp_path, monkeypatch):
    for name in ('XDG_STATE_HOME', 'XDG_CACHE_HOME', 'XDG_DATA_HOME', 'STATE_DIRECTORY', 'CACHE_DIRECTORY'):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv('HOME', str(tmp_path))
    monkeypatch.setenv('RUNNEL_URL', 'http://127.0.0.1:1')  # nobody listens there
    return tmp_path


def doctor(*args, code=0):
    done = subprocess.run([binary(), 'doctor', '--json', *map(str, args)], capture_output=True, timeout=120)
    assert done.returncode == code, (done.returncode, done.stdout, done.stderr)
    report = json.loads(done.stdout)
    assert report['ok'] == (code == 0)
    return report, {f['what']: (f['state'], f['text']) for f in report['findings']}


def test_doctor_examines_machine_and_model(model, home):
    report, found = doctor('-m', model)
    measured = report['machine']['measured']
    assert measured['read_gb_per_s'] > 0.1 and measured['int8_tops'] > 0.001
    cpu = report['machine']['cpu']
    assert cpu['threads'] >= 1 and cpu['logical'] >= cpu['cores'] >= 1 and {'attn_q8_0', 'mm1_q4_0'} <= set(cpu['rows'])
    assert {'jansson', 'libwebsockets', 'sqlite3', 'libpcre2-8', 'libutf8proc', 'libxxhash'} <= set(report['libraries'])
    limit = report['limit']
    assert limit['read_tokens_per_s'] == pytest.approx(measured['read_gb_per_s'] * 1e9 / limit['bytes_per_token'], rel=1e-6)
    assert limit['by'] in ('read bandwidth', 'integer peak') and limit['read_tokens_per_s_filled'] < limit['read_tokens_per_s']
    assert report['model']['architecture'] == 'llama' and found['model'][0] == 'ok' and 'mode 0' in found['model'][1]
    assert found['conversations'][0] == found['cache'][0] == found['models'][0] == 'note'
    assert found['daemon'][0] == 'note' and report['daemon'] == {'address': '127.0.0.1:1', 'reachable': False, 'ready': False}
    text = runnel('doctor', '-m', model).decode()
    assert [line.split()[0] for line in text.splitlines()] == [f['state'] for f in report['findings']]


def test_doctor_shows_the_masked_rows(home):
    report, found = doctor('--cpu-mask', 'avx512vnni,avxvnni,avx2')
    assert set(report['machine']['cpu']['rows'].values()) == {'c'} and found['kernels'][0] == 'warn'
    assert found['model'][0] == 'note' and 'limit' not in report
    assert 'no kernel row' in runnel('doctor', '--cpu-mask', 'nonsense', code=64)
    assert 'https' in runnel('doctor', '--url', 'https://example.org', code=64)


def test_doctor_fails_where_something_does_not_work(home, tmp_path):
    state = home / '.local' / 'state' / 'runnel'
    state.mkdir(parents=True)
    state.chmod(0o755)
    report, found = doctor()
    assert found['conversations'][0] == 'warn' and '0755' in found['conversations'][1]
    state.chmod(0o700)
    report, found = doctor()
    assert found['conversations'] == ('ok', f"'{state}', mode 0700")
    assert {'what': 'conversations', 'path': str(state), 'exists': True, 'mode': '0700'} in report['directories']
    state.rmdir()
    state.write_text('in the way')
    assert doctor(code=1)[1]['conversations'][0] == 'fail'
    state.unlink()
    (tmp_path / 'bad.gguf').write_bytes(gguf({'general.architecture': 'quokka'}, []))
    assert 'quokka' in doctor('-m', tmp_path / 'bad.gguf', code=1)[1]['model'][1]
    assert doctor('-m', tmp_path / 'nowhere', code=1)[1]['model'][0] == 'fail'


def test_doctor_finds_the_daemon(daemon, home):
    report, found = doctor('--url', daemon.http)
    assert report['daemon']['ready'] is True and found['daemon'][0] == 'ok'
