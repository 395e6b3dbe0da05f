"""A backend for the page whose answers are scripted, for what a real daemon does only by accident: sockets that drop in the middle of
an answer, refusals, failures, waiting, evictions. It serves daemon/web with the daemon's own policy.

What the user says chooses the script: see Backend.answer. `hold` scripts go on at release(); the tests never sleep for them."""
import asyncio
import json
import os
import re
import threading
import time

from aiohttp import WSMsgType, web

ROOT = os.path.join(os.path.dirname(__file__), '..', '..')
WEB = os.path.join(ROOT, 'daemon', 'web')
TYPES = {'.html': 'text/html', '.js': 'text/javascript', '.css': 'text/css', '.svg': 'image/svg+xml'}
WINDOW = 4096


def policy():
    """The Content-Security-Policy as daemon/web.h has it."""
    with open(os.path.join(ROOT, 'daemon', 'web.h'), encoding='utf-8') as f:
        lines = re.search(r'#define RN_WEB_CSP(.*?)\n\n', f.read(), re.S)[1]
    return ''.join(re.findall(r'"(.*?)"', lines))


def message(role, text, status='completed', item_id=None):
    kind = 'output_text' if role == 'assistant' else 'input_text'
    return {'id': item_id or f'msg_{time.monotonic_ns()}', 'type': 'message', 'role': role, 'status': status, 'content': [{'type': kind, 'text': text}]}


class Backend:
    """Runs in a thread of its own; the attributes are read and set by the tests."""

    def __init__(self):
        self.sessions = {}   # id -> session with items
        self.requests = []   # every message that came over a socket
        self.sockets = set()
        self.answers = set()  # tasks
        self.connections = []  # when each socket was asked for
        self.refuse_sockets = False
        self.serial = 0
        self.loop = asyncio.new_event_loop()
        self.gate = asyncio.Semaphore(0)
        started = threading.Event()
        self.thread = threading.Thread(target=self.run, args=(started,), daemon=True)
        self.thread.start()
        assert started.wait(10)

    def run(self, started):
        asyncio.set_event_loop(self.loop)

        async def start():
            app = web.Application()
            app.add_routes([web.get('/v1/responses', self.socket), web.get('/v1/models', self.models), web.get('/health', self.health),
                            web.get('/runnel/sessions', self.list), web.get('/runnel/sessions/{id}', self.show),
                            web.delete('/runnel/sessions/{id}', self.delete), web.get('/{name:[a-z.]*}', self.file)])
            runner = web.AppRunner(app)
            await runner.setup()
            site = web.TCPSite(runner, '127.0.0.1', 0)
            await site.start()
            self.http = f'http://127.0.0.1:{site._server.sockets[0].getsockname()[1]}'
            started.set()
            return runner

        self.runner = self.loop.run_until_complete(start())
        self.loop.run_forever()

    def call(self, coroutine):
        return asyncio.run_coroutine_threadsafe(coroutine, self.loop).result(10)

    def release(self, n=1):
        async def go():
            for _ in range(n):
                self.gate.release()
        self.call(go())

    def drop(self):
        """Ends every connection without a closing handshake, as a killed daemon does."""
        async def go():
            for ws in list(self.sockets):
                ws._req.transport.abort()
        self.call(go())

    def stop(self):
        self.drop()

        async def go():
            answers = list(self.answers)
            for answer in answers:
                answer.cancel()
            await asyncio.gather(*answers, return_exceptions=True)
            await self.runner.cleanup()
        self.call(go())
        self.loop.call_soon_threadsafe(self.loop.stop)
        self.thread.join(10)

    def add_session(self, title, *items, age=0):
        self.serial += 1
        session = {'id': f'sess_{self.serial:04d}', 'title': title, 'created_at': int(time.time()) - age, 'last_used': int(time.time()) - age,
                   'last_response_id': f'resp_{self.serial}', 'tokens': 40 * len(items), 'evicted': 0, 'window': WINDOW, 'pinned': 4, 'evict': 'turn',
                   'items': list(items)}
        self.sessions[session['id']] = session
        return session

    # ---- HTTP ----

    async def file(self, request):
        name = request.match_info['name'] or 'index.html'
        path = os.path.join(WEB, name)
        if not os.path.isfile(path):
            return self.problem(404, 'not_found', 'there is nothing at this path')
        with open(path, 'rb') as f:
            return web.Response(body=f.read(), content_type=TYPES[os.path.splitext(name)[1]], charset='utf-8',
                                headers={'Content-Security-Policy': policy(), 'X-Content-Type-Options': 'nosniff', 'Cache-Control': 'no-cache'})

    @staticmethod
    def problem(status, code, text):
        return web.json_response({'error': {'message': text, 'type': 'invalid_request_error', 'param': None, 'code': code}}, status=status)

    async def health(self, _):
        return web.json_response({'status': 'loading' if self.refuse_sockets else 'ok'})

    async def models(self, _):
        return web.json_response({'object': 'list', 'data': [{'id': 'scripted-1b', 'object': 'model', 'meta': {'n_ctx': WINDOW}}]})

    async def list(self, _):
        return web.json_response({'data': [{k: v for k, v in s.items() if k != 'items'} for s in self.sessions.values()]})

    async def show(self, request):
        session = self.sessions.get(request.match_info['id'])
        return web.json_response(session) if session else self.problem(404, 'not_found', 'no such session')

    async def delete(self, request):
        session = self.sessions.pop(request.match_info['id'], None)
        return web.json_response({'id': session['id'], 'deleted': True}) if session else self.problem(404, 'not_found', 'no such session')

    # ---- The socket ----

    async def socket(self, request):
        self.connections.append(time.monotonic())
        if self.refuse_sockets:
            return self.problem(503, 'model_loading', 'the model is loading')
        ws = web.WebSocketResponse()
        await ws.prepare(request)
        self.sockets.add(ws)
        lanes = {}
        async for frame in ws:
            if frame.type != WSMsgType.TEXT:
                break
            said = json.loads(frame.data)
            self.requests.append(said)
            lane = said.get('stream_id')
            if said['type'] == 'response.create':
                lanes[lane] = asyncio.Event()
                answer = asyncio.ensure_future(Answer(self, ws, said, lanes[lane]).run())
                self.answers.add(answer)
                answer.add_done_callback(self.answers.discard)
            elif said['type'] == 'response.cancel' and lane in lanes:
                lanes[lane].set()
        self.sockets.discard(ws)
        return ws


class Answer:
    def __init__(self, backend, ws, said, cancel):
        self.backend, self.ws, self.said, self.cancel = backend, ws, said, cancel
        self.text = ''
        self.number = 0
        self.open = False

    async def send(self, kind, **fields):
        event = {'type': kind, 'sequence_number': self.number, 'stream_id': self.said.get('stream_id'), **fields}
        self.number += 1
        if not self.ws.closed:
            try:
                await self.ws.send_str(json.dumps(event))
            except ConnectionResetError:
                pass

    async def write(self, text):
        if not self.open:
            self.open = True
            await self.send('response.output_item.added', output_index=0, item={**message('assistant', '', 'in_progress'), 'content': []})
        self.text += text
        await self.send('response.output_text.delta', item_id='msg', output_index=0, content_index=0, delta=text, logprobs=[])

    async def gate(self):
        """Until release() or a cancel; True = cancelled."""
        waits = [asyncio.ensure_future(self.backend.gate.acquire()), asyncio.ensure_future(self.cancel.wait())]
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in waits:
                task.cancel()
        return self.cancel.is_set()

    async def refuse(self, code, text, status=400):
        await self.send('error', status=status, error={'type': 'invalid_request_error', 'code': code, 'message': text, 'param': None})

    async def run(self):
        """Scripts, by the first word of what the user says:
        hold: a word per release(), for ever | drop: some words, then the socket goes; stored as incomplete at release()
        refuse CODE | fail: some words, then response.failed | quiet: nothing until release() or a cancel; a cancel takes the turn back
        lines N: N lines at once | length: ends at the limit | else: an echo in a few deltas."""
        text = self.said['input']
        word, _, rest = text.partition(' ')
        if word == 'refuse':
            await self.refuse(rest, 'it has 9000 tokens, the window has 4096')
            return
        backend = self.backend
        own = self.said['runnel']
        created = 'session' not in own
        session = backend.add_session(text[:60]) if created else backend.sessions.get(own['session'])
        if not session:
            await self.refuse('not_found', 'no such session', 404)
            return
        backend.serial += 1
        self.response = {'id': f'resp_{backend.serial}', 'object': 'response', 'status': 'in_progress', 'output': [],
                         'runnel': {'session': session['id'], 'context': {'n': WINDOW, 'pinned': 36, 'used': 57, 'evicted': 0, 'kept_from': 36}}}
        session['items'].append(message('user', text))
        await self.send('response.created', response=self.response)
        await self.send('response.queued' if word == 'quiet' else 'response.in_progress', response=self.response)
        status, cause = await self.script(word, rest)
        if cause == 'cancelled' and not self.text:
            session['items'].pop()
            if created:
                del backend.sessions[session['id']]
        else:
            session['items'].append(message('assistant', self.text, 'completed' if status == 'completed' else 'incomplete'))
            session.update(last_response_id=self.response['id'], last_used=int(time.time()), tokens=session['tokens'] + 600)
        await self.end(session, status, cause)

    async def script(self, word, rest):
        if word in ('hold', 'quiet'):
            i = 0
            while not await self.gate():
                i += 1
                await self.write(f'word{i} ')
                if word == 'quiet':
                    return 'completed', 'eos'
            return 'incomplete', 'cancelled'
        if word == 'drop':
            await self.write('The first sentence. The second is ')
            self.ws._req.transport.abort()
            await self.gate()
            self.text += 'longer than what was seen'
            return 'incomplete', 'cancelled'
        if word == 'fail':
            await self.write('Some words ')
            return 'failed', 'error'
        if word == 'lines':
            for i in range(int(rest)):
                await self.write(f'Line number {i}.\n')
            return 'completed', 'eos'
        if word == 'evict':
            await self.write('Something ')
            await self.send('runnel:context.evicted', response_id=self.response['id'], evicted_tokens=1234, kept_from=1238, kept_from_item=None)
            await self.gate()
            return 'completed', 'eos'
        for piece in re.findall(r'\S+\s*', f'You said: {self.said["input"]}'):
            await self.write(piece)
        return ('incomplete', 'length') if word == 'length' else ('completed', 'eos')

    async def end(self, session, status, cause):
        record = {'session': session['id'], 'timings': {'ttft_ms': 120.4, 'decode_tokens_per_s': 187.3},
                  'context': {'n': WINDOW, 'pinned': 36, 'used': 1240, 'evicted': 812, 'kept_from': 848}, 'stop': {'cause': cause, 'detail': None},
                  'sampling': {'max_output_tokens': 4096}, 'warnings': [], 'ignored': []}
        error = {'code': 'server_error', 'message': 'the device was lost'} if status == 'failed' else None
        await self.send(f'response.{status}', response={**self.response, 'status': status, 'error': error, 'runnel': record})
