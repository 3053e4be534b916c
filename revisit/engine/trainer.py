"""Detectron2's DefaultTrainer, made to run without a GPU and to resume exactly, for pretraining and finetuning."""

import logging
import warnings
import weakref
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from datetime import timedelta
from functools import partial
from pathlib import Path

import torch
from torch import nn

from revisit.checkpoint.checkpointer import RevisitCheckpointer
from revisit.checkpoint.run_folder import FINAL, results_of_run, write_results
from revisit.compat.private_names import processes_wait, schedule_of
from revisit.data.images.deep_images import pixel_format
from revisit.data.images.reader import UnreadableImageError
from revisit.engine.evaluation_hooks import EVALUATION_HOOK_REGISTRY
from revisit.engine.expected_results import check_expected
from revisit.engine.hooks import HOOK_REGISTRY, STEP_HOOK_REGISTRY, Checkpoints, EndOfRunError
from revisit.engine.machines_alike import check_tensors
from revisit.engine.same_experiment import check_same_experiment, config_text, plain_config
from revisit.engine.solver import build_lr_scheduler, build_optimizer
from revisit.engine.stop_signals import StopSignals, announce
from revisit.engine.train_step import NonFiniteLossError, TrainStep, report_non_finite
from revisit.engine.writers import WRITER_REGISTRY, Writers
from revisit.errors import UserError, first_line, told_by_worker, translated
from revisit.files import write_whole
from revisit.keys import RUN, SWITCH, declare
from revisit.modeling.distributed import share_state

from detectron2.config import CfgNode
from detectron2.engine import DefaultTrainer, HookBase, TrainerBase
from detectron2.engine.defaults import create_ddp_model
from detectron2.modeling import build_model
from detectron2.utils import comm
from detectron2.utils.events import EventStorage, EventWriter

PATIENCE = timedelta(days=1)  # of the processes that wait while the main one computes a score

logger = logging.getLogger(__name__)


switch = partial(declare, default=False, rule=SWITCH, may_change=True)
switch(
    "MODEL.CHANNELS_LAST",
    meaning="Weights and maps in NHWC memory, faster on some hardware.",
    decides="precision",
)
switch(
    "MODEL.COMPILE",
    meaning="torch.compile of the encoders: minutes at the start, a faster step on a GPU.",
    scope=RUN,
)


class RevisitTrainer(DefaultTrainer):
    """Trains any meta-architecture from a config whose schedule and precision are resolved.

    Differs from DefaultTrainer in what the latter hard-codes: DDP and autocast work on the CPU too, the
    checkpointer is the strict one, and checkpoints hold the optimiser.
    """

    build_optimizer = staticmethod(build_optimizer)
    build_lr_scheduler = staticmethod(build_lr_scheduler)
    evaluation_checkpointer = RevisitCheckpointer  # pretraining also judges random backbones
    evaluators: Sequence | None = None  # that ``test`` takes in a training; None: it makes its own

    def __init__(self, cfg: CfgNode):
        TrainerBase.__init__(self)
        self.cfg = cfg
        model = self.build_model(cfg)
        self._trainer = self.build_step(cfg, model, self.build_train_loader(cfg))
        self.scheduler = self.build_lr_scheduler(cfg, self.optimizer)
        self.checkpointer = RevisitCheckpointer(self.model, cfg, trainer=weakref.proxy(self))
        self.start_iter = 0
        self.max_iter = cfg.SOLVER.MAX_ITER
        self.folder = Path(cfg.OUTPUT_DIR)
        self.results: dict = {}  # of the last evaluation, on the main process
        self.ending = ""  # why the run ends before its last iteration, in words
        self.signals = StopSignals(announce)
        self.register_hooks(self.build_hooks())

    @classmethod
    def build_model(cls, cfg: CfgNode) -> nn.Module:
        model = build_model(cfg)
        if cfg.MODEL.CHANNELS_LAST:
            model.to(memory_format=torch.channels_last)
        if cfg.MODEL.COMPILE:
            for name, encoder in model.named_children():
                if name.endswith("backbone"):
                    encoder.compile(dynamic=False)  # in place; views have two sizes, and each its own code
        count = sum(p.numel() for p in model.parameters() if p.requires_grad)
        logger.info(f"{cfg.MODEL.META_ARCHITECTURE}: {count / 1e6:.1f} M parameters to train")
        return model

    @classmethod
    def build_step(cls, cfg: CfgNode, model: nn.Module, batches: Iterable) -> TrainStep:
        """The training step, on this process's batches. All processes call this together."""
        optimizer = cls.build_optimizer(cfg, model)
        # Channels-last input gives 1x1 convolutions gradients of other strides; DDP copies them, which is harmless.
        warnings.filterwarnings("ignore", "Grad strides do not match bucket view strides")
        # Torch 2.15 asks for another argument, which earlier versions do not have.
        warnings.filterwarnings("ignore", "`broadcast_buffers` is deprecated", FutureWarning)
        share_state(model)  # DDP without broadcast_buffers would leave every process its own random queue
        # Without device_ids, by which it would copy the batch and wait: the model sends what it needs.
        model = create_ddp_model(model, broadcast_buffers=False, device_ids=None)
        precision = getattr(torch, cfg.SOLVER.AMP.DTYPE) if cfg.SOLVER.AMP.ENABLED else None
        return TrainStep(
            model,
            batches,
            optimizer,
            prepare=partial(cls.prepare, device=cfg.MODEL.DEVICE),
            precision=precision,
            seed=cfg.SEED,
            accumulation_steps=cfg.SOLVER.ACCUMULATION_STEPS,
            metrics_period=cls.metrics_period(cfg),
        )

    def build_hooks(self) -> list[HookBase | None]:
        """All that happens around a step, in this order; subclasses list it, and None stands for nothing."""
        raise NotImplementedError

    def step_hooks(self) -> list[HookBase | None]:
        """What plug-ins let follow each step, before the evaluation, which trains nothing."""
        return [make(self) for _, make in STEP_HOOK_REGISTRY]

    def added_hooks(self) -> list[HookBase]:
        """The hooks that HOOKS names. They may change the network, so they must run before the evaluation."""
        return [HOOK_REGISTRY.get(name)(self.cfg) for name in self.cfg.HOOKS]

    def evaluation_hooks(self) -> list[HookBase | None]:
        """What plug-ins let follow each evaluation. Some hold the state of other hooks, and may end the run."""
        return [make(self) for _, make in EVALUATION_HOOK_REGISTRY]

    def checkpoints(self) -> Checkpoints:
        return Checkpoints(self.folder, self.signals, self.cfg.SOLVER)

    def build_writers(self) -> list[EventWriter]:
        added = [WRITER_REGISTRY.get(name)(self.cfg) for name in self.cfg.WRITERS]  # first: wandb patches TensorBoard's
        return [*super().build_writers(), *added]

    @property
    def is_evaluated(self) -> bool:
        """Whether the network is evaluated after this iteration."""
        done = self.iter + 1
        period = self.cfg.TEST.EVAL_PERIOD
        return done == self.max_iter or (period > 0 and done % period == 0)

    @property
    def is_last_step(self) -> bool:
        return self.iter + 1 == self.max_iter or bool(self.ending)

    def gather_metrics(self) -> None:
        """On all processes, before a checkpoint or an evaluation: read the losses of the steps since the last time.

        Raises:
            UserError: a loss since the last time was not finite.
        """
        with self._in_one_line():
            self._trainer.gather_metrics()

    def state_dict(self) -> dict:
        return {
            **super().state_dict(),
            # 0.6 leaves the optimiser's momentum out of its checkpoints; main saves it under this name.
            "_trainer": self._trainer.state_dict(),
            "world_size": comm.get_world_size(),
            "config": plain_config(self.cfg),
            "images": self.data_loader.images,
        }

    def check_state_dict(self, state_dict: dict, *, fits: bool) -> None:
        """Raise UserError for a checkpoint of another experiment, before anything is loaded.

        Args:
            fits: whether its tensors have the model's shapes.
        """
        others = state_dict["world_size"] != comm.get_world_size()
        images = self.data_loader.images
        accepted = self._accepted
        check_same_experiment(self.cfg, images, state_dict, accepted=accepted, other_processes=others, fits=fits)

    def load_state_dict(self, state_dict: dict) -> None:
        """The state is the checkpoint's; rates and decays are the config's."""
        before = state_dict["world_size"]
        processes = comm.get_world_size()
        if before != processes:
            logger.warning(
                f"resuming on {processes} processes what {before} began: what that changes is in docs/training.md, "
                "Resuming"
            )
        base_lrs = self.scheduler.base_lrs
        TrainerBase.load_state_dict(self, state_dict)
        self.scheduler.base_lrs = base_lrs
        self._trainer.load_state_dict(state_dict["_trainer"])
        if state_dict["config"]["SOLVER.OPTIMIZER"] != self.cfg.SOLVER.OPTIMIZER:
            self.optimizer.state.clear()
        if self.iter < self.max_iter:  # beyond the end of a run that was shortened no schedule says anything
            for group, lr in zip(self.optimizer.param_groups, self.scheduler.get_lr(), strict=True):
                group["lr"] = lr
        self._warn_of_jump(state_dict["config"]["SOLVER.MAX_ITER"])

    def _warn_of_jump(self, length: int) -> None:
        """Where a run of so many iterations is made longer after its rate had fallen."""
        done = self.iter + 1
        schedule = schedule_of(self.scheduler)
        if not 0 < length < self.max_iter:
            return
        was = schedule(min(done, length - 1) / length)
        now = schedule(done / self.max_iter)
        if now > 2 * was:
            logger.warning(
                f"the learning rate jumps from {was:.2g} to {now:.2g} times SOLVER.BASE_LR: a schedule that had "
                "fallen is longer now; a new run from these weights, with a lower rate, loses less"
            )

    @classmethod
    def evaluate(cls, cfg: CfgNode, resume: bool) -> dict:
        """Test MODEL.WEIGHTS, or with ``resume`` the run's last checkpoint, and write OUTPUT_DIR/evaluation.json, as at
        the end of a training."""
        model = cls.build_model(cfg)
        loaded = cls.evaluation_checkpointer(model, cfg).resume_or_load(cfg.MODEL.WEIGHTS, resume=resume)
        check_tensors(model)
        with EventStorage(loaded.get("iteration", 0)):
            results = cls.test(cfg, model)
        if comm.is_main_process():
            write_results(Path(cfg.OUTPUT_DIR), results)
            check_expected(cfg.TEST.EXPECTED_RESULTS, results)
        return results

    @classmethod
    def test(cls, cfg: CfgNode, model: nn.Module, evaluators: Sequence | None = None) -> dict:
        """``scores``, for which processes wait longer than for a step."""
        with processes_wait(PATIENCE):
            results = cls.scores(cfg, model, evaluators)
            comm.synchronize()  # what it took differs, and the next step should not be blamed
        return results

    @classmethod
    def scores(cls, cfg: CfgNode, model: nn.Module, evaluators: Sequence | None) -> dict:
        """Those of ``evaluators``, or of what the config asks for, on the main process; {} on the others."""
        raise NotImplementedError

    def resume_or_load(self, resume: bool = True, accepted: Collection[str] = ()) -> None:
        """Detectron2's; ``accepted`` keys may differ from the checkpoint's (``check_same_experiment``)."""
        self._accepted = accepted
        super().resume_or_load(resume)
        check_tensors(self.model)
        if self.start_iter:
            logger.info(f"resuming at iteration {self.start_iter}")
        self.data_loader.start_iteration = self.start_iter

    def train(self) -> None:
        if self.start_iter >= self.max_iter or self.ending:
            why = self.ending or f"the run has finished its {self.max_iter} iterations"
            logger.info(f"nothing to do: {why} (--eval-only evaluates it again)")
            if not (self.folder / f"{FINAL}.pth").is_file():
                logger.warning(
                    f"{self.folder} has no {FINAL}.pth, as the run was to be longer: its last checkpoint is the "
                    "result, which --eval-only --resume scores"
                )
            if comm.is_main_process():
                check_expected(self.cfg.TEST.EXPECTED_RESULTS, results_of_run(self.folder))
            return
        if comm.is_main_process():  # here: a run that is refused or has nothing to do changes and opens no file
            if self.start_iter:
                write_whole(self.folder / "config.yaml", config_text(self.cfg))
            self.register_hooks([Writers(self.build_writers())])
        try:
            with self.signals:
                TrainerBase.train(self, self.start_iter, self.max_iter)
        except EndOfRunError as end:
            logger.info(str(end))
        if comm.is_main_process():
            check_expected(self.cfg.TEST.EXPECTED_RESULTS, self.results)

    def run_step(self) -> None:
        # The first step belongs to the set-up: what the config asks for runs, or a library says why it does not.
        is_first = self.iter == self.start_iter
        with translated("taking the first step") if is_first else nullcontext(), self._in_one_line():
            super().run_step()

    @contextmanager
    def _in_one_line(self) -> Iterator[None]:
        """Turn errors of the data, the learning rate or the machine into one line."""
        try:
            yield
        except NonFiniteLossError as error:
            inputs = self.inputs_of(error.iteration)
            raise report_non_finite(error, self.folder, *inputs, pixel_format(self.cfg)) from None
        except UnreadableImageError as error:
            raise UserError(told_by_worker(error, "UnreadableImageError")) from error
        except FloatingPointError as error:
            if "Inf/NaN" not in str(error):
                raise
            # Of a detector's boxes, before there is a loss.
            raise UserError(
                f"iteration {self.iter}: {first_line(error)} Lower SOLVER.BASE_LR, or warm it up (SOLVER.WARMUP_ITERS)"
            ) from error

    def inputs_of(self, iteration: int) -> tuple[dict | list[dict], list[str]]:
        """This process's batch of an iteration since the last gathering of metrics, and its images' file names."""
        batch = self._trainer.last_batch
        return batch, [record["file_name"] for record in batch]

    @staticmethod
    def prepare(batch: dict | list[dict], device: str) -> dict | list[dict]:
        """Prepare a batch of the loader for the step; part of its time."""
        return batch

    @staticmethod
    def metrics_period(cfg: CfgNode) -> int:
        """Steps whose losses are read together; more than one only where ``inputs_of`` knows earlier batches."""
        return 1
