"""Views of channels that are no photograph: what their look does, draws and refuses, and the batches of a training."""

from dataclasses import replace
from functools import partial
from itertools import islice

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny import tiny_config
from trees import refused

from projects.LargeData.looks_on_device import looks_on_device
from projects.Pixels.channel_looks import ChannelLook, draw_channels
from revisit.data.images.deep_images import pixel_format
from revisit.data.images.pixel_format import PixelFormat
from revisit.data.loading import loader as loader_module
from revisit.data.loading.loader import ResumableLoader
from revisit.data.randomness import Stream, counter_rng
from revisit.data.views.looks import (
    LOOK_REGISTRY,
    StandardLook,
    TurnedLook,
    draw_turned,
    look_of_images,
)
from revisit.data.views.mapper import ViewMapper
from revisit.data.views.operations import gaussian_blur
from revisit.keys import Facts, resolve_auto_values

NOTHING = StandardLook(jitter=(), grey=False, blur_sigma=0.0, flip=False)
OF_BANDS = ("INPUT.CHANNELS", "nir blue green red swir", "MODEL.PIXEL_MEAN", [10, 20, 30, 40, 50])
BANDS = pixel_format(tiny_config(*OF_BANDS))
SIZE = 24


def bands(count: int) -> PixelFormat:
    return PixelFormat(channels=tuple(f"band{n}" for n in range(count)), fill=tuple(range(count)))


def noise(channels: int, size: int = SIZE) -> np.ndarray:
    return np.random.default_rng(size).integers(0, 256, (size, size, channels), dtype=np.uint8)


def drawn(pixels: PixelFormat, seed: int, dropout: float = 0.3) -> ChannelLook:
    return draw_channels(np.random.default_rng(seed), pixels, grey=0.3, blur=0.5, dropout=dropout)


@pytest.mark.parametrize("channels", [1, 2, 4, 5, 13, 40])
@settings(max_examples=25)
@given(st.integers(1, 60), st.integers(0, 10**6))
def test_n_channels_look_as_each_alone(channels, size, seed):
    image, look = noise(channels, size), drawn(bands(channels), seed)
    view = draw_turned(np.random.default_rng(seed), lambda _: look)
    changed = view.apply(image)
    for place in range(channels):
        dropped = tuple((0, level) for at, level in look.dropped if at == place)
        alone = replace(view, look=replace(look, factors=look.factors[place : place + 1], dropped=dropped))
        assert np.array_equal(changed[..., place : place + 1], alone.apply(image[..., place : place + 1]))


def test_levels_are_brightness_then_contrast_around_the_mean_then_gamma():
    image, factors = noise(2) // 2 + 40, ((1.2, 0.7, 1.3), (1.0, 1.0, 1.0))
    look = ChannelLook(places=(), colours=NOTHING, factors=factors, blur_sigma=0.0, flip=False, dropped=())
    brighter = image[..., 0] * 1.2
    flatter = brighter.mean() + 0.7 * (brighter - brighter.mean())
    expected = 255 * (flatter / 255) ** 1.3
    assert np.abs(look.apply(image)[..., 0] - expected).max() <= 0.5  # rounded once
    assert np.array_equal(look.apply(image)[..., 1], image[..., 1])


def test_blur_then_flip_and_a_dropped_channel_is_its_mean():
    image = noise(5)
    plain = ChannelLook((), NOTHING, factors=((1.0,) * 3,) * 5, blur_sigma=0.0, flip=False, dropped=())
    assert np.array_equal(plain.apply(image), image)
    view = replace(plain, blur_sigma=1.1, flip=True, dropped=((3, 40),)).apply(image)
    for place in (0, 1, 2, 4):
        assert np.array_equal(view[..., place], gaussian_blur(image[..., place].copy(), 1.1)[:, ::-1])
    assert (view[..., 3] == 40).all()


def test_colours_are_changed_where_three_channels_are_called_so():
    image = noise(5)
    colourful = StandardLook(jitter=((3, 0.08), (2, 1.3)), grey=False, blur_sigma=0.0, flip=False)
    look = ChannelLook(BANDS.colours, colourful, ((1.0,) * 3,) * 5, blur_sigma=0.0, flip=False, dropped=())
    view = look.apply(image)
    assert BANDS.colours == (3, 2, 1)
    assert np.array_equal(view[..., 3:0:-1], colourful.apply(np.ascontiguousarray(image[..., 3:0:-1])))
    assert np.array_equal(view[..., [0, 4]], image[..., [0, 4]])
    assert drawn(bands(5), 0).places == ()


def test_draws_have_the_probabilities_of_the_keys():
    looks = [drawn(BANDS, seed, dropout=0.4) for seed in range(1500)]
    shares = {
        "grey": (np.mean([look.colours.grey for look in looks]), 0.3),
        "blur": (np.mean([look.blur_sigma > 0 for look in looks]), 0.5),
        "flip": (np.mean([look.flip for look in looks]), 0.5),
        "jitter": (np.mean([look.factors != ((1.0,) * 3,) * 5 for look in looks]), 0.8),
        "dropped": (np.mean([len(look.dropped) / 5 for look in looks]), 0.4 - 0.4**5 / 5),
    }
    for name, (share, expected) in shares.items():
        assert abs(share - expected) < 0.07, name
    assert {pair for look in looks for pair in look.dropped} == set(enumerate(BANDS.fill))
    assert all(len(drawn(BANDS, seed, dropout=1.0).dropped) == 4 for seed in range(50))
    assert not any(drawn(BANDS, seed, dropout=0.0).dropped for seed in range(50))
    own = np.array([look.factors for look in looks if look.factors[0][0] != 1])[..., :2]
    assert 0.6 * 0.8 <= own.min() and own.max() <= 1.4 * 1.2
    assert (own.std(axis=1) > 0.01).all() and np.corrcoef(own[:, 0, 0], own[:, 1, 0])[0, 1] > 0.5  # singly and jointly


def test_a_turned_and_flipped_view_shows_its_source_points():
    y, x = np.mgrid[0:SIZE, 0:SIZE]
    places = np.stack([x, y, x, y, x], axis=-1).astype(np.uint8)
    seen = set()
    for turns in range(4):
        for flipped in (False, True):
            below = replace(drawn(bands(5), 0), factors=((1.0,) * 3,) * 5, blur_sigma=0.0, flip=flipped, dropped=())
            look = TurnedLook(turns, below)
            points = look.source_points(SIZE) @ np.stack([x.ravel() + 0.5, y.ravel() + 0.5, np.ones(SIZE**2)])
            shown = look.apply(places)[..., :2].reshape(-1, 2)
            assert np.allclose(points[:2].T - 0.5, shown)
            seen.add(shown.tobytes())
    assert len(seen) == 8


@pytest.mark.parametrize("policy", ["standard", "autoaugment", "standard_or_autoaugment", "channels"])
def test_a_look_of_colours_decides_itself_to_channels(policy, caplog):
    cfg = tiny_config(*OF_BANDS, "VIEWS.POLICY", policy)
    with caplog.at_level("INFO"):
        resolve_auto_values(cfg, Facts())
    assert cfg.VIEWS.POLICY == "channels"
    lines = [record.message for record in caplog.records if "VIEWS.POLICY" in record.message]
    why = f"VIEWS.POLICY 'channels': VIEWS.POLICY {policy} is for red, green and blue, and images have nir blue "
    assert [line.startswith(why) for line in lines] == ([] if policy == "channels" else [True])
    mapper = ViewMapper.from_config(cfg)
    assert isinstance(mapper.anchor_look(np.random.default_rng(0)), ChannelLook)
    assert mapper.shapes == {"anchor": (32, 32, 5), "positive": (32, 32, 5), "small": (4, 16, 16, 5)}


@pytest.mark.parametrize("options", [(), ("INPUT.BIT_DEPTH", 12), ("INPUT.CHANNELS", "Red g blue")])
def test_red_green_and_blue_keep_the_look_of_the_config(options):
    cfg = tiny_config(*options)
    assert look_of_images(cfg, Facts("VIEWS.POLICY")) is None
    assert isinstance(ViewMapper.from_config(cfg).anchor_look(np.random.default_rng(0)), StandardLook)


def test_a_network_that_draws_no_look_keeps_the_word():
    cfg = tiny_config(*OF_BANDS, "MODEL.META_ARCHITECTURE", "GeneralizedRCNN")
    assert look_of_images(cfg, Facts("VIEWS.POLICY")) is None


def standard_again(rng: np.random.Generator) -> StandardLook:
    """As documented: whether there is a jitter, its factors, their order, grey, blur, flip."""
    jitter = ()
    if rng.random() < 0.8:
        light, contrast, saturation = rng.uniform(0.6, 1.4, size=3).tolist()
        factors = (light, contrast, saturation, rng.uniform(-0.1, 0.1))
        jitter = tuple((place, factors[place]) for place in rng.permutation(4).tolist())
    grey = bool(rng.random() < 0.2)
    sigma = rng.uniform(0.1, 2.0) if rng.random() < 0.5 else 0.0
    return StandardLook(jitter, grey, sigma, bool(rng.random() < 0.5))


@pytest.mark.parametrize("turns", [False, True])
def test_rgb_draws_are_number_for_number_the_documented_ones(turns):
    """Quarter turns draw a number before each look, and nothing where they are off."""
    cfg = tiny_config("VIEWS.POLICY", "standard", "VIEWS.QUARTER_TURNS", turns)
    mapper = ViewMapper.from_config(cfg)
    for index in range(30):
        rng = counter_rng(mapper.seed, Stream.VIEWS, 1, index)
        plan = mapper.plan(60, 80, 1, index)
        assert np.array_equal(mapper.crops(60, 80, rng).stacked(), plan.boxes.stacked())
        for look in plan.looks:
            number = int(rng.integers(4)) if turns else 0
            expected = standard_again(rng)
            assert look == (TurnedLook(number, expected) if turns else expected)


@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_training_has_batches_of_all_channels(num_workers, monkeypatch, tmp_path):
    records = [{"image": noise(5, 40 + n), "file_name": str(n)} for n in range(6)]
    monkeypatch.setattr(loader_module, "get_records", lambda name: records)
    options = ("SOLVER.IMS_PER_BATCH", 4, "VIEWS.POLICY", "channels", "VIEWS.QUARTER_TURNS", True)
    cfg = tiny_config(*OF_BANDS, *options, "DATALOADER.NUM_WORKERS", num_workers, "DATASETS.TRAIN", ("bands",))
    mapper = ViewMapper.from_config(cfg)
    loader = ResumableLoader(cfg)
    for iteration, batch in enumerate(islice(loader, 2)):
        assert batch["anchor"].shape == (4, 5, 32, 32) and batch["small"].shape == (4, 4, 5, 16, 16)
        for place, index in enumerate(batch["index"].tolist()):
            views = mapper(records[index]["image"], iteration, index)
            for name in ("anchor", "positive", "small"):
                assert torch.equal(batch[name][place].movedim(-3, -1), torch.from_numpy(views[name]))


def test_looks_that_the_device_lacks_are_refused_in_one_line():
    on_device = partial(tiny_config, "DATALOADER.AUGMENT_ON_DEVICE", True)
    refused(
        "AUGMENT_ON_DEVICE True does not know VIEWS.POLICY channels",
        looks_on_device,
        on_device("VIEWS.POLICY", "channels"),
    )
    refused("does not know VIEWS.QUARTER_TURNS True", looks_on_device, on_device("VIEWS.QUARTER_TURNS", True))


def test_channels_are_a_look_of_photographs_too():
    look = LOOK_REGISTRY.get("channels")(tiny_config())(np.random.default_rng(0))
    assert look.places == (0, 1, 2) and look.apply(noise(3)).shape == (SIZE, SIZE, 3)
