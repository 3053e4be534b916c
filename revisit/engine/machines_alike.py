"""What all machines of a run have in common, compared before its first step: keys, code, data, weights, OUTPUT_DIR.

A difference would go unseen while the processes' weights drift apart, or look like a machine that is lost.
"""

import os
import sys
from collections.abc import Mapping
from pathlib import Path

from torch import nn

from revisit.data.sources.catalog import get_records
from revisit.data.sources.class_names import names_of
from revisit.data.sources.records import PARTS, fingerprint
from revisit.engine.data_checks import evaluation_sets
from revisit.engine.environment import describe_environment
from revisit.engine.run_lock import owner_of
from revisit.engine.same_experiment import plain_config
from revisit.errors import expect
from revisit.files import file_digest
from revisit.keys import is_read, short_repr
from revisit.modeling.distributed import raised_by_all
from revisit.network.network import digest_of

from detectron2.config import CfgNode
from detectron2.utils import comm

# Compared as stated; a machine's own; and a folder that may have several names, in which all have to see one file.
_MAY_DIFFER = {"SEED", "DATALOADER.NUM_WORKERS", "OUTPUT_DIR"}
_OF_CODE = ("revisit", "commit", "dirty")
_IN_WORDS = {"count": "number of images", **PARTS}
_SHOWN = 12  # digits of a digest


def check_machines(cfg: CfgNode, folder: Path, *, seed: int, trains: bool) -> None:
    """Compare all that the run goes by. A training has locked its ``folder``.

    Args:
        seed: as it is stated; negative where each machine draws one, of which the first counts.

    Raises:
        UserError: the first difference, on all processes in the same words.
    """
    facts: dict[str, object] = {}
    with raised_by_all():
        if _speaks_for_its_machine():
            facts = {**_of_code(cfg), **_of_data(cfg), **_of_keys(cfg), "SEED": seed if seed >= 0 else "drawn"}
            if trains:
                facts["the file run.lock in OUTPUT_DIR"] = owner_of(folder)
    _compare(facts)


def check_tensors(model: nn.Module) -> None:
    """Compare what has been loaded. Raises UserError as ``check_machines``."""
    facts = {"the network as loaded": digest_of(model.state_dict())[:_SHOWN]} if _speaks_for_its_machine() else {}
    _compare(facts)


def _speaks_for_its_machine() -> bool:
    """Whether this is the first process of one of several machines."""
    return comm.get_world_size() > comm.get_local_size() and comm.get_local_rank() == 0


def _compare(facts: Mapping[str, object]) -> None:
    """What only some machines know is not compared."""
    first, *others = comm.all_gather(facts)[:: comm.get_local_size()]
    for machine, theirs in enumerate(others, 1):
        for name, value in first.items():
            expect(
                theirs.get(name, value) == value,
                f"the machines of this run differ: {name} is {short_repr(value)} on machine 0, "
                f"{short_repr(theirs.get(name))} on machine {machine}; expected one command, state of the code, "
                "data and weights, and an OUTPUT_DIR on a disk that all see",
            )


def _of_code(cfg: CfgNode) -> dict[str, object]:
    environment = describe_environment()
    code = {f"the code's {name}": environment[name] for name in _OF_CODE if environment[name] is not None}
    modules = {name: getattr(sys.modules[name], "__file__", None) for name in cfg.IMPORTS}
    return code | {f"the code of {name}": _digest(file) for name, file in modules.items() if file}


def _of_data(cfg: CfgNode) -> dict[str, object]:
    """But for the times of files, which copies do not share."""
    facts: dict[str, object] = {}
    for name in (*cfg.DATASETS.TRAIN, *evaluation_sets(cfg)):
        (prints,) = fingerprint(get_records(name), classes=names_of(name))
        del prints["times"]
        facts |= {f"{name}, {_IN_WORDS[part]}": _shown(value) for part, value in prints.items()}
    return facts


def _of_keys(cfg: CfgNode) -> dict[str, object]:
    """What the network reads; of a file, such as MODEL.WEIGHTS, its content in place of its name."""
    read = {key: value for key, value in plain_config(cfg).items() if key not in _MAY_DIFFER and is_read(cfg, key)}
    return {key: _digest(value) if os.path.isfile(str(value)) else value for key, value in read.items()}


def _digest(file: str) -> str:
    return f"a file of sha256 {file_digest(file)[:_SHOWN]}"


def _shown(value: int | str) -> int | str:
    return value[:_SHOWN] if isinstance(value, str) else value
