"Everything that notebooks, scripts, benchmarks and tests import is there: a name that has moved fails here, not in a reader's hands."
import ast
import importlib
import json
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
NOTEBOOKS = [path for path in sorted((ROOT/"nbs").rglob("*.ipynb")) if ".ipynb_checkpoints" not in path.parts]
SCRIPTS = [path for folder in ("benchmarks", "scripts", "tests") for path in sorted((ROOT/folder).glob("*.py"))]


def sources(path):
    "Each code cell of a notebook, without what is not Python; or a whole script."
    text = path.read_text(encoding="utf-8")
    if path.suffix != ".ipynb": return [text]
    cells = ["".join(cell["source"]) for cell in json.loads(text)["cells"] if cell["cell_type"] == "code"]
    return ["\n".join("" if line.startswith(("%", "!")) else line for line in cell.splitlines()) for cell in cells]


def imported(path):
    "Modules, and (module, name), wherever they stand: also within functions."
    for node in (node for source in sources(path) for node in ast.walk(ast.parse(source))):
        if isinstance(node, ast.Import): yield from ((alias.name, None) for alias in node.names)
        if isinstance(node, ast.ImportFrom): yield from ((node.module, alias.name) for alias in node.names)


def missing(module, name):
    "Why it can't be imported; None: it can."
    try: found = importlib.import_module(module)
    except ImportError as error: return f"{module}: {error}"
    if name in (None, "*") or hasattr(found, name): return None
    try: importlib.import_module(f"{module}.{name}")
    except ImportError: return f"{module} has no {name}"


@pytest.mark.parametrize("path", [*NOTEBOOKS, *SCRIPTS], ids=lambda path: path.relative_to(ROOT).as_posix())
def test_imports(path, monkeypatch):
    monkeypatch.setattr(sys, "path", [str(path.parent), *sys.path])
    assert not [problem for module, name in imported(path) if (problem := missing(module, name))]


def test_a_missing_name_is_seen():
    "B: notebooks and benchmarks imported PROTOCOLS from where it no longer was."
    assert missing("vit_plasticity.finetune", "PROTOCOL") and missing("vit_plasticity.nothing", None)
    assert not missing("vit_plasticity.config", "PROTOCOLS") and not missing("vit_plasticity", "finetune")
