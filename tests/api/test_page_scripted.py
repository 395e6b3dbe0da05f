"""The page in Chromium against scripted_backend.py: what a real daemon does only by accident, and what needs no daemon."""
import pytest

from page_kit import NOTE, SAID, Site, ask, ask_ready, browser, ended, expect, picture, wait_until  # noqa: F401 (browser: a fixture)

pytest.importorskip('aiohttp', reason='the Python package aiohttp is missing')
from scripted_backend import Backend, message  # noqa: E402

pytestmark = pytest.mark.timing  # runneld is not involved: once is enough, whatever the build


@pytest.fixture
def backend():
    backend = Backend()
    yield backend
    backend.stop()


@pytest.fixture
def scripted(browser, backend):
    site = Site(browser, backend.http)
    yield site
    site.close()


# ---- Streaming, stopping ----

def test_text_appears_word_by_word(scripted, backend):
    page = scripted.open()
    ask(page, 'hold')
    expect(page.locator(NOTE)).to_have_text('Reading')
    for i in range(1, 4):
        backend.release()
        expect(page.locator(SAID)).to_have_text(' '.join(f'word{n}' for n in range(1, i + 1)))
    page.locator('#send').click()
    ended(page)
    expect(page.locator(NOTE)).to_have_text('Stopped.')
    assert [r['type'] for r in backend.requests] == ['response.create', 'response.cancel']
    assert backend.requests[0]['temperature'] == 0.7 and backend.requests[0]['runnel'] == {'overflow': 'roll'}


def test_going_on_names_the_session(scripted, backend):
    page = scripted.open()
    ask(page, 'one')
    ended(page)
    ask(page, 'two')
    ended(page)
    assert backend.requests[1]['runnel'] == {'overflow': 'roll', 'session': page.url.split('#/')[1]}
    expect(page.locator('#meter')).to_contain_text('1,240 of 4,096 tokens')
    expect(page.locator('#meter')).to_contain_text('36 pinned')
    expect(page.locator('#meter')).to_contain_text('812 evicted')
    expect(page.locator('#meter')).to_contain_text('187 tokens/s, first word after 120 ms')


def test_the_window_is_known_before_the_first_answer_ends(scripted, backend):
    page = scripted.open()
    expect(page.locator('#meter')).to_contain_text('0 of 4,096 tokens')
    ask(page, 'hold')
    expect(page.locator('#meter')).to_contain_text('57 of 4,096 tokens')
    expect(page.locator('#meter')).to_contain_text('36 pinned')
    expect(page.locator('#meter [role=meter]')).to_have_attribute('aria-valuenow', '57')
    backend.release()
    expect(page.locator(SAID)).to_have_text('word1')
    page.keyboard.press('Escape')
    ended(page)
    expect(page.locator('#meter')).to_contain_text('1,240 of 4,096 tokens')


def test_evictions_show_while_the_answer_is_written(scripted, backend):
    page = scripted.open()
    ask(page, 'one')
    ended(page)
    ask(page, 'evict')
    expect(page.locator('#meter')).to_contain_text('1,234 evicted')
    backend.release()
    ended(page)


def test_what_is_said_is_text(scripted):
    page = scripted.open()
    said = '<script>window.hurt = 1</script><img src=x onerror="window.hurt = 1"> 🦆 e\u0301 \u202eabc\u202c'
    ask(page, said)
    ended(page)
    assert page.locator('.turn[data-role=user] .said').evaluate('(e) => e.textContent') == said
    assert said in page.locator(SAID).evaluate('(e) => e.textContent')
    assert page.evaluate('window.hurt') is None
    assert page.locator('#turns img, #turns script, #list img').count() == 0


def test_sentences_are_announced_whole(scripted, backend):
    page = scripted.open()
    ask(page, 'drop')
    scripted.may_miss = True
    spoken = page.locator('#spoken p')
    expect(spoken.nth(0)).to_have_text('The first sentence.')
    expect(spoken.nth(1)).to_have_text('The second is')  # when it is known that no more comes
    assert page.locator('#transcript').get_attribute('aria-live') == 'off'
    backend.release()


def test_answers_go_on_in_sessions_that_are_not_shown(scripted, backend):
    page = scripted.open()
    ask(page, 'hold one')
    expect(page.locator('.row.busy')).to_have_count(1)
    page.locator('#new').click()
    ask(page, 'two')
    ended(page)
    expect(page.locator(SAID)).to_have_text('You said: two')
    backend.release(2)
    page.locator('.row.busy a').click()
    expect(page.locator(SAID)).to_have_text('word1 word2')
    assert {r['stream_id'] for r in backend.requests} == {'page-0', 'page-1'}
    page.keyboard.press('Escape')
    ended(page)
    expect(page.locator('.row.busy')).to_have_count(0)


# ---- What goes wrong ----

@pytest.mark.parametrize('code,text', [
    ('context_length_exceeded', 'This message does not fit into the window: it has 9000 tokens, the window has 4096.'),
    ('session_busy', 'This session is still busy with another answer. Try again when it has ended.'),
    ('brand_new_code', 'It has 9000 tokens, the window has 4096.')])
def test_a_refusal_gives_the_message_back(scripted, code, text):
    page = scripted.open()
    ask(page, f'refuse {code}')
    expect(page.locator('#problem')).to_have_text(text)
    expect(page.locator('#say')).to_have_value(f'refuse {code}')
    expect(page.locator('.turn')).to_have_count(0)
    expect(page.locator('.greeting')).to_be_visible()
    ask(page, 'fine')
    ended(page)
    expect(page.locator('#problem')).to_be_hidden()


def test_a_failure_says_why(scripted):
    page = scripted.open()
    ask(page, 'fail')
    expect(page.locator('#problem')).to_have_text('Broken off: The device was lost.')
    expect(page.locator(SAID)).to_contain_text('Some words')
    ask(page, 'again')
    ended(page)
    expect(page.locator(SAID)).to_have_text('You said: again')


def test_the_limit_is_named(scripted):
    page = scripted.open()
    ask(page, 'length')
    expect(page.locator(NOTE)).to_have_text('Cut at the limit of 4,096 tokens for one answer.')


def test_a_stop_before_the_first_word_takes_the_message_back(scripted, backend):
    scripted.may_miss = True  # the session, taken back as well
    page = scripted.open()
    ask(page, 'quiet please')
    expect(page.locator(NOTE)).to_have_text('Waiting for a place')
    page.keyboard.press('Escape')
    expect(page.locator('#say')).to_have_value('quiet please')
    expect(page.locator('.greeting')).to_be_visible()
    assert page.url.endswith('#/')
    expect(page.locator('#list a')).to_have_count(0)


def test_a_dropped_socket_cuts_the_answer_then_shows_what_was_saved(scripted, backend):
    scripted.may_miss = True
    page = scripted.open()
    ask(page, 'drop')
    expect(page.locator(NOTE)).to_have_text('Cut: the connection was lost.')
    expect(page.locator(SAID)).to_contain_text('The second is')
    picture(page, 'cut')
    wait_until(lambda: len(backend.connections) == 2)  # it comes back by itself
    backend.release()
    expect(page.locator(SAID)).to_contain_text('longer than what was seen')
    expect(page.locator(NOTE)).to_have_text('Cut here.')
    assert [r['type'] for r in backend.requests] == ['response.create']  # nothing is sent twice
    ask_ready(page)
    ask(page, 'and on')
    ended(page)
    expect(page.locator('.turn')).to_have_count(4)


def test_it_waits_for_a_daemon_that_is_not_there(scripted, backend):
    scripted.may_miss = True
    backend.refuse_sockets = True
    page = scripted.open(ready=False)
    expect(page.locator('#link')).to_have_text('The model is loading…')
    page.locator('#say').fill('kept')
    page.locator('#say').press('Enter')
    expect(page.locator('#say')).to_have_value('kept')
    backend.refuse_sockets = False
    page.evaluate("dispatchEvent(new Event('online'))")  # skips the rest of the back-off
    expect(page.locator('#link')).to_be_empty()
    page.locator('#say').press('Enter')
    ended(page)
    expect(page.locator(SAID)).to_have_text('You said: kept')


def test_back_off_grows(scripted, backend):
    scripted.may_miss = True
    backend.refuse_sockets = True
    scripted.open(ready=False)
    wait_until(lambda: len(backend.connections) == 4)
    first, second, third = [b - a for a, b in zip(backend.connections, backend.connections[1:])]
    assert 0.35 < first < second < third  # about 0.5, 1 and 2 s, each ± 25 %


# ---- Sessions ----

def test_sessions_are_listed_newest_first(scripted, backend):
    day = 86400
    backend.add_session('Old', message('user', 'Old'), message('assistant', 'x'), age=30 * day)
    backend.add_session('New', message('user', 'New'), message('assistant', 'y', 'incomplete'), age=0)
    backend.add_session(None, message('user', 'Mid'), message('assistant', 'z'), age=day)
    page = scripted.open()
    expect(page.locator('#list a')).to_have_text(['New', 'Untitled', 'Old'])
    expect(page.locator('#list h2')).to_have_text(['Today', 'Yesterday', 'Earlier'])
    page.locator('#list a').first.click()
    expect(page.locator('.said')).to_have_text(['New', 'y'])
    expect(page.locator(NOTE)).to_have_text('Cut here.')
    expect(page.locator('#meter')).to_contain_text('80 of 4,096 tokens')
    page.locator('#list a').last.click()
    expect(page.locator('.said')).to_have_text(['Old', 'x'])
    page.go_back()
    expect(page.locator('.said')).to_have_text(['New', 'y'])
    page.reload()
    expect(page.locator('.said')).to_have_text(['New', 'y'])


def test_deleting_asks_first(scripted, backend):
    session = backend.add_session('Doomed', message('user', 'a'), message('assistant', 'b'))
    backend.add_session('Kept', message('user', 'c'), message('assistant', 'd'), age=60)
    page = scripted.open('/#/' + session['id'])
    expect(page.locator('.turn')).to_have_count(2)
    page.get_by_role('button', name='Delete: Doomed').focus()
    page.keyboard.press('Enter')
    expect(page.locator('#confirm')).to_be_visible()
    picture(page, 'delete')
    page.keyboard.press('Enter')  # the safe choice has the focus
    expect(page.locator('#confirm')).to_be_hidden()
    assert len(backend.sessions) == 2
    page.get_by_role('button', name='Delete: Doomed').press('Enter')
    page.locator('#confirm-yes').click()
    expect(page.locator('#list a')).to_have_text(['Kept'])
    expect(page.locator('.greeting')).to_be_visible()
    assert page.url.endswith('#/') and len(backend.sessions) == 1


def test_deleting_stops_what_runs(scripted, backend):
    page = scripted.open()
    ask(page, 'hold on')
    backend.release()
    expect(page.locator(SAID)).to_have_text('word1')
    page.get_by_role('button', name='Delete: hold on').press('Enter')
    expect(page.locator('#confirm-text')).to_contain_text('will be stopped')
    page.locator('#confirm-yes').click()
    expect(page.locator('#list a')).to_have_count(0)
    assert not backend.sessions


def test_a_session_that_is_gone_says_so(scripted):
    scripted.may_miss = True  # the 404 is in the console
    page = scripted.open('/#/sess_missing', ready=False)
    expect(page.locator('#problem')).to_have_text('This session no longer exists.')
    assert page.url.endswith('#/')


def test_what_another_page_added_is_shown(scripted, backend):
    session = backend.add_session('Shared', message('user', 'a'), message('assistant', 'b'))
    page = scripted.open('/#/' + session['id'])
    expect(page.locator('.turn')).to_have_count(2)
    session['items'] += [message('user', 'c'), message('assistant', 'd')]
    session['last_response_id'] = 'resp_other'
    page.evaluate("document.dispatchEvent(new Event('visibilitychange'))")
    expect(page.locator('.said')).to_have_text(['a', 'b', 'c', 'd'])


# ---- Reading, keys, screens ----

def test_the_end_is_followed_until_the_reader_scrolls_up(scripted, backend):
    page = scripted.open()
    ask(page, 'lines 200')
    ended(page)
    at_end = "(() => { const e = document.getElementById('transcript'); return e.scrollHeight - e.clientHeight - e.scrollTop < 9; })()"
    wait_until(lambda: page.evaluate(at_end))
    expect(page.locator('#latest')).to_be_hidden()
    ask(page, 'hold')
    page.locator('#transcript').hover()
    page.mouse.wheel(0, -400)
    expect(page.locator('#latest')).to_be_visible()
    place = page.locator('#transcript').evaluate('(e) => e.scrollTop')
    backend.release(30)
    expect(page.locator(SAID)).to_contain_text('word30')
    assert page.locator('#transcript').evaluate('(e) => e.scrollTop') == place
    page.locator('#latest').click()
    wait_until(lambda: page.evaluate(at_end))
    backend.release(200)
    expect(page.locator(SAID)).to_contain_text('word230')
    wait_until(lambda: page.evaluate(at_end))
    page.keyboard.press('Escape')
    ended(page)


def test_keys(scripted, backend):
    backend.add_session('Earlier', message('user', 'a'), message('assistant', 'b'), age=60)
    page = scripted.open()
    expect(page.locator('#list a')).to_have_count(1)
    field = page.locator('#say')
    field.press_sequentially('a')
    field.press('Shift+Enter')
    field.press_sequentially('b')
    assert field.input_value() == 'a\nb'
    assert field.bounding_box()['height'] > 60
    field.press('Enter')
    ended(page)
    assert backend.requests[0]['input'] == 'a\nb'
    assert field.bounding_box()['height'] < 60
    page.evaluate("document.activeElement.blur()")
    page.locator('#skip').focus()
    order = []
    for _ in range(9):
        order.append(page.evaluate("document.activeElement.id || document.activeElement.textContent || document.activeElement.ariaLabel"))
        page.keyboard.press('Tab')
    order = [name for name in order if name not in ('list',)]
    assert order == ['skip', 'new', 'a\nb', 'Delete: a\nb', 'Earlier', 'Delete: Earlier', 'transcript', 'say', 'send']


@pytest.mark.parametrize('scheme', ['light', 'dark'])
def test_contrast(scripted, backend, scheme):
    """Text against what lies behind it: at least 4.5 to 1 (WCAG AA)."""
    session = backend.add_session('Shown', message('user', 'What is a runnel?'), message('assistant', 'A small stream.', 'incomplete'))
    page = scripted.open('/#/' + session['id'], color_scheme=scheme)
    expect(page.locator('.turn')).to_have_count(2)
    ratio = """(e) => {
        const parse = (c) => c.match(/[\\d.]+/g).map(Number);
        const light = ([r, g, b]) => [r, g, b].map((v) => v / 255).map((v) => v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4)
            .reduce((sum, v, i) => sum + v * [0.2126, 0.7152, 0.0722][i], 0);
        let behind = e;
        while (behind && (parse(getComputedStyle(behind).backgroundColor)[3] ?? 1) === 0) { behind = behind.parentElement; }
        const [a, b] = [light(parse(getComputedStyle(e).color)), light(parse(getComputedStyle(behind).backgroundColor))].sort((x, y) => y - x);
        return (a + 0.05) / (b + 0.05);
    }"""
    for selector in ('.said >> nth=0', '.said >> nth=1', NOTE, '.numbers', '#title', '#model', '#list h2', '#list a', '#new'):
        assert page.locator(selector).evaluate(ratio) >= 4.5, selector
    picture(page, 'session-' + scheme)


@pytest.mark.parametrize('width', [320, 768, 1200])
def test_no_sideways_scrolling_and_large_targets(scripted, backend, width):
    backend.add_session('x' * 60, message('user', 'x' * 400), message('assistant', 'https://example.org/' + 'y' * 400))
    page = scripted.open(viewport={'width': width, 'height': 640}, has_touch=width == 320, is_mobile=width == 320)
    for scheme in ('light', 'dark'):
        page.emulate_media(color_scheme=scheme)
        picture(page, f'empty-{width}-{scheme}')
    narrow = width <= 768
    if narrow:
        expect(page.locator('#side')).to_be_hidden()
        page.locator('#menu').click()
        expect(page.locator('#new')).to_be_focused()
        small(page, '#side')
        picture(page, f'list-{width}')
        page.keyboard.press('Escape')
        expect(page.locator('#side')).to_be_hidden()
        expect(page.locator('#menu')).to_be_focused()
        page.locator('#menu').click()
    page.locator('#list a').first.click()
    expect(page.locator('.turn')).to_have_count(2)
    ask(page, 'a short question')
    ended(page)
    small(page, 'body')
    assert page.evaluate('innerWidth') == width
    if narrow:
        expect(page.locator('#side')).to_be_hidden()
    outside = page.evaluate("""[...document.querySelectorAll('body *')].filter((e) => e.checkVisibility({ visibilityProperty: true }))
        .filter((e) => e.getBoundingClientRect().right > innerWidth + 0.5).map((e) => e.id || e.className || e.tagName)""")
    assert outside == []
    assert page.locator('#say').bounding_box()['width'] > 150
    picture(page, f'session-{width}')


def small(page, scope):
    """No visible control is lower than 44 px."""
    low = page.locator(scope).evaluate("""(scope) => [...scope.querySelectorAll('a, button, textarea')]
        .filter((e) => e.checkVisibility({ visibilityProperty: true }) && e.id !== 'skip' && e.id !== 'veil')
        .map((e) => [e.id || e.className || e.textContent, e.getBoundingClientRect().height]).filter(([, h]) => h < 44)""")
    assert low == []


def test_motion_can_be_off(scripted, backend):
    page = scripted.open(reduced_motion='reduce')
    ask(page, 'hold')
    assert page.locator(NOTE).evaluate('(e) => getComputedStyle(e).animationName') == 'none'
    backend.release()
    expect(page.locator(SAID)).to_have_text('word1')
    page.keyboard.press('Escape')
    ended(page)
