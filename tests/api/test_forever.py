"""A WebSocket session that goes on past 20 windows: every turn ends, the figures agree, memory stays flat, restarts do not matter."""
import pytest

from conftest import Daemon, program
from daemon_kit import SLOW, Database, Wire, anonymous_bytes, get, said
from events import check

N = 256
WINDOWS = 100 if SLOW else 21
FLAT_FROM = 11  # windows: more than the 2048 tokens of slack and one window that a stored session holds
STORY = 'The ferry left the island at dawn and the keeper counted the lamps along the shore. '


class Talk:
    """One session, and what must be true after each of its turns."""

    def __init__(self, daemon):
        self.daemon = daemon
        self.wire = Wire(daemon)
        self.last = None       # response
        self.rss = []          # (tokens, bytes) in this process
        self.turn = self.kept_from = self.evicted = self.tokens = 0

    def restart(self, daemon):
        self.wire.ws.close()
        self.daemon, self.wire, self.rss = daemon, Wire(daemon), []

    def say(self, text, **fields):
        runnel = {'ignore_eos': True} if self.turn % 5 else {}
        if self.last:
            fields['previous_response_id'] = self.last['id']
        else:
            runnel['window'] = N
        events = self.wire.events(text, max_output_tokens=40, runnel=runnel, **fields)
        self.last = check(events)
        self.turn += 1
        self.figures(events)
        return self.last

    def figures(self, events):
        record, usage = self.last['runnel'], self.last['usage']
        context = record['context']
        assert record['stop']['cause'] in ('eos', 'length') and 1 <= usage['output_tokens'] <= 40
        assert context['n'] == N and 4 <= context['pinned'] <= N // 4 and context['pinned'] < context['used'] <= N
        assert context['kept_from'] >= self.kept_from and context['evicted'] == context['kept_from'] - context['pinned']
        assert 0 < usage['input_tokens'] <= N and usage['input_tokens_details']['cached_tokens'] <= usage['input_tokens']
        assert record['cache']['tokens'] == usage['input_tokens_details']['cached_tokens'] and record['computed'] > 0
        told = [e for e in events if e['type'] == 'runnel:context.evicted']
        places = [self.kept_from] + [e['kept_from'] for e in told] + [context['kept_from']]
        assert places == sorted(places) and all(e['evicted_tokens'] == e['kept_from'] - context['pinned'] for e in told)
        assert bool(told) == (context['evicted'] > self.evicted), (told, context, self.evicted)
        assert not told or told[-1]['kept_from'] == context['kept_from']
        listed = get(self.daemon, '/runnel/sessions?limit=1')[1]['data'][0]
        assert (listed['id'], listed['last_response_id'], listed['evicted']) == (record['session'], self.last['id'], context['evicted'])
        assert context['used'] == context['pinned'] + listed['tokens'] - max(context['kept_from'], context['pinned'])
        assert listed['tokens'] > self.tokens
        self.kept_from, self.evicted, self.tokens = context['kept_from'], context['evicted'], listed['tokens']
        self.rss.append((self.tokens, anonymous_bytes(self.daemon.process.pid)))

    def until(self, windows):
        while self.tokens < windows * N:
            self.say(f'Part {self.turn}. ' + STORY * (9 if self.turn % 3 else 2) + 'What did he see?')


@pytest.mark.slow
def test_a_session_past_twenty_windows(tmp_path, model):
    state = tmp_path / 'state'
    talk = Talk(Daemon(program('RUNNELD'), model, state))
    talk.say('Hello. I will tell you a story in many parts.')
    talk.until(3)
    assert talk.daemon.stop() == 0  # short of the limit of 8 windows: read again as it was
    talk.restart(Daemon(program('RUNNELD'), model, state))
    assert 'rebased' not in talk.say('Are you still there?')['runnel']
    talk.until(WINDOWS - 5)
    flat = [size for tokens, size in talk.rss if tokens > FLAT_FROM * N]
    print(f'anonymous memory: {talk.rss[0][1] >> 20} MiB after {talk.rss[0][0]} tokens, {flat[0] >> 20} MiB to {max(flat) >> 20} MiB from window {FLAT_FROM} on')
    assert len(flat) > 3 and max(flat) - flat[0] < 4 << 20
    long = 'stone ' * 300
    assert talk.wire.refused(long, previous_response_id=talk.last['id'])[:2] == (400, 'context_length_exceeded')
    talk.say(long, truncation='auto')  # longer than the window: it rolls within the message
    talk.daemon.kill()
    talk.restart(Daemon(program('RUNNELD'), model, state))
    assert talk.say('Where were we?')['runnel']['rebased'] == {'cause': 'reread'}
    assert 'rebased' not in talk.say('And now?')['runnel']
    talk.until(WINDOWS)
    assert talk.evicted > (WINDOWS - 2) * N and said(talk.last)
    items = get(talk.daemon, '/runnel/sessions/' + talk.last['runnel']['session'])[1]['items']
    assert [i['role'] for i in items] == ['user', 'assistant'] * talk.turn
    talk.wire.ws.close()
    assert talk.daemon.stop() == 0
    with Database(state) as db:
        db.is_sound()
        assert [r['status'] for r in db.all('SELECT status FROM responses')].count('in_progress') == 0


def test_one_answer_longer_than_its_window(daemon):
    """No turn border helps here: the window moves token by token, also under the rule `turn`."""
    with Wire(daemon) as wire:
        events = wire.events('Write numbers.', max_output_tokens=300, runnel={'window': 64, 'sinks': 4, 'ignore_eos': True})
        response = check(events)
    context = response['runnel']['context']
    told = [e for e in events if e['type'] == 'runnel:context.evicted']
    assert response['usage']['output_tokens'] == 300 and context['used'] == 64 and context['evicted'] > 250
    assert len(told) > 5 and told[-1]['kept_from'] == context['kept_from']
