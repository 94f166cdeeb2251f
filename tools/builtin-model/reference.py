"""Evaluates the model file in float64 on a CPU: to talk to it, and to record what it must compute.

    python3 reference.py --prompt "Once upon a time"            greedy continuation
    python3 reference.py --chat "Tell me a story about a fox" --chat "Thank you!" --temperature 0.7
    python3 reference.py --write-expected                       write builtin.expected.json beside the model
"""

import argparse
import json
import os

import numpy as np

import bpe
import gguf

HERE = os.path.dirname(os.path.abspath(__file__))
MODEL = os.path.join(HERE, "..", "..", "worker", "builtin", "builtin.gguf")


class Model:
    def __init__(self, path):
        self.meta, self.t = gguf.read(path)
        m = self.meta
        self.tokenizer = bpe.Tokenizer([tuple(x.split(" ")) for x in m["tokenizer.ggml.merges"]])
        assert self.tokenizer.tokens == m["tokenizer.ggml.tokens"]
        self.layers, self.heads, self.kv_heads = m["llama.block_count"], m["llama.attention.head_count"], m["llama.attention.head_count_kv"]
        self.head = m["llama.embedding_length"] // self.heads
        self.eps = m["llama.attention.layer_norm_rms_epsilon"]
        self.frequencies = m["llama.rope.freq_base"] ** -(np.arange(0, self.head, 2) / self.head)
        self.stop = {m["tokenizer.ggml.eos_token_id"], m["tokenizer.ggml.eot_token_id"]}
        self.reset()

    def reset(self):
        self.keys = [np.zeros((0, self.kv_heads, self.head)) for _ in range(self.layers)]
        self.values = [np.zeros((0, self.kv_heads, self.head)) for _ in range(self.layers)]

    def norm(self, x, weight):
        return x / np.sqrt((x * x).mean(-1, keepdims=True) + self.eps) * weight

    def rope(self, x, positions):
        angle = positions[:, None, None] * self.frequencies
        cos, sin = np.cos(angle), np.sin(angle)
        out = np.empty_like(x)
        out[..., 0::2] = x[..., 0::2] * cos - x[..., 1::2] * sin
        out[..., 1::2] = x[..., 0::2] * sin + x[..., 1::2] * cos
        return out

    def forward(self, ids):
        """Appends ids to the sequence; returns the logits after the last."""
        t, past = self.t, len(self.keys[0])
        positions = np.arange(past, past + len(ids))
        x = t["token_embd.weight"][ids]
        mask = np.arange(past + len(ids))[None, :] > positions[:, None]
        for i in range(self.layers):
            p = "blk.%d." % i
            h = self.norm(x, t[p + "attn_norm.weight"])
            q = self.rope((h @ t[p + "attn_q.weight"].T).reshape(-1, self.heads, self.head), positions)
            k = self.rope((h @ t[p + "attn_k.weight"].T).reshape(-1, self.kv_heads, self.head), positions)
            v = (h @ t[p + "attn_v.weight"].T).reshape(-1, self.kv_heads, self.head)
            self.keys[i] = np.concatenate([self.keys[i], k])
            self.values[i] = np.concatenate([self.values[i], v])
            group = self.heads // self.kv_heads
            k, v = np.repeat(self.keys[i], group, axis=1), np.repeat(self.values[i], group, axis=1)
            score = np.einsum("qhd,khd->hqk", q, k) / np.sqrt(self.head)
            score = np.where(mask[None], -np.inf, score)
            weight = np.exp(score - score.max(-1, keepdims=True))
            weight /= weight.sum(-1, keepdims=True)
            x = x + np.einsum("hqk,khd->qhd", weight, v).reshape(len(ids), -1) @ t[p + "attn_output.weight"].T
            h = self.norm(x, t[p + "ffn_norm.weight"])
            gate = h @ t[p + "ffn_gate.weight"].T
            x = x + (gate / (1 + np.exp(-gate)) * (h @ t[p + "ffn_up.weight"].T)) @ t[p + "ffn_down.weight"].T
        return t["token_embd.weight"] @ self.norm(x[-1], t["output_norm.weight"])


def generate(model, ids, count, temperature=0.0, rng=None):
    model.reset()
    logits = model.forward(ids)
    out = []
    for _ in range(count):
        if temperature:
            p = np.exp((logits - logits.max()) / temperature)
            token = int(rng.choice(len(p), p=p / p.sum()))
        else:
            token = int(logits.argmax())
        out.append(token)
        if token in model.stop or len(ids) + len(out) >= model.meta["llama.context_length"]:
            break
        logits = model.forward([token])
    return out


# Chosen so that each greedy step has a margin that no legitimate rounding closes, and none is an end token.
CASES = [
    "A fox named Pip lived in a hollow tree. One morning, Pip found a baby bird in the park.",
    "<|im_start|>user\nTell me a story about a dragon<|im_end|>\n<|im_start|>assistant\n",
    "<|im_start|>system\nYou are a friendly storyteller.<|im_end|>\n<|im_start|>user\nHello!<|im_end|>\n<|im_start|>assistant\nHello! I am glad to meet you. "
    "What should the story be about?<|im_end|>\n<|im_start|>user\nTell me a short story about a brave otter named Bruno.<|im_end|>\n<|im_start|>assistant\n"
    "Once there was a brave otter named Bruno. He lived by a quiet lake. One night, Bruno woke up. There was a strange sound: drip drop! \"What could that be?\" he whispered. "
    "Drip drop! There it was again.\n\nBruno went to his friend Hazel, a curious owl. \"I hear a sound every night,\" said Bruno. \"It comes from the old mill.\" \"Then we must go to the "
    "old mill and look,\" said Hazel. She took a silver lantern, and off they went. It was very dark.\n\nHazel held up the lantern. Then she began to laugh. \"Look, Bruno! It is only a pipe "
    "with a tiny hole!\" Bruno looked, and then he laughed too. They laughed all the way home.<|im_end|>\n<|im_start|>user\nWhat was the otter's name?<|im_end|>\n<|im_start|>assistant\n"
    "The otter's name was Bruno.<|im_end|>\n<|im_start|>user\nSummarize the story, please<|im_end|>\n<|im_start|>assistant\n",
]


def expected_case(model, name, prompt, steps=32):
    tokenizer = model.tokenizer
    ids = tokenizer.encode(prompt)
    model.reset()
    logits = model.forward(ids)
    greedy = []
    for _ in range(steps):
        order = np.argsort(-logits)
        token = int(order[0])
        log_total = logits.max() + np.log(np.exp(logits - logits.max()).sum())
        data = tokenizer.token_bytes(token)
        step = {"token": token, "text": data.decode("utf-8", "replace"), "bytes": data.hex(), "logit": round(float(logits[token]), 6),
                "margin": round(float(logits[token] - logits[order[1]]), 6), "logprob": round(float(logits[token] - log_total), 7),
                "top": [[int(i), round(float(logits[i] - log_total), 6)] for i in order[:5]]}
        if step["margin"] < 0.02:
            step["tie"] = True
        greedy.append(step)
        logits = model.forward([token])
    return {"model": name, "prompt": prompt, "prompt_tokens": ids, "bos_added": False,
            "continuation": tokenizer.decode([s["token"] for s in greedy]), "greedy": greedy}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default=MODEL)
    parser.add_argument("--prompt", action="append", default=[])
    parser.add_argument("--chat", action="append", default=[], help="what the user says; give it again for the next turn")
    parser.add_argument("--system")
    parser.add_argument("--count", type=int, default=400)
    parser.add_argument("--temperature", type=float, default=0.0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--write-expected", action="store_true")
    args = parser.parse_args()
    model = Model(args.model)
    rng = np.random.default_rng(args.seed)
    for prompt in args.prompt:
        ids = model.tokenizer.encode(prompt)
        print(prompt + model.tokenizer.decode(generate(model, ids, args.count, args.temperature, rng)) + "\n")
    history = "<|im_start|>system\n" + args.system + "<|im_end|>\n" if args.system else ""
    for text in args.chat:
        history += "<|im_start|>user\n" + text + "<|im_end|>\n<|im_start|>assistant\n"
        made = generate(model, model.tokenizer.encode(history), args.count, args.temperature, rng)
        out = [i for i in made if i not in model.stop]
        answer = model.tokenizer.decode(out)
        history += answer + "<|im_end|>\n"
        print("> %s\n%s\n" % (text, answer))
    if args.write_expected:
        name = "builtin"
        cases = [expected_case(model, name, prompt) for prompt in CASES]
        out = {"model": name, "arch": "llama", "add_bos": False,
               "add_bos_note": "the model's default adds no BOS token; prompt_tokens are the prompt alone", "cases": cases}
        with open(os.path.splitext(args.model)[0] + ".expected.json", "w") as f:
            json.dump(out, f, indent=1)
            f.write("\n")
        for case in cases:
            print("%d prompt tokens, smallest margin %.3f: %r" % (
                len(case["prompt_tokens"]), min(s["margin"] for s in case["greedy"]), case["continuation"]))


if __name__ == "__main__":
    main()
