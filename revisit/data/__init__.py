"""Importing this package registers the fixed names of Revisit's data sets with Detectron2."""

from revisit.data.sources import catalog

catalog.register_all()
