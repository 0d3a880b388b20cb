"""papermill, without the grammars of addresses that jsonschema compiles where JupyterLab is installed: three seconds a job, for a check that notebooks don't need."""
import sys

sys.modules["rfc3987_syntax"] = None # as if it were not installed

from papermill.cli import papermill # noqa: E402

if __name__ == "__main__": papermill()
