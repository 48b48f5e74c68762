"""Run scripts/pretrain.py and scripts/finetune.py again and again in forked processes that kill themselves.

The driver reads one request a line from its standard input and answers each request with a line:

    {"script": "pretrain", "argv": [...], "log": PATH, "seen": PATH, "ranks": 1, "kill": {...}, "killed": [0]}
    {"status": [-9], "seconds": 1.5}

`status` has the exit code of each rank: -9 for a kill by SIGKILL, null for a rank that did not end in time. `kill` is
one of

    {"step": 5}                             in the middle of the backward pass of the fifth batch
    {"write": PATTERN, "share": 0.5}        with half of the file written whose path the pattern finds
    {"replace": PATTERN}                    just before a finished file is renamed to such a path
    {"remove": PATTERN}                     with half of the files of such a folder removed

`seen` is the file to which each rank writes a digest of every batch that the rank trains on. A request given as an
argument is handled in this very process, for torchrun.
"""

import hashlib
import importlib
import io
import json
import os
import re
import shutil
import signal
import socket
import sys
import time
import traceback
from pathlib import Path
from typing import Any

SCRIPTS = Path(__file__).resolve().parents[2] / "scripts"
LIMIT = 300.0
"""Seconds after which what still runs counts as hanging."""


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def die_in_step(number: int) -> None:
    from transformers import Trainer

    training_step = Trainer.training_step
    calls = 0

    def step(self: Any, model: Any, *args: Any, **kwargs: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == number:
            parameters = list(model.parameters())
            parameters[len(parameters) // 2].register_hook(lambda gradient: die())
        return training_step(self, model, *args, **kwargs)

    Trainer.training_step = step


def die_in_write(pattern: str, share: float) -> None:
    """Let the writers of all libraries write only a share of such a file, and then die."""
    import safetensors.torch
    import torch
    import transformers.modeling_utils
    from transformers import TrainerState

    def part(path: Any, content: bytes) -> None:
        with open(path, "wb") as file:
            file.write(content[: round(share * len(content))])
        die()

    save, save_file, save_json = torch.save, transformers.modeling_utils.safe_save_file, TrainerState.save_to_json

    def torch_save(obj: Any, path: Any, *args: Any, **kwargs: Any) -> None:
        if isinstance(path, (str, Path)) and re.search(pattern, str(path)):
            buffer = io.BytesIO()
            save(obj, buffer)
            part(path, buffer.getvalue())
        save(obj, path, *args, **kwargs)

    def safetensors_save(tensors: Any, path: Any, metadata: Any = None) -> None:
        if re.search(pattern, str(path)):
            part(path, safetensors.torch.save(tensors, metadata))
        save_file(tensors, path, metadata)

    def state_save(self: Any, path: str) -> None:
        save_json(self, path)
        if re.search(pattern, path):
            part(path, Path(path).read_bytes())

    torch.save, transformers.modeling_utils.safe_save_file = torch_save, safetensors_save
    TrainerState.save_to_json = state_save


def die_in_replace(pattern: str) -> None:
    replace = Path.replace
    found = 0

    def checked(self: Path, target: Any) -> Any:
        nonlocal found
        if re.search(pattern, str(target)):
            found += 1
            # A manifest is written twice; the first one opens the checkpoint.
            if found == (2 if "manifest" in pattern else 1):
                die()
        return replace(self, target)

    Path.replace = checked


def die_in_remove(pattern: str) -> None:
    rmtree = shutil.rmtree

    def checked(path: Any, *args: Any, **kwargs: Any) -> None:
        files = sorted(Path(path).glob("*"))
        if re.search(pattern, str(path)) and files:
            for file in files[: len(files) // 2]:
                file.unlink()
            die()
        rmtree(path, *args, **kwargs)

    shutil.rmtree = checked


def record_batches(path: str, rank: int) -> None:
    from transformers import Trainer

    training_step = Trainer.training_step

    def step(self: Any, model: Any, inputs: Any, *args: Any, **kwargs: Any) -> Any:
        digest = hashlib.sha256(inputs["input_ids"].numpy().tobytes() + inputs["labels"].numpy().tobytes()).hexdigest()
        with open(f"{path}.{rank}", "a") as file:
            file.write(f"{self.state.global_step} {digest}\n")
        return training_step(self, model, inputs, *args, **kwargs)

    Trainer.training_step = step


def run(request: dict[str, Any], rank: int) -> int:
    """Run the script in a rank, with the kill in place, and return the exit code."""
    log = open(f"{request['log']}.{rank}", "ab", buffering=0)  # noqa: SIM115
    os.dup2(log.fileno(), 1)
    os.dup2(log.fileno(), 2)
    try:
        if "seen" in request:
            record_batches(request["seen"], rank)
        kill = request.get("kill")
        if kill and rank in request.get("killed", [0]):
            if "step" in kill:
                die_in_step(kill["step"])
            elif "write" in kill:
                die_in_write(kill["write"], kill["share"])
            elif "replace" in kill:
                die_in_replace(kill["replace"])
            else:
                die_in_remove(kill["remove"])
        importlib.import_module(request["script"]).main(request["argv"])
    except SystemExit as error:
        print(error, file=sys.stderr, flush=True)
        return 1
    except BaseException:
        traceback.print_exc()
        return 1
    return 0


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def handle(request: dict[str, Any]) -> dict[str, Any]:
    ranks = request.get("ranks", 1)
    port = free_port()
    children: dict[int, int] = {}
    began = time.monotonic()
    for rank in range(ranks):
        child = os.fork()
        if child == 0:
            os.close(0)
            if ranks > 1:
                os.environ.update(
                    RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(ranks), LOCAL_WORLD_SIZE=str(ranks)
                )
                os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
            os._exit(run(request, rank))
        children[child] = rank
    status: list[int | None] = [None] * ranks
    while children and time.monotonic() - began < LIMIT:
        child, code = os.waitpid(-1, os.WNOHANG)
        if child:
            status[children.pop(child)] = os.waitstatus_to_exitcode(code)
        else:
            time.sleep(0.01)
    for child in children:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    return {"status": status, "seconds": time.monotonic() - began}


def main() -> None:
    sys.path.insert(0, str(SCRIPTS))
    if len(sys.argv) == 2:
        sys.exit(run(json.loads(sys.argv[1]), int(os.environ.get("RANK", "0"))))
    for script in ("pretrain", "finetune"):
        importlib.import_module(script)
    for line in sys.stdin:
        print(json.dumps(handle(json.loads(line))), flush=True)


if __name__ == "__main__":
    main()
