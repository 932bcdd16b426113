"""The numbers of README and docs are kept with the commit, machine and command behind them."""

import re
import subprocess
from pathlib import Path

import pytest
from benchmarks import real_tables_page
from benchmarks.readme import MEASURED, kept, table

TOP = Path(__file__).parents[2]
TEXT = (TOP / "README.md").read_text(encoding="utf-8")
COUNTED = r"(?:one|two|three|four|five|six|twenty|a) (?:minutes?|times|cores|clusters)"
# Years, versions and sizes of nothing that was measured.
NOT_MEASURED = r"\b20[0-9]{2}\b|Python 3\.11|scikit-learn 1\.9|BSD-3"

# Claims of speed and quality on the pages below docs/: a number with a unit, or beside a score.
WORDS = "one|two|three|four|five|six|seven|eight|nine|ten|twenty|half|fifths"
NUMBER = rf"(?<![\w.])(?:\d[\d,.]*|\.\d+|{WORDS})"
UNIT = (
    r"(?:(?:processor )?(?:seconds?|minutes?|hours?|s|GB/s|MB/s|readings)\b"
    r"|times (?:as|faster|slower|longer|faiss)|% (?:lower|higher|more|less)"
    r"|of (?:\w+'s |the |its )(?:processor )?time)"
)
SCORE = r"\b(?:ARI|NMI|Rand index|[Cc]ost|weight)\b[^;:|]*?(?<=\s)[01]?\.\d|\d of (?:the )?\d"
CLAIM = re.compile(rf"{NUMBER}(?: (?:to|or|and) {NUMBER})? {UNIT}|{SCORE}")
# Reading times, settings and definitions.
NO_CLAIM = r"ten minutes|every 30 seconds|by default 5 minutes|more than four times as many rows"
# The evidence, the changelog and the page on real tables are kept figures themselves.
KEPT = {"evidence.md", "changes.md", "real-tables.md"}
DOCS = TOP / "docs"
PAGES = {
    path.relative_to(DOCS).as_posix(): path.read_text(encoding="utf-8")
    for folder in ("", "guide/", "how/")
    for path in sorted(DOCS.glob(f"{folder}*.md"))
    if path.name not in KEPT
}


def prose(page):
    """Return the sentences and the cells of tables of a page, without code, links and formulas."""
    text = re.sub(r"\A---.*?^---$", "", page, flags=re.DOTALL | re.MULTILINE)
    text = re.sub(r"^ *(```|\$\$).*?^ *\1$", "", text, flags=re.DOTALL | re.MULTILINE)
    text = re.sub(r"`[^`]*`|\]\([^)]*\)|\$[^$]*\$|\{doc\}", "", text)
    parts = re.split(r"\n\s*\n|\||\n *[-#]", text)
    return [" ".join(part.split()) for part in parts]


def test_the_table_of_the_readme_is_that_of_the_kept_lines():
    assert table(kept()["table"]) in TEXT
    assert TEXT.count("\n| ") == len(kept()["table"]) + 1


def kept_lines():
    """Return all that has a commit, a machine and a command."""
    numbers = kept()
    methods = real_tables_page.kept()["methods"].values()
    table, prose, docs = numbers["table"].values(), numbers["prose"], numbers["docs"]
    return [*table, *prose, *docs, numbers["embeddings"], *methods]


def test_every_kept_line_has_commit_machine_and_command():
    for one in kept_lines():
        assert one["machine"]
        assert one["command"]
        for script in re.findall(r"python (\S+\.py)", one["command"]):
            assert (TOP / script).exists()
        assert re.fullmatch("[0-9a-f]{8}", one["commit"])
        if (TOP / ".git").exists():
            known = ["git", "cat-file", "-e", f"{one['commit']}^{{commit}}"]
            shallow = ["git", "rev-parse", "--is-shallow-repository"]
            said = subprocess.run(shallow, cwd=TOP, capture_output=True, text=True, check=True)
            assert said.stdout.strip() == "true" or not subprocess.call(known, cwd=TOP)


def test_lines_that_can_be_measured_again_name_themselves():
    lines = kept()["table"]
    again = {name for name, one in lines.items() if "benchmarks/readme.py" in one["command"]}
    assert again == {*MEASURED}
    for name in again:
        assert lines[name]["command"].endswith(name)


def test_every_number_of_the_text_is_a_kept_one():
    text = re.sub(r"```.*?```", "", TEXT, flags=re.DOTALL)
    text = re.sub(r"^\|.*$", "", text, flags=re.MULTILINE)
    text = " ".join(re.sub(r"`[^`]*`|\]\([^)]*\)", "", text).split())
    for one in kept()["prose"]:
        assert one["text"] in text
        text = text.replace(one["text"], "")
    assert re.findall(rf"\d[\d.,]*|{COUNTED}", re.sub(NOT_MEASURED, "", text)) == []


@pytest.mark.parametrize("page", PAGES)
def test_every_claim_of_the_docs_is_a_kept_one(page):
    parts = prose(PAGES[page])
    for one in kept()["docs"]:
        if one["page"] == page:
            assert any(one["text"] in part for part in parts), one["text"]
            parts = [part.replace(one["text"], "") for part in parts]
    found = [CLAIM.search(re.sub(NO_CLAIM, "", part)) for part in parts]
    assert [claim[0] for claim in found if claim] == []


def test_kept_claims_are_on_pages_of_the_docs():
    assert {one["page"] for one in kept()["docs"]} <= {*PAGES}


def test_claims_are_found_in_sentences_and_tables():
    for text in (
        "It takes 2 to 3 times as long.",
        "| .9 times faiss's | .5 % lower |",
        "NMI is .7",
    ):
        assert any(map(CLAIM.search, prose(text)))


def test_the_page_on_real_tables_is_made_of_the_kept_figures():
    assert real_tables_page.PAGE.read_text(encoding="utf-8") == real_tables_page.page()


def test_every_loss_on_the_page_has_a_reason():
    figures = real_tables_page.kept()
    kinds = real_tables_page.KINDS
    listed = {
        f"{kind}: {name}" for kind in kinds for name, _ in real_tables_page.losses(figures, kind)
    }
    assert {*figures["reasons"]} == listed
    assert all(figures["reasons"].values())
