"""Rows, recipes and paths that the tests of finetune.py share."""

from pathlib import Path

RECIPES = Path(__file__).resolve().parents[3] / "scripts" / "recipes" / "lra"
SCRIPT = Path(__file__).resolve().parents[3] / "scripts" / "finetune.py"
TEXTS = ["a good film", "a bad film", "very good", "very bad", "good good", "bad bad", "so good", "so bad"]
LABELS = [1, 0] * 4
TABLE = {"text": TEXTS, "label": LABELS}
FAMILIES = ("tnn", "ski_tnn", "fd_tnn")


def from_scratch(script, tmp_path, recipe, family, files, *options):
    """A recipe at a tiny size on the CPU."""
    small = ["hidden_size=8", "intermediate_size=8", "num_hidden_layers=1"]
    return script.main(
        [
            *("--recipe", str(RECIPES / f"{recipe}.yaml"), "--family", family, "--config-overrides", *small),
            *("--output-dir", str(tmp_path / "out"), "--use-cpu", "--disable-tqdm", "true", *files),
            *("--cache-dir", str(tmp_path / "cache"), "--per-device-train-batch-size", "4", *options),
        ]
    )


def table(path, rows):
    path.write_text("\n".join("\t".join(map(str, row)) for row in rows) + "\n", encoding="utf-8")
    return str(path)
