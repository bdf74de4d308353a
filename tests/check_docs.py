#!/usr/bin/env python3
"""Whether the documentation can be read: words per page and in all, sentence lengths, and links.

Code blocks are not counted. Sentences are those of paragraphs and lists; headings, tables and lists of options (items that begin
with code) have none. Of pages that the program makes and of pages of results only the links are checked."""
import pathlib
import re
import statistics
import sys

GENERATED = {f"docs/reference/{page}.md" for page in ("keys", "columns", "summary", "commands", "presets")}
RESULTS = "docs/results/"
WORDS_IN_ALL = 30_000
WORDS_OF_PAGE = {"README.md": 600, "docs/tutorial.md": 1_500}
WORDS_OF_FOLDER = 300  # a README that says what lives in its folder
WORDS_OF_SENTENCE, MEDIAN_OF_SENTENCES = 35, 18

FENCE = re.compile(r"^( *)(```+).*?^\1\2 *$\n?", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"!?\[((?:[^\[\]]|\[[^\]]*\])*)\]\(([^)\s]+)\)")
ITEM = re.compile(r"^\s*(?:[-*]|\d+\.) +")
ABBREVIATION = re.compile(r"\b(?:e\.g|i\.e|Fig|Eq|et al|vs|Nos?)\.$")


def without_code(text):
    return FENCE.sub("\n", re.sub(r"<!--.*?-->", "", text, flags=re.DOTALL))


def words_of(text):
    """A word has a letter or a digit."""
    return sum(bool(re.search(r"\w", word)) for word in LINK.sub(r"\1", without_code(text)).split())


def paragraphs_of(text):
    """Prose, a paragraph or an item of a list each."""
    kept = [""]
    for line in without_code(text).splitlines():
        if not line.strip() or line.lstrip().startswith(("|", "#", "<", "!!!", "---")):
            kept.append("")
        elif ITEM.match(line):
            kept.append(ITEM.sub("", line))
        else:
            kept[-1] += " " + line.strip()
    return [paragraph.strip() for paragraph in kept if paragraph.strip() and not paragraph.strip().startswith("`")]


def sentences_of(text):
    """Lists of words. Code within a line is one word."""
    found = []
    for paragraph in paragraphs_of(text):
        plain = re.sub(r"`[^`]*`", "X", LINK.sub(r"\1", paragraph))
        begin = 0
        for end in re.finditer(r"[.!?:]\W?(?=\s+[\"'(*_]*[A-Z0-9]|\s*$)", plain):
            if plain[end.start()] != ":" and not ABBREVIATION.search(plain[max(0, end.start() - 7) : end.start() + 1]):
                found.append(plain[begin : end.end()])
                begin = end.end()
        found.append(plain[begin:])
    counted = [[word for word in sentence.split() if re.search(r"\w", word)] for sentence in found]
    return [words for words in counted if words]


def anchors_of(text):
    """The anchors of headings, as forges and the site make them."""
    found = []
    for heading in re.findall(r"^#+ +(.*?) *$", without_code(text), re.MULTILINE):
        plain = re.sub(r"[^\w\- ]", "", LINK.sub(r"\1", heading).replace("`", "").lower())
        found.append(plain.strip().replace(" ", "-"))
    return found


def broken_links(name, texts, exists):
    """The links of a page that lead nowhere, and those by which the site would be left."""
    for _, target in LINK.findall(without_code(texts[name])):
        if re.match(r"[a-z]+:", target):
            continue
        path, _, anchor = target.partition("#")
        parts = []
        for part in [*name.split("/")[:-1], *path.split("/")] if path else name.split("/"):
            if part == ".." and parts:
                parts.pop()
            elif part not in ("", "."):
                parts.append(part)
        full = "/".join(parts)
        if not exists(full):
            yield f"{name}: {target} is not there"
        elif name.startswith("docs/") and not full.startswith("docs/"):
            yield f"{name}: {target} is not a page of the site, which ends at docs/"
        elif anchor and full in texts and anchor not in anchors_of(texts[full]):
            yield f"{name}: {target}: no heading of that page has this anchor"


def is_prose(name):
    return name not in GENERATED and not name.startswith(RESULTS)


def most_words(name):
    if name in WORDS_OF_PAGE:
        return WORDS_OF_PAGE[name]
    return WORDS_OF_FOLDER if name.endswith("/README.md") else None


def faults(texts, exists):
    """A line for each page, sentence and link that is not as it should be, of the pages' texts by their names."""
    total = 0
    for name, text in texts.items():
        yield from broken_links(name, texts, exists)
        if not is_prose(name):
            continue
        words = words_of(text)
        total += words
        if (most := most_words(name)) and words > most:
            yield f"{name}: {words} words, at most {most}"
        sentences = sentences_of(text)
        for sentence in sentences:
            if len(sentence) > WORDS_OF_SENTENCE:
                yield f"{name}: a sentence of {len(sentence)} words: {' '.join(sentence[:8])} ..."
        if sentences and (median := statistics.median(map(len, sentences))) > MEDIAN_OF_SENTENCES:
            yield f"{name}: half of its sentences have {median:g} words or more, at most {MEDIAN_OF_SENTENCES}"
    if total > WORDS_IN_ALL:
        yield f"{total} words outside generated pages and results, at most {WORDS_IN_ALL}"


def test_faults():
    """Each kind of fault is found, and what looks like one is not."""
    long = "word " * 36
    texts = {
        "README.md": "# A title\n\nShort. See [there](docs/a.md#a-b-c) and `x.y. Z`.\n\n```\n" + "code " * 700 + "\n```\n\n| a |\n",
        "docs/a.md": f"# A `b` (c)!\n\n{long}.\n\nShort. Short.\n\n[out](../README.md) [none](b.md) [anchor](#nothing)\n\n- `key`: {long}.\n",
        "sim/README.md": "A house. " * 151,
        "docs/results/papers.md": long + ".",
        "docs/b/c.md": ("Nineteen " + "more " * 18 + ". ") * 2,
    }
    found = list(faults(texts, texts.__contains__))
    assert [fault.split(": ")[0] + ": " + fault.split(": ")[1][:14] for fault in found] == [
        "docs/a.md: ../README.md i", "docs/a.md: b.md is not th", "docs/a.md: #nothing", "docs/a.md: a sentence of ",
        "sim/README.md: 302 words, at ", "docs/b/c.md: half of its se"], found
    assert sentences_of("By 2.5 (Fig. 3), e.g. so. Then: More.") == [["By", "2.5", "(Fig.", "3),", "e.g.", "so."], ["Then:", "More."]]
    assert not list(faults({"docs/d.md": "Word.\n\n" * WORDS_IN_ALL}, bool)) and list(faults({"docs/d.md": "Word.\n\n" * (WORDS_IN_ALL + 1)}, bool))


def main():
    test_faults()
    root = pathlib.Path(__file__).resolve().parent.parent
    ours = [file for file in sorted(root.rglob("*.md")) if not {"build", "out", "dist", ".git"} & set(file.relative_to(root).parts)]
    texts = {file.relative_to(root).as_posix(): file.read_text(encoding="utf-8") for file in ours}
    found = list(faults(texts, lambda name: (root / name).exists()))
    counted = sum(words_of(text) for name, text in texts.items() if is_prose(name))
    print("\n".join(found) or f"{len(texts)} pages, {counted} words outside generated pages and results")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
