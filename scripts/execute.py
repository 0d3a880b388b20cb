"""papermill with two waits less, some seven seconds a job: jsonschema does not compile the grammars of addresses that JupyterLab brings, and a kernel whose cells are all done is not waited for (one that is interrupted is, so that a training can write its checkpoint)."""
import sys

sys.modules["rfc3987_syntax"] = None # as if it were not installed

from papermill.cli import papermill # noqa: E402
from papermill.clientwrap import PapermillNotebookClient # noqa: E402

execute_cells = PapermillNotebookClient.papermill_execute_cells


def execute_and_leave(client):
    execute_cells(client)
    client.shutdown_kernel = "immediate" # what the cells computed is stored


PapermillNotebookClient.papermill_execute_cells = execute_and_leave

if __name__ == "__main__": papermill()
