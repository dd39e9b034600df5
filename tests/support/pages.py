"""Look at a page of `report` as a browser would read it: elements, attributes, text."""

from __future__ import annotations

from html.parser import HTMLParser

VOID = {"meta", "br", "link", "img", "input", "hr"}


class Page(HTMLParser):
    """Elements, attributes and text of a page; fails on elements that do not nest."""

    def __init__(self, html: str) -> None:
        super().__init__(convert_charrefs=True)
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str, str]] = []
        self.words: list[str] = []
        self._open: list[str] = []
        self.feed(html)
        self.close()
        assert self._open == [], f"never closed: {self._open}"

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += [(tag, name, value or "") for name, value in attrs]
        if tag not in VOID:
            self._open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += [(tag, name, value or "") for name, value in attrs]

    def handle_endtag(self, tag: str) -> None:
        assert self._open and self._open[-1] == tag, f"</{tag}> closes {self._open[-1:]}"
        self._open.pop()

    def handle_data(self, data: str) -> None:
        if "style" not in self._open:
            self.words.append(data)

    @property
    def text(self) -> str:
        """All that is to be read, white space joined."""
        return " ".join(" ".join(self.words).split())


def check_harmless(page: Page) -> None:
    """Nothing runs, nothing is loaded, nothing leads elsewhere."""
    assert set(page.tags).isdisjoint({"script", "iframe", "object", "embed", "img", "link", "form"})
    assert [a for a in page.attributes if a[1].startswith("on")] == []
    assert [a for a in page.attributes if a[1] in ("href", "src", "style", "xlink:href")] == []
    policies = [v for t, n, v in page.attributes if (t, n) == ("meta", "content") and "src" in v]
    assert policies == ["default-src 'none'; style-src 'unsafe-inline'"]
