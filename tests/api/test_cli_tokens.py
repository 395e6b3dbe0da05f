"""runnel tokenize and template against the models' own tokenizers."""
import json
import os
from pathlib import Path

import pytest

from cli_kit import load, runnel, runnel_json


@pytest.fixture(scope='module')
def rows():
    return load('smollm2_tokens.json')['rows']


@pytest.mark.parametrize('flags, key', [([], 'ids'), (['--special'], 'ids_special')])
def test_all_texts_have_the_ids_of_the_reference(model, rows, flags, key):
    got = runnel_json('tokenize', '-m', model, '--json-input', *flags, stdin=json.dumps([row['text'] for row in rows]))
    assert len(got) == len(rows) == 257
    for row, ids in zip(rows, got):
        assert ids == row[key], row['text']


def test_ids_become_the_texts_again(model, rows):
    for flags, key in ([], 'ids'), (['--special'], 'ids_special'):
        said = runnel_json('tokenize', '-m', model, '--detokenize', '--special', '--json-input', stdin=json.dumps([row[key] for row in rows]))
        assert said == [row['text'] for row in rows]


def test_standard_input_is_one_text(model, rows):
    for row in rows[1:40]:
        assert runnel_json('tokenize', '-m', model, stdin=row['text']) == row['ids']
        assert runnel('tokenize', '-m', model, '--detokenize', stdin=json.dumps(row['ids'])).decode() == row['text']


def test_bytes_that_are_no_text_survive(model):
    data = bytes(range(256)) * 3
    ids = runnel_json('tokenize', '-m', model, stdin=data)
    said = runnel('tokenize', '-m', model, '--detokenize', stdin=json.dumps(ids))
    printable = bytes(range(32, 127)).decode()
    assert said.decode().count(printable) == 3  # always valid UTF-8; control characters outside the vocabulary have no ids


def test_chat_renderings(model):
    for case in load('smollm2_chat.json')['cases']:
        question = json.dumps({'messages': case['messages'], 'add_generation_prompt': case['add_generation_prompt']})
        assert runnel('template', '-m', model, stdin=question).decode() == case['text'], case['name']
        got = runnel_json('template', '-m', model, '--json', stdin=question)
        assert got == {'text': case['text'], 'ids': case['ids']}, case['name']


def test_template_files_without_a_model():
    shared = Path(os.environ.get('RUNNEL_SHARED', '')) / 'data'
    if not os.environ.get('RUNNEL_SHARED') or not (shared / 'templates').exists():
        pytest.skip('RUNNEL_SHARED is not set: the templates of other models are not here')
    reference = json.loads((shared / 'reference' / 'templates.json').read_text())
    names = sorted(reference['templates'])
    n_dated = n_errors = 0
    for name in names[::6] + [n for n in names if 'llama' in n.lower()][:2]:
        for case, expected in reference['templates'][name].items():
            question = json.dumps({**reference['cases'][case], 'bos_token': '<BOS>', 'eos_token': '<EOS>', 'unk_token': '<UNK>',
                                   'now': '2026-11-29T10:15:00'})
            code = 1 if 'error' in expected else 0
            said = runnel('template', '--template', shared / 'templates' / f'{name}.jinja', stdin=question, code=code)
            if code:
                n_errors += 1
                assert 'line ' in said, (name, case)
            else:
                n_dated += '2026' in expected['text']
                assert said.decode() == expected['text'], (name, case)
    assert n_dated and n_errors


def test_template_file_with_other_variables(tmp_path):
    path = tmp_path / 't.jinja'
    path.write_text("{{ mood }} {{ tools | length }} {{ strftime_now('%H:%M') }} {{ add_generation_prompt }}")
    question = {'messages': [], 'mood': 'glad', 'tools': [1, 2], 'now': '2026-11-29T10:15'}
    assert runnel('template', '--template', path, stdin=json.dumps(question)) == b'glad 2 10:15 False'
    assert runnel_json('template', '--template', path, '--json', stdin=json.dumps(question)) == {'text': 'glad 2 10:15 False'}
    assert '"soon"' in runnel('template', '--template', path, stdin=json.dumps({**question, 'now': 'soon'}), code=1)
    path.write_text('a\n{% if %}')
    assert 'line 2' in runnel('template', '--template', path, stdin=json.dumps(question), code=1)
    assert 'nowhere' in runnel('template', '--template', tmp_path / 'nowhere', stdin='{}', code=66)
    assert '--template' in runnel('template', stdin='{}', code=64)
    assert 'both' in runnel('template', '--template', path, '-m', path, stdin='{}', code=64)


def test_control_tokens_inside_a_message_are_text(model):
    plain = runnel_json('tokenize', '-m', model, stdin='<|im_end|>')
    got = runnel_json('template', '-m', model, '--json', stdin=json.dumps({'messages': [{'role': 'user', 'content': '<|im_end|>'}]}))
    at = [i for i in range(len(got['ids'])) if got['ids'][i:i + len(plain)] == plain]
    assert len(plain) > 1 and len(at) == 1


def test_gpt_2_vocabulary_without_weights():
    folder = Path(os.environ.get('RUNNEL_SHARED', '')) / 'data' / 'tokenizers'
    if not os.environ.get('RUNNEL_SHARED') or not folder.exists():
        pytest.skip('RUNNEL_SHARED is not set: the vocabularies of other models are not here')
    texts = (folder / 'gpt-2.inp').read_bytes().decode().split('\n__ggml_vocab_test__\n')
    lines = (folder / 'gpt-2.out').read_text().split('\n')
    expected = [[int(x) for x in line.split()] for line in lines[:len(texts)]]
    got = runnel_json('tokenize', '-m', folder / 'gpt-2.gguf', '--json-input', stdin=json.dumps(texts))
    for text, ids, want in zip(texts, got, expected):
        assert ids == want, repr(text)
    said = runnel_json('tokenize', '-m', folder / 'gpt-2.gguf', '--json-input', '--detokenize', stdin=json.dumps(got))
    assert said == texts


@pytest.mark.parametrize('args, stdin, code, said', [
    (['tokenize'], '', 64, 'no model'),
    (['tokenize', '-m', '/nowhere.gguf'], '', 66, '/nowhere.gguf'),
    (['tokenize', '-m', 'MODEL', '--wrong'], '', 64, "unknown option '--wrong'"),
    (['tokenize', '-m', 'MODEL', '--detokenize'], '[1, 49152]', 1, '49152'),
    (['tokenize', '-m', 'MODEL', '--detokenize'], '[1, -1]', 1, 'element 1'),
    (['tokenize', '-m', 'MODEL', '--json-input'], '["a", 1]', 1, 'element 1'),
    (['tokenize', '-m', 'MODEL', '--json-input'], '["a",', 1, 'line 1'),
    (['template', '-m', 'MODEL'], '{}', 1, 'messages'),
    (['template', '-m', 'MODEL'], '[1]', 1, 'messages'),
])
def test_errors_are_one_line(model, args, stdin, code, said):
    assert said in runnel(*[model if a == 'MODEL' else a for a in args], stdin=stdin, code=code)


def test_help_and_version(model):
    text = runnel('help').decode()
    verbs = [line.split()[0] for line in text.split('\n') if line.startswith('  ')]
    assert verbs == sorted(verbs) and {'bench', 'chat', 'eval', 'logits', 'run', 'sessions', 'template', 'tokenize'} <= set(verbs)
    for verb in verbs:
        assert runnel(verb, '--help').decode().startswith('usage: ' if verb in ('help', ) else ('runnel ' if verb == 'version' else f'usage: runnel {verb}'))
    assert runnel('--version').decode().startswith('runnel ')
    assert 'unknown verb' in runnel('nonsense', code=64)
