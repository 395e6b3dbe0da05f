#include "runtime/rope.h"

#include <math.h>
#include <string.h>

#include "runtime/base/err.h"
#include "runtime/model/hparams.h"
#include "runtime/tensor/fmath.h"
#include "runtime/tensor/program.h"

static const long double TWO_PI = 6.283185307179586476925286766559L;

int rn_rope_setup(struct rn_rope *rope, const struct rn_hparams *hp, const struct rn_tensor *divisors, struct rn_err *err)
{
    uint32_t half = rope->n_rot / 2;
    double scale = 1;
    if (strcmp(hp->rope_scaling, "linear") == 0) {
        scale = 1 / (double)hp->rope_factor;
    } else if (hp->rope_scaling[0] && strcmp(hp->rope_scaling, "none") != 0) {
        return rn_err_set(err, -ENOTSUP, "rope.scaling.type is '%s', known are none and linear", hp->rope_scaling);
    }
    for (uint32_t i = 0; i < half; i++) {
        long double theta = powl((long double)hp->rope_base, -2.0L * i / rope->n_rot) * scale;
        if (divisors) {
            float d;
            memcpy(&d, (const char *)divisors->data + i * sizeof d, sizeof d);
            if (!(d > 0) || !isfinite(d)) {
                return rn_err_set(err, -EINVAL, "tensor '%s': element %u is %g, expected a positive number", divisors->name, i, (double)d);
            }
            theta /= d;
        }
        rope->freq[i] = (uint64_t)llroundl(fmodl(theta / TWO_PI, 1.0L) * 9223372036854775808.0L) * 2;
    }
    return 0;
}

void rn_rope_angles(const struct rn_rope *rope, uint64_t pos, float *out)
{
    for (uint32_t i = 0; i < rope->n_rot / 2; i++) {
        float c, s;
        rn_sincos_phase((int32_t)(uint32_t)((pos * rope->freq[i]) >> 32), &c, &s);
        out[2 * i] = c * rope->mscale;
        out[2 * i + 1] = s * rope->mscale;
    }
}
