/* The norm in front of a product, in two halves: x / sqrt(mean(x^2) + eps) * w is (x * w) times one factor per row, and a product is linear.
 * Whoever makes the product's input writes x * w, and of each group of 32 columns its share of mean(x^2) + eps; the product multiplies its sums
 * by the factor. So the input can be made where it arises, by workgroups that see a group each, without waiting for the whole row.
 *
 * Order: a group's squares by four columns (ascending, by fma), these ascending; groups in 32 virtual lanes (group g to lane g mod 32, ascending),
 * then the tree 16-8-4-2-1.
 * The shares of a row, floats, lie behind d's RN_STEP_ROWS rows of pairs. */

/* In floats from d. A row of shares starts at a multiple of 16 bytes. */
uint norm_shares_at(uint n_groups, uint row)
{
    return 2 * RN_STEP_ROWS * n_groups + row * ((n_groups + 3) & ~3u);
}

float norm_square(vec4 x)
{
    precise float sum = x.x * x.x;
    sum = fma(x.y, x.y, sum);
    sum = fma(x.z, x.z, sum);
    sum = fma(x.w, x.w, sum);
    return sum;
}

void norm_put_share(Pairs d, uint n_groups, uint row, uint group, float square, uint width, float eps)
{
    precise float share = square / float(width);
    precise float first = share + eps;
    Floats(d).v[norm_shares_at(n_groups, row) + group] = group == 0u ? first : share;
}

float norm_factor(Pairs d, uint n_groups, uint row)
{
    const uint at = norm_shares_at(n_groups, row) / 4, n = (n_groups + 3) / 4;
    precise vec4 lanes[8];
    [[unroll]] for (uint k = 0; k < 8; k++) {
        lanes[k] = vec4(0);
    }
    for (uint i = 0; i < n; i += 8) {
        [[unroll]] for (uint k = 0; k < 8; k++) {
            if (i + k < n) {
                const uvec4 group = 4 * (i + k) + uvec4(0, 1, 2, 3);
                lanes[k] = lanes[k] + mix(vec4(0), Floats4(d).v[at + i + k], lessThan(group, uvec4(n_groups)));
            }
        }
    }
    precise vec4 a = lanes[0] + lanes[4], b = lanes[1] + lanes[5], c = lanes[2] + lanes[6], e = lanes[3] + lanes[7];
    precise vec4 eight0 = a + c, eight1 = b + e;
    precise vec4 four = eight0 + eight1;
    precise vec2 two = four.xy + four.zw;
    precise float sum = two.x + two.y;
    precise float factor = 1.0 / sqrt(sum);
    return factor;
}
