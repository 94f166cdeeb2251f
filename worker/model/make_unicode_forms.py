#!/usr/bin/env python3
"""Writes unicode_forms.inc from the Unicode Character Database.

    ./make_unicode_forms.py /usr/share/unicode/UnicodeData.txt > unicode_forms.inc
"""
import sys

from made_table import write
from unicode_data import records

CONTROLS = {"Cc", "Cf", "Co", "Cs"}
MARK = "Mn"


def read(path):
    """Returns by code: the general category, the canonical decomposition (one step), the simple lower case."""
    categories, steps, lower = {}, {}, {}
    for first, last, fields in records(path):
        for each in range(first, last + 1):
            categories[each] = fields[2]
        if fields[5] and not fields[5].startswith("<"):
            steps[last] = [int(each, 16) for each in fields[5].split()]
        if fields[13]:
            lower[last] = int(fields[13], 16)
    return categories, steps, lower


def decomposed(code, steps):
    return [last for each in steps[code] for last in decomposed(each, steps)] if code in steps else [code]


def joined(values):
    """Joins neighbours with the same value: {code: value} -> [(first, last, value)]"""
    rows = []
    for code, value in sorted(values.items()):
        if rows and rows[-1][1] == code - 1 and rows[-1][2] == value:
            rows[-1] = (rows[-1][0], code, value)
        else:
            rows.append((code, code, value))
    return rows


def main():
    categories, steps, lower = read(sys.argv[1])
    print("// Made by make_unicode_forms.py from the Unicode Character Database 15.0. Don't edit.")

    controls = {code: True for code, category in categories.items() if category in CONTROLS}
    write("CodeRange kControlRanges", [f"{{0x{first:X}, 0x{last:X}}}" for first, last, _ in joined(controls)])

    bare = {}
    for code, category in categories.items():
        left = tuple(each for each in decomposed(code, steps) if categories.get(each) != MARK)
        if left != (code,):
            bare[code] = left
    write("BareRange kBareRanges",
          [f"{{0x{first:X}, 0x{last:X}, {{{', '.join(f'0x{each:X}' for each in left)}}}}}"
           for first, last, left in joined(bare)])

    # Alphabets whose capital and small letters alternate have a row for each capital letter; the others have few rows.
    offsets = {code: small - code for code, small in lower.items()}
    write("LowerRange kLowerRanges",
          [f"{{0x{first:X}, 0x{last:X}, {offset}}}" for first, last, offset in joined(offsets)])


main()
