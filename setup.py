"""Which folders become packages of the wheel; pyproject.toml has the rest."""

from pathlib import Path

from setuptools import find_namespace_packages, setup

# What is no package of a checkout lies inside revisit once it is installed (revisit/plugins.py).
FOLDERS = [Path("tools"), Path("datasets"), *Path("configs").glob("**/"), *Path("projects").glob("*/configs")]
HOME = {".".join(("revisit", "home", *folder.parts)): str(folder) for folder in FOLDERS}

setup(
    packages=[
        *find_namespace_packages(include=["revisit*", "projects*"], exclude=["*__pycache__*", "*.configs"]),
        *HOME,
    ],
    package_dir=HOME,
    package_data={"": ["*.yaml", "*.md", "*.j2", "*.html", "*.css", "*.js"], "revisit": ["py.typed"]},
)
