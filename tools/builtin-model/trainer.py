"""Trains a model of network.py on rows of tokens that arrive while it trains."""

import math
import threading
import time

import numpy as np
import torch


class Rows:
    """The training text's rows: new shards first; once all have been read, old ones again in another order."""

    def __init__(self, shards, length, batch, device):
        self.shards, self.length, self.batch, self.device = shards, length, batch, device
        self.ready, self.lock, self.finished = [], threading.Lock(), threading.Event()
        self.chunks, self.made, self.used = [], 0, 0
        self.current, self.cursor = None, 0
        self.generator = torch.Generator().manual_seed(2)
        self.hold_out = self.to_rows(next(shards)).to(device)
        threading.Thread(target=self.collect, daemon=True).start()

    def to_rows(self, data):
        return torch.from_numpy(np.frombuffer(data, dtype=np.uint16).reshape(-1, self.length).astype(np.int16))

    def collect(self):
        try:
            for data in self.shards:
                rows = self.to_rows(data)
                with self.lock:
                    self.ready.append(rows)
        except Exception as error:  # the pool was ended: what has come is what there is
            print("reading shards ended: %r" % (error,), flush=True)
        self.finished.set()

    def more(self):
        """Returns a block of rows in random order; None: the first shards are still being made, so the caller waits."""
        with self.lock:
            new = self.ready[:8]
            del self.ready[:8]
        if new:
            block = torch.cat(new).to(self.device)
            self.chunks.append(block)
            self.made += len(block)
        elif self.chunks and (self.finished.is_set() or self.used > 0):
            block = self.chunks[int(torch.randint(len(self.chunks), (1,), generator=self.generator))]
        else:
            return None
        return block[torch.randperm(len(block), generator=self.generator).to(self.device)]

    def next_batch(self):
        while self.current is None or self.cursor + self.batch > len(self.current):
            left = self.current[self.cursor:] if self.current is not None else None
            block = self.more()
            if block is None:
                time.sleep(0.05)
                continue
            self.current = torch.cat([left, block]) if left is not None and len(left) else block
            self.cursor = 0
        rows = self.current[self.cursor:self.cursor + self.batch].long()
        self.cursor += self.batch
        self.used += self.batch
        return rows[:, :-1].contiguous(), rows[:, 1:].contiguous()


class Trainer:
    def __init__(self, model, rows, learning_rate, compiled):
        self.model, self.rows, self.learning_rate = model, rows, learning_rate
        self.step_model = torch.compile(model) if compiled else model
        matrices = [p for p in model.parameters() if p.dim() == 2]
        vectors = [p for p in model.parameters() if p.dim() != 2]
        self.optimizer = torch.optim.AdamW(
            [{"params": matrices, "weight_decay": 0.1}, {"params": vectors, "weight_decay": 0.0}],
            lr=learning_rate, betas=(0.9, 0.95), fused=True)
        self.steps, self.log, self.running, self.seconds = 0, [], None, 0.0

    def autocast(self):
        return torch.autocast("cuda", dtype=torch.bfloat16)

    def set_rate(self, rate):
        for group in self.optimizer.param_groups:
            group["lr"] = rate

    def step(self):
        ids, targets = self.rows.next_batch()
        with self.autocast():
            loss = self.step_model(ids, targets)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        return loss.detach()

    def hold_out_loss(self):
        self.model.eval()
        with torch.no_grad(), self.autocast():
            losses = [float(self.model(rows[:, :-1].long(), rows[:, 1:].long()))
                      for rows in self.rows.hold_out[:256].split(32)]
        self.model.train()
        return sum(losses) / len(losses)

    def prepare(self):
        """Compiles by steps that change nothing."""
        self.set_rate(0.0)
        for _ in range(3):
            self.step()
        torch.cuda.synchronize()

    def train(self, minutes):
        start, budget, warm_up = time.time(), minutes * 60, min(300, 60 * minutes)
        while True:
            elapsed = time.time() - start
            if elapsed >= budget:
                break
            cosine = 0.01 + 0.99 * 0.5 * (1 + math.cos(math.pi * elapsed / budget))
            self.set_rate(self.learning_rate * min(1.0, (self.steps + 1) / warm_up) * cosine)
            loss = self.step()
            self.running = loss if self.running is None else 0.98 * self.running + 0.02 * loss
            self.steps += 1
            if self.steps % 20 == 0:
                value = float(self.running)  # waits for the GPU, so that the clock above is honest
                if not math.isfinite(value):
                    raise SystemExit("the loss is not finite")
            if self.steps % 500 == 0:
                self.note(round(time.time() - start, 1), value)
        self.seconds = round(time.time() - start, 1)

    def note(self, seconds, value):
        self.log.append({"step": self.steps, "seconds": seconds, "train": round(value, 4),
                         "hold_out": round(self.hold_out_loss(), 4)})
        print("%(step)6d  %(seconds)6.1f s  train %(train).4f  hold-out %(hold_out).4f" % self.log[-1],
              "rows made %d used %d" % (self.rows.made, self.rows.used), flush=True)
