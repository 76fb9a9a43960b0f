"""What sample.py promises: the text alone on stdout, the same text for the same seed, one line for each fault."""

import json
import re
import unicodedata

import pytest

from data.tokenizer import MARK, load
from tests.conftest import door, process


def sample(run, *arguments, **more):
    result = door("sample", "--run", run, *arguments, cwd=run.parent, **more)
    assert "Traceback" not in result.stderr
    return result


def as_json(run, *arguments):
    result = sample(run, "--json", *arguments)
    assert result.returncode == 0, result.stderr
    return [json.loads(line) for line in result.stdout.splitlines()]


def test_stdout_is_the_text_alone(run):
    result = sample(run, "--prompt", "나는", "--tokens", 20, "--seed", 3)
    (expected,) = as_json(run, "--prompt", "나는", "--tokens", 20, "--seed", 3)
    assert result.returncode == 0 and result.stderr == ""
    assert result.stdout == expected["text"] + "\n"
    assert expected["text"] == "나는" + expected["completion"]


def test_a_seed_gives_the_same_text_and_one_left_out_is_told(run):
    once = sample(run, "--tokens", 30)
    seed = re.fullmatch(r"seed: (\d+)\n", once.stderr)[1]
    assert sample(run, "--tokens", 30, "--seed", seed).stdout == once.stdout
    texts = {sample(run, "--tokens", 30, "--seed", seed, "--temperature", 2).stdout for seed in range(5)}
    assert len(texts) == 5


def test_what_is_drawn_by_when_nothing_is_said():
    from sample import make_parser
    from writing.writer import DEFAULT

    options = make_parser().parse_args([])
    assert (options.temperature, options.top_k, options.top_p, options.repetition_penalty) == (
        DEFAULT.temperature,
        DEFAULT.top_k,
        DEFAULT.top_p,
        DEFAULT.repetition_penalty,
    )


def test_json_names_and_meanings(run):
    (line,) = as_json(run, "--prompt", "고양이가 나무를", "--tokens", 7, "--seed", 1, "--no-stop")
    assert set(line) == {"prompt", "text", "completion", "ids", "prompt_tokens", "log_probabilities", "stopped", "seed"}
    tokenizer = load(run / "tokenizer.model")
    assert line["ids"][0] == MARK
    assert line["ids"][1 : 1 + line["prompt_tokens"]] == tokenizer.encode("고양이가 나무를")
    assert (
        len(line["ids"]) == 1 + line["prompt_tokens"] + len(line["log_probabilities"]) == 1 + line["prompt_tokens"] + 7
    )
    assert all(p < 0 for p in line["log_probabilities"])
    assert line["stopped"] == "tokens" and line["seed"] == 1


def test_the_ids_decode_to_the_text(run):
    tokenizer = load(run / "tokenizer.model")
    lines = as_json(run, "--prompt", "나는", "--tokens", 12, "--count", 12, "--seed", 0)
    assert all(tokenizer.decode(line["ids"]) == line["text"] for line in lines)
    assert any(line["completion"].startswith(" ") for line in lines)  # the prompt is not the start of a line again


def test_no_tokens_give_the_prompt_back(run):
    (line,) = as_json(run, "--prompt", " 두  칸\n\t끝 ", "--tokens", 0, "--seed", 1)
    assert line["text"] == line["prompt"] == " 두  칸\n\t끝 " and line["completion"] == ""
    assert sample(run, "--prompt", "바다\n", "--tokens", 0, "--seed", 1).stdout == "바다\n\n"


def test_the_log_probabilities_are_the_models(run):
    import torch

    from run.folder import open_run

    (line,) = as_json(run, "--prompt", "나는", "--tokens", 5, "--seed", 2, "--temperature", 1.7, "--top-k", 9)
    model = open_run(run, torch.device("cpu")).model
    with torch.no_grad():
        logits = model(torch.tensor([line["ids"][:-1]]))[0].log_softmax(dim=-1)
    new = len(line["log_probabilities"])
    expected = [logits[position, line["ids"][position + 1]].item() for position in range(len(line["ids"]) - 1)][-new:]
    assert line["log_probabilities"] == pytest.approx(expected, abs=1e-4)


def test_count_gives_the_same_as_one_by_one(run):
    together = as_json(run, "--count", 3, "--tokens", 40, "--seed", 5)
    alone = [as_json(run, "--tokens", 40, "--seed", 5 + number)[0] for number in range(3)]
    for one, other in zip(together, alone, strict=True):
        assert one.pop("log_probabilities") == pytest.approx(other.pop("log_probabilities"), abs=1e-4)
        assert one == other
    result = sample(run, "--count", 3, "--tokens", 40, "--seed", 5)
    assert result.stderr == "0:\n1:\n2:\n"
    assert result.stdout == "".join(line["text"] + "\n" for line in together)


def test_zero_temperature_is_the_same_for_every_seed(run):
    texts = {sample(run, "--temperature", 0, "--tokens", 30, "--seed", seed).stdout for seed in range(3)}
    assert len(texts) == 1
    assert sample(run, "--temperature", 1e-8, "--tokens", 30, "--seed", 9).stdout in texts


def test_it_ends_at_the_end_mark_and_does_not_print_it(run):
    lines = as_json(run, "--count", 8, "--tokens", 200, "--seed", 0)
    ended = [line for line in lines if line["stopped"] == "end"]
    assert ended  # one-sentence documents: it has learnt to end
    for line in ended:
        assert MARK not in line["ids"][1:] and "<s>" not in line["text"]
        assert len(line["ids"]) == 1 + len(line["log_probabilities"])
    lines = as_json(run, "--count", 8, "--tokens", 200, "--seed", 0, "--no-stop")
    assert {line["stopped"] for line in lines} == {"tokens"}
    tokenizer = load(run / "tokenizer.model")
    for on, off in zip(lines, as_json(run, "--count", 8, "--tokens", 200, "--seed", 0), strict=True):
        parts, ids = [], [*on["ids"][1:], MARK]
        while ids:
            parts.append(tokenizer.decode(ids[: ids.index(MARK)]))
            ids = ids[ids.index(MARK) + 1 :]
        assert on["text"] == "\n\n".join(parts)  # a blank line stands for each mark
        assert off["stopped"] == "tokens" or off["text"] == parts[0]


def test_stop_texts_end_before_themselves(run):
    (free,) = as_json(run, "--tokens", 60, "--seed", 4, "--no-stop")
    stop = free["completion"][5:7]
    (line,) = as_json(run, "--tokens", 60, "--seed", 4, "--no-stop", "--stop", "절대없는말", stop)
    assert line["stopped"] == "stop"
    assert line["completion"] == free["completion"][: free["completion"].index(stop)]
    result = sample(run, "--tokens", 60, "--seed", 4, "--no-stop", "--stop", stop)
    assert result.stdout == line["completion"] + "\n"  # nothing of it was streamed either
    (line,) = as_json(run, "--tokens", 60, "--seed", 4, "--no-stop", "--stop", free["completion"][-1] + "없다")
    assert line["completion"] == free["completion"] and line["stopped"] == "tokens"  # what was held back comes


def test_show_next(run):
    (line,) = as_json(run, "--prompt", "나는", "--tokens", 3, "--seed", 1, "--show-next", 4, "--no-stop")
    assert [len(step) for step in line["next"]] == [4, 4, 4]
    for step in line["next"]:
        assert set(step[0]) == {"id", "token", "probability"}
        assert sorted((entry["probability"] for entry in step), reverse=True) == [
            entry["probability"] for entry in step
        ]
    result = sample(run, "--prompt", "나는", "--tokens", 3, "--seed", 1, "--show-next", 4, "--no-stop")
    assert result.stdout.count("%") >= 12 and result.stdout.count("→") == 3
    assert result.stdout.splitlines()[-1] == line["text"].splitlines()[-1]


@pytest.mark.parametrize("prompt", ["", "   ", "\n"])
def test_empty_prompts(run, prompt):
    result = sample(run, "--prompt", prompt, "--tokens", 5, "--seed", 1)
    assert result.returncode == 0 and result.stdout.startswith(prompt)


def test_prompts_from_files(run, tmp_path):
    (tmp_path / "prompt.txt").write_text("나는\n사과를", encoding="utf-8")
    (line,) = as_json(run, "--prompt-file", tmp_path / "prompt.txt", "--tokens", 2, "--seed", 1)
    assert line["prompt"] == "나는\n사과를"
    (tmp_path / "empty.txt").write_bytes(b"")
    assert sample(run, "--prompt-file", tmp_path / "empty.txt", "--tokens", 2, "--seed", 1).returncode == 0
    (tmp_path / "bad.txt").write_bytes(b"\xff\xfe\xfa")
    result = sample(run, "--prompt-file", tmp_path / "bad.txt", "--seed", 1)
    assert (
        result.returncode == 1
        and result.stderr == f"error: {tmp_path / 'bad.txt'} is neither UTF-8 nor CP949, nor what its BOM says\n"
    )


def test_composed_and_decomposed_prompts_are_one(run):
    composed, decomposed = (unicodedata.normalize(form, "각 나라") for form in ("NFC", "NFD"))
    one, other = (as_json(run, "--prompt", prompt, "--tokens", 4, "--seed", 1)[0] for prompt in (composed, decomposed))
    assert one == other and one["prompt"] == composed


@pytest.mark.parametrize("tokens", [14, 15, 16, 17, 50])
def test_a_prompt_longer_than_the_context(run, tokens):
    tokenizer = load(run / "tokenizer.model")
    words = ["나는"]
    while len(tokenizer.encode(" ".join(words))) + 1 < tokens:
        words.append("나는")
    prompt = " ".join(words)
    tokens = len(tokenizer.encode(prompt)) + 1  # and the mark
    result = sample(run, "--prompt", prompt, "--tokens", 40, "--seed", 1, "--no-stop")
    assert result.returncode == 0 and result.stdout.startswith(prompt)
    assert ("longer than the context" in result.stderr) == (tokens > 16)


def test_a_space_at_the_end_is_noticed_and_kept(run):
    result = sample(run, "--prompt", "나는 ", "--tokens", 1, "--seed", 1)
    assert result.stdout.startswith("나는 ") and "ends in a space" in result.stderr


def test_literal_marks_stay_text(run):
    (line,) = as_json(run, "--prompt", "<s></s> 끝", "--tokens", 3, "--seed", 1)
    assert line["text"].startswith("<s></s> 끝") and line["ids"].count(MARK) == 1


def test_a_dash_in_front_and_top_k_above_the_vocabulary(run):
    result = sample(run, "--prompt=-- 끝", "--tokens", 2, "--seed", 1, "--top-k", 10_000)
    assert result.returncode == 0 and result.stdout.startswith("-- 끝")
    assert "top-k 10000 is above the vocabulary" in result.stderr
    assert result.stdout == sample(run, "--prompt=-- 끝", "--tokens", 2, "--seed", 1, "--top-k", 0).stdout


def test_interactive_stays_loaded(run):
    result = sample(run, "--interactive", "--tokens", 3, "--seed", 1, stdin="나는\n고양이가\n")
    assert result.returncode == 0
    texts = [as_json(run, "--prompt", prompt, "--tokens", 3, "--seed", 1)[0]["text"] for prompt in ("나는", "고양이가")]
    assert result.stdout == "".join(text + "\n" for text in texts)


@pytest.mark.parametrize(
    "arguments, code, words",
    [
        (["--temperature", "-1"], 2, "temperature must be 0 or more"),
        (["--top-p", "0"], 2, "top-p must be above 0"),
        (["--top-k", "-1"], 2, "top-k: must be 0 or more"),
        (["--tokens", "-1"], 2, "tokens: must be 0 or more"),
        (["--count", "0"], 2, "count: must be 1 or more"),
        (["--step", "-1"], 2, "step: must be 0 or more"),
        (["--seed", str(2**62)], 2, "seed: must be 0 or more and below 2^62"),
        (["--tokens", "many"], 2, "tokens: invalid whole number value: 'many'"),
        (["--temp", "1"], 2, "unrecognized arguments"),
        (["--prompt", "a", "--interactive"], 2, "not allowed with"),
        (["--prompt", "\udcff"], 1, "lone surrogate"),
        (["--prompt-file", "missing.txt"], 1, "missing.txt"),
        (["--run", "missing"], 1, "no run in missing"),
    ],
)
def test_faults_are_one_line(run, arguments, code, words):
    result = sample(run, *arguments)
    assert result.returncode == code and words in result.stderr
    assert len(result.stderr.splitlines()) <= 2 or code == 2
    assert result.stdout == ""


def test_without_any_run_it_says_what_to_do(tmp_path):
    result = door("sample", cwd=tmp_path)
    assert result.returncode == 1 and "python train.py" in result.stderr


def test_a_moved_run_needs_nothing_else(run, tmp_path):
    import shutil

    place = tmp_path / "한글 폴더" / unicodedata.normalize("NFD", "모델 1")
    place.mkdir(parents=True)
    for name in ("config.yaml", "tokenizer.model", "model.safetensors"):
        shutil.copy(run / name, place / name)
    assert (
        door("sample", "--run", place, "--seed", 1, "--tokens", 9, cwd=tmp_path).stdout
        == sample(run, "--seed", 1, "--tokens", 9).stdout
    )


def test_any_console_survives(run):
    result = process(
        "sample",
        "--run",
        run,
        "--prompt",
        "뷁 😀",
        "--tokens",
        3,
        "--seed",
        1,
        cwd=run.parent,
        PYTHONIOENCODING="ascii",
    )
    assert result.returncode == 0 and "\\ubdc1" in result.stdout


def test_another_tokenizer_beside_the_weights_is_refused(run, tmp_path, tokenizer):
    import shutil

    shutil.copytree(run, tmp_path / "run")
    (tmp_path / "run" / "tokenizer.model").write_bytes(tokenizer.model)
    result = door("sample", "--run", tmp_path / "run", cwd=tmp_path)
    assert result.returncode == 1 and len(result.stderr.splitlines()) == 1
    assert "model.safetensors" in result.stderr and "tokenizer.model" in result.stderr


def test_small_models_write_with_one_thread_and_give_the_others_back():
    import torch

    from writing.writer import WORTH_THREADS, threads_for

    torch.set_num_threads(2)
    with threads_for(WORTH_THREADS - 1):
        assert torch.get_num_threads() == 1
    with threads_for(WORTH_THREADS):
        assert torch.get_num_threads() == 2
    assert torch.get_num_threads() == 2
