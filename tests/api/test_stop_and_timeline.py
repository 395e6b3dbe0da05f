"""Stop strings, limits and what a conversation is made of, with the real model: continue, fork, name, cancel, delete."""
import pytest

from conftest import Daemon, program
from daemon_kit import Database, Wire, get, is_delta, item_text, said, state_of
from events import check


@pytest.fixture(scope='module')
def wire(daemon):
    with Wire(daemon) as wire:
        yield wire


@pytest.fixture(scope='module')
def fruits(wire):
    return said(wire.ask('List three fruits.', max_output_tokens=40))


def ids_of(daemon, response):
    with Database(state_of(daemon)) as db:
        return db.ids_up_to(response['id'])


def test_a_stop_string_may_lie_across_tokens(daemon, wire, fruits):
    for at in range(3, len(fruits) - 8, 7):  # whatever the borders of the tokens are, some of these lie across them
        stop = fruits[at:at + 5]
        cut = wire.ask('List three fruits.', max_output_tokens=40, runnel={'stop': stop})
        assert said(cut) == fruits[:fruits.index(stop)]
        assert cut['status'] == 'completed' and cut['runnel']['stop'] == {'cause': 'stop', 'detail': stop}


def test_the_first_of_several_stop_strings_counts(wire, fruits):
    early, late = fruits[10:14], fruits[20:24]
    cut = wire.ask('List three fruits.', max_output_tokens=40, runnel={'stop': [late, 'never said', early]})
    at = min(fruits.index(early), fruits.index(late))
    assert said(cut) == fruits[:at] and cut['runnel']['stop']['cause'] == 'stop'
    whole = wire.ask('List three fruits.', max_output_tokens=40, runnel={'stop': ['never said']})
    assert said(whole) == fruits


def test_after_a_stop_string_the_history_keeps_what_lies_before_it(daemon, wire, fruits):
    plain = wire.ask('List three fruits.', max_output_tokens=40)
    cut = wire.ask('List three fruits.', max_output_tokens=40, runnel={'stop': fruits[12:17]})
    log, whole = ids_of(daemon, cut), ids_of(daemon, plain)
    assert len(log) < len(whole) and log == whole[:len(log)]
    assert wire.ask('And then?', previous_response_id=cut['id'], max_output_tokens=8)['status'] in ('completed', 'incomplete')


def test_output_limit(daemon, wire):
    one = wire.ask('Tell me about the sea.', max_output_tokens=1)
    assert (one['status'], one['incomplete_details'], one['usage']['output_tokens']) == ('incomplete', {'reason': 'max_output_tokens'}, 1)
    assert one['runnel']['stop']['cause'] == 'length'
    five = wire.ask('Tell me about the sea.', max_output_tokens=5, runnel={'ignore_eos': True})
    assert five['usage']['output_tokens'] == 5 and said(five).startswith(said(one))
    assert wire.refused('x', max_output_tokens=4097) == (400, 'invalid_value', 'max_output_tokens')
    assert wire.refused('x', max_output_tokens=0)[:2] == (400, 'invalid_value')


def test_ignore_eos_goes_on_behind_the_end(daemon, wire):
    plain = wire.ask('What is the capital of France? Say one word.', max_output_tokens=60)
    assert plain['runnel']['stop']['cause'] == 'eos'
    on = wire.ask('What is the capital of France? Say one word.', max_output_tokens=60, runnel={'ignore_eos': True})
    assert on['usage']['output_tokens'] == 60 and on['runnel']['stop']['cause'] == 'length'
    assert said(on).startswith(said(plain))
    shorter, longer = ids_of(daemon, plain), ids_of(daemon, on)
    assert longer[:len(shorter)] == shorter  # the end mark was sampled, and is in the log


def test_seeds_reproduce(wire):
    fields = {'temperature': 1.0, 'max_output_tokens': 30}
    free = wire.ask('Tell me a story.', **fields)
    seed = free['runnel']['sampling']['seed']
    assert 0 <= seed < 2 ** 53
    again = wire.ask('Tell me a story.', **fields, runnel={'seed': seed})
    assert said(again) == said(free)
    others = {said(wire.ask('Tell me a story.', **fields, runnel={'seed': s})) for s in (1, 2, 2 ** 53 - 1)}
    assert len(others | {said(free)}) >= 3
    assert wire.refused('x', runnel={'seed': 2 ** 53}) == (400, 'invalid_value', 'runnel.seed')
    assert wire.refused('x', runnel={'seed': -1}) == (400, 'invalid_value', 'runnel.seed')


def test_the_record_has_the_effective_sampling(wire):
    record = wire.ask('x', temperature=0.7, top_p=0.9, max_output_tokens=3, runnel={'seed': 7, 'top_k': 40, 'min_p': 0.05})['runnel']
    effective = {'temperature': 0.7, 'top_p': 0.9, 'top_k': 40, 'min_p': 0.05, 'seed': 7, 'max_output_tokens': 3, 'ignore_eos': False}
    assert {k: record['sampling'][k] for k in effective} == effective
    wire.create('x', max_output_tokens=2, temperature=None)  # null is absent
    response = wire.finish(None)[0][-1]['response']
    assert response['runnel']['sampling']['temperature'] == 1 and response['runnel']['sampling']['top_p'] == 1


def test_unknown_fields_are_listed(wire):
    record = wire.ask('x', max_output_tokens=2, brand_new=1, runnel={'also_new': {}})['runnel']
    assert record['ignored'] == ['brand_new', 'runnel.also_new']


def test_previous_response_that_is_not_the_head_forks(daemon, wire):
    first = wire.ask('My name is Ada.', max_output_tokens=12)
    second = wire.ask('What is my name?', previous_response_id=first['id'], max_output_tokens=16)
    assert second['runnel']['session'] == first['runnel']['session'] and second['usage']['input_tokens_details']['cached_tokens'] > 0
    fork = wire.ask('What is my name?', previous_response_id=first['id'], max_output_tokens=16)
    assert fork['runnel']['session'] != first['runnel']['session']
    assert said(fork) == said(second) and ids_of(daemon, fork) == ids_of(daemon, second)
    on = [wire.ask('Say it again.', previous_response_id=r['id'], max_output_tokens=16) for r in (second, fork)]
    assert said(on[0]) == said(on[1])
    assert [r['runnel']['session'] for r in on] == [second['runnel']['session'], fork['runnel']['session']]
    status, shown = get(daemon, '/runnel/sessions/' + fork['runnel']['session'])
    assert status == 200 and [item['role'] for item in shown['items']] == ['user', 'assistant'] * 3


def test_instructions_absent_equal_changed(daemon, wire):
    first = wire.ask('Hello.', instructions='You are a pirate.', max_output_tokens=8)
    absent = wire.ask('Who are you?', previous_response_id=first['id'], max_output_tokens=8)
    assert any('instructions' in w for w in absent['runnel']['warnings']) and 'rebased' not in absent['runnel']
    equal = wire.ask('And now?', previous_response_id=absent['id'], instructions='You are a pirate.', max_output_tokens=8)
    assert equal['runnel']['warnings'] == [] and 'rebased' not in equal['runnel']
    changed = wire.ask('And now?', previous_response_id=equal['id'], instructions='You are a nun.', max_output_tokens=8)
    assert changed['runnel']['rebased'] == {'cause': 'instructions'} and changed['runnel']['session'] == first['runnel']['session']
    assert len(get(daemon, '/runnel/sessions/' + first['runnel']['session'])[1]['items']) == 8
    fresh = wire.ask([{'role': role, 'content': text} for role, text in (
        ('user', 'Hello.'), ('assistant', said(first)), ('user', 'Who are you?'), ('assistant', said(absent)), ('user', 'And now?'),
        ('assistant', said(equal)), ('user', 'And now?'))], instructions='You are a nun.', max_output_tokens=8)
    assert said(fresh) == said(changed)  # the new timeline is what a new conversation with these items would be


def test_naming_a_session(wire):
    first = wire.ask('One.', max_output_tokens=4)
    session = first['runnel']['session']
    second = wire.ask('Two.', runnel={'session': session}, max_output_tokens=4)
    assert second['runnel']['session'] == session
    third = wire.ask('Three.', previous_response_id=second['id'], runnel={'session': session}, max_output_tokens=4)
    assert third['runnel']['session'] == session
    other = wire.ask('Elsewhere.', max_output_tokens=4)
    assert wire.refused('x', runnel={'session': 'sess_none'}) == (404, 'not_found', 'runnel.session')
    assert wire.refused('x', previous_response_id=other['id'], runnel={'session': session}) == (400, 'invalid_value', 'runnel.session')
    assert wire.refused('x', runnel={'session': session, 'window': 128}) == (400, 'invalid_value', 'runnel.window')
    assert wire.refused('x', runnel={'session': session, 'evict': 'token'}) == (400, 'invalid_value', 'runnel.evict')
    wire.create('Write a long story.', 'busy', runnel={'session': session, 'ignore_eos': True})
    wire.until(lambda lane, e: is_delta(e))
    assert wire.refused('x', runnel={'session': session}) == (409, 'session_busy', 'runnel.session')
    wire.cancel(stream_id='busy')
    assert wire.finish('busy')[0][-1]['response']['runnel']['stop']['cause'] == 'cancelled'
    assert wire.ask('Four.', runnel={'session': session}, max_output_tokens=4)['runnel']['session'] == session


def test_empty_input(wire):
    assert wire.refused([])[:2] == (400, 'missing_required_parameter')
    answered = wire.ask('Hi.', max_output_tokens=4)
    assert wire.refused([], previous_response_id=answered['id']) == (400, 'invalid_value', 'input')
    warm = wire.ask('What is two plus two?', generate=False)
    assert (warm['status'], warm['output'], warm['usage']['output_tokens']) == ('completed', [], 0)
    assert warm['runnel']['computed'] > 0
    answer = wire.ask([], previous_response_id=warm['id'], max_output_tokens=16)
    assert answer['runnel']['session'] == warm['runnel']['session'] and answer['usage']['input_tokens_details']['cached_tokens'] > 0
    assert said(answer) == said(wire.ask('What is two plus two?', max_output_tokens=16))
    more = wire.ask('Three and three?', generate=False, previous_response_id=wire.ask('Hi.', generate=False)['id'])
    assert said(wire.ask([], previous_response_id=more['id'], max_output_tokens=4))


def cancelled_story(wire, n_deltas=6):
    wire.create('Write a long story about a river.', runnel={'ignore_eos': True})
    for _ in range(n_deltas):
        wire.until(lambda lane, e: is_delta(e))
    wire.cancel(response_id=wire.open[None][0]['response']['id'])
    events = wire.finish(None)[0]
    return events[-1]['response'], ''.join(e['delta'] for e in events if is_delta(e))


def test_a_cancelled_answer_is_kept_and_continued(daemon, wire):
    response, text = cancelled_story(wire)
    assert (response['status'], response['incomplete_details'], response['runnel']['stop']['cause']) == ('incomplete', None, 'cancelled')
    assert said(response) == text and text
    items = get(daemon, '/runnel/sessions/' + response['runnel']['session'])[1]['items']
    assert [i['role'] for i in items] == ['user', 'assistant'] and items[1]['status'] == 'incomplete'
    assert items[1]['content'][0]['text'] == text
    same = wire.ask('Write a long story about a river.', max_output_tokens=response['usage']['output_tokens'], runnel={'ignore_eos': True})
    assert ids_of(daemon, same) == ids_of(daemon, response)
    on = [wire.ask('Go on.', previous_response_id=r['id'], max_output_tokens=12) for r in (response, same)]
    assert on[0]['runnel']['session'] == response['runnel']['session'] and said(on[0]) == said(on[1])


def test_cancelled_before_its_prefill_ended_the_head_stays(daemon, wire):
    first = wire.ask('Hello.', max_output_tokens=4)
    wire.create('word ' * 3000, previous_response_id=first['id'])
    wire.until(lambda lane, e: e['type'] == 'response.in_progress')
    wire.cancel()
    response = wire.finish(None)[0][-1]['response']
    assert (response['status'], response['output'], response['usage']['output_tokens']) == ('incomplete', [], 0)
    shown = get(daemon, '/runnel/sessions/' + first['runnel']['session'])[1]
    assert shown['last_response_id'] == first['id'] and len(shown['items']) == 2
    after = wire.ask('Still there?', previous_response_id=response['id'], max_output_tokens=8)
    assert after['runnel']['session'] == first['runnel']['session']
    again = wire.ask('Still there?', previous_response_id=first['id'], max_output_tokens=8)
    assert said(after) == said(again)


SILENT = {'window': 128, 'evict': 'token', 'ignore_eos': True, 'logit_bias': {'0': 100}}  # every token is <|endoftext|>: an answer without text


def test_an_answer_cancelled_before_its_first_word_is_kept_too(model, tmp_path):
    daemon = Daemon(program('RUNNELD'), model, tmp_path / 'state')
    with Wire(daemon) as wire:
        wire.create('Say nothing.', runnel=SILENT)
        wire.until(lambda lane, e: e['type'] == 'runnel:context.evicted')  # its prefill ended long ago
        wire.cancel()
        response = check(wire.finish(None)[0])
        assert (response['status'], response['runnel']['stop']['cause'], said(response)) == ('incomplete', 'cancelled', '')
        n = response['usage']['output_tokens']
        same = wire.ask('Say nothing.', max_output_tokens=n, runnel=SILENT)
        assert n > 0 and ids_of(daemon, same) == ids_of(daemon, response)
        on = wire.ask('Go on.', previous_response_id=same['id'], max_output_tokens=12)

    def stored():
        return get(daemon, '/runnel/sessions/' + response['runnel']['session'])[1]['items'][1:]
    assert stored() == response['output'] and [(i['role'], i['status']) for i in stored()] == [('assistant', 'incomplete')]
    assert daemon.stop() == 0
    daemon = Daemon(program('RUNNELD'), model, tmp_path / 'state')
    assert stored() == response['output']
    with Wire(daemon) as wire:
        after = wire.ask('Go on.', previous_response_id=response['id'], max_output_tokens=12)
        assert after['runnel']['session'] == response['runnel']['session'] and 'rebased' not in after['runnel']
        assert said(after) == said(on)
    assert daemon.stop() == 0


def test_an_unstored_response_leaves_nothing(daemon, wire):
    before = get(daemon, '/runnel/sessions')[1]
    one = wire.ask('Nobody keeps this.', store=False, max_output_tokens=8)
    two = wire.ask('More.', store=False, previous_response_id=one['id'], max_output_tokens=8)
    assert two['runnel']['session'] == one['runnel']['session']
    assert wire.refused('x', previous_response_id=two['id'])[1] == 'previous_response_not_found'
    assert get(daemon, '/runnel/sessions')[1] == before
    with Wire(daemon) as other:
        other.create('x', previous_response_id=two['id'], store=False, max_output_tokens=2)
        assert other.finish(None)[0][-1]['type'] in ('response.incomplete', 'response.completed')
    with Database(state_of(daemon)) as db:
        assert db.response(one['id']) is None and db.response(two['id']) is None


def test_deleting_a_session(daemon, wire):
    keep = wire.ask('Keep me.', max_output_tokens=4)
    gone = wire.ask('Drop me.', max_output_tokens=4)
    fork = wire.ask('I live on.', previous_response_id=wire.ask('Me too.', previous_response_id=gone['id'], max_output_tokens=4)['id'],
                    max_output_tokens=4)
    left = wire.ask('A fork.', previous_response_id=gone['id'], max_output_tokens=4)
    session = gone['runnel']['session']
    assert fork['runnel']['session'] == session != left['runnel']['session']
    status, reply = get(daemon, '/runnel/sessions/' + session, 'DELETE')
    assert (status, reply) == (200, {'id': session, 'deleted': True})
    assert get(daemon, '/runnel/sessions/' + session)[0] == 404 and get(daemon, '/runnel/sessions/' + session, 'DELETE')[0] == 404
    assert wire.refused('x', previous_response_id=gone['id'])[:2] == (400, 'previous_response_not_found')
    assert wire.refused('x', runnel={'session': session}) == (404, 'not_found', 'runnel.session')
    assert wire.ask('On.', previous_response_id=left['id'], max_output_tokens=4)['runnel']['session'] == left['runnel']['session']
    listed = [s['id'] for s in get(daemon, '/runnel/sessions')[1]['data']]
    assert session not in listed and keep['runnel']['session'] in listed and left['runnel']['session'] in listed
    with Database(state_of(daemon)) as db:
        db.is_sound()
        assert db.response(gone['id']) is None


def test_a_busy_session_is_not_deleted(daemon, wire):
    wire.create('Write a long story.', runnel={'ignore_eos': True})
    session = wire.until(lambda lane, e: e['type'] == 'response.created')['response']['runnel']['session']
    wire.until(lambda lane, e: is_delta(e))
    status, reply = get(daemon, '/runnel/sessions/' + session, 'DELETE')
    assert (status, reply['error']['code']) == (409, 'session_busy')
    wire.cancel()
    assert said(wire.finish(None)[0][-1]['response'])
    assert get(daemon, '/runnel/sessions/' + session, 'DELETE')[0] == 200


def test_messages_of_all_roles_make_one_conversation(daemon, wire):
    items = [{'role': 'system', 'content': 'Answer with one word.'}, {'role': 'user', 'content': [{'type': 'input_text', 'text': 'Red or blue?'}]},
             {'type': 'message', 'role': 'assistant', 'content': [{'type': 'output_text', 'text': 'Blue.'}]}, {'role': 'user', 'content': 'Why?'}]
    response = wire.ask(items, max_output_tokens=8)
    with Database(state_of(daemon)) as db:
        rows = db.items(db.response(response['id'])['session'])
    assert [(r['role'], item_text(r)) for r in rows] == [('system', 'Answer with one word.'), ('user', 'Red or blue?'), ('assistant', 'Blue.'),
                                                       ('user', 'Why?'), ('assistant', said(response))]
    assert response['runnel']['context']['pinned'] >= 4
