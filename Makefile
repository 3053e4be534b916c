# `make` alone says what there is. `make env` makes .venv; PYTHON=/path/to/python uses a ready environment instead.

VENV := .venv
PEERS := .peers
ifeq ($(origin PYTHON),undefined)
PYTHON := $(VENV)/bin/python
STAMP := $(VENV)/.complete
TESTED := $(VENV)/.tested
else
# A ready environment may not have this package installed: find it in this checkout.
export PYTHONPATH := $(CURDIR)$(addprefix :,$(PYTHONPATH))
endif

# uv installs where it is found, in a quarter of pip's time; `make env UV=` leaves it out.
UV := $(shell command -v uv)
USABLE := $(if $(UV),,import venv; import ensurepip; )import sys; sys.exit(not (3, 11) <= sys.version_info < (3, 15))
NAMES := python3.12 python3.11 python3.13 python3.14 python3
BOOTSTRAP ?= $(firstword $(foreach p,$(NAMES),$(shell $(p) -c '$(USABLE)' 2>/dev/null && echo $(p))))
VENV_BY = $(if $(UV),$(UV) venv --clear --no-python-downloads --python $(BOOTSTRAP),$(BOOTSTRAP) -m venv --clear)
INSTALL = $(if $(UV),$(UV) pip install --python $(PYTHON),$(PYTHON) -m pip --disable-pip-version-check install)
CONSTRAINTS := constraints.txt
# Wheels of torch for machines without a GPU, which the package index does not have for Linux: pages or a folder.
CPU_WHEELS := $(addprefix https://download.pytorch.org/whl/cpu/,torch torchvision)
TORCH = torch torchvision $(if $(CPU),$(addprefix --find-links ,$(CPU_WHEELS)))
HAS_GPU := $(wildcard /dev/nvidia0 /dev/dxg)$(filter Darwin,$(shell uname))
PIP = $(INSTALL) --constraint $(CONSTRAINTS)
NAMES_IN = grep -hoiE '^[a-z0-9][a-z0-9_.-]*' $(1) | tr 'A-Z_' 'a-z-' | sort -u
RESOLVE = $(UV) pip compile --quiet --upgrade --all-extras pyproject.toml --output-file
SOURCES := $(wildcard revisit tools projects studies examples tests setup.py datasets notebooks)

.PHONY: help env test lint docs format demo notebook check-real check-real-weights check-cases check-peers check-gpu check-studies check-docs check-wheel check-versions check-container check-platforms detectron2-main fuzz weight

help:  ## this text
	@echo 'Revisit: kNN-MoCo pretraining inside Detectron2'
	@echo
	@awk -F ':.*## *' '/^[a-z0-9-]*:.*## / { printf "  make %-20s %s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST))
	@echo
	@echo 'All but help make the environment first if there is none (a few minutes, 5 GB; 6 for tests). Variables:'
	@echo '  PYTHON=/path/to/python     use this interpreter and its packages (any Detectron2); install nothing'
	@echo '  BOOTSTRAP=/path/to/python  make .venv with this Python 3.11 to 3.14'
	@echo '  CONSTRAINTS=FILE VENV=DIR  make DIR with other versions, and take it'
	@echo '  CPU=1                      torch without CUDA, from CPU_WHEELS: PyTorch, or a folder that you name'
	@echo '  UV=                        install by pip, where uv is found, too'

env: $(STAMP)  ## make .venv: torch, Detectron2, and what else is needed
	@$(PYTHON) tools/install_detectron2.py --dry-run

$(VENV)/.complete: pyproject.toml setup.py $(CONSTRAINTS) tools/install_detectron2.py
	@$(or $(BOOTSTRAP),false) -c '$(USABLE)' 2>/dev/null || { echo \
		'make: $(if $(BOOTSTRAP),$(BOOTSTRAP) is not,none of $(NAMES) is) Python 3.11 to 3.14$(if $(UV),, with its' \
		'venv module): expected one, by make env BOOTSTRAP=/path/to/python' >&2; exit 1; }
	@$(PYTHON) -c 'import pip' 2>/dev/null || { echo '== 1/4 $(VENV), by $(BOOTSTRAP)'; $(VENV_BY) $(VENV); }
	$(PIP) pip setuptools wheel
	@echo '== 2/4 torch and torchvision (the long one)'
	@$(if $(CPU)$(HAS_GPU),,echo 'no NVIDIA device here: where none will be, make env CPU=1 takes 1.6 GB in place of 5.3')
	$(PIP) $(TORCH)
	@echo '== 3/4 everything else, and this package'
	$(PIP) --no-build-isolation --editable '.[detectron2-needs,dicom,export,imagenet,tiff]'
	@echo '== 4/4 Detectron2, if there is none'
	$(PYTHON) tools/install_detectron2.py
	@touch $@

# What tests and checks need, and nobody else.
$(VENV)/.tested: $(STAMP)
	$(PIP) --no-build-isolation --editable '.[detectron2-needs,dev]'
	@touch $@

test: $(TESTED)  ## run the tests, in one process more than cores
	@# One thread a process: the processes have the cores. Bytecode is kept, or each process would compile the project.
	OMP_NUM_THREADS=1 PYTHONDONTWRITEBYTECODE= $(PYTHON) -m pytest \
		$$($(PYTHON) -c 'import xdist' 2>/dev/null && echo --numprocesses auto --dist loadfile --no-loadscope-reorder)

lint: $(TESTED) docs  ## check style, formatting, types of what is public, the site and its links
	$(PYTHON) -m ruff check $(SOURCES)
	$(PYTHON) -m ruff format --check $(SOURCES)
	$(PYTHON) -m mypy

docs: $(TESTED)  ## build the site of the same pages, build/site/index.html; a dead link fails
	rm -rf build/docs && mkdir -p build/docs
	git ls-files -- '*.md' '*.png' '*.svg' '*.gif' '*.yaml' '*.py' '*.txt' '*.ipynb' '*.cff' LICENSE Makefile \
		docs/site.css 'projects/Pictures/templates/tables.*' \
		| tar -cf - -T - | tar -xf - -C build/docs
	@# Not --quiet, which also hides the warnings that mkdocs counts: a dead link would then pass.
	PYTHONPATH=. NO_MKDOCS_2_WARNING=1 $(PYTHON) -m mkdocs build

format: $(TESTED)  ## fix formatting and what else ruff can fix
	$(PYTHON) -m ruff check --fix $(SOURCES)
	$(PYTHON) -m ruff format $(SOURCES)

demo: $(STAMP)  ## a small run on made-up images, on a CPU, start to end
	$(PYTHON) tools/demo.py

notebook: $(TESTED)  ## run the notebook, ten minutes, and store what it shows
	$(PYTHON) notebooks/execute.py

check-studies: $(TESTED)  ## the tests of our own experiments and benchmarks
	OMP_NUM_THREADS=1 $(PYTHON) -m pytest -m studies tests/studies

check-docs: $(TESTED)  ## run the commands of all pages, the notebook and the demo, on small data, for a few iterations
	OMP_NUM_THREADS=1 $(PYTHON) -m pytest -m docs

check-real: $(TESTED)  ## the tests that need real data sets
	$(PYTHON) -m pytest -m real_data

check-real-weights: $(TESTED)  ## of these, in two minutes: ImageNet weights of the package index, converted
	$(PYTHON) -m pytest -m real_data tests/projects/weights/test_imagenet_packages.py

check-cases: $(TESTED)  ## small inputs after public reports, ../shared/cases: what is right and what we make of it
	OMP_NUM_THREADS=1 PYTHONPATH=.$(addprefix :,$(PYTHONPATH)) $(PYTHON) -W ignore tests/check_cases.py

check-peers: $(PEERS)/.complete  ## our losses, Sinkhorn, kNN, metrics and readers against four other libraries; jobs on Ray
	PYTHONPATH=$(PEERS)$(addprefix :,$(PYTHONPATH)) $(PYTHON) -m pytest -m peers tests/peers

# Beside the project's packages, not among them.
$(PEERS)/.complete: tests/peers/packages.txt $(TESTED)
	rm -rf $(PEERS)
	$(PYTHON) -m pip --disable-pip-version-check install --no-deps --target $(PEERS) --requirement $<
	@touch $@

check-gpu: $(TESTED)  ## on a machine with a GPU: an ordered list of checks, 30 minutes, into one page
	$(PYTHON) studies/benchmarks/check_gpu.py --output $(or $(OUTPUT),output/check_gpu)

check-wheel: $(TESTED)  ## build dist/*.whl; in an empty folder and a new environment run what it has: HOW=venv, uv, uv-tool, pipx
	rm -rf build/lib build/bdist.* dist && $(PYTHON) -m build --wheel --no-isolation --outdir dist
	.ci/check-wheel "$(BOOTSTRAP)" $(HOW)

check-versions:  ## by uv: versions that pyproject.toml allows, the lowest and the newest, in build/ as CONSTRAINTS
	@test -n '$(UV)' || { echo 'make: check-versions needs uv: pip install uv' >&2; exit 1; }
	mkdir -p build
	$(RESOLVE) build/lowest.txt --python-version 3.11 --resolution lowest-direct
	$(RESOLVE) build/newest.txt --python-version 3.14
	for minor in 11 12 13 14; do \
		$(RESOLVE) build/pinned-3.$$minor.txt --python-version 3.$$minor --constraint constraints.txt || exit 1; done
	@! $(call NAMES_IN,build/pinned-*.txt) | grep -vxF "$$($(call NAMES_IN,constraints.txt tests/peers/packages.txt))" \
		|| { echo 'make: expected a version of each of these in constraints.txt' >&2; exit 1; }

check-container:  ## run the Dockerfile's steps in a clean root file system (needs root and debootstrap)
	.ci/check-container

check-platforms:  ## the same and make test on Debian 12, 13 and testing, with their Pythons: a table
	.ci/check-platforms $(SUITES)

detectron2-main: $(STAMP)  ## replace Detectron2 in .venv by its main branch
	$(PIP) --no-build-isolation --no-deps --force-reinstall git+https://github.com/facebookresearch/detectron2

fuzz: $(TESTED)  ## 3,000 damaged files, odd names, mutated configs each; resumes with other keys; laws of drawn values
	FUZZ_CASES=$(or $(FUZZ_CASES),3000) OMP_NUM_THREADS=1 $(PYTHON) -m pytest -m fuzz
	OMP_NUM_THREADS=1 $(PYTHON) -m pytest -m hypothesis --hypothesis-profile=drawn

weight: $(TESTED)  ## what a reader has to hold: syntax nodes, branches, files that read the config, files to open
	PYTHONPATH=. $(PYTHON) studies/benchmarks/weight.py --dynamic 2>/dev/null
