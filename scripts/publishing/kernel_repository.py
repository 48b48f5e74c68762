r"""Writes the repository from which the library `kernels` loads the package's products along the sequence.

    python scripts/publishing/kernel_repository.py runs/seqmix --repo-id USER/seqmix
    hf upload USER/seqmix runs/seqmix --repo-type kernel

The repository serves models whose code was exported without kernels, with `use_kernels=True`, and holds

    build.toml        what `kernel-builder` reads; the kernels are in Triton, so nothing is compiled
    torch-ext/seqmix  the code: `hf_seqmix.ops` without what needs more than torch and Triton, and `layers.py`
    build/torch-...   the same code for each backend, with its metadata, as `kernels` loads it

Layers have the forwards of `hf_seqmix.modules.products`, which have no parameters. The code is the package's own, but
where the code names the package, the name of the module that `kernels` makes stands instead. So several versions fit
into a process.
"""

import argparse
import hashlib
import inspect
import json
import re
import shutil
import sys
import textwrap
from collections.abc import Sequence
from pathlib import Path

from torch import nn

import hf_seqmix
from hf_seqmix.hub import check_repo_id
from hf_seqmix.modules.products import PRODUCTS
from hf_seqmix.training.command import CommandParser

OPS = Path(hf_seqmix.__file__).parent / "ops"
FOLDERS = ("common", "toeplitz", "polynomial", "short_convolution", "ski")
LEFT_OUT = ("ski/native.py", "ski/c_library.py")
"""The kernel in C, which a user builds on purpose."""

BACKENDS = ("cpu", "cuda", "rocm")
"""Backends of the library for which there are products: torch computes on CPUs, Triton where it serves."""

EDITION = 5
"""Of the format of build.toml."""

ROOT = '__name__.partition(".")[0]'
"""In the code of the repository, the name of the module that `kernels` makes."""


def build_parser() -> argparse.ArgumentParser:
    """The command line."""
    parser = CommandParser(prog="kernel_repository.py", description=__doc__, allow_abbrev=False)
    parser.add_argument("folder", type=Path, help="folder to write; it must not exist yet")
    parser.add_argument("--repo-id", required=True, metavar="USER/NAME", help="where the folder will be uploaded")
    parser.add_argument("--version", type=int, default=1, help="version of the kernel, by which a mapping asks for it")
    return parser


def source_files() -> dict[str, str]:
    """Return the code of the repository, name -> text.

    Raises:
        ValueError: the code names the package in a way that this script does not know.
    """
    paths = [path for folder in FOLDERS for path in sorted((OPS / folder).rglob("*.py"))] + [OPS / "trials.py"]
    named = {path.relative_to(OPS).as_posix(): path.read_text(encoding="utf-8") for path in paths}
    files = {name: without_package(text, name) for name, text in named.items() if name not in LEFT_OUT}
    files["layers.py"] = layers_file()
    files["__init__.py"] = (
        '"""Products along the sequence, see layers.py."""\n\nfrom . import layers\n\n__all__ = ["layers"]\n'
    )
    return files


def without_package(text: str, name: str) -> str:
    """Return the text of a file with the name of the loaded module in place of the package's.

    Raises:
        ValueError: the package is still named where code runs.
    """
    text = text.replace('import_module(f"hf_seqmix.ops.{name}")', f'import_module({ROOT} + f".{{name}}")')
    text = re.sub(r'"hf_seqmix::(\w+)"', rf'{ROOT} + "::\1"', text)
    if re.search(r"hf_seqmix::|import_module\(f?.hf_seqmix|^\s*(from|import) hf_seqmix", text, flags=re.MULTILINE):
        raise ValueError(f"{name} names hf_seqmix in a way that a kernel repository cannot: see `without_package`.")
    return text


def layers_file() -> str:
    """Return layers.py: the forwards of `PRODUCTS`, in classes with nothing else, as `kernels` demands."""
    module = inspect.getsource(inspect.getmodule(PRODUCTS[0]) or nn.Module)
    imports = re.findall(r"^(?:from|import) [^\n(]*$", module, flags=re.MULTILINE)
    lines = [
        '"""The products as layers without parameters; `kernels` binds their forwards to the modules of a model."""'
    ]
    lines += ["", *(line.replace("from ..ops.", "from .") for line in imports)]
    lines += ["", f"__all__ = {sorted(product.__name__ for product in PRODUCTS)!r}".replace("'", '"')]
    for product in PRODUCTS:
        body = textwrap.dedent(inspect.getsource(product.forward))
        lines += ["", "", f"class {product.__name__}(nn.Module):", f'    """{product.__doc__}"""', ""]
        lines += [
            "    has_backward = True",
            "    can_torch_compile = True",
            "",
            textwrap.indent(body, "    ").rstrip(),
        ]
    return "\n".join(lines) + "\n"


def write_repository(folder: Path, repo_id: str, version: int = 1) -> Path:
    """Write the repository of kernels.

    Args:
        folder: of the repository; it must not exist yet.
        repo_id: "user/name"; the name is the kernel's, too.
        version: of the kernel.

    Returns:
        The folder.

    Raises:
        ValueError: for a folder that exists, or a name that the Hub or `kernels` does not take.
    """
    name = check_repo_id(repo_id).split("/")[1]
    if not re.fullmatch(r"[a-z][-a-z0-9]*[a-z0-9]", name):
        raise ValueError(f"the name of the kernel is {name!r}; it must be of small letters, digits and '-'.")
    if folder.exists():
        raise ValueError(f"{folder} exists, and nothing is replaced. Give another name.")
    files, module = source_files(), name.replace("-", "_")
    digest = hashlib.sha256("\0".join(files.values()).encode()).hexdigest()[:10]
    targets = {f"torch-ext/{module}": files}
    for backend in BACKENDS:
        metadata = {
            "name": name,
            "id": f"_{module}_{backend}_{digest}",
            "version": version,
            "license": "Apache-2.0",
            "python-depends": [],
            "backend": {"type": backend},
        }
        targets[f"build/torch-{backend}"] = {**files, "metadata.json": json.dumps(metadata, indent=2) + "\n"}
    targets["."] = {"build.toml": build_toml(name, repo_id, version), "README.md": card(repo_id, version)}
    try:
        for target, texts in targets.items():
            for file, text in texts.items():
                path = folder / target / file
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(text, encoding="utf-8")
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise
    return folder


def build_toml(name: str, repo_id: str, version: int) -> str:
    """Return the settings that `kernel-builder` reads."""
    backends = "".join(f'    "{backend}",\n' for backend in BACKENDS)
    return (
        f'[general]\nname = "{name}"\nversion = {version}\nedition = {EDITION}\nlicense = "Apache-2.0"\n'
        f'backends = [\n{backends}]\n\n[general.hub]\nrepo-id = "{repo_id}"\n\n[torch-noarch]\n'
    )


def card(repo_id: str, version: int) -> str:
    """Return the README of the repository."""
    layers = "\n".join(f"| `{product.kernel_layer_name}` | `{product.__name__}` |" for product in PRODUCTS)
    first = PRODUCTS[0]
    return f"""---
library_name: kernels
license: apache-2.0
tags:
- hf_seqmix
---

# {repo_id.split("/")[1]}

Products along the sequence for models of hf_seqmix {hf_seqmix.__version__}: in Triton, or in torch where Triton does
not serve. A kernel is compared with torch once a process before it is used. The kernels were not timed on a GPU.

| name of the layer in a model | layer of this repository |
| --- | --- |
{layers}

```python
from transformers import AutoModelForCausalLM, KernelConfig

layer = ("{repo_id}:{first.__name__}", {{"version": {version}, "trust_remote_code": True}})
model = AutoModelForCausalLM.from_pretrained(
    "USER/tnn",
    trust_remote_code=True,
    device_map="cuda",
    use_kernels=True,
    kernel_config=KernelConfig({{"{first.kernel_layer_name}": layer}}),
)
```
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Write what the command line says; returns 0, or 2 with one line about what is wrong."""
    arguments = build_parser().parse_args(argv)
    try:
        write_repository(arguments.folder, arguments.repo_id, arguments.version)
    except (ValueError, OSError) as error:
        print(f"kernel_repository.py: {' '.join(str(error).split())}", file=sys.stderr)
        return 2
    print(f"{arguments.folder}: build.toml, torch-ext, {', '.join(f'build/torch-{name}' for name in BACKENDS)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
