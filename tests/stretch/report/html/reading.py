"""Read pages like a browser, with the parser of the standard library."""

from html.parser import HTMLParser

#: Elements without an end tag.
VOID = {"meta", "link", "br", "hr", "img", "path", "use", "rect"}


class ParsedPage(HTMLParser):
    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.ids: list[str] = []
        self.attributes: list[tuple[str, str, str]] = []
        self.pieces: list[str] = []
        self.open: list[str] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += [(tag, name, value or "") for name, value in attrs]
        self.ids += [value for name, value in attrs if name == "id"]
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.handle_starttag(tag, attrs)
        if tag not in VOID:
            self.open.pop()

    def handle_endtag(self, tag):
        if tag in VOID:
            return
        assert self.open
        assert self.open[-1] == tag, (self.open, tag)
        self.open.pop()

    def handle_data(self, data):
        if not self.open or self.open[-1] not in ("style", "script"):
            self.pieces.append(data)

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.pieces).split())


def checked(text: str) -> ParsedPage:
    """Parse a page and check that its tags match, it loads no other resource, and its ids are unique."""
    page = ParsedPage(text)
    assert not page.open
    assert len(page.ids) == len(set(page.ids)), [name for name in page.ids if page.ids.count(name) > 1]
    assert not {"script", "iframe", "object", "embed", "form", "img"} & set(page.tags)
    for tag, name, value in page.attributes:
        assert not name.startswith("on"), (tag, name)
        if name in ("href", "src", "xlink:href"):
            assert value.startswith(("#", "data:,")), (tag, name, value)
            assert value == "data:," or value[1:] in page.ids, value
        if name in ("aria-labelledby", "aria-describedby"):
            assert set(value.split()) <= set(page.ids), value
    assert "url(http" not in text
    assert "@import" not in text
    assert page.tags.count("h1") == 1
    return page
