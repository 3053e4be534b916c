"""COCO's evaluation by hotcoco, where that is installed (extra ``[fast]``): pycocotools' numbers in less time."""

import importlib.util
import logging
import os

FAST = "hotcoco"
_TASKS = ("bbox", "segm")  # for which its arrays were compared with pycocotools', to the last bit
_PARAMETERS = ("imgIds", "catIds", "iouThrs", "recThrs", "maxDets", "areaRng", "areaRngLbl", "useCats")

logger = logging.getLogger(__name__)

_used_in: set[int] = set()  # processes, by number: a fork has none of the threads that hotcoco has started before it


class FastMatching:
    """Before a COCOeval among the bases of a class: hotcoco matches and accumulates where it can, which needs numbers
    for ids, and no fork of a process that has used it; the rest, summaries too, is COCOeval's own."""

    _fast = None

    def evaluate(self) -> None:
        is_fast = self._may_be_fast()
        logger.info(f"{self.params.iouType} scored by {FAST if is_fast else 'pycocotools'}")
        if not is_fast:
            super().evaluate()
            return
        import hotcoco

        _used_in.add(os.getpid())
        truth, found = (hotcoco.COCO(coco.dataset) for coco in (self.cocoGt, self.cocoDt))
        self._fast = hotcoco.COCOeval(truth, found, self.params.iouType)
        for name in _PARAMETERS:
            setattr(self._fast.params, name, getattr(self.params, name))
        self._fast.evaluate()

    def accumulate(self) -> None:
        if self._fast is None:
            super().accumulate()
            return
        self._fast.accumulate()
        self.eval = {"params": self.params, **{key: self._fast.eval[key] for key in ("precision", "recall", "scores")}}

    def _may_be_fast(self) -> bool:
        ids = (*self.params.imgIds, *self.params.catIds)
        are_numbers = all(type(each) is int and 0 <= each < 2**63 for each in ids)
        has_its_threads = _used_in <= {os.getpid()}
        return self.params.iouType in _TASKS and are_numbers and has_its_threads and has_fast_coco()


def has_fast_coco() -> bool:
    """Whether hotcoco is installed, found without importing it."""
    return importlib.util.find_spec(FAST) is not None
