"""Chromium for the tests of the page: fixtures, and the few things a person does there.

Skipped, with the reason, where Chromium or playwright is missing. SCREENSHOTS=DIR keeps pictures of what was tested."""
import os
import re
import shutil
import time

import pytest

CHROMIUM = os.environ.get('CHROMIUM') or shutil.which('chromium') or '/usr/bin/chromium'
if not os.path.exists(CHROMIUM):
    pytest.skip('no Chromium at /usr/bin/chromium (package chromium)', allow_module_level=True)
api = pytest.importorskip('playwright.sync_api', reason='the Python package playwright is missing')

expect = api.expect
expect.set_options(timeout=15_000)
NOTE = '.turn:last-child .note'
SAID = '.turn:last-child .said'


@pytest.fixture(scope='module')
def browser():
    with api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=['--no-sandbox', '--disable-gpu', '--disable-dev-shm-usage'])
        yield browser
        browser.close()


class Site:
    """Opens pages and remembers what they complained about."""

    def __init__(self, browser, http):
        self.browser, self.http = browser, http
        self.contexts, self.complaints = [], []
        self.may_miss = False  # requests may fail: the browser itself writes that to the console

    def open(self, path='/', ready=True, **options):
        options.setdefault('viewport', {'width': 1200, 'height': 800})
        context = self.browser.new_context(locale='en-GB', **options)
        self.contexts.append(context)
        context.add_init_script("addEventListener('securitypolicyviolation', (e) => console.error('CSP', e.violatedDirective, e.blockedURI))")
        page = context.new_page()
        page.on('console', lambda m: self.complaints.append(m.text) if m.type in ('error', 'warning') else None)
        page.on('pageerror', lambda e: self.complaints.append(str(e)))
        page.on('request', lambda r: None if r.url.startswith((self.http, 'data:')) else self.complaints.append('outside: ' + r.url))
        page.goto(self.http + path)
        if ready:
            ask_ready(page)
        return page

    def close(self):
        for context in self.contexts:
            context.close()
        expected = r'WebSocket connection|Failed to load resource|ERR_CONNECTION' if self.may_miss else r'^$'
        assert [c for c in self.complaints if not re.search(expected, c)] == []


def ask_ready(page):
    """The socket is open: what is typed could be sent."""
    expect(page.locator('#link')).to_be_empty()
    page.locator('#say').fill('?')
    expect(page.locator('#send')).to_have_attribute('aria-disabled', 'false')
    page.locator('#say').fill('')


def ask(page, text):
    page.locator('#say').fill(text)
    page.locator('#say').press('Enter')


def ended(page):
    expect(page.locator('#send')).to_have_attribute('aria-label', 'Send')


def enough(page):
    """Some words of the last answer are there; no more are needed."""
    expect(page.locator('.turn:last-child[data-role=assistant] .said')).not_to_be_empty()
    page.keyboard.press('Escape')
    ended(page)


def picture(page, name):
    if os.environ.get('SCREENSHOTS'):
        os.makedirs(os.environ['SCREENSHOTS'], exist_ok=True)
        page.wait_for_timeout(400)  # transitions; for the eye only
        page.screenshot(path=os.path.join(os.environ['SCREENSHOTS'], name + '.png'))


def wait_until(true, seconds=15):
    deadline = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.01)
