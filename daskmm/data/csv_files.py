"""Read csv files in blocks: detect their format, and raise for lines that do not fit it."""

from __future__ import annotations

import csv
import gzip
import io
import itertools
import lzma
import math
import re
import zipfile
import zlib
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from daskmm.data.errors import warn_user
from daskmm.data.names import listed, refuse_other_columns, refuse_unknown

# Bytes of text per block; its numbers take about half as many. Plans count the numbers alone, and
# reading takes three more copies of the text.
_BLOCK_BYTES = 8_000_000
# Number of bytes, and largest number of lines, at the beginning of the first file from which its
# format is detected. If it has few lines, as with a very long header, more bytes are read.
_HEAD_BYTES, _MOST_HEAD_BYTES = 1 << 18, 1 << 26
_HEAD_LINES, _FEW_LINES = 200, 4
# Largest number of bytes that Arrow parses at once. It copies the fields of all columns.
_ARROW_BYTES = 1 << 20
SUFFIXES = (".csv", ".tsv", ".tab")
# Suffixes of text files that are read as tables if the path names the file, but not in a folder.
_TEXT_SUFFIXES = (".txt", ".dat")
COMPRESSED = (".gz", ".bz2", ".xz", ".zip")
# Errors of decompression; bz2 raises an OSError with these words.
_UNCOMPRESSED = (EOFError, zlib.error, lzma.LZMAError, zipfile.BadZipFile, gzip.BadGzipFile)
_OF_BZ2 = "Invalid data stream"
_SEPARATORS = (",", ";", "\t", "|", " ")
_MARKS = {b"\xef\xbb\xbf": "utf-8-sig", b"\xff\xfe": "utf-16", b"\xfe\xff": "utf-16"}
# The encoding that is assumed if text is not utf-8: that of Excel in western countries (cp1252).
# Files in both encodings may lie in one folder, so each is tried as utf-8 first.
_WESTERN = "windows-1252"
_UTF_8_OR_WESTERN = f"utf-8 or {_WESTERN}"
# Marks of missing values: those of R, SAS and surveys count in columns of numbers only, and those
# of pandas in all columns.
_NO_VALUE = ("-", "--", ".", "?", "*")
_NO_TEXT = (
    *("", "NA", "N/A", "n/a", "NaN", "nan", "-NaN", "-nan", "NULL", "null", "None", "<NA>"),
    *("#N/A", "#N/A N/A", "#NA", "1.#IND", "-1.#IND", "1.#QNAN", "-1.#QNAN"),
)
_MISSING = frozenset((*_NO_TEXT, *_NO_VALUE))
_FLAGS = {"True": 1.0, "TRUE": 1.0, "true": 1.0, "False": 0.0, "FALSE": 0.0, "false": 0.0}
# A time with its offset from UTC. The offset is ignored, as time zones of parquet files are.
_DAY_FIRST = r"^(\d\d)\.(\d\d)\.(\d{4})"
_OFFSET = r"([T ].*?) *(?:Z|[+-]\d\d(?::?\d\d)?)$"
# Fewest values with a mark that may divide thousands.
_FEW_MARKED = 3
# Last digits of the multiples of an eighth.
_EIGHTHS = ("125", "375", "625", "875")
# A number with marks of thousands, a percent sign or a currency.
_MARKED_NUMBER = re.compile(r"\W*(\d{1,3}([.,' ]\d{3})+([.,]\d+)?|\d+([.,]\d+)?\s*[%€$£])\W*")
# Characters that may surround a number.
_BLANKS = " \t\n\r\v\f"
# A first line that names the separator for Excel.
_EXCEL = re.compile(r'^"?sep=(.)"?$')
# A line that is added at the end. If a quote is not closed, its field contains this line.
_END = "\x04"
# How pandas calls columns without a name.
_NAMELESS = "Unnamed: "


@dataclass(frozen=True)
class CsvFormat:
    """The format of csv files."""

    separator: str  # the character between fields
    decimal: str  # the decimal mark
    encoding: str  # encoding of the text
    names: tuple[Any, ...]  # names of the columns, or their numbers if there is no header
    n_skipped: int  # lines before the first row: a line ``sep=;``, comments, and the header
    header: tuple[str, ...] = ()  # the header, in which names may be blank or repeated

    @property
    def has_header(self) -> bool:
        """Whether a line names the columns."""
        return bool(self.names) and isinstance(self.names[0], str)


@dataclass(frozen=True)
class _Block:
    """Whole lines of a file that begin within `size` bytes (None: any number) from `start`.

    `of_first` says that the file is the first one, whose header is known.
    """

    path: str
    start: int
    size: int | None
    of_first: bool


def open_csv(
    path: str,
    columns: Sequence[str] | None,
    separator: str | None = None,
    decimal: str | None = None,
    encoding: str | None = None,
    keep: Sequence[str] = (),
    categories: Sequence[str] = (),
    dates: Sequence[str] = (),
    fitted: bool = False,
) -> Any:
    """Open csv files as one dask DataFrame: float64, text of categories, and dates.

    `path` is a file, a pattern, a folder of csv files, or a URL; files may be compressed.
    Separator, decimal mark and encoding are detected from the beginning of the first file by
    default.

    Only `columns` (all if None) and `keep` are parsed; the latter are read as text and come after
    the others. `categories` are those of the columns whose values are categories even if they look
    like numbers, and `dates` are those with dates such as 2026-02-03 (ISO 8601) or 03.02.2026;
    offsets from UTC are ignored. `fitted` says that the columns are those of a fitted model, so
    none can be left out.

    It raises ValueError if the format is unclear, if the only file of a fit has no rows, if lines
    have another number of fields than the header, or if columns to read are not numeric.
    """
    import dask.dataframe as dd

    files = _files(path)
    head, encoding = _head(files[0], encoding)
    found = _told(files[0], head, separator, decimal, encoding)
    if len(files) == 1 and not fitted and not _rows_of(head, found).strip():
        raise ValueError(f"{path} has no rows below its header.")
    kinds, words = _kinds(head, found, decimal is None and not fitted)
    used = [name for name in found.names if name not in keep] if columns is None else columns
    wanted = list(dict.fromkeys([*used, *keep]))
    refuse_unknown(path, "column", [*wanted, *categories, *dates], found.names)
    _refuse_columns(path, used, wanted, (*categories, *dates), words, fitted)
    _warn_of_repeated(path, found, wanted)
    numbers = {*used} - {*categories, *dates}
    kinds = {name: kinds[name] if name in numbers else "text" for name in wanted}
    meta = _empty(kinds).astype(dict.fromkeys(dates, "datetime64[ns]"))
    blocks = list(_blocks(files, found.encoding))
    return dd.from_map(
        _read,
        blocks,
        format=found,
        kinds=kinds,
        dates=tuple(dates),
        chosen=columns is not None,
        meta=meta,
        label="csv",
        enforce_metadata=False,
    )


def _warn_of_repeated(path: str, format: CsvFormat, wanted: Sequence[Any]) -> None:
    """Warn of columns that are read while others of the same name are left out."""
    for name, count in Counter(format.header).items():
        pairs = zip(format.names, format.header, strict=True)
        own = [renamed for renamed, told in pairs if told == name]
        if name and count > 1 and 0 < len({*own} & {*wanted}) < count:
            warn_user(
                f"{path} has {count} columns named {name!r}, which count as "
                f"{listed([*map(repr, own)])}; not all of them are read.",
                UserWarning,
            )


def _refuse_columns(
    path: str,
    used: Sequence[Any],
    wanted: Sequence[Any],
    others: Sequence[str],
    words: dict[Any, tuple[str, int]],
    fitted: bool,
) -> None:
    """Raise ValueError for columns that are to be read but have no name, or hold text.

    The `others` among the used columns are categories and dates, which are text.
    """
    if unread := sorted({*others} - {*used}):
        raise ValueError(
            f"{path}: column {unread[0]!r} is among the categories or dates, but not among the "
            "columns to read (columns=, on the command line --columns)."
        )
    nameless = [name for name in wanted if str(name).startswith(_NAMELESS)]
    if nameless:
        raise ValueError(
            f"{path} has a column without a name (an index that pandas or R wrote, or a separator "
            "at the end of each line?). Write the file without it (index=False), or choose columns "
            "(columns=, on the command line --columns)."
        )
    text = [
        f"{name!r} (such as {words[name][0]!r}) in line {words[name][1]}"
        for name in used
        if name in words and name not in others
    ]
    if text:
        remedy = (
            "The model was fitted to numbers or flags in these columns."
            if fitted
            else "Encode them, or choose the columns to use (columns=, on the command line "
            "--columns), or name those that are categories (on the command line --categories)."
        )
        if any(_MARKED_NUMBER.fullmatch(words[name][0]) for name in used if name in words):
            remedy += (
                " Write numbers without marks of thousands, units and percent signs, or give the "
                "decimal mark if it was taken for such a mark (decimal=, on the command line "
                "--decimal)."
            )
        raise ValueError(f"{path} has columns that are not numeric: {', '.join(text)}. {remedy}")


def csv_columns(
    path: str, separator: str | None, decimal: str | None, encoding: str | None
) -> list[Any]:
    """Return the names of the columns of csv files, as far as they have names."""
    first = _files(path)[0]
    head, encoding = _head(first, encoding)
    names = _told(first, head, separator, decimal, encoding).names
    return [name for name in names if not str(name).startswith(_NAMELESS)]


def is_csv(path: str, in_folder: bool = False) -> bool:
    """Return whether a path, or the name of a file in a folder, has the suffix of csv files."""
    from pathlib import PurePosixPath

    suffixes = [suffix.lower() for suffix in PurePosixPath(path).suffixes]
    if suffixes and suffixes[-1] in COMPRESSED:
        suffixes.pop()
    known = SUFFIXES if in_folder else SUFFIXES + _TEXT_SUFFIXES
    return bool(suffixes) and suffixes[-1] in known


def estimated_rows(path: str, encoding: str | None = None) -> tuple[int | None, bool]:
    """Estimate the number of rows of csv files from their size; say whether all are gzip files.

    Only the beginning of the first file is read. The number is None for other compressed files, and
    for files of unknown size.
    """
    files = _files(path)
    head, encoding = _head(files[0], encoding)
    marked = (line for line in head.splitlines(keepends=True) if line.strip())
    lines = [line for line in marked if not line.startswith("#")][1:]
    compressed = [file.lower().endswith(COMPRESSED) for file in files]
    zipped = all(file.lower().endswith(".gz") for file in files)
    if not lines or (any(compressed) and not zipped):
        return None, zipped
    sizes = [system.size(place) for system, place in map(_system, files)]
    if None in sizes:  # some servers do not tell sizes
        return None, zipped
    n_bytes: float = sum(sizes)
    codec = _WESTERN if encoding == _UTF_8_OR_WESTERN else encoding
    of_head, of_rows = (len(part.encode(codec, "replace")) for part in (head, "".join(lines)))
    if zipped:  # small files are compressed less, so headers count by their share of the text
        n_bytes *= _bytes_per_zipped_byte(files[0]) * of_rows / of_head
    else:
        n_bytes -= len(files) * (of_head - of_rows)  # headers may be long
    return max(round(n_bytes * len(lines) / of_rows), len(files)), zipped


def _bytes_per_zipped_byte(path: str) -> float:
    """Estimate how many bytes a byte of a gzip file becomes, from the beginning of the file."""
    system, place = _system(path)
    with system.open(place, mode="rb") as file:
        head = file.read(_HEAD_BYTES)
    n_bytes, rest = 0, head
    while rest.startswith(b"\x1f\x8b"):  # files of bgzip and logs consist of many gzip members
        member = zlib.decompressobj(zlib.MAX_WBITS | 16)
        n_bytes += len(member.decompress(rest))
        rest = member.unused_data
    return n_bytes / len(head)


def _files(path: str) -> list[str]:
    """Return the sorted files of a path, pattern or folder, except hidden ones."""
    system, place = _system(path)
    if not is_csv(path) or system.isdir(place):
        # Spark writes part-*.csv beside _SUCCESS, or in folders such as year=2024.
        found = [
            file
            for file in sorted(system.find(place))
            if is_csv(file, in_folder=True) and not file.rsplit("/", 1)[-1].startswith(("_", "."))
        ]
        parts = [file for file in found if "=" in file[len(place) :].rsplit("/", 1)[0]]
        if parts:
            raise ValueError(
                f"{path} is partitioned by folders ({parts[0][len(place) :].lstrip('/')}), whose "
                "names are columns. Convert it to parquet, or give the files as a pattern such as "
                f"'{path}/*/*.csv' to leave those columns out."
            )
    elif any(mark in path for mark in "*?["):
        found = sorted(system.glob(place))
    else:
        found = [place]
    if not found:
        raise FileNotFoundError(f"{path} contains no csv file.")
    return [str(system.unstrip_protocol(file)) if "://" in path else str(file) for file in found]


def _system(path: str) -> tuple[Any, str]:
    """Return the file system of a path or URL and the path in it."""
    import fsspec

    if "://" not in path:  # a local name may contain "::", which chains URLs
        return fsspec.filesystem("file"), path
    system, place = fsspec.core.url_to_fs(path)
    return system, str(place)


@contextmanager
def _open(path: str) -> Iterator[Any]:
    """Open a file, which may be compressed; errors of decompression name it."""
    system, place = _system(path)
    try:
        with system.open(place, mode="rb", compression="infer") as file:
            yield file
    except (*_UNCOMPRESSED, OSError) as error:
        if not isinstance(error, _UNCOMPRESSED) and str(error) != _OF_BZ2:
            raise
        raise ValueError(
            f"{path} cannot be read: it is damaged or was cut short ({error})."
        ) from error


def _head(path: str, encoding: str | None) -> tuple[str, str]:
    """Return whole lines at the beginning of a file, and its encoding."""
    with _open(path) as file:
        head: bytes = file.read(size := _HEAD_BYTES)
        while len(head) == size < _MOST_HEAD_BYTES and head.count(b"\n") < _FEW_LINES:
            head += file.read(size)
            size *= 2
    cut = len(head) == size
    if not head.strip():
        raise ValueError(f"{path} cannot be read as csv: it is empty.")
    marked = next((name for mark, name in _MARKS.items() if head.startswith(mark)), None)
    if cut and marked != "utf-16":
        head = head[: head.rfind(b"\n") + 1] or head
    encoding = encoding or marked or _encoding_of(head)
    text = _decoded(path, head, encoding)
    return (text[: text.rfind("\n") + 1] or text) if cut else text, encoding


def _told(
    path: str, head: str, separator: str | None, decimal: str | None, encoding: str
) -> CsvFormat:
    """Detect the format of a file from its beginning; raise ValueError if rows differ in length."""
    lines = _lines(head)
    excel = _EXCEL.match(lines[0].strip())
    if excel:
        separator, lines = separator or excel[1], lines[1:]
    n_before = bool(excel) + (n_comments := _n_comments(lines))
    lines = lines[n_comments:]
    if not lines:
        raise ValueError(f"{path} cannot be read as csv: it has no lines but comments.")
    separators = (separator,) if separator else _SEPARATORS
    decimals = (decimal,) if decimal else (".", ",")
    formats = [(one, mark) for one in separators for mark in decimals if one != mark]
    tries, refusal = [], None
    for form in formats:
        try:
            tries.append(_Try.of(lines, *form))
        except csv.Error as error:  # a very long field, such as a header with other separators
            refusal = error
    if not tries:
        raise ValueError(f"{path} cannot be read as csv: {refusal}.") from refusal
    best = max(tries, key=lambda found: found.score)
    if best.uneven is not None:
        line, n_fields = best.uneven
        others = "" if refusal is None else f"; by others: {refusal}"
        raise ValueError(
            f"{path}, line {line + n_before}: {n_fields} fields where "
            f"{'the header' if best.header else 'the first line'} has {best.n_fields} (separated "
            f"by {best.separator!r}{others}). If this format is wrong, give separator, decimal and "
            "encoding (on the command line --separator, --decimal, --encoding); if fields before "
            "the first column are row names, name them in the header."
        )
    n_skipped = n_before + best.header
    if not best.header:
        names = tuple(range(best.n_fields))
        return CsvFormat(best.separator, best.decimal, encoding, names, n_skipped)
    header = _header("".join(lines[: best.header]), best.separator)
    return CsvFormat(best.separator, best.decimal, encoding, _names(header), n_skipped, header)


def _n_comments(lines: Sequence[str]) -> int:
    """Return the number of lines of comments before the header and the rows.

    A header may begin with #, as in ``#chrom,start``: then it is the last such line, with as many
    fields as the line after it.
    """
    n_marked = sum(1 for _ in itertools.takewhile(lambda line: line.startswith("#"), lines))
    last, after = "".join(lines[n_marked - 1 : n_marked]), "".join(lines[n_marked : n_marked + 1])
    for separator in _SEPARATORS[:-1] if last and after else ():
        try:
            header, row = (next(csv.reader([one], delimiter=separator)) for one in (last, after))
        except csv.Error:  # a very long field, such as a header with other separators
            continue
        some_number = any(
            field.strip() and _number(field, mark) is not None for field in row for mark in ".,"
        )
        if len(header) == len(row) > 1 and some_number:
            return n_marked - 1
    return n_marked


@dataclass(frozen=True)
class _Try:
    """An attempt to read the first lines of a file with a separator and a decimal mark."""

    separator: str  # the character between fields
    decimal: str  # the decimal mark
    n_fields: int  # number of fields of the first line
    header: int  # number of lines up to the end of the header; 0 if the first line is all numbers
    # Number of the first line that does not have `n_fields` fields, and how many it has.
    uneven: tuple[int, int] | None
    numeric: float  # share of the fields after the header that are numbers or missing

    @classmethod
    def of(cls, lines: list[str], separator: str, decimal: str) -> _Try:
        skips = separator == " "
        reader = csv.reader(lines, delimiter=separator, skipinitialspace=skips)
        # Quoted names may contain line breaks; blank lines are no rows.
        found = ((reader.line_num, row) for row in reader if row)
        (first, names), *rows = itertools.islice(found, _HEAD_LINES)
        n_fields = len(names)
        header = 0 if all(_number(field, decimal) is not None for field in names) else first
        uneven = next(((line, len(row)) for line, row in rows if len(row) != n_fields), None)
        fields = [field for _, row in rows for field in row] + ([] if header else names)
        are_numbers = [_number(field, decimal) is not None for field in fields]
        numeric = np.mean(are_numbers) if fields else 0.0
        return cls(separator, decimal, n_fields, header, uneven, float(numeric))

    @property
    def score(self) -> tuple[bool, bool, float, int]:
        """Sort key; attempts with equal numbers of fields, several fields and most numbers win."""
        several = self.n_fields > 1 or (self.uneven is not None and self.uneven[1] > 1)
        return self.uneven is None and several, several, self.numeric, self.n_fields


def _number(field: str, decimal: str) -> float | None:
    """Return the number in a field, NaN for a missing value, or None for anything else."""
    field = field.strip(_BLANKS)
    if field in _MISSING:
        return math.nan
    if decimal != ".":
        if "." in field:
            return None
        field = field.replace(decimal, ".")
    # Python's float also takes 1_000 and digits of other scripts, and reads 1e999 as infinity.
    if "_" in field or not field.isascii():
        return None
    try:
        number = float(field)
    except ValueError:
        return None
    return number if math.isfinite(number) or not any(map(str.isdigit, field)) else None


def _value(field: str, kind: str, decimal: str) -> str | float | None:
    """Return the value of a field, given the kind of its column; None if it does not fit."""
    if kind == "text":
        return field
    if kind == "numbers":
        return _number(field, decimal)
    field = field.strip(_BLANKS)
    return math.nan if field in _MISSING else _FLAGS.get(field)


def _encoding_of(head: bytes) -> str:
    try:
        head.decode("utf-8")
    except UnicodeDecodeError:
        return _UTF_8_OR_WESTERN
    return "utf-8"


def _decoded(path: str, text: bytes, encoding: str) -> str:
    if encoding == _UTF_8_OR_WESTERN:
        with suppress(UnicodeDecodeError):
            return text.decode("utf-8-sig")
        encoding = _WESTERN
    try:
        return text.decode(encoding)
    except (UnicodeDecodeError, LookupError) as error:
        raise ValueError(
            f"{path} cannot be decoded as {encoding}: {error}. Give its encoding (on the command "
            "line --encoding)."
        ) from error


def _header(text: str, separator: str) -> tuple[str, ...]:
    """Return the fields of a header."""
    reader = csv.reader(_lines(text), delimiter=separator, skipinitialspace=True)
    return tuple(next(row for row in reader if row))


def _names(header: Sequence[str]) -> tuple[str, ...]:
    """Return the names of columns; blank and repeated names are numbered as pandas does."""
    names = [name or f"{_NAMELESS}{place}" for place, name in enumerate(header)]
    seen, taken = Counter[str](), {*names}
    for place in sorted(range(len(names)), key=lambda place: not header[place]):
        name, number = names[place], seen[names[place]]
        while number:
            seen[name] = number + 1
            names[place] = f"{name}.{number}"
            number = number + 1 if names[place] in taken else 0
        seen[names[place]] += 1
        taken.add(names[place])
    return tuple(names)


def _kinds(
    head: str, format: CsvFormat, guessed: bool
) -> tuple[dict[Any, str], dict[Any, tuple[str, int]]]:
    """Find the kinds of the columns from the beginning of a file.

    The result is "numbers", "flags" or "text" for each column and, for each column of text, its
    first value that is not a number, with the line of this value. If the decimal mark is `guessed`,
    values in which it seems to mark thousands are no numbers. The mark is decimal in all columns if
    it is decimal in one of them, or if commas separate the fields.
    """
    rows = list(itertools.islice(_rows(_rows_of(head, format), format.separator), _HEAD_LINES))
    mark = format.decimal
    guessed = guessed and format.separator != ","
    guessed = guessed and not any(_has_decimals(field, mark) for _, row in rows for field in row)
    kinds: dict[Any, str] = {}
    words: dict[Any, tuple[str, int]] = {}
    for place, name in enumerate(format.names):
        fields = [(row[place], line) for line, row in rows if place < len(row)]
        others = [(f, line) for f, line in fields if _number(f, mark) is None]
        if guessed and not others and _marks_thousands([f for f, _ in fields], mark):
            others = [(f, line) for f, line in fields if mark in f]
        kinds[name] = "text" if others else "numbers"
        if others and all(_value(f, "flags", "") is not None for f, _ in fields):
            kinds[name] = "flags"
        elif others:
            words[name] = (others[0][0][:40], format.n_skipped + others[0][1])
    return kinds, words


def _marks_thousands(fields: Sequence[str], mark: str) -> bool:
    """Return whether a mark, with three digits after it, seems to divide thousands: 793 and 1.234.

    Numbers with three decimals are never whole, except multiples of an eighth.
    """
    numbers = [field.strip(_BLANKS).lstrip("+-") for field in fields]
    marked = [number for number in numbers if mark in number]
    whole = [number for number in numbers if number.isdigit()]
    return (
        len(marked) >= _FEW_MARKED
        and bool(whole)
        and not all(number.endswith(_EIGHTHS) for number in marked)
        and all(len(number) < 4 for number in whole)
    )


def _has_decimals(field: str, mark: str) -> bool:
    """Return whether a field is a number with a mark that divides no thousands, such as 1.23."""
    number = field.strip(_BLANKS).lstrip("+-")
    if mark not in number or number in _MISSING or _number(number, mark) is None:
        return False
    return not re.fullmatch(rf"[1-9]\d{{0,2}}{re.escape(mark)}\d{{3}}", number)


def _lines(text: str) -> list[str]:
    """Split text at the line breaks of pandas and csv only; `str.splitlines` knows more."""
    return list(io.StringIO(text, newline=""))


def _rows_of(text: str, format: CsvFormat) -> str:
    """Return the text without the lines before the first row."""
    for _ in range(format.n_skipped):
        text = text[text.find("\n") + 1 :] if "\n" in text else ""
    return text


def _rows(text: str, separator: str) -> Iterator[tuple[int, list[str]]]:
    """Yield the first line, from 1, and the fields of each row; blank lines are no rows.

    A row that cannot be read has no fields and is the last one: it has a very long field, or a
    quote that is not closed.
    """
    lines = [*_lines(text), _END]
    rows = csv.reader(lines, delimiter=separator, skipinitialspace=True)
    line = 1
    try:
        for row in rows:
            closed = rows.line_num < len(lines)
            # A line "" is a row with an empty field.
            if line < len(lines) and (len(row) > 1 or lines[line - 1].strip()):
                yield line, row if closed else []
            line = rows.line_num + 1
    except csv.Error:
        yield line, []


def _blocks(files: list[str], encoding: str) -> Iterator[_Block]:
    """Divide files into blocks; compressed files and those in wide characters stay whole."""
    for path in files:
        of_first = path is files[0]
        if path.lower().endswith(COMPRESSED) or encoding.lower().startswith(("utf-16", "utf-32")):
            yield _Block(path, 0, None, of_first)
            continue
        system, place = _system(path)
        size = system.size(place)
        for start in range(0, max(size, 1), _BLOCK_BYTES):
            yield _Block(path, start, _BLOCK_BYTES, of_first)


def _read(
    block: _Block,
    format: CsvFormat,
    kinds: dict[Any, str],
    dates: tuple[str, ...],
    chosen: bool,
) -> Any:
    """Read a block as a pandas DataFrame of float64, text and dates.

    If the columns are `chosen`, files may differ in all others.
    """
    text, format = _rows_in(block, format, tuple(kinds) if chosen else None)
    frame = _by_arrow(text, format, kinds) if text.strip() else _empty(kinds)
    if frame is None:
        frame = _by_python(block, text, format, kinds)
    for name in dates:
        frame[name] = _dates(block, text, format, frame[name])
    return frame


def _rows_in(
    block: _Block, format: CsvFormat, chosen: tuple[Any, ...] | None
) -> tuple[str, CsvFormat]:
    """Return the text of the rows of a block, and the format of its file."""
    text = _text(block, format.encoding)
    if not block.of_first or block.start == 0:
        head = text[:_HEAD_BYTES] if block.start == 0 else ""
        if block.start or (len(head) < len(text) and head.count("\n") < _FEW_LINES):
            head, _ = _head(block.path, format.encoding)
        format = _of_file(block.path, head, format, chosen)
    return _rows_of(text, format) if block.start == 0 else text, format


def place_of_row(
    path: str,
    block: int,
    row: int,
    separator: str | None = None,
    decimal: str | None = None,
    encoding: str | None = None,
) -> str:
    """Return the file and the line of a row, given its block in the frame that `open_csv` makes."""
    files = _files(path)
    head, encoding = _head(files[0], encoding)
    found = _told(files[0], head, separator, decimal, encoding)
    own = next(itertools.islice(_blocks(files, found.encoding), block, None))
    text, found = _rows_in(own, found, ())
    line, _ = next(itertools.islice(_rows(text, found.separator), row, None))
    return f"{own.path}, line {_line(own, found, line - 1)}"


def _text(block: _Block, encoding: str) -> str:
    """Return the text of a block."""
    from fsspec.utils import read_block

    with _open(block.path) as file:
        if block.size is None:
            raw = file.read()
        else:
            raw = read_block(file, block.start, block.size, delimiter=b"\n")
    return _decoded(block.path, raw, encoding)


def _empty(kinds: dict[Any, str]) -> Any:
    """Return a frame without rows."""
    import pandas as pd

    text = pd.Series([], dtype="str")
    return pd.DataFrame({n: text if kind == "text" else np.empty(0) for n, kind in kinds.items()})


def _by_arrow(text: str, format: CsvFormat, kinds: dict[Any, str]) -> Any:
    """Return the rows of a block, read by Arrow.

    The result is None if Arrow refuses them or reads infinities, or if a quote is not closed.
    """
    import pandas as pd
    import pyarrow as pa
    from pyarrow import csv as arrow

    separator = format.separator
    if f"{separator} " in text or "\n " in text or text.startswith(" "):
        if '"' in text:
            return None
        text = re.sub(rf"(?m)(^|{re.escape(separator)}) +", r"\1", text)
    end = separator * len(format.names) + _END
    raw = b"\n".join((text.encode(), end.encode()))
    places = {name: str(format.names.index(name)) for name in kinds}
    types = {"numbers": pa.float64(), "flags": pa.bool_(), "text": pa.string()}
    options = arrow.ConvertOptions(
        column_types={places[name]: types[kind] for name, kind in kinds.items()},
        include_columns=list(places.values()),
        decimal_point=format.decimal,
        null_values=list(_MISSING),
        true_values=[flag for flag, value in _FLAGS.items() if value],
        false_values=[flag for flag, value in _FLAGS.items() if not value],
    )
    whole = arrow.ReadOptions(
        use_threads=False,
        column_names=[str(place) for place in range(len(format.names))],
        block_size=min(len(raw) + 1, _ARROW_BYTES),
    )
    ends: list[Any] = []

    def misfit(row: Any) -> str:
        ends.append(row)
        return "skip" if row.text == end else "error"

    parts = arrow.ParseOptions(
        delimiter=separator, newlines_in_values=True, invalid_row_handler=misfit
    )
    try:
        table = arrow.open_csv(pa.BufferReader(raw), whole, parts, options).read_all()
    except pa.ArrowInvalid:
        return None
    columns = {
        name: _with_missing(table[places[name]].to_pandas())
        if kind == "text"
        else table[places[name]].cast(pa.float64()).to_numpy()
        for name, kind in kinds.items()
    }
    infinite = any(np.isinf(columns[n]).any() for n, kind in kinds.items() if kind == "numbers")
    return None if infinite or not ends or "\0" in text else pd.DataFrame(columns)


def _with_missing(text: Any) -> Any:
    """Return a column of text in which marks of missing values are missing."""
    return text.mask(text.isin(_NO_TEXT))


def _by_python(block: _Block, text: str, format: CsvFormat, kinds: dict[Any, str]) -> Any:
    """Return the rows of a block, read one by one.

    It raises ValueError if a row has another number of fields than the header, or a value of
    another kind; the message has the file, the line and the column.
    """
    import pandas as pd

    places = {name: format.names.index(name) for name in kinds}
    columns: dict[Any, list[Any]] = {name: [] for name in kinds}

    def misfit(line: int, problem: str) -> ValueError:
        return ValueError(f"{block.path}, line {_line(block, format, line - 1)}: {problem}.")

    for line, row in _rows(text, format.separator):
        if any("\0" in field for field in row):
            raise misfit(line, "the file is damaged: it has zero bytes")
        whole = "" if len(row) == len(format.names) else _lines(text)[line - 1].rstrip()
        if not row:
            raise misfit(
                line,
                f"the row that begins with {whole[:80]!r} has a quote that is not closed, a field "
                f"of more than {csv.field_size_limit():,} characters, or a line break within "
                "quotes where two blocks of the file meet (compressed files are read whole)",
            )
        if len(row) != len(format.names):
            hint = ", perhaps of a quote that is not closed" if whole.count('"') % 2 else ""
            raise misfit(
                line,
                f"{len(row)} fields where {len(format.names)} are expected ({whole[:80]!r}{hint})",
            )
        for name, kind in kinds.items():
            field = row[places[name]]
            value = _value(field, kind, format.decimal)
            if value is None:
                wanted = "flag" if kind == "flags" else f"number (decimal mark {format.decimal!r})"
                raise misfit(line, f"column {name!r} has {field[:40]!r}, which is not a {wanted}")
            columns[name].append(value)
    frame = pd.DataFrame(columns)
    return frame.assign(**{n: _with_missing(frame[n]) for n, k in kinds.items() if k == "text"})


def _dates(block: _Block, text: str, format: CsvFormat, series: Any) -> Any:
    """Return the dates and times as written in a column; empty fields are missing values."""
    import pandas as pd

    written = series.str.strip()
    local = written.str.replace(_OFFSET, r"\1", regex=True)
    local = local.str.replace(_DAY_FIRST, r"\3-\2-\1", regex=True)
    found = pd.to_datetime(local, format="ISO8601", errors="coerce")
    known = found.between(pd.Timestamp.min, pd.Timestamp.max)
    bad = (~known & written.notna() & (written != "")).to_numpy()
    if bad.any():
        row = int(np.argmax(bad))
        line, _ = next(itertools.islice(_rows(text, format.separator), row, None))
        raise ValueError(
            f"{block.path}, line {_line(block, format, line - 1)}: column {series.name!r} has "
            f"{written.iloc[row]!r}, which is no date from 1678 to 2261, such as 2026-02-03, "
            "2026-02-03T12:30 or 03.02.2026."
        )
    return found.astype("datetime64[ns]")


def _of_file(path: str, text: str, format: CsvFormat, chosen: tuple[Any, ...] | None) -> CsvFormat:
    """Return the format with the columns of this file in their order, from its own header.

    It raises ValueError if the file lacks a chosen column, or, if all columns are used (None), has
    others than the first file.
    """
    if not format.has_header:
        return format
    lines = _lines(text)
    if not lines:  # Spark writes empty parts
        return format
    before = int(bool(_EXCEL.match(lines[0].strip())))
    before += _n_comments(lines[before:])
    header = _Try.of(lines[before:], format.separator, format.decimal).header
    n_skipped = before + max(header, 1)  # a header of numbers is refused below
    names = _names(_header("".join(lines[before:n_skipped]), format.separator))
    refuse_other_columns(path, names, format.names, chosen)
    return replace(format, names=names, n_skipped=n_skipped)


def _line(block: _Block, format: CsvFormat, index: int) -> int:
    """Return the number of a line of the file, from 1, given its index in the rows of a block."""
    if block.start == 0:
        return format.n_skipped + index + 1
    before, left = 0, block.start
    with _open(block.path) as file:
        while left:
            part = file.read(min(left, 1 << 24))
            before += part.count(b"\n")
            left -= len(part)
    # The rows of a block begin after the first line break at or after its start.
    return before + index + 2
