"""Which folders become packages of the wheel; pyproject.toml has the rest."""

from pathlib import Path

from setuptools import find_packages, setup

# What is no package of a checkout lies inside revisit once it is installed (revisit/places.py).
HOME = {f"revisit.home.{folder}": folder for folder in ("tools", "configs", "datasets")}
DATA = {
    f"revisit.home.{folder}": [str(path.relative_to(folder)) for path in sorted(Path(folder).rglob("*.*"))]
    for folder in HOME.values()
}

setup(
    packages=[*find_packages(include=["revisit", "revisit.*", "projects", "projects.*"]), *HOME],
    package_dir=HOME,
    package_data={
        "revisit": ["py.typed"],
        "projects": ["*/configs/*.yaml", "*/*.yaml", "*/README.md", "RunReport/templates/*"],
        **DATA,
    },
)
