/* Scales of repacked weights (repack.h), LANES rows at a time; included by the scales_internal.h of an instruction set, which has
 *   LANES           4, 8 or 16
 *   vec             a register of floats; sub_vec: of what multiplies the integer sums of Q6_K's halves
 *   rn_v_load_f16   LANES halves
 *   load_u8         LANES bytes as floats
 *   load_s8         LANES int8 as sub_vec
 *   load_e8m0       LANES exponents e of a byte as 2^(e - 128): the exponent's bits, or a subnormal for e < 2
 *   vec_mul
 * Thread: any; pure. */

/* Scales of LANES rows; what a format does not have is not read. */
struct scales {
    vec d, min;     // of the whole group; the minimum of SCALES_K is subtracted
    sub_vec sub[2]; // SCALES_K6: of each half of the group
};

/* Side `side` (rows LANES * side and up) of a group. s: behind the group's codes; super: the common scales of its 8 groups. */
INLINE struct scales load_scales(const int kind, const uint8_t *s, const uint8_t *super, const int side)
{
    static const struct scales none;
    struct scales ret = none;
    const int byte = LANES * side, half = 2 * byte;
    switch (kind) {
    case SCALES_F16:
        ret.d = rn_v_load_f16(s + half);
        break;
    case SCALES_F16_MIN:
        ret.d = rn_v_load_f16(s + half);
        ret.min = rn_v_load_f16(s + 32 + half);
        break;
    case SCALES_E8M0:
        ret.d = load_e8m0(s + byte);
        break;
    case SCALES_K:
        ret.d = vec_mul(rn_v_load_f16(super + half), load_u8(s + byte));
        ret.min = vec_mul(rn_v_load_f16(super + 32 + half), load_u8(s + 16 + byte));
        break;
    default:
        ret.d = rn_v_load_f16(super + half);
        ret.sub[0] = load_s8(s + byte);
        ret.sub[1] = load_s8(s + 16 + byte);
        break;
    }
    return ret;
}
