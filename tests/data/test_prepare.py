"""Prepared tokens are the text, know their tokenizer, and are the same bytes for the same input."""

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from data import tokenizer as tokenizers
from data.config import TokenizerConfig
from data.prepare import MARK, encode, id_type, open_tokens, prepare, save
from data.read import split
from tests.conftest import sentences

CONFIG = TokenizerConfig(vocab_size=330)


def test_both_sides_hold_their_documents_between_marks(tmp_path):
    documents = sentences(300)
    ready = prepare(documents, CONFIG, 10_000, folder=tmp_path)
    for tokens, side in zip((ready.train, ready.validation), split(documents), strict=True):
        assert tokens.ids[0] == tokens.ids[-1] == MARK
        texts = [
            ready.tokenizer.decode(part[1:]) for part in np.split(tokens.ids, np.flatnonzero(tokens.ids == MARK)[1:])
        ]
        assert texts[:-1] == side
        assert tokens.documents == len(side)
        assert tokens.characters == sum(len(text) + 1 for text in side)
        assert tokens.bytes == sum(len(text.encode()) + 1 for text in side)
        assert tokens.targets == len(tokens.ids) - 1
        assert isinstance(tokens.ids, np.memmap)


def test_the_tokenizer_learns_from_the_training_side_alone(tmp_path):
    documents = sentences(300)
    ready = prepare(documents, CONFIG, 10_000, folder=tmp_path)
    assert ready.tokenizer.model == tokenizers.train(split(documents)[0], CONFIG).model


def test_the_same_input_gives_the_same_bytes_and_other_input_another_folder(tmp_path):
    documents = sentences(300)
    for place in ("one", "two"):
        prepare(documents, CONFIG, 10_000, folder=tmp_path / place)
    (one,), (two,) = (list((tmp_path / place).iterdir()) for place in ("one", "two"))
    assert one.name == two.name
    for file in ("tokenizer.model", "train.safetensors", "validation.safetensors"):
        assert (one / file).read_bytes() == (two / file).read_bytes()
    prepare(documents[1:], CONFIG, 10_000, folder=tmp_path / "one")
    prepare(documents, TokenizerConfig(vocab_size=331), 10_000, folder=tmp_path / "one")
    assert len(list((tmp_path / "one").iterdir())) == 3


def test_what_is_prepared_is_used_again_and_what_is_damaged_is_not(tmp_path):
    documents, said = sentences(300), []
    ready = prepare(documents, CONFIG, 10_000, folder=tmp_path)
    prepare(documents, CONFIG, 10_000, said.append, folder=tmp_path)
    assert len(said) == 1 and "prepared before" in said[0]
    (place,) = tmp_path.iterdir()
    expected = np.array(ready.train.ids)
    (place / "train.safetensors").write_bytes((place / "train.safetensors").read_bytes()[:100])
    again = prepare(documents, CONFIG, 10_000, said.append, folder=tmp_path)
    assert any("is damaged: made anew" in line for line in said)
    assert np.array_equal(again.train.ids, expected)


def test_evaluation_in_training_takes_whole_documents_by_hash(tmp_path):
    documents = sentences(700)
    few = prepare(documents, CONFIG, 60, folder=tmp_path)
    every = prepare(documents, CONFIG, 10_000, folder=tmp_path)
    assert 0 < few.validation.targets <= 60 < every.validation.targets
    assert few.validation.ids[-1] == MARK


def test_one_document_cannot_be_split(tmp_path):
    with pytest.raises(ValueError, match="1 document, which leaves none to train on"):
        prepare(["나는 사과를 먹었다."], CONFIG, 100, folder=tmp_path)


def test_the_width_of_ids_follows_the_vocabulary(tmp_path, tokenizer):
    assert id_type(65_536) is np.uint16 and id_type(65_537) is np.uint32 and id_type(70_000) is np.uint32
    ids = np.array([0, 65535, 65536, 69999], id_type(70_000))
    save_file({"ids": ids}, tmp_path / "wide.safetensors")
    assert load_file(tmp_path / "wide.safetensors")["ids"].tolist() == [0, 65535, 65536, 69999]


def test_another_width_or_tokenizer_is_refused(tmp_path, tokenizer):
    (tmp_path / "tokenizer.model").write_bytes(tokenizer.model)
    tokens = encode(sentences(5), tokenizer)
    save(tmp_path / "right.safetensors", tokens, tokenizer)
    assert np.array_equal(open_tokens(tmp_path / "right.safetensors", tokenizer).ids, tokens.ids)

    other = tokenizers.train(sentences(100), TokenizerConfig(vocab_size=340))
    with pytest.raises(ValueError, match="was not made with .*tokenizer.model"):
        open_tokens(tmp_path / "right.safetensors", other)

    import dataclasses

    save(tmp_path / "wide.safetensors", dataclasses.replace(tokens, ids=tokens.ids.astype(np.uint32)), tokenizer)
    with pytest.raises(ValueError, match="holds ids as U32"):
        open_tokens(tmp_path / "wide.safetensors", tokenizer)
