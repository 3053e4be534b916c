#!/usr/bin/env python
"""Say what is installed, which devices and data sets there are, and what to do about what is missing.

    python tools/doctor.py

The exit code is 1 if something is missing that every run needs.
"""

import argparse
import os
import shutil
import sys
from contextlib import suppress
from importlib import import_module
from importlib.machinery import ModuleSpec
from importlib.metadata import PackageNotFoundError, distribution, version
from importlib.util import find_spec
from pathlib import Path

NAME = "revisit-detectron2"
OTHER = "revisit: another project of this name, the package index's (configurations of reVISit studies),"
OPTIONAL = {  # by package: what needs it
    "onnx": "revisit export",
    "onnxruntime": "revisit export, to compare what it wrote",
    "wandb": "WRITERS ('wandb',)",
    "mlflow": "WRITERS ('mlflow',)",
}
GIB = 2**30


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.parse_args()
    wrong = packages()
    if other := other_project():
        print(other)
        wrong.append("revisit")
    for name, say in SECTIONS.items():
        if name not in wrong:
            try:
                say()
            except Exception as error:  # of a package that is missing or does not import
                wrong.append(name)
                print(f"{name}: {words_of(error)}")
    machine()
    for package, used_by in OPTIONAL.items():
        if find_spec(package) is None:
            print(f"{package}: not installed, for {used_by} only: pip install {package}")
    sys.exit(bool(wrong))


def packages() -> list[str]:
    """Print the packages that every run needs; returns those that are missing, or do not import."""
    needed = {package: f"pip install {package}" for package in ("torch", "torchvision", "timm")}
    needed = {"revisit": f"install {NAME}: pip install -e . in its checkout, or pip install of its wheel", **needed}
    needed["detectron2"] = "revisit install-detectron2, or build it by detectron2.readthedocs.io"
    wrong = []
    print(f"python: {sys.version.split()[0]}, {sys.executable}")
    for package, remedy in needed.items():
        spec, problem = found(package)
        if spec is None or spec.origin is None:  # no origin: an empty folder of that name, not a package
            print(f"{package}: MISSING: {remedy}")
            wrong.append(package)
            continue
        try:
            print(f"{package}: {version(NAME if package == 'revisit' else package)}")
        except PackageNotFoundError:  # on Python's path, not installed
            print(f"{package}: {spec.origin}")
        if problem:
            print(f"{package}: {problem}")
            wrong.append(package)
    return wrong


def found(package: str) -> tuple[ModuleSpec | None, str]:
    """Where a package is, and why it would not import although it is there: what revisit.compat says of Detectron2."""
    try:
        return find_spec(package), ""
    except ImportError as error:
        return find_spec(package), str(error)


def other_project() -> str:
    """A line on the package index's ``revisit`` where it is what Python imports, or lies in one folder with this one;
    else nothing."""
    spec = find_spec("revisit")
    remedy = f"pip uninstall revisit {NAME}, then install {NAME} again"
    if spec and "compat" not in Path(spec.origin or os.devnull).read_text():
        return f"{OTHER} is what Python imports, from {spec.origin}: {remedy}"
    with suppress(PackageNotFoundError):
        if distribution("revisit").metadata["Summary"] != distribution(NAME).metadata["Summary"]:
            return f"{OTHER} is installed, too, and has files of the same names: {remedy}"
    return ""


def words_of(error: Exception) -> str:
    """One line, also where there is no revisit."""
    try:
        from revisit.errors import first_line, words_of_misfit
    except Exception:
        return str(error).partition("\n")[0]
    return words_of_misfit(error) or first_line(error)


def operators() -> None:
    """Print whether Detectron2 has its own."""
    from revisit.compat import has_compiled_operators

    absent = "none compiled, so no deformable convolution, rotated boxes or fast COCO evaluation"
    print(f"detectron2's operators: {'compiled' if has_compiled_operators() else absent}")


def gpus() -> None:
    """Print the GPUs that torch can use."""
    import torch

    for number in range(torch.cuda.device_count()):
        free, whole = (value / GIB for value in torch.cuda.mem_get_info(number))
        print(f"cuda:{number}: {torch.cuda.get_device_name(number)}, {free:.0f} of {whole:.0f} GiB free")
    if not torch.cuda.is_available():
        built = f"torch is built for CUDA {torch.version.cuda}: is there a GPU, and its driver (nvidia-smi)?"
        print(f"gpu: none that torch can use; {built if torch.version.cuda else 'this torch is built without CUDA'}")


def machine() -> None:
    """Print cores, memory and disk; Linux alone says which cores this process may use, and what memory is free."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    pages = {"SC_AVPHYS_PAGES": "free", "SC_PHYS_PAGES": "in all"}
    which = next(name for name in pages if name in os.sysconf_names)
    memory = os.sysconf(which) * os.sysconf("SC_PAGE_SIZE") / GIB
    print(f"cpu: {cores} cores, {memory:.0f} GiB of memory {pages[which]}")
    free = shutil.disk_usage(".").free / GIB
    print(f"disk: {free:.0f} GiB free here" + (", little: a long run of ResNet-50 writes 5 to 20" if free < 20 else ""))


def data_sets() -> None:
    """Print which of the fixed names have their files under $DETECTRON2_DATASETS."""
    from projects.FrozenEvaluations import data_sets as classification
    from revisit.data.sources.catalog import datasets_root
    from revisit.data.sources.named_sets import SOURCES

    root, found = datasets_root(), []
    for name, source in (SOURCES | classification.SOURCES).items():
        places = source.where if isinstance(source.where, tuple) else (source.where,)
        found += [name] if any((root / place).exists() for place in places) else []
    found += ["toy_scenes and its kin"] if (root / "toy_scenes").is_dir() else []
    none = "none of the fixed names; your own photographs need none: DATASETS.TRAIN \"('folder:DIR',)\""
    print(f"data sets in {root.resolve()}: {', '.join(found) or none}")


SECTIONS = {
    "torchvision": lambda: import_module("torchvision"),
    "detectron2's operators": operators,
    "gpu": gpus,
    "data sets": data_sets,
}

if __name__ == "__main__":
    try:
        from revisit.engine.command import run_command
    except (Exception, SystemExit):  # there is none, or it is the other project, which may fail in any way
        main()
    else:
        run_command(main)
