#include "runtime/rope.h"

#include <math.h>
#include <string.h>

#include "runtime/base/err.h"
#include "runtime/engine.h"
#include "runtime/model/hparams.h"
#include "runtime/tensor/fmath.h"
#include "runtime/tensor/program.h"

static const long double TWO_PI = 6.283185307179586476925286766559L;

/* YaRN (Peng et al. 2023; rounding of the range as in Hugging Face transformers): dimensions that turn often within the original
 * length keep their frequency, those that turn less than once are interpolated, in between is a ramp. 1 = interpolate fully. */
static double yarn_ramp(const struct rn_hparams *hp, uint32_t n_rot, uint32_t i)
{
    double turns[2] = {(double)hp->yarn_beta_fast, (double)hp->yarn_beta_slow}, dim[2];
    for (int k = 0; k < 2; k++) {
        dim[k] = n_rot * log(hp->rope_ctx_original / (turns[k] * (double)TWO_PI)) / (2 * log((double)hp->rope_base));
    }
    double low = fmax(floor(dim[0]), 0), high = fmin(ceil(dim[1]), n_rot - 1.0);
    if (high - low < 1e-3) {
        high = low + 1e-3;
    }
    return fmin(fmax((i - low) / (high - low), 0), 1);
}

/* YaRN at full strength: what it leaves of the frequency of pair i, and the factor on cos and sin. */
static double yarn(const struct rn_hparams *hp, uint32_t n_rot, uint32_t i, double factor, float *ret_mscale)
{
    double ramp = yarn_ramp(hp, n_rot, i);
    *ret_mscale = hp->yarn_attn_factor * (float)(factor > 1 ? 1 + 0.1 * log(factor) : 1);
    return ramp / factor + (1 - ramp);
}

/* What the declared scaling leaves of the frequency of pair i, and the factor on cos and sin. */
static int scaling(const struct rn_hparams *hp, uint32_t n_rot, uint32_t i, double *ret_scale, float *ret_mscale, struct rn_err *err)
{
    double factor = (double)hp->rope_factor;
    *ret_scale = 1;
    *ret_mscale = 1;
    if (strcmp(hp->rope_scaling, "linear") == 0) {
        *ret_scale = 1 / factor;
    } else if (strcmp(hp->rope_scaling, "yarn") == 0) {
        *ret_scale = yarn(hp, n_rot, i, factor, ret_mscale);
    } else if (hp->rope_scaling[0]) {
        return rn_err_set(err, -ENOTSUP, "%s.rope.scaling.type is '%s', known are none, linear and yarn", hp->arch, hp->rope_scaling);
    }
    return 0;
}

int rn_rope_setup(struct rn_rope *rope, const struct rn_hparams *hp, const struct rn_tensor *divisors, struct rn_err *err)
{
    for (uint32_t i = 0; i < rope->n_rot / 2; i++) {
        double scale;
        int r = scaling(hp, rope->n_rot, i, &scale, &rope->mscale, err);
        if (r < 0) {
            return r;
        }
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

void rn_rope_extend(struct rn_rope *ret, const struct rn_rope *from, const struct rn_rope_scaling *user, float base, uint32_t n_ctx_train)
{
    const struct rn_hparams hp = {
        .rope_base = base, .rope_ctx_original = n_ctx_train, .yarn_beta_fast = 32, .yarn_beta_slow = 1, .yarn_attn_factor = 1};
    uint64_t *freq = ret->freq;
    double factor = (double)user->factor;
    *ret = *from;
    ret->freq = freq;
    for (uint32_t i = 0; i < from->n_rot / 2; i++) {
        float mscale = 1;
        double scale = user->kind == RN_ROPE_YARN ? yarn(&hp, from->n_rot, i, factor, &mscale) : 1 / factor;
        ret->mscale = from->mscale * mscale;
        freq[i] = (uint64_t)llroundl((long double)from->freq[i] / 2 * scale) * 2;
    }
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
