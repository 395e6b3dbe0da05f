/* The message being written: a field that grows with its text, and one button that sends, or stops the answer that runs.
 *
 * Enter sends, Shift+Enter begins a line, an Enter that ends an input method's composition does neither. */

export class Composer {
    #field;
    #button;
    #send;
    #stop;
    #busy = false;
    #open = false;

    constructor({ field, button, send, stop }) {
        this.#field = field;
        this.#button = button;
        this.#send = send;
        this.#stop = stop;
        field.addEventListener('input', () => this.#changed());
        field.addEventListener('keydown', (event) => this.#key(event));
        button.addEventListener('click', () => (this.#busy ? this.#stop() : this.#submit()));
        new ResizeObserver(() => this.#grow()).observe(field.parentElement);
    }

    get text() {
        return this.#field.value;
    }

    set text(text) {
        this.#field.value = text;
        this.#changed();
    }

    focus() {
        this.#field.focus({ preventScroll: true });
    }

    /* busy: an answer of this conversation runs; open: the daemon can be reached. */
    show({ busy, stopping, open }) {
        this.#busy = busy;
        this.#open = open;
        this.#button.classList.toggle('stops', busy);
        this.#button.setAttribute('aria-label', busy ? 'Stop' : 'Send');
        this.#button.title = busy ? 'Stop (Esc)' : 'Send (Enter)';
        this.#button.setAttribute('aria-disabled', String(busy ? stopping : !open || this.text.trim() === ''));
    }

    #key(event) {
        if (event.key === 'Enter' && !event.shiftKey && !event.isComposing) {
            event.preventDefault();
            this.#submit();
        }
    }

    #submit() {
        const text = this.text;
        if (this.#busy || !this.#open || text.trim() === '') {
            return;
        }
        this.text = '';
        this.#send(text);
        this.focus();
    }

    #changed() {
        this.#grow();
        this.#button.setAttribute('aria-disabled', String(!this.#busy && (!this.#open || this.text.trim() === '')));
    }

    // The style sheet bounds the height; beyond it the field scrolls.
    #grow() {
        this.#field.style.blockSize = 'auto';
        this.#field.style.blockSize = `${this.#field.scrollHeight}px`;
    }
}
