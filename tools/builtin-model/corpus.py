"""The training text: a fixed function of (seed, document number). Run it to read some, or to train the vocabulary.

    python3 corpus.py --show 5              print documents
    python3 corpus.py --vocabulary 2048     train the vocabulary, write vocabulary.json
"""

import argparse
import array
import os
import random
import re

import bpe
import chats
import stories

END = "<|endoftext|>"
HERE = os.path.dirname(os.path.abspath(__file__))
VOCABULARY = os.path.join(HERE, "vocabulary.json")
_sentence_end = re.compile(r"[.!?] (?=[A-Z])")


def document(rng):
    """One story as plain text, or one chat."""
    if rng.random() < 0.58:
        return chats.make_chat(rng) + END
    story = stories.make_story(rng)
    text = story.text
    r = rng.random()
    if r < 0.08:  # a reader may begin anywhere: start at some sentence
        starts = [m.end() for m in _sentence_end.finditer(text)][:6]
        if starts:
            text = text[rng.choice(starts):]
    elif r < 0.16:
        text = stories.title(story, rng) + "\n\n" + text
    return text + END


def documents(seed, count):
    rng = random.Random(seed)
    for _ in range(count):
        yield document(rng)


def rows(seed, count, tokenizer, length):
    """Token rows of `length`, each beginning with a document and filled up with more; the last is cut."""
    out, row = array.array("H"), []
    for text in documents(seed, count):
        row += tokenizer.encode(text)
        if len(row) >= length:
            out.extend(row[:length])
            row = []
    return out


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--show", type=int, default=0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--vocabulary", type=int, default=0)
    args = parser.parse_args()
    for text in documents(args.seed, args.show):
        print(text + "\n")
    if args.vocabulary:
        tokenizer = bpe.Tokenizer(bpe.train(documents("vocabulary", 8000), args.vocabulary))
        tokenizer.save(VOCABULARY)
        text = list(documents("check", 300))
        ids = [tokenizer.encode(t) for t in text]
        assert all(tokenizer.decode(i) == t for i, t in zip(ids, text))
        count = sum(map(len, ids))
        print("%d tokens; %.2f characters and %.2f tokens a word" % (
            len(tokenizer.tokens), sum(map(len, text)) / count, count / sum(len(t.split()) for t in text)))


if __name__ == "__main__":
    main()
