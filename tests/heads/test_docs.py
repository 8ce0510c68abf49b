"""docs/heads.md says what there is: every key, function and word, and examples that are valid."""

import re
from pathlib import Path

import pytest

from bridge.heads import builtin_names, describe, read
from bridge.heads.formula import FUNCTIONS

DOCS = (Path(__file__).resolve().parents[2] / "docs" / "heads.md").read_text(encoding="utf-8")
EXAMPLES = re.findall(r"```toml\n(.*?)```", DOCS, re.DOTALL)
WORDS = {
    word
    for kind in (
        *(describe.Corners, describe.Units, describe.Activation, describe.Background),
        *(describe.Spacing, describe.PriorClip),
    )
    for word in kind
}
KEYS = {key for keys in read.KEYS.values() for key in keys or ()}


@pytest.mark.parametrize("number", range(len(EXAMPLES)))
def test_examples_are_valid(number: int, tmp_path: Path) -> None:
    head = tmp_path / "example.toml"
    head.write_text(EXAMPLES[number], encoding="utf-8")
    read.load(head)


def test_there_are_examples() -> None:
    assert len(EXAMPLES) >= 4


@pytest.mark.parametrize("word", sorted({*KEYS, *read.TOP_KEYS, *read.OUTPUT_KEYS, *WORDS}))
def test_every_key_and_word_is_described(word: str) -> None:
    assert re.search(rf"[`\"\[.]{re.escape(word)}[`\"\]=\s]", DOCS)


@pytest.mark.parametrize("name", sorted({*FUNCTIONS, *read.GIVEN_NAMES, *builtin_names()}))
def test_every_name_is_described(name: str) -> None:
    assert re.search(rf"\b{re.escape(name)}\b", DOCS)
