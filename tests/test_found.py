"What the notebooks rescaling and robustness say they found is what the committed rows say (C6, C8)."
import json
import re
from pathlib import Path

import numpy as np
import pandas as pd

from vit_plasticity.causes import family_effects, paired_effect, rescaling_effects
from vit_plasticity.smoothing import smoothing_claims, smoothing_effects
from vit_plasticity.stats import select_lr

ROOT = Path(__file__).resolve().parent.parent


def found(notebook: str) -> str:
    cells = json.loads((ROOT/f"nbs/{notebook}.ipynb").read_text(encoding="utf-8"))["cells"]
    [text] = [text for text in ("".join(cell["source"]) for cell in cells) if "**Found.**" in text]
    return text[text.index("**Found.**"):]


def study(name: str) -> pd.DataFrame:
    return pd.read_parquet(ROOT/f"outputs/{name}/vit_mini/rows.parquet")


def told(values, digits: int) -> str:
    "An effect and its interval as the notebooks print them."
    texts = [f"{value:.{digits}f}" for value in values]
    texts = [re.sub(r"^-(0\.?0*)$", r"\1", text).replace("-", "\N{MINUS SIGN}") for text in texts]
    return "{} [{}, {}]".format(*texts)


def test_rescaling_found():
    rows, text = study("rescaling"), found("rescaling")
    effects = rescaling_effects(rows).set_index(["question", "factor"])
    def points(*key, digits=1, table=effects): return told(100 * table.loc[key, columns].astype(float), digits)
    columns = ["effect", "ci_low", "ci_high"]
    as_fc1 = "LN1 = FC1"
    by_dataset = {
        name: rescaling_effects(rows[rows.dataset == f"mini/{name}"]).set_index(["question", "factor"])
        for name in ("digits", "gaussian_noise")
    }
    apart = ", ".join(points("in all", as_fc1, table=table) for table in by_dataset.values())
    lines = [
        f"(*c* = 3.82 on digits, 3.47 on noise) | {points('in all', as_fc1)} | smaller |",
        f"| of which on digits, on noise | {apart} | smaller, undecided |",
        f"| *c* = 8 | {points('in all', '8')} | smaller |",
        f"| *c* = 1/8 | {points('in all', '0.125')} | smaller |",
    ]
    for factor, name in (("8", "8"), ("0.125", "1/8")):
        both = ", ".join(points(f"damage, {component} trained", factor, digits=0) for component in ("ln1", "mha"))
        lines.append(f"| times {name}, without compensation: LN1, attention trained | {both} | smaller |")
    families = family_effects(study("families")).set_index(["family", "name"])
    for family, part, name in (("ln1", "mha", "attention"), ("ln2", "fc1", "FC1")):
        values = f"{points(family, part, table=families)} | {families.verdict[family, part]}"
        lines.append(f"| {family.upper()}'s functions, trained as a part of {name} | {values} |")
    for line in lines: assert line in text, line
    for question, words in (("the grid", "grid alone costs"), ("clipping", "clipping gives back")):
        assert f"{words} {abs(100 * effects.effect[question, '0.125']):.1f}" in text
    rows = study("families").query("family == 'ln2'").rename(columns={"component": "configuration"})
    best = {name: select_lr(part) for name, part in rows.groupby("name")}
    welch = paired_effect(best["fc1"], best["ln2"], variances="own")
    highs = [100 * high for high in (families.ci_high["ln2", "fc1"], welch["ci_high"])]
    assert "a gain of up to {:.1f} points ({:.1f} by Welch's interval) remains possible".format(*highs) in text


def test_robustness_found():
    rows, text = study("smoothing"), found("robustness")
    values = ["network", "attention", "mha_plasticity", "test_accuracy", "then_accuracy"]
    values += [name for name in rows if re.match("accuracy_(fgsm|pgd|autoattack)", name)]
    effects = smoothing_effects(rows, values).set_index(["start", "penalty", "value"])[["effect", "ci_low", "ci_high"]]
    def percent(*key): return 100 * np.expm1(effects.loc[key].astype(float))
    def falls(*key):
        effect, low, high = -percent(*key)
        return f"{effect:.0f} % [{high:.0f}, {low:.0f}]"
    def costs(*key, digits=1):
        effect, low, high = -100 * effects.loc[key].astype(float)
        return told((effect, high, low), digits)
    g1, g1_over, specformer = "jasmin_g1:0.1", "jasmin_g1_over_g10:0.03", "specformer:0.1"
    both = f"{g1}+{specformer}"
    parts = [
        f"by {falls('pretrained', g1, 'attention')} with JaSMin's $g_1$",
        f"{falls('pretrained', g1_over, 'attention')} with $g_1/g_{{10}}$, ",
        f"{falls('pretrained', specformer, 'attention')} with Specformer, "
        f"{falls('pretrained', both, 'attention')} with both",
        f"by {falls('scratch', specformer, 'attention')} with Specformer, "
        f"{falls('scratch', both, 'attention')} with JaSMin too",
        f"$g_1/g_{{10}}$ {costs('pretrained', g1_over, 'test_accuracy')}, "
        f"Specformer {costs('pretrained', specformer, 'test_accuracy')}",
        f"$g_1$ {costs('scratch', g1, 'test_accuracy')}, both {costs('scratch', both, 'test_accuracy')}",
        f"$g_1/g_{{10}}$ {costs('pretrained', g1_over, 'then_accuracy')}, "
        f"Specformer {costs('pretrained', specformer, 'then_accuracy')}",
        f"both {costs('scratch', both, 'then_accuracy')} |",
        f"with $g_1$ {costs('scratch', g1, 'accuracy_pgd_8', digits=0).replace(' [', ' points [')} under PGD at 8/255",
    ]
    for part in parts: assert part in text, part
    claims = smoothing_claims(rows, against=("none",))
    attacks = claims[claims.claim.str.startswith("higher")]
    counts = attacks.groupby(["start", "verdict"]).size()
    assert f"{counts['pretrained', 'undecided']} of {counts['pretrained'].sum()} undecided" in text
    lost = attacks[(attacks.start == "scratch") & (attacks.verdict == "not reproduced")]
    assert (lost.ci_high < 0).all()
    undecided = f"{counts['scratch', 'undecided']} of {counts['scratch'].sum()} undecided"
    assert f"{undecided}, {len(lost)} a loss" in text
    assert f"The one gain of {len(attacks)} that reads *reproduced*" in text and counts["pretrained", "reproduced"] == 1
    under = effects.loc["pretrained"].reset_index().query("value.str.startswith('accuracy_')")
    halves = 50 * (under.ci_high - under.ci_low)
    assert f"half of those under attack are wider than ±{halves.median():.0f} points" in text
    assert f"intervals of up to ±{halves.max():.0f} points" in text
    widest = under.loc[halves.idxmax()]
    assert f"the widest is from \N{MINUS SIGN}{-100 * widest.ci_low:.0f} to {100 * widest.ci_high:.0f}" in text
    worst = -100 * effects.ci_low["pretrained", specformer, "then_accuracy"]
    assert f"No loss shows, but on letters one of up to {worst:.0f} points can't be ruled out." in text
    ends = study("courses")
    ends = ends[ends.step == ends.groupby("run").step.transform("max")]
    alike = ends.groupby(["start", "penalty"]).similarity.mean()
    cosines = [f"{alike[start, 'none']:.2f} to {alike[start, g1]:.2f}" for start in ("pretrained", "scratch")]
    assert "From pretrained weights tokens grow a little more alike with $g_1$, " \
           "cosine {}; from scratch a little less, {}.".format(*cosines) in text
