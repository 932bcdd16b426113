"""The numbers of the README are kept with the commit, machine and command that measured them."""

import re
import subprocess
from pathlib import Path

import pytest
from benchmarks.readme import MEASURED, kept, table

TOP = Path(__file__).parents[2]
TEXT = (TOP / "README.md").read_text(encoding="utf-8")
COUNTED = r"(?:one|two|three|four|five|six|twenty|a) (?:minutes?|times|cores|clusters)"
# Years, versions and sizes of nothing that was measured.
NOT_MEASURED = r"\b20[0-9]{2}\b|Python 3\.11|scikit-learn 1\.9|BSD-3"


def test_the_table_of_the_readme_is_that_of_the_kept_lines():
    assert table(kept()["table"]) in TEXT
    assert TEXT.count("\n| ") == len(kept()["table"]) + 1


@pytest.mark.parametrize("kind", ["table", "prose"])
def test_every_kept_line_has_commit_machine_and_command(kind):
    lines = kept()[kind]
    for one in lines.values() if kind == "table" else lines:
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
