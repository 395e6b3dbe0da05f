/* One conversation: what was said, the answer being written, and the numbers of its last record. No DOM here.
 *
 *   idle --send--> waiting --first text--> writing --last event--> idle
 *                     \--refused: the message goes back into the draft--> idle
 *                      \--page:lost: marked as cut--> idle, unsettled --link open--> settle() --> idle
 *
 * I1  The daemon's list of items is the truth. After anything that leaves us unsure (a lost socket, a stop before the first
 *     word, a failure, a reload in the middle of an answer) the page shows what GET /runnel/sessions/{id} says.
 * I2  A message that the daemon did not keep is never lost: it is in `draft` again, unless the person has written something new.
 *
 * Events: "reset" (messages replaced), "added" (a message at the end), "text" (detail: what was added to the last message),
 * "ended" (the last message is final), "draft" (a message came back), "gone" (the session no longer exists), "state" (anything
 * else: numbers, problem, id, busy). */

import { Problem } from './api.js';
import { endNote, recordNotes, sentence } from './words.js';

const TEMPERATURE = 0.7;
// An answer whose listener is gone is cancelled after ten seconds (ws.linger); these looks, 13 s in all, outlast it.
const SETTLE_MS = [0, 500, 1500, 3000, 4000, 4000];

const sleep = (ms) => new Promise((resolve) => setTimeout(resolve, ms));

function itemText(item) {
    return (item.content ?? []).map((part) => part.text ?? '').join('');
}

// An item of the daemon as a message of ours. What the page cannot show yet is named rather than left out.
function toMessage(item) {
    if (item.type !== 'message') {
        return { role: 'other', text: `(${item.type})`, state: 'done', notes: [] };
    }
    const cut = item.role === 'assistant' && item.status === 'incomplete';
    return { role: item.role, text: itemText(item), state: cut ? 'cut' : 'done', notes: cut ? ['Cut here.'] : [] };
}

export class Conversation extends EventTarget {
    id; // null until the daemon has named it
    title = null;
    messages = []; // { role, text, state: 'waiting' | 'queued' | 'writing' | 'done' | 'cut', notes }
    context = null; // { n, pinned, used, evicted }
    timings = null;
    problem = null; // a sentence
    draft = '';
    busy = false; // an answer of ours is running
    stopping = false;
    loaded = false;
    lastResponse = null; // id of the newest response we know, to notice that another page went on
    #daemon;
    #stop = null;
    #unsettled = false;
    #settling = false;

    constructor(daemon, id = null) {
        super();
        this.#daemon = daemon;
        this.id = id;
        this.loaded = id === null;
        daemon.addEventListener('link', (event) => {
            if (event.detail.state === 'open' && this.#unsettled) {
                this.settle();
            }
        });
    }

    // ---- From the daemon ----

    /* Reads the session. Throws Problem. */
    async load() {
        const session = await this.#daemon.session(this.id);
        if (this.busy) {
            return; // the person was faster: what we now hold is newer
        }
        this.#adopt(session);
        if (!this.#answered(session)) {
            this.messages.at(-1).notes = ['An answer was being written. Waiting for it.']; // a reload in the middle, or another page
            this.#tell('reset');
            this.settle();
        }
    }

    #answered(session) {
        const last = session.items.at(-1);
        return !last || last.type !== 'message' || last.role !== 'user';
    }

    #adopt(session) {
        this.loaded = true;
        this.#unsettled = false;
        this.title = session.title;
        this.lastResponse = session.last_response_id;
        this.messages = session.items.map(toMessage);
        if (session.window !== undefined) {
            this.context = { n: session.window, pinned: session.pinned ?? 0, used: session.tokens - session.evicted, evicted: session.evicted };
        }
        this.#tell('reset');
        this.#tell('state');
    }

    /* Looks until the session has an answer to its last message, or none is to be expected any more; then shows it. */
    async settle(looks = SETTLE_MS) {
        if (this.#settling || this.id === null) {
            return;
        }
        this.#settling = true;
        let session = null;
        for (const ms of looks) {
            await sleep(ms);
            session = this.busy ? null : await this.#daemon.session(this.id).catch((error) => ({ error }));
            if (session === null || session.error?.status === 404 || (session.items && this.#answered(session))) {
                break;
            }
        }
        this.#settling = false;
        if (session?.error?.status === 404) {
            this.#gone();
        } else if (session?.items && !this.busy) {
            this.#settled(session);
        }
    }

    #settled(session) {
        const before = this.#asked();
        this.#adopt(session);
        if (this.#asked().length < before.length) {
            this.#giveBack(before.at(-1)); // keeps I2
        }
        const last = this.messages.at(-1);
        if (last?.role === 'user') {
            last.notes = ['There is no answer yet.'];
            this.#tell('reset');
        }
    }

    // A first message that was taken back takes its session with it; otherwise somebody deleted the session.
    #gone() {
        const asked = this.#asked();
        if (asked.length === 1) {
            this.#giveBack(asked[0]);
        } else {
            this.problem = sentence({ code: 'not_found' });
        }
        this.messages = [];
        this.context = null;
        this.timings = null;
        this.#unsettled = false;
        this.#tell('reset');
        this.#tell('gone');
    }

    #asked() {
        return this.messages.filter((m) => m.role === 'user').map((m) => m.text);
    }

    // ---- To the daemon ----

    send(text) {
        this.problem = null;
        const fields = { input: text, store: true, temperature: TEMPERATURE, runnel: { overflow: 'roll' } };
        if (this.id !== null) {
            fields.runnel.session = this.id; // at its head; a previous_response_id that is not the head would silently fork
        }
        try {
            this.#stop = this.#daemon.ask(fields, (event) => this.#hear(event));
        } catch (error) {
            this.#refuse(error, text);
            return;
        }
        this.busy = true;
        this.stopping = false;
        this.#add({ role: 'user', text, state: 'done', notes: [] });
        this.#add({ role: 'assistant', text: '', state: 'waiting', notes: [] });
        this.#tell('state');
    }

    stop() {
        if (this.busy && !this.stopping) {
            this.stopping = true;
            this.#stop();
            this.#tell('state');
        }
    }

    // Stops, and resolves when nothing of ours runs any more.
    async rest() {
        this.stop();
        while (this.busy) {
            await new Promise((resolve) => this.addEventListener('state', resolve, { once: true }));
        }
    }

    // ---- Events of the answer ----

    #hear(event) {
        const message = this.messages.at(-1);
        switch (event.type) {
        case 'response.created':
            this.id ??= event.response.runnel?.session ?? null;
            this.context = event.response.runnel?.context ?? this.context; // with what was just said in it
            this.#tell('state');
            break;
        case 'response.queued':
            message.state = 'queued';
            this.#tell('state');
            break;
        case 'response.in_progress':
            message.state = 'waiting';
            this.#tell('state');
            break;
        case 'response.output_text.delta':
            message.state = 'writing';
            message.text += event.delta;
            this.#tell('text', event.delta);
            break;
        case 'runnel:context.evicted':
            this.#evicted(event);
            break;
        case 'response.completed':
        case 'response.incomplete':
        case 'response.failed':
            this.#finish(event.response);
            break;
        case 'error':
            this.#refused(Problem.from(event.error, event.status));
            break;
        case 'page:lost':
            this.#lost();
            break;
        }
    }

    // Only the count of what left is known here; the rest of the meter follows with the record.
    #evicted(event) {
        if (this.context) {
            const { pinned, used, evicted } = this.context;
            const more = Math.max(0, event.evicted_tokens - evicted);
            this.context = { ...this.context, evicted: event.evicted_tokens, used: Math.max(pinned, used - more) };
            this.#tell('state');
        }
    }

    #finish(response) {
        const message = this.messages.at(-1);
        const record = response.runnel ?? {};
        const end = endNote(response);
        message.state = end ? 'cut' : 'done';
        message.notes = [end, ...recordNotes(record)].filter(Boolean);
        this.context = record.context ?? this.context;
        this.timings = record.timings ?? this.timings;
        this.lastResponse = response.id;
        this.#end();
        if (response.status === 'failed') {
            this.problem = end;
        }
        if (response.status === 'failed' || (end && message.text === '')) {
            this.settle([0]); // the daemon may or may not have kept the turn: keeps I1
        }
    }

    #refused(problem) {
        const asked = this.messages.at(-2).text;
        this.messages.splice(-2);
        this.#tell('reset');
        this.#end();
        this.#refuse(problem, asked);
    }

    #refuse(problem, text) {
        this.problem = sentence(problem);
        this.#giveBack(text);
        this.#tell('state');
    }

    #lost() {
        const message = this.messages.at(-1);
        if (this.id === null) { // nobody has told us that the message arrived
            this.#refused(new Problem('lost', 'The connection was lost before the daemon took the message.'));
            return;
        }
        message.state = 'cut';
        message.notes = ['Cut: the connection was lost.'];
        this.#unsettled = true;
        this.#end();
    }

    #end() {
        this.busy = false;
        this.stopping = false;
        this.#stop = null;
        this.#tell('ended');
        this.#tell('state');
    }

    #giveBack(text) {
        if (this.draft.trim() === '') {
            this.draft = text;
            this.#tell('draft');
        }
    }

    #add(message) {
        this.messages.push(message);
        this.#tell('added', message);
    }

    #tell(type, detail = null) {
        this.dispatchEvent(new CustomEvent(type, { detail }));
    }
}
