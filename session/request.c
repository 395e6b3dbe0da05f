/* Requests, events and ids: making and freeing. Thread: any. */
#define _GNU_SOURCE
#include <errno.h>
#include <string.h>
#include <sys/random.h>

#include "runtime/base/mem.h"
#include "session/service.h"

#define DEFAULT_MAX_OUTPUT 4096 // tokens; also the daemon's limit

// 62^24 ids: 143 bits. Bytes from 248 on are thrown away so that every character is equally likely.
void rn_id_new(const char *prefix, char ret_id[RN_ID_BYTES])
{
    static const char digits[] = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";
    size_t n = strnlen(prefix, RN_ID_BYTES - 25);
    memcpy(ret_id, prefix, n);
    size_t end = n + 24;
    while (n < end) {
        unsigned char random[48];
        ssize_t got = getrandom(random, sizeof random, 0);
        for (ssize_t i = 0; i < got && n < end; i++) {
            if (random[i] < 248) {
                ret_id[n++] = digits[random[i] % 62];
            }
        }
    }
    ret_id[n] = 0;
}

struct rn_request *rn_request_create(void)
{
    struct rn_request *r = rn_mem_alloc(1, sizeof *r);
    if (!r) {
        return NULL;
    }
    *r = (struct rn_request){
        .store = true,
        .generate = true,
        .sampling = {.temperature = 1.0f, .top_p = 1.0f, .repeat_penalty = 1.0f},
        .max_output_tokens = DEFAULT_MAX_OUTPUT,
        .window = -1,
        .sinks = -1,
        .evict = -1,
    };
    rn_id_new("resp_", r->response_id);
    rn_id_new("msg_", r->item_id);
    return r;
}

void rn_request_bias(struct rn_request *r, struct rn_logit_bias *bias, size_t n)
{
    rn_mem_free(r->bias);
    r->bias = bias;
    r->sampling.bias = bias;
    r->sampling.n_bias = n;
}

void rn_request_destroy(struct rn_request *r)
{
    if (!r) {
        return;
    }
    json_decref(r->items);
    json_decref(r->echo);
    json_decref(r->ignored);
    json_decref(r->warnings);
    rn_mem_free(r->instructions);
    rn_mem_free(r->previous_response_id);
    rn_mem_free(r->session_id);
    rn_mem_free(r->raw_ids);
    rn_mem_free(r->turn_starts);
    rn_mem_free(r->bias);
    for (size_t i = 0; i < r->n_stop; i++) {
        rn_mem_free(r->stop[i]);
    }
    rn_mem_free(r->stop);
    rn_mem_free(r);
}

void rn_event_destroy(struct rn_event *e)
{
    if (!e) {
        return;
    }
    rn_mem_free(e->text);
    rn_mem_free(e->ids);
    rn_mem_free(e->message);
    json_decref(e->logprobs);
    json_decref(e->record);
    json_decref(e->reply);
    rn_mem_free(e);
}
