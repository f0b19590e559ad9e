"""A parser for HTML pages in tests."""

from html.parser import HTMLParser

VOID = {"meta", "img", "br", "hr", "link", "input"}


class Page(HTMLParser):
    """Tags in order, attributes, text, and tags that are not closed."""

    def __init__(self, text):
        super().__init__()
        self.open, self.tags, self.faults, self.text = [], [], [], []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag, attributes):
        self.tags.append((tag, dict(attributes)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        if not self.open or self.open.pop() != tag:
            self.faults.append(tag)

    def handle_data(self, text):
        self.text.append(text)
        if self.open and self.open[-1] == "h2":
            self.headings = [*getattr(self, "headings", []), text]

    def find(self, tag):
        return [attributes for name, attributes in self.tags if name == tag]
