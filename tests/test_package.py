"Wheel and source distribution: small, whole, and what they install works outside the repository."
import json
import os
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

from vit_plasticity import __version__
from vit_plasticity.results import read_runs

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    "The wheel, made of the source distribution, and this, made of the files that git knows."
    folder = tmp_path_factory.mktemp("package")
    files = subprocess.run(["git", "ls-files", "-co", "--exclude-standard"], cwd=ROOT, capture_output=True, text=True, check=True).stdout.splitlines()
    for name in filter(lambda name: (ROOT/name).is_file(), files):
        (folder/"source"/name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT/name, folder/"source"/name)
    done = subprocess.run([sys.executable, "-m", "build", "--no-isolation", "--outdir", str(folder/"dist"), str(folder/"source")], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    return next((folder/"dist").glob("*.whl")), next((folder/"dist").glob("*.tar.gz"))


def test_whole_and_small(built):
    wheel, source = built
    assert wheel.name.startswith(f"vit_plasticity-{__version__}-") and max(wheel.stat().st_size, source.stat().st_size) < 20e6
    held = zipfile.ZipFile(wheel).namelist()
    manifest = json.loads((ROOT/"vit_plasticity/assets/manifest.json").read_text())
    assets = {entry["file"] for entry in (manifest["data"] | manifest["weights"]).values()} | {"manifest.json", "LICENCES.md", "typefaces.tsv"}
    assert {path.relative_to(ROOT).as_posix() for path in (ROOT/"vit_plasticity").rglob("*.py")} | {f"vit_plasticity/assets/{name}" for name in assets} <= set(held)
    assert not [name for name in held if not name.startswith(("vit_plasticity/", f"vit_plasticity-{__version__}.dist-info/"))]
    named = {name.partition("/")[2] for name in tarfile.open(source).getnames()}
    assert {"settings.ini", "LICENSE", "nbs/plasticity.ipynb", "nbs/api/05_plasticity.ipynb", "config/mini.yaml", "outputs/mini_replication/finetune.parquet"} <= named


def install(built, tmp_path):
    "Put the wheel into `lib`, beside a working folder."
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index", "--target", tmp_path/"lib", built[0]]
    subprocess.run(command, check=True)
    (tmp_path/"work").mkdir()


def run_elsewhere(tmp_path, *command):
    environment = os.environ | {"PYTHONPATH": str(tmp_path/"lib")}
    return subprocess.run([sys.executable, *map(str, command)], cwd=tmp_path/"work", env=environment, capture_output=True, text=True)


def test_installed_it_works_elsewhere(built, tmp_path):
    "With the requirements of this environment, from a folder of its own: the package, its command, and the advice."
    install(built, tmp_path)
    where = run_elsewhere(tmp_path, "-c", "import vit_plasticity; from vit_plasticity.core import clone_root; print(vit_plasticity.__version__, vit_plasticity.__file__, clone_root())")
    assert where.stdout.split() == [__version__, str(tmp_path/"lib/vit_plasticity/__init__.py"), "None"], where
    shutil.copy(ROOT/"nbs/plasticity.ipynb", tmp_path/"work")
    done = run_elsewhere(tmp_path, "-m", "papermill", "plasticity.ipynb", "out.ipynb", "-p", "n_pairs", 4)
    assert done.returncode == 0, done.stderr
    assert "**What to try.**" in (tmp_path/"work/out.ipynb").read_text()
    assert read_runs("plasticity", "rates", tmp_path/"work/outputs").pair.nunique() == 4


def test_demo(built, tmp_path):
    "B: scripts/demo.py, with the package as it is installed, in a folder of its own."
    install(built, tmp_path)
    done = run_elsewhere(tmp_path, ROOT/"scripts/demo.py", "ln1")
    assert done.returncode == 0, done.stderr
    assert "finetuning ln1: 768 parameters of the component" in done.stdout and "Figure: outputs/demo.png" in done.stdout
    assert (tmp_path/"work/outputs/demo.png").stat().st_size > 10_000
