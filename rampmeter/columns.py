"""Plain columns for people: nothing is cut, and nothing a record holds can reach the terminal as an order to it."""

from collections.abc import Collection, Sequence


def render(titles: Sequence[str], rows: Sequence[Sequence[str]], right: Collection[int] = ()) -> str:
    """A line per row under the titles; the columns in `right` hold numbers."""
    lines = [titles, *([printable(cell) for cell in row] for row in rows)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(titles))]
    return "\n".join(
        "  ".join(
            cell.rjust(width) if column in right else cell.ljust(width)
            for column, (cell, width) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in lines
    )


def printable(text: str) -> str:
    """The text with everything that a terminal would obey as escapes."""
    return "".join(
        sign if sign.isprintable() else sign.encode("unicode_escape", "surrogatepass").decode() for sign in text
    )
