"Takes one step after the other of the loop of `finetune`, to be timed beside others."
from collections.abc import Callable

from vit_plasticity.finetune import Training, train


class Paused(Exception): pass


def pause(training: Training): raise Paused


def stepper(
    training: Training,
) -> Callable[[], None]: # takes a step
    "A function that goes on with a training for a step."
    def take():
        try: train(training, on_step=pause, progress=False)
        except Paused: pass
    return take
