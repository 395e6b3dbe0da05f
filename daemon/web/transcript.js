/* The conversation on screen: turns as plain text, scrolled to the end for as long as the reader is there.
 *
 * I1  Text arrives much faster than frames: it gathers and is appended once per frame to the same text node.
 * I2  Only the reader's own upward scrolling lets go of the end; reaching it again takes hold.
 * I3  A screen reader hears finished sentences (the `spoken` region), never single tokens. */

import { make } from './dom.js';

const AT_END_PX = 8; // within this of the bottom counts as the bottom: fractional pixels and zoom
const SENTENCE_END = /[.!?…]["'”’)\]]*\s|[。！？]|\n/g;

const WAITING = { waiting: 'Reading', queued: 'Waiting for a place' };

export class Transcript {
    #scroller;
    #turns;
    #latest;
    #spoken;
    #conversation = null;
    #heard = null; // AbortController: ends the listeners on the conversation shown before
    #last = null; // { element, text, note }: the parts of the last message
    #pending = '';
    #unspoken = '';
    #frame = 0;
    #follows = true;
    #top = 0;

    constructor({ scroller, turns, latest, spoken }) {
        this.#scroller = scroller;
        this.#turns = turns;
        this.#latest = latest;
        this.#spoken = spoken;
        scroller.addEventListener('scroll', () => this.#scrolled(), { passive: true });
        latest.addEventListener('click', () => this.toEnd());
        new ResizeObserver(() => this.#keep()).observe(scroller);
        new ResizeObserver(() => this.#keep()).observe(turns);
    }

    show(conversation, greeting) {
        this.#heard?.abort();
        this.#heard = new AbortController();
        const signal = this.#heard.signal;
        this.#conversation = conversation;
        const redraw = () => this.#redraw(greeting);
        conversation.addEventListener('reset', redraw, { signal });
        conversation.addEventListener('added', (event) => this.#add(event.detail), { signal });
        conversation.addEventListener('text', (event) => this.#write(event.detail), { signal });
        conversation.addEventListener('state', () => this.#mark(), { signal });
        conversation.addEventListener('ended', () => this.#end(), { signal });
        redraw();
        this.toEnd();
    }

    toEnd() {
        this.#follows = true;
        this.#keep();
    }

    // ---- Turns ----

    #redraw(greeting) {
        this.#pending = '';
        this.#last = null;
        this.#turns.replaceChildren();
        this.#spoken.replaceChildren();
        const messages = this.#conversation.messages;
        if (messages.length === 0) {
            this.#turns.append(greeting());
        }
        for (const message of messages) {
            this.#add(message);
        }
    }

    #add(message) {
        if (this.#last === null) {
            this.#turns.replaceChildren(); // the greeting
        }
        const text = document.createTextNode(message.text);
        const note = make('p', { className: 'note' });
        const names = { user: 'You', assistant: 'Answer', system: 'Instructions', developer: 'Instructions' };
        const element = make('article', { className: 'turn', data: { role: message.role } },
            make('h2', { className: 'unseen' }, names[message.role] ?? message.role),
            make('div', { className: 'said', dir: 'auto' }, text),
            note);
        this.#last = { element, text, note };
        this.#turns.append(element);
        this.#mark(message);
        if (message.role === 'user' && this.#conversation.busy) {
            this.toEnd(); // what was just sent is what one wants to see
        }
    }

    // State and notes of the message that `#last` shows.
    #mark(message = this.#conversation.messages.at(-1)) {
        if (!message || !this.#last) {
            return;
        }
        const { element, note } = this.#last;
        element.dataset.state = message.state;
        const lines = WAITING[message.state] ? [WAITING[message.state]] : message.notes;
        if (note.textContent !== lines.join('')) {
            note.replaceChildren(...lines.map((line) => make('span', {}, line)));
        }
    }

    // ---- Text ----

    #write(delta) {
        if (this.#last.element.dataset.state !== 'writing') {
            this.#mark();
            this.#spoken.replaceChildren();
        }
        this.#pending += delta;
        this.#frame ||= requestAnimationFrame(() => this.#flush());
    }

    #flush() {
        cancelAnimationFrame(this.#frame);
        this.#frame = 0;
        if (this.#pending === '' || !this.#last) {
            return;
        }
        this.#last.text.appendData(this.#pending);
        this.#speak(this.#pending);
        this.#pending = '';
        this.#keep();
    }

    #end() {
        this.#flush();
        this.#mark();
        if (this.#unspoken.trim() !== '') {
            this.#spoken.append(make('p', {}, this.#unspoken));
        }
        this.#unspoken = '';
        const notes = this.#conversation.messages.at(-1)?.notes ?? [];
        if (notes.length > 0) {
            this.#spoken.append(make('p', {}, notes.join(' ')));
        }
    }

    #speak(text) {
        this.#unspoken += text;
        let end = 0;
        for (const match of this.#unspoken.matchAll(SENTENCE_END)) {
            end = match.index + match[0].length;
        }
        if (end > 0) {
            const sentences = this.#unspoken.slice(0, end);
            this.#unspoken = this.#unspoken.slice(end);
            if (sentences.trim() !== '') {
                this.#spoken.append(make('p', {}, sentences));
            }
        }
    }

    // ---- Scrolling ----

    #scrolled() {
        const { scrollTop, scrollHeight, clientHeight } = this.#scroller;
        if (scrollHeight - clientHeight - scrollTop <= AT_END_PX) {
            this.#follows = true;
        } else if (scrollTop < this.#top) {
            this.#follows = false; // keeps I2
        }
        this.#top = scrollTop;
        this.#latest.hidden = this.#follows;
    }

    #keep() {
        if (this.#follows) {
            this.#scroller.scrollTop = this.#scroller.scrollHeight;
            this.#top = this.#scroller.scrollTop;
        }
        this.#latest.hidden = this.#follows;
    }
}
