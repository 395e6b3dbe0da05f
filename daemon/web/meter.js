/* The window meter: how much of the window is pinned, used and free, what has left it, and how fast the last answer was.
 *
 * The bar is the window (n tokens): first the pinned zone, then what is visible behind it. Old turns leave where the two meet;
 * from then on the bar shows a gap there. */

import { make } from './dom.js';
import { count, duration, rate } from './words.js';

export class Meter {
    #pinned = make('i', { className: 'pinned' });
    #window = make('i', { className: 'window' });
    #bar = make('div', { className: 'bar' }, this.#pinned, this.#window);
    #numbers = make('span', { className: 'numbers' });
    #speed = make('span', { className: 'speed' });

    constructor(element) {
        this.#bar.setAttribute('role', 'meter');
        this.#bar.setAttribute('aria-label', 'Window');
        this.#bar.setAttribute('aria-valuemin', '0');
        element.append(this.#bar, make('p', { className: 'quiet' }, this.#numbers, this.#speed));
    }

    /* context: { n, pinned, used, evicted } or null while unknown; timings: the record's, or null. */
    show(context, timings) {
        this.#showWindow(context);
        const speed = [];
        if (timings?.decode_tokens_per_s > 0) {
            speed.push(`${rate(timings.decode_tokens_per_s)} tokens/s`);
        }
        if (timings?.ttft_ms > 0) {
            speed.push(`first word after ${duration(timings.ttft_ms)}`);
        }
        this.#speed.textContent = speed.join(', ');
    }

    #showWindow(context) {
        this.#numbers.replaceChildren();
        const { n, used, evicted } = context ?? { n: 1, used: 0, evicted: 0 };
        const pinned = Math.min(context?.pinned ?? 0, used);
        this.#pinned.style.inlineSize = `${(100 * pinned) / n}%`;
        this.#window.style.inlineSize = `${(100 * Math.max(0, used - pinned)) / n}%`;
        this.#bar.classList.toggle('flows', evicted > 0);
        if (!context) { // an empty bar keeps the place
            this.#bar.removeAttribute('aria-valuetext');
            return;
        }
        const parts = [`${count(used)} of ${count(n)} tokens`, `${count(pinned)} pinned`, `${count(evicted)} evicted`];
        this.#numbers.append(...parts.map((text) => make('span', {}, text)));
        this.#bar.setAttribute('aria-valuemax', n);
        this.#bar.setAttribute('aria-valuenow', used);
        this.#bar.setAttribute('aria-valuetext', parts.join(', '));
    }
}
