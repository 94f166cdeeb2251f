"""Writes tables for C++ files to include."""

WIDTH = 120


def write(declaration, rows):
    """Prints an array of these rows; as many rows share a line as fit."""
    print(f"\nconstexpr {declaration}[] = {{")
    line = ""
    for row in rows:
        if line and len(line) + len(row) + 2 > WIDTH:
            print(line)
            line = ""
        line += (" " if line else "") + row + ","
    print(line + "\n};")
