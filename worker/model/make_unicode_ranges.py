#!/usr/bin/env python3
"""Writes unicode_ranges.inc from the Unicode Character Database.

    ./make_unicode_ranges.py /usr/share/unicode/UnicodeData.txt > unicode_ranges.inc

This adds the one range of letters that is new in 15.1, CJK extension I, because the tokenizers of published models
use it.
"""
import sys

from unicode_data import records

CODES = 0x110000
CLASSES = {"L": "kLetter", "N": "kNumber", "P": "kPunctuation"}
# The property White_Space; it takes precedence over the category.
SPACES = [*range(0x9, 0xE), 0x20, 0x85, 0xA0, 0x1680, *range(0x2000, 0x200B), 0x2028, 0x2029, 0x202F, 0x205F, 0x3000]


def main():
    classes = [None] * CODES
    for first, last, fields in records(sys.argv[1]):
        for each in range(first, last + 1):
            classes[each] = CLASSES.get(fields[2][0])
    for code in range(0x2EBF0, 0x2EE5D + 1):
        classes[code] = "kLetter"
    for code in SPACES:
        classes[code] = "kSpace"

    print("// Made by make_unicode_ranges.py from the Unicode Character Database 15.1. Don't edit.")
    start = 0
    for code in range(1, CODES + 1):
        if code < CODES and classes[code] == classes[start]:
            continue
        if classes[start]:
            print(f"{{0x{start:X}, 0x{code - 1:X}, CharClass::{classes[start]}}},")
        start = code


main()
