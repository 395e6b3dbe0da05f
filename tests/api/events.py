"""Reading and checking the events of the Responses API's WebSocket mode."""
import json

from openai.types.responses import ResponsesServerEvent
from pydantic import TypeAdapter

TERMINAL = {'response.completed', 'response.incomplete', 'response.failed', 'error'}
OPENAI = TypeAdapter(ResponsesServerEvent)

# Keys that strict schemas want in every response object.
RESPONSE_KEYS = set('''id object created_at completed_at status background error incomplete_details instructions max_output_tokens
max_tool_calls model output parallel_tool_calls previous_response_id conversation prompt_cache_key reasoning safety_identifier service_tier
store temperature text tool_choice tools top_logprobs top_p truncation usage user metadata runnel'''.split())

ORDER = ['response.created', 'response.queued', 'response.in_progress', 'response.output_item.added', 'response.content_part.added',
         'response.output_text.delta', 'response.output_text.done', 'response.content_part.done', 'response.output_item.done']


def create(ws, said=None, **fields):
    message = {'type': 'response.create', **fields}
    if said is not None:
        message['input'] = said
    ws.send(json.dumps(message))


def read(ws, timeout=30):
    return json.loads(ws.recv(timeout=timeout))


def read_all(ws, timeout=30):
    """The events up to the terminal one."""
    events = []
    while not events or events[-1]['type'] not in TERMINAL:
        events.append(read(ws, timeout))
    return events


def text_of(events):
    return ''.join(e['delta'] for e in events if e['type'] == 'response.output_text.delta')


def check(events, stream_id=None):
    """Order, numbering, required fields and the openai package's own types."""
    assert [e['sequence_number'] for e in events] == list(range(len(events)))
    assert all(e.get('stream_id') == stream_id for e in events)
    plain = [e for e in events if not e['type'].startswith('runnel:')]
    for e in plain:
        OPENAI.validate_python(e)
        if 'response' in e:
            assert RESPONSE_KEYS <= set(e['response']), RESPONSE_KEYS - set(e['response'])
    places = [ORDER.index(e['type']) for e in plain[:-1]]
    assert places == sorted(places)
    for name in ORDER:
        assert name == 'response.output_text.delta' or sum(e['type'] == name for e in plain) <= 1
    last = events[-1]
    assert last['type'] in ('response.completed', 'response.incomplete', 'response.failed')
    assert last['response']['status'] == last['type'].split('.')[1]
    done = [e for e in events if e['type'] == 'response.output_text.done']
    if done:
        assert text_of(events) == done[0]['text']
        item = [e for e in events if e['type'] == 'response.output_item.done'][0]['item']
        assert item['content'][0]['text'] == done[0]['text']
        assert last['response']['output'] == [item]
    else:
        assert last['response']['output'] == []
    usage = last['response']['usage']
    assert usage['total_tokens'] == usage['input_tokens'] + usage['output_tokens']
    return last['response']
