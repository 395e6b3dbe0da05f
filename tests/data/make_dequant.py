#!/usr/bin/env python3
"""Makes dequant.bin: blocks of each element type and their values by the gguf Python package (pip install gguf numpy).

Record: u32 type number, u32 blocks, u32 bytes, u32 floats; the blocks; the floats. Little endian, records until the end.
Scales are finite halves of all kinds: zero, subnormal, negative, large; quants are random bytes."""
import pathlib
import struct

import numpy as np
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType as T
from gguf.quants import dequantize

# Offsets of the half-precision fields in a block.
TYPES = {
    T.F32: [], T.F16: [0], T.BF16: [], T.Q4_0: [0], T.Q4_1: [0, 2], T.Q5_0: [0], T.Q5_1: [0, 2], T.Q8_0: [0],
    T.Q4_K: [0, 2], T.Q5_K: [0, 2], T.Q6_K: [208], T.IQ4_NL: [0], T.MXFP4: [],
}
SPECIAL = [0x0000, 0x8000, 0x0001, 0x83ff, 0x0400, 0x3c00, 0xbc00, 0x2e66, 0x5640, 0xd640]


def main():
    rng = np.random.default_rng(20240817)
    out = bytearray()
    for t, halves in TYPES.items():
        block_len, block_bytes = GGML_QUANT_SIZES[t]
        n = 24 if block_len > 1 else 256
        if t == T.F32:
            blocks = rng.standard_normal(n).astype("<f4").view(np.uint8).reshape(n, 4)
        elif t == T.BF16:
            blocks = (rng.standard_normal(n).astype("<f4").view("<u4") >> 16).astype("<u2").view(np.uint8).reshape(n, 2)
        else:
            blocks = rng.integers(0, 256, (n, block_bytes), dtype=np.uint8)
            for i in range(n):
                for k, at in enumerate(halves):
                    h = SPECIAL[(i + 3 * k) % len(SPECIAL)] if i < 16 else int(rng.integers(0x2000, 0x3c00)) | int(rng.integers(0, 2)) << 15
                    blocks[i, at:at + 2] = list(struct.pack("<H", h))
            if t == T.MXFP4:
                blocks[:, 0] = np.concatenate([[0, 1, 2, 127, 128, 250], rng.integers(100, 140, n - 6)])
        with np.errstate(all="ignore"):
            values = np.asarray(dequantize(blocks, t), dtype="<f4").reshape(-1)
        assert values.size == n * block_len and np.isfinite(values).all(), t
        out += struct.pack("<4I", t, n, blocks.size, values.size) + blocks.tobytes() + values.tobytes()
    pathlib.Path(__file__).with_name("dequant.bin").write_bytes(out)


if __name__ == "__main__":
    main()
