"""Operators that treat rows apart: networks run on selected rows."""

import numpy as np
import pytest

from tests.surgery.static.held import INPUTS, holds, program, refuses, with_rows

NETWORK = """
    shape = Constant <value_ints = [-1, 1, 2, 2]> ()
    pic = Reshape (b, shape)
    kernel = Constant <value = float[3,1,2,2] {1., 2., -1., 5., 3., 1., 1., -2., 4., 2., 3., 4.}> ()
    w = Constant <value = float[4,3] {1., 2., 3., 4., 5., 6., 7., 8., 9., 1., 2., 3.}> ()
    bias = Constant <value_floats = [0.5, 0.25, 1.0]> ()
    depth = Constant <value_int = 12> ()
    onoff = Constant <value_floats = [0., 1.]> ()
    two = Constant <value_ints = [2]> ()
"""

IMAGE = INPUTS + ", float[2,3,8,8] image"

REFUSED = {
    "transposed rows": ("o = Gemm <transA = 1> (b, b)", "float[4,4] o", ("Gemm", "transposes")),
    "a sum over rows": (
        "v = Transpose <perm = [1, 0]> (b) o = MatMul (v, b)",
        "float[4,4] o",
        ("MatMul", "sums"),
    ),
    "channels that are rows": (
        "v = Transpose <perm = [1, 0, 2, 3]> (pic) o = MaxPool <kernel_shape = [1, 1]> (v)",
        "float[1,m,2,2] o",
        ("MaxPool", "mixes"),
    ),
    "places in memory": (
        "q, o = MaxPool <kernel_shape = [2, 2]> (pic)",
        "int64[m,1,1,1] o",
        ("MaxPool", "places"),
    ),
    "another number of rows": (
        "sz = Constant <value_ints = [5, 1, 3, 3]> () o = Resize (pic, , , sz)",
        "float[5,1,3,3] o",
        ("Resize", "resizes"),
    ),
    "an operator without a rule": (
        "grid = Constant <value = float[1,1,1,2] {0., 0.}> () o = GridSample (pic, grid)",
        "float[m,1,1,1] o",
        ("GridSample", "no rule"),
    ),
}

HELD = {
    "conv": ("o = Conv (pic, kernel)", "float[m,3,1,1] o"),
    "pools": (
        "o = MaxPool <kernel_shape = [2, 2]> (pic) p = GlobalAveragePool (pic) "
        "q = AveragePool <kernel_shape = [1, 2]> (pic)",
        "float[m,1,1,1] o, float[m,1,1,1] p, float[m,1,2,1] q",
    ),
    "batch normalisation": (
        "sc = Constant <value_floats = [2.]> () bi = Constant <value_floats = [1.]> () "
        "o = BatchNormalization (pic, sc, bi, bi, sc)",
        "float[m,1,2,2] o",
    ),
    "depth to space": (
        "sh = Constant <value_ints = [-1, 4, 1, 1]> () v = Reshape (b, sh) "
        "o = DepthToSpace <blocksize = 2> (v) p = SpaceToDepth <blocksize = 2> (o)",
        "float[m,1,2,2] o, float[m,4,1,1] p",
    ),
    "gemm": ("o = Gemm (b, w, bias)", "float[m,3] o"),
    "gemm of the best": ("o = Gemm (bb, w)", "float[m,3] o"),
    "gemm of positions": (
        "c = Cast <to = 1> (k) v = Unsqueeze (c, one) m1 = Constant <value = float[1,2] {2., "
        "3.}> () "
        "o = Gemm (v, m1)",
        "float[m,2] o",
    ),
    "matmul": ("o = MatMul (b, w)", "float[m,3] o"),
    "matmul from the left": (
        "v = Transpose <perm = [1, 0]> (b) wt = Transpose <perm = [1, 0]> (w) o = MatMul (wt, v)",
        "float[3,m] o",
    ),
    "matmul of stacks": (
        "sh = Constant <value_ints = [-1, 2, 2]> () v = Reshape (b, sh) o = MatMul (v, v)",
        "float[m,2,2] o",
    ),
    "matmul of a stack and a matrix": (
        "sh = Constant <value_ints = [-1, 2, 2]> () v = Reshape (b, sh) "
        "m1 = Constant <value = float[2,2] {2., 3., 4., 5.}> () o = MatMul (v, m1) p = MatMul "
        "(m1, v)",
        "float[m,2,2] o, float[m,2,2] p",
    ),
    "matmul of all pairs": (
        "v = Transpose <perm = [1, 0]> (b) o = MatMul (b, v)",
        "float[m,r] o",
    ),
    "matmul with a vector": (
        "c = Constant <value_floats = [1., 2., 3., 4.]> () o = MatMul (b, c)",
        "float[m] o",
    ),
    "resize by scales": (
        "sc = Constant <value_floats = [1., 1., 2., 2.]> () o = Resize (pic, , sc)",
        "float[m,1,4,4] o",
    ),
    "resize to sizes": (
        "h = Constant <value_ints = [1, 3, 3]> () sz = Concat <axis = 0> (n, h) "
        'o = Resize <mode = "linear"> (pic, , , sz)',
        "float[m,1,3,3] o",
    ),
    "one hot": (
        "h = Mod (l, five) o = OneHot (h, depth, onoff) p = OneHot <axis = 0> (k, depth, onoff)",
        "float[m,12] o, float[12,m] p",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused(name: str) -> None:
    body, outputs, words = REFUSED[name]
    refuses(program(NETWORK + body, outputs), *words)


@pytest.mark.parametrize("name", HELD)
def test_held(name: str) -> None:
    body, outputs = HELD[name]
    holds(program(NETWORK + body, outputs), with_rows())


@pytest.mark.parametrize(
    "images",
    [
        "w1 = Less (l, five) img = Cast <to = 7> (w1)",
        "img = Mod (l, two)",
        "img = ConstantOfShape <value = int64[1] {1}> (n)",
        "lots = Constant <value_ints = [100]> () img = Div (l, lots)",
        "v, j = TopK <axis = 0> (t, n) lj = Gather <axis = 0> (l, j) img = Mod (lj, two)",
    ],
)
def test_roi_align_of_all_rows(images: str) -> None:
    """A masked row's image number may be anything; its box as well."""
    body = f"{images} o = RoiAlign <output_height = 2, output_width = 2> (image, b, img)"
    model = program(NETWORK + body, "float[m,3,2,2] o", IMAGE)
    image = np.random.default_rng(0).random((2, 3, 8, 8)).astype(np.float32)
    holds(model, [dict(given, image=image) for given in with_rows()])


def test_roi_align_of_selected_images_is_refused() -> None:
    body = """
        im = Slice (image, zero, n) img = Mod (l, two)
        o = RoiAlign <output_height = 2, output_width = 2> (im, b, img)
    """
    refuses(program(NETWORK + body, "float[m,3,2,2] o", IMAGE), "n_o", "RoiAlign", "mixes")
