"""Writes random llama models as GGUF files, of any weight type and size, with nothing but Python's standard library.

The values make no sense but are of the size that trained ones have, so that logits stay finite and differ. Blocks come from a pool of a few
thousand random ones, each tensor from another place in it: a model of several gigabytes is written about as fast as the disk takes it."""
import math
import random
import struct

ALIGN = 32
POOL = 4096  # blocks


def f16(x):
    return struct.pack('<e', x)


def packed_scales(sc):
    """The 12 bytes of Q4_K and Q5_K in which all eight scales equal their minimums."""
    low = bytes((sc[j] & 63) | (sc[j + 4] >> 4) << 6 for j in range(4))
    return low + low + bytes((sc[j + 4] & 15) | (sc[j + 4] & 15) << 4 for j in range(4))


# A block of the type with values of about standard deviation s.
def q4_0(r, s):
    return f16(s / 4.6) + r.randbytes(16)


def q4_1(r, s):
    return f16(s / 4.6) + f16(-7.5 * s / 4.6) + r.randbytes(16)


def q5_0(r, s):
    return f16(s / 9.2) + r.randbytes(20)


def q5_1(r, s):
    return f16(s / 9.2) + f16(-15.5 * s / 9.2) + r.randbytes(20)


def q8_0(r, s):
    return f16(s / 74) + r.randbytes(32)


def k_scales(r, s, half):
    sc = [r.randrange(16, 64) for _ in range(8)]
    d = s / (half * 0.62 * 40)
    return f16(d) + f16(half * d) + packed_scales(sc)


def q4_k(r, s):
    return k_scales(r, s, 7.5) + r.randbytes(128)


def q5_k(r, s):
    return k_scales(r, s, 15.5) + r.randbytes(160)


def q6_k(r, s):
    return r.randbytes(192) + bytes(r.randrange(16, 64) for _ in range(16)) + f16(s / (18.5 * 40))


def iq4_nl(r, s):
    return f16(s / 70) + r.randbytes(16)


def mxfp4(r, s):
    e = max(2, min(250, round(127 + math.log2(s / 2.9))))
    return bytes([e]) + r.randbytes(16)


def f32(r, s):
    return struct.pack('<f', r.gauss(0, s))


def half(r, s):
    return f16(r.gauss(0, s))


def bf16(r, s):
    return struct.pack('<f', r.gauss(0, s))[2:]


TYPES = {  # name: (number in the file, values per block, block)
    'F32': (0, 1, f32), 'F16': (1, 1, half), 'BF16': (30, 1, bf16), 'Q8_0': (8, 32, q8_0), 'Q4_0': (2, 32, q4_0), 'Q4_1': (3, 32, q4_1),
    'Q5_0': (6, 32, q5_0), 'Q5_1': (7, 32, q5_1), 'IQ4_NL': (20, 32, iq4_nl), 'MXFP4': (39, 32, mxfp4), 'Q4_K': (12, 256, q4_k),
    'Q5_K': (13, 256, q5_k), 'Q6_K': (14, 256, q6_k),
}

SHAPES = {  # of well-known models
    'tiny': dict(layers=3, d_model=256, d_ff=512, heads=4, kv_heads=2, head_dim=64, vocab=512),
    '1B': dict(layers=16, d_model=2048, d_ff=8192, heads=32, kv_heads=8, head_dim=64, vocab=128256, tied=True),
    '8B': dict(layers=32, d_model=4096, d_ff=14336, heads=32, kv_heads=8, head_dim=128, vocab=128256),
}

TEMPLATE = ("{% for m in messages %}<|start|>{{ m['role'] }}\n{{ m['content'] }}<|end|>\n{% endfor %}"
            "{% if add_generation_prompt %}<|start|>assistant\n{% endif %}")


def byte_characters():
    """GPT-2's way to write the 256 bytes as printable characters."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    odd = iter(range(256, 512))
    return [chr(b) if b in plain else chr(next(odd)) for b in range(256)]


def string(s):
    data = s.encode()
    return struct.pack('<Q', len(data)) + data


def pair(key, v):
    if isinstance(v, bool):
        return string(key) + struct.pack('<IB', 7, v)
    if isinstance(v, int):
        return string(key) + struct.pack('<II', 4, v)
    if isinstance(v, float):
        return string(key) + struct.pack('<If', 6, v)
    if isinstance(v, str):
        return string(key) + struct.pack('<I', 8) + string(v)
    if isinstance(v[0], str):
        return string(key) + struct.pack('<IIQ', 9, 8, len(v)) + b''.join(map(string, v))
    return string(key) + struct.pack(f'<IIQ{len(v)}i', 9, 5, len(v), *v)


def pad(n):
    return -n % ALIGN


def tensors(shape, kind):
    """(name, columns, rows or 0, type) in file order."""
    d, q, kv = shape['d_model'], shape['heads'] * shape['head_dim'], shape['kv_heads'] * shape['head_dim']
    yield 'token_embd.weight', d, shape['vocab'], kind
    for i in range(shape['layers']):
        yield f'blk.{i}.attn_norm.weight', d, 0, 'F32'
        yield f'blk.{i}.attn_q.weight', d, q, kind
        yield f'blk.{i}.attn_k.weight', d, kv, kind
        yield f'blk.{i}.attn_v.weight', d, kv, kind
        yield f'blk.{i}.attn_output.weight', q, d, kind
        yield f'blk.{i}.ffn_norm.weight', d, 0, 'F32'
        yield f'blk.{i}.ffn_gate.weight', d, shape['d_ff'], kind
        yield f'blk.{i}.ffn_up.weight', d, shape['d_ff'], kind
        yield f'blk.{i}.ffn_down.weight', shape['d_ff'], d, kind
    yield 'output_norm.weight', d, 0, 'F32'
    if not shape.get('tied'):
        yield 'output.weight', d, shape['vocab'], kind


def size_of(cols, rows, kind):
    _, values, block = TYPES[kind]
    assert cols % values == 0, (cols, kind)
    return cols // values * max(rows, 1) * len(block(random.Random(0), 0.02))


def write(path, kind, shape='tiny', seed=1, ctx=8192, name=None):
    """Writes a model whose matrices are all of type `kind`. Returns the bytes of its weights."""
    shape = SHAPES[shape] if isinstance(shape, str) else shape
    r = random.Random(seed)
    words = byte_characters() + ['<|start|>', '<|end|>', 'ab'] + [f'word{i}' for i in range(shape['vocab'] - 259)]
    pairs = {
        'general.architecture': 'llama', 'general.name': name or f'random {kind}', 'llama.context_length': ctx,
        'llama.block_count': shape['layers'], 'llama.embedding_length': shape['d_model'], 'llama.feed_forward_length': shape['d_ff'],
        'llama.attention.head_count': shape['heads'], 'llama.attention.head_count_kv': shape['kv_heads'],
        'llama.attention.key_length': shape['head_dim'], 'llama.attention.value_length': shape['head_dim'],
        'llama.rope.dimension_count': shape['head_dim'], 'llama.rope.freq_base': 500000.0, 'llama.attention.layer_norm_rms_epsilon': 1e-5,
        'tokenizer.ggml.model': 'gpt2', 'tokenizer.ggml.pre': 'gpt-2', 'tokenizer.ggml.tokens': words,
        'tokenizer.ggml.token_type': [1] * 256 + [3, 3] + [1] * (shape['vocab'] - 258), 'tokenizer.ggml.merges': ['a b'],
        'tokenizer.ggml.bos_token_id': 256, 'tokenizer.ggml.eos_token_id': 257, 'tokenizer.ggml.add_bos_token': False,
        'tokenizer.chat_template': TEMPLATE,
    }
    table, offset = [], 0
    for tensor, cols, rows, type_name in (all_tensors := list(tensors(shape, kind))):
        dims = (cols, rows) if rows else (cols,)
        table.append(string(tensor) + struct.pack(f'<I{len(dims)}QIQ', len(dims), *dims, TYPES[type_name][0], offset))
        offset += (n := size_of(cols, rows, type_name)) + pad(n)
    header = b'GGUF' + struct.pack('<IQQ', 3, len(all_tensors), len(pairs)) + b''.join(pair(k, v) for k, v in pairs.items()) + b''.join(table)
    pools = {}
    with open(path, 'wb') as file:
        file.write(header + bytes(pad(len(header))))
        for tensor, cols, rows, type_name in all_tensors:
            n = size_of(cols, rows, type_name)
            if not rows:
                data = b''.join(struct.pack('<f', 1 + r.uniform(-0.1, 0.1)) for _ in range(cols))
            else:
                block = TYPES[type_name][2]
                if cols not in pools:
                    pools[cols] = [block(r, cols ** -0.5) for _ in range(POOL - 1)]  # odd: rows of a power of two do not repeat
                pool = pools[cols]
                at = r.randrange(len(pool))
                once = b''.join(pool[at:] + pool[:at])
                whole = once * max(1, (8 << 20) // len(once))
                for _ in range((n - 1) // len(whole)):
                    file.write(whole)
                data = whole[:(n - 1) % len(whole) + 1]
            file.write(data + bytes(pad(n)))
    return offset
