"""The keys of a detector that learns from photographs without labels too."""

from functools import partial

from revisit.engine.run_length import LENGTH_OF_RUN
from revisit.keys import (
    COUNT,
    DETECTORS,
    RUN,
    SHARE,
    Decision,
    Facts,
    Rule,
    declare,
    integer,
    list_of,
    number,
    one_of,
    value_of,
)

from detectron2.config import CfgNode

ARCHITECTURE = "TeacherDetector"
BURN_IN = 1 / 5  # of the run
HORIZON = 1 / 20  # of the run: over so many iterations the teacher is a mean
LONGEST_HORIZON = 2500  # iterations: Unbiased Teacher's momentum of 0.9996


def burn_in(cfg: CfgNode, facts: Facts) -> Decision | None:
    """A fifth of the run, where TEACHER.BURN_IN is -1."""
    length = cfg.SOLVER.MAX_ITER
    if value_of(cfg, facts.key) >= 0 or not _learns_by_teacher(cfg) or not length:
        return None
    return Decision(round(BURN_IN * length), "a fifth of the run", kept=True)


def momentum(cfg: CfgNode, facts: Facts) -> Decision | None:
    """By the length of the run, where TEACHER.MOMENTUM is 0."""
    length = cfg.SOLVER.MAX_ITER
    if value_of(cfg, facts.key) or not _learns_by_teacher(cfg) or not length:
        return None
    horizon = min(max(2.0, HORIZON * length), LONGEST_HORIZON)
    return Decision(round(1 - 1 / horizon, 6), f"a mean over {horizon:g} iterations", kept=True)


def _learns_by_teacher(cfg: CfgNode) -> bool:
    return cfg.MODEL.META_ARCHITECTURE == ARCHITECTURE


_name = Rule(
    "the name of a data set, such as folder:/data/photos", lambda value: isinstance(value, str) and value != ""
)
_teacher = partial(declare, read_by=ARCHITECTURE)
_teacher(
    "DATASETS.UNLABELLED",
    (),
    "Photographs to learn from without labels; labels that a data set has are not read. Their files may move.",
    list_of(_name),
    may_change=True,
    scope=RUN,
)
_teacher("TEACHER.DETECTOR", DETECTORS[0], "The meta-architecture of student and teacher.", one_of(*DETECTORS))
_teacher(
    "TEACHER.BURN_IN",
    -1,
    "Iterations at the beginning that learn from labels alone, at whose end the teacher is the student; -1: a fifth of "
    "the run.",
    integer(-1, unit="iterations"),
    resolve=burn_in,
    after=LENGTH_OF_RUN,
)
_teacher(
    "TEACHER.MOMENTUM",
    0.0,
    "m: what the teacher keeps of itself in an iteration; 0: a mean over a twentieth of the run, at most over 2,500 "
    "iterations (0.9996).",
    number(0, 0.999999),
    resolve=momentum,
    after=LENGTH_OF_RUN,
)
_teacher(
    "TEACHER.THRESHOLD",
    (0.7,),
    "tau: the teacher's boxes of at least this score are taken for labels; one number, or one for each class.",
    list_of(SHARE, least=1),
    may_change=True,
)
_teacher(
    "TEACHER.LOWEST_THRESHOLD",
    0.3,
    "How low tau of a class may fall while a photograph has fewer of its boxes, by the teacher, than a labelled image; "
    "at least tau: it stays.",
    SHARE,
    may_change=True,
)
_teacher("TEACHER.WEIGHT", 2.0, "lambda: of the losses without labels.", number(), may_change=True)
_teacher("TEACHER.IMAGES_PER_LABELLED", 1, "Photographs without labels for each labelled one of a batch.", COUNT)
