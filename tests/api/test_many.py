"""Many sessions at once: each gets what it would get alone, bit for bit, and none waits for another longer than a step."""
import pytest

from daemon_kit import Database, Wire, get, is_delta, said, state_of

LONG = 'The old harbour had twelve boats, and every boat had its own story. '
ENDLESS = {'max_output_tokens': 4096, 'runnel': {'ignore_eos': True}}


@pytest.fixture
def wire(daemon):
    with Wire(daemon) as wire:
        yield wire
        cancel_all(wire)


def mixed_requests():
    """Greedy and sampled, short and long prompts, full and small windows that roll while the others run."""
    def one(text, n, temperature=0.0, **runnel):
        return {'input': text, 'max_output_tokens': n, 'temperature': temperature, 'runnel': {'ignore_eos': True, **runnel}}
    return [one('Name a colour.', 50), one('Tell me about rivers.', 60, 1.0, seed=1), one('Count from one to ten.', 90, window=128),
            one(LONG * 20 + 'Summarise.', 40), one(LONG * 50 + 'What is this about?', 40, 0.8, seed=3, top_k=40),
            one('Tell me about mountains.', 150, 0.9, seed=4, window=160, evict='token'), one('Why is the sky blue?', 60, 1.0, seed=5, min_p=0.05),
            one(LONG * 12, 80, window=256, sinks=0)]


def result(daemon, response):
    with Database(state_of(daemon)) as db:
        return {'text': said(response), 'ids': db.ids_up_to(response['id']), 'usage': {k: response['usage'][k] for k in ('input_tokens', 'output_tokens')},
                'context': response['runnel']['context'], 'stop': response['runnel']['stop']}


@pytest.mark.slow
def test_each_of_eight_gets_the_bytes_of_a_run_alone(daemon, wire):
    requests = mixed_requests()
    alone = [result(daemon, wire.ask(r.pop('input'), **r)) for r in mixed_requests()]
    assert len({a['text'] for a in alone}) == 8 and any(a['context']['evicted'] for a in alone)
    lanes = [f'l{i}' for i in range(8)]
    for order in (range(8), (7, 4, 1, 3, 0, 5, 2, 6)):
        first, late = list(order)[:5], list(order)[5:]
        ended = {lane: len(wire.ended.get(lane, [])) for lane in lanes}
        for i in first:
            wire.create(lane=lanes[i], **requests[i])
        n_seen = 0
        while n_seen < 10:  # the others' prompts come in the middle of these answers
            n_seen += is_delta(wire.next()[1])
        for i in late:
            wire.create(lane=lanes[i], **requests[i])
        while any(len(wire.ended.get(lane, [])) == ended[lane] for lane in lanes):
            wire.next()
        together = [result(daemon, wire.ended[lane][-1][-1]['response']) for lane in lanes]
        assert together == alone


def start_eight(wire, lanes):
    """Eight answers that run: each has said something."""
    for lane in lanes:
        wire.create('Write a very long story about the sea.', lane, **ENDLESS)
    missing = set(lanes)
    while missing:
        lane, event = wire.next()
        if is_delta(event):
            missing.discard(lane)


def cancel_all(wire):
    for lane in wire.open:
        wire.cancel(stream_id=lane)
    while wire.open:
        wire.next()


def test_a_cancelled_one_frees_its_place_within_one_step(daemon, wire):
    lanes = [f'busy{i}' for i in range(8)]
    start_eight(wire, lanes)
    wire.create('I am the ninth.', 'ninth', max_output_tokens=4)
    wire.until(lambda lane, e: lane == 'ninth' and e['type'] == 'response.queued')
    for _ in range(3 * 8):  # three steps of the others: it waits
        wire.until(lambda lane, e: is_delta(e))
    assert [e['type'] for e in wire.open['ninth']] == ['response.created', 'response.queued']
    wire.cancel(stream_id=lanes[3])
    start = wire.until(lambda lane, e: lane == 'ninth' and e['type'] == 'response.in_progress')
    own = [lane for lane, e in wire.log if lane == lanes[3] and is_delta(e)]
    assert own
    last = max(i for i, (lane, e) in enumerate(wire.log) if lane == lanes[3] and is_delta(e))
    began = next(i for i, (lane, e) in enumerate(wire.log) if e is start)
    between = [lane for lane, e in wire.log[last + 1:began] if is_delta(e)]
    steps = max([between.count(lane) for lane in lanes] + [0])
    print(f'steps of the others between the last token of the cancelled answer and the start of the ninth: {steps}')
    assert steps <= 2  # the rest of the step that gave the token, and the one during which the cancel came
    wire.until(lambda lane, e: lane == 'ninth' and e['type'] in ('response.completed', 'response.incomplete'))
    if lanes[3] in wire.open:
        wire.finish(lanes[3])
    assert wire.ended[lanes[3]][-1][-1]['response']['runnel']['stop']['cause'] == 'cancelled'


def test_one_that_waits_can_be_cancelled(wire):
    lanes = [f'busy{i}' for i in range(8)]
    start_eight(wire, lanes)
    wire.create('I am the ninth.', 'ninth', max_output_tokens=4)
    wire.create('I am the tenth.', 'tenth', max_output_tokens=4)
    wire.until(lambda lane, e: lane == 'tenth' and e['type'] == 'response.queued')
    wire.cancel(stream_id='ninth')
    gone = wire.finish('ninth')[0]
    assert [e['type'] for e in gone] == ['response.created', 'response.queued', 'response.incomplete']
    assert gone[-1]['response']['runnel']['stop']['cause'] == 'cancelled' and gone[-1]['response']['output'] == []
    wire.cancel(stream_id=lanes[0])
    assert said(wire.finish('tenth')[0][-1]['response'])


@pytest.mark.slow
def test_a_long_prefill_does_not_stop_the_others(wire):
    wire.create('Write a very long story about the sea.', 'story', **ENDLESS)
    wire.until(lambda lane, e: is_delta(e))
    wire.create(LONG * 190, 'prompt', max_output_tokens=2)
    wire.until(lambda lane, e: lane == 'prompt' and e['type'] == 'response.in_progress')
    n_deltas = 0
    while True:
        lane, event = wire.next()
        n_deltas += lane == 'story' and is_delta(event)
        if lane == 'prompt' and is_delta(event):
            break
    wire.cancel(stream_id='story')
    while 'prompt' in wire.open or 'story' in wire.open:
        wire.next()
    computed = wire.ended['prompt'][-1][-1]['response']['runnel']['computed']
    chunks = computed // 128
    print(f'{n_deltas} tokens of another answer came during a prefill of {computed} tokens')
    assert computed > 2500 and n_deltas >= chunks - 2  # a token of the story in each step that takes a chunk of the prompt


def test_a_lane_answers_in_order(wire):
    for i in range(5):
        wire.create(f'Question number {i}.', 'line', max_output_tokens=6 - i)
    seen = len(wire.ended.get('line', []))
    while len(wire.ended.get('line', [])) < seen + 5:
        wire.next()
    answers = wire.ended['line'][seen:]
    assert all(events[0]['type'] == 'response.created' and [e['sequence_number'] for e in events] == list(range(len(events))) for events in answers)
    assert [events[-1]['response']['max_output_tokens'] for events in answers] == [6, 5, 4, 3, 2]
    assert len({events[-1]['response']['runnel']['session'] for events in answers}) == 5


def test_lanes_interleave(wire):
    for lane in ('left', 'right'):
        wire.create('Tell me about ' + lane, lane, max_output_tokens=80, runnel={'ignore_eos': True})
    begin = len(wire.log)
    wire.finish('left', 'right')
    deltas = [lane for lane, e in wire.log[begin:] if is_delta(e)]
    both = deltas[deltas.index('right' if deltas[0] == 'left' else 'left'):]
    both = both[:min(len(both) - both[::-1].index(lane) for lane in ('left', 'right'))]
    changes = sum(a != b for a, b in zip(both, both[1:]))
    assert len(both) > 80 and changes > len(both) // 2


def test_forks_in_memory_never_move_a_stored_session(daemon, wire):
    first = wire.ask('My favourite colour is green.', max_output_tokens=10)
    session = first['runnel']['session']
    before = get(daemon, '/runnel/sessions/' + session)[1]
    lanes = [f'fork{i}' for i in range(4)]
    for i, lane in enumerate(lanes):
        which = {'previous_response_id': first['id']} if i % 2 else {'runnel': {'session': session}}
        wire.create('Which colour do I like?', lane, store=False, max_output_tokens=20, **which)
    forks = [events[-1]['response'] for events in wire.finish(*lanes)]
    assert get(daemon, '/runnel/sessions/' + session)[1] == before
    more = [wire.ask('Are you sure?', lane, store=False, previous_response_id=f['id'], max_output_tokens=12) for lane, f in zip(lanes, forks)]
    assert get(daemon, '/runnel/sessions/' + session)[1] == before
    with Database(state_of(daemon)) as db:
        assert db.response(first['id'])['session_head'] == len(db.ids(db.response(first['id'])['session']))
        assert all(db.response(r['id']) is None for r in forks + more)
    stored = wire.ask('Which colour do I like?', previous_response_id=first['id'], max_output_tokens=20)
    assert stored['runnel']['session'] == session
    assert {said(f) for f in forks} == {said(stored)}
    assert {said(m) for m in more} == {said(wire.ask('Are you sure?', previous_response_id=stored['id'], max_output_tokens=12))}
    assert len({f['runnel']['session'] for f in forks} | {session}) == 5
