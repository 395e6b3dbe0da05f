"""What the tests of the real daemon share: a connection with many lanes, what lies in the database, what the kernel says of a process.

RUNNEL_SLOW=1: the full numbers. Every wait has a deadline."""
import json
import os
import sqlite3
import struct
import time
import urllib.error
import urllib.request

from websockets.exceptions import ConnectionClosed
from websockets.sync.client import connect

from events import TERMINAL, check

SLOW = os.environ.get('RUNNEL_SLOW') == '1'
PATIENCE = 180  # seconds that any single wait may take on a busy machine


class Wire:
    """A WebSocket; events are kept per lane (None = the default one) until the response that they belong to has ended."""

    def __init__(self, daemon):
        self.ws = connect(daemon.ws, max_size=None, max_queue=None, close_timeout=5)
        self.log = []     # (lane, event) in order of arrival
        self.open = {}    # lane -> events of the response that runs there
        self.ended = {}   # lane -> lists of events, one per response that ended

    def __enter__(self):
        return self

    def __exit__(self, *what):
        self.ws.close()

    def create(self, said=None, lane=None, **fields):
        """Greedy and stored, unless the fields say otherwise."""
        fields = {'temperature': 0, **fields}
        if said is not None:
            fields['input'] = said
        if lane is not None:
            fields['stream_id'] = lane
        self.ws.send(json.dumps({'type': 'response.create', **fields}))

    def cancel(self, **which):
        self.ws.send(json.dumps({'type': 'response.cancel', **which}))

    def next(self, timeout=PATIENCE):
        event = json.loads(self.ws.recv(timeout=timeout))
        lane = event.get('stream_id')
        self.log.append((lane, event))
        own = self.open.setdefault(lane, [])
        own.append(event)
        if event['type'] in TERMINAL:
            self.ended.setdefault(lane, []).append(self.open.pop(lane))
        return lane, event

    def until(self, wanted, timeout=PATIENCE):
        """Reads up to an event for which wanted(lane, event) is true."""
        deadline = time.monotonic() + timeout
        while True:
            lane, event = self.next(max(0.001, deadline - time.monotonic()))
            if wanted(lane, event):
                return event

    def rest(self):
        """What had arrived before the connection broke."""
        try:
            while True:
                self.next(20)
        except ConnectionClosed:
            pass

    def finish(self, *lanes):
        """Reads until each of the lanes has one more response that ended: their events."""
        missing = set(lanes)
        before = {lane: len(self.ended.get(lane, [])) for lane in lanes}
        while missing:
            self.next()
            missing = {lane for lane in lanes if len(self.ended.get(lane, [])) == before[lane]}
        return [self.ended[lane][before[lane]] for lane in lanes]

    def events(self, said=None, lane=None, **fields):
        self.create(said, lane, **fields)
        return self.finish(lane)[0]

    def ask(self, said=None, lane=None, **fields):
        """The response, its events checked."""
        return check(self.events(said, lane, **fields), lane)

    def refused(self, said=None, **fields):
        """(status, code, param) of a request that must be refused."""
        event = self.events(said, **fields)[-1]
        assert event['type'] == 'error', event
        return event['status'], event['error']['code'], event['error']['param']


def is_delta(event):
    return event['type'] == 'response.output_text.delta'


def said(response):
    return ''.join(part['text'] for item in response['output'] for part in item['content'])


def get(daemon, path, method='GET'):
    request = urllib.request.Request(daemon.http + path, method=method)
    try:
        with urllib.request.urlopen(request, timeout=60) as reply:
            return reply.status, json.load(reply)
    except urllib.error.HTTPError as e:
        return e.code, json.load(e)


def state_of(daemon):
    args = daemon.process.args
    return str(args[args.index('--state-dir') + 1])


class Database:
    """What a state directory holds; may be read while the daemon runs."""

    def __init__(self, state_dir):
        self.db = sqlite3.connect(f'file:{state_dir}/runnel.db?mode=ro', uri=True, timeout=20)
        self.db.row_factory = sqlite3.Row

    def __enter__(self):
        return self

    def __exit__(self, *what):
        self.db.close()

    def all(self, sql, *values):
        return self.db.execute(sql, values).fetchall()

    def is_sound(self):
        assert [row[0] for row in self.all('PRAGMA integrity_check')] == ['ok']
        assert self.all('PRAGMA foreign_key_check') == []

    def response(self, response_id):
        rows = self.all('SELECT r.*, s.id AS session_id, s.head AS session_head FROM responses r JOIN sessions s ON s.key = r.session'
                        ' WHERE r.id = ?', response_id)
        return rows[0] if rows else None

    def items(self, session_key):
        return self.all('SELECT * FROM items WHERE session = ? ORDER BY ordinal', session_key)

    def ids(self, session_key):
        blocks = [row['ids'] for row in self.all('SELECT ids FROM token_log WHERE session = ? ORDER BY block', session_key)]
        data = b''.join(blocks)
        return list(struct.unpack(f'<{len(data) // 4}I', data))

    def ids_up_to(self, response_id):
        """The token log as that response left it."""
        row = self.response(response_id)
        return self.ids(row['session'])[:row['head']]


def item_text(row):
    return ''.join(part['text'] for part in json.loads(row['item'])['content'])


def anonymous_bytes(pid):
    with open(f'/proc/{pid}/status') as status:
        return next(int(line.split()[1]) for line in status if line.startswith('RssAnon')) * 1024


def cpu_seconds(pid):
    """Of all threads, in nanoseconds' grain where the kernel keeps it."""
    try:
        total = 0
        for task in os.listdir(f'/proc/{pid}/task'):
            with open(f'/proc/{pid}/task/{task}/schedstat') as file:
                total += int(file.read().split()[0])
        return total / 1e9
    except FileNotFoundError:
        with open(f'/proc/{pid}/stat') as file:
            fields = file.read().rsplit(')', 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf('SC_CLK_TCK')
