#!/usr/bin/env python3
"""Writes html_entities.inc from Python's table of HTML 5's named characters.

    ./make_html_entities.py > html_entities.inc

Python 3.11 and 3.12 have the same table.
"""
import pathlib
import sys
from html.entities import html5

sys.path.append(str(pathlib.Path(__file__).resolve().parent.parent))
from made_table import write


def main():
    closed = {name[:-1]: text for name, text in html5.items() if name.endswith(";")}
    bare = sorted(name for name in html5 if not name.endswith(";"))
    assert all(closed[name] == html5[name] for name in bare)
    print("// Made by make_html_entities.py from Python's html.entities.html5. Don't edit.")
    write("NamedEntity kNamedEntities",
          [f"{{\"{name}\", {{{', '.join(f'0x{ord(each):X}' for each in text)}}}}}"
           for name, text in sorted(closed.items())])
    # These may also stand without a semicolon.
    write("std::string_view kBareEntities", [f"\"{name}\"" for name in bare])


main()
