"""Text for a terminal: nothing from outside is obeyed, columns are aligned. Pure."""

from __future__ import annotations

from collections.abc import Iterable


def clean(text: str, keep: str = "\n\t") -> str:
    """Make text from outside safe for a terminal: control characters are shown, not obeyed.

    A byte that is no UTF-8 (a surrogate here) is shown as that byte; those in `keep` stay.
    """
    if text.translate(dict.fromkeys(map(ord, keep))).isprintable():
        return text
    return "".join(c if c.isprintable() or c in keep else _escaped(ord(c)) for c in text)


def _escaped(number: int) -> str:
    if 0xDC80 <= number <= 0xDCFF:
        number -= 0xDC00
    if number < 0x100:
        return f"\\x{number:02x}"
    return f"\\u{number:04x}" if number < 0x10000 else f"\\U{number:08x}"


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
