// The table of Host and Origin values: who may talk to the daemon from a browser.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "daemon/config.h"
#include "daemon/guard.h"
#include "runtime/base/err.h"

static void hosts(void **state)
{
    (void)state;
    static const struct {
        const char *host;
        bool allowed;
    } rows[] = {
        {"localhost", true},
        {"localhost:7866", true},
        {"LOCALHOST:1", true},
        {"a.localhost", true},
        {"x.y.localhost:80", true},
        {"127.0.0.1", true},
        {"127.0.0.1:7866", true},
        {"127.8.9.10:1", true},
        {"[::1]", true},
        {"[::1]:7866", true},
        {"127.0.0.2:7866", true},
        {"10.0.0.5:7866", true}, // the bound address
        {NULL, false},
        {"", false},
        {":7866", false},
        {"evil.example", false},
        {"evil.example:7866", false},
        {"localhost.evil.example", false},
        {"evillocalhost", false},
        {".localhost", false},
        {"127.0.0.1.evil.example", false},
        {"128.0.0.1", false},
        {"10.0.0.6", false},
        {"127.1", false},
        {"2130706433", false},
        {"0x7f.0.0.1", false},
        {"[::2]", false},
        {"[::1", false},
        {"[::1]x", false},
        {"::1", false},
        {"localhost:", false},
        {"localhost:99999", false},
        {"localhost:80x", false},
        {"localhost:123456", false},
        {"localhost, evil.example", false},
        {"localhost@evil.example", false},
        {"localhost/", false},
        {"local host", false},
        {"[127.0.0.1]", true},
    };
    struct rn_guard guard = {.bound = "10.0.0.5"};
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        if (rn_guard_host(&guard, rows[i].host) != rows[i].allowed) {
            fail_msg("host '%s' should be %s", rows[i].host ? rows[i].host : "(absent)", rows[i].allowed ? "allowed" : "refused");
        }
    }
    guard.bound = NULL;
    assert_false(rn_guard_host(&guard, "10.0.0.5:7866"));
}

static void origins(void **state)
{
    (void)state;
    static const struct {
        const char *origin, *host;
        bool allowed;
    } rows[] = {
        {NULL, "localhost", true},
        {NULL, NULL, true},
        {"http://localhost:7866", "localhost:7866", true},
        {"http://LOCALHOST:7866", "localhost:7866", true},
        {"http://[::1]:7866", "[::1]:7866", true},
        {"http://localhost", "localhost:80", true},
        {"http://localhost:80", "localhost", true},
        {"http://localhost:7866", "localhost:7867", false},
        {"http://localhost", "localhost:7866", false},
        {"https://localhost:7866", "localhost:7866", false},
        {"http://127.0.0.1:7866", "localhost:7866", false},
        {"http://evil.example", "localhost:7866", false},
        {"null", "localhost:7866", false},
        {"", "localhost:7866", false},
        {"http://", "localhost:7866", false},
        {"http://localhost:7866/", "localhost:7866", false},
        {"http://localhost:7866@evil", "localhost:7866", false},
        {"chrome-extension://abc", "localhost:7866", false},
        {"http://localhost:7866", NULL, false},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        if (rn_guard_origin(rows[i].origin, rows[i].host) != rows[i].allowed) {
            fail_msg("origin '%s' at '%s'", rows[i].origin ? rows[i].origin : "(absent)", rows[i].host ? rows[i].host : "(absent)");
        }
    }
}

static void loopback(void **state)
{
    (void)state;
    assert_true(rn_guard_loopback("127.0.0.1"));
    assert_true(rn_guard_loopback("127.255.0.9"));
    assert_true(rn_guard_loopback("::1"));
    assert_false(rn_guard_loopback("0.0.0.0"));
    assert_false(rn_guard_loopback("::"));
    assert_false(rn_guard_loopback("192.168.0.1"));
    assert_false(rn_guard_loopback("::ffff:127.0.0.1"));
    assert_false(rn_guard_loopback("localhost"));
}

static void listen_addresses(void **state)
{
    (void)state;
    char address[64];
    uint16_t port;
    assert_int_equal(rn_config_listen("127.0.0.1:7866", address, sizeof address, &port, NULL), 0);
    assert_string_equal(address, "127.0.0.1");
    assert_int_equal(port, 7866);
    assert_int_equal(rn_config_listen("[::1]:0", address, sizeof address, &port, NULL), 0);
    assert_string_equal(address, "::1");
    assert_int_equal(port, 0);
    assert_int_equal(rn_config_listen("localhost:65535", address, sizeof address, &port, NULL), 0);
    assert_string_equal(address, "127.0.0.1");
    static const char *const bad[] = {
        "", ":", "7866", ":7866", "127.0.0.1", "127.0.0.1:", "127.0.0.1:65536", "127.0.0.1:x", "127.0.0.1:-1", "::1:7866", "[]:1"};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        assert_int_equal(rn_config_listen(bad[i], address, sizeof address, &port, NULL), -EINVAL);
    }
}

static int parse(struct rn_config *c, int argc, const char *const *argv, struct rn_err *err)
{
    return rn_config_parse(c, argc, (char *const *)(uintptr_t)argv, err);
}

static void flags(void **state)
{
    (void)state;
    struct rn_config c;
    struct rn_err err;
    assert_int_equal(parse(&c, 1, (const char *[]){"runneld"}, &err), 0);
    assert_null(c.model);
    assert_string_equal(c.listen, "127.0.0.1:7866");
    assert_string_equal(c.kv, "q8_0");
    assert_string_equal(c.evict, "turn");
    assert_int_equal(c.sinks, -1);
    assert_int_equal(c.max_concurrent, 8);
    assert_int_equal(c.linger_s, 10);
    assert_int_equal(parse(&c, 6, (const char *[]){"runneld", "--model", "m.gguf", "--window=512", "--sinks", "4"}, &err), 0);
    assert_string_equal(c.model, "m.gguf");
    assert_int_equal(c.window, 512);
    assert_int_equal(c.sinks, 4);
    static const char *const bad[][3] = {
        {"runneld", "--nope", "x"}, {"runneld", "--window", "x"},         {"runneld", "--window", "-1"},
        {"runneld", "--kv", "q4"},  {"runneld", "--help=1", "x"},         {"runneld", "file", "x"},
        {"runneld", "--model", ""}, {"runneld", "--evict", "turn|token"}, {"runneld", "--version", "--model"}};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        assert_int_equal(parse(&c, 3, bad[i], &err), -EINVAL);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(hosts), cmocka_unit_test(origins), cmocka_unit_test(loopback), cmocka_unit_test(listen_addresses),
        cmocka_unit_test(flags),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
