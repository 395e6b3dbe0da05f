/* What a dispatch is given: the members of each shader's push constants, and the tables of a step, written once for GLSL and C.
 *
 * A list names its members in order, addresses (8 bytes) first, so that GLSL's std430 layout and C's agree; 128 bytes is what every
 * device offers. GLSL: RN_ARGS(RN_ARGS_X) declares the push constants. C (runtime/vulkan/vulkan_internal.h): one struct per list.
 *
 * Words, Floats … are buffer references (shaders/lib/refs.glsl): an index counts their elements. Matrices of floats are
 * [rows of the step][ld], ld = width padded to 32. */

#define RN_STEP_ROWS 256  /* rows of a step at most */
#define RN_TILE_ROWS 16   /* rows of an attention tile at most */

/* Flags of RN_ARGS_PRODUCT */
#define RN_PRODUCT_ADD 1u       /* out += instead of = */
#define RN_PRODUCT_BIAS0 2u     /* part 0 has a bias; part 1: 4, part 2: 8 */
#define RN_PRODUCT_GATED 16u    /* out0 = act(part 0) * (part 1) */
#define RN_PRODUCT_GELU 32u     /* the act is GELU (tanh form), else SiLU */
#define RN_PRODUCT_WANTED 64u   /* rows are step.n_wanted, not step.n_rows */
#define RN_PRODUCT_HALF 128u    /* float weights: a row of w holds 32 n_groups - 16 columns (repacking pads to 16) */
#define RN_PRODUCT_NORMED 256u  /* the sums times the factor of the row's norm: its squares lie behind d (lib/norm.glsl) */
#define RN_PRODUCT_TIMES 512u   /* one part: out0 = act(part 0) * out1, where an earlier dispatch put a product of another type */
#define RN_PRODUCT_THEN_QUANT 1024u /* matvec.comp, one part or gated: out0 quantised for the next product too */
#define RN_PRODUCT_THEN_NORM 2048u  /* … times the weights of that product's norm */

/* Products: matvec.comp (1..8 rows), matmat.comp (more). q: int8 [row][32 n_groups], as words; for float weights the values
 * themselves, floats [row][32 n_groups]. d: vec2 [row][n_groups]: (d, d * sum of the group's q). w: runtime/tensor/repack.h. A part's
 * workgroups follow the previous part's. rows: of the matrix, ld: of its out.
 * With THEN_QUANT the third part's members say how: w2 is q, out2 is d (as above, of the next product), bias2 the norm's weights, rows2 the bits
 * of its eps. */
#define RN_ARGS_PRODUCT(REF, UINT, FLOAT)                                                                                            \
    REF(Words, q) REF(Pairs, d) REF(Step, step)                                                                                      \
    REF(Words, w0) REF(Words, w1) REF(Words, w2)                                                                                     \
    REF(Floats, out0) REF(Floats, out1) REF(Floats, out2)                                                                            \
    REF(Floats, bias0) REF(Floats, bias1) REF(Floats, bias2)                                                                         \
    UINT(rows0) UINT(rows1) UINT(rows2)                                                                                              \
    UINT(ld0) UINT(ld1) UINT(ld2)                                                                                                    \
    UINT(n_groups) UINT(flags)

/* Flags of RN_ARGS_PREPARE: what happens to a row, in this order */
#define RN_PREPARE_WANTED 1u    /* row i of the result is row step.wanted[i] of x */
#define RN_PREPARE_NORM 2u      /* y = x / sqrt(mean(x^2) + eps) * norm, else y = x */
#define RN_PREPARE_ADD 4u       /* y = sum += y */
#define RN_PREPARE_WEIGH 8u     /* y = y * next, and its squares behind d: the norm of a product with RN_PRODUCT_NORMED */
#define RN_PREPARE_FLOATS 16u   /* out = y */
#define RN_PREPARE_QUANT 32u    /* q, d = y */

/* prepare.comp. out may be x. eps: of the norm, eps_next: of the next one. */
#define RN_ARGS_PREPARE(REF, UINT, FLOAT)                                                                                            \
    REF(Floats, x) REF(Floats, norm) REF(Floats, sum) REF(Floats, next) REF(Floats, out) REF(Words, q) REF(Pairs, d) REF(Step, step) \
    UINT(width) UINT(ld_x) UINT(ld_sum) UINT(ld_out) UINT(n_groups) UINT(flags) FLOAT(eps) FLOAT(eps_next)

/* embed.comp: out[row] = row step.rows[row].id of w, dequantised, times scale. */
#define RN_ARGS_EMBED(REF, UINT, FLOAT)                                                                                              \
    REF(Words, w) REF(Floats, out) REF(Step, step)                                                                                   \
    UINT(cols) UINT(ld) FLOAT(scale)

/* Flags of RN_ARGS_ROPE_KV */
#define RN_ROPE_INTERLEAVED 1u
#define RN_ROPE_NORMS 2u        /* norm each head of q and k first */
#define RN_ROPE_Q8 4u           /* window cells are q8_0, else f16 */

/* rope_kv.comp. angles: floats [row][angle_row], from angle_at the two zones of [n_rot] cos, sin pairs, zone 1 `n_rot_max` further on
 * (angle_zone). cells: struct rn_vk_cell [RN_STEP_ROWS] of the layer group. at_pinned, at_window: byte offset of (layer, KV head 0) in a page. */
#define RN_ARGS_ROPE_KV(REF, UINT, FLOAT)                                                                                            \
    REF(Floats, q) REF(Floats, k) REF(Floats, v) REF(Floats, q_window) REF(Floats, q_pinned) REF(Floats, angles)                     \
    REF(Cells, cells) REF(Floats, norm_q) REF(Floats, norm_k) REF(Step, step)                                                        \
    UINT(heads) /* n_heads | n_kv_heads << 16 */ UINT(dims) /* head_dim | n_rot << 16 */ UINT(ld_q) UINT(ld_k) UINT(flags)           \
    UINT(angle_row) UINT(angle_at) UINT(angle_zone) UINT(at_pinned) UINT(at_window) FLOAT(eps)

/* Flags of RN_ARGS_ATTEND; attend.comp takes the first two as a specialisation constant */
#define RN_ATTEND_Q8 1u         /* window cells are q8_0 */
#define RN_ATTEND_SPLIT 2u      /* one workgroup per chunk, partial sums stored for combine.comp; else one per tile, all its chunks */
#define RN_ATTEND_SINKS 4u      /* learned sink logits [n_heads]: one more term of the softmax, once, after the last chunk */

/* attend.comp; dispatched indirectly (n of chunks or tiles, n_kv_heads, slices of a group's heads). partial: floats
 * [place][n_heads][head_dim + 2]: m, l, o; row i of chunk k of a tile has the place partial0 + k * n_rows + i. */
#define RN_ARGS_ATTEND(REF, UINT, FLOAT)                                                                                             \
    REF(Floats, q_window) REF(Floats, q_pinned) REF(Tiles, tiles) REF(Chunks, chunks) REF(Floats, partial) REF(Floats, out)          \
    REF(Floats, sinks) REF(Step, step)                                                                                               \
    UINT(heads) /* n_heads | n_kv_heads << 16 */ UINT(head_dim) UINT(ld_q) UINT(ld_out) UINT(at_pinned) UINT(at_window) UINT(flags)  \
    FLOAT(scale)

/* Flag of RN_ARGS_COMBINE, besides RN_ATTEND_SINKS */
#define RN_COMBINE_QUANT 8u     /* also as a product reads it: q and d as in RN_ARGS_PREPARE; head_dim is a multiple of 32 */

/* combine.comp: adds a tile's chunks in order (runtime/cpu/kernels.h has the formula), out = o / l. Dispatched (tiles, n_heads). */
#define RN_ARGS_COMBINE(REF, UINT, FLOAT)                                                                                            \
    REF(Tiles, tiles) REF(Floats, partial) REF(Floats, out) REF(Floats, sinks) REF(Step, step) REF(Words, q) REF(Pairs, d)           \
    UINT(n_heads) UINT(head_dim) UINT(ld_out) UINT(flags)

/* ---- Tables of a step: written by the host (runtime/vulkan/tables.c), read by the shaders ------------------------------------------- */

/* struct rn_vk_step: { uint n_rows, n_wanted, reserved[2]; uint id[RN_STEP_ROWS]; uint wanted[RN_STEP_ROWS]; }
 *
 * struct rn_vk_cell, one per row and layer group: where the row's key and value go.
 *   { uint64 page; uint slot (0..63); uint pinned (0, 1); }
 *
 * struct rn_vk_chunk, one per chunk of 256 tokens that a tile sees, tiles ascending, pinned chunks first, ascending:
 *   { uint64 pages[4] (0: no row sees it); uint tile; uint pinned; uint reserved[2]; uint span[RN_TILE_ROWS]: lo | hi << 16: row i of the tile
 *     sees the tokens lo <= j < hi of the chunk (lo == hi: none) }
 *
 * struct rn_vk_tile, adjacent rows of one sequence: { uint row0, n_rows, chunk0, n_chunks, partial0, reserved[3]; } n_rows <= what fits
 * RN_TILE_ROWS and the queries of a workgroup (rn_vk_tile_rows). */
