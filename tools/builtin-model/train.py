"""Trains the built-in model from random weights and writes it as GGUF. Needs PyTorch, numpy and one GPU.

    python3 train.py --out build/builtin-model --minutes 5

The text is written while the model trains: worker processes make shards (each a function of its number alone), and the
trainer reads them in order, each row once for as long as new ones come. The time limit drives the learning rate, so the
run ends when it should on any GPU.
"""

import argparse
import json
import multiprocessing
import os
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


def read_arguments():
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
    return parser.parse_args()


def export(trainer, tokenizer, out):
    """Writes the weights, and the losses before and after the file's rounding."""
    import torch

    model, rows = trainer.model, trainer.rows
    tensors = model.tensors()
    np.savez(os.path.join(out, "weights.npz"), **{k: v.astype(np.float16) for k, v in tensors.items()})
    path = os.path.join(out, "builtin.gguf")
    gguf.write(path, CONFIG, tensors, tokenizer)
    before = trainer.hold_out_loss()
    model.load(gguf.read(path)[1])
    after = trainer.hold_out_loss()
    result = {"device": torch.cuda.get_device_name(0), "pytorch": torch.__version__, "parameters": parameters_of(model),
              "steps": trainer.steps, "seconds": trainer.seconds, "rows_made": rows.made, "rows_used": rows.used,
              "tokens_used": rows.used * CONFIG["context"], "train_loss": round(float(trainer.running), 4),
              "hold_out_loss": round(before, 4), "hold_out_loss_q8_0": round(after, 4),
              "bytes": os.path.getsize(path), "config": CONFIG, "log": trainer.log}
    with open(os.path.join(out, "result.json"), "w") as f:
        json.dump(result, f, indent=1)
    print(json.dumps({k: v for k, v in result.items() if k != "log"}), flush=True)


def parameters_of(model):
    return sum(p.numel() for p in model.parameters())


def main():
    args = read_arguments()
    os.makedirs(args.out, exist_ok=True)
    begin = time.time()
    length = CONFIG["context"] + 1
    pool = multiprocessing.get_context("fork").Pool(args.processes, _start_worker)  # before CUDA exists in this process
    jobs = [(HOLD_OUT_SHARD, 1024, length)] + [
        (args.first_shard + i, args.documents, length) for i in range(args.shards)]
    shards = pool.imap(_make_shard, jobs)

    # These modules import PyTorch, so they are imported after the processes have started.
    import torch
    import network
    import samples
    import trainer as training

    torch.manual_seed(1)
    torch.backends.cuda.matmul.allow_tf32 = True
    tokenizer = bpe.Tokenizer.load(corpus.VOCABULARY)
    model = network.Transformer(CONFIG, len(tokenizer.tokens)).to("cuda")
    if args.start_from:
        model.load(gguf.read(args.start_from)[1])
    print("%s, PyTorch %s, %d parameters" % (torch.cuda.get_device_name(0), torch.__version__, parameters_of(model)), flush=True)
    rows = training.Rows(shards, length, args.batch, "cuda")
    trainer = training.Trainer(model, rows, args.learning_rate, compiled=not args.no_compile)
    trainer.prepare()
    print("ready after %.1f s" % (time.time() - begin), flush=True)
    trainer.train(args.minutes)
    pool.terminate()
    export(trainer, tokenizer, args.out)
    samples.write_samples(model, tokenizer, os.path.join(args.out, "samples.txt"))
    print("done after %.1f s" % (time.time() - begin), flush=True)


if __name__ == "__main__":
    main()
