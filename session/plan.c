#include "session/plan.h"

#include <errno.h>
#include <string.h>

#include "runtime/base/err.h"
#include "runtime/text.h"
#include "session/timeline.h"

// Stands for the text of the last answer while its history is rendered. Plain words: no template trims or interprets them.
#define MARK "runnel-answer-7866"

// The messages given to the template, and what is being built from them.
struct draft {
    const struct rn_text *text;
    json_t *messages; // base, then one for each new item that does not lead
    size_t n_base;    // messages that stand for H (0: the log is empty)
    size_t n_before;  // messages before the new items' own: H, or just the leading one
    size_t n_lead;    // new items that went into the leading message (only where the log is empty)
    bool open;        // H ends with an answer whose closing is not in the log
    struct rn_rendered whole;
    size_t from;   // bytes of `whole` that are in the log already
    size_t closed; // where the closing of the open answer ends in `whole`
};

void rn_plan_finish(struct rn_plan *p)
{
    rn_ids_finish(&p->ids);
    rn_mem_free(p->spans);
    *p = (struct rn_plan){0};
}

// ---- Messages --------------------------------------------------------------------------------------------------------------------

static int add_message(json_t *list, const char *role, const char *text, size_t len)
{
    json_t *m = json_object();
    // Templates know no "developer": it is the Responses API's word for system.
    int r = json_object_set_new(m, "role", json_string(rn_role_leads(role) ? "system" : role));
    r |= json_object_set_new(m, "content", json_stringn(text ? text : "", len));
    return json_array_append_new(list, r == 0 ? m : (json_decref(m), NULL)) == 0 ? 0 : -ENOMEM;
}

static int add_item(json_t *list, const json_t *item)
{
    struct rn_buf text = {0};
    int r = rn_item_text(item, &text);
    if (r == 0) {
        r = add_message(list, rn_item_role(item), text.data, text.len);
    }
    rn_buf_finish(&text);
    return r;
}

static int join(struct rn_buf *lead, const json_t *item)
{
    int r = lead->len ? rn_buf_add_str(lead, "\n\n") : 0;
    return r < 0 ? r : rn_item_text(item, lead);
}

// Number of items of the timeline that lead (items outside the timeline do not count as a border).
static size_t leading_items(const struct rn_timeline *t)
{
    size_t n = 0;
    while (n < t->n_items && (rn_role_leads(t->items[n].role) || t->items[n].first == RN_NOWHERE)) {
        n++;
    }
    return n;
}

// Instructions and leading system items become one message: most templates know only one, at the start.
static int add_lead(struct draft *d, const char *instructions, const struct rn_timeline *t, json_t *items)
{
    struct rn_buf lead = {0};
    int r = instructions ? rn_buf_add_str(&lead, instructions) : 0;
    bool any = instructions != NULL && *instructions;
    for (size_t i = 0; r == 0 && i < leading_items(t); i++) {
        if (t->items[i].first != RN_NOWHERE) {
            r = join(&lead, t->items[i].json);
            any = true;
        }
    }
    if (t->log.len == 0) {
        for (; r == 0 && rn_role_leads(rn_item_role(json_array_get(items, d->n_lead))) && d->n_lead < json_array_size(items); d->n_lead++) {
            r = join(&lead, json_array_get(items, d->n_lead));
            any = true;
        }
    }
    if (r == 0 && any) {
        r = add_message(d->messages, "system", lead.data, lead.len);
    }
    rn_buf_finish(&lead);
    return r;
}

// First item of the history that is rendered.
static size_t history_start(const struct rn_timeline *t)
{
    size_t start = leading_items(t);
    if (t->n_items - start <= RN_PLAN_HISTORY) {
        return start;
    }
    for (size_t i = t->n_items - RN_PLAN_HISTORY / 2; i < t->n_items; i++) {
        if (strcmp(t->items[i].role, "user") == 0) {
            return i;
        }
    }
    return t->n_items - RN_PLAN_HISTORY / 2;
}

static int add_history(struct draft *d, const struct rn_timeline *t)
{
    const struct rn_item *last = rn_timeline_last(t);
    d->open = last && last->answer;
    for (size_t i = history_start(t); i < t->n_items; i++) {
        const struct rn_item *item = &t->items[i];
        int r = 0;
        if (item == last && d->open) {
            r = add_message(d->messages, "assistant", MARK, strlen(MARK));
        } else if (item->first != RN_NOWHERE) {
            r = add_item(d->messages, item->json);
        }
        if (r < 0) {
            return r;
        }
    }
    return 0;
}

static int add_new(struct draft *d, json_t *items)
{
    int r = 0;
    for (size_t i = d->n_lead; r == 0 && i < json_array_size(items); i++) {
        r = add_item(d->messages, json_array_get(items, i));
    }
    return r;
}

// ---- Renderings --------------------------------------------------------------------------------------------------------------------

static int render(const struct rn_text *text, const json_t *messages, size_t n, bool generate, struct rn_rendered *ret, struct rn_err *err)
{
    json_t *list = json_array();
    int r = list ? 0 : -ENOMEM;
    for (size_t i = 0; r == 0 && i < n; i++) {
        r = json_array_append(list, json_array_get(messages, i)) == 0 ? 0 : -ENOMEM;
    }
    json_t *variables = r == 0 ? json_pack("{s:O, s:b}", "messages", list, "add_generation_prompt", (int)generate) : NULL;
    r = variables ? rn_text_render(text, variables, ret, err) : rn_err_nomem(err, 0, "messages");
    json_decref(variables);
    json_decref(list);
    return r;
}

static bool starts_with(const struct rn_rendered *whole, const struct rn_rendered *part)
{
    return whole->text.len >= part->text.len && (part->text.len == 0 || memcmp(whole->text.data, part->text.data, part->text.len) == 0);
}

static size_t common(const struct rn_rendered *a, const struct rn_rendered *b)
{
    size_t n = 0;
    while (n < a->text.len && n < b->text.len && a->text.data[n] == b->text.data[n]) {
        n++;
    }
    return n;
}

// Where the mark ends in a rendering: the first or the last place where it stands as a message's text. 0 = nowhere.
static size_t mark_end(const struct rn_rendered *r, bool last)
{
    size_t found = 0, len = strlen(MARK);
    for (size_t i = 0; i + len <= r->text.len; i++) {
        if (r->own.data[i] || r->text.data[i] != MARK[0] || memcmp(r->text.data + i, MARK, len) != 0) {
            continue;
        }
        found = i + len;
        if (!last) {
            break;
        }
    }
    return found;
}

// The usual case: render(H) is a prefix. Returns 1 when it is, 0 when not, or an error.
static int difference(struct draft *d, bool generate, struct rn_err *err)
{
    struct rn_rendered before = {0};
    int r = render(d->text, d->messages, json_array_size(d->messages), generate, &d->whole, err);
    if (r == 0 && d->n_base > 0) {
        r = render(d->text, d->messages, d->n_base, /*generate=*/false, &before, err);
    }
    if (r == 0) {
        d->from = d->open ? mark_end(&before, /*last=*/true) : before.text.len;
        d->closed = before.text.len;
        r = starts_with(&d->whole, &before) && (!d->open || d->from > 0);
    }
    rn_rendered_finish(&before);
    return r;
}

// The template rewrites history: the new items are rendered behind a stand-in instead.
static int stand_in(struct draft *d, json_t *items, bool generate, struct rn_err *err)
{
    json_t *lead = json_array_get(d->messages, 0);
    bool has_lead = lead && strcmp(rn_item_role(lead), "system") == 0;
    json_t *messages = json_array();
    int r = messages && (!has_lead || json_array_append(messages, lead) == 0) ? 0 : -ENOMEM;
    json_decref(d->messages);
    d->messages = messages;
    if (r < 0 || add_message(messages, "user", "x", 1) < 0 || add_message(messages, "assistant", MARK, strlen(MARK)) < 0) {
        return rn_err_nomem(err, 0, "messages");
    }
    d->n_base = d->n_before = json_array_size(messages);
    if (add_new(d, items) < 0) {
        return rn_err_nomem(err, 0, "messages");
    }
    rn_rendered_finish(&d->whole);
    struct rn_rendered before = {0};
    r = render(d->text, messages, json_array_size(messages), generate, &d->whole, err);
    if (r == 0) {
        r = render(d->text, messages, d->n_base, /*generate=*/false, &before, err);
    }
    size_t a = r == 0 ? mark_end(&before, false) : 0, b = r == 0 ? mark_end(&d->whole, false) : 0;
    if (r == 0 && (a == 0 || b == 0)) {
        r = rn_err_set(err, -EINVAL, "the chat template drops an earlier answer");
    }
    if (r == 0) {
        size_t closing = before.text.len - a;
        bool same =
            closing == 0 || (d->whole.text.len - b >= closing && memcmp(d->whole.text.data + b, before.text.data + a, closing) == 0);
        d->closed = b + (same ? closing : 0);
        d->from = d->open ? b : d->closed;
    }
    rn_rendered_finish(&before);
    return r;
}

// ---- Borders -----------------------------------------------------------------------------------------------------------------------

static int tokenize_part(const struct draft *d, size_t from, size_t to, struct rn_ids *ids, struct rn_err *err)
{
    struct rn_rendered part = d->whole; // a shorter view of the same bytes
    part.text.len = to;
    part.own.len = to;
    return rn_text_tokenize_rendered_from(d->text, &part, from, ids, err);
}

// Moves from (byte, token) to the token border at byte `to`. Borders normally lie at control tokens, where tokenising piecewise gives the
// same ids; where it does not, the border is the first token that differs.
static int advance(const struct draft *d, const struct rn_ids *all, size_t *byte, size_t *token, size_t to, struct rn_err *err)
{
    if (to <= *byte) {
        return 0;
    }
    struct rn_ids part = {0};
    int r = tokenize_part(d, *byte, to, &part, err);
    if (r == 0 && *token + part.len <= all->len &&
        (part.len == 0 || memcmp(part.data, all->data + *token, part.len * sizeof *part.data) == 0)) {
        *byte = to;
        *token += part.len;
        rn_ids_finish(&part);
        return 0;
    }
    part.len = 0;
    if (r == 0) {
        r = tokenize_part(d, d->from, to, &part, err);
    }
    if (r == 0) {
        size_t n = 0;
        while (n < part.len && n < all->len && part.data[n] == all->data[n]) {
            n++;
        }
        *token = n > *token ? n : *token;
    }
    rn_ids_finish(&part);
    return r;
}

// Where the first message that does not lead begins in its rendering `first`: the part of `first` that the same message gives in the
// middle of a conversation is its own; what stands before it leads. -1 when it is not found (system text inside the user message).
static int lead_end(const struct draft *d, const json_t *message, const struct rn_rendered *first, int64_t *ret, struct rn_err *err)
{
    bool user = strcmp(rn_item_role(message), "assistant") != 0;
    json_t *list = json_array();
    struct rn_rendered a = {0}, b = {0};
    *ret = -1;
    int r = add_message(list, "user", "x", 1);
    if (r == 0 && user) {
        r = add_message(list, "assistant", MARK, strlen(MARK));
    }
    size_t n = json_array_size(list);
    if (r < 0 || json_array_append(list, (json_t *)message) < 0) {
        r = rn_err_nomem(err, 0, "messages");
    } else if (render(d->text, list, n, false, &a, NULL) == 0 && render(d->text, list, n + 1, false, &b, NULL) == 0) {
        size_t x = user ? mark_end(&a, false) : 0, y = user ? mark_end(&b, false) : 0;
        size_t closing = a.text.len - x;
        if (y + closing <= b.text.len && memcmp(a.text.data + x, b.text.data + y, closing) == 0) {
            const char *piece = b.text.data + y + closing;
            size_t len = b.text.len - y - closing;
            if (len > 0 && len <= first->text.len && memcmp(first->text.data + first->text.len - len, piece, len) == 0) {
                *ret = (int64_t)(first->text.len - len);
            }
        }
    }
    rn_rendered_finish(&a);
    rn_rendered_finish(&b);
    json_decref(list);
    return r;
}

// B in tokens, and the border in bytes, of a timeline's first append.
static int find_lead(const struct draft *d, struct rn_plan *p, size_t *byte, size_t *token, struct rn_err *err)
{
    size_t n_first = d->n_before + 1;
    if (json_array_size(d->messages) < n_first) {
        p->lead = p->ids.len; // nothing but a leading block
        return 0;
    }
    struct rn_rendered first = {0};
    int64_t at = -1;
    int r = render(d->text, d->messages, n_first, false, &first, err);
    if (r == 0) {
        r = lead_end(d, json_array_get(d->messages, n_first - 1), &first, &at, err);
    }
    if (r == 0 && at >= 0 && common(&first, &d->whole) >= (size_t)at) {
        r = advance(d, &p->ids, byte, token, (size_t)at, err);
    } else if (r == 0 && p->ids.len > 0 && (int64_t)p->ids.data[0] == rn_text_bos(d->text)) {
        struct rn_ids bos = {0};
        for (size_t n = 1; r == 0 && *token == 0 && n <= d->whole.text.len && n <= 64; n++) { // the bytes that BOS is written with
            bos.len = 0;
            r = tokenize_part(d, 0, n, &bos, err);
            if (r == 0 && bos.len == 1 && bos.data[0] == p->ids.data[0]) {
                *byte = n;
                *token = 1;
            }
        }
        rn_ids_finish(&bos);
    }
    p->lead = *token;
    rn_rendered_finish(&first);
    return r;
}

static int find_spans(const struct draft *d, struct rn_plan *p, bool first, bool generate, struct rn_err *err)
{
    size_t byte = d->from, token = 0;
    int r = 0;
    if (first) {
        r = find_lead(d, p, &byte, &token, err);
        for (size_t i = 0; i < d->n_lead; i++) {
            p->spans[i] = (struct rn_plan_span){i == 0 ? 0 : p->lead, p->lead};
        }
    } else {
        r = advance(d, &p->ids, &byte, &token, d->closed, err);
    }
    size_t n = d->n_before;
    for (size_t i = d->n_lead; r == 0 && i < p->n_spans; i++) {
        p->spans[i].first = token;
        size_t to = d->whole.text.len;
        if (++n < json_array_size(d->messages) || generate) {
            struct rn_rendered part = {0};
            r = render(d->text, d->messages, n, /*generate=*/false, &part, err);
            to = common(&part, &d->whole);
            rn_rendered_finish(&part);
        }
        if (r == 0) {
            r = advance(d, &p->ids, &byte, &token, to, err);
        }
        p->spans[i].end = token;
    }
    p->generation = generate ? token : p->ids.len;
    return r;
}

// A sampled end mark is in the log already: the closing must not repeat it.
static void drop_end_mark(const struct draft *d, const struct rn_timeline *t, struct rn_plan *p)
{
    bool ended = d->open && t->log.len > 0 && rn_text_is_end(d->text, t->log.data[t->log.len - 1]);
    if (!ended || p->ids.len == 0 || !rn_text_is_end(d->text, p->ids.data[0]) || (p->n_spans && p->spans[0].first == 0)) {
        return;
    }
    memmove(p->ids.data, p->ids.data + 1, (p->ids.len - 1) * sizeof *p->ids.data);
    p->ids.len--;
    p->generation -= p->generation > 0;
    for (size_t i = 0; i < p->n_spans; i++) {
        p->spans[i].first--;
        p->spans[i].end--;
    }
}

static int make(struct draft *d, struct rn_plan *p, const struct rn_timeline *t, json_t *items, bool generate, struct rn_err *err)
{
    if (json_array_size(d->messages) == 0 && !generate) {
        return 0;
    }
    int r = difference(d, generate, err);
    if (r == 0) {
        r = stand_in(d, items, generate, err);
    }
    if (r >= 0) {
        r = rn_text_tokenize_rendered_from(d->text, &d->whole, d->from, &p->ids, err);
    }
    if (r == 0) {
        r = find_spans(d, p, t->log.len == 0, generate, err);
    }
    if (r == 0) {
        drop_end_mark(d, t, p);
    }
    return r;
}

int rn_plan_make(struct rn_plan *ret, const struct rn_text *text, const char *instructions, const struct rn_timeline *t, json_t *items,
                 bool generate, struct rn_err *err)
{
    size_t n = json_array_size(items);
    if (n > RN_PLAN_MAX_ITEMS) {
        return rn_err_set(err, -E2BIG, "%zu input items, at most %u are allowed", n, RN_PLAN_MAX_ITEMS);
    }
    struct draft d = {.text = text, .messages = json_array()};
    struct rn_plan p = {.spans = rn_mem_alloc(n, sizeof *p.spans), .n_spans = n};
    int r = d.messages && p.spans ? 0 : -ENOMEM;
    if (r == 0) {
        r = add_lead(&d, instructions, t, items);
    }
    if (r == 0 && t->log.len > 0) {
        r = add_history(&d, t);
        d.n_base = json_array_size(d.messages);
    }
    d.n_before = json_array_size(d.messages);
    if (r == 0) {
        r = add_new(&d, items);
    }
    if (r < 0) {
        r = rn_err_nomem(err, 0, "the messages");
    } else {
        r = make(&d, &p, t, items, generate, err);
    }
    rn_rendered_finish(&d.whole);
    json_decref(d.messages);
    if (r < 0) {
        rn_plan_finish(&p);
        return r;
    }
    *ret = p;
    return 0;
}
