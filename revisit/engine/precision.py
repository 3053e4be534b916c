"""What a training computes in: SOLVER.PRECISION, and what this machine cannot compute."""

import logging
from pathlib import Path

import torch

from revisit.errors import expect
from revisit.keys import Decision, Facts, declare, one_of
from revisit.modeling.meta_arch.pretraining import method_of

from detectron2.config import CfgNode

logger = logging.getLogger(__name__)

TYPES = ("float32", "bfloat16", "float16")
CPU_FLAGS = Path("/proc/cpuinfo")
OF_BFLOAT16 = {"avx512_bf16", "amx_bf16"}
PARTS = ("SOLVER.AMP.ENABLED", "SOLVER.AMP.DTYPE", "MODEL.CHANNELS_LAST")  # what SOLVER.PRECISION decides


def precision(cfg: CfgNode, facts: Facts) -> Decision | None:
    """The values of PARTS that SOLVER.PRECISION stands for."""
    asked = cfg.SOLVER.PRECISION
    amp = cfg.SOLVER.AMP
    if asked in TYPES:
        dtype = amp.DTYPE if asked == "float32" else asked
        parts = {"SOLVER.AMP.ENABLED": asked != "float32", "SOLVER.AMP.DTYPE": dtype}
        return Decision("", f"SOLVER.PRECISION {asked}", parts)
    if asked == "auto_on_gpu" and (cfg.MODEL.DEVICE == "cpu" or not method_of(cfg)):
        dtype = amp.DTYPE if amp.ENABLED else "float32"
        return Decision("", f"{dtype}, by SOLVER.AMP.ENABLED {amp.ENABLED}; auto decides by what the device computes")
    if asked:
        wrong = why_not_bfloat16(cfg)
        parts = dict(zip(PARTS, (not wrong, "bfloat16", True), strict=True))
        return Decision("", f"SOLVER.PRECISION {asked}: {wrong or 'this machine computes bfloat16'}", parts, kept=True)
    if facts.typed.isdisjoint(PARTS) or "SOLVER.PRECISION" in facts.typed:
        return None
    parts = dict(zip(PARTS, (amp.ENABLED, amp.DTYPE, cfg.MODEL.CHANNELS_LAST), strict=True))
    return Decision("", "what is not typed is as it was", parts, kept=True)


declare(
    "SOLVER.PRECISION",
    "auto_on_gpu",
    "auto: bfloat16 where the device has instructions for it, else float32, in channels-last memory; sets SOLVER.AMP "
    "and MODEL.CHANNELS_LAST. '' leaves them as they are. auto_on_gpu: auto for a pretraining on a GPU, else ''. The "
    "name of a type sets SOLVER.AMP to it.",
    one_of("", "auto", "auto_on_gpu", *TYPES),
    decides="precision",
    off="",
    resolve=precision,
    after=("MODEL.DEVICE", "MODEL.*.NORM"),
)


def computes_bfloat16(device: str) -> bool:
    """Whether a device has instructions of its own for products in bfloat16."""
    if device.startswith("cuda"):
        return torch.cuda.is_bf16_supported(including_emulation=False)
    is_linux = device == "cpu" and CPU_FLAGS.is_file()
    return is_linux and not OF_BFLOAT16.isdisjoint(CPU_FLAGS.read_text().split())


def why_not_bfloat16(cfg: CfgNode) -> str:
    """Why this machine should not train in bfloat16, in words; "" where it should."""
    if not computes_bfloat16(cfg.MODEL.DEVICE):
        return "the device has no instructions for bfloat16"
    return wrong_in_bfloat16(cfg)


def wrong_in_bfloat16(cfg: CfgNode) -> str:
    """What a CPU would compute wrong in bfloat16, in words; "" where nothing."""
    if cfg.MODEL.DEVICE != "cpu":
        return ""
    if "naiveSyncBN" in (cfg.MODEL.RESNETS.NORM, cfg.MODEL.SEM_SEG_HEAD.NORM):
        return "SyncBN over several processes on the CPU loses its variance in bfloat16: expected one process"
    # torch 2.11's gradient of a bfloat16 convolution's weight is uninitialised for stride 2 over a map of 1 x 1.
    views = cfg.VIEWS
    smallest = min(views.LARGE_SIZE, views.SMALL_SIZE) if views.NUM_SMALL else views.LARGE_SIZE
    stride = 4 if cfg.MODEL.RESNETS.STEM_TYPE == "cifar" else 16  # px, of the map below the last
    if method_of(cfg) and smallest <= stride:
        return (
            f"views of {smallest} px end as a single place, where bfloat16 on the CPU gives wrong gradients: expected "
            f"views larger than {stride} px"
        )
    return ""


def check_precision(cfg: CfgNode) -> None:
    """Raise UserError for a precision that this machine cannot compute, and warn of one that it computes slowly."""
    amp = cfg.SOLVER.AMP
    is_cpu = cfg.MODEL.DEVICE == "cpu"
    if not amp.ENABLED:
        return
    expect(
        is_cpu or cfg.MODEL.DEVICE.startswith("cuda"),
        f"MODEL.DEVICE {cfg.MODEL.DEVICE} computes in float32 here: expected SOLVER.AMP.ENABLED False",
    )
    if amp.DTYPE == "bfloat16" and not is_cpu and not computes_bfloat16(cfg.MODEL.DEVICE):
        logger.warning("this GPU computes no bfloat16 itself, which is slow: take SOLVER.AMP.DTYPE float16")
    expect(
        not (is_cpu and amp.DTYPE == "float16"), "SOLVER.AMP.DTYPE float16 needs a GPU: expected bfloat16 on the CPU"
    )
    wrong = wrong_in_bfloat16(cfg)
    expect(not wrong, f"{wrong}, or SOLVER.AMP.ENABLED False")
