"""The model that train.py trains: a llama in PyTorch, with the arrays named as in GGUF."""

import math

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F

# The rows of a parameter here are those of these tensors, one after another.
PARTS = {"qkv": ("attn_q", "attn_k", "attn_v"), "gate_up": ("ffn_gate", "ffn_up")}


class Norm(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.epsilon = c["eps"]
        self.weight = nn.Parameter(torch.ones(c["dim"]))

    def forward(self, x):
        x = x.float()
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.epsilon) * self.weight


class Block(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.c, self.head = c, c["dim"] // c["heads"]
        kv = c["kv_heads"] * self.head
        self.attn_norm, self.ffn_norm = Norm(c), Norm(c)
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
        c, head = self.c, self.head
        kv = c["kv_heads"] * head
        q, k, v = self.qkv(self.attn_norm(x)).split([c["dim"], kv, kv], dim=-1)

        def rope(y, heads):  # neighbouring entries are the pairs, as GGUF's llama wants them
            y = y.view(b, n, heads, head // 2, 2).float()
            y0, y1 = y[..., 0], y[..., 1]
            turned = torch.stack((y0 * cos - y1 * sin, y0 * sin + y1 * cos), dim=-1)
            return turned.view(b, n, heads, head).transpose(1, 2).to(v.dtype)

        group = c["heads"] // c["kv_heads"]
        q, k = rope(q, c["heads"]), rope(k, c["kv_heads"]).repeat_interleave(group, dim=1)
        v = v.view(b, n, c["kv_heads"], head).transpose(1, 2).repeat_interleave(group, dim=1)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(b, n, c["dim"])
        x = x + self.attn_output(y)
        gate, up = self.gate_up(self.ffn_norm(x)).chunk(2, dim=-1)
        return x + self.ffn_down(F.silu(gate) * up)


class Transformer(nn.Module):
    def __init__(self, c, vocabulary):
        super().__init__()
        self.c, self.vocabulary = c, vocabulary
        head = c["dim"] // c["heads"]
        self.token_embd = nn.Embedding(vocabulary, c["dim"])
        nn.init.normal_(self.token_embd.weight, std=0.02)
        self.blk = nn.ModuleList(Block(c) for _ in range(c["layers"]))
        self.output_norm = Norm(c)
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
        return F.cross_entropy(logits.float().view(-1, self.vocabulary), targets.reshape(-1))

    def load(self, tensors):
        """Takes the weights from arrays named as in GGUF."""
        with torch.no_grad():
            for name, parameter in self.named_parameters():
                prefix, _, last = name.removesuffix(".weight").rpartition(".")
                parts = PARTS.get(last, (last,))
                value = np.concatenate([tensors[".".join(filter(None, (prefix, part, "weight")))] for part in parts])
                parameter.copy_(torch.from_numpy(value))

    def tensors(self):
        """The weights as arrays named as in GGUF, in the file's order."""
        c = self.c
        state = {k: v.detach().float().cpu().numpy() for k, v in self.state_dict().items()}
        kv = c["kv_heads"] * (c["dim"] // c["heads"])
        tensors = {"token_embd.weight": state["token_embd.weight"]}
        for i in range(c["layers"]):
            p = "blk.%d." % i
            q, k, v = np.split(state[p + "qkv.weight"], [c["dim"], c["dim"] + kv])
            gate, up = np.split(state[p + "gate_up.weight"], 2)
            tensors.update({
                p + "attn_norm.weight": state[p + "attn_norm.weight"],
                p + "attn_q.weight": q, p + "attn_k.weight": k, p + "attn_v.weight": v,
                p + "attn_output.weight": state[p + "attn_output.weight"],
                p + "ffn_norm.weight": state[p + "ffn_norm.weight"],
                p + "ffn_gate.weight": gate, p + "ffn_up.weight": up,
                p + "ffn_down.weight": state[p + "ffn_down.weight"]})
        tensors["output_norm.weight"] = state["output_norm.weight"]
        return tensors
