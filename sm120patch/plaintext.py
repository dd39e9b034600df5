"""Text for a terminal: nothing from outside is obeyed, columns are aligned. Pure."""

from __future__ import annotations

from collections.abc import Iterable


def clean(text: str) -> str:
    """Make text from outside safe for a terminal: control characters are shown, not obeyed."""
    if text.replace("\n", "").replace("\t", "").isprintable():
        return text
    return "".join(c if c.isprintable() or c in "\n\t" else f"\\x{ord(c):02x}" for c in text)


def counted(number: int, thing: str) -> str:
    """Number and thing, in the plural where there is not one: `1 set`, `2 sets`."""
    return f"{number} {thing}{'' if number == 1 else 's'}"


def table(rows: Iterable[tuple[str, ...]]) -> str:
    """Align columns with two spaces between; the last column is not padded."""
    lines = [tuple(clean(cell).replace("\n", "\\x0a") for cell in row) for row in rows]
    if not lines:
        return ""
    widths = [max(len(row[i]) for row in lines) for i in range(len(lines[0]) - 1)]
    return "\n".join(
        "  ".join([*(c.ljust(w) for c, w in zip(row, widths, strict=False)), row[-1]]).rstrip()
        for row in lines
    )
