"Rules written down before a study's runs stay as they were, and what a notebook says it found is what the rows say."
import hashlib
import json
import re
import subprocess
from pathlib import Path

import pandas as pd
import pytest

from vit_plasticity.causes import budget_curve
from vit_plasticity.mechanism import order_agreement, plasticity_orders
from vit_plasticity.prediction import chosen_components, prediction_table

ROOT = Path(__file__).resolve().parent.parent
BEGINS = "**Written down before the runs.**"
# notebook -> the last commit that wrote the text before the first run; when; the text's SHA-256
RULES = {
    "matched_budget": (
        "4dd2dace4373ffcb713208953950ec631851ae52", "2026-11-30T13:59:05+00:00",
        "76ee90ebf27ab594280d441960b81be9e3091ffb6dc9622cc38a62dbca3d2276"),
    "mechanism": (
        "6b99965da82c72170cbd5ba96c4a2699bca9b733", "2026-11-30T14:24:00+00:00",
        "34338c9c8bf4aa51359f289877deeb400b4442ad5ac1ce776ceed139e34b9667"),
    "prediction": (
        "e2a10bc1d6d8ad58c4f7fd0a83f8e5d80e1123c0", "2026-11-30T14:13:35+00:00",
        "b037b0ac739fd9354b35f1287a0e3191880256ec41b774e6778dc5627ead7fc6"),
    "real": (
        "5e0c574795f99ea172313a75a1f40783bfa9662a", "2026-12-01T13:35:58+00:00",
        "cedb0fb928f8e2dd5b0b5a16e28742d2610e99dd9d77ee87a86df3b91390a49e"),
    "rescaling": (
        "72c487234ad237c31f08d370f3db4f812bedc0be", "2026-11-30T11:56:15+00:00",
        "6a93e9270e49abd62e66a54c92771029c1a698a8babad780f9b7d557d6b56244"),
    "robustness": (
        "e84c7bae31053fff11001f8a6847eb996c514dbe", "2026-11-30T17:33:43+00:00",
        "96d4449faab88bb59788e6e9c171a8a4ab9974cfacf6bff711c7254865048263"),
}
# notebook -> its studies in outputs/
STUDIES = {
    "matched_budget": ("budgets",),
    "mechanism": ("mechanism", "smoothness"),
    "prediction": ("prediction",),
    "real": ("real",),
    "rescaling": ("rescaling", "families"),
    "robustness": ("smoothing", "courses"),
}


def texts(notebook):
    cells = json.loads((ROOT/f"nbs/{notebook}.ipynb").read_text(encoding="utf-8"))["cells"]
    return ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "markdown"]


def study(name):
    file = "runs" if name == "real" else "vit_mini/rows"
    return pd.read_parquet(ROOT/f"outputs/{name}/{file}.parquet")


def fixed(text):
    "A number or an interval as the tables of the notebooks print it."
    return text.replace("-", "−")


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


def table_rows(notebook, marker):
    "The cells of the first table below a line that starts with `marker`, without its head."
    text = next(text for text in texts(notebook) if re.search(rf"^{re.escape(marker)}", text, re.M))
    after = text[text.index(marker):].split("\n\n")
    lines = next(part for part in after if part.startswith("|")).splitlines()
    return [[cell.strip() for cell in line[1:-1].split("|")] for line in lines[2:]]


def interval(row, low="ci_low", high="ci_high", scale=100, digits=1):
    return fixed(f"[{scale * row[low]:.{digits}f}, {scale * row[high]:.{digits}f}]").replace("−0.0]", "0.0]")


def test_budgets_found():
    "C2: the leads and both intervals."
    curve = budget_curve(study("budgets")).set_index("part")
    found = table_rows("matched_budget", "**Found.**")
    assert len(found) == 8
    for numbers, part, lead, welch in found:
        row = curve.loc[part.strip("`")]
        assert int(numbers.replace(",", "")) == row.numbers
        assert lead == fixed(f"{100 * row.lead:.1f} ") + interval(row)
        assert welch == interval(row, "welch_low", "welch_high")


def test_mechanism_found():
    "C2, C3: agreement with the paper's order, and of sharpness with that of plasticity."
    rows = study("mechanism")
    paper = order_agreement(rows).set_index(["measure", "when"])
    plastic = order_agreement(rows, plasticity_orders(study("smoothness"))).set_index(["measure", "when"])
    found = table_rows("mechanism", "**Found.**")
    assert len(found) == 5
    for _, measure, tau, welch, *_ in found:
        row = paper.loc[(measure.strip("`"), "same loss")] if "`" in measure else plastic.loc[("sharpness", measure)]
        assert tau == fixed(f"{row.tau:.2f} ") + interval(row, scale=1, digits=2)
        assert welch == interval(row, "welch_low", "welch_high", 1, 2)
    change = plastic.loc[("sharpness", "change to the same loss")]
    assert (change.verdict, change.welch_verdict) == ("smaller", "undecided")


def test_prediction_found():
    "C4, C5: what each form of plasticity names; its regret, of the siblings over siblings and data sets."
    rows = study("prediction")
    table = prediction_table(rows).set_index(["part", "criterion"])
    chosen = chosen_components(rows).set_index(["part", "criterion"])
    found = table_rows("prediction", "**Found.**")
    assert len(found) == 6
    for choice, names, regret, sibling_names, sibling_regret in found:
        name = re.search("`(.+)`", choice)[1]
        for part, text, digits in (("replication", regret, 2), ("models", sibling_regret, 1)):
            row = table.loc[(part, name)]
            assert text == fixed(f"{100 * row.regret:.{digits}f} ") + interval(row, digits=digits)
        for part, text in (("replication", names), ("models", sibling_names)):
            if (part, name) not in chosen.index: continue
            told = {one.split()[0].lower(): int((one.split() + ["1"])[1]) for one in text.split(", ")}
            assert told == {key: value for key, value in chosen.loc[(part, name)].drop("n").items() if value}
