"""Names in messages."""

import shlex

import pytest

from daskmm.data.names import printable, shell_word


def test_printable():
    assert printable("é \x1b[2J\n\x9b") == "é \\x1b[2J\\n\\x9b"


@pytest.mark.parametrize("name", ["plain", "two words", "it's $HOME; `id`", "-é*"])
def test_words_of_a_shell(name):
    assert shlex.split(shell_word(name)) == [name]


def test_words_of_a_shell_that_cannot_be_printed():
    assert shell_word("it's\\\x1b\n\udc801") == r"$'it\047s\134\033\012\2001'"
