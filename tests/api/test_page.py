"""The page in Chromium against the real daemon."""
import re
import urllib.request

import pytest

from page_kit import NOTE, SAID, Site, ask, ask_ready, browser, ended, enough, expect, picture, wait_until  # noqa: F401 (browser: a fixture)


@pytest.fixture
def real(browser, daemon):
    site = Site(browser, daemon.http)
    yield site
    site.close()


def test_policy_is_strict(real):
    with urllib.request.urlopen(real.http + '/') as reply:
        given = dict(part.strip().split(' ', 1) for part in reply.headers['content-security-policy'].split(';'))
    for name in ('default-src', 'base-uri', 'frame-ancestors', 'form-action'):
        assert given[name] == "'none'"
    assert given['script-src'] == given['style-src'] == given['connect-src'] == "'self'"


def test_a_conversation_with_the_model(real):
    """Progressive text, Esc, reload, going on, a second session, deleting: one walk through the whole page."""
    page = real.open()
    expect(page.locator('#meter')).to_contain_text('0 of')
    ask(page, 'Write a very long story about a lighthouse, with many chapters.')
    lengths = set()
    wait_until(lambda: lengths.add(len(page.locator(SAID).inner_text())) or len(lengths) >= 4)
    assert page.locator('#send').get_attribute('aria-label') == 'Stop'
    page.keyboard.press('Escape')
    ended(page)
    expect(page.locator(NOTE)).to_have_text('Stopped.')
    expect(page.locator('#meter')).to_contain_text('tokens/s')
    expect(page.locator('#list a[aria-current]')).to_contain_text('Write a very long story')
    assert re.search(r'#/sess_\w+$', page.url)

    before = page.locator(SAID).inner_text()
    page.reload()
    expect(page.locator('.turn')).to_have_count(2)
    assert page.locator(SAID).inner_text() == before
    expect(page.locator(NOTE)).to_have_text('Cut here.')
    ask_ready(page)
    ask(page, 'What is two plus two? Answer briefly.')
    expect(page.locator('.turn')).to_have_count(4)
    enough(page)
    picture(page, 'real')

    page.locator('#new').click()
    expect(page.locator('.greeting')).to_be_visible()
    ask(page, '<script>document.title = 1</script> <b>bold</b> & 🙂')
    enough(page)
    assert page.locator('.turn[data-role=user] .said').inner_text() == '<script>document.title = 1</script> <b>bold</b> & 🙂'
    expect(page.locator('#list a')).to_have_count(2)
    page.locator('#list a').nth(1).click()
    expect(page.locator('.turn')).to_have_count(4)

    page.locator('.row').nth(1).hover()
    page.locator('.row button').nth(1).click()
    page.locator('#confirm-yes').click()
    expect(page.locator('#list a')).to_have_count(1)
    expect(page.locator('.greeting')).to_be_visible()
    page.locator('.row').hover()
    page.locator('.row button').click()
    page.locator('#confirm-yes').click()
    expect(page.locator('#list a')).to_have_count(0)


def test_a_reload_in_the_middle_of_an_answer(real):
    page = real.open()
    ask(page, 'Tell me everything about the sea, at great length.')
    expect(page.locator(SAID)).not_to_be_empty()
    page.reload()
    expect(page.locator('.turn[data-role=user]')).to_have_count(1)
    # The daemon lets go of it after its linger of ten seconds; the page waits for what was saved.
    expect(page.locator('.turn[data-role=assistant] .said')).not_to_be_empty(timeout=30_000)
