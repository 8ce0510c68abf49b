"""Netron's own parser opens every form, and shows what the metadata say."""

import shutil
import subprocess
from pathlib import Path

import pytest

from tests.clients.artifacts import FORMS, make
from tests.clients.environment import FOLDER, PYTHON, lines_of, needs_clients

NODE = shutil.which("node")

pytestmark = [
    needs_clients,
    pytest.mark.skipif(NODE is None, reason="Netron is JavaScript: there is no node on the PATH"),
]


@pytest.fixture(scope="module")
def netron(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The package's scripts, called modules, without its server."""
    where = "import importlib.util as u; print(u.find_spec('netron').submodule_search_locations[0])"
    source = Path(subprocess.check_output([PYTHON, "-c", where], text=True).strip())
    folder = tmp_path_factory.mktemp("netron")
    for pattern in ("*.js", "*.json"):
        for file in source.glob(pattern):
            shutil.copy(file, folder)
    (folder / "package.json").write_text('{"type": "module"}')
    return folder


@pytest.mark.parametrize("form", FORMS)
def test_netron_opens_it(form: str, netron: Path, tmp_path: Path) -> None:
    made = make(form, tmp_path)
    (shown,) = lines_of([str(NODE), FOLDER / "netron.mjs", netron, made.path])
    assert "error" not in shown, shown["error"]
    assert shown["format"] == "TensorFlow Lite v3"
    assert shown["signatures"] == ["serving_default"]
    for side, ports in (("inputs", made.manifest.inputs), ("outputs", made.manifest.outputs)):
        expected = [(p.name, f"{p.dtype}[{','.join(map(str, p.shape))}]") for p in ports]
        assert [(end["name"], end["type"]) for end in shown[side]] == expected
    kind = "TFLite_Detection_PostProcess" if form == "postprocess" else "NonMaxSuppressionV4"
    assert kind in shown["operators"]
    (image,) = shown["inputs"]
    if FORMS[form].labels is None:
        assert not image["description"]
    else:
        assert image["description"] == "The image, resized to 160 x 160"
        assert shown["name"] == "Detector"


def test_netron_says_what_is_wrong_with_a_broken_file(netron: Path, tmp_path: Path) -> None:
    """So that the test above can fail."""
    made = make("v4", tmp_path)
    made.path.write_bytes(made.path.read_bytes()[:20_000])
    (shown,) = lines_of([str(NODE), FOLDER / "netron.mjs", netron, made.path])
    assert "error" in shown
