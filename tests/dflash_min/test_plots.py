"""The picture of a run and TensorBoard's scalars: what they show, and that neither is needed."""

from __future__ import annotations

import importlib.util
import itertools
import math
import threading
from types import SimpleNamespace
from typing import TYPE_CHECKING

import matplotlib as mpl
import pytest
from matplotlib._pylab_helpers import Gcf
from matplotlib.figure import Figure
from PIL import Image
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.summary.writer import event_file_writer

from dflash_min.config import SaveConfig, TrainConfig
from dflash_min.evaluation import plots, scalars
from dflash_min.evaluation.curves import Curves
from dflash_min.resolve import resolve
from dflash_min.saving import metrics
from dflash_min.trainer import Trainer

from .trainers import SIZES

if TYPE_CHECKING:
    from pathlib import Path


def write_metrics(out: Path, steps: int, every: int) -> None:
    out.mkdir(exist_ok=True)
    file = metrics.Metrics(out / metrics.FILE)
    for step in range(1, steps + 1):
        values = {"loss": 5 - step / steps, "accept_len": 1 + step / steps}
        file.write(step, "train", values)
        if every and step % every == 0:
            file.write(step, "eval", {name: value + 0.1 for name, value in values.items()})
    file.close()


@pytest.fixture
def drawn(monkeypatch) -> list[Figure]:
    """Collect the figures that are drawn."""
    figures = []
    init = Figure.__init__

    def keep(figure, *args, **settings):
        figures.append(figure)
        init(figure, *args, **settings)

    monkeypatch.setattr(Figure, "__init__", keep)
    return figures


def words(figure: Figure) -> list[list[str]]:
    """Return the labels at the lines' ends, by panel."""
    return [[text.get_text() for text in axes.texts] for axes in figure.axes]


def test_the_picture_shows_training_and_held_out_text(tmp_path, drawn):
    write_metrics(tmp_path, steps=10, every=5)
    plots.draw(tmp_path, "title\nof two lines")
    (figure,) = drawn
    assert figure.get_suptitle() == "title\nof two lines"
    assert [axes.get_ylabel() for axes in figure.axes] == [
        "loss (nats per token, weighted)",
        "accept_len (tokens per block)",
    ]
    assert figure.axes[1].get_xlabel() == "optimiser step"
    assert words(figure) == [["training", "held out"]] * 2
    train, held_out = figure.axes[0].lines
    assert list(train.get_xdata()) == list(range(1, 11))
    assert train.get_ydata()[-1] == 4
    assert list(held_out.get_xdata()) == [5, 10]
    assert held_out.get_ydata()[-1] == pytest.approx(4.1)
    with Image.open(tmp_path / "loss.png") as picture:
        picture.verify()
        assert picture.format == "PNG"
        assert min(picture.size) >= 600


def test_many_steps_get_a_mean_over_them(tmp_path, drawn):
    write_metrics(tmp_path, steps=100, every=0)
    plots.draw(tmp_path, "title")
    (figure,) = drawn
    assert words(figure) == [["training,\nmean of 5 steps"]] * 2
    faint, mean = figure.axes[0].lines
    assert len(faint.get_xdata()) == 100
    assert list(mean.get_xdata()) == list(range(5, 101))
    assert mean.get_ydata()[0] == pytest.approx(5 - 3 / 100)


def test_a_run_without_a_step_and_numbers_that_do_not_exist_can_be_drawn(tmp_path, drawn):
    write_metrics(tmp_path, steps=0, every=0)
    plots.draw(tmp_path, "title")
    file = metrics.Metrics(tmp_path / metrics.FILE)
    file.write(1, "train", {"loss": math.nan, "accept_len": math.inf})
    file.write(2, "train", {"loss": 1.0})
    file.close()
    plots.draw(tmp_path, "title")
    assert list(drawn[1].axes[0].lines[0].get_xdata()) == [2]
    assert not drawn[1].axes[1].lines


def test_matplotlibs_settings_and_pyplot_stay_as_they_are(tmp_path):
    write_metrics(tmp_path, steps=3, every=1)
    settings = dict(mpl.rcParams)
    backend = mpl.get_backend(auto_select=False)
    plots.draw(tmp_path, "title")
    assert dict(mpl.rcParams) == settings
    assert mpl.get_backend(auto_select=False) == backend
    assert not Gcf.get_all_fig_managers()


def test_two_threads_can_draw_at_once(tmp_path):
    outs = [tmp_path / name for name in "ab"]
    for out in outs:
        write_metrics(out, steps=30, every=3)
    errors = []

    def draw(out: Path) -> None:
        try:
            for _ in range(3):
                plots.draw(out, "title")
        except Exception as error:  # noqa: BLE001  # asserted below
            errors.append(error)

    threads = [threading.Thread(target=draw, args=(out,)) for out in outs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    assert (outs[0] / plots.FILE).read_bytes() == (outs[1] / plots.FILE).read_bytes()


def test_the_title_names_the_main_settings():
    resolved = resolve(TrainConfig(device="cpu", steps=400, threads=2, lr=1e-3, seed=5), 0)
    assert plots.title(resolved) == (
        "DFlash drafter of 2 layers, width 64, blocks of 8, for the built-in target with random "
        "weights\n400 steps, drafters 2, batch 1, anchors 16, peak lr 0.001, seed 5"
    )


def read_scalars(folder: Path) -> dict[str, list[tuple[int, float]]]:
    events = EventAccumulator(str(folder))
    events.Reload()
    return {
        tag: [(event.step, round(event.value, 4)) for event in events.Scalars(tag)]
        for tag in events.Tags()["scalars"]
    }


def test_scalars_have_a_tag_for_each_number(tmp_path):
    written = scalars.open_scalars(tmp_path, 0)
    written.write(1, "train", {"loss": 2.0, "accept_len": math.nan, "note": "text"})
    written.write(2, "train", {"loss": 1.5})
    written.write(2, "eval", {"loss": 1.75, "slot_accuracy": (0.5, math.nan, 0.25)})
    written.close()
    assert read_scalars(tmp_path / "tensorboard") == {
        "train/loss": [(1, 2.0), (2, 1.5)],
        "eval/loss": [(2, 1.75)],
        "eval/slot_accuracy/01": [(2, 0.5)],
        "eval/slot_accuracy/03": [(2, 0.25)],
    }


def test_a_resumed_run_takes_the_place_of_what_it_does_again(tmp_path, monkeypatch):
    # Files are read in the order of their names: the second in which they were made, the process,
    # and a number in it, of which the 10th is before the 9th.
    seconds = SimpleNamespace(time=itertools.count(1e9).__next__)
    monkeypatch.setattr(event_file_writer, "time", seconds)
    first = scalars.open_scalars(tmp_path, 0)
    for step in (1, 2, 3):
        first.write(step, "train", {"loss": float(step)})
    first.close()
    second = scalars.open_scalars(tmp_path, 1)
    second.flush()
    assert read_scalars(tmp_path / "tensorboard")["train/loss"] == [(1, 1.0)]
    second.write(2, "train", {"loss": 20.0})
    second.close()
    assert read_scalars(tmp_path / "tensorboard")["train/loss"] == [(1, 1.0), (2, 20.0)]


def trainer(out: Path | None, **settings) -> Trainer:
    resolved = resolve(TrainConfig(**{**SIZES, "warmup": "none", **settings}), 0)
    built = Trainer(resolved, SaveConfig(out=out))
    for replica in built.replicas:
        replica.forward = replica.forward_dense
    return built


def test_a_run_with_a_folder_leaves_both(tmp_path, monkeypatch):
    draws = []
    draw = plots.draw

    def counted(out, title):
        draws.append(threading.current_thread().name)
        draw(out, title)

    monkeypatch.setattr(plots, "draw", counted)
    out = tmp_path / "run"
    trainer(out, threads=2, steps=4, eval_batches=1, eval_every=2).run(lambda _: None)
    assert draws == ["drafter-0", "drafter-0", "MainThread"]
    assert (out / plots.FILE).is_file()
    found = read_scalars(out / "tensorboard")
    assert [step for step, _ in found["train/loss"]] == [1, 2, 3, 4]
    assert [step for step, _ in found["eval/accept_len"]] == [2, 4]
    assert set(found) >= {"eval/slot_accuracy/01", "train/lr", "train/accept_len"}


@pytest.mark.parametrize("missing", ["matplotlib", "tensorboard"])
def test_neither_is_needed(tmp_path, missing, monkeypatch):
    find = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *rest: None if name == missing else find(name)
    )
    out = tmp_path / "run"
    said = []
    trainer(out, threads=1, steps=2, eval_batches=1).run(lambda _: None, say=said.append)
    assert len(metrics.read(out / metrics.FILE)) == 3
    assert (out / plots.FILE).exists() == (missing != "matplotlib")
    assert (out / "tensorboard").exists() == (missing != "tensorboard")
    without = ["no loss.png: matplotlib is not installed"]
    assert said == (without if missing == "matplotlib" else [])


def test_without_a_folder_nothing_is_imported_or_written(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(plots, "available", lambda: pytest.fail("imported"))
    trainer(None, threads=1, steps=1).run(lambda _: None)
    assert list(tmp_path.iterdir()) == []


def test_what_cannot_be_written_is_told_and_training_goes_on(tmp_path, monkeypatch):
    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(plots, "draw", full)
    monkeypatch.setattr(scalars.Scalars, "write", full)
    resolved = resolve(TrainConfig(device="cpu"), 0)
    said = []
    with Curves.opened(tmp_path, resolved, 0, said.append) as curves:
        curves.write(1, "train", {"loss": 1.0})
        curves.write(2, "train", {"loss": 1.0})
    assert said == [
        f"{tmp_path}/tensorboard cannot be written: No space left on device",
        f"{tmp_path}/loss.png cannot be written: No space left on device",
    ]


def test_a_picture_that_cannot_be_drawn_ends_no_training(tmp_path):
    """A damaged line, or a title that matplotlib takes for a formula."""
    (tmp_path / metrics.FILE).write_bytes(b"\0\0\n")
    said = []
    with Curves.opened(tmp_path, resolve(TrainConfig(device="cpu"), 0), 0, said.append):
        pass
    assert len(said) == 1
    assert said[0].startswith(f"{tmp_path}/loss.png cannot be written: UsageError: {tmp_path}/")
    assert "\n" not in said[0]
