"""Prints what a model that train.py has trained writes: continuations of stories, and chats."""

import torch

SAMPLES = ["Once upon a time", "The little robot", "The dragon", "It was raining", "Anna and her dog", "In the", "\"Where is my hat?\"", "The spaceship landed on"]
CHATS = [["Tell me a story about a dragon", "What happened next?", "What was the dragon's name?"], ["Hello!"], ["What is your name?"], ["Who are you?"],
         ["Tell me a story about a cat and a boat", "Where did they go?", "How did it end?", "Thank you!"], ["Thank you!"], ["What is 2 plus 2?"], ["How are you?"],
         ["what happened next?"], ["write a short story about a lonely submarine please"], ["Can you write a story about a programmer named Gunter?", "who helped gunter"],
         ["What is the capital of France?"], ["tell me a story about a zorblat"], ["I like trains"], ["bye"], ["my name is Ludwig", "what is my name?"], ["Tell me a story about a programmer", "What was the programmer's name?", "Who was the friend?", "Tell me another story about a whale"]]


def sample(model, tokenizer, texts, temperature, limit):
    """Continues all texts together, each until its end or for `limit` tokens."""
    end = {tokenizer.ids["<|endoftext|>"], tokenizer.ids["<|im_end|>"]}
    device = model.token_embd.weight.device
    rows = [tokenizer.encode(t) for t in texts]
    starts, live = [len(r) for r in rows], set(range(len(rows)))
    for _ in range(limit):
        order = sorted(live)
        width = max(len(rows[i]) for i in order)
        if width >= model.c["context"]:
            break
        ids = torch.tensor([rows[i] + [0] * (width - len(rows[i])) for i in order], device=device)
        last = torch.tensor([len(rows[i]) - 1 for i in order])
        with torch.no_grad():
            logits = model(ids)[torch.arange(len(order)), last].float()
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


def write_samples(model, tokenizer, path):
    model.eval()
    with open(path, "w") as f:
        for temperature in (0.0, 0.7):
            f.write("=== temperature %.1f\n" % temperature)
            for prompt, text in zip(SAMPLES, sample(model, tokenizer, SAMPLES, temperature, 360)):
                f.write("--- %s|%s\n" % (prompt, text))
            histories = [""] * len(CHATS)
            for turn in range(max(map(len, CHATS))):
                which = [i for i in range(len(CHATS)) if turn < len(CHATS[i])]
                for i in which:
                    histories[i] += "<|im_start|>user\n" + CHATS[i][turn] + "<|im_end|>\n<|im_start|>assistant\n"
                texts = sample(model, tokenizer, [histories[i] for i in which], temperature, 400)
                for i, text in zip(which, texts):
                    histories[i] += text + "<|im_end|>\n"
            for history in histories:
                f.write("---\n" + history.replace("<|im_start|>", "").replace("<|im_end|>", "") + "\n")
