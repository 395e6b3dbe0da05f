"""The WebSocket and HTTP side of the daemon, with a scripted service behind it (tests/unit/fake_service.c)."""
import json
import socket
import subprocess
import threading
import time
import urllib.error
import urllib.request

import pytest
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import connect

from conftest import Daemon, program
from events import OPENAI, check, create, read, read_all, text_of


@pytest.fixture
def ws(fake):
    with connect(fake.ws, max_size=None, close_timeout=1) as ws:  # some tests leave messages unread
        yield ws


def error_of(event):
    OPENAI.validate_python(event)
    assert event['type'] == 'error'
    return event['status'], event['error']['code'], event['error']['param']


def test_plain_answer_has_every_event_in_order(ws):
    create(ws, 'hello wörld')
    events = read_all(ws)
    response = check(events)
    assert [e['type'] for e in events] == [
        'response.created', 'response.in_progress', 'response.output_item.added', 'response.content_part.added', 'response.output_text.delta',
        'response.output_text.delta', 'response.output_text.done', 'response.content_part.done', 'response.output_item.done', 'response.completed']
    assert text_of(events) == 'hello wörld'
    assert response['runnel']['stop']['cause'] == 'eos'
    assert response['runnel']['session'].startswith('sess_')


@pytest.mark.parametrize('script,kind', [('length', 'incomplete'), ('fail', 'failed'), ('queued', 'completed'), ('evict', 'completed')])
def test_other_ends(ws, script, kind):
    create(ws, script)
    events = read_all(ws)
    assert check(events)['status'] == kind
    if script == 'evict':
        assert [e for e in events if e['type'] == 'runnel:context.evicted'][0]['evicted_tokens'] == 100
    if script == 'queued':
        assert events[1]['type'] == 'response.queued'


def test_generate_false_is_created_and_completed(ws):
    create(ws, 'warm up', generate=False)
    events = read_all(ws)
    assert [e['type'] for e in events] == ['response.created', 'response.completed']
    assert check(events)['output'] == []


def test_refusals_keep_the_socket(ws):
    cases = [
        ({'temperature': 3}, (400, 'invalid_value', 'temperature')),
        ({'temperature': 'hot'}, (400, 'invalid_value', 'temperature')),
        ({'max_output_tokens': 5000}, (400, 'invalid_value', 'max_output_tokens')),
        ({'model': 'gpt-5'}, (404, 'model_not_found', 'model')),
        ({'tools': [{'type': 'function'}]}, (400, 'unsupported_parameter', 'tools')),
        ({'text': {'format': {'type': 'json_object'}}}, (400, 'unsupported_parameter', 'text.format')),
        ({'runnel': {'window': 'wide'}}, (400, 'invalid_value', 'runnel.window')),
        ({'input': [{'role': 'user', 'content': [{'type': 'input_image'}]}]}, (400, 'unsupported_parameter', 'input[0].content[0].type')),
        ({'previous_response_id': 'resp_missing'}, (400, 'previous_response_not_found', 'previous_response_id')),
        ({'input': 'refuse'}, (400, 'context_length_exceeded', 'input')),
        ({'stream_id': 'no/slash'}, (400, 'invalid_stream_id', 'stream_id')),
        ({'stream_id': ''}, (400, 'invalid_stream_id', 'stream_id')),
    ]
    for fields, expected in cases:
        create(ws, **{'input': 'x', **fields})
        assert error_of(read(ws)) == expected
    for raw, expected in [('nonsense', (400, 'invalid_json', None)), ('[]', (400, 'invalid_json', None)), ('{}', (400, 'missing_required_parameter', 'type')),
                          ('{"type":"nope"}', (400, 'invalid_value', 'type')), ('[' * 100, (400, 'invalid_json', None))]:
        ws.send(raw)
        assert error_of(read(ws)) == expected
    create(ws, 'still here')
    check(read_all(ws))


def test_neutral_and_unknown_fields_are_accepted(ws):
    create(ws, 'x', stream=True, tools=[], tool_choice='auto', parallel_tool_calls=False, reasoning=None, metadata={'a': 'b'}, truncation='auto',
           text={'format': {'type': 'text'}}, include=[], background=False, service_tier='auto', top_logprobs=0, brand_new=1, user='me',
           runnel={'seed': 5, 'stop': ['a', 'b'], 'brand_new': 2})
    response = check(read_all(ws))
    assert response['runnel']['ignored'] == ['brand_new', 'runnel.brand_new']
    assert response['metadata'] == {'a': 'b'} and response['parallel_tool_calls'] is False and response['user'] == 'me'


def test_lanes_run_side_by_side_and_in_order_within(ws):
    create(ws, 'hold', stream_id='a')
    first = [read(ws) for _ in range(5)]
    create(ws, 'in a after', stream_id='a')
    create(ws, '', stream_id='a', temperature=9)  # a refusal keeps its place
    create(ws, 'in b', stream_id='b')
    assert check(read_all(ws), 'b')['output'][0]['content'][0]['text'] == 'in b'
    ws.send(json.dumps({'type': 'response.cancel', 'response_id': first[0]['response']['id']}))
    held = first + read_all(ws)
    response = check(held, 'a')
    assert response['status'] == 'incomplete' and response['incomplete_details'] is None
    assert response['runnel']['stop']['cause'] == 'cancelled' and response['output'][0]['status'] == 'incomplete'
    assert check(read_all(ws), 'a')['output'][0]['content'][0]['text'] == 'in a after'
    refused = read(ws)
    assert refused['stream_id'] == 'a' and error_of(refused) == (400, 'invalid_value', 'temperature')


def test_cancel_of_a_lane_ends_what_waits_too(ws):
    create(ws, 'hold')
    create(ws, 'never runs')
    for _ in range(5):
        read(ws)
    ws.send(json.dumps({'type': 'response.cancel'}))
    assert read_all(ws)[-1]['type'] == 'response.incomplete'
    events = read_all(ws)
    assert [e['type'] for e in events] == ['response.created', 'response.incomplete']
    assert check(events)['runnel']['stop']['cause'] == 'cancelled'
    ws.send(json.dumps({'type': 'response.cancel'}))
    assert error_of(read(ws))[:2] == (404, 'response_not_found')
    ws.send(json.dumps({'type': 'response.cancel', 'response_id': 'resp_x'}))
    assert error_of(read(ws)) == (404, 'response_not_found', 'response_id')


def test_limits_of_lanes(ws):
    for i in range(16):
        create(ws, 'hold', stream_id=f'lane-{i}')
        for _ in range(5):
            read(ws)
    create(ws, 'later', stream_id='lane-16')  # the 17th waits
    for i in range(17, 32):
        create(ws, 'later', stream_id=f'lane-{i}')
    create(ws, 'x', stream_id='lane-32')
    assert error_of(read(ws)) == (400, 'websocket_stream_limit_reached', 'stream_id')
    for _ in range(8):
        create(ws, 'x', stream_id='lane-0')
    create(ws, 'x', stream_id='lane-0')
    full = read(ws)
    assert error_of(full) == (429, 'rate_limit_exceeded', None) and full['stream_id'] == 'lane-0'
    ws.send(json.dumps({'type': 'response.cancel', 'stream_id': 'lane-1'}))
    seen = [read(ws) for _ in range(6)]
    assert {e['stream_id'] for e in seen[:4]} == {'lane-1'}
    assert any(e.get('stream_id') == 'lane-16' for e in seen + [read(ws) for _ in range(10)])


def test_large_messages_both_ways(ws):
    create(ws, 'y' * 3_000_000, instructions='z' * 1000)
    assert len(text_of(read_all(ws))) == 3_000_000
    create(ws, 'big 5000000')
    assert len(text_of(read_all(ws))) == 5_000_000
    create(ws, 'words 5000')
    assert len(text_of(read_all(ws)).split()) == 5000


def test_uncompressed_large_message(fake):
    with connect(fake.ws, max_size=None, compression=None) as ws:
        create(ws, 'big 5000000')
        assert len(check(read_all(ws))['output'][0]['content'][0]['text']) == 5_000_000
        create(ws, 'ünï' * 500_000)
        check(read_all(ws))


def test_a_slow_reader_gets_one_delta_for_many(fake):
    with connect(fake.ws, max_size=None, compression=None, max_queue=1) as ws:
        create(ws, 'words 30000')  # about 5 MB of events: above the high-water mark
        events = read_all(ws)
        check(events)
        assert len(text_of(events).split()) == 30_000
        assert len(events) < 20_000


def test_message_too_big_closes_with_1009(fake):
    with connect(fake.ws, max_size=None, compression=None) as ws:
        with pytest.raises(ConnectionClosed) as closed:
            ws.send('x' * (8 * 1024 * 1024 + 1))
            assert error_of(read(ws))[1] == 'request_too_large'
            read(ws)
        assert closed.value.rcvd.code == 1009


def test_binary_frames_are_refused_then_closed_with_1003(fake):
    with connect(fake.ws) as ws:
        ws.send(b'\x00')
        assert error_of(read(ws))[1] == 'unsupported_frame'
        ws.send(b'\x00')
        assert error_of(read(ws))[1] == 'unsupported_frame'
        with pytest.raises(ConnectionClosed) as closed:
            read(ws)
        assert closed.value.rcvd.code == 1003


def test_fragments_are_put_together(ws):
    ws.send(['{"type":"response.cre', 'ate","input":', '"pieces"}'])
    assert text_of(read_all(ws)) == 'pieces'


def test_bad_utf8_closes_with_1007(fake):
    with connect(fake.ws) as ws:
        with pytest.raises(ConnectionClosed) as closed:
            ws.send(b'{"type":"\xff"}', text=True)
            read(ws)
        assert closed.value.rcvd.code == 1007


@pytest.mark.parametrize('headers,path,status', [
    ({'Origin': 'http://evil.example'}, '', 403), ({'Origin': 'null'}, '', 403), ({}, 'x', 404)])
def test_upgrade_is_refused_with_a_status(fake, headers, path, status):
    with pytest.raises(InvalidStatus) as refused:
        connect(fake.ws + path, additional_headers=headers)
    assert refused.value.response.status_code == status
    assert 'error' in json.loads(refused.value.response.body)


def test_own_origin_and_subprotocol_are_welcome(fake):
    with connect(fake.ws, origin=fake.http, subprotocols=['runnel.v1']) as ws:
        assert ws.subprotocol == 'runnel.v1'
        create(ws, 'page')
        check(read_all(ws))


def raw(fake, request):
    with socket.create_connection(('127.0.0.1', fake.port), timeout=5) as s:
        s.sendall(request.encode())
        data = b''
        while b'\r\n\r\n' not in data:
            more = s.recv(65536)
            if not more:
                break
            data += more
        return data.decode()


def test_foreign_host_is_421(fake):
    upgrade = 'Upgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n'
    for extra in ('', upgrade):
        assert ' 421 ' in raw(fake, f'GET /v1/responses HTTP/1.1\r\nHost: evil.example:7866\r\n{extra}\r\n').split('\r\n')[0]


def test_large_headers_are_taken(fake):
    assert raw(fake, 'GET /health HTTP/1.1\r\nHost: localhost\r\nCookie: ' + 'c' * 12000 + '\r\n\r\n').startswith('HTTP/1.1 200')


def test_h2c_is_served_as_http1(fake):
    assert raw(fake, 'GET /health HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\n'
               'HTTP2-Settings: AAMAAABkAAQAoAAAAAIAAAAA\r\n\r\n').startswith('HTTP/1.1 200')


def test_a_body_is_not_the_next_request(fake):
    inner = 'GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n'
    with socket.create_connection(('127.0.0.1', fake.port), timeout=5) as s:
        s.sendall(f'DELETE /nope HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(inner)}\r\n\r\n{inner}'.encode())
        data = b''
        try:
            while more := s.recv(65536):
                data += more
        except ConnectionResetError:
            pass
        assert data.count(b'HTTP/1.1') == 1 and b' 404 ' in data.split(b'\r\n')[0]


def test_many_connections_and_the_257th(fake):
    sockets = [socket.create_connection(('127.0.0.1', fake.port), timeout=5) for _ in range(256)]
    with socket.create_connection(('127.0.0.1', fake.port), timeout=5) as extra:
        assert b'503' in extra.recv(1000)
    for s in sockets:
        s.close()
    deadline = time.monotonic() + 10
    while True:
        try:
            with connect(fake.ws) as ws:
                create(ws, 'again')
                check(read_all(ws))
            return
        except (ConnectionClosed, InvalidStatus):  # the daemon has not seen all of them close yet
            assert time.monotonic() < deadline


def test_a_dropped_connection_lets_go(fake):
    for _ in range(20):
        with connect(fake.ws) as ws:
            create(ws, 'hold', stream_id='gone')
            read(ws)
    with connect(fake.ws) as ws:
        create(ws, 'alive')
        check(read_all(ws))


@pytest.mark.parametrize('flags,code,words', [
    ([], 66, '--model'), (['--model', 'missing.gguf'], 66, 'missing.gguf'), (['--model', 'x', '--listen', '0.0.0.0:0'], 78, 'loopback'),
    (['--model', 'x', '--listen', '[::]:0'], 78, 'loopback'), (['--model', 'x', '--listen', 'here'], 64, 'ADDR:PORT'), (['--modle', 'x'], 64, '--modle'),
    (['--model', 'x', '--threads', 'two'], 64, '--threads'), (['--model', 'x', '--state-dir', '/proc/nowhere/state'], 78, '/proc/nowhere')])
def test_exit_codes(flags, code, words):
    listen = [] if '--listen' in flags else ['--listen', '127.0.0.1:0']
    done = subprocess.run([program('RUNNELD_FAKE'), *flags, *listen], capture_output=True, text=True, timeout=20)
    assert done.returncode == code and words in done.stderr and done.stdout == ''


def test_a_taken_port_is_69(fake):
    done = subprocess.run([program('RUNNELD_FAKE'), '--model', 'x', '--listen', f'127.0.0.1:{fake.port}'], capture_output=True, text=True, timeout=20)
    assert done.returncode == 69 and str(fake.port) in done.stderr


def test_help_and_version():
    shown = subprocess.run([program('RUNNELD_FAKE'), '--help'], capture_output=True, text=True, timeout=20)
    assert shown.returncode == 0 and '--state-dir' in shown.stdout
    version = subprocess.run([program('RUNNELD_FAKE'), '--version'], capture_output=True, text=True, timeout=20)
    assert version.returncode == 0 and version.stdout.startswith('runneld ')


def test_http_routes(fake):
    def ask(path, method='GET'):
        request = urllib.request.Request(fake.http + path, method=method)
        try:
            with urllib.request.urlopen(request, timeout=10) as reply:
                return reply.status, reply.headers, reply.read()
        except urllib.error.HTTPError as e:
            return e.code, e.headers, e.read()
    for path, method, status in [('/health', 'GET', 200), ('/ready', 'GET', 200), ('/v1/models', 'GET', 200), ('/v1/models/fake', 'GET', 200),
                                 ('/v1/models/default', 'GET', 200), ('/v1/models/gpt', 'GET', 404), ('/runnel/sessions', 'GET', 200),
                                 ('/runnel/sessions/sess_a', 'GET', 200), ('/runnel/sessions/sess_a', 'DELETE', 200), ('/runnel/sessions/none', 'GET', 404),
                                 ('/runnel/sessions/', 'GET', 404), ('/runnel/sessions?limit=0', 'GET', 400), ('/nope', 'GET', 404),
                                 ('/v1/models', 'POST', 405), ('/v1/responses', 'GET', 426), ('/v1/responses', 'POST', 405), ('/health', 'HEAD', 200)]:
        got, headers, body = ask(path, method)
        assert got == status, (path, method, got)
        if method == 'HEAD':
            assert body == b'' and int(headers['content-length']) > 0
        elif status >= 400:
            assert set(json.loads(body)['error']) == {'message', 'type', 'param', 'code'}
    assert json.loads(ask('/runnel/sessions?limit=1')[2]) == {'data': [{'id': 'sess_b'}]}
    assert ask('/v1/models', 'POST')[1]['allow'] == 'GET, HEAD'


@pytest.mark.parametrize('flags, most', [((), 2048), (('--rope-scaling', 'none'), 2048), (('--rope-scaling', 'yarn:2.5'), 5120),
                                         (('--rope-scaling', 'linear'), 2048 * 1000)])
def test_the_longest_window_counts_the_rope_scaling(tmp_path, flags, most):
    daemon = Daemon(program('RUNNELD_FAKE'), 'fake.gguf', tmp_path / 'state', *flags)
    with urllib.request.urlopen(daemon.http + '/v1/models', timeout=10) as reply:
        model = json.load(reply)['data'][0]
    assert (model['max_model_len'], model['meta']['n_ctx_train'], model['meta']['n_ctx']) == (most, 2048, 2048)
    assert daemon.stop() == 0


def test_page_is_served_with_a_strict_policy(fake):
    with urllib.request.urlopen(fake.http + '/', timeout=10) as page:
        assert page.headers['content-type'].startswith('text/html')
        policy = page.headers['content-security-policy']
        assert "default-src 'none'" in policy and 'unsafe' not in policy
        etag = page.headers['etag']
    with pytest.raises(urllib.error.HTTPError) as known:
        urllib.request.urlopen(urllib.request.Request(fake.http + '/', headers={'If-None-Match': etag}), timeout=10)
    assert known.value.code == 304


def test_zz_sigterm_cancels_and_closes_with_1012(fake):
    with connect(fake.ws) as ws:
        create(ws, 'hold')
        create(ws, 'waits')
        events = [read(ws) for _ in range(5)]
        codes = []
        stopper = threading.Thread(target=lambda: codes.append(fake.stop()))
        stopper.start()
        events += read_all(ws)
        assert check(events)['runnel']['stop']['cause'] == 'cancelled'
        assert error_of(read(ws)) == (503, 'draining', None)
        with pytest.raises(ConnectionClosed) as closed:
            read(ws)
        assert closed.value.rcvd.code == 1012
        stopper.join()
        assert codes == [0], fake.log
