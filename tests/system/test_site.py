"""The documentation is built without a warning, holds together, and works in a browser, offline."""

import html
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from urllib.parse import unquote, urlsplit

import html5lib
import pytest

import daskmm
from daskmm import datasets, metrics, plot, selection, vectors

DOCS = Path(__file__).parents[2] / "docs"
HTML = "{http://www.w3.org/1999/xhtml}"
# Classes of modules are results of their functions, and described there.
PUBLIC = {
    "daskmm": [name for name in daskmm.__all__ if not name.startswith("_")],
    **{
        module.__name__: [name for name in module.__all__ if name[0].islower()]
        for module in (datasets, metrics, plot, selection, vectors)
    },
}


def test_the_reference_has_every_public_name_and_no_other():
    listed = {}
    for line in (DOCS / "api.md").read_text().splitlines():
        if line.startswith(".. currentmodule::"):
            names = listed.setdefault(line.split()[-1], [])
        elif re.fullmatch(r" {3}\w+", line):
            names.append(line.strip())
    assert {module: sorted(names) for module, names in listed.items()} == {
        module: sorted(names) for module, names in PUBLIC.items()
    }


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    pytest.importorskip("sphinx", reason="needs the extra docs")
    place = tmp_path_factory.mktemp("site")
    source = place / "docs"
    # Generated pages stay out of the checkout; pages include files beside their folder.
    for entry in DOCS.parent.iterdir():
        if entry.name not in ("docs", ".git", ".venv"):
            (place / entry.name).symlink_to(entry)
    shutil.copytree(
        DOCS, source, ignore=shutil.ignore_patterns("_build", "generated", "auto_gallery")
    )
    command = [sys.executable, "-m", "sphinx", "-q", "-W", "-j", "2", source, place / "html"]
    path = f"{DOCS.parent}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"
    environment = {**os.environ, "PYTHONPATH": path}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    return place / "html"


@pytest.fixture(scope="module")
def pages(site):
    return {path: html5lib.parse(path.read_text()) for path in sorted(site.rglob("*.html"))}


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_links_inside_lead_somewhere(site, pages):
    anchors = {
        path: {element.get("id") for element in page.iter() if element.get("id")}
        for path, page in pages.items()
    }
    broken = []
    for path, page in pages.items():
        for link in page.iter(f"{HTML}a"):
            parts = urlsplit(link.get("href") or "")
            if parts.scheme or link.get("href") in (None, "#"):
                continue
            target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            found = target.exists() and (
                not parts.fragment
                or target not in anchors
                or unquote(parts.fragment) in anchors[target]
            )
            if not found:
                broken.append((path.relative_to(site), link.get("href")))
    assert broken == []


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_pages_load_nothing_from_elsewhere(pages):
    sources = {
        element.get(name)
        for page in pages.values()
        for kind, name in (("script", "src"), ("img", "src"))
        for element in page.iter(f"{HTML}{kind}")
        if element.get(name)
    }
    sources |= {
        link.get("href")
        for page in pages.values()
        for link in page.iter(f"{HTML}link")
        if link.get("rel") in ("stylesheet", "preload", "icon")
    }
    assert [source for source in sources if urlsplit(source).netloc] == []


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_the_reference_describes_what_it_lists(site, pages):
    for module, names in PUBLIC.items():
        for name in names:
            text = "".join(pages[site / "generated" / f"{module}.{name}.html"].itertext())
            assert re.search("Parameters|Attributes", text) or name.endswith("Error"), name


def drawing_cells(path):
    """How many pictures the cells of a page draw."""
    cells = re.findall(r"^```\{code-cell\}.*?^```", path.read_text(), re.MULTILINE | re.DOTALL)
    return len(re.findall(r"\bplot\.\w+\(|\bplt\.subplots\(", "\n".join(cells)))


def shown_pictures(page):
    outputs = [
        element
        for element in page.iter(f"{HTML}div")
        if "cell_output" in (element.get("class") or "").split()
    ]
    return sum(len(list(output.iter(f"{HTML}img"))) for output in outputs)


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_pages_show_each_picture_that_their_cells_draw(site, pages):
    drawn = {path.relative_to(DOCS): drawing_cells(path) for path in sorted(DOCS.rglob("*.md"))}
    shown = {path: shown_pictures(pages[(site / path).with_suffix(".html")]) for path in drawn}
    assert sum(drawn.values()) > 10
    assert shown == drawn


CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
LOOKED_AT = (
    "index.html",
    "get-started.html",
    "guide/features.html",
    "how/annealing.html",
    "auto_gallery/plot_rings.html",
    "generated/daskmm.EntropyPowerKMeans.html",
    "evidence.html",
)
# What a browser says of pages, by a script that is not part of them.
_PROBE = """
<body></body>
<pre id="found"></pre>
<script>
const measured = frame => {{
  const page = frame.contentDocument, body = getComputedStyle(page.body);
  return {{title: page.title, width: page.documentElement.scrollWidth, ink: body.color,
    paper: body.backgroundColor,
    images: [...page.querySelectorAll("article img")].map(image => image.naturalWidth),
    requests: page.defaultView.performance.getEntriesByType("resource").map(e => e.name)}};
}};
const frames = {frames}.map(([address, width]) => {{
  const frame = document.createElement("iframe");
  Object.assign(frame, {{src: address, height: 800, width}});
  document.body.append(frame);
  return frame;
}});
onload = () => setTimeout(() => {{
  document.getElementById("found").textContent = JSON.stringify(frames.map(measured));
}}, 3000);
</script>
"""


def browsed(address, tmp_path, dark=False):
    """What a page has become in a browser, and errors that it reported."""
    command = [
        *(CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", "--no-first-run"),
        *("--enable-logging=stderr", "--v=0", "--allow-file-access-from-files"),
        f"--blink-settings=preferredColorScheme={0 if dark else 1}",
        *(f"--user-data-dir={tmp_path / 'profile'}", "--virtual-time-budget=30000"),
        *("--window-size=1300,900", "--dump-dom", address),
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, check=True)
    # The theme reports what it does there too.
    errors = re.compile(r"(ERROR|WARNING):CONSOLE|CONSOLE.*(Uncaught|Failed)")
    return done.stdout, [line for line in done.stderr.splitlines() if errors.search(line)]


def luminance(color):
    red, green, blue = (int(part) for part in re.findall(r"\d+", color)[:3])
    return (0.2126 * red + 0.7152 * green + 0.0722 * blue) / 255


@pytest.mark.long
@pytest.mark.timeout(1800)
@pytest.mark.skipif(CHROMIUM is None, reason="needs chromium (Debian's package of that name)")
@pytest.mark.parametrize("dark", [False, True])
def test_pages_fit_the_window_of_a_browser(site, tmp_path, dark):
    shown = [(page, width) for page in LOOKED_AT for width in (1200, 400)]
    frames = [((site / page).as_uri(), width) for page, width in shown]
    probe = tmp_path / "probe.html"
    probe.write_text(_PROBE.format(frames=json.dumps(frames)))
    text, errors = browsed(probe.as_uri(), tmp_path, dark)
    assert errors == []
    found = json.loads(html.unescape(re.search(r'<pre id="found">(.*?)</pre>', text, re.DOTALL)[1]))
    assert len(found) == len(shown)
    for (page, width), seen in zip(shown, found, strict=True):
        assert seen["width"] <= width, page
        assert abs(luminance(seen["ink"]) - luminance(seen["paper"])) > 0.6
        assert (luminance(seen["paper"]) < 0.3) == dark
        assert all(image > 10 for image in seen["images"])
        assert [request for request in seen["requests"] if not request.startswith("file:")] == []


@pytest.mark.long
@pytest.mark.timeout(1800)
@pytest.mark.skipif(CHROMIUM is None, reason="needs chromium (Debian's package of that name)")
def test_search_works_offline(site, tmp_path):
    text, errors = browsed(f"{(site / 'search.html').as_uri()}?q=bandwidth", tmp_path)
    assert errors == []
    results = re.search(r'<ul[^>]* class="search"[^>]*>(.*?)</ul>', text, re.DOTALL)
    assert results
    assert "WeightedBlurringMeanShift" in results[1]
