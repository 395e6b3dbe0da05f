/* Attention of the queries of a tile (adjacent rows of one sequence) times the heads of a slice of one KV head's group, so that keys and
 * values are read once for all of them. Per chunk of 256 tokens a partial sum (m, l, o) as runtime/cpu/kernels.h says (struct
 * rn_attn_args), in 32 virtual lanes; chunks are added in order, here (loop mode) or by combine.comp (split mode).
 *
 * Specialisation constants: 0 = head_dim (multiple of 16, at most 512), 1 = heads of a slice, 2 = rows of a tile at most,
 * 3 = RN_ATTEND_Q8 and RN_ATTEND_SPLIT as in the flags (rn_vk_attend_specs).
 * Workgroup: 128. Dispatch: split (n_chunks, n_kv_heads, slices), loop (n_tiles, n_kv_heads, slices). Shared memory: at most 30 KiB.
 *
 * 1. Scores: an invocation has two tokens and the scores of all queries with them, ascending fma over the dimensions. Adjacent invocations
 *    read adjacent 16 bytes of K; the queries come from shared memory. Window cells in q8_0: quantised queries, exact integer sums.
 * 2. Softmax: 32 invocations per query, one for each lane.
 * 3. Values: tiles of V pass through shared memory; an invocation has two dimensions of some queries and goes through the tokens in order.
 *
 * The bits of a query depend on its own tokens only: not on the mode, nor on the queries beside it, nor on their number (the constants).
 * A cell that a query does not see is selected away, whatever it holds: a score and a value are used only inside the query's span. */
#version 460
#extension GL_GOOGLE_include_directive : require
#include "lib/refs.glsl"
#include "lib/fmath.glsl"
#include "lib/dot.glsl"
#include "lib/partial.glsl"

layout(local_size_x = 128) in;
layout(constant_id = 0) const uint HEAD_DIM = 64;
layout(constant_id = 1) const uint HEADS = 1;
layout(constant_id = 2) const uint ROWS = 16;
layout(constant_id = 3) const uint FLAGS = RN_ATTEND_Q8;

#define out result // a word of GLSL
RN_ARGS(RN_ARGS_ATTEND);
#undef out

const uint WG = 128;
const uint CHUNK = 256, PAGE = 64;
const float LOWEST = -3.402823466e38; // finite: what infinities do is up to the device

/* Queries in blocks: a block without queries is skipped, one with some is worked through as a whole (surplus queries are zero). */
const uint BLOCK = HEADS * ROWS < 4 ? HEADS * ROWS : 4;
const uint N = (HEADS * ROWS + BLOCK - 1) / BLOCK * BLOCK;
const uint GROUPS = (HEAD_DIM + 31) / 32;
const bool Q8 = (FLAGS & RN_ATTEND_Q8) != 0, SPLIT = (FLAGS & RN_ATTEND_SPLIT) != 0;

/* 8 KiB for what passes through: queries, then the lanes of the softmax, then V. */
const uint STAGE = 512;
const uint FIT_DIMS = STAGE * 4 / N / 16 * 16;                       /* dimensions of all queries that fit */
const uint STAGED = FIT_DIMS < HEAD_DIM ? FIT_DIMS : HEAD_DIM;
const uint V_TOKENS = HEAD_DIM <= 64 ? 64 : HEAD_DIM <= 128 ? 32 : HEAD_DIM <= 256 ? 16 : 8;

/* Who has what in the values phase. */
const uint COLUMNS = HEAD_DIM / 2;                                   /* pairs of dimensions */
const uint LANES = COLUMNS < WG ? COLUMNS : WG;
const uint TEAMS = WG / LANES;
const uint PASSES = (COLUMNS + LANES - 1) / LANES;
const uint PER_TEAM = (N + TEAMS - 1) / TEAMS;                       /* queries */
const uint HELD = PER_TEAM * PASSES;                                 /* sums of an invocation */

shared vec4 prob[N * CHUNK / 4];                                     /* [query][token]: score, then its weight */
shared uvec4 stage[STAGE];
shared uvec4 acts[Q8 ? N * GROUPS * 2 : 1];                                   /* [query][group]: quantised queries */
shared float acts_d[Q8 ? N * GROUPS : 1];
shared float v_scales[Q8 ? 128 : 1];                                          /* [token of the tile of V][group] */
shared uint span[N];                                                 /* of each query in the chunk: lo | hi << 16 */
shared float chunk_m[N], chunk_l[N], run_m[N], run_l[N];
shared Weights weights[N];

#define inv gl_LocalInvocationIndex

struct Task {
    uint row0, n_rows, head0, heads, n_q;  /* query q: row q / heads, head q % heads */
    uint n_heads, kv_head;
};

struct Part {
    bool q8;
    uint at16;      /* of K in a page, in units of 16 bytes; V follows */
    uint bytes16;   /* of K, of V */
    uint chunk;     /* its index */
    uvec2 hull;     /* tokens that any query may see */
    uvec2 for_all;   /* tokens that all queries see */
};

void stage_put(uint i, float x)
{
    stage[i / 4][i % 4] = floatBitsToUint(x);
}

uint query_row(Task t, uint q)
{
    return t.row0 + q / t.heads;
}

uint query_head(Task t, uint q)
{
    return t.head0 + q % t.heads;
}

bool sees(uint s, uint j)
{
    return j >= (s & 0xffffu) && j < s >> 16;
}

/* ---- 1. scores -------------------------------------------------------------------------------------------------------------------------- */

/* rn_quant_act of every group of every query, a group per invocation. */
void quantise_queries(Task t)
{
    for (uint i = inv; i < t.n_q * GROUPS; i += WG) {
        const uint q = i / GROUPS, g = i % GROUPS;
        const uint at = (query_row(t, q) * args.ld_q + query_head(t, q) * HEAD_DIM) / 4 + g * 8;
        vec4 x[8];
        float amax = 0.0;
        [[unroll]] for (uint k = 0; k < 8; k++) {
            x[k] = Floats4(args.q_window).v[at + k];
            const vec4 a = abs(x[k]);
            amax = max(amax, max(max(a.x, a.y), max(a.z, a.w)));
        }
        const bool zero = amax < 7.888609052210118e-31; // 2^-100
        precise float inverse = 127.0 / amax, d = amax / 127.0;
        uint words[8];
        [[unroll]] for (uint k = 0; k < 8; k++) {
            precise vec4 y = x[k] * inverse;
            const ivec4 z = ivec4(roundEven(y)) & 0xff;
            words[k] = zero ? 0u : uint(z.x | z.y << 8 | z.z << 16 | z.w << 24);
        }
        acts[i * 2] = uvec4(words[0], words[1], words[2], words[3]);
        acts[i * 2 + 1] = uvec4(words[4], words[5], words[6], words[7]);
        acts_d[i] = zero ? 0.0 : d;
    }
    for (uint i = t.n_q * GROUPS + inv; i < N * GROUPS; i += WG) {
        acts[i * 2] = acts[i * 2 + 1] = uvec4(0);
        acts_d[i] = 0.0;
    }
}

/* Dimensions d0 .. d0 + n of all queries into the stage, [query][STAGED]. */
void stage_queries(Task t, Floats from, uint d0, uint n)
{
    Floats4 x = Floats4(from);
    for (uint i = inv; i < N * (n / 4); i += WG) {
        const uint q = i / (n / 4), c = i % (n / 4);
        const uint at = (query_row(t, q) * args.ld_q + query_head(t, q) * HEAD_DIM + d0) / 4 + c;
        stage[q * (STAGED / 4) + c] = q < t.n_q ? floatBitsToUint(x.v[at]) : uvec4(0);
    }
}

void keys_of(uvec4 w, out float key[8])
{
    [[unroll]] for (uint i = 0; i < 4; i++) {
        const vec2 two = unpackHalf2x16(w[i]);
        key[2 * i] = two.x;
        key[2 * i + 1] = two.y;
    }
}

void put_score(uint j, uint q, float sum)
{
    precise float score = sum * args.scale;
    prob[q * (CHUNK / 4) + j / 4][j % 4] = score;
}

void scores_f16(Task t, Part p, Floats queries, Words4 pages[2], bool seen[2])
{
    precise float acc[2 * N];
    [[unroll]] for (uint i = 0; i < 2 * N; i++) {
        acc[i] = 0.0;
    }
    for (uint d0 = 0; d0 < HEAD_DIM; d0 += STAGED) {
        const uint n = min(STAGED, HEAD_DIM - d0);
        barrier();
        stage_queries(t, queries, d0, n);
        barrier();
        const uint at = p.at16 + d0 / 8 * PAGE + inv % PAGE;
        for (uint o = 0; o < n / 8 && (seen[0] || seen[1]); o++) {
            float key0[8], key1[8];
            keys_of(seen[0] ? pages[0].v[at + o * PAGE] : uvec4(0), key0);
            keys_of(seen[1] ? pages[1].v[at + o * PAGE] : uvec4(0), key1);
            [[unroll]] for (uint b = 0; b < N; b += BLOCK) {
                if (b < t.n_q) {
                    [[unroll]] for (uint q = b; q < b + BLOCK; q++) {
                        [[unroll]] for (uint c = 0; c < 2; c++) {
                            const vec4 x = uintBitsToFloat(stage[q * (STAGED / 4) + o * 2 + c]);
                            [[unroll]] for (uint k = 0; k < 4; k++) {
                                acc[q] = fma(x[k], key0[c * 4 + k], acc[q]);
                                acc[N + q] = fma(x[k], key1[c * 4 + k], acc[N + q]);
                            }
                        }
                    }
                }
            }
        }
    }
    [[unroll]] for (uint q = 0; q < N; q++) {
        put_score(inv, q, acc[q]);
        put_score(inv + WG, q, acc[N + q]);
    }
}

int dot32(uvec4 a0, uvec4 a1, uvec4 b0, uvec4 b1)
{
    int sum = 0;
    [[unroll]] for (uint i = 0; i < 4; i++) {
        sum = dot4(int(a0[i]), int(b0[i]), sum);
        sum = dot4(int(a1[i]), int(b1[i]), sum);
    }
    return sum;
}

float key_scale(Words4 page, uint at16, uint g)
{
    const uint half_ = g * PAGE + inv % PAGE; // scales follow the values
    const uint word = Words(page).v[at16 * 4 + HEAD_DIM * PAGE / 4 + half_ / 2];
    return rn_half_exact(word >> half_ % 2 * 16 & 0xffffu);
}

void scores_q8(Task t, Part p, Words4 pages[2], bool seen[2])
{
    precise float acc[2 * N];
    [[unroll]] for (uint i = 0; i < 2 * N; i++) {
        acc[i] = 0.0;
    }
    const uint at = p.at16 + inv % PAGE;
    for (uint g = 0; g < HEAD_DIM / 32 && (seen[0] || seen[1]); g++) {
        uvec4 key[4];
        float d[2];
        [[unroll]] for (uint i = 0; i < 2; i++) {
            key[2 * i] = seen[i] ? pages[i].v[at + g * 2 * PAGE] : uvec4(0);
            key[2 * i + 1] = seen[i] ? pages[i].v[at + (g * 2 + 1) * PAGE] : uvec4(0);
            d[i] = seen[i] ? key_scale(pages[i], p.at16, g) : 0.0;
        }
        [[unroll]] for (uint b = 0; b < N; b += BLOCK) {
            if (b < t.n_q) {
                [[unroll]] for (uint q = b; q < b + BLOCK; q++) {
                    const uvec4 a0 = acts[(q * GROUPS + g) * 2], a1 = acts[(q * GROUPS + g) * 2 + 1];
                    precise float d0 = acts_d[q * GROUPS + g] * d[0], d1 = acts_d[q * GROUPS + g] * d[1];
                    acc[q] = fma(float(dot32(key[0], key[1], a0, a1)), d0, acc[q]);
                    acc[N + q] = fma(float(dot32(key[2], key[3], a0, a1)), d1, acc[N + q]);
                }
            }
        }
    }
    [[unroll]] for (uint q = 0; q < N; q++) {
        put_score(inv, q, acc[q]);
        put_score(inv + WG, q, acc[N + q]);
    }
}

/* ---- 2. softmax -------------------------------------------------------------------------------------------------------------------------- */

const uint SUMS = STAGE / 2; /* where the lanes' sums stand in the stage; their maxima stand before */

void lane_maxima(Task t)
{
    const uint lane = inv % 32;
    for (uint q = inv / 32; q < t.n_q; q += WG / 32) {
        float top = LOWEST;
        for (uint j = lane; j < CHUNK; j += 32) {
            top = sees(span[q], j) ? max(top, prob[q * (CHUNK / 4) + j / 4][j % 4]) : top;
        }
        stage_put(q * 32 + lane, top);
    }
}

void lane_sums_of(Task t)
{
    const uint lane = inv % 32;
    for (uint q = inv / 32; q < t.n_q; q += WG / 32) {
        float top = LOWEST;
        [[unroll]] for (uint i = 0; i < 8; i++) {
            const vec4 x = uintBitsToFloat(stage[q * 8 + i]);
            top = max(top, max(max(x.x, x.y), max(x.z, x.w)));
        }
        precise float sum = 0.0;
        for (uint j = lane; j < CHUNK; j += 32) {
            const bool seen = sees(span[q], j);
            precise float below = (seen ? prob[q * (CHUNK / 4) + j / 4][j % 4] : LOWEST) - top;
            const float weight = seen ? rn_expf(below) : 0.0;
            prob[q * (CHUNK / 4) + j / 4][j % 4] = weight;
            sum = sum + weight;
        }
        stage_put(SUMS * 4 + q * 32 + lane, sum);
        if (lane == 0) {
            chunk_m[q] = top;
        }
    }
}

/* The tree 16-8-4-2-1 over the lanes of a query, by one invocation, four lanes to a vector. */
float tree_sum(uint q)
{
    const uint at = SUMS + q * 8;
    precise vec4 t[4];
    [[unroll]] for (uint i = 0; i < 4; i++) {
        t[i] = uintBitsToFloat(stage[at + i]) + uintBitsToFloat(stage[at + 4 + i]);
    }
    precise vec4 eight0 = t[0] + t[2], eight1 = t[1] + t[3];
    precise vec4 four = eight0 + eight1;
    precise vec2 two = four.xy + four.zw;
    precise float sum = two.x + two.y;
    return sum;
}

/* prob: scores -> weights; chunk_m, chunk_l; in loop mode the running m and l, and how to add this chunk's o. */
void softmax(Task t)
{
    lane_maxima(t);
    barrier();
    lane_sums_of(t);
    barrier();
    if (inv < t.n_q) {
        chunk_l[inv] = tree_sum(inv);
        if (!SPLIT) {
            float m = run_m[inv], l = run_l[inv];
            weights[inv] = rn_partial_add(m, l, chunk_m[inv], chunk_l[inv]);
            run_m[inv] = m;
            run_l[inv] = l;
        }
    }
    barrier();
}

/* ---- 3. values --------------------------------------------------------------------------------------------------------------------------- */

/* V_TOKENS tokens from `token` of a page on. */
void stage_values(Part p, Words4 page, uint token)
{
    const uint row16 = p.q8 ? HEAD_DIM / 16 : HEAD_DIM / 8, at = p.at16 + p.bytes16 + token * row16;
    for (uint i = inv; i < V_TOKENS * row16; i += WG) {
        stage[i] = page.v[at + i];
    }
    if (p.q8 && inv < V_TOKENS * GROUPS) {
        const uint half_ = token * GROUPS + inv;
        const uint word = Words(page).v[(p.at16 + p.bytes16) * 4 + PAGE * HEAD_DIM / 4 + half_ / 2];
        v_scales[inv] = rn_half_exact(word >> half_ % 2 * 16 & 0xffffu);
    }
}

/* Dimensions 2 column, 2 column + 1 of a token of the tile. */
vec2 staged_value(bool q8, uint token, uint column)
{
    if (!q8) {
        const uint word = token * COLUMNS + column;
        return unpackHalf2x16(stage[word / 4][word % 4]);
    }
    const uint word = token * (COLUMNS / 2) + column / 2;
    const int two = int(stage[word / 4][word % 4]) >> column % 2 * 16;
    return vec2(float(bitfieldExtract(two, 0, 8)), float(bitfieldExtract(two, 8, 8)));
}

/* Adds four tokens, j of the chunk on, to the sums of an invocation's queries. */
void add_values(Task t, Part p, uint j, uint token, uint q0, uint lane, inout vec2 o[HELD])
{
    const bool all = p.for_all.x <= j && j + 4 <= p.for_all.y;
    [[unroll]] for (uint pass = 0; pass < PASSES; pass++) {
        const uint column = min(lane + pass * LANES, COLUMNS - 1); // a surplus invocation does another's work and keeps it for itself
        vec2 value[4];
        vec4 d = vec4(1.0);
        [[unroll]] for (uint k = 0; k < 4; k++) {
            value[k] = staged_value(p.q8, token + k, column);
            if (p.q8) {
                d[k] = v_scales[(token + k) * GROUPS + column / 16];
            }
        }
        [[unroll]] for (uint i = 0; i < PER_TEAM; i++) {
            const uint q = q0 + i;
            if (q < t.n_q) {
                const uint s = span[q], at = pass * PER_TEAM + i;
                precise vec4 weight = prob[q * (CHUNK / 4) + j / 4] * d; // exact for f16
                precise vec2 sum = o[at];
                [[unroll]] for (uint k = 0; k < 4; k++) {
                    precise vec2 next = fma(vec2(weight[k]), value[k], sum);
                    sum = all || sees(s, j + k) ? next : sum;
                }
                o[at] = sum;
            }
        }
    }
}

void sum_values(Task t, Part p, uint q0, uint lane, bool works, out vec2 o[HELD])
{
    [[unroll]] for (uint i = 0; i < PER_TEAM * PASSES; i++) {
        o[i] = vec2(0.0);
    }
    for (uint j0 = p.hull.x / V_TOKENS * V_TOKENS; j0 < p.hull.y; j0 += V_TOKENS) {
        const uvec2 page = args.chunks.v[p.chunk].pages[j0 / PAGE];
        if (page == uvec2(0)) {
            continue;
        }
        barrier();
        stage_values(p, Words4(page), j0 % PAGE);
        barrier();
        const uint first = max(j0, p.hull.x) / 4 * 4, end = min(j0 + V_TOKENS, p.hull.y);
        for (uint j = first; j < end && works; j += 4) {
            add_values(t, p, j, j - j0, q0, lane, o);
        }
    }
}

uint out_pair(Task t, uint q, uint column)
{
    return (query_row(t, q) * args.ld_out + query_head(t, q) * HEAD_DIM) / 2 + column;
}

void store_partial(Task t, uint place, uint q0, uint lane, bool works, vec2 o[HELD])
{
    Pairs to = Pairs(args.partial);
    if (inv < t.n_q) {
        const uint at = ((place + inv / t.heads) * t.n_heads + query_head(t, inv)) * (COLUMNS + 1);
        to.v[at] = vec2(chunk_m[inv], chunk_l[inv]);
    }
    [[unroll]] for (uint pass = 0; pass < PASSES; pass++) {
        [[unroll]] for (uint i = 0; i < PER_TEAM; i++) {
            const uint q = q0 + i, column = lane + pass * LANES;
            if (works && q < t.n_q && column < COLUMNS) {
                const uint at = ((place + q / t.heads) * t.n_heads + query_head(t, q)) * (COLUMNS + 1);
                to.v[at + 1 + column] = o[pass * PER_TEAM + i];
            }
        }
    }
}

/* The running sums stand in the result, each element read and written by one invocation only. */
void add_to_result(Task t, uint q0, uint lane, bool works, vec2 o[HELD])
{
    Pairs to = Pairs(args.result);
    [[unroll]] for (uint pass = 0; pass < PASSES; pass++) {
        [[unroll]] for (uint i = 0; i < PER_TEAM; i++) {
            const uint q = q0 + i, column = lane + pass * LANES;
            if (works && q < t.n_q && column < COLUMNS) {
                const uint at = out_pair(t, q, column), k = pass * PER_TEAM + i;
                const Weights w = weights[q];
                const vec2 sum = w.skip || w.first ? vec2(0.0) : to.v[at];
                if (!w.skip) {
                    to.v[at] = vec2(rn_partial_sum(w, sum.x, o[k].x), rn_partial_sum(w, sum.y, o[k].y));
                }
            }
        }
    }
}

void finish(Task t, uint q0, uint lane, bool works)
{
    Pairs to = Pairs(args.result);
    const bool sinks = (args.flags & RN_ATTEND_SINKS) != 0;
    for (uint q = q0; q < min(q0 + PER_TEAM, t.n_q) && works; q++) {
        const float factor = rn_partial_end(run_m[q], run_l[q], sinks, sinks ? args.sinks.v[query_head(t, q)] : 0.0);
        for (uint column = lane; column < COLUMNS; column += LANES) {
            const uint at = out_pair(t, q, column);
            precise vec2 value = to.v[at] * factor;
            to.v[at] = value;
        }
    }
}

/* ---- a chunk ------------------------------------------------------------------------------------------------------------------------------ */

Part part_of(Task t, uint chunk)
{
    const bool pinned = args.chunks.v[chunk].pinned != 0;
    Part p;
    p.chunk = chunk;
    p.q8 = Q8 && !pinned;
    p.bytes16 = p.q8 ? PAGE * (HEAD_DIM + HEAD_DIM / 16) / 16 : PAGE * HEAD_DIM / 8;
    p.at16 = (pinned ? args.at_pinned : args.at_window) / 16 + t.kv_head * 2 * p.bytes16;
    p.hull = uvec2(CHUNK, 0);
    p.for_all = uvec2(0, CHUNK);
    for (uint i = 0; i < t.n_rows; i++) {
        const uint both = args.chunks.v[chunk].span[i];
        const uvec2 s = uvec2(both & 0xffffu, both >> 16);
        p.for_all = uvec2(max(p.for_all.x, s.x), min(p.for_all.y, s.y));
        if (s.x < s.y) {
            p.hull = uvec2(min(p.hull.x, s.x), max(p.hull.y, s.y));
        }
    }
    return p;
}

void run_chunk(Task t, uint index, uint place, uint q0, uint lane, bool works)
{
    const Part p = part_of(t, index);
    barrier(); // spans and weights of the chunk before are still read
    for (uint q = inv; q < t.n_q; q += WG) {
        span[q] = args.chunks.v[index].span[q / t.heads];
    }
    Words4 pages[2];
    bool seen[2];
    [[unroll]] for (uint i = 0; i < 2; i++) {
        const uint j = inv + i * WG;
        const uvec2 page = args.chunks.v[index].pages[j / PAGE];
        seen[i] = j >= p.hull.x && j < p.hull.y && page != uvec2(0);
        pages[i] = Words4(page);
    }
    if (p.q8) {
        scores_q8(t, p, pages, seen);
    } else {
        scores_f16(t, p, args.chunks.v[index].pinned != 0 ? args.q_pinned : args.q_window, pages, seen);
    }
    barrier();
    softmax(t);
    vec2 o[HELD];
    sum_values(t, p, q0, lane, works, o);
    if (SPLIT) {
        store_partial(t, place, q0, lane, works, o);
    } else {
        add_to_result(t, q0, lane, works, o);
    }
}

void main()
{
    const uint first = gl_WorkGroupID.x;
    const Tile tile = args.tiles.v[SPLIT ? args.chunks.v[first].tile : first];
    const uint chunk0 = SPLIT ? first : tile.chunk0, n_chunks = SPLIT ? 1 : tile.n_chunks;
    Task t;
    t.n_heads = args.heads & 0xffffu;
    t.kv_head = gl_WorkGroupID.y;
    const uint group = t.n_heads / (args.heads >> 16), skipped = gl_WorkGroupID.z * HEADS;
    t.head0 = t.kv_head * group + skipped;
    t.heads = min(HEADS, group - skipped);
    t.row0 = tile.row0;
    t.n_rows = tile.n_rows;
    t.n_q = t.n_rows * t.heads;
    const uint q0 = inv / LANES * PER_TEAM, lane = inv % LANES;
    const bool works = inv < LANES * TEAMS;
    if (inv < t.n_q) {
        run_m[inv] = run_l[inv] = 0.0;
    }
    if (Q8 && !(SPLIT && args.chunks.v[first].pinned != 0)) {
        quantise_queries(t);
    }
    for (uint i = 0; i < n_chunks; i++) {
        run_chunk(t, chunk0 + i, tile.partial0 + (chunk0 + i - tile.chunk0) * t.n_rows, q0, lane, works);
    }
    if (!SPLIT) {
        finish(t, q0, lane, works);
    }
}
