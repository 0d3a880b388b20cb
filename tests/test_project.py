"What holds the project together: notebooks and modules agree, imports point one way, the package stands alone."
import ast
import json
import re
import shutil
import subprocess
import sys
from configparser import ConfigParser
from pathlib import Path

import nbformat
import pandas as pd
import pytest

from vit_plasticity import plasticity, prediction

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT/"vit_plasticity"
# such as core, models (a folder) and models.maps
MODULES = sorted(".".join(path.relative_to(PACKAGE).with_suffix("").parts) for path in PACKAGE.rglob("[!_]*.py"))
MODULES += [path.parent.name for path in PACKAGE.glob("*/__init__.py")]
LIBRARY = sorted((ROOT/"nbs/api").rglob("*.ipynb"))
EXPERIMENTS = [path for path in sorted((ROOT/"nbs").glob("*.ipynb")) if path.stem != "index"]
SETTINGS = ConfigParser(delimiters="=")
SETTINGS.read(ROOT/"settings.ini")
REQUIREMENTS = SETTINGS["DEFAULT"]["requirements"].split()
DEVELOPMENT = SETTINGS["DEFAULT"]["dev_requirements"].split()


def code_cells(path):
    return [("".join(cell["source"]), cell) for cell in json.loads(path.read_text(encoding="utf-8"))["cells"] if cell["cell_type"] == "code"]


@pytest.fixture(scope="module")
def copy(tmp_path_factory):
    "A copy of the project in which nbdev has exported and cleaned everything."
    folder = tmp_path_factory.mktemp("project")
    for name in ("settings.ini", "setup.py", "pyproject.toml", "README.md"): shutil.copy(ROOT/name, folder)
    for name in ("nbs", "vit_plasticity"): shutil.copytree(ROOT/name, folder/name, ignore=shutil.ignore_patterns("__pycache__", ".ipynb_checkpoints"))
    for path in (folder/"vit_plasticity").rglob("*.py"):
        if path.relative_to(folder/"vit_plasticity").as_posix() not in ("__init__.py", "_modidx.py"): path.unlink()
    for command in ("nbdev_export", "nbdev_clean"): subprocess.run([command], cwd=folder, check=True)
    return folder


def test_modules_import_alone():
    "Each without any other loaded before, in a process in which no development requirement can be imported."
    blocked = {re.split("[=<>]", name)[0].replace("-", "_") for name in DEVELOPMENT} | {"IPython"}
    # What takes long is loaded once; each module then gets a copy of the process.
    code = f"""
import os, sys, traceback
for name in {sorted(blocked)!r}: sys.modules[name] = None
import pandas, timm, torch
failed = []
for module in {MODULES!r}:
    child = os.fork()
    if child == 0:
        try: __import__("vit_plasticity." + module)
        except BaseException:
            traceback.print_exc()
            os._exit(1)
        os._exit(0)
    if os.waitpid(child, 0)[1]: failed.append(module)
sys.exit(" ".join(failed) or 0)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd="/")
    assert done.returncode == 0, done.stderr


def test_import_is_light():
    code = "import sys, vit_plasticity; assert not {'torch', 'timm', 'pandas', 'numpy', 'matplotlib'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True, cwd="/")


def test_modules_equal_notebooks(copy):
    def modules(folder): return {path.relative_to(folder).as_posix(): path.read_text() for path in (folder/"vit_plasticity").rglob("*.py")}
    exported, here = modules(copy), modules(ROOT)
    assert exported.keys() == here.keys()
    for name, text in exported.items(): assert text == here[name], f"{name} is not what its notebook exports: run nbdev_export"


def test_notebooks_are_clean(copy):
    for path in (*LIBRARY, *EXPERIMENTS, ROOT/"nbs/index.ipynb"):
        assert path.read_text() == (copy/path.relative_to(ROOT)).read_text(), f"{path.name} is not clean: run nbdev_clean"


def test_notebooks_are_valid():
    for path in (*LIBRARY, *EXPERIMENTS, ROOT/"nbs/index.ipynb"): nbformat.validate(nbformat.read(path, as_version=4))


def test_imports_point_one_way():
    "From lower numbers: first of the folders, then of the notebooks in one."
    numbers, imports = {}, {}
    for path in LIBRARY:
        exported = "\n".join(source for source, _ in code_cells(path) if source.startswith("#| export"))
        (module,) = [source.split()[-1] for source, _ in code_cells(path) if source.startswith("#| default_exp")]
        module = module.removesuffix(".__init__")
        numbers[module] = [int(part[:2]) for part in path.relative_to(ROOT/"nbs/api").parts]
        imports[module] = [node.module for node in ast.walk(ast.parse(exported)) if isinstance(node, ast.ImportFrom)]
    assert sorted(numbers) == sorted(MODULES) and len(numbers) == len(LIBRARY)
    seen = [(module, name.removeprefix("vit_plasticity.")) for module, names in imports.items() for name in names if name.startswith("vit_plasticity.")]
    assert len(seen) > 50
    for module, imported in seen: assert numbers[imported] < numbers[module], f"{module} imports {imported}"


def test_exported_names_are_defined():
    done = subprocess.run(["ruff", "check", "--select", "F", "--output-format", "concise", "vit_plasticity", "tests", "scripts", "benchmarks"], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize("path", LIBRARY, ids=lambda path: path.stem)
def test_library_notebook(path):
    assert not any(line.startswith("# # ") for cell in json.loads(path.read_text())["cells"] for line in cell["source"])
    for source, cell in code_cells(path):
        assert not cell["outputs"], "library notebooks are kept without outputs"
        assert not (source.startswith("#| export") and source.count("\n") > 60), "an exported cell is too long"


@pytest.mark.parametrize("path", EXPERIMENTS, ids=lambda path: path.stem)
def test_experiment_notebook(path):
    cells = code_cells(path)
    tagged = [i for i, (_, cell) in enumerate(cells) if "parameters" in cell["metadata"].get("tags", [])]
    assert tagged == [0], "exactly the first code cell is tagged `parameters`"
    assert cells[1][0].endswith("check_parameters(In)")
    for source, _ in cells[1:]:
        assert not re.search(r"^\s*(def|class|for|while|if) ", source, re.M), "an experiment notebook calls the library"
    for source, _ in cells[:1]:
        assert all(isinstance(node, ast.AnnAssign) for node in ast.parse(source).body)


def test_environment_agrees_with_settings():
    text = (ROOT/"environment.yml").read_text()
    assert [line.strip().removeprefix("- ") for line in text.split("- pip:\n")[1].splitlines()] == [*REQUIREMENTS, *DEVELOPMENT, "-e ."]
    assert f"python>={SETTINGS['DEFAULT']['min_python']}" in text


def test_everything_is_pinned():
    assert all("==" in requirement for requirement in REQUIREMENTS + DEVELOPMENT)


def test_imports_are_declared():
    "Every package that the library imports is a requirement."
    names = {"PIL": "pillow", "sklearn": "scikit-learn", "yaml": "pyyaml"}
    declared = {re.split("[=<>]", requirement)[0] for requirement in REQUIREMENTS}
    lazily = {"resvg_py", "transformers", "peft", "art", "onnx"} # to rebuild the emoji, a development requirement; GPT-2, LoRA, attacks and a wheel's graph, extras
    for path in PACKAGE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            modules = [alias.name for alias in node.names] if isinstance(node, ast.Import) else [node.module] if isinstance(node, ast.ImportFrom) and node.level == 0 else []
            for top in {module.split(".")[0] for module in modules} - set(sys.stdlib_module_names) - {"vit_plasticity"} - lazily:
                assert names.get(top, top) in declared, f"{path.name} imports {top}"


def test_readme_equals_index():
    subprocess.run([sys.executable, "scripts/readme.py", "--check"], cwd=ROOT, check=True)


def test_readme_links_exist():
    text = (ROOT/"README.md").read_text()
    for target in re.findall(r"\]\((?!https?:|#)([^)]+)\)", text): assert (ROOT/target).exists(), target
    assert "make demo" in text and "make test" in text and (ROOT/".ci/run").read_text().rstrip().endswith("make test")


def test_data_readme_names_every_file():
    text = (ROOT/"data/README.md").read_text()
    shipped, licences = json.loads((ROOT/"vit_plasticity/assets/manifest.json").read_text()), (ROOT/"vit_plasticity/assets/LICENCES.md").read_text()
    assert {entry["file"] for entry in (shipped["data"] | shipped["weights"]).values()} == {path.name for path in (ROOT/"vit_plasticity/assets").iterdir()} - {"manifest.json", "LICENCES.md", "typefaces.tsv"}
    for name, entry in (shipped["data"] | shipped["weights"]).items():
        for fact in (name, entry["file"], entry["licence"], entry["sha256"]): assert fact in text, f"{name}: {fact}"
        assert f"`{entry['file']}`" in licences
    for name, entry in shipped["wheels"].items():
        facts = [entry[key] for key in ("licence", "origin", "wheel", "wheel_sha256", "sha256")]
        for fact in (name, f"{entry['package']}=={entry['version']}", f"{entry['bytes']:,}", *facts): assert fact in text, f"{name}: {fact}"
    for name, entry in shipped["published"].items():
        for fact in (name, entry["licence"], entry["origin"], *(fact for file in entry["files"] for fact in (file["path"], file["url"], file["digest"], f"{file['bytes']:,}"))): assert fact in text, f"{name}: {fact}"


def test_advice_tells_what_the_rows_say():
    "C4: of all three measures of plasticity."
    rows = pd.read_parquet(ROOT/"outputs/prediction/vit_mini/rows.parquet")
    table = prediction.prediction_table(rows).set_index(["part", "criterion"])
    told = []
    for part, choices, digits in (("models", ("always mha", "embedding", "in_situ", "relative", "random"), 1),
                                  ("replication", ("always mha", "in_situ"), 2)):
        for choice in choices:
            numbers = 100 * table.loc[(part, choice), ["regret", "ci_low", "ci_high"]].astype(float)
            told.append("{:.{d}f} [{:.{d}f}, {:.{d}f}]".format(*numbers, d=digits))
    advice = plasticity.HERE.replace(" points of accuracy", "")
    assert re.findall(r"[0-9.]+ \[[0-9.]+, [0-9.]+\]", advice) == told
    chosen = prediction.chosen_components(rows).set_index(["part", "criterion"]).loc["replication"]
    for measure, component in (("embedding", "mha"), ("relative", "mha"), ("in_situ", "fc1")):
        assert chosen[component][measure] == chosen.n[measure] == 11
