"Write README.md, the markdown cells of nbs/index.ipynb with links that hold from the root. `--check`: exit 1 if it differs."
import json
import re
import sys
from pathlib import Path

root = Path(__file__).resolve().parent.parent


def readme() -> str:
    cells = json.loads((root/"nbs/index.ipynb").read_text(encoding="utf-8"))["cells"]
    text = "\n\n".join("".join(cell["source"]).strip() for cell in cells if cell["cell_type"] == "markdown") + "\n"
    inside_nbs = re.compile(r"\]\((?!https?:|#|\.\./)([^)]+)\)")
    return inside_nbs.sub(r"](nbs/\1)", text).replace("](../", "](")


if __name__ == "__main__":
    if "--check" in sys.argv: sys.exit((root/"README.md").read_text(encoding="utf-8") != readme())
    (root/"README.md").write_text(readme(), encoding="utf-8")
