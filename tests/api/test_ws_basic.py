"""The daemon with a real model, driven by unmodified clients: openai (Python) and websockets."""
import json
import signal
import statistics
import time
import urllib.error
import urllib.request

import pytest
from openai import OpenAI
from websockets.sync.client import connect

from conftest import Daemon, program
from events import check, create, read, read_all


def get(daemon, path, method='GET'):
    request = urllib.request.Request(daemon.http + path, method=method)
    try:
        with urllib.request.urlopen(request, timeout=20) as reply:
            return reply.status, json.load(reply)
    except urllib.error.HTTPError as e:
        return e.code, json.load(e)


@pytest.fixture
def ws(daemon):
    with connect(daemon.ws, max_size=None) as ws:
        yield ws


def ask(ws, text, **fields):
    fields.setdefault('temperature', 0)
    create(ws, text, **fields)
    return check(read_all(ws, 120), fields.get('stream_id'))


def said(response):
    return ''.join(part['text'] for item in response['output'] for part in item['content'])


def test_openai_client_holds_a_conversation(daemon):
    client = OpenAI(base_url=daemon.http + '/v1', api_key='none')
    model = client.models.list().data[0].id
    with client.responses.connect() as connection:
        previous = None
        for text in ('My name is Ada. What is the capital of France?', 'And of Italy?'):
            fields = {'previous_response_id': previous} if previous else {}
            connection.response.create(model=model, input=text, max_output_tokens=24, temperature=0, **fields)
            deltas, final = '', None
            for event in connection:
                if event.type == 'response.output_text.delta':
                    deltas += event.delta
                if event.type in ('response.completed', 'response.incomplete', 'response.failed', 'error'):
                    final = event
                    break
            assert final.type in ('response.completed', 'response.incomplete'), final
            assert final.response.output_text == deltas and deltas
            assert final.response.previous_response_id == previous
            previous = final.response.id
        assert final.response.usage.input_tokens_details.cached_tokens > 0


def test_record_says_what_happened(ws):
    response = ask(ws, 'Count to five.', max_output_tokens=16)
    record = response['runnel']
    assert set(record) >= {'session', 'timings', 'context', 'cache', 'computed', 'stop', 'sampling', 'warnings', 'ignored', 'device', 'fingerprint'}
    assert record['stop']['cause'] in ('eos', 'length')
    assert response['usage']['output_tokens'] <= 16
    assert set(record['timings']) >= {'queue_ms', 'prefill_ms', 'ttft_ms', 'decode_ms', 'prefill_tokens_per_s', 'decode_tokens_per_s'}
    assert set(record['context']) >= {'n', 'pinned', 'used', 'evicted', 'kept_from'}


def test_same_seed_same_words(ws):
    one = ask(ws, 'Tell me a story.', temperature=1, max_output_tokens=40, runnel={'seed': 11})
    two = ask(ws, 'Tell me a story.', temperature=1, max_output_tokens=40, runnel={'seed': 11})
    assert said(one) == said(two)
    assert one['runnel']['sampling']['seed'] == 11


def test_logprobs_and_penalties(ws):
    fields = dict(max_output_tokens=24, temperature=0, frequency_penalty=0.5, runnel={'repeat_penalty': 1.2, 'logit_bias': {'7': -100}})
    create(ws, 'Tell me a story about \u00e9t\u00e9.', include=['message.output_text.logprobs'], top_logprobs=3, **fields)
    events = read_all(ws, 120)
    response = check(events)
    part = response['output'][0]['content'][0]
    told = [p for e in events if e['type'] == 'response.output_text.delta' for p in e['logprobs']]
    assert told == part['logprobs'] and len(told) == response['usage']['output_tokens'] and response['top_logprobs'] == 3
    assert all(len(p['top_logprobs']) == 3 and p['logprob'] <= 0 for p in told)
    assert ''.join(p['token'] for p in told) == part['text'] or '\ufffd' in ''.join(p['token'] for p in told)
    assert response['frequency_penalty'] == 0.5
    sampling = response['runnel']['sampling']
    assert (sampling['repeat_penalty'], sampling['frequency_penalty'], sampling['logit_bias']) == (1.2, 0.5, {'7': -100})
    plain = ask(ws, 'Tell me a story about \u00e9t\u00e9.', **fields)
    assert said(plain) == part['text'] and plain['output'][0]['content'][0]['logprobs'] == []
    create(ws, 'x', runnel={'logit_bias': {'999999999': 1}})
    refused = read_all(ws)[-1]
    assert refused['status'] == 400 and refused['error']['param'] == 'logit_bias'


def test_generate_false_then_empty_input(ws):
    warm = ask(ws, 'What is two plus two?', generate=False)
    assert warm['output'] == [] and warm['status'] == 'completed'
    answer = ask(ws, None, input=[], previous_response_id=warm['id'], max_output_tokens=16)
    assert said(answer)
    plain = ask(ws, 'What is two plus two?', max_output_tokens=16)
    assert said(plain) == said(answer)


def test_stop_string_is_not_said(ws):
    plain = said(ask(ws, 'List three fruits.', max_output_tokens=40))
    stop = plain[len(plain) // 2:len(plain) // 2 + 6]
    cut = ask(ws, 'List three fruits.', max_output_tokens=40, runnel={'stop': [stop]})
    assert said(cut) == plain[:plain.index(stop)]
    assert cut['runnel']['stop']['cause'] == 'stop'


def test_cancel_keeps_the_session(ws):
    create(ws, 'Write a long essay about rivers.', runnel={'ignore_eos': True})
    events = [read(ws)]
    while events[-1]['type'] != 'response.output_text.delta':
        events.append(read(ws))
    ws.send(json.dumps({'type': 'response.cancel', 'response_id': events[0]['response']['id']}))
    events += read_all(ws)
    response = check(events)
    assert response['status'] == 'incomplete' and response['runnel']['stop']['cause'] == 'cancelled'
    assert said(ask(ws, 'Go on.', previous_response_id=response['id'], max_output_tokens=8))


def test_eight_lanes_say_what_one_says(ws):
    alone = said(ask(ws, 'Name a colour.', max_output_tokens=24))
    for i in range(8):
        create(ws, 'Name a colour.', stream_id=f'l{i}', max_output_tokens=24, temperature=0)
    events = {f'l{i}': [] for i in range(8)}
    open_lanes = set(events)
    while open_lanes:
        e = read(ws, 120)
        events[e['stream_id']].append(e)
        if e['type'] in ('response.completed', 'response.incomplete'):
            open_lanes.discard(e['stream_id'])
    for lane, own in events.items():
        assert said(check(own, lane)) == alone


def test_a_window_rolls(ws):
    create(ws, 'Write numbers.', temperature=0, max_output_tokens=400, runnel={'window': 128, 'evict': 'token', 'ignore_eos': True})
    events = read_all(ws, 120)
    response = check(events)
    assert response['usage']['output_tokens'] == 400
    assert response['runnel']['context']['evicted'] > 200
    assert any(e['type'] == 'runnel:context.evicted' for e in events)


def test_refusals_of_the_session_layer(ws):
    create(ws, 'x', previous_response_id='resp_doesnotexist')
    e = read(ws)
    assert (e['status'], e['error']['code'], e['error']['param']) == (400, 'previous_response_not_found', 'previous_response_id')
    create(ws, 'x', runnel={'session': 'sess_doesnotexist'})
    assert read(ws)['error']['code'] == 'not_found'
    create(ws, 'word ' * 5000)
    assert read(ws, 60)['error']['code'] == 'context_length_exceeded'
    create(ws, 'x', runnel={'window': 10_000_000})
    assert read(ws)['error']['type'] == 'invalid_request_error'


def test_sessions_over_http(daemon, ws):
    response = ask(ws, 'A title for the list.', max_output_tokens=8)
    session = response['runnel']['session']
    status, listed = get(daemon, '/runnel/sessions?limit=1')
    assert status == 200 and listed['data'][0]['id'] == session and listed['data'][0]['title'] == 'A title for the list.'
    assert set(listed['data'][0]) >= {'id', 'title', 'created_at', 'last_used', 'last_response_id', 'tokens', 'evicted'}
    status, shown = get(daemon, '/runnel/sessions/' + session)
    assert status == 200 and [i['role'] for i in shown['items']] == ['user', 'assistant']
    assert get(daemon, '/runnel/sessions/' + session, 'DELETE')[0] == 200
    assert get(daemon, '/runnel/sessions/' + session)[0] == 404


def test_unstored_answers_are_not_listed(daemon, ws):
    before = get(daemon, '/runnel/sessions')[1]['data']
    response = ask(ws, 'Nobody keeps this.', store=False, max_output_tokens=8)
    assert said(ask(ws, 'More.', store=False, previous_response_id=response['id'], max_output_tokens=8))
    assert get(daemon, '/runnel/sessions')[1]['data'] == before


def test_a_conversation_survives_a_restart(tmp_path, model):
    flags = (program('RUNNELD'), model, tmp_path / 'state')
    first = Daemon(*flags)
    with connect(first.ws) as ws:
        one = ask(ws, 'My favourite colour is green.', max_output_tokens=16)
    assert first.stop(signal.SIGTERM) == 0
    second = Daemon(*flags)
    with connect(second.ws) as ws:
        two = ask(ws, 'Which colour?', previous_response_id=one['id'], max_output_tokens=16)
        assert two['runnel']['session'] == one['runnel']['session']
    assert second.stop(signal.SIGINT) == 0


def test_a_dropped_connection_is_cancelled_after_the_linger_time(tmp_path, model):
    d = Daemon(program('RUNNELD'), model, tmp_path / 'state', '--linger', '1')
    with connect(d.ws) as ws:
        create(ws, 'Write a long essay about rivers.', runnel={'ignore_eos': True})
        session = read(ws)['response']['runnel']['session']
        while read(ws)['type'] != 'response.output_text.delta':
            pass
    with connect(d.ws) as ws:
        deadline, busy = time.monotonic() + 20, 0
        while True:
            create(ws, 'Go on.', runnel={'session': session}, max_output_tokens=4)
            last = read_all(ws)[-1]
            if last['type'] != 'error':
                break
            assert last['error']['code'] == 'session_busy' and last['status'] == 409 and time.monotonic() < deadline
            busy += 1
        assert busy > 0
    assert d.stop() == 0


def test_a_second_daemon_is_refused_the_state_directory(daemon, model):
    state = daemon.process.args[daemon.process.args.index('--state-dir') + 1]
    with pytest.raises(RuntimeError, match=str(daemon.process.pid)):
        Daemon(program('RUNNELD'), model, state)


def test_tokens_arrive_when_they_are_made(ws):
    create(ws, 'Write a long essay about rivers.', max_output_tokens=200, runnel={'ignore_eos': True}, temperature=0)
    times = []
    while True:
        e = read(ws, 60)
        if e['type'] == 'response.output_text.delta':
            times.append(time.perf_counter())
        elif e['type'] in ('response.incomplete', 'response.completed'):
            break
    gaps = [b - a for a, b in zip(times, times[1:])]
    per_token = 1 / e['response']['runnel']['timings']['decode_tokens_per_s']
    assert len(times) > 100
    assert statistics.median(gaps) < 2 * per_token + 0.001
