"""Trains the built-in model from random weights and writes it as GGUF. Needs PyTorch, numpy and one GPU.

    python3 train.py --out build/builtin-model --minutes 5

The text is written while the model trains: worker processes make shards (each a function of its number alone), and the
trainer reads them in order, each row once for as long as new ones come. The time limit drives the learning rate, so the
run ends when it should on any GPU.
"""

import argparse
import json
import math
import multiprocessing
import os
import threading
import time

import numpy as np

import bpe
import corpus
import gguf

CONFIG = {"dim": 256, "layers": 6, "heads": 8, "kv_heads": 4, "ffn": 768, "context": 1024, "eps": 1e-5, "rope_base": 10000.0}
HOLD_OUT_SHARD = 10**9
_tokenizer = None


def _start_worker():
    global _tokenizer
    _tokenizer = bpe.Tokenizer.load(corpus.VOCABULARY)


def _make_shard(job):
    seed, count, length = job
    return corpus.rows(seed, count, _tokenizer, length).tobytes()


SAMPLES = ["Once upon a time", "The little robot", "The dragon", "It was raining", "Anna and her dog", "In the", "\"Where is my hat?\"", "The spaceship landed on"]
CHATS = [["Tell me a story about a dragon", "What happened next?", "What was the dragon's name?"], ["Hello!"], ["What is your name?"], ["Who are you?"],
         ["Tell me a story about a cat and a boat", "Where did they go?", "How did it end?", "Thank you!"], ["Thank you!"], ["What is 2 plus 2?"], ["How are you?"],
         ["what happened next?"], ["write a short story about a lonely submarine please"], ["Can you write a story about a programmer named Gunter?", "who helped gunter"],
         ["What is the capital of France?"], ["tell me a story about a zorblat"], ["I like trains"], ["bye"], ["my name is Ludwig", "what is my name?"], ["Tell me a story about a programmer", "What was the programmer's name?", "Who was the friend?", "Tell me another story about a whale"]]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", required=True)
    parser.add_argument("--minutes", type=float, default=5.0, help="training time, compilation not counted")
    parser.add_argument("--shards", type=int, default=1060)
    parser.add_argument("--documents", type=int, default=4096, help="in each shard")
    parser.add_argument("--batch", type=int, default=64, help="rows in a step")
    parser.add_argument("--learning-rate", type=float, default=2.5e-3)
    parser.add_argument("--processes", type=int, default=max(1, (os.cpu_count() or 2) - 2))
    parser.add_argument("--no-compile", action="store_true")
    parser.add_argument("--first-shard", type=int, default=0)
    parser.add_argument("--from", dest="start_from", metavar="GGUF", help="continue from this file's weights")
    args = parser.parse_args()
    os.makedirs(args.out, exist_ok=True)
    begin = time.time()
    length = CONFIG["context"] + 1
    pool = multiprocessing.get_context("fork").Pool(args.processes, _start_worker)  # before CUDA exists in this process
    jobs = [(HOLD_OUT_SHARD, 1024, length)] + [(args.first_shard + i, args.documents, length) for i in range(args.shards)]
    shards = pool.imap(_make_shard, jobs)

    import torch
    import torch.nn as nn
    import torch.nn.functional as F

    torch.manual_seed(1)
    torch.backends.cuda.matmul.allow_tf32 = True
    tokenizer = bpe.Tokenizer.load(corpus.VOCABULARY)
    vocabulary = len(tokenizer.tokens)
    c = CONFIG
    head = c["dim"] // c["heads"]

    class Norm(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.ones(c["dim"]))

        def forward(self, x):
            x = x.float()
            return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + c["eps"]) * self.weight

    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            kv = c["kv_heads"] * head
            self.attn_norm, self.ffn_norm = Norm(), Norm()
            self.qkv = nn.Linear(c["dim"], c["dim"] + 2 * kv, bias=False)
            self.attn_output = nn.Linear(c["dim"], c["dim"], bias=False)
            self.gate_up = nn.Linear(c["dim"], 2 * c["ffn"], bias=False)
            self.ffn_down = nn.Linear(c["ffn"], c["dim"], bias=False)
            for name, parameter in self.named_parameters():
                if parameter.dim() == 2:
                    small = name.startswith(("attn_output", "ffn_down"))
                    nn.init.normal_(parameter, std=0.02 / math.sqrt(2 * c["layers"]) if small else 0.02)

        def forward(self, x, cos, sin):
            b, n, _ = x.shape
            kv = c["kv_heads"] * head
            q, k, v = self.qkv(self.attn_norm(x)).split([c["dim"], kv, kv], dim=-1)

            def rope(y, heads):  # neighbouring entries are the pairs, as GGUF's llama wants them
                y = y.view(b, n, heads, head // 2, 2).float()
                y0, y1 = y[..., 0], y[..., 1]
                return torch.stack((y0 * cos - y1 * sin, y0 * sin + y1 * cos), dim=-1).view(b, n, heads, head).transpose(1, 2).to(v.dtype)

            group = c["heads"] // c["kv_heads"]
            q, k = rope(q, c["heads"]), rope(k, c["kv_heads"]).repeat_interleave(group, dim=1)
            v = v.view(b, n, c["kv_heads"], head).transpose(1, 2).repeat_interleave(group, dim=1)
            y = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(b, n, c["dim"])
            x = x + self.attn_output(y)
            gate, up = self.gate_up(self.ffn_norm(x)).chunk(2, dim=-1)
            return x + self.ffn_down(F.silu(gate) * up)

    class Transformer(nn.Module):
        def __init__(self):
            super().__init__()
            self.token_embd = nn.Embedding(vocabulary, c["dim"])
            nn.init.normal_(self.token_embd.weight, std=0.02)
            self.blk = nn.ModuleList(Block() for _ in range(c["layers"]))
            self.output_norm = Norm()
            frequency = c["rope_base"] ** -(torch.arange(0, head, 2).double() / head)
            angle = torch.arange(c["context"]).double()[:, None] * frequency
            self.register_buffer("cos", angle.cos().float()[None, :, None, :])
            self.register_buffer("sin", angle.sin().float()[None, :, None, :])

        def forward(self, ids, targets=None):
            n = ids.shape[1]
            x = self.token_embd(ids)
            for block in self.blk:
                x = block(x, self.cos[:, :n], self.sin[:, :n])
            logits = F.linear(self.output_norm(x), self.token_embd.weight)
            if targets is None:
                return logits
            return F.cross_entropy(logits.float().view(-1, vocabulary), targets.reshape(-1))

    device = "cuda"
    model = Transformer().to(device)

    def load(tensors):
        """Takes the weights from arrays named as in GGUF."""
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                prefix, _, last = name.removesuffix(".weight").rpartition(".")
                parts = {"qkv": ("attn_q", "attn_k", "attn_v"), "gate_up": ("ffn_gate", "ffn_up")}.get(last, (last,))
                value = np.concatenate([tensors[".".join(filter(None, (prefix, part, "weight")))] for part in parts])
                parameter.copy_(torch.from_numpy(value))

    if args.start_from:
        load(gguf.read(args.start_from)[1])
    count = sum(p.numel() for p in model.parameters())
    print("%s, PyTorch %s, %d parameters" % (torch.cuda.get_device_name(0), torch.__version__, count), flush=True)
    autocast = lambda: torch.autocast("cuda", dtype=torch.bfloat16)

    to_rows = lambda data: torch.from_numpy(np.frombuffer(data, dtype=np.uint16).reshape(-1, length).astype(np.int16))
    hold_out = to_rows(next(shards)).to(device)
    ready, lock = [], threading.Lock()
    finished = threading.Event()

    def collect():
        try:
            for data in shards:
                rows = to_rows(data)
                with lock:
                    ready.append(rows)
        except Exception as error:  # the pool was ended: what has come is what there is
            print("reading shards ended: %r" % (error,), flush=True)
        finished.set()

    threading.Thread(target=collect, daemon=True).start()
    chunks, made, used, passes = [], 0, 0, 0
    current, cursor = None, 0
    generator = torch.Generator().manual_seed(2)

    def batch():
        """The next rows: new shards first; once all have been read, old ones again in another order."""
        nonlocal current, cursor, made, used, passes
        while current is None or cursor + args.batch > len(current):
            with lock:
                new = ready[:8]
                del ready[:8]
            left = current[cursor:] if current is not None else None
            if new:
                block = torch.cat(new).to(device)
                chunks.append(block)
                made += len(block)
            elif chunks and (finished.is_set() or used > 0):
                block = chunks[int(torch.randint(len(chunks), (1,), generator=generator))]
                passes += 1
            else:
                time.sleep(0.05)
                continue
            block = block[torch.randperm(len(block), generator=generator).to(device)]
            current, cursor = (torch.cat([left, block]) if left is not None and len(left) else block), 0
        rows = current[cursor:cursor + args.batch].long()
        cursor += args.batch
        used += args.batch
        return rows[:, :-1].contiguous(), rows[:, 1:].contiguous()

    matrices = [p for p in model.parameters() if p.dim() == 2]
    vectors = [p for p in model.parameters() if p.dim() != 2]
    optimizer = torch.optim.AdamW([{"params": matrices, "weight_decay": 0.1}, {"params": vectors, "weight_decay": 0.0}],
                                  lr=args.learning_rate, betas=(0.9, 0.95), fused=True)
    step_model = model if args.no_compile else torch.compile(model)

    def train_step():
        ids, targets = batch()
        with autocast():
            loss = step_model(ids, targets)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return loss.detach()

    def hold_out_loss():
        model.eval()
        with torch.no_grad(), autocast():
            losses = [float(model(rows[:, :-1].long(), rows[:, 1:].long())) for rows in hold_out[:256].split(32)]
        model.train()
        return sum(losses) / len(losses)

    for group in optimizer.param_groups:
        group["lr"] = 0.0
    for _ in range(3):
        train_step()
    torch.cuda.synchronize()
    print("ready after %.1f s" % (time.time() - begin), flush=True)

    start, budget, steps, log, running = time.time(), args.minutes * 60, 0, [], None
    warm_up = min(300, 60 * args.minutes)
    while True:
        elapsed = time.time() - start
        if elapsed >= budget:
            break
        rate = args.learning_rate * min(1.0, (steps + 1) / warm_up) * (0.01 + 0.99 * 0.5 * (1 + math.cos(math.pi * elapsed / budget)))
        for group in optimizer.param_groups:
            group["lr"] = rate
        loss = train_step()
        running = loss if running is None else 0.98 * running + 0.02 * loss
        steps += 1
        if steps % 20 == 0:
            value = float(running)  # waits for the GPU, so that the clock above is honest
            if not math.isfinite(value):
                raise SystemExit("the loss is not finite")
        if steps % 500 == 0:
            log.append({"step": steps, "seconds": round(time.time() - start, 1), "train": round(value, 4), "hold_out": round(hold_out_loss(), 4)})
            print("%(step)6d  %(seconds)6.1f s  train %(train).4f  hold-out %(hold_out).4f" % log[-1], "rows made %d used %d" % (made, used), flush=True)
    pool.terminate()

    state = {k: v.detach().float().cpu().numpy() for k, v in model.state_dict().items()}
    kv = c["kv_heads"] * head
    tensors = {"token_embd.weight": state["token_embd.weight"]}
    for i in range(c["layers"]):
        p = "blk.%d." % i
        q, k, v = np.split(state[p + "qkv.weight"], [c["dim"], c["dim"] + kv])
        gate, up = np.split(state[p + "gate_up.weight"], 2)
        tensors.update({
            p + "attn_norm.weight": state[p + "attn_norm.weight"], p + "attn_q.weight": q, p + "attn_k.weight": k, p + "attn_v.weight": v,
            p + "attn_output.weight": state[p + "attn_output.weight"], p + "ffn_norm.weight": state[p + "ffn_norm.weight"],
            p + "ffn_gate.weight": gate, p + "ffn_up.weight": up, p + "ffn_down.weight": state[p + "ffn_down.weight"]})
    tensors["output_norm.weight"] = state["output_norm.weight"]
    np.savez(os.path.join(args.out, "weights.npz"), **{k: v.astype(np.float16) for k, v in tensors.items()})
    path = os.path.join(args.out, "builtin.gguf")
    gguf.write(path, c, tensors, tokenizer)

    before = hold_out_loss()
    _, rounded = gguf.read(path)
    load(rounded)
    after = hold_out_loss()
    result = {"device": torch.cuda.get_device_name(0), "pytorch": torch.__version__, "parameters": count, "steps": steps,
              "seconds": round(time.time() - start, 1), "rows_made": made, "rows_used": used, "tokens_used": used * c["context"],
              "train_loss": round(float(running), 4), "hold_out_loss": round(before, 4), "hold_out_loss_q8_0": round(after, 4),
              "bytes": os.path.getsize(path), "config": c, "log": log}
    with open(os.path.join(args.out, "result.json"), "w") as f:
        json.dump(result, f, indent=1)
    print(json.dumps({k: v for k, v in result.items() if k != "log"}), flush=True)

    model.eval()
    end = {tokenizer.ids["<|endoftext|>"], tokenizer.ids["<|im_end|>"]}

    def sample(texts, temperature, limit):
        rows = [tokenizer.encode(t) for t in texts]
        starts, live = [len(r) for r in rows], set(range(len(rows)))
        for _ in range(limit):
            order = sorted(live)
            width = max(len(rows[i]) for i in order)
            if width >= c["context"]:
                break
            ids = torch.tensor([rows[i] + [0] * (width - len(rows[i])) for i in order], device=device)
            with torch.no_grad():
                logits = model(ids)[torch.arange(len(order)), torch.tensor([len(rows[i]) - 1 for i in order])].float()
            if temperature:
                picked = torch.multinomial(torch.softmax(logits / temperature, -1), 1)[:, 0].tolist()
            else:
                picked = logits.argmax(-1).tolist()
            for i, token in zip(order, picked):
                rows[i].append(token)
                if token in end:
                    live.discard(i)
            if not live:
                break
        return [tokenizer.decode([t for t in r[s:] if t not in end]) for r, s in zip(rows, starts)]

    with open(os.path.join(args.out, "samples.txt"), "w") as f:
        for temperature in (0.0, 0.7):
            f.write("=== temperature %.1f\n" % temperature)
            for prompt, text in zip(SAMPLES, sample(SAMPLES, temperature, 360)):
                f.write("--- %s|%s\n" % (prompt, text))
            histories = [""] * len(CHATS)
            for turn in range(max(map(len, CHATS))):
                which = [i for i in range(len(CHATS)) if turn < len(CHATS[i])]
                for i in which:
                    histories[i] += "<|im_start|>user\n" + CHATS[i][turn] + "<|im_end|>\n<|im_start|>assistant\n"
                for i, text in zip(which, sample([histories[i] for i in which], temperature, 400)):
                    histories[i] += text + "<|im_end|>\n"
            for history in histories:
                f.write("---\n" + history.replace("<|im_start|>", "").replace("<|im_end|>", "") + "\n")
    print("done after %.1f s" % (time.time() - begin), flush=True)


if __name__ == "__main__":
    main()
