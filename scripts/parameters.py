"""Write the parameters cells of the notebooks that take every option of a run: a line an option, from `RunConfig`, after
the notebook's own. `python scripts/parameters.py` writes them, `--check` only says which are not up to date."""
import ast
import json
import os
import sys
from pathlib import Path

from vit_plasticity.config import RunConfig, option_lines

NOTEBOOKS = Path(__file__).parent.parent/"nbs"
FIRST = ("component", "model", "dataset", "pretrained", "protocol")
# notebook -> options that it does not have
LEFT_OUT = {"finetune": (), "finetune_grid": ("lr", "seed")}


def parameters_cell(notebook: dict) -> dict:
    return next(cell for cell in notebook["cells"] if "parameters" in cell["metadata"].get("tags", []))


def own_lines(source: str, options: set[str]) -> list[str]: # what the notebook declares beside the options
    lines = source.splitlines()
    declared = [node for node in ast.parse(source).body if isinstance(node, ast.AnnAssign)]
    return [lines[node.lineno - 1] for node in declared if node.target.id not in options]


def new_source(stem: str, source: str) -> str:
    options = {line.partition(":")[0] for line in option_lines(RunConfig)}
    written = option_lines(RunConfig, FIRST, LEFT_OUT[stem])
    first, rest = written[:len(FIRST)], written[len(FIRST):]
    own = own_lines(source, options | set(LEFT_OUT[stem]))
    return "\n".join(first + own + rest)


def main(check: bool):
    stale = []
    for stem in LEFT_OUT:
        path = NOTEBOOKS/f"{stem}.ipynb"
        notebook = json.loads(path.read_text(encoding="utf-8"))
        cell = parameters_cell(notebook)
        source = new_source(stem, "".join(cell["source"]))
        if source == "".join(cell["source"]): continue
        stale.append(stem)
        if check: continue
        cell["source"] = source.splitlines(True)
        text = json.dumps(notebook, indent=1, ensure_ascii=False, sort_keys=True) + "\n"
        path.with_suffix(".new").write_text(text, encoding="utf-8")
        os.replace(path.with_suffix(".new"), path)
    if check and stale: sys.exit(f"not up to date: {', '.join(stale)}; run python scripts/parameters.py")


if __name__ == "__main__": main("--check" in sys.argv[1:])
