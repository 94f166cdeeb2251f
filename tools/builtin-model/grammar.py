"""A small template language for writing text.

    [a|b|c]   one of the alternatives (they nest; an empty one is allowed)
    {key}     a value from the context; its text may hold templates itself
    {Key}     the same with its first letter in upper case

Templates are parsed once and cached: the corpus expands each of them many thousand times.
"""

import re

_cache = {}


def _parse(text, pos, depth):
    parts, alternatives, literal = [], [], []

    def flush():
        if literal:
            parts.append("".join(literal))
            literal.clear()

    while pos < len(text):
        c = text[pos]
        if c == "[":
            flush()
            choice, pos = _parse(text, pos + 1, depth + 1)
            parts.append(choice)
        elif c == "{":
            flush()
            end = text.index("}", pos)
            key = text[pos + 1:end]
            parts.append((key[0].lower() + key[1:], key[0].isupper()))
            pos = end + 1
        elif c == "|" and depth:
            flush()
            alternatives.append(parts)
            parts = []
            pos += 1
        elif c == "]" and depth:
            flush()
            alternatives.append(parts)
            return alternatives, pos + 1
        else:
            literal.append(c)
            pos += 1
    if depth:
        raise ValueError("unclosed [ in template: " + text)
    flush()
    return parts, pos


def _compiled(text):
    tree = _cache.get(text)
    if tree is None:
        tree = _cache[text] = _parse(text, 0, 0)[0]
    return tree


def pick(rng, options):
    """Returns the first option more often than the others, so that a model has a likeliest next word to choose."""
    return options[0] if rng.random() < 0.2 else options[int(rng.random() * len(options))]


def _render(parts, context, rng, out):
    for part in parts:
        if isinstance(part, str):
            out.append(part)
        elif isinstance(part, tuple):
            key, capital = part
            value = context[key]
            if "[" in value or "{" in value:
                inner = []
                _render(_compiled(value), context, rng, inner)
                value = "".join(inner)
            out.append(value[:1].upper() + value[1:] if capital else value)
        else:
            _render(pick(rng, part), context, rng, out)


_vowel = re.compile(r"\b([Aa]) (?=[aeiouAEIOU])(?!uni|one\b|use|uke|eu|once)")
_sentence = re.compile(r"(^|[.!?] |\n)([a-z])")
_spaces = re.compile(r"  +")


def tidy(text):
    """Chooses between "a" and "an", and starts each sentence with a capital."""
    text = _spaces.sub(" ", text)
    text = _vowel.sub(r"\1n ", text)
    return _sentence.sub(lambda m: m.group(1) + m.group(2).upper(), text)


def expand(template, context, rng):
    out = []
    _render(_compiled(template), context, rng, out)
    return "".join(out)
