"""runnel chat and runnel sessions against a running daemon: through a pipe, and in a terminal of the test's own."""
import json
import os
import pty
import re
import select
import signal
import time

import pytest

from cli_kit import binary, runnel, runnel_json

NOBODY = ['--url', 'http://127.0.0.1:1']
QUESTIONS = ['Tell me a löng story about a dog.', 'Write a löng poem about the sea.', 'Explain in all detail how a ship is büilt.', 'List a hündred animals.']


def test_a_pipe_is_answered_line_by_line(daemon):
    url = ['--url', daemon.http]
    said = runnel('chat', *url, '-n', 8, '--temp', 0, stdin='What is the capital of France?\n\nAnd of Italy?\n').decode()
    assert said.count('\n') >= 2 and said.endswith('\n')
    answers = [json.loads(line) for line in runnel('chat', *url, '-n', 8, '--temp', 0, '--json', stdin='What is the capital of France?\nAnd of Italy?').split(b'\n')[:-1]]
    assert len(answers) == 2 and all(a['text'] and a['response'].startswith('resp_') for a in answers)
    assert answers[0]['runnel']['session'] == answers[1]['runnel']['session']
    assert answers[1]['runnel']['cache']['tokens'] > 0


def test_a_session_goes_on_is_shown_and_removed(daemon):
    url = ['--url', daemon.http]
    first = json.loads(runnel('chat', *url, '-n', 4, '--json', '--window', 512, '-s', 'You are a parrot.', stdin='Good morning, parrot.'))
    name = first['runnel']['session']
    assert first['runnel']['context']['n'] == 512
    again = json.loads(runnel('chat', *url, '-n', 4, '--json', '--session', name, stdin='Good evening.'))
    assert again['runnel']['session'] == name and again['runnel']['cache']['tokens'] > 0 and again['runnel']['sampling']['temperature'] == 0.7
    listed = next(s for s in runnel_json('sessions', 'list', *url, '--json')['data'] if s['id'] == name)
    assert listed['title'] == 'Good morning, parrot.' and name in runnel('sessions', 'list', *url).decode()
    shown = runnel_json('sessions', 'show', name, *url, '--json')
    assert [item['role'] for item in shown['items']] == ['user', 'assistant'] * 2
    assert 'Good evening.' in runnel('sessions', 'show', name, *url).decode()
    assert runnel('sessions', 'rm', name, *url) == b''
    assert name in runnel('sessions', 'show', name, *url, code=1) and name in runnel('sessions', 'rm', name, *url, code=1)
    assert name in runnel('chat', *url, '--session', name, stdin='Hello?', code=1)


@pytest.mark.parametrize('args, stdin, code, said', [
    (['chat', *NOBODY], 'Hello?', 69, 'no daemon answers at http://127.0.0.1:1'),
    (['sessions', 'list', *NOBODY], '', 69, 'no daemon answers at http://127.0.0.1:1'),
    (['sessions', 'list', '--url', 'https://example.org'], '', 64, 'https://example.org'),
    (['sessions', 'list', '--url', 'http://127.0.0.1:99999'], '', 64, '99999'),
    (['sessions', 'list', '--url', 'http://127.0.0.1:1/v1'], '', 64, '/v1'),
    (['sessions'], '', 64, 'list, show ID or rm ID'),
    (['sessions', 'burn'], '', 64, 'list, show ID or rm ID'),
    (['sessions', 'rm'], '', 64, 'ID of a session'),
    (['sessions', 'list', 'x'], '', 64, 'no ID'),
    (['sessions', 'show', '../x'], '', 64, 'ID of a session'),
    (['chat', '-n', '5000'], '', 64, '-n'),
])
def test_errors_are_one_line(args, stdin, code, said):
    assert said in runnel(*args, stdin=stdin, code=code)


class Terminal:
    """A child in a terminal; what it writes is read up to expected places."""

    def __init__(self, *args):
        self.pid, self.fd = pty.fork()
        if self.pid == 0:
            os.environ['TERM'] = 'xterm'
            os.execv(binary(), ['runnel', *args])
        self.out = ''

    def until(self, pattern, seconds=120):
        end, found = time.monotonic() + seconds, None
        while not (found := re.search(pattern, self.out)):
            assert time.monotonic() < end, f'no {pattern!r} in {self.out!r}'
            if select.select([self.fd], [], [], 1)[0]:
                self.out += os.read(self.fd, 4096).decode(errors='replace')
        before, self.out = self.out[:found.start()], self.out[found.end():]
        return before

    def type(self, text):
        os.write(self.fd, text.encode())

    def wait(self):
        pid, self.pid = self.pid, None
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])

    def end(self):
        os.close(self.fd)
        if self.pid:
            os.kill(self.pid, signal.SIGKILL)
            self.wait()


def test_a_person_stops_an_answer_and_goes_on(daemon):
    t = Terminal('chat', '--url', daemon.http, '--temp', '0', '-s', 'You tell stories.')
    try:
        t.until('> ')
        for question in QUESTIONS:  # a small model may have little to say
            t.type(question + '\r')
            t.until(r'\r\n\S+ \S+')  # the first words
            t.type('\x03')
            t.until(r'tokens/s, window \d+/4096, evicted 0')
            if t.until(r'\]') == ', ended: cancelled':
                break
            t.until('> ')  # else its echo would look like the first words
        else:
            pytest.fail('no answer was long enough to be stopped')
        t.until('> ')
        t.type('half a line\x03')
        t.until(r'\(Ctrl-D leaves\)\r\n')
        t.until('> ')
        t.type('\x1b[A\r')  # the line before, from the history
        assert question in t.until(r'\r\n\S+')
        t.type('\x03')
        t.until(r'evicted 0[^\]]*\]')
        t.until('> ')
        t.type('\x04')
        t.until('--session ')
        name = t.until(' goes on')
        assert t.wait() == 0
    finally:
        t.end()
    items = runnel_json('sessions', 'show', name, '--url', daemon.http, '--json')['items']
    roles = [item['role'] for item in items]
    assert len(roles) >= 4 and roles == ['user', 'assistant'] * (len(roles) // 2) and all(item['content'][0]['text'] for item in items)
