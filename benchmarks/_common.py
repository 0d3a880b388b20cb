"What the benchmarks share: their command line, and where their rows go."
import sys
from argparse import ArgumentParser, Namespace, RawDescriptionHelpFormatter
from pathlib import Path

import pandas as pd


def command_line(
    text: str, # the script's docstring, shown by --help
    **defaults, # arguments by position, each with its default
) -> Namespace: # the arguments, `smoke` and `out`
    "Read the command line."
    parser = ArgumentParser(description=text, formatter_class=RawDescriptionHelpFormatter)
    for name, default in defaults.items():
        parser.add_argument(name, nargs="?", type=type(default), default=default, help=f"default: {default}")
    parser.add_argument("--smoke", action="store_true", help="tiny shapes: does everything run? Writes only where --out says")
    parser.add_argument("--out", type=Path, help="file for the rows; default: the CSV file beside the script")
    return parser.parse_args()


def write_rows(
    rows: pd.DataFrame,
    options: Namespace, # see `command_line`
    **format, # of `DataFrame.to_csv`
):
    "Write the rows to `--out`, else beside the script; those of a smoke run only to `--out`."
    path = options.out or (None if options.smoke else Path(sys.argv[0]).with_suffix(".csv"))
    if path is not None: rows.to_csv(path, index=False, **format)
