"""Reads UnicodeData.txt of the Unicode Character Database. Debian's package unicode-data (15.0) has the file."""


def records(path):
    """Yields for each row: the first code, the last code, the row's fields. Two rows of the file make a range."""
    first = None
    with open(path, encoding="ascii") as data:
        for line in data:
            fields = line.split(";")
            code, name = int(fields[0], 16), fields[1]
            if name.endswith(", First>"):
                first = code
                continue
            yield (first if name.endswith(", Last>") else code), code, fields
