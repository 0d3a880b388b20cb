"A grid of runs in worker processes: every combination once, resumed where it stopped, failures named after all others ran."
import pytest

from vit_plasticity.finetune import run_grid
from vit_plasticity.results import read_runs

SHORT = dict(steps=2, batch_size=8, device="cpu")


def test_grid_resumes(tmp_path):
    run_grid(processes=2, component=["ln1"], lr=[0.1], seed=[0], out_dir=str(tmp_path), **SHORT)
    first = read_runs("finetune", "summary", tmp_path)
    run_grid(processes=2, component=["ln1", "fc1"], lr=[0.1], seed=[0], out_dir=str(tmp_path), **SHORT)
    rows = read_runs("finetune", "summary", tmp_path)
    assert sorted(rows.component) == ["fc1", "ln1"] and rows[rows.run == first.run[0]].time_s.item() == first.time_s[0]


def test_grid_names_failures(tmp_path):
    with pytest.raises(RuntimeError, match="1 of 2 runs failed; the first is .*lr=1e\\+30.*loss is nan"):
        run_grid(processes=1, component="all", lr=[1e30, 0.1], seed=0, out_dir=str(tmp_path), steps=4, batch_size=8, device="cpu")
    assert list(read_runs("finetune", "summary", tmp_path).lr) == [0.1]


@pytest.mark.parametrize("arguments, message", [(dict(component=["mha", "mlp"]), "`component` must be one of"), (dict(learning_rate=0.1), "`argument` must be one of"),
                                                (dict(processes=0), "`processes`")])
def test_grid_refuses_before_it_starts(tmp_path, arguments, message):
    with pytest.raises(ValueError, match=message): run_grid(**arguments, out_dir=str(tmp_path))
    assert not list(tmp_path.iterdir())
