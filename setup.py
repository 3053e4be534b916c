"""What this package needs, and why; constraints.txt has the exact versions that `make env` installs."""

from setuptools import find_packages, setup

# What Detectron2 0.6 declares and uses, for `make env`, which installs it without its dependencies. Its model zoo
# imports pkg_resources, which setuptools 81 does not have.
DETECTRON2_NEEDS = """
    cloudpickle fvcore>=0.1.5,<0.1.6 hydra-core>=1.1 iopath>=0.1.7,<0.1.10 matplotlib omegaconf>=2.1 pycocotools>=2.0.2
    setuptools<81 tabulate tensorboard termcolor>=1.1 tqdm>4.29.0 yacs>=0.1.8
"""

setup(
    name="revisit",
    version="0.1.0",
    description="kNN-MoCo self-supervised pretraining inside Detectron2",
    license="Apache-2.0",
    python_requires=">=3.11,<3.13",
    packages=find_packages(include=["revisit", "revisit.*", "projects", "projects.*"]),
    package_data={"projects.RunReport": ["templates/*", "*.yaml"], "projects.PaperTables": ["*.yaml"]},
    # Detectron2 is not here: the package index has none by that name, and one that somebody built with its compiled
    # operators must never be replaced. Where there is none, `make env` runs tools/install_detectron2.py.
    install_requires=[
        "filelock>=3.13",  # one run in one folder; torch brings it anyway
        "fsspec>=2024.2",  # shards at URLs; torch brings it anyway
        "fvcore>=0.1.5",  # Detectron2's checkpointer, registry and transform base classes
        "jinja2>=3.1",  # the template of tools/report.py's page; torch brings it anyway
        "numpy>=1.26",  # first with wheels for Python 3.12
        "opencv-python-headless>=4.11",  # decoding and resizing; headless, because nothing here opens a window
        "pillow>=10",  # palette-preserving reading of masks
        "plotly>=6",  # that page's curves; brings the script that draws them, so that no network is needed
        "pycocotools>=2.0.2",  # run-length masks
        "pyyaml>=6",  # settings written beside a run and read back
        "safetensors>=0.4",  # backbones in the format that model hubs share
        "scikit-learn>=1.5",  # logistic regression on frozen features
        "scipy>=1.11",  # SBD's masks are MATLAB files
        "timm>=1.0.20",  # its networks as backbones: the first release where nearly all return maps
        "torch>=2.6",  # first whose torch.load runs no code from a file unless asked to
        "torchvision>=0.21",  # torch 2.6's partner: the compiled NMS and RoIAlign that Detectron2 calls
        "tqdm>=4.60",  # progress of the scripts that write data
    ],
    extras_require={
        "detectron2-needs": DETECTRON2_NEEDS.split(),
        "dev": [
            "alembic>=1.13",  # with sqlalchemy: the SQLite database of WRITERS ("mlflow",)
            "hypothesis>=6",  # property tests
            "mlflow-skinny>=3",  # WRITERS: mlflow without its server
            "onnx>=1.17",  # tools/export_model.py writes it
            "onnxruntime>=1.20",  # and compares what it computes
            "pytest>=8",  # the test suite
            "pytest-xdist>=3.6",  # all cores at it: one core needs 20 minutes
            "ruff>=0.8",  # `make lint`
            "sqlalchemy>=2",  # with alembic
            "wandb>=0.21",  # WRITERS
        ],
    },
)
