"""C7: a rule stays as it was written down before its study's runs; later changes stand below it, with their dates."""
import hashlib
import json
import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
START = "**Written down before the runs.**"
# notebook: the commit that first held the text, its date, and the SHA-256 of the text
FROZEN = {
    "rescaling": (
        "72c487234ad237c31f08d370f3db4f812bedc0be",
        "2026-11-30 11:56",
        "6a93e9270e49abd62e66a54c92771029c1a698a8babad780f9b7d557d6b56244",
    ),
    "robustness": (
        "e84c7bae31053fff11001f8a6847eb996c514dbe",
        "2026-11-30 17:33",
        "96d4449faab88bb59788e6e9c171a8a4ab9974cfacf6bff711c7254865048263",
    ),
}


def rule(notebook: str) -> str:
    "The text from START to the amendments, to what was found, or to the cell's end."
    cells = ["".join(cell["source"]) for cell in json.loads(notebook)["cells"] if cell["cell_type"] == "markdown"]
    [cell] = [cell for cell in cells if START in cell]
    return re.search(re.escape(START) + r".*?(?=\n\n\*\*(?:Amended|Found)|\Z)", cell, re.S).group(0)


@pytest.mark.parametrize("name", FROZEN)
def test_rules_are_frozen(name):
    text = (ROOT/f"nbs/{name}.ipynb").read_text(encoding="utf-8")
    commit, date, digest = FROZEN[name]
    assert hashlib.sha256(rule(text).encode()).hexdigest() == digest, f"{name}: amend below the rule, with the date"
    first = subprocess.run(["git", "show", f"{commit}:nbs/{name}.ipynb"], cwd=ROOT, capture_output=True, text=True)
    # a clone without its history has the digest alone
    if first.returncode == 0:
        assert rule(first.stdout) == rule(text)
        told = ["git", "show", "-s", "--format=%ad", "--date=format:%Y-%m-%d %H:%M", commit]
        assert subprocess.run(told, cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip() == date


def test_every_rule_is_frozen():
    "Whoever writes a rule down freezes it here."
    texts = {path.stem: path.read_text(encoding="utf-8") for path in (ROOT/"nbs").glob("*.ipynb")}
    elsewhere = {"matched_budget", "mechanism", "prediction"}
    assert {name for name, text in texts.items() if START in text} - elsewhere == set(FROZEN) - elsewhere


@pytest.mark.parametrize("change", ["edited", "dropped"])
def test_a_changed_rule_is_noticed(change):
    text = (ROOT/"nbs/rescaling.ipynb").read_text(encoding="utf-8")
    words = {"edited": ("about one point", "about two points"), "dropped": (START, "**Rule.**")}[change]
    changed = text.replace(*words)
    assert changed != text
    if change == "edited":
        assert hashlib.sha256(rule(changed).encode()).hexdigest() != FROZEN["rescaling"][2]
    else:
        with pytest.raises(ValueError): rule(changed)
