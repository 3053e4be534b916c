"""ToyScenes: a small drawn world on which every pipeline runs on a CPU.

``plan_image`` says what is in an image, ``draw_scene`` draws it, ``make_toy_scenes`` writes the whole data
set in the layouts that real loaders read. ``data_sets`` registers that data set's names.
"""

from projects.ToyScenes.classes import CLASS_NAMES
from projects.ToyScenes.plan import GENERATOR_VERSION, Split, plan_image
from projects.ToyScenes.scene import Scene, draw_scene
from projects.ToyScenes.write import make_toy_scenes

__all__ = ["CLASS_NAMES", "GENERATOR_VERSION", "Scene", "Split", "draw_scene", "make_toy_scenes", "plan_image"]
