#include "daemon/cli/chat_line.h"

#include <errno.h>
#include <histedit.h>
#include <locale.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <wchar.h>

#include "runtime/base/err.h"
#include "runtime/base/mem.h"

#define HISTORY 500 // lines

struct rn_line {
    EditLine *editor;
    History *history;
    const char *prompt;
    const volatile sig_atomic_t *interrupted;
};

static struct rn_line *line_of(EditLine *editor)
{
    void *l = NULL;
    el_get(editor, EL_CLIENTDATA, &l);
    return l;
}

static char *prompt_of(EditLine *editor)
{
    return (char *)(uintptr_t)line_of(editor)->prompt; // the library does not write into it
}

/* One character from the terminal: 1; 0 at the end; -1 on an interrupt. The library's own reader would swallow the interrupt. */
static int read_character(EditLine *editor, wchar_t *ret)
{
    struct rn_line *l = line_of(editor);
    mbstate_t state = {0};
    for (;;) {
        char byte;
        ssize_t n = *l->interrupted ? -1 : read(STDIN_FILENO, &byte, 1);
        if (*l->interrupted) {
            errno = EINTR;
            return -1;
        }
        if (n < 0 && errno == EINTR) { // the window changed its size
            continue;
        }
        if (n <= 0) {
            return (int)n;
        }
        size_t got = mbrtowc(ret, &byte, 1, &state);
        if (got == (size_t)-1) { // not a character: start again with the next byte
            state = (mbstate_t){0};
        } else if (got != (size_t)-2) {
            return 1;
        }
    }
}

int rn_line_create(struct rn_line **ret, const char *prompt, const volatile sig_atomic_t *interrupted, struct rn_err *err)
{
    if (!setlocale(LC_CTYPE, "") || MB_CUR_MAX == 1) {
        (void)setlocale(LC_CTYPE, "C.UTF-8"); // without it only ASCII can be typed
    }
    struct rn_line *l = rn_mem_alloc(1, sizeof *l);
    if (!l) {
        return rn_err_nomem(err, sizeof *l, "the line editor");
    }
    *l = (struct rn_line){
        .editor = el_init("runnel", stdin, stdout, stderr), .history = history_init(), .prompt = prompt, .interrupted = interrupted};
    if (!l->editor || !l->history) {
        rn_line_destroy(l);
        return rn_err_set(err, -ENOTTY, "the terminal cannot be used for line editing");
    }
    HistEvent event;
    history(l->history, &event, H_SETSIZE, HISTORY);
    history(l->history, &event, H_SETUNIQUE, 1);
    el_set(l->editor, EL_CLIENTDATA, l);
    el_set(l->editor, EL_PROMPT, prompt_of);
    el_set(l->editor, EL_EDITOR, "emacs");
    el_set(l->editor, EL_HIST, history, l->history);
    el_set(l->editor, EL_GETCFN, read_character);
    *ret = l;
    return 0;
}

void rn_line_destroy(struct rn_line *l)
{
    if (!l) {
        return;
    }
    if (l->editor) {
        el_end(l->editor);
    }
    if (l->history) {
        history_end(l->history);
    }
    rn_mem_free(l);
}

int rn_line_read(struct rn_line *l, struct rn_buf *ret)
{
    int n = 0;
    el_set(l->editor, EL_PREP_TERM, 1); // before the prompt: what is typed at once would be shown twice, by the terminal and by the editor
    const char *line = el_gets(l->editor, &n);
    if (*l->interrupted) {
        el_reset(l->editor);
        return -EINTR;
    }
    if (!line || n <= 0) {
        return 0;
    }
    size_t len = strcspn(line, "\n");
    if (len > 0) {
        HistEvent event;
        history(l->history, &event, H_ENTER, line);
    }
    return rn_buf_add(ret, line, len) < 0 ? -ENOMEM : 1;
}
