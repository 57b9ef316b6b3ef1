"""Reading pages as a browser would, with the standard library's parser."""

from html.parser import HTMLParser

#: Elements that have no end.
VOID = {"meta", "link", "br", "hr", "img", "path", "use", "rect"}


class Seen(HTMLParser):
    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.ids: list[str] = []
        self.attributes: list[tuple[str, str, str]] = []
        self.words: list[str] = []
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
            self.words.append(data)

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.words).split())


def checked(text: str) -> Seen:
    """A page that is whole, needs nothing from elsewhere, and names each thing once."""
    seen = Seen(text)
    assert not seen.open
    assert len(seen.ids) == len(set(seen.ids)), [name for name in seen.ids if seen.ids.count(name) > 1]
    assert not {"script", "iframe", "object", "embed", "form", "img"} & set(seen.tags)
    for tag, name, value in seen.attributes:
        assert not name.startswith("on"), (tag, name)
        if name in ("href", "src", "xlink:href"):
            assert value.startswith(("#", "data:,")), (tag, name, value)
            assert value == "data:," or value[1:] in seen.ids, value
        if name in ("aria-labelledby", "aria-describedby"):
            assert set(value.split()) <= set(seen.ids), value
    assert "url(http" not in text
    assert "@import" not in text
    assert seen.tags.count("h1") == 1
    return seen
