#include "tests/unit/session_kit.h"

#include <stdio.h>
#include <string.h>

#include "runtime/base/mem.h"

const struct rn_seq_params P512 = {.n = 512, .sinks = 18, .evict = RN_EVICT_TURN};

void kit_open(struct kit *k)
{
    struct rn_engine *engine = fake_engine_create();
    kit_init(k, engine);
    k->fake = fake_of(engine);
}

void kit_close(struct kit *k)
{
    kit_finish(k);
    fake_engine_destroy(k->engine);
}

size_t kit_ids(const char *text, uint32_t *ret)
{
    struct rn_rendered r = {0};
    struct rn_ids ids = {0};
    rn_buf_add_str(&r.text, text);
    for (size_t i = 0; i < r.text.len; i++) {
        rn_buf_add_char(&r.own, 1);
    }
    rn_text_tokenize_rendered_from(NULL, &r, 0, &ids, NULL);
    memcpy(ret, ids.data, ids.len * sizeof *ret);
    size_t n = ids.len;
    rn_ids_finish(&ids);
    rn_rendered_finish(&r);
    return n;
}

static const char *expect(struct kit *k, const struct rn_seq_params *p, size_t n, const char *format, va_list list)
{
    static char conversation[1 << 16], text[4096];
    static uint32_t ids[1 << 16], answer[1024];
    int len = vsnprintf(conversation, sizeof conversation, format, list);
    assert_in_range(len, 0, sizeof conversation - 1);
    size_t n_ids = kit_ids(conversation, ids);
    size_t made = fake_answer(k->engine, p, ids, n_ids, answer, n);
    struct rn_buf out = {0};
    struct rn_detok d = {0};
    for (size_t i = 0; i < made; i++) {
        rn_detok_push(&d, NULL, answer[i], false, &out);
    }
    rn_detok_end(&d, &out);
    snprintf(text, sizeof text, "%s", out.data ? out.data : "");
    rn_buf_finish(&out);
    return text;
}

const char *kit_expect(struct kit *k, const struct rn_seq_params *p, const char *conversation, ...)
{
    va_list list;
    va_start(list, conversation);
    const char *text = expect(k, p, KIT_TOKENS, conversation, list);
    va_end(list);
    return text;
}

const char *kit_expect_n(struct kit *k, const struct rn_seq_params *p, size_t n, const char *conversation, ...)
{
    va_list list;
    va_start(list, conversation);
    const char *text = expect(k, p, n, conversation, list);
    va_end(list);
    return text;
}
