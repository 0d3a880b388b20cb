"The documentation site: it builds without a warning, and every page is walked, as text and in a browser where there is one."
import functools
import http.server
import importlib.util
import json
import logging
import os
import re
import subprocess
import sys
import threading
from html.parser import HTMLParser
from pathlib import Path
from types import SimpleNamespace
from urllib.parse import unquote, urljoin, urlsplit

import pytest

ROOT = Path(__file__).resolve().parent.parent
NOTEBOOKS = [*sorted((ROOT/"nbs").glob("*.ipynb")), *sorted((ROOT/"nbs/api").rglob("*.ipynb"))]
VOID = {"area", "base", "br", "col", "embed", "hr", "img", "input", "link", "meta", "source", "track", "wbr"}


class Page(HTMLParser):
    "What a page refers to, its anchors, its text outside mathematics and code."

    def __init__(self, text: str):
        super().__init__()
        self.open, self.ids, self.links, self.loads, self.images, self.text, self.formulas = [], [], [], [], [], "", 0
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        a = dict(attributes)
        if tag not in VOID: self.open.append(tag)
        if "id" in a: self.ids.append(a["id"])
        if tag == "a" and "href" in a: self.links.append(a["href"])
        if tag == "link" and a.get("rel") not in ("prev", "next", "canonical"): self.loads.append(a["href"])
        if tag in ("img", "script", "iframe", "source") and "src" in a: self.loads.append(a["src"])
        if tag == "img": self.images.append(a)
        self.formulas += tag == "math"

    def handle_endtag(self, tag):
        if tag in self.open: del self.open[len(self.open) - 1 - self.open[::-1].index(tag):]

    def handle_data(self, data):
        if not {"math", "code", "pre", "script", "style"} & set(self.open): self.text += data


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    "Its folder."
    folder = tmp_path_factory.mktemp("site")
    done = subprocess.run([sys.executable, "-m", "mkdocs", "build", "--strict", "-d", str(folder)], cwd=ROOT, capture_output=True, text=True, env=os.environ | {"NO_MKDOCS_2_WARNING": "1"})
    assert done.returncode == 0 and not re.search("warning|error", done.stderr, re.I), done.stderr
    return folder


@pytest.fixture(scope="module")
def pages(site): return {path.relative_to(site).as_posix(): Page(path.read_text(encoding="utf-8")) for path in site.rglob("*.html")}


def test_every_notebook_has_a_page(pages):
    assert {path.relative_to(ROOT/"nbs").with_suffix(".html").as_posix() for path in NOTEBOOKS} | {"api/index.html", "contributing.html", "changelog.html", "cluster.html", "troubleshooting.html", "data.html", "licences.html", "404.html"} == set(pages)


def test_links_and_images_resolve(site, pages):
    for name, page in pages.items():
        for target in {*page.links, *page.loads}:
            url = urlsplit(urljoin(f"http://site/{name}", target))
            if url.netloc != "site" or url.scheme == "data": continue
            path = unquote(url.path).lstrip("/") or "index.html"
            assert (site/path).is_file() or (name == "404.html" and path == "."), f"{name}: {target}"
            if url.fragment and path in pages: assert unquote(url.fragment) in pages[path].ids, f"{name}: {target}"


def test_nothing_is_loaded_from_elsewhere(site, pages):
    for name, page in pages.items():
        assert not [target for target in page.loads if re.match("(?!data:)([a-z]+:)?//", target)], name
    for path in site.rglob("*.css"): assert not re.search(r"(url\(|@import)\s*[\"']?(https?:)?//", path.read_text(encoding="utf-8")), path


def test_images_are_described(pages):
    for name, page in pages.items():
        assert all(len(image.get("alt") or "") > 20 for image in page.images), f"{name}: {[image.get('alt') for image in page.images]}"
    figures = sum("image/png" in output.get("data", {}) for path in NOTEBOOKS for cell in json.loads(path.read_text())["cells"] for output in cell.get("outputs", []))
    assert sum(len(page.images) for page in pages.values()) == figures + 1 # the index's


def test_mathematics_is_rendered(pages):
    "As many formulas as the notebooks hold, and no TeX in the text."
    for path in NOTEBOOKS:
        text = "\n\n".join("".join(cell["source"]) for cell in json.loads(path.read_text())["cells"] if cell["cell_type"] == "markdown")
        text += "".join("".join(output.get("data", {}).get("text/markdown", "")) for cell in json.loads(path.read_text())["cells"] for output in cell.get("outputs", []))
        dollars = re.sub(r"```.*?```|`[^`\n]*`", "", text, flags=re.S).replace("$$", "$").count("$")
        assert 2 * pages[path.relative_to(ROOT/"nbs").with_suffix(".html").as_posix()].formulas == dollars, path.name
    for name, page in pages.items(): assert not (found := re.search(r"\$[^\s$][^$]*\$|\\[(\[]|\\[a-zA-Z]+", page.text)), f"{name}: {found[0]}"
    assert sum(page.formulas for page in pages.values()) > 100


def test_anchors_are_jupyterlabs(pages):
    "A heading has the same address on the site and in JupyterLab: its text, with hyphens for spaces; no two elements of a page share one."
    assert "Intervals-of-the-true-constants" in pages["api/04_bounds.html"].ids
    assert "bounds.layernorm_bound" in pages["api/04_bounds.html"].ids and "04_bounds.html#bounds.layernorm_bound" in pages["api/index.html"].links
    for name, page in pages.items():
        assert len(page.ids) == len(set(page.ids)), f"{name}: {[name for name in page.ids if page.ids.count(name) > 1]}"


def test_bad_links_and_tex_are_told(caplog):
    spec = importlib.util.spec_from_file_location("docs", ROOT/"scripts/docs.py")
    spec.loader.exec_module(docs := importlib.util.module_from_spec(spec))
    render = lambda text, address=None: docs.Renderer("nbs/index.ipynb", SimpleNamespace(url="index.html"), SimpleNamespace(repo_url=address), None).markdown(text)
    with caplog.at_level(logging.WARNING):
        assert render("[tests](../tests)") == "<p>tests</p>\n"
        assert render("[tests](../tests)", "https://host/a/b/") == '<p><a href="https://host/a/b/tree/main/tests">tests</a></p>\n'
        assert render("[c](../CITATION.cff)", "https://host/a/b") == '<p><a href="https://host/a/b/blob/main/CITATION.cff">c</a></p>\n'
        assert "<mi>x</mi>" in render("$x$") and not caplog.records
        render("[gone](../gone.md) and $\\frac{1$")
    assert len(caplog.records) == 2 and "gone.md" in caplog.text and "frac{1" in caplog.text


WALK = r"""
const {chromium} = require('playwright-core'), fs = require('fs');
(async () => {
  const [executable, root, ...pages] = process.argv.slice(2), problems = [], axe = fs.readFileSync(require.resolve('axe-core/axe.min.js'), 'utf8');
  const browser = await chromium.launch({executablePath: executable, args: ['--no-sandbox']});
  const page = await browser.newPage({viewport: {width: 400, height: 900}});
  let name;
  const tell = text => problems.push(`${name}: ${text}`);
  page.on('console', message => ['error', 'warning'].includes(message.type()) && tell(message.text()));
  page.on('pageerror', error => tell(error));
  page.on('response', response => response.status() >= 400 && tell('not found: ' + response.url()));
  page.on('request', request => request.url().startsWith(root) || request.url().startsWith('data:') || tell('from elsewhere: ' + request.url()));
  for (name of pages) {
    await page.goto(root + name, {waitUntil: 'load'});
    (await page.evaluate(async () => {
      await document.fonts.ready;
      const small = (element, size) => element.getBoundingClientRect().width < size || element.getBoundingClientRect().height < size;
      const flat = [...document.querySelectorAll('math')].filter(formula => small(formula, 2));
      const empty = [...document.images].filter(image => image.naturalWidth < 100 || small(image, 100));
      const font = !document.querySelector('math') || [...document.fonts].some(font => font.family.includes('STIX') && font.status == 'loaded');
      const wide = document.documentElement.scrollWidth - innerWidth;
      return [...(wide > 0 ? [`${wide} pixels wider than the window`] : []), ...flat.map(formula => 'a formula without a size: ' + formula.textContent), ...empty.map(image => 'a figure without a size: ' + image.alt), ...(font ? [] : ['the font of formulas is missing'])];
    })).forEach(tell);
  }
  for (const scheme of ['light', 'dark']) { // contrast, names, what the keyboard reaches; then the keyboard itself
    const page = await browser.newPage({viewport: {width: 1280, height: 900}, colorScheme: scheme});
    for (const name of ['index.html', 'bounds.html', 'api/00_core.html']) {
      await page.goto(root + name);
      await page.evaluate(axe);
      const found = await page.evaluate(() => window.axe.run(document, {resultTypes: ['violations']}));
      for (const rule of found.violations) if (['serious', 'critical'].includes(rule.impact)) problems.push(`${name}, ${scheme}: ${rule.id}: ${rule.nodes[0].html}`);
    }
    await page.goto(root + 'index.html');
    await page.keyboard.press('Tab');
    if (!await page.evaluate(() => document.activeElement.matches('.md-skip'))) problems.push('the first stop is not the link to the content');
    const before = await page.evaluate(() => document.body.dataset.mdColorScheme);
    await page.locator('label.md-header__button[for^="__palette"]:visible').focus();
    await page.keyboard.press('Enter');
    if (await page.evaluate(() => document.body.dataset.mdColorScheme) == before) problems.push('Enter does not change the colours');
    await page.keyboard.press('/');
    await page.keyboard.type('layernorm_bound');
    await page.locator('.md-search-result__link[href*="04_bounds"]').first().waitFor({timeout: 20000}).catch(() => problems.push('search does not find layernorm_bound'));
    await page.close();
  }
  await browser.close();
  console.log(JSON.stringify(problems));
})();
"""


class Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_): pass


def test_browser_walk(site, pages, browser):
    chromium, folder = browser
    (folder/"walk.js").write_text(WALK)
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Quiet, directory=str(site))) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        done = subprocess.run(["node", "walk.js", chromium, f"http://127.0.0.1:{server.server_address[1]}/", *sorted(pages)], cwd=folder, capture_output=True, text=True, timeout=600)
        server.shutdown()
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == []
