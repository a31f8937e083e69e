import math

import pytest
import torch

from hmcvi.data import binarize, check_pixels, deform, load_images, threshold
from hmcvi.data.images import split_images

# two-sided normal quantile of a false alarm in 1e6
QUANTILE = 4.9


def test_binarize_has_the_pixel_values_as_means():
    n = 20_000
    x = torch.linspace(0, 1, 21, dtype=torch.float64)
    draws = binarize(x.expand(n, -1), torch.Generator().manual_seed(1))
    assert set(draws.unique().tolist()) == {0.0, 1.0}
    standard_error = (x * (1 - x) / n).sqrt()
    assert ((draws.mean(0) - x).abs() <= QUANTILE * standard_error).all()


def test_binarize_draws_pixels_independently():
    n = 20_000
    draws = binarize(torch.full((n, 6), 0.3, dtype=torch.float64), torch.Generator().manual_seed(2))
    off_diagonal = torch.corrcoef(draws.T) - torch.eye(6, dtype=torch.float64)
    assert off_diagonal.abs().max() <= QUANTILE / n**0.5


def test_binarize_keeps_certain_pixels():
    x = torch.tensor([0.0, 1.0]).expand(100_000, 2)
    # with this seed a uniform draw for a black pixel is exactly 0
    assert torch.equal(binarize(x, torch.Generator().manual_seed(739)), x)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_binarize_keeps_dtype_and_input(dtype):
    x = torch.full((40_000,), 2.0**-9, dtype=dtype)
    before = x.clone()
    draws = binarize(x, torch.Generator().manual_seed(4))
    assert draws.dtype == dtype
    assert torch.equal(x, before)
    # a uniform of 8 bits would never, or twice too often, fall below 2⁻⁹
    p = 2.0**-9
    assert abs(draws.double().mean() - p) <= QUANTILE * (p * (1 - p) / len(x)) ** 0.5


def test_binarize_depends_on_the_generator_alone():
    x = torch.full((50, 40), 0.5)
    first, again = (binarize(x, torch.Generator().manual_seed(5)) for _ in range(2))
    other = binarize(x, torch.Generator().manual_seed(6))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    generator = torch.Generator().manual_seed(5)
    global_state = torch.get_rng_state()
    assert not torch.equal(binarize(x, generator), binarize(x, generator))
    assert torch.equal(torch.get_rng_state(), global_state)


def test_deform_by_nothing_is_the_image():
    x = torch.rand(3, 28 * 20)
    torch.testing.assert_close(deform(x, (28, 20), 0.0), x)


def test_deform_shifts_by_a_fortieth_of_the_image():
    """A spot in the middle is turned and stretched about itself; only the shift moves it."""
    n, (height, width) = 4000, (80, 40)
    spot = torch.zeros(height, width)
    spot[36:44, 16:24] = 1.0
    torch.manual_seed(7)
    moved = (
        deform(spot.view(1, -1).expand(n, -1).contiguous(), (height, width)).view(n, height, width).double()
    )
    rows, columns = torch.arange(height) - (height - 1) / 2, torch.arange(width) - (width - 1) / 2
    total = moved.sum((1, 2))
    for place, side in (
        ((moved.sum(2) @ rows.double()) / total, height),
        ((moved.sum(1) @ columns.double()) / total, width),
    ):
        # stretching and turning scale the shift by 1 + O(5 %) of its own, independent of it
        assert abs(place.mean()) < QUANTILE * 0.025 * side / n**0.5
        assert place.std().item() == pytest.approx(0.025 * side, rel=0.01 + QUANTILE / (2 * n) ** 0.5)


def test_deform_turns_stretches_and_shears():
    """By the moments of a long spot: pixels are read at A p, so that the spot is mapped by A⁻¹ ≈ 2 − A."""
    n, side = 2000, 60
    place = torch.arange(side, dtype=torch.float64) - (side - 1) / 2
    torch.manual_seed(9)
    for across, tilt in ((True, math.radians(5)), (False, math.hypot(math.radians(5), 0.08))):
        scales = (8.0, 2.0) if across else (2.0, 8.0)
        spot = (-0.5 * ((place[:, None] / scales[1]) ** 2 + (place / scales[0]) ** 2)).exp()
        moved = deform(spot.float().flatten().repeat(n, 1), (side, side)).view(n, side, side).double()
        mass = moved.sum((1, 2))
        x, y = (moved.sum(1) @ place) / mass, (moved.sum(2) @ place) / mass
        xx, yy = ((moved.sum(dim) @ place**2) / mass - mean**2 for dim, mean in ((1, x), (2, y)))
        xy = torch.einsum("nyx,y,x->n", moved, place, place) / mass - x * y
        # pixels blur the short side, so that the tilt is measured against the difference of both
        angle = xy / (xx - yy if across else yy - xx)
        tolerance = QUANTILE / (2 * n) ** 0.5 + 0.03  # and terms of second order
        assert mass.log().std().item() == pytest.approx(0.05 * 2**0.5, rel=tolerance)
        assert angle.std().item() == pytest.approx(tilt, rel=tolerance + (2 / 8) ** 2)


def test_deform_keeps_pixels_in_range_and_takes_its_numbers_from_the_seed():
    x = torch.rand(50, 64)
    torch.manual_seed(8)
    first = deform(x, (8, 8), 3.0)
    torch.manual_seed(8)
    assert torch.equal(first, deform(x, (8, 8), 3.0))
    assert first.min() >= 0 and first.max() <= 1 and not torch.equal(first, x)


def test_threshold():
    x = torch.tensor([0.0, 0.5 - 1e-6, 0.5, 1.0])
    assert torch.equal(threshold(x), torch.tensor([0.0, 0.0, 1.0, 1.0]))
    assert threshold(x.double()).dtype == torch.float64


@pytest.mark.parametrize(
    ("value", "found"),
    [(255.0, r"\[0, 255\]"), (-0.5, r"\[-0.5, 0\]"), (float("nan"), "1 values"), (float("inf"), "1 values")],
)
def test_check_pixels_names_source_and_range(value, found):
    x = torch.zeros(3, 4)
    check_pixels(x, "here")
    check_pixels(torch.ones(3, 4), "here")
    check_pixels(torch.empty(0, 4), "here")
    x[1, 2] = value
    with pytest.raises(ValueError, match=f"here: .*{found}"):
        check_pixels(x, "here")


def test_split_takes_the_last_images():
    pool, test = torch.linspace(0, 1, 10)[:, None], torch.ones(3, 1)
    images = split_images("toy", pool, test, (1, 1), 4, (torch.arange(10), torch.arange(3)))
    assert torch.equal(images.train, pool[:6])
    assert torch.equal(images.validation, pool[6:])
    assert images.labels is not None
    assert images.labels["validation"].tolist() == [6, 7, 8, 9]
    assert images.labels["test"].tolist() == [0, 1, 2]
    assert len(split_images("toy", pool, test, (1, 1), 0).validation) == 0


@pytest.mark.parametrize("validation", [-1, 10, 0.1])
def test_split_refuses_impossible_validation(validation):
    with pytest.raises(ValueError, match=rf"10 training images of toy.*got {validation}"):
        split_images("toy", torch.zeros(10, 1), torch.zeros(3, 1), (1, 1), validation)


def test_digits():
    images = load_images("digits")
    assert images.shape == (8, 8)
    assert [tuple(x.shape) for x in images[:3]] == [(1297, 64), (200, 64), (300, 64)]
    assert all(x.dtype == torch.float32 for x in images[:3])
    everything = torch.cat(images[:3])
    assert torch.equal(everything * 16, (everything * 16).round())
    assert (everything.min(), everything.max()) == (0, 1)
    assert images.labels is not None
    counts = torch.cat([images.labels[k] for k in ("train", "validation", "test")]).bincount()
    assert counts.tolist() == [178, 182, 177, 183, 181, 182, 181, 179, 174, 180]


def test_digits_split_never_changes():
    images = load_images("digits")
    assert images.labels is not None
    assert images.labels["test"][:8].tolist() == [8, 8, 2, 2, 2, 9, 8, 8]
    larger = load_images("digits", validation=500)
    assert torch.equal(larger.test, images.test)
    assert torch.equal(larger.validation[300:], images.validation)
    assert len(larger.train) == 997


def test_digits_labels_belong_to_the_images():
    images = load_images("digits")
    assert images.labels is not None
    means = torch.stack([images.train[images.labels["train"] == digit].mean(0) for digit in range(10)])
    nearest = torch.cdist(images.test, means).argmin(1)
    # chance is 0.1
    assert (nearest == images.labels["test"]).double().mean() > 0.8
