"""Writes and reads the model file: GGUF version 3, Q8_0 matrices, F32 norms."""

import struct

import numpy as np

import bpe

ALIGNMENT = 32
U32, I32, F32, BOOL, STRING, ARRAY, U64 = 4, 5, 6, 7, 8, 9, 10
TYPE_F32, TYPE_Q8_0 = 0, 8
FILE_TYPE_MOSTLY_Q8_0 = 7
TOKEN_NORMAL, TOKEN_CONTROL = 1, 3

CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' + '\\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)


def _string(text):
    data = text.encode()
    return struct.pack("<Q", len(data)) + data


def _value(kind, value):
    if kind == STRING:
        return _string(value)
    if kind == BOOL:
        return struct.pack("<B", value)
    return struct.pack({U32: "<I", I32: "<i", F32: "<f", U64: "<Q"}[kind], value)


def _key(name, kind, value):
    return _string(name) + struct.pack("<I", kind) + _value(kind, value)


def _array(name, kind, values):
    return _string(name) + struct.pack("<IIQ", ARRAY, kind, len(values)) + b"".join(_value(kind, v) for v in values)


def quantise_q8_0(matrix):
    """Blocks of 32 along a row: a float16 scale, then 32 signed bytes."""
    blocks = np.ascontiguousarray(matrix, dtype=np.float32).reshape(-1, 32)
    scale = (np.abs(blocks).max(axis=1) / 127.0).astype(np.float16)
    divisor = np.where(scale == 0, 1, scale.astype(np.float32))[:, None]
    out = np.empty((len(blocks), 34), dtype=np.uint8)
    out[:, :2] = scale.view(np.uint8).reshape(-1, 2)
    out[:, 2:] = np.clip(np.rint(blocks / divisor), -127, 127).astype(np.int8).view(np.uint8)
    return out


def expand_q8_0(data, shape, dtype=np.float64):
    blocks = np.frombuffer(data, dtype=np.uint8).reshape(-1, 34)
    scale = np.ascontiguousarray(blocks[:, :2]).view(np.float16).astype(dtype)
    return (np.ascontiguousarray(blocks[:, 2:]).view(np.int8).astype(dtype) * scale).reshape(shape)


def write(path, config, tensors, tokenizer):
    """`tensors` maps GGUF names to arrays in row-major order, [outputs, inputs] for matrices."""
    ids = tokenizer.ids
    kinds = [TOKEN_CONTROL if t in bpe.SPECIAL else TOKEN_NORMAL for t in tokenizer.tokens]
    meta = [
        _key("general.architecture", STRING, "llama"),
        _key("general.name", STRING, "Bulkhead built-in"),
        _key("general.description", STRING, "A very small model that tells simple stories and chats about them"),
        _key("general.license", STRING, "the licence of the Bulkhead project"),
        _key("general.alignment", U32, ALIGNMENT),
        _key("general.file_type", U32, FILE_TYPE_MOSTLY_Q8_0),
        _key("general.quantization_version", U32, 2),
        _key("llama.context_length", U32, config["context"]),
        _key("llama.embedding_length", U32, config["dim"]),
        _key("llama.block_count", U32, config["layers"]),
        _key("llama.feed_forward_length", U32, config["ffn"]),
        _key("llama.attention.head_count", U32, config["heads"]),
        _key("llama.attention.head_count_kv", U32, config["kv_heads"]),
        _key("llama.attention.layer_norm_rms_epsilon", F32, config["eps"]),
        _key("llama.rope.dimension_count", U32, config["dim"] // config["heads"]),
        _key("llama.rope.freq_base", F32, config["rope_base"]),
        _key("llama.vocab_size", U32, len(tokenizer.tokens)),
        _key("tokenizer.ggml.model", STRING, "gpt2"),
        _key("tokenizer.ggml.pre", STRING, "gpt-2"),
        _array("tokenizer.ggml.tokens", STRING, tokenizer.tokens),
        _array("tokenizer.ggml.token_type", I32, kinds),
        _array("tokenizer.ggml.merges", STRING, [" ".join(m) for m in tokenizer.merges]),
        _key("tokenizer.ggml.eos_token_id", U32, ids["<|endoftext|>"]),
        _key("tokenizer.ggml.eot_token_id", U32, ids["<|im_end|>"]),
        _key("tokenizer.ggml.padding_token_id", U32, ids["<|endoftext|>"]),
        _key("tokenizer.ggml.add_bos_token", BOOL, False),
        _key("tokenizer.ggml.add_eos_token", BOOL, False),
        _key("tokenizer.chat_template", STRING, CHAT_TEMPLATE),
    ]
    infos, blobs, offset = [], [], 0
    for name, array in tensors.items():
        matrix = array.ndim == 2
        data = quantise_q8_0(array).tobytes() if matrix else np.ascontiguousarray(array, dtype="<f4").tobytes()
        shape = array.shape[::-1]  # GGUF names the fastest-moving dimension first
        infos.append(_string(name) + struct.pack("<I", len(shape)) + struct.pack("<%dQ" % len(shape), *shape)
                     + struct.pack("<IQ", TYPE_Q8_0 if matrix else TYPE_F32, offset))
        data += bytes(-len(data) % ALIGNMENT)
        blobs.append(data)
        offset += len(data)
    head = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(meta)) + b"".join(meta) + b"".join(infos)
    with open(path, "wb") as f:
        f.write(head + bytes(-len(head) % ALIGNMENT))
        for data in blobs:
            f.write(data)


def read(path):
    """Returns (metadata, tensors expanded to float64). Reads only files that `write` has written."""
    data = open(path, "rb").read()
    position = 0

    def take(form):
        nonlocal position
        value = struct.unpack_from("<" + form, data, position)
        position += struct.calcsize("<" + form)
        return value if len(value) > 1 else value[0]

    def text():
        nonlocal position
        n = take("Q")
        position += n
        return data[position - n:position].decode()

    def value(kind):
        if kind == STRING:
            return text()
        if kind == ARRAY:
            kind, n = take("I"), take("Q")
            return [value(kind) for _ in range(n)]
        return take({U32: "I", I32: "i", F32: "f", BOOL: "?", U64: "Q"}[kind])

    assert data[:4] == b"GGUF"
    position = 4
    _, tensor_count, key_count = take("I"), take("Q"), take("Q")
    meta = {}
    for _ in range(key_count):
        name = text()
        meta[name] = value(take("I"))
    infos = []
    for _ in range(tensor_count):
        name = text()
        shape = [take("Q") for _ in range(take("I"))][::-1]
        infos.append((name, shape, take("I"), take("Q")))
    start = -(-position // ALIGNMENT) * ALIGNMENT
    tensors = {}
    for name, shape, kind, offset in infos:
        count = int(np.prod(shape))
        size = count // 32 * 34 if kind == TYPE_Q8_0 else count * 4
        blob = data[start + offset:start + offset + size]
        assert len(blob) == size, name
        tensors[name] = expand_q8_0(blob, shape) if kind == TYPE_Q8_0 else np.frombuffer(blob, "<f4").astype(np.float64).reshape(shape)
    return meta, tensors
