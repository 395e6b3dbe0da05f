#include "tests/kernels/cpu_kit.h"

#include <setjmp.h>
#include <stdarg.h>
#include <string.h>

#include <cmocka.h>

const struct rn_cpu_row *row(enum rn_cpu_op op, size_t i)
{
    size_t n;
    const struct rn_cpu_row *rows = rn_cpu_rows(op, &n);
    assert_true(n > 0);
    assert_string_equal(rows[n - 1].name, "c");
    for (size_t k = n; k-- > 0;) {
        if ((rows[k].features & ~rn_cpu_features()) == 0 && i-- == 0) {
            return &rows[k];
        }
    }
    return NULL;
}

static uint64_t rng = 0x2545f4914f6cdd1d;

uint64_t random_state(void)
{
    return rng;
}

void random_seed(uint64_t state)
{
    rng = state;
}

uint32_t random_u32(void)
{
    rng ^= rng << 13;
    rng ^= rng >> 7;
    rng ^= rng << 17;
    return (uint32_t)(rng >> 32);
}

float random_normal(void)
{
    float sum = 0;
    for (int i = 0; i < 12; i++) {
        sum += (float)random_u32() * 0x1p-32f;
    }
    return sum - 6;
}
