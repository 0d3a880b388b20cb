"Hooks of mkdocs.yml: the notebooks of nbs/ and the project's other texts as pages that need no script, style or font from elsewhere."
import ast
import json
import logging
import re
from functools import cache
from html import escape, unescape
from importlib.util import find_spec
from pathlib import Path
from posixpath import dirname, join, normpath

from math_core import LatexError, LatexToMathML
from mkdocs.structure.files import File
from mkdocs.structure.toc import get_toc
from mkdocs.utils import get_relative_url
from nbconvert.filters.markdown_mistune import IPythonRenderer, MarkdownWithMath
from pygments import highlight
from pygments.formatters import HtmlFormatter
from pygments.lexers import get_lexer_by_name

ROOT = Path(__file__).resolve().parent.parent
LIBRARY = sorted((ROOT/"nbs/api").rglob("*.ipynb"))
SOURCES = {path.relative_to(ROOT).as_posix(): path.relative_to(ROOT/"nbs").with_suffix(".md").as_posix() for path in (*(ROOT/"nbs").glob("*.ipynb"), *LIBRARY)}
SOURCES |= {"nbs/api": "api/index.md", "CONTRIBUTING.md": "contributing.md", "CHANGELOG.md": "changelog.md", "TROUBLESHOOTING.md": "troubleshooting.md", "profiles/README.md": "cluster.md", "data/README.md": "data.md", "vit_plasticity/assets/LICENCES.md": "licences.md"} # file -> page
ASSETS = {"assets/docs.css": ROOT/"scripts/docs.css", "assets/math.ttf": Path(find_spec("ziamath").origin).parent/"fonts/STIXTwoMath-Regular.ttf"}
log = logging.getLogger("mkdocs.hooks.docs") # a warning fails a strict build
to_mathml = LatexToMathML(annotation=True)


def read_cells(source: str) -> list[dict]: # of a notebook; another text is one cell of Markdown
    if source == "nbs/api": return [{"cell_type": "markdown", "source": library_overview()}]
    text = (ROOT/source).read_text(encoding="utf-8")
    return json.loads(text)["cells"] if source.endswith(".ipynb") else [{"cell_type": "markdown", "source": text}]


def module_name(source: str) -> str: # of a library notebook: models.maps, or of a folder's own names models
    (name,) = ["".join(cell["source"]).split()[-1] for cell in read_cells(source) if "".join(cell["source"]).startswith("#| default_exp")]
    return name.removesuffix(".__init__")


def exported(code: str) -> list: # the public functions and classes of a library notebook's cell
    if not code.startswith("#| export"): return []
    return [node for node in ast.parse(code).body if isinstance(node, (ast.FunctionDef, ast.ClassDef)) and not node.name.startswith("_")]


def library_overview() -> str:
    "Every module with its purpose, every exported name with its docstring."
    parts = ["# Library", "Each module is a notebook. A parameter's meaning, shape and unit stand beside it, the source of a formula in the docstring; the cells after a definition test it, and show its errors by `test_fail`."]
    for path in LIBRARY:
        source = path.relative_to(ROOT).as_posix()
        page, module = path.relative_to(ROOT/"nbs").as_posix(), module_name(source)
        (head, *rest) = ("".join(cell["source"]) for cell in read_cells(source))
        title, purpose = re.fullmatch(r"# (.+?)\n+> (.+)", head.strip(), re.S).groups()
        names = [(node.name, " ".join((ast.get_docstring(node) or "").split()).replace("|", r"\|")) for code in rest for node in exported(code)]
        parts += [f"## {title}", f"[`vit_plasticity.{module}`]({page}). {purpose}"]
        rows = [f"| [`{name}`]({page}#{module}.{name}) | {text} |" for name, text in names]
        if rows: parts += ["\n".join(["| Name | What it is |", "|---|---|", *rows])]
    return "\n\n".join(parts)


def table(rows: str) -> str: # that the keyboard can scroll
    return f'<div class="table" tabindex="0" role="group" aria-label="Table"><table class="rows">{rows.replace("<th></th>", "<td></td>").replace(" ± ", "&nbsp;±&nbsp;")}</table></div>'


class Renderer(IPythonRenderer):
    "Markdown as JupyterLab reads it, with its ids of headings; mathematics as MathML; links to files that are not on the site lead to the repository, if it has an address."

    def __init__(self, source: str, page, config, files):
        super().__init__(escape=False)
        self.source, self.page, self.files, self.repository, self.headings = source, page, files, config.repo_url, []

    def markdown(self, text: str) -> str: # no line break between a formula and what touches it
        return re.sub(r"(?:[^\s<>]*(?><math>.*?</math>))+[^\s<>]+|[^\s<>]+(?:(?><math>.*?</math>))+", r'<span class="joined">\g<0></span>', MarkdownWithMath(self).render(text), flags=re.S)

    def heading(self, text, level, **attributes):
        name = unescape(re.sub(r"<annotation.*?</annotation>|<[^>]+>", "", text)).replace(" ", "-")
        if name in {heading["id"] for heading in self.headings}: name += f"-{len(self.headings)}"
        self.headings.append({"level": level, "id": name, "name": text, "children": []})
        return f'<h{level} id="{escape(name)}">{text}<a class="headerlink" href="#{escape(name)}" title="Link to this section">¶</a></h{level}>\n'

    def link(self, text, url, title=None):
        if re.match(r"https?:|mailto:|#", url): return super().link(text, url, title)
        name, _, anchor = url.partition("#")
        target = normpath(join(dirname(self.source), name))
        if target in SOURCES: return super().link(text, get_relative_url(self.files.get_file_from_path(SOURCES[target]).url, self.page.url) + ("#" + anchor if anchor else ""), title)
        if not (ROOT/target).exists(): log.warning("%s: a link to %s, which is not there", self.source, url)
        return super().link(text, f"{self.repository.rstrip('/')}/{'tree' if (ROOT/target).is_dir() else 'blob'}/main/{target}", title) if self.repository else text

    def math(self, tex: str, block: bool) -> str:
        try: formula = to_mathml.convert_with_local_state(tex.strip(), displaystyle=block)
        except LatexError as error:
            log.warning("%s: TeX that can't be shown, %s: %s", self.source, tex, error)
            return f"<code>{escape(tex)}</code>"
        if block: return formula.replace("<math ", '<math tabindex="0" ', 1)
        return f'<span class="long">{formula}</span>' if len(tex) > 40 else formula

    def inline_math(self, body): return self.math(body, False)
    def block_math(self, body): return self.math(body, True)
    def table(self, text): return table(text)
    def block_code(self, code, info=None): return highlight(code, get_lexer_by_name((info or "text").split()[0]), HtmlFormatter(wrapcode=True))


@cache
def plots() -> dict[str, str]: # of the library: name -> docstring
    nodes = (node for path in (ROOT/"vit_plasticity").rglob("*.py") for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))))
    return {node.name: ast.get_docstring(node) or "" for node in nodes if isinstance(node, ast.FunctionDef) and node.name.startswith("plot_")}


def describe(code: str, before: str) -> str: # a figure: the docstring of what plots it, and the first sentence of the text before
    sentence = re.search(r"<p>(.{15,}?[.?])(?=\s+[A-Z<(]|</p>)", before, re.S)
    text = " ".join([*(plots().get(name, "") for name in re.findall(r"\bplot_\w+", code)), sentence[1] if sentence else ""])
    return escape(" ".join(unescape(re.sub(r"<annotation.*?</annotation>|<[^>]+>", "", text)).split()))


def show_output(output: dict, alt: str, renderer: Renderer) -> str:
    data = {kind: "".join(text) for kind, text in (output.get("data") or {"text/plain": output.get("text", "")}).items()}
    if "image/png" in data: return f'<img src="data:image/png;base64,{data["image/png"].strip()}" alt="{alt}">'
    if "text/markdown" in data: return renderer.markdown(data["text/markdown"])
    if "text/html" not in data: return f'<pre tabindex="0">{escape(data["text/plain"])}</pre>'
    return "".join(map(table, re.findall(r"<table[^>]*>(.*?)</table>", data["text/html"], re.S)))


def show_code(cell: dict, before: str, renderer: Renderer) -> str:
    code = "".join(cell["source"])
    if re.match(r"#\| (hide|default_exp)", code): return ""
    names = [(f"{module_name(renderer.source)}.{node.name}", node.name) for node in exported(code)]
    renderer.headings += [{"level": 4, "id": anchor, "name": f"<code>{name}</code>", "children": []} for anchor, name in names]
    anchors = "".join(f'<a id="{anchor}"></a>' for anchor, _ in names)
    shown = renderer.block_code(re.sub(r"^(#\| \w+.*\n)+", "", code), "python")
    outputs = "".join(show_output(output, describe(code, before), renderer) for output in cell["outputs"])
    return anchors + shown + (f'<div class="output">{outputs}</div>' if outputs else "")


def nested(headings: list[dict]) -> list[dict]:
    roots, path = [], []
    for heading in headings:
        while path and path[-1]["level"] >= heading["level"]: path.pop()
        (path[-1]["children"] if path else roots).append(heading)
        path.append(heading)
    return roots


def on_files(files, config):
    for file in [file for file in files if file.src_uri.endswith(".ipynb")]: files.remove(file)
    for name in SOURCES.values(): files.append(File.generated(config, name, content=""))
    for name, path in ASSETS.items(): files.append(File.generated(config, name, abs_src_path=str(path)))


def on_page_content(html, page, config, files):
    source = next(source for source, name in SOURCES.items() if name == page.file.src_uri)
    renderer, parts, before = Renderer(source, page, config, files), [], ""
    for cell in read_cells(source):
        parts.append(renderer.markdown("".join(cell["source"])) if cell["cell_type"] == "markdown" else show_code(cell, before, renderer))
        if cell["cell_type"] == "markdown": before = parts[-1]
    page.toc = get_toc(nested(renderer.headings))
    if len(renderer.headings) == 1: page.meta["hide"] = ["toc"]
    return "\n".join(parts)


def on_post_page(output, page, config): return output.replace('role="dialog"', 'role="dialog" aria-label="Search"')
