"""kill -9 at random moments under load: what a client saw end is there, nothing is there by half, and the conversation goes on as if nothing
had happened.

Every request of the load is a node of a tree: its parent is the response that it continues. After the kills an uninterrupted daemon is
asked the same tree; texts and token logs must be equal, byte for byte.
RUNNEL_TEST_KILLS: how many (10; 100 with RUNNEL_SLOW=1). RUNNEL_TEST_SEED: of the load; printed."""
import json
import os
import random
import shutil
import time

import pytest
from websockets.exceptions import ConnectionClosed

from conftest import Daemon, program
from daemon_kit import SLOW, Database, Wire, get, is_delta, item_text, said

KILLS = int(os.environ.get('RUNNEL_TEST_KILLS') or (100 if SLOW else 10))
SEED = int(os.environ.get('RUNNEL_TEST_SEED') or random.randrange(2 ** 32))
LANES = [f'lane{i}' for i in range(6)]
FLAGS = ('--reread-limit', '100000')
QUESTIONS = ['Tell me about the sea.', 'Name three animals.', 'Why is that?', 'What is the capital of France?', 'Write a poem about rain.',
             'Count to ten.', 'Go on.', 'Explain it to a child. ' + 'Be kind and patient. ' * 12, 'Who was Ada Lovelace?']
TERMINAL = ('response.completed', 'response.incomplete', 'response.failed')


class Node:
    """One request: what was asked, and what is known of its end."""

    def __init__(self, parent, fields, cancel_at):
        self.parent, self.fields, self.cancel_at = parent, fields, cancel_at
        self.id = None          # of the response, once it was created
        self.seen = ''          # deltas that the client saw
        self.acknowledged = False
        self.kept = False       # it moved its conversation: a node that others may hang on
        self.text = self.cause = self.n_output = None

    def end(self, text, cause, n_output):
        self.text, self.cause, self.n_output = text, cause, n_output
        # Cancelled without a token: its prefill had not ended, and the head stayed.
        self.kept = cause not in ('interrupted', 'error') and (n_output > 0 or not self.fields.get('generate', True))

    @property
    def base(self):
        """The node that a child of this one really continues; None = the start."""
        return self if self.kept else self.parent

    def __repr__(self):
        return f'{self.id} {self.fields} cause {self.cause}'


class Load:
    def __init__(self, rng):
        self.rng = rng
        self.nodes = []
        self.heads = {lane: None for lane in LANES}  # the node that each lane continues

    def next_request(self, lane):
        rng, head = self.rng, self.heads[lane]
        if rng.random() < 0.08:
            head = None
        own = [n for n in self.nodes if n.kept]
        if own and rng.random() < 0.15:
            head = rng.choice(own)  # mostly not a head: a fork
        fields = {'input': rng.choice(QUESTIONS), 'max_output_tokens': rng.choice([5, 20, 40, 80]), 'temperature': rng.choice([0, 0, 0.8, 1.0])}
        own = {'seed': rng.randrange(2 ** 53)}
        if rng.random() < 0.4:
            own['ignore_eos'] = True
        if rng.random() < 0.15:
            fields['generate'] = False
        if head and rng.random() < 0.2 and head.fields.get('generate') is False and head.kept:
            fields['input'] = []
            fields.pop('generate', None)
        if head is None:
            if rng.random() < 0.6:
                own.update({'window': rng.choice([128, 256]), 'overflow': 'roll', 'evict': rng.choice(['turn', 'token'])})
            if rng.random() < 0.3:
                fields['instructions'] = 'You are terse.'
        fields['runnel'] = own
        node = Node(head.base if head else None, fields, rng.randrange(1, 15) if rng.random() < 0.15 else None)
        # Also the id of one that was interrupted, or cancelled before its first token: it stands for its parent.
        named = head.id if head and (head.kept or head.parent) else node.parent.id if node.parent else None
        self.nodes.append(node)
        return node, {**fields, **({'previous_response_id': named} if named else {})}

    def run(self, wire, n_events):
        """Keeps all lanes busy until n_events have come."""
        running = {}
        for _ in range(n_events):
            for lane in LANES:
                if lane not in running:
                    running[lane], fields = self.next_request(lane)
                    wire.create(lane=lane, **fields)
            self.take(wire, running, *wire.next())
        return running

    def take(self, wire, running, lane, event):
        node = running[lane]
        if event['type'] == 'response.created':
            node.id = event['response']['id']
        elif is_delta(event):
            node.seen += event['delta']
            if node.cancel_at and len([e for e in wire.open[lane] if is_delta(e)]) == node.cancel_at:
                wire.cancel(stream_id=lane)
        elif event['type'] in TERMINAL:
            response = event['response']
            assert event['type'] != 'response.failed', event
            assert 'rebased' not in response['runnel'], (node, response['runnel'])
            node.acknowledged = True
            node.end(said(response), response['runnel']['stop']['cause'], response['usage']['output_tokens'])
            assert node.text == node.seen
            self.heads[lane] = node
            del running[lane]
        else:
            assert event['type'] != 'error', (node, event)

    def drain(self, wire, running):
        """What reached us before the daemon died counts as seen."""
        try:
            while True:
                self.take(wire, running, *wire.next(20))
        except ConnectionClosed:
            pass


def verify_sessions(db):
    """No half turn, no half log: every session is what its responses say."""
    assert db.all("SELECT id FROM responses WHERE status = 'in_progress'") == []
    for session in db.all('SELECT * FROM sessions'):
        items, log = db.items(session['key']), db.ids(session['key'])
        assert len(log) == session['head']
        end = 0
        for i, item in enumerate(items):
            assert item['ordinal'] == i and end <= item['first'] <= item['end'] <= len(log)
            end = item['end']
        own = db.all('SELECT * FROM responses WHERE session = ? ORDER BY key', session['key'])
        for row in own:
            came = [i['role'] for i in items if i['response_id'] == row['id']]
            moved = row['head'] > row['head_before']
            answers = 1 if moved and row['generate'] else 0
            assert came.count('assistant') == answers and (moved or not came), (dict(row), came)
            assert row['cause'] != 'interrupted' or (not moved and row['status'] == 'incomplete')
        ended = [row for row in own if row['head'] > row['head_before']]
        if ended:
            assert session['head'] == ended[-1]['head'] and session['last_response_id'] == ended[-1]['id'] and len(items) == ended[-1]['n_items']


def settle(db, load, running):
    """After the restart: nothing that was acknowledged is lost; what was in progress is interrupted or was committed unseen."""
    for node in load.nodes:
        row = db.response(node.id) if node.id else None
        if node.acknowledged:
            assert row is not None and row['cause'] == node.cause, node
            assert (row['status'], row['generate']) == ('incomplete' if node.cause in ('length', 'cancelled') else 'completed', node.fields.get('generate', True))
            texts = [item_text(i) for i in db.all("SELECT * FROM items WHERE response_id = ? AND session = ? AND role = 'assistant'", node.id, row['session'])]
            assert texts == ([node.text] if node.kept and node.fields.get('generate', True) else []), node
    n_unseen = 0
    for lane, node in running.items():
        if not node.id:  # the client does not know of it; whatever is there was checked with its session
            continue
        row = db.response(node.id)
        assert row is not None, f'{node} was said to be created'
        if row['cause'] == 'interrupted':
            assert (row['status'], row['head']) == ('incomplete', row['head_before'])
            node.end('', 'interrupted', 0)
        else:
            items = db.all("SELECT * FROM items WHERE response_id = ? AND session = ? AND role = 'assistant'", node.id, row['session'])
            text = ''.join(map(item_text, items))
            assert text.startswith(node.seen)
            log = row['head'] - row['head_before']
            node.end(text, row['cause'], json.loads(row['usage'])['output_tokens'] if log else 0)
            n_unseen += 1
        load.heads[lane] = node
    return n_unseen


def replay(daemon, nodes):
    """Asks an uninterrupted daemon the same tree, 8 at a time: node -> its response there."""
    there, waiting = {}, [n for n in nodes if n.kept]
    with Wire(daemon) as wire:
        running, free = {}, [f'r{i}' for i in range(8)]
        while waiting or running:
            for node in list(waiting):
                if free and (node.parent is None or node.parent in there):
                    fields = dict(node.fields)
                    if node.cause == 'cancelled':  # the same tokens, ended by the limit
                        fields['max_output_tokens'] = node.n_output
                    if node.parent:
                        fields['previous_response_id'] = there[node.parent]['id']
                    lane = free.pop()
                    running[lane] = node
                    waiting.remove(node)
                    wire.create(lane=lane, **fields)
            lane, event = wire.next()
            assert event['type'] not in ('error', 'response.failed'), (running[lane], event)
            if event['type'] in TERMINAL:
                there[running.pop(lane)] = event['response']
                free.append(lane)
    return there


def chain(node):
    items = []
    while node:
        if node.fields.get('generate', True):
            items.append(('assistant', node.text))
        if node.fields['input']:
            items.append(('user', node.fields['input']))
        node = node.parent
    return items[::-1]


@pytest.mark.slow
def test_kill_at_random_moments(tmp_path, model):
    print(f'RUNNEL_TEST_SEED={SEED}, {KILLS} kills')
    rng = random.Random(SEED)
    load, interrupted, unseen = Load(rng), 0, 0
    state = tmp_path / 'state'
    daemon = Daemon(program('RUNNELD'), model, state, *FLAGS)
    for kill in range(KILLS):
        with Wire(daemon) as wire:
            running = load.run(wire, rng.randrange(1, 300))
            time.sleep(rng.uniform(0, 0.03))  # the moment, not a wait: anywhere in a step or a transaction
            daemon.kill()
            load.drain(wire, running)
        crashed = tmp_path / 'crashed'
        shutil.copytree(state, crashed, ignore=shutil.ignore_patterns('*.sock'))
        with Database(crashed) as db:
            db.is_sound()
        shutil.rmtree(crashed)
        daemon = Daemon(program('RUNNELD'), model, state, *FLAGS)
        with Database(state) as db:
            db.is_sound()
            verify_sessions(db)
            unseen += settle(db, load, running)
        interrupted += sum(n.cause == 'interrupted' for n in running.values())
    with Wire(daemon) as wire:  # what was left is continued once more, on every lane
        running = {}
        for lane in LANES:
            if load.heads[lane]:
                running[lane], fields = load.next_request(lane)
                wire.create(lane=lane, **fields)
        while running:
            load.take(wire, running, *wire.next())
    kept = [n for n in load.nodes if n.kept]
    print(f'{len(load.nodes)} requests, {len(kept)} kept, {sum(n.acknowledged for n in load.nodes)} acknowledged, {interrupted} interrupted, '
          f'{unseen} committed but not seen, {sum(n.cause == "cancelled" for n in load.nodes)} cancelled')
    assert interrupted >= KILLS and len(kept) > KILLS
    for node in kept[-20:]:
        with Database(state) as db:
            session = db.response(node.id)['session_id']
        if node is load.nodes[-1] or get(daemon, f'/runnel/sessions/{session}')[1]['last_response_id'] == node.id:
            shown = get(daemon, f'/runnel/sessions/{session}')[1]['items']
            assert [(i['role'], ''.join(p['text'] for p in i['content'])) for i in shown] == chain(node)
    twin = Daemon(program('RUNNELD'), model, tmp_path / 'twin', *FLAGS)
    there = replay(twin, load.nodes)
    with Database(state) as here_db, Database(tmp_path / 'twin') as there_db:
        for node in kept:
            other = there[node]
            assert said(other) == node.text, f'{node}\n{node.text!r}\n{said(other)!r}'
            assert there_db.ids_up_to(other['id']) == here_db.ids_up_to(node.id), node
    assert twin.stop() == 0 and daemon.stop() == 0


@pytest.mark.slow
def test_a_rebased_session_says_so_and_is_exact_again(tmp_path, model):
    state, flags = tmp_path / 'state', ('--reread-limit', '300')
    ask = {'max_output_tokens': 60, 'temperature': 0.8, 'runnel': {'seed': 5, 'ignore_eos': True}}
    daemon = Daemon(program('RUNNELD'), model, state, *flags)
    with Wire(daemon) as wire:
        last = wire.ask('Tell me a story.', **{**ask, 'runnel': {**ask['runnel'], 'window': 128}})
    for turn in range(6):
        n_tokens = get(daemon, '/runnel/sessions/' + last['runnel']['session'])[1]['tokens']
        with Wire(daemon) as wire:
            expected = wire.ask(f'And then, in chapter {turn}?', store=False, previous_response_id=last['id'], **ask)  # with the pages that are there
        daemon.kill()
        daemon = Daemon(program('RUNNELD'), model, state, *flags)
        with Wire(daemon) as wire:
            last = wire.ask(f'And then, in chapter {turn}?', previous_response_id=last['id'], **ask)
        with Database(state) as db:
            row = db.all('SELECT origin, sinks FROM sessions')[0]
        rebased = 'rebased' in last['runnel']
        print(f'{n_tokens} tokens: {"rebased to " + str(row["origin"]) if rebased else "exact"}')
        if rebased:
            assert last['runnel']['rebased'] == {'cause': 'reread'} and row['origin'] > row['sinks'] and n_tokens > 300
            break
        assert said(last) == said(expected) and n_tokens - row['sinks'] <= 300
    else:
        pytest.fail('never rebased')
    for question in ('What next?', 'And last?'):  # from the new origin re-reading is exact
        with Wire(daemon) as wire:
            expected = wire.ask(question, store=False, previous_response_id=last['id'], **ask)
        daemon.kill()
        daemon = Daemon(program('RUNNELD'), model, state, *flags)
        with Wire(daemon) as wire:
            last = wire.ask(question, previous_response_id=last['id'], **ask)
        assert 'rebased' not in last['runnel'] and said(last) == said(expected)
    assert daemon.stop() == 0


@pytest.mark.slow
def test_what_closes_an_answer_is_added_once(tmp_path, model):
    """Answers that end at, and shortly behind, an end mark of their own (ignore_eos): nobody can tell from their ids whether they are closed."""
    state, question = tmp_path / 'state', 'What is the capital of France? Say one word.'
    follow = {'max_output_tokens': 4}
    daemon = Daemon(program('RUNNELD'), model, state)
    with Wire(daemon) as wire:
        n = wire.ask(question, max_output_tokens=60)['usage']['output_tokens']
        answers = [wire.ask(question, max_output_tokens=n + more, runnel={'ignore_eos': True}) for more in range(6)]
        answers.append(wire.ask(question, max_output_tokens=60))  # ended by its end mark
        answers.append(wire.ask('Once more.', instructions='You are terse.', previous_response_id=answers[-1]['id'], **follow))
        expected = [wire.ask('And of Italy?', previous_response_id=a['id'], **follow) for a in answers]
    daemon.kill()
    daemon = Daemon(program('RUNNELD'), model, state)
    with Wire(daemon) as wire, Database(state) as db:
        for answer, before in zip(answers, expected):
            after = wire.ask('And of Italy?', previous_response_id=answer['id'], **follow)
            assert db.ids_up_to(after['id']) == db.ids_up_to(before['id'])
    assert daemon.stop() == 0


@pytest.mark.slow
def test_eight_windows_are_read_again_and_no_more(tmp_path, model):
    """The limit is 8 of the session's own windows when no flag sets it."""
    state = tmp_path / 'state'
    daemon = Daemon(program('RUNNELD'), model, state)
    ask = {'max_output_tokens': 4, 'runnel': {'window': 64, 'sinks': 4, 'overflow': 'roll'}}
    with Wire(daemon) as wire:
        below = wire.ask('word ' * 440, **ask)
        beyond = wire.ask('word ' * 560, **ask)
    daemon.kill()
    daemon = Daemon(program('RUNNELD'), model, state)
    with Wire(daemon) as wire:
        for last, rebased in ((below, False), (beyond, True)):
            n_tokens = get(daemon, '/runnel/sessions/' + last['runnel']['session'])[1]['tokens']
            assert (n_tokens - 4 > 8 * 64) == rebased, n_tokens
            assert ('rebased' in wire.ask('Next?', previous_response_id=last['id'], max_output_tokens=4)['runnel']) == rebased
    assert daemon.stop() == 0


def test_a_stop_stores_what_was_said(tmp_path, model):
    """SIGTERM is not a crash: what runs ends as incomplete, with its text."""
    state = tmp_path / 'state'
    daemon = Daemon(program('RUNNELD'), model, state)
    with Wire(daemon) as wire:
        wire.create('Write a long story.', runnel={'ignore_eos': True})
        for _ in range(5):
            wire.until(lambda lane, e: is_delta(e))
        assert daemon.stop() == 0
        wire.rest()
    events = wire.ended[None][0]
    response = events[-1]['response']
    assert response['status'] == 'incomplete' and said(response) == ''.join(e['delta'] for e in events if is_delta(e))
    daemon = Daemon(program('RUNNELD'), model, state)
    with Database(state) as db, Wire(daemon) as wire:
        assert [item_text(i) for i in db.items(db.response(response['id'])['session'])][1] == said(response)
        assert said(wire.ask('Go on.', previous_response_id=response['id'], max_output_tokens=8))
    assert daemon.stop() == 0
