import json

import datasets
import pytest

from hf_seqmix.data.labeled import GLUE_TASKS, load_glue, load_labeled


@pytest.fixture
def load(tmp_path):
    def run(name, content, **options):
        path = tmp_path / name
        path.write_bytes(content if isinstance(content, bytes) else content.encode("utf-8"))
        return load_labeled({"train": path}, cache_dir=tmp_path / "cache", **options)["train"]

    return run


def test_tsv_has_no_quotes_and_no_missing_words(load):
    rows = load("a.tsv", '\ufeffsentence\tlabel\nsay "no\t0\nNA\t1\nnull é\t1\n')
    assert rows.column_names == ["sentence", "label"]
    assert rows["sentence"][:] == ['say "no', "NA", "null é"]
    assert rows["label"][:] == [0, 1, 1]


def test_csv_has_quotes(load):
    rows = load("a.csv", 'text,label\n"one, two\nlines",yes\nNA,no\n')
    assert rows["text"][:] == ["one, two\nlines", "NA"] and rows["label"][:] == ["yes", "no"]


def test_files_without_header(load):
    rows = load("a.tsv", "x\t1\tfirst\ny\t0\tsecond\n", header=False)
    assert rows.column_names == ["0", "1", "2"] and rows["2"][:] == ["first", "second"]
    named = load("b.csv", "x,1\ny,0\n", header=False, columns=["text", "label"])
    assert named["text"][:] == ["x", "y"]
    long = load("c.tsv", f"1\t{'word ' * 40_000}\n0\tshort\n", header=False)  # longer than the csv module's limit
    assert long.column_names == ["0", "1"] and len(long["1"][0]) == 200_000


def test_paths_start_from_the_table(load, tmp_path, monkeypatch):
    """A file beside the table comes before one in the working directory, which is found where it is alone."""
    here = tmp_path / "here"
    for path in ("pictures/both.png", "here/pictures/both.png", "here/pictures/only.png"):
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).touch()
    monkeypatch.chdir(here)
    given = ["pictures/both.png", "pictures/only.png", "pictures/none.png", "/a/b.png", "https://a/b.png", ""]
    content = "image,label,other\n" + "".join(f"{path},0,pictures/both.png\n" for path in given)
    rows = load("a.csv", content, paths=["image", "img", "label"])
    beside = [str(tmp_path / "pictures" / f"{name}.png") for name in ("both", "none")]
    assert rows["image"][:] == [beside[0], "pictures/only.png", beside[1], *given[3:]]
    assert rows.column_names == ["image", "label", "other"]
    assert rows["label"][:] == [0] * 6 and set(rows["other"]) == {"pictures/both.png"}
    assert load("a.csv", content)["image"][:] == given


@pytest.mark.parametrize("name", ["a.json", "a.jsonl", "a.parquet"])
def test_other_formats_give_the_same_rows(load, name, tmp_path):
    rows = [{"text": "one", "label": [0, 1]}, {"text": "two", "label": []}]
    if name == "a.parquet":
        path = tmp_path / "source.parquet"
        datasets.Dataset.from_list(rows).to_parquet(path)
        content = path.read_bytes()
    else:
        content = json.dumps(rows) if name == "a.json" else "\n".join(map(json.dumps, rows))
    assert list(load(name, content)) == rows


def test_squad_files_are_flattened(load):
    article = {
        "title": "France",
        "paragraphs": [
            {
                "context": "Paris is in France.",
                "qas": [
                    {"id": "1", "question": "Where is Paris?", "answers": [{"text": "France", "answer_start": 12}]},
                    {"id": "2", "question": "Who?", "answers": [], "is_impossible": True},
                ],
            }
        ],
    }
    for content in ({"version": "2.0", "data": [article]}, {"data": [article]}):
        rows = load("squad.json", json.dumps(content))
        assert rows["question"][:] == ["Where is Paris?", "Who?"]
        assert rows[0]["answers"] == {"text": ["France"], "answer_start": [12]}
        assert rows[1]["answers"] == {"text": [], "answer_start": []}


@pytest.mark.parametrize(
    "name, content, message",
    [
        ("a.csv", b"", "empty"),
        ("a.csv", b"text,label\n", "no rows"),
        ("a.tsv", b"text\tlabel\n\xff\t1\n", "not UTF-8"),
        ("a.xlsx", b"text", r"'\.xlsx'; files that can be read end in \.csv"),
        ("a", b"text", "has no extension; files that can be read end in"),
        ("a.json", b"{not json", "could not be read as json"),
        ("a.parquet", b"not parquet", "could not be read as parquet"),
    ],
)
def test_files_that_cannot_be_read(load, name, content, message):
    with pytest.raises(ValueError, match=message):
        load(name, content)


def test_missing_file_and_unknown_hub_name(tmp_path):
    with pytest.raises(ValueError, match=r"there is no file .*nowhere\.csv"):
        load_labeled({"train": tmp_path / "nowhere.csv"})
    with pytest.raises(ValueError, match="could not be loaded"):
        load_labeled("nobody/nothing", cache_dir=tmp_path)


@pytest.mark.parametrize("name", ["a[1]b", "a1*", "my:images", "~/a[1]b"])
def test_a_folder_is_one_name(name, tmp_path, monkeypatch):
    """Neither a pattern, which other folders fit, nor a data set and its configuration."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    for folder, text in (("a1b", "other"), (name.removeprefix("~/"), "own")):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "train.csv").write_text(f"text\n{text}\n", encoding="utf-8")
        (tmp_path / folder / "test.csv").write_text(f"text\n{text} test\n", encoding="utf-8")
    loaded = load_labeled(name, cache_dir=tmp_path / "cache")
    assert {split: rows["text"][:] for split, rows in loaded.items()} == {"train": ["own"], "test": ["own test"]}


def test_a_damaged_file_of_a_folder_is_an_error_that_says_so(tmp_path):
    (tmp_path / "train.jsonl").write_text('{"text": "a"}\n{"text": \n', encoding="utf-8")
    with pytest.raises(ValueError, match=r"could not be read: .*Check that each file is what its ending says"):
        load_labeled(str(tmp_path), cache_dir=tmp_path / "cache")


GLUE_FILES = {
    "cola": "gj04\t1\t\tA sentence.\ngj04\t0\t*\tSentence a.\n",
    "sst2": "sentence\tlabel\ngood \t1\nbad \t0\n",
    "mrpc": '\ufeffQuality\t#1 ID\t#2 ID\t#1 String\t#2 String\n1\t1\t2\tOne " .\tTwo .\n0\t3\t4\tThree .\tFour .\n',
    "stsb": "index\tgenre\tfilename\tyear\told_index\tsource1\tsource2\tsentence1\tsentence2\tscore\n"
    "0\tg\tf\t2012\t1\tn\tn\tOne.\tTwo.\t5.000\n1\tg\tf\t2012\t1\tn\tn\tThree.\tFour.\t0.5\n",
    "rte": "index\tsentence1\tsentence2\tlabel\n0\tOne.\tTwo.\tnot_entailment\n1\tThree.\tFour.\tentailment\n",
}


@pytest.mark.parametrize("task", sorted(GLUE_FILES))
@pytest.mark.parametrize("nested", [True, False])
def test_glue_files(tmp_path, task, nested):
    folder = tmp_path / GLUE_TASKS[task].folder if nested else tmp_path
    folder.mkdir(exist_ok=True)
    for name in ("train.tsv", "dev.tsv"):
        (folder / name).write_text(GLUE_FILES[task], encoding="utf-8")
    splits, entry = load_glue(task, tmp_path, cache_dir=tmp_path / "cache")
    assert set(splits) == {"train", "validation"}
    for rows in splits.values():
        assert len(rows) == 2
        assert all(isinstance(text, str) for column in entry.text_columns for text in rows[column])
        assert len(set(rows[entry.label_column])) == 2


def test_glue_tasks_that_are_not_there(tmp_path):
    with pytest.raises(ValueError, match=r"no GLUE task 'sst'; allowed are cola, sst2"):
        load_glue("sst", tmp_path)
    with pytest.raises(ValueError, match=r"there is neither .*SST-2/train\.tsv nor .*train\.tsv"):
        load_glue("sst2", tmp_path)


def test_names_of_files_are_no_patterns(load, tmp_path):
    (tmp_path / "t1.csv").write_text("text,label\nanother,1\n")
    assert load("t[1].csv", "text,label\nright,0\n")["text"][:] == ["right"]
    assert load("only[2]*?.csv", "text,label\nalone,0\n")["text"][:] == ["alone"]


@pytest.mark.parametrize("columns", ["paragraphs,label", "data", "data,version"])
def test_columns_of_text_are_no_nested_questions(load, columns):
    rows = load("a.csv", f"{columns}\n{','.join('x' for _ in columns.split(','))}\n")
    assert rows.column_names == columns.split(",")


def test_a_column_may_be_called_paragraphs(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_text('{"paragraphs": ["x", "y"], "text": "a", "label": 0}\n')
    assert set(load_labeled({"train": path})["train"].column_names) == {"paragraphs", "text", "label"}


@pytest.mark.parametrize("version", [{}, {"version": "1.1"}])
def test_records_that_are_no_articles_are_rows(load, version):
    records = [{"text": "a", "label": 0}, {"text": "b", "label": 1, "source": "x"}]
    rows = load("a.json", json.dumps({**version, "data": records}))
    assert rows.to_dict() == {"text": ["a", "b"], "label": [0, 1], "source": [None, "x"]}
    words = load("b.json", json.dumps({**version, "data": ["a", "b"]}))
    assert words["data"][:] == [["a", "b"]]
    with pytest.raises(ValueError, match=r"c\.json has no rows"):
        load("c.json", json.dumps({**version, "data": []}))


def squad(*questions):
    paragraphs = [{"context": "Paris is in France.", "qas": list(questions)}]
    return json.dumps({"data": [{"title": "t", "paragraphs": paragraphs}]})


def test_squad_files_to_predict_for(load):
    rows = load("squad.json", squad({"id": "1", "question": "Where?"}, {"id": "2", "question": "Who?"}))
    assert rows["id"][:] == ["1", "2"] and "answers" not in rows.column_names


@pytest.mark.parametrize(
    ("second", "message"),
    [
        ({"id": "2", "question": "Who?"}, "1 of 2 questions have no answers, the first is '2'"),
        ({"question": "Who?", "answers": []}, "a question has no id: "),
    ],
)
def test_squad_files_with_gaps(load, second, message):
    with pytest.raises(ValueError, match=message):
        load("squad.json", squad({"id": "1", "question": "Where?", "answers": []}, second))


@pytest.mark.parametrize(("name", "mark"), [("a.csv", ","), ("a.tsv", "\t")])
def test_columns_of_numbers_after_a_zero_stay_text(load, name, mark):
    rows = [("01", "label", "share"), ("0", "01", "0.5"), ("10", "10", "01.5")]
    content = "".join(f"{mark.join(row)}\n" for row in rows)
    found = load(name, content)
    assert found[:] == {"01": [0, 10], "label": ["01", "10"], "share": [0.5, 1.5]}
    assert load(name, content, header=False)["0"][:] == ["01", "0", "10"]


@pytest.mark.parametrize("name", ["squad.json", "squad.jsonl"])
def test_articles_without_paragraphs_are_named(load, name):
    articles = [*json.loads(squad({"id": "1", "question": "Where?"}))["data"], {"title": "empty"}]
    content = json.dumps({"data": articles}) if name == "squad.json" else "\n".join(map(json.dumps, articles))
    with pytest.raises(ValueError, match=rf"article 1 of .*{name}, titled 'empty', has no paragraphs: give a list"):
        load(name, content)


@pytest.mark.parametrize(
    ("content", "options", "message"),
    [
        ("text,label,label\na,0,1\n", {}, "several columns named 'label'"),
        ("text,label\nb\n", {}, "rows of .* have 1 fields and 2 columns: give a field for each"),
        ("x,1\n", {"header": False, "columns": ["a", "b", "c"]}, "have 2 fields and 3 columns"),
        ("text,label\n", {}, "has no rows below its header"),
    ],
)
def test_tables_whose_columns_do_not_fit(load, content, options, message):
    with pytest.raises(ValueError, match=message):
        load("a.csv", content, **options)
