"""Reading a report as a browser would, and stricter."""

import json
from html.parser import HTMLParser

VOID = {"meta", "img", "br", "link", "input"}


class Page(HTMLParser):
    """Tags, attributes and text of a page; unbalanced tags and repeated ids are errors."""

    def __init__(self, text):
        super().__init__()
        self.open, self.tags, self.ids, self.texts, self.scripts = [], [], set(), [], []
        self.feed(text)
        self.close()
        assert not self.open

    def handle_starttag(self, tag, attrs):
        self.handle_startendtag(tag, attrs)
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        attributes = dict(attrs)
        assert len(attributes) == len(attrs), f"<{tag}> repeats an attribute"
        self.tags.append((tag, attributes))
        if "id" in attributes:
            assert attributes["id"] not in self.ids, attributes["id"]
            self.ids.add(attributes["id"])

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        (self.scripts if self.open and self.open[-1] == "script" else self.texts).append(data)

    @property
    def text(self):
        return " ".join(self.texts)

    @property
    def data(self):
        return json.loads("".join(self.scripts))


def read(path):
    return Page(path.read_text(encoding="utf-8"))
