"""Byte-level byte-pair encoding, as GPT-2 does it: trains a vocabulary, saves it, and encodes and decodes with it."""

import collections
import heapq
import json
import re

SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
_special = re.compile("(" + "|".join(re.escape(s) for s in SPECIAL) + ")")
# GPT-2's pattern, with \p{L} and \p{N} written in the syntax of the standard library.
_word = re.compile(r"'s|'t|'re|'ve|'m|'ll|'d| ?[^\W\d_]+| ?\d+| ?(?:[^\s\w]|_)+|\s+(?!\S)|\s+")


def byte_characters():
    """GPT-2's printable character for each byte, in the order of its first 256 tokens."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    table = {b: chr(b) for b in printable}
    for b in range(256):
        if b not in table:
            table[b] = chr(256 + len(table) - len(printable))
    return table


def train(texts, vocabulary_size):
    """Learns merges from texts; returns them in order. Ties go to the pair that sorts first, so the result is fixed."""
    table = byte_characters()
    counts = collections.Counter()
    for text in texts:
        for piece in _special.split(text):
            if piece not in SPECIAL:
                counts.update(_word.findall(piece))
    words = [([table[b] for b in w.encode()], n) for w, n in sorted(counts.items())]
    pairs, where = collections.Counter(), collections.defaultdict(set)
    for i, (symbols, n) in enumerate(words):
        for pair in zip(symbols, symbols[1:]):
            pairs[pair] += n
            where[pair].add(i)
    heap = [(-n, pair) for pair, n in pairs.items()]
    heapq.heapify(heap)
    merges = []
    while len(merges) < vocabulary_size - 256 - len(SPECIAL):
        n, best = heapq.heappop(heap)
        if pairs[best] != -n:  # an entry that later merges outdated
            if pairs[best] > 0:
                heapq.heappush(heap, (-pairs[best], best))
            continue
        merges.append(best)
        changed = set()
        for i in where.pop(best):
            symbols, count = words[i]
            for pair in zip(symbols, symbols[1:]):
                pairs[pair] -= count
                changed.add(pair)
            j = 0
            while j < len(symbols) - 1:
                if (symbols[j], symbols[j + 1]) == best:
                    symbols[j:j + 2] = [symbols[j] + symbols[j + 1]]
                j += 1
            for pair in zip(symbols, symbols[1:]):
                pairs[pair] += count
                where[pair].add(i)
                changed.add(pair)
        for pair in changed:
            if pairs[pair] > 0:
                heapq.heappush(heap, (-pairs[pair], pair))
    return merges


class Tokenizer:
    def __init__(self, merges):
        table = byte_characters()
        self.merges = [tuple(m) for m in merges]
        self.tokens = list(table[b] for b in sorted(table, key=lambda b: ord(table[b])))
        self.tokens += ["".join(m) for m in self.merges] + SPECIAL
        self.ids = {t: i for i, t in enumerate(self.tokens)}
        assert len(self.ids) == len(self.tokens), "two merges make the same token"
        self.ranks = {m: i for i, m in enumerate(self.merges)}
        self._table = table
        self._bytes = {c: b for b, c in table.items()}
        self._cache = {}

    def _encode_word(self, word):
        ids = self._cache.get(word)
        if ids is None:
            symbols = [self._table[b] for b in word.encode()]
            while len(symbols) > 1:
                rank, i = min((self.ranks.get(p, 1 << 30), i) for i, p in enumerate(zip(symbols, symbols[1:])))
                if rank == 1 << 30:
                    break
                symbols[i:i + 2] = [symbols[i] + symbols[i + 1]]
            ids = [self.ids[s] for s in symbols]
            if len(self._cache) < 200000:
                self._cache[word] = ids
        return ids

    def encode(self, text):
        out = []
        for piece in _special.split(text):
            if piece in SPECIAL:
                out.append(self.ids[piece])
            elif piece:
                for word in _word.findall(piece):
                    out += self._encode_word(word)
        return out

    def token_bytes(self, token):
        text = self.tokens[token]
        return text.encode() if text in SPECIAL else bytes(self._bytes[c] for c in text)

    def decode(self, ids):
        return b"".join(self.token_bytes(i) for i in ids).decode("utf-8", "replace")

    def save(self, path):
        with open(path, "w") as f:
            json.dump({"merges": [" ".join(m) for m in self.merges]}, f, ensure_ascii=True, indent=0)
            f.write("\n")

    @classmethod
    def load(cls, path):
        with open(path) as f:
            return cls([tuple(m.split(" ")) for m in json.load(f)["merges"]])
