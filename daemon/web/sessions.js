/* The list of sessions: newest first under the names of days, as links, each with a button that deletes it.
 *
 * Rows are kept by session id and only moved when their order changes, so that the focus survives a refresh. */

import { make } from './dom.js';
import { count, day } from './words.js';

const SVG = 'http://www.w3.org/2000/svg';

function cross() {
    const svg = document.createElementNS(SVG, 'svg');
    const path = document.createElementNS(SVG, 'path');
    svg.setAttribute('viewBox', '0 0 24 24');
    svg.setAttribute('aria-hidden', 'true');
    path.setAttribute('d', 'M7 7l10 10M17 7L7 17');
    svg.append(path);
    return svg;
}

const TITLE_MAX = 60; // the daemon cuts there

export function titleOf(session) {
    const title = session.title?.trim() || 'Untitled';
    return [...title].length < TITLE_MAX ? title : `${title}…`;
}

export class SessionList {
    #element;
    #remove;
    #rows = new Map(); // id -> { row, link, button }
    #more = make('p', { className: 'quiet' });

    /* `remove` is called with the session whose delete button was pressed. */
    constructor(element, remove) {
        this.#element = element;
        this.#remove = remove;
    }

    /* current: the id shown, or null; busy: ids of sessions with a running answer; limit: how many the daemon lists at most. */
    show(sessions, { current, busy, limit }) {
        const sorted = [...sessions].sort((a, b) => b.last_used - a.last_used);
        const wanted = [];
        let heading = null;
        for (const session of sorted) {
            const name = day(session.last_used);
            if (name !== heading) {
                heading = name;
                wanted.push(this.#heading(name));
            }
            wanted.push(this.#row(session, session.id === current, busy.has(session.id)));
        }
        if (sessions.length >= limit) {
            this.#more.textContent = `The newest ${count(limit)} sessions are shown.`;
            wanted.push(this.#more);
        }
        this.#arrange(wanted);
        const ids = new Set(sorted.map((s) => s.id));
        for (const id of this.#rows.keys()) {
            if (!ids.has(id)) {
                this.#rows.delete(id);
            }
        }
    }

    #heading(name) {
        const known = [...this.#element.querySelectorAll('h2')].find((h) => h.textContent === name);
        return known ?? make('h2', {}, name);
    }

    #row(session, isCurrent, isBusy) {
        if (!this.#rows.has(session.id)) {
            const link = make('a', { href: `#/${encodeURIComponent(session.id)}` });
            const button = make('button', { type: 'button', className: 'icon' }, cross());
            const row = make('div', { className: 'row' }, link, button);
            this.#rows.set(session.id, { row, link, button });
        }
        const { row, link, button } = this.#rows.get(session.id);
        const title = titleOf(session);
        if (link.textContent !== title) {
            link.textContent = title;
            link.title = title;
            button.setAttribute('aria-label', `Delete: ${title}`);
        }
        button.onclick = () => this.#remove(session);
        row.classList.toggle('busy', isBusy);
        if (isCurrent) {
            link.setAttribute('aria-current', 'page');
        } else {
            link.removeAttribute('aria-current');
        }
        return row;
    }

    #arrange(wanted) {
        const keep = new Set(wanted);
        for (const child of [...this.#element.children]) {
            if (!keep.has(child)) {
                child.remove();
            }
        }
        wanted.forEach((child, i) => {
            if (this.#element.children[i] !== child) {
                this.#element.insertBefore(child, this.#element.children[i] ?? null);
            }
        });
    }
}
