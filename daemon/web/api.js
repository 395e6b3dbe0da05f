/* The daemon as the page sees it: a few HTTP calls, and one WebSocket that carries every answer.
 *
 *   closed --connect--> opening --open--> open --drop--> waiting (back-off) --timer, retry()--> opening
 *
 * I1  Each ask() runs on a lane (stream_id) of its own while it lasts, so that answers of several sessions never mix.
 * I2  Each ask() hears exactly one last event: response.completed, .incomplete or .failed, "error" (it was refused), or the
 *     page's own "page:lost" (the socket dropped; the daemon may have gone on without us).
 * I3  Nothing is sent twice: a dropped request is never repeated here. Whoever asked looks at the session and decides.
 *
 * Events of this object: "link" (detail: state, and the delay in ms while waiting), "trouble" (detail: a Problem of no lane). */

const BACK_OFF_FIRST_MS = 500;
const BACK_OFF_MAX_MS = 8000; // a restarted daemon is back within a second; longer waits only save a sleeping laptop's battery
const LANES = 16; // the daemon's limit of running answers per connection
const LIST_LIMIT = 500;
const LAST = new Set(['response.completed', 'response.incomplete', 'response.failed', 'error', 'page:lost']);

/* What went wrong, with the daemon's code ("session_busy", …) or one of the page's: "unreachable", "too_many_answers". */
export class Problem extends Error {
    constructor(code, message, status = 0) {
        super(message);
        this.code = code;
        this.status = status;
    }

    static from(error, status) {
        return new Problem(error?.code ?? 'unknown', error?.message ?? 'The daemon sent an error without a message.', status);
    }
}

async function call(method, path) {
    let reply;
    try {
        reply = await fetch(path, { method, cache: 'no-store' });
    } catch {
        throw new Problem('unreachable', 'The daemon does not answer.');
    }
    const body = await reply.json().catch(() => null);
    if (!reply.ok || body === null) {
        throw Problem.from(body?.error, reply.status);
    }
    return body;
}

export class Daemon extends EventTarget {
    #socket = null;
    #state = 'closed';
    #failures = 0;
    #timer = 0;
    #lanes = new Map(); // stream_id -> the function that hears its events

    get state() {
        return this.#state;
    }

    // ---- HTTP ----

    // { data, limit }: newest first as the daemon lists them.
    async sessions() {
        const { data } = await call('GET', `runnel/sessions?limit=${LIST_LIMIT}`);
        return { data, limit: LIST_LIMIT };
    }

    session(id) {
        return call('GET', `runnel/sessions/${encodeURIComponent(id)}`);
    }

    remove(id) {
        return call('DELETE', `runnel/sessions/${encodeURIComponent(id)}`);
    }

    async model() {
        return (await call('GET', 'v1/models')).data[0];
    }

    // "ok", "loading", "stopping"; throws Problem when there is nobody.
    async health() {
        return (await call('GET', 'health')).status;
    }

    // ---- The socket ----

    connect() {
        clearTimeout(this.#timer);
        this.#move('opening');
        const url = new URL('v1/responses', location.href);
        url.protocol = url.protocol.replace('http', 'ws');
        url.hash = '';
        const socket = new WebSocket(url);
        this.#socket = socket;
        socket.addEventListener('open', () => {
            this.#failures = 0;
            this.#move('open');
        });
        socket.addEventListener('message', (message) => this.#hear(message.data));
        socket.addEventListener('close', () => this.#dropped());
    }

    // Skips the rest of the wait: the person asked, or the machine woke up.
    retry() {
        if (this.#state === 'waiting') {
            this.connect();
        }
    }

    /* Starts an answer. `fields` are those of response.create; `heard` gets its events (I2).
     * Returns the function that stops it; throws Problem without having sent anything. */
    ask(fields, heard) {
        if (this.#state !== 'open') {
            throw new Problem('unreachable', 'The daemon does not answer.');
        }
        const lane = this.#freeLane();
        this.#lanes.set(lane, heard);
        this.#send({ type: 'response.create', stream_id: lane, ...fields });
        return () => {
            if (this.#lanes.get(lane) === heard) {
                this.#send({ type: 'response.cancel', stream_id: lane });
            }
        };
    }

    #freeLane() {
        for (let i = 0; i < LANES; i++) {
            const lane = `page-${i}`;
            if (!this.#lanes.has(lane)) {
                return lane;
            }
        }
        throw new Problem('too_many_answers', 'Sixteen answers are being written already.');
    }

    #send(message) {
        if (this.#socket.readyState === WebSocket.OPEN) {
            this.#socket.send(JSON.stringify(message));
        }
    }

    #hear(data) {
        const event = JSON.parse(data);
        // An answer that ended while its cancel was on the way; the lane may already belong to another one.
        if (event.type === 'error' && event.error?.code === 'response_not_found') {
            return;
        }
        const heard = this.#lanes.get(event.stream_id);
        if (!heard) {
            if (event.type === 'error') {
                this.dispatchEvent(new CustomEvent('trouble', { detail: Problem.from(event.error, event.status) }));
            }
            return;
        }
        if (LAST.has(event.type)) {
            this.#lanes.delete(event.stream_id);
        }
        heard(event);
    }

    #dropped() {
        const delay = Math.min(BACK_OFF_MAX_MS, BACK_OFF_FIRST_MS * 2 ** this.#failures) * (0.75 + Math.random() / 2);
        this.#failures++;
        this.#timer = setTimeout(() => this.connect(), delay);
        const lanes = [...this.#lanes.values()];
        this.#lanes.clear();
        this.#move('waiting', delay);
        for (const heard of lanes) {
            heard({ type: 'page:lost' });
        }
    }

    #move(state, delay = 0) {
        this.#state = state;
        this.dispatchEvent(new CustomEvent('link', { detail: { state, delay } }));
    }
}
