"Finetune one component of the embedded ViT on handwritten digits and measure the plasticity of all; print a table and save a figure."
import sys
from pathlib import Path

import matplotlib

matplotlib.use("agg")
import matplotlib.pyplot as plt

from vit_plasticity.core import get_out_dir
from vit_plasticity.figures import plot_accuracy, plot_layers, save_figure
from vit_plasticity.finetune import run_finetuning, run_linear_probe
from vit_plasticity.plasticity import rank_components, run_plasticity, summarize_rates
from vit_plasticity.stats import compare_predictions

component = sys.argv[1] if len(sys.argv) > 1 else "fc1"
run = run_finetuning(component=component)
predictions, summary = run.table("predictions"), run.table("summary").iloc[0]
accuracies = compare_predictions({component: predictions, "linear probe": run_linear_probe().table("predictions"),
                                  "majority": predictions.assign(prediction=int(summary.majority_class))}, reference=component)
rates = run_plasticity().table("rates")

figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3.2), layout="constrained")
plot_accuracy(accuracies, left).set_title(f"handwritten digits: {component} finetuned", fontsize="medium")
plot_layers(summarize_rates(rates), right).set_title("plasticity, Fashion-MNIST to digits", fontsize="medium")
path = save_figure(figure, get_out_dir()/"demo.png")

print(f"\nPlasticity of the five components (embedding protocol, {rates.pair.nunique()} pairs, seed 0, 95 % intervals over pairs)\n")
print(rank_components(rates).round(3).to_string(index=False, na_rep=""))
print(f"\nTest accuracy on mini/digits after finetuning {component}: {int(summary.component_parameters):,} parameters of the component, "
      f"{int(summary.final_norm_parameters)} of the final norm, {int(summary.head_parameters)} of the head\n(seed 0, {len(predictions):,} images; `lead` of {component} over the other; "
      "95 % intervals over images)\n")
print(accuracies.round(4).to_string(index=False, na_rep=""))
print(f"\nFigure: {path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path}\nNext: `make lab`, which opens nbs/explore.ipynb")
