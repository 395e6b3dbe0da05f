/* What the page says: errors as sentences a person can act on, numbers and times in the reader's language. Pure functions. */

const SENTENCES = {
    unreachable: 'The daemon does not answer. Is runneld running?',
    too_many_answers: 'Sixteen answers are being written already. Wait for one to end.',
    not_found: 'This session no longer exists.',
    session_busy: 'This session is still busy with another answer. Try again when it has ended.',
    server_is_overloaded: 'The daemon has too much to do right now. Try again in a moment.',
    rate_limit_exceeded: 'Too many messages are waiting already. Try again in a moment.',
    queue_full: 'Too many messages are waiting already. Try again in a moment.',
    draining: 'The daemon is shutting down. The message was not taken.',
    model_loading: 'The model is still loading. Try again in a moment.',
    request_too_large: 'This message is too large to be sent.',
};

// Codes whose own message carries the numbers or names that matter.
const PREFIXES = {
    context_length_exceeded: 'This message does not fit into the window',
    storage: 'The conversation could not be written to disk',
    device_lost: 'The device that computes was lost',
};

/* One or two sentences for a Problem or an error object of the protocol. */
export function sentence(problem) {
    if (Object.hasOwn(SENTENCES, problem.code)) {
        return SENTENCES[problem.code];
    }
    const message = (problem.message ?? '').trim() || 'The daemon gave no reason';
    const text = Object.hasOwn(PREFIXES, problem.code) ? `${PREFIXES[problem.code]}: ${message}` : message[0].toUpperCase() + message.slice(1);
    return /[.!?]$/.test(text) ? text : `${text}.`;
}

/* Why an answer ends where it ends; '' when it simply ended. */
export function endNote(response) {
    const cause = response.runnel?.stop?.cause;
    if (response.status === 'failed') {
        return `Broken off: ${sentence(response.error ?? {})}`;
    }
    if (cause === 'cancelled') {
        return 'Stopped.';
    }
    if (cause === 'length') {
        const limit = response.runnel?.sampling?.max_output_tokens;
        return limit ? `Cut at the limit of ${count(limit)} tokens for one answer.` : 'Cut at the limit for one answer.';
    }
    return response.status === 'completed' ? '' : 'Cut here.';
}

/* What the record says beyond the numbers. */
export function recordNotes(record) {
    const notes = [];
    if (record?.rebased) {
        notes.push(`Earlier text was read again from what is kept (${record.rebased.cause ?? 'rebased'}).`);
    }
    for (const warning of record?.warnings ?? []) {
        notes.push(typeof warning === 'string' ? warning : JSON.stringify(warning));
    }
    return notes;
}

const whole = new Intl.NumberFormat(undefined, { maximumFractionDigits: 0 });

export function count(n) {
    return whole.format(n);
}

export function rate(tokensPerSecond) {
    return new Intl.NumberFormat(undefined, { maximumFractionDigits: tokensPerSecond < 10 ? 1 : 0 }).format(tokensPerSecond);
}

export function duration(ms) {
    return ms < 1000 ? `${whole.format(ms)} ms` : `${new Intl.NumberFormat(undefined, { maximumFractionDigits: 1 }).format(ms / 1000)} s`;
}

/* The heading under which a session is listed. `seconds`: Unix time. */
export function day(seconds, now = new Date()) {
    const midnight = new Date(now.getFullYear(), now.getMonth(), now.getDate()).getTime() / 1000;
    if (seconds >= midnight) {
        return 'Today';
    }
    if (seconds >= midnight - 86400) {
        return 'Yesterday';
    }
    return seconds >= midnight - 6 * 86400 ? 'This week' : 'Earlier';
}
