"Rules written down before a study's runs stay as they were, and what a notebook says it found is what the rows say."
import hashlib
import json
import subprocess
from pathlib import Path

import pandas as pd
import pytest

ROOT = Path(__file__).resolve().parent.parent
BEGINS = "**Written down before the runs.**"
# notebook -> the last commit that wrote the text before the first run; when; the text's SHA-256
RULES = {
    "rescaling": (
        "72c487234ad237c31f08d370f3db4f812bedc0be", "2026-11-30T11:56:15+00:00",
        "6a93e9270e49abd62e66a54c92771029c1a698a8babad780f9b7d557d6b56244"),
    "robustness": (
        "e84c7bae31053fff11001f8a6847eb996c514dbe", "2026-11-30T17:33:43+00:00",
        "96d4449faab88bb59788e6e9c171a8a4ab9974cfacf6bff711c7254865048263"),
}
# notebook -> its studies in outputs/
STUDIES = {"rescaling": ("rescaling", "families"), "robustness": ("smoothing", "courses")}


def texts(notebook):
    cells = json.loads((ROOT/f"nbs/{notebook}.ipynb").read_text(encoding="utf-8"))["cells"]
    return ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "markdown"]


def study(name):
    return pd.read_parquet(ROOT/f"outputs/{name}/vit_mini/rows.parquet")


@pytest.mark.parametrize("notebook", RULES)
def test_rule_is_frozen(notebook):
    "C7: the text is a cell of its own, as it was before the first run; later changes stand below it, dated."
    places = [i for i, text in enumerate(texts(notebook)) if BEGINS in text]
    assert len(places) == 1
    rule, after = texts(notebook)[places[0]:places[0] + 2]
    commit, _, digest = RULES[notebook]
    seen = hashlib.sha256(rule.encode()).hexdigest()
    assert seen == digest, "a rule is not edited: say below it what changed, and when"
    assert after.startswith("**Amended.**") and commit[:7] in after


@pytest.mark.parametrize("notebook", RULES)
def test_rule_is_that_of_its_commit(notebook):
    commit, when, _ = RULES[notebook]
    rule = next(text for text in texts(notebook) if BEGINS in text)
    if subprocess.run(["git", "cat-file", "-e", commit], cwd=ROOT, capture_output=True).returncode:
        pytest.skip("the history is not here")
    def git(*arguments):
        return subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    cells = json.loads(git("show", f"{commit}:nbs/{notebook}.ipynb"))["cells"]
    written = [text for text in ("".join(cell["source"]) for cell in cells) if BEGINS in text]
    assert len(written) == 1 and written[0].endswith(rule)
    assert pd.Timestamp(git("log", "-1", "--format=%cI", commit).strip()) == pd.Timestamp(when)


@pytest.mark.parametrize("notebook", RULES)
def test_rule_is_older_than_the_runs(notebook):
    for name in STUDIES[notebook]:
        rows = study(name)
        # The replication's accuracies were there before, as the rule of `prediction` says.
        if name == "prediction": rows = rows[(rows.part != "replication") | (rows.kind != "accuracy")]
        assert pd.to_datetime(rows.started, utc=True).min() > pd.Timestamp(RULES[notebook][1])
