"""Names in messages."""

import shlex

import pytest

from daskmm.data.names import cell, printable, shell_word


def test_unprintable_characters_become_escapes():
    assert printable("é \x1b[2J\n\x9b") == "é \\x1b[2J\\n\\x9b"


@pytest.mark.parametrize("name", ["plain", "two words", "it's $HOME; `id`", "-é*"])
def test_words_of_a_shell_survive_its_reading(name):
    assert shlex.split(shell_word(name)) == [name]


def test_unprintable_words_of_a_shell_become_escapes():
    assert shell_word("it's\\\x1b\n\udc801") == r"$'it\047s\134\033\012\2001'"


@pytest.mark.parametrize(
    "text", ["=1+1", "+ab", "-ab", "@x", "\t=1", "\r=1", "-5:30", "=-5", "-inf"]
)
def test_cells_that_a_spreadsheet_would_compute_get_an_apostrophe(text):
    assert cell(text) == f"'{printable(text)}"


@pytest.mark.parametrize(
    "value",
    ["-5.3", "+1.234,5", "-1e-7", "-", "--", "-3%", "a=b", "é", "two\nlines", "", -5.3, None],
)
def test_numbers_and_other_text_stay_as_they_are_in_cells(value):
    assert cell(value) == value


def test_control_characters_are_escaped_in_cells():
    assert cell("a\x1b[2J\x9b\nb\u202e") == "a\\x1b[2J\\x9b\nb\\u202e"
