/* Puts the parts together: which conversation is shown, the list beside it, the connection, keys.
 *
 * The address names the session ("#/ID"; "#/" is a new one), so that a reload, a bookmark and the back button do what one expects.
 * Conversations live on while another one is shown: their answers go on. */

import { Daemon } from './api.js';
import { Composer } from './composer.js';
import { Conversation } from './conversation.js';
import { $, make, say } from './dom.js';
import { Meter } from './meter.js';
import { SessionList, titleOf } from './sessions.js';
import { Transcript } from './transcript.js';
import { count, duration, sentence } from './words.js';

const LINK_PATIENCE_MS = 700; // a daemon that restarts, or an idle socket that is replaced, is no news

const daemon = new Daemon();
const known = new Map(); // id -> Conversation
let current = null;
let sessions = [];
let limit = Infinity;
let model = null;

const transcript = new Transcript({ scroller: $('transcript'), turns: $('turns'), latest: $('latest'), spoken: $('spoken') });
const meter = new Meter($('meter'));
const list = new SessionList($('list'), askToRemove);
const composer = new Composer({
    field: $('say'),
    button: $('send'),
    send: (text) => {
        current.draft = '';
        current.send(text);
    },
    stop: () => current.stop(),
});

// ---- What is shown ----

function greeting() {
    if (current.id !== null) {
        return make('p', { className: 'quiet greeting' }, current.loaded ? 'Nothing has been said here yet.' : 'Loading…');
    }
    return make('div', { className: 'greeting' },
        make('h2', {}, 'Begin anywhere.'),
        make('p', {}, 'A conversation here has no end: when the window is full, the oldest turns leave it and the talk goes on.'));
}

function title() {
    const listed = sessions.find((s) => s.id === current.id);
    return current.id === null ? 'New session' : titleOf(listed ?? { title: current.title ?? current.messages[0]?.text.slice(0, 60) });
}

function showState() {
    const window = model?.meta?.n_ctx;
    const empty = window && current.loaded ? { n: window, pinned: 0, used: 0, evicted: 0 } : null;
    meter.show(current.context ?? empty, current.timings);
    composer.show({ busy: current.busy, stopping: current.stopping, open: daemon.state === 'open' });
    say($('problem'), current.problem ?? '');
    $('title').textContent = title();
    document.title = current.id === null ? 'Runnel' : `${title()} – Runnel`;
}

function showList() {
    const busy = new Set([...known.values()].filter((c) => c.busy).map((c) => c.id));
    list.show(sessions, { current: current.id, busy, limit });
    if (current.id === null) {
        $('new').setAttribute('aria-current', 'page');
    } else {
        $('new').removeAttribute('aria-current');
    }
}

function show(conversation) {
    if (current) {
        current.draft = composer.text;
    }
    current = conversation;
    transcript.show(conversation, greeting);
    composer.text = conversation.draft;
    showState();
    showList();
    closeSide();
    if (matchMedia('(pointer: fine)').matches) {
        composer.focus();
    }
}

// ---- Conversations ----

function open(id) {
    const conversation = new Conversation(daemon, id);
    if (id !== null) {
        known.set(id, conversation);
    }
    let wasBusy = false;
    conversation.addEventListener('state', () => {
        if (conversation.id !== null && !known.has(conversation.id)) {
            named(conversation);
        }
        if (conversation.busy !== wasBusy) {
            wasBusy = conversation.busy;
            refresh();
        }
        if (conversation === current) {
            showState();
        }
    });
    conversation.addEventListener('draft', () => {
        if (conversation === current && composer.text.trim() === '') {
            composer.text = conversation.draft;
        }
    });
    conversation.addEventListener('gone', () => forget(conversation));
    return conversation;
}

function named(conversation) {
    known.set(conversation.id, conversation);
    if (conversation === current) {
        history.replaceState(null, '', `#/${encodeURIComponent(conversation.id)}`);
    }
    refresh();
}

// The session is gone from the daemon. What the page still has to say about it moves to a new one.
function forget(conversation) {
    known.delete(conversation.id);
    if (conversation === current) {
        const next = open(null);
        next.problem = conversation.problem;
        current.draft = composer.text;
        next.draft = current.draft || conversation.draft;
        history.replaceState(null, '', '#/');
        show(next);
    }
    refresh();
}

async function load(conversation) {
    try {
        await conversation.load();
    } catch (error) {
        if (error.code === 'unreachable' || error.code === 'model_loading') {
            return; // the line about the connection says so; it is loaded when the link opens
        }
        conversation.problem = sentence(error);
        if (error.status === 404) {
            forget(conversation);
        } else if (conversation === current) {
            showState();
        }
    }
}

function addressed() {
    try {
        return decodeURIComponent(/^#\/(.+)$/.exec(location.hash)?.[1] ?? '') || null;
    } catch {
        return null; // an address that somebody mistyped
    }
}

function go() {
    const id = addressed();
    if (current && current.id === id && (id !== null || current.messages.length === 0)) {
        closeSide();
        composer.focus();
        return;
    }
    const conversation = (id !== null && known.get(id)) || open(id);
    show(conversation);
    if (conversation.loaded) {
        catchUp();
    } else {
        load(conversation);
    }
}

// ---- The list ----

let refreshing = null;
let again = false;

// One request at a time; whoever comes while it runs gets one more afterwards.
async function refresh() {
    if (refreshing) {
        again = true;
        return refreshing;
    }
    refreshing = daemon.sessions().then((reply) => {
        sessions = reply.data;
        limit = reply.limit;
        showList();
        showState();
    }, () => {}); // the line about the connection says what is wrong
    await refreshing;
    refreshing = null;
    if (again) {
        again = false;
        return refresh();
    }
}

// Another page or program may have gone on with this session.
async function catchUp() {
    await refresh();
    const listed = sessions.find((s) => s.id === current.id);
    if (listed && current.loaded && !current.busy && listed.last_response_id !== current.lastResponse) {
        load(current);
    }
}

function askToRemove(session) {
    const dialog = $('confirm');
    const running = known.get(session.id)?.busy ?? false;
    $('confirm-text').textContent = `“${titleOf(session)}” and its ${count(session.tokens)} tokens will be gone for good.`
        + (running ? ' The answer being written will be stopped.' : '');
    $('confirm-no').onclick = () => dialog.close();
    $('confirm-yes').onclick = () => {
        dialog.close();
        remove(session.id);
    };
    dialog.showModal();
}

async function remove(id) {
    try {
        await known.get(id)?.rest();
        await daemon.remove(id);
    } catch (error) {
        if (error.status !== 404) {
            current.problem = sentence(error);
            showState();
            return;
        }
    }
    known.delete(id);
    sessions = sessions.filter((s) => s.id !== id);
    if (current.id === id) {
        history.replaceState(null, '', '#/');
        show(open(null));
    }
    showList();
    refresh();
    composer.focus(); // the button that had it is gone
}

// ---- The connection ----

let patience = 0;

function sayLink(text, canRetry) {
    $('link').replaceChildren(text, ...(canRetry ? [make('button', { type: 'button', onclick: () => daemon.retry() }, 'Try now')] : []));
}

async function showLink({ state, delay }) {
    clearTimeout(patience);
    if (state === 'open') {
        sayLink('', false);
        catchUp();
        loadModel();
        if (current.id !== null && !current.loaded) {
            load(current);
        }
    } else if (state === 'waiting') {
        patience = setTimeout(async () => {
            const health = await daemon.health().catch(() => null);
            if (daemon.state !== 'open') {
                const lost = `Not connected. Trying again within ${duration(Math.max(1000, delay))}.`;
                sayLink(health === 'loading' ? 'The model is loading…' : lost, health === null);
            }
        }, $('link').textContent === '' ? LINK_PATIENCE_MS : 0);
    }
    showState();
}

async function loadModel() {
    try {
        model = await daemon.model();
        $('model').textContent = model.id;
        $('model').title = model.id;
        showState();
    } catch {
        // the line about the connection says what is wrong
    }
}

daemon.addEventListener('link', (event) => showLink(event.detail));
daemon.addEventListener('trouble', (event) => {
    current.problem = sentence(event.detail);
    showState();
});

// ---- The drawer of narrow screens, and keys ----

function setSide(isOpen) {
    document.body.classList.toggle('side-open', isOpen);
    $('menu').setAttribute('aria-expanded', String(isOpen));
    document.querySelector('main').inert = isOpen;
}

function closeSide() {
    const hadFocus = $('side').contains(document.activeElement);
    const wasOpen = document.body.classList.contains('side-open');
    setSide(false);
    if (wasOpen && hadFocus) {
        $('menu').focus();
    }
}

$('menu').addEventListener('click', () => {
    setSide(true);
    $('new').focus();
});
$('veil').addEventListener('click', closeSide);
$('skip').addEventListener('click', (event) => {
    event.preventDefault(); // the address keeps naming the session
    composer.focus();
});
for (const id of ['new', 'new-narrow']) {
    $(id).addEventListener('click', (event) => {
        if (event.ctrlKey || event.metaKey || event.shiftKey) {
            return; // the person wants another tab or window
        }
        event.preventDefault(); // at once, and also when the address would not change: a first message may be on its way
        if (location.hash !== '#/') {
            history.pushState(null, '', '#/');
        }
        go();
    });
}
document.addEventListener('keydown', (event) => {
    if (event.key !== 'Escape' || event.isComposing || $('confirm').open) {
        return;
    }
    if (document.body.classList.contains('side-open')) {
        closeSide();
    } else if (current.busy) {
        event.preventDefault();
        current.stop();
    }
});

addEventListener('hashchange', go);
addEventListener('online', () => daemon.retry());
document.addEventListener('visibilitychange', () => {
    if (document.visibilityState === 'visible') {
        daemon.retry();
        catchUp();
    }
});

go();
daemon.connect();
refresh();
