"""What is left of a step whose loss is not finite: the inputs as pictures, their names, and what to do."""

import math
from contextlib import suppress
from pathlib import Path

from revisit.engine.train_step import NonFiniteLossError
from revisit.errors import UserError
from revisit.viz.pretraining_sheets import save_batch_sheets

from detectron2.utils import comm


def report_non_finite(error: NonFiniteLossError, output: str, batch: dict | list[dict], images: list[str]) -> UserError:
    """Write the inputs of the processes whose loss it was, and return what all processes raise.

    Files: OUTPUT_DIR/non_finite/iteration_N_process_R_1.png and so on, and the same name with .txt: the images.
    """
    ranks = {rank for values in error.losses.values() for rank, value in enumerate(values) if not math.isfinite(value)}
    folder = Path(output) / "non_finite"
    if comm.get_rank() in ranks:
        with suppress(OSError):  # a full disk: what happened is reported all the same
            folder.mkdir(parents=True, exist_ok=True)
            stem = f"iteration_{error.iteration:07d}_process_{comm.get_rank()}"
            (folder / f"{stem}.txt").write_text("".join(f"{name}\n" for name in images))
            save_batch_sheets(batch, folder / stem)
    comm.synchronize()
    losses = ", ".join(f"{name} {' '.join(f'{value:g}' for value in values)}" for name, values in error.losses.items())
    return UserError(
        f"the loss of iteration {error.iteration} is not finite ({losses}). Nothing of this step has been saved; its "
        f"inputs are in {folder}. Lower SOLVER.BASE_LR or lengthen its warm-up, and resume from the last checkpoint "
        "with --resume, or start anew"
    )
