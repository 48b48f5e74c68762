"""Tasks of the Long Range Arena (Tay et al. 2021, arXiv 2011.04006): ListOps, Retrieval, Pathfinder and Path-X.

Text, Image and the released files of Retrieval are ordinary data sets, which `hf_seqmix.data.labeled` loads.
`same_document_pairs` is a substitute for Retrieval where its files are not at hand. The functions `listops` and
`pathfinder` draw rows; no module has their names.
"""

from .listops_expressions import listops, listops_values
from .listops_tokenizer import listops_tokenizer
from .passage_pairs import load_documents, same_document_pairs
from .pathfinder_drawing import draw_scene, encode_png
from .pathfinder_geometry import PathfinderScene, pathfinder_scenes
from .pathfinder_pictures import pathfinder
from .pathfinder_settings import PathfinderSettings

__all__ = [
    "PathfinderScene",
    "PathfinderSettings",
    "draw_scene",
    "encode_png",
    "listops",
    "listops_tokenizer",
    "listops_values",
    "load_documents",
    "pathfinder",
    "pathfinder_scenes",
    "same_document_pairs",
]
