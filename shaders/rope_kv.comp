/* Per row and head: the head's norm (if the model has one), the rotation, and for keys and values the store into the row's cell.
 *
 * Specialisation constants: none. Workgroup: 64, two heads of 32 lanes. Dispatch: (rows of the bucket, ceil((n_heads + 2 n_kv_heads) / 2)); rows
 * beyond step.n_rows do nothing. Heads: those of q, then of k, then of v.
 *
 * q is rotated by both zones (q_pinned: zone 0, q_window: zone 1), k by zone 1, its absolute index; v is stored as it is. Pinned cells are f16,
 * window cells f16 or, RN_ROPE_Q8, q8_0 as rn_quant_kv does it. The layout of cells is told in runtime/vulkan/vulkan_internal.h. */
#version 460
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_shader_16bit_storage : require
#include "lib/refs.glsl"
#define LANE_SUMS 2
#include "lib/fmath.glsl"

layout(local_size_x = 64) in;
layout(buffer_reference, std430, buffer_reference_align = 2) buffer Halves { uint16_t v[]; };

RN_ARGS(RN_ARGS_ROPE_KV);

const uint MAX_DIM = 512, PAGE = 64, LANES = 32;
const uint Q = 0, K = 1, V = 2;

shared float head_x[2][MAX_DIM]; /* the head, after its norm */
shared float head_y[2][MAX_DIM]; /* what goes into the cell */

struct Head {
    uint kind, index;  /* q, k or v; head of its kind */
    uint team, lane;
    bool works;        /* else it is one too many */
};

/* f16 bits of x, to nearest even; packHalf2x16 may round as it likes. */
uint half_bits(float x)
{
    const uint bits = floatBitsToUint(x), magnitude = bits & 0x7fffffffu, sign = bits >> 16 & 0x8000u;
    if (magnitude > 0x7f800000u) {
        return sign | 0x7e00u;
    }
    if (magnitude >= 0x47800000u) {
        return sign | 0x7c00u; // 65536 and more
    }
    if (magnitude < 0x38800000u) {
        return sign | uint(roundEven(uintBitsToFloat(magnitude) * 16777216.0)); // subnormal: units of 2^-24
    }
    return sign | (magnitude + 0xfffu + (magnitude >> 13 & 1u) - 0x38000000u) >> 13;
}

/* ---- norm and rotation ---------------------------------------------------------------------------------------------------------------- */

void load_head(Head h, uint row, uint head_dim)
{
    for (uint d = h.lane; d < head_dim && h.works; d += LANES) {
        const uint at = row * (h.kind == Q ? args.ld_q : args.ld_k) + h.index * head_dim + d;
        head_x[h.team][d] = h.kind == Q ? args.q.v[at] : h.kind == K ? args.k.v[at] : args.v.v[at];
    }
}

/* A lane reads and writes its own elements only. */
void norm_head(Head h, uint head_dim)
{
    precise float sum = 0.0;
    for (uint d = h.lane; d < head_dim && h.works; d += LANES) {
        sum = fma(head_x[h.team][d], head_x[h.team][d], sum);
    }
    precise float mean = rn_lane_sum(h.team, h.lane, sum) / float(head_dim);
    precise float r = 1.0 / sqrt(mean + args.eps);
    for (uint d = h.lane; d < head_dim && h.works && h.kind != V; d += LANES) {
        precise float y = head_x[h.team][d] * r;
        y = y * (h.kind == Q ? args.norm_q.v[d] : args.norm_k.v[d]);
        head_x[h.team][d] = y;
    }
}

/* Element d of the head, rotated by the angles that begin at `at`. */
float turned(uint team, uint d, uint n_rot, uint at)
{
    if (d >= n_rot) {
        return head_x[team][d];
    }
    const bool interleaved = (args.flags & RN_ROPE_INTERLEAVED) != 0;
    const uint half_ = n_rot / 2, i = interleaved ? d / 2 : d % half_;
    const float a = head_x[team][interleaved ? 2 * i : i], b = head_x[team][interleaved ? 2 * i + 1 : i + half_];
    const float co = args.angles.v[at + 2 * i], si = args.angles.v[at + 2 * i + 1];
    const bool second = interleaved ? d % 2 == 1 : d >= half_;
    precise float other = b * (second ? co : -si);
    precise float y = fma(a, second ? si : co, other);
    return y;
}

void turn_head(Head h, uint row, uint head_dim, uint n_rot)
{
    const uint zone0 = row * args.angle_row + args.angle_at, zone1 = zone0 + args.angle_zone;
    for (uint d = h.lane; d < head_dim && h.works; d += LANES) {
        if (h.kind == Q) {
            const uint at = row * args.ld_q + h.index * head_dim + d;
            args.q_window.v[at] = turned(h.team, d, n_rot, zone1);
            args.q_pinned.v[at] = turned(h.team, d, n_rot, zone0);
        } else {
            head_y[h.team][d] = h.kind == K ? turned(h.team, d, n_rot, zone1) : head_x[h.team][d];
        }
    }
}

/* ---- cells --------------------------------------------------------------------------------------------------------------------------------- */

/* Place of 16 bytes of the token, unit i of its key or value, in units of 16 bytes. */
uint unit_at(Head h, uint part16, uint slot, uint i, uint n_units)
{
    return part16 + (h.kind == K ? i * PAGE + slot : slot * n_units + i);
}

void store_f16(Head h, Cell cell, uint head_dim)
{
    const uint bytes16 = PAGE * head_dim / 8;
    const uint part16 = (cell.pinned != 0 ? args.at_pinned : args.at_window) / 16 + (h.index * 2 + h.kind - K) * bytes16;
    Words4 page = Words4(cell.page);
    for (uint i = h.lane; i < head_dim / 8; i += LANES) {
        uvec4 words;
        [[unroll]] for (uint w = 0; w < 4; w++) {
            words[w] = half_bits(head_y[h.team][i * 8 + w * 2]) | half_bits(head_y[h.team][i * 8 + w * 2 + 1]) << 16;
        }
        page.v[unit_at(h, part16, cell.slot, i, head_dim / 8)] = words;
    }
}

/* Four values of a group with scale d, clamped as rn_quant_kv does it. */
uint quantised(uint team, uint at, float d)
{
    uint word = 0;
    [[unroll]] for (uint k = 0; k < 4; k++) {
        precise float q = head_y[team][at + k] / d;
        q = q > -127.0 ? q : -127.0;
        q = q < 127.0 ? q : 127.0;
        word |= (uint(int(roundEven(q))) & 0xffu) << 8 * k;
    }
    return word;
}

void store_q8(Head h, Cell cell, uint head_dim)
{
    const uint bytes16 = PAGE * (head_dim + head_dim / 16) / 16, groups = head_dim / 32;
    const uint part16 = args.at_window / 16 + (h.index * 2 + h.kind - K) * bytes16;
    Words4 page = Words4(cell.page);
    for (uint i = h.lane; i < head_dim / 16; i += LANES) { // half a group
        const uint group = i / 2;
        float amax = 0.0;
        for (uint k = 0; k < 32; k++) {
            const float a = abs(head_y[h.team][group * 32 + k]);
            amax = a > amax ? a : amax;
        }
        precise float whole = amax / 127.0;
        const uint d16 = half_bits(whole);
        const float d = rn_half_exact(d16);
        uvec4 words = uvec4(0);
        [[unroll]] for (uint w = 0; w < 4 && d16 != 0; w++) {
            words[w] = quantised(h.team, i * 16 + w * 4, d);
        }
        page.v[unit_at(h, part16, cell.slot, i, head_dim / 16)] = words;
        if (i % 2 == 0) {
            const uint scale = (part16 * 16 + PAGE * head_dim) / 2 + (h.kind == K ? group * PAGE + cell.slot : cell.slot * groups + group);
            Halves(cell.page).v[scale] = uint16_t(d16);
        }
    }
}

void main()
{
    const uint row = gl_WorkGroupID.x, n_heads = args.heads & 0xffffu, n_kv = args.heads >> 16;
    const uint head_dim = args.dims & 0xffffu, n_rot = args.dims >> 16;
    if (row >= args.step.n_rows) {
        return;
    }
    Head h;
    h.team = gl_LocalInvocationIndex / LANES;
    h.lane = gl_LocalInvocationIndex % LANES;
    const uint number = gl_WorkGroupID.y * 2 + h.team;
    h.works = number < n_heads + 2 * n_kv;
    h.kind = number < n_heads ? Q : number < n_heads + n_kv ? K : V;
    h.index = h.kind == Q ? number : h.kind == K ? number - n_heads : number - n_heads - n_kv;
    load_head(h, row, head_dim);
    if ((args.flags & RN_ROPE_NORMS) != 0) {
        norm_head(h, head_dim);
    }
    barrier();
    turn_head(h, row, head_dim, n_rot);
    barrier();
    if (h.works && h.kind != Q) {
        const Cell cell = args.cells.v[row];
        if (cell.pinned == 0 && (args.flags & RN_ROPE_Q8) != 0) {
            store_q8(h, cell, head_dim);
        } else {
            store_f16(h, cell, head_dim);
        }
    }
}
