"""The study that a file in config/ describes, a rule for each notebook:
snakemake --profile profiles/local --configfile config/smoke.yaml
Executed notebooks, also of jobs that failed, are in <out_dir>/sweep; the runs' rows are stored by the notebooks themselves."""
import sys

from vit_plasticity.sweep import announce, check_grid, forget_incomplete, read_grid

given = workflow.config_settings.config or {}
if len(workflow.configfiles) != 1: raise WorkflowError("Give one study: --configfile config/smoke.yaml, or another file of config/")
if other := set(given) - {"out_dir"}: raise WorkflowError(f"--config takes out_dir alone; got {', '.join(sorted(other))}: write it into the study's file")
try:
    GRID = read_grid(workflow.configfiles[0], given.get("out_dir"))
    if workflow.is_main_process: # a job's own process does without
        check_grid(GRID)
        print(announce(GRID), file=sys.stderr)
        if not workflow.dryrun: forget_incomplete(GRID) # runs that were deleted since are computed again
except ValueError as error: raise WorkflowError(str(error))

NOTEBOOKS = list(dict.fromkeys(job.notebook for job in GRID.jobs))
JOBS = {(job.notebook, job.name): job for job in GRID.jobs}
FOLDER = GRID.out_dir/"sweep"


def done(notebooks): return [f"{FOLDER}/{job.notebook}/{job.name}.done" for job in GRID.jobs if job.notebook in notebooks]


rule all:
    input: done(NOTEBOOKS)


for notebook in NOTEBOOKS:
    rule:
        name: notebook
        input: done([other for other in NOTEBOOKS if other != "paper"]) if notebook == "paper" else [] # tables and figures come last
        output: touch(f"{FOLDER}/{notebook}/{{job}}.done")
        log: f"{FOLDER}/{notebook}/{{job}}.ipynb"
        benchmark: f"{FOLDER}/{notebook}/{{job}}.tsv"
        params:
            source=f"{workflow.basedir}/nbs/{notebook}.ipynb",
            arguments=lambda wildcards, rule=notebook: JOBS[rule, wildcards.job].arguments
        shell: "python {workflow.basedir:q}/scripts/execute.py --no-progress-bar {params.source:q} {log:q} {params.arguments}"
