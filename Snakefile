"""The study that a file in config/ describes, a rule for each notebook:
snakemake --profile profiles/local --configfile config/smoke.yaml
Executed notebooks, also of jobs that failed, are in <out_dir>/sweep; the runs' rows are stored by the notebooks themselves."""
import sys

from vit_plasticity.sweep import announce, check_grid, read_grid

if len(workflow.configfiles) != 1: raise WorkflowError("Give one study: --configfile config/smoke.yaml, or another file of config/")
try:
    GRID = read_grid(workflow.configfiles[0], overrides=config)
    if workflow.is_main_process: # a job's own process does without the check
        check_grid(GRID)
        print(announce(GRID), file=sys.stderr)
except ValueError as error: raise WorkflowError(str(error))

NOTEBOOKS = list(dict.fromkeys(job.notebook for job in GRID.jobs))
JOBS = {(job.notebook, job.name): job for job in GRID.jobs}


def done(notebooks): return [GRID.file(job, ".done") for job in GRID.jobs if job.notebook in notebooks]


rule all:
    input: done(NOTEBOOKS)


for notebook in NOTEBOOKS:
    rule:
        name: notebook
        input: done([other for other in NOTEBOOKS if other != "paper"]) if notebook == "paper" else [] # tables and figures come last
        output: touch(GRID.out_dir/"sweep"/notebook/"{job}.done")
        log: GRID.out_dir/"sweep"/notebook/"{job}.ipynb"
        benchmark: GRID.out_dir/"sweep"/notebook/"{job}.tsv"
        params:
            source=f"{workflow.basedir}/nbs/{notebook}.ipynb",
            arguments=lambda wildcards, rule=notebook: JOBS[rule, wildcards.job].arguments
        shell: "papermill --no-progress-bar {params.source} {log:q} {params.arguments}"
