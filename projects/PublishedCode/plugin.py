"""Adds the keys and the mapper of published pixel protocols."""

from projects.PublishedCode import published_mapper as published_mapper
