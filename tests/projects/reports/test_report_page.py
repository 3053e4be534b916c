"""Figures, the page around them, and the README's commands that write it."""

import base64
import io
import json
import math
import re
import shutil

import numpy as np
from browser import seen_in_browser
from commands import documented, one_line_error, run
from folders import draw, make_run
from PIL import Image

from projects.Reports import page
from projects.Reports.charts import COLORS, constants, decimals, line_of, make_plots, thinned
from projects.Reports.collect import collect
from projects.Reports.detections import lines_of
from projects.Reports.kinds import by_kind, main_scores
from projects.Reports.matching import Curve


def body(html: str) -> str:
    """The page without plotly's script."""
    return re.sub(r"<script>/\*\*\s+\* plotly.*?</script>", "", html, flags=re.DOTALL)


def text(html: str) -> str:
    return " ".join(re.sub(r"<script.*?</script>|<style.*?</style>|<[^>]+>", " ", html, flags=re.DOTALL).split())


def embedded(source: str) -> Image.Image:
    return Image.open(io.BytesIO(base64.b64decode(source.partition(",")[2])))


def test_a_long_curve_keeps_its_ends_and_spikes_and_a_short_one_all(tmp_path):
    points = [(i, 1.0) for i in range(10_000)]
    points[4321], points[6000] = (4321, 50.0), (6000, float("nan"))
    x, y = np.array(thinned(points, most=100)).T
    assert len(x) <= 104 and x[0] == 0 and x[-1] == 9999 and np.all(np.diff(x) > 0)
    assert x[np.nanargmax(y)] == 4321 and np.isnan(y).sum() == 1
    assert thinned(points[:3], most=100) == points[:3]


def test_there_is_a_plot_for_every_metric_that_some_run_has(tmp_path):
    runs = [make_run(tmp_path / "a"), make_run(tmp_path / "b", 40)]
    with open(tmp_path / "b/metrics.json", "a") as file:
        for iteration in (39, 49):
            names = ("loss_rpn_cls", "bbox/AP50", "bbox/AP-cat", "eta_seconds", "rpn/num_pos")
            values = dict.fromkeys(names, iteration)
            file.write(json.dumps({"iteration": iteration, **values, "once": iteration - 39, "constant": 3.0}) + "\n")
        file.write('{"iteration": 50, "single": 5}\n')
    numbered = list(enumerate(collect(runs)[0]))
    assert constants(numbered) == {"lr": [0.1], "contrast_top1": [10.0], "constant": [3.0], "single": [5]}
    plots = make_plots(numbered)
    assert {group: [title for title, _, _ in drawn] for group, drawn in plots.items()} == {
        "Losses": ["total loss", "L_inst", "loss_rpn_cls"],
        "Scores": ["kNN top-1, %", "box AP50, %"],
        "Schedule and throughput": ["images per second"],
        "Other numbers": ["eta_seconds", "rpn/num_pos", "once"],
    }
    one, other = plots["Losses"][0][2]
    assert (one["name"], one["x"], one["y"]) == ("a", [19, 39, 59], [5.81, 5.61, 5.41]) and other["x"] == [19, 39]
    # More runs than colours are told apart by dashes.
    assert [line_of(number) for number in (0, 8)] == [{"color": COLORS[0], "dash": dash} for dash in ("solid", "dash")]


def test_scores_of_several_data_sets_have_a_column_and_a_plot_each_whatever_their_names(tmp_path):
    """Also where evaluation.json has them too: a dot, and a dash, are parts of the name."""
    run = make_run(tmp_path / "run", config="MODEL:\n  META_ARCHITECTURE: GeneralizedRCNN\n")
    names = ["voc:/data/my-boxes.v2:test", "own"]
    with open(run / "metrics.json", "a") as file:
        for iteration in (29, 59):
            scores = {f"{name}/{score}": iteration for name in names for score in ("bbox/AP", "bbox/AP-a.b")}
            file.write(json.dumps({"iteration": iteration, **scores, "grad-norm": iteration}) + "\n")
    (run / "evaluation.json").write_text(json.dumps({name: {"bbox": {"AP": 59.0, "AP-a.b": 1.0}} for name in names}))
    (reported,) = collect([run])[0]
    (kind,) = by_kind([reported])
    assert main_scores(kind, [reported]) == [f"{name}/bbox/AP" for name in names]
    plots = {group: [title for title, *_ in drawn] for group, drawn in make_plots([(0, reported)]).items()}
    assert plots["Scores"][1:] == [f"{name}/bbox/AP" for name in names] and plots["Other numbers"] == ["grad-norm"]


def test_a_pretraining_that_is_judged_on_two_sets_has_a_column_for_each(tmp_path):
    run = make_run(tmp_path / "run", config="MODEL:\n  META_ARCHITECTURE: KNNMoCo\n")
    names = ["knn_top1/folder:/own-set", "knn_top1/toy", "linear_top1/toy"]
    (run / "metrics.json").write_text(json.dumps({"iteration": 59, **dict.fromkeys(names, 31.25)}) + "\n")
    collected = collect([run])
    (kind,) = by_kind(collected[0])
    assert main_scores(kind, collected[0]) == names and "31.25 31.25 31.25" in text(page.render(*collected))


def test_a_small_loss_is_not_shown_as_0(tmp_path):
    assert [decimals(value, 3) for value in (0.0, 0.00041239, -0.0004, 0.01, 0.1234, 1234.5678, math.nan)] == [
        *("0.000", "0.000412", "-0.0004", "0.010", "0.123", "1,234.568", "nan")
    ]
    run = make_run(tmp_path / "run")
    (run / "metrics.json").write_text('{"iteration": 59, "total_loss": 0.00041239}\n')
    assert " 0.000412 " in text(page.render(*collect([run])))


def test_a_score_that_is_never_defined_has_no_empty_plot(tmp_path):
    """As COCO's AP of small boxes where there are none."""
    run = make_run(tmp_path / "run")
    with open(run / "metrics.json", "a") as file:
        for iteration in (29, 59):
            scores = {"bbox/APs": math.nan, "bbox/APl": iteration, "bbox/APm": math.nan if iteration > 30 else 1.0}
            file.write(json.dumps({"iteration": iteration, **scores}) + "\n")
    numbered = list(enumerate(collect([run])[0]))
    assert [title for title, *_ in make_plots(numbered)["Scores"]] == ["kNN top-1, %", "bbox/APl"]
    assert {"bbox/APs", "bbox/APm"} < constants(numbered).keys()


def test_what_is_said_of_a_queue_is_said_of_methods_with_one_alone(tmp_path):
    notes = []
    for methods in (["MoCo", "KNNMoCo"], ["SimCLR"], ["MoCo", "SimCLR"]):
        folder = tmp_path / "_".join(methods)
        runs = [make_run(folder / name, config=f"MODEL:\n  META_ARCHITECTURE: {name}\n") for name in methods]
        losses = {title: note for title, note, _ in make_plots(list(enumerate(collect(runs)[0])))["Losses"]}
        notes.append("queue" in losses["L_inst"])
    assert notes == [True, False, False]


def test_the_first_tables_show_each_kind_of_run_with_what_it_is_about(tmp_path):
    def write(name: str, architecture: str, metrics: str) -> None:
        make_run(tmp_path / name, config=f"MODEL:\n  META_ARCHITECTURE: {architecture}\n")
        lines = (tmp_path / name / "metrics.json").read_text() if architecture == "KNNMoCo" else ""
        (tmp_path / name / "metrics.json").write_text(f"{lines}{metrics}\n")

    write("a_moco", "KNNMoCo", "")
    write("b_boxes", "GeneralizedRCNN", '{"iteration": 59, "bbox/AP": 12.5, "bbox/AP50": 30.0, "rpn/num_pos": 4.0}')
    write("c_depth", "DepthEstimator", "")
    (tmp_path / "c_depth/evaluation.json").write_text('{"depth": {"rmse": 1.25, "delta1": 40.0}}')
    (tmp_path / "d_svm").mkdir()
    results = {"protocol": "linear SVM, C 0.5", "weights": "random", "mAP": 54.25, "per_class": {"cat": 1}}
    (tmp_path / "d_svm/results.json").write_text(json.dumps(results))
    summary = text(page.render(*collect([tmp_path]))).partition("Losses are the last")[0]
    kinds = re.split(r"\b(?:Pretraining|Detection|Depth|Studies)\b", summary)[1:]
    headers = ["kNN top-1, %", "box AP, %", "depth rmse, m", "what it is"]
    assert all(words in kind for kind, words in zip(kinds, headers, strict=True))
    assert "14.10" in kinds[0] and "12.50" in kinds[1] and "1.25" in kinds[2] and "num_pos" not in summary
    assert "d_svm linear SVM, C 0.5 random mAP 54.25" in kinds[3]


def test_a_config_of_others_with_something_else_in_the_place_of_data_sets_is_shown(tmp_path):
    run = make_run(tmp_path / "run", config="MODEL: {META_ARCHITECTURE: KNNMoCo}\nDATASETS: {TRAIN: 5}\n")
    assert "KNNMoCo, 5" in text(page.render(*collect([run])))


def test_numbers_of_others_that_no_float_holds_are_none(tmp_path):
    run = make_run(tmp_path / "run", config="MODEL: {META_ARCHITECTURE: [KNNMoCo]}\n")
    (run / "evaluation.json").write_text(json.dumps({"linear_top1": 10**400}))
    with open(run / "metrics.json", "a") as file:
        file.write(json.dumps({"iteration": 59, "images_per_second": 10**400, "lr": 10**400, "total_loss": 7}) + "\n")
    shown = text(page.render(*collect([run])))
    assert " 7.000 " in shown and " 149.0 " in shown


LOOK = """<pre id="seen"></pre><script>
const edge = (element) => element.getBoundingClientRect().right;
window.addEventListener("load", () => {
  const section = document.getElementById("summary"), cells = section.querySelectorAll("tbody :is(th, td)");
  const picture = document.querySelector("img"), seen = { titles: [...cells].map((cell) => cell.dataset.title) };
  seen.texts = getComputedStyle(cells[2], "::before").content;
  const shown = document.querySelectorAll("tbody :is(th, td), .curve svg, img");
  seen.beyond = Math.max(...[...shown].map(edge)) - edge(section);
  seen.reduced = picture.clientWidth;
  picture.parentElement.focus();
  seen.whole = picture.clientWidth;
  document.getElementById("seen").textContent = JSON.stringify(seen);
});
</script></body>"""


def test_a_phone_hides_no_column_and_nothing_of_a_picture(tmp_path):
    draw(make_run(tmp_path / "run", config="MODEL:\n  META_ARCHITECTURE: KNNMoCo\n") / "views.png", 900, 100)
    written = page.render(*collect([tmp_path / "run"])).replace("<body>", '<body style="max-width: 390px">')
    (tmp_path / "report.html").write_text(written)
    seen = seen_in_browser(tmp_path / "report.html", LOOK, width=500)
    assert seen["titles"] == ["run", "state", "kNN top-1, %", "total loss", "L_inst", "images/s", "trains"]
    assert seen["texts"] == '"kNN top-1, %: "'
    assert seen["beyond"] <= 0 and 300 < seen["reduced"] < 390 and seen["whole"] == 900


def test_pictures_are_made_small_and_have_limited_room(tmp_path):
    large, torn = draw(tmp_path / "large.png", 2400, 1200), tmp_path / "torn.png"
    torn.write_bytes(large.read_bytes()[:5000])
    album = page.Album(room=10**9)
    shown = album.embed(large, "large")
    assert (shown.width, shown.height, shown.problem) == (1200, 600, "")
    assert (embedded(shown.source).format, embedded(shown.source).size) == ("WEBP", (1200, 600))
    assert album.embed(torn, "torn").problem.startswith("cannot be read")
    assert page.Album(room=100).embed(large, "large").problem == "left out, to keep this page small"
    frames = [Image.new("RGB", (20, 20), color) for color in ("red", "lime", "blue")]
    frames[0].save(tmp_path / "bear.gif", save_all=True, append_images=frames[1:])
    shown = album.embed(tmp_path / "bear.gif", "bear.gif")  # its frame in the middle
    assert embedded(shown.source).convert("RGB").getpixel((10, 10))[1] > 200 and "2 of 3" in shown.caption


def test_the_page_holds_what_the_folders_hold(tmp_path):
    a, b = make_run(tmp_path / "a"), make_run(tmp_path / "b", 40, config="MOCO:\n  QUEUE_SIZE: 480\n")
    draw(a / "views.png")
    draw(b / "neighbours_0000039.png")
    (a / "evaluation.json").write_text('{"bbox": {"AP50": 12.5}}')
    (b / "evaluation.json").write_text("{torn")
    html = page.render(*collect([a, b]))
    shown = text(html)
    # Images per second: of 119, 139 and 159 the first is a cold start.
    said = "so far, at 39|best 17.10, at 29|149.0|a: views.png|b: neighbours_0000039.png|AP50 12.5|"
    said += "unfinished: 40 of 60|cannot be read as JSON|MOCO.QUEUE_SIZE 65536 – 480|platform Linux Linux"
    assert [words for words in said.split("|") if words not in shown] == []
    assert len(html) < 10e6
    # It asks for nothing from outside.
    assert "default-src 'none'" in html and not re.search(r'(?:src|href)=(?!"data:|"#)', body(html))


def test_names_from_folders_and_files_are_no_html(tmp_path):
    folder = make_run(tmp_path / "<script>alert(1)</script>")
    (folder / "results.json").write_text('{"<i>": "<img src=x onerror=alert(1)>"}')
    with open(folder / "metrics.json", "a") as file:
        file.write('{"iteration": 60, "loss_</script><script>alert(2)": NaN}\n')
    html = body(page.render(*collect([folder])))
    assert "<script>alert" not in html and "<img src=x" not in html and "&lt;i&gt;" in html


POINT = """<pre id="seen"></pre><script>
window.addEventListener("load", () => {
  const place = document.querySelector(".curve");
  Plotly.Fx.hover(place, [0, 1].map((curveNumber) => ({ curveNumber, pointNumber: 1 })));
  const show = () => { document.getElementById("seen").textContent = JSON.stringify(place.textContent); };
  setTimeout(show, 300);
});
</script></body>"""


def test_a_plot_names_its_lines_as_their_folders_are_called(tmp_path):
    names = ["lr<b>0.1", "lr <0.1> &amp; x"]
    written = page.render(*collect([make_run(tmp_path / name) for name in names]))
    (tmp_path / "report.html").write_text(written)
    seen = seen_in_browser(tmp_path / "report.html", POINT)
    assert all(name in seen for name in names)
    assert lines_of([("a<b>", Curve(np.ones(1), np.ones(1), np.ones(1)))])[0]["name"] == "a&lt;b&gt;"


def test_what_opens_a_url_is_on_no_page(tmp_path):
    """A run of Detectron2's own trainer writes it."""
    signed = "https://me:SECRET@host/a.pth?X-Amz-Signature=SECRET"
    run = make_run(tmp_path / "run", config=f"MODEL:\n  WEIGHTS: {signed}\nDATASETS:\n  TRAIN: ['{signed}']\n")
    (run / "evaluation.json").write_text(json.dumps({"weights": signed, "of": [signed]}))
    html = body(page.render(*collect([run])))
    assert "SECRET" not in html and "https://host/a.pth" in html


def test_folders_with_next_to_nothing_make_a_page(tmp_path):
    make_run(tmp_path / "empty", 0)
    (tmp_path / "study").mkdir()
    (tmp_path / "study/results.json").write_text("[]")
    (tmp_path / "study/table.md").write_text("| a |\n|---|")
    shown = text(page.render(*collect([tmp_path / "empty", tmp_path / "study"])))
    assert "started, no iteration written yet" in shown and "study – – none yet" in shown and "| a | |---|" in shown
    assert "Curves" not in shown


def test_many_pictures_and_rows_stay_within_the_room_and_the_rest_is_counted(tmp_path, monkeypatch):
    study = make_run(tmp_path / "run") / "study"
    first = draw(study / "00.png", 1200, 800)
    for number in range(1, page.MOST_PICTURES + 3):
        shutil.copy(first, study / f"{number:02d}.png")
    rows = [f'{{"n": {n}}}' for n in range(page.MOST_ROWS + 5)]
    (study / "results.json").write_text(f"[{', '.join(rows)}]")
    monkeypatch.setattr(page, "ROOM", 400_000)
    html = page.render(*collect([tmp_path / "run"]))
    for words in ("left out, to keep this page small", "and 3 more pictures in its folder", "and 5 more rows"):
        assert words in html
    assert len(body(html)) < 600_000


def test_the_commands_of_the_readme_write_pages(tmp_path):
    """Of a run that finished, and of one beside it that was stopped half-way."""
    whole, half = make_run(tmp_path / "toy/pretrain"), make_run(tmp_path / "toy/longer", 40)
    draw(whole / "views.png")
    draw(half / "neighbours.png")
    page = tmp_path / "report.html"
    for command in documented("projects/Reports/page.md"):
        assert f"written to {page}: " in run(command.replace("output/", f"{tmp_path}/"), tmp_path)
    html = page.read_text()
    assert "Runs pretrain and longer" in html and "longer: neighbours.png" in html and len(html) < 10e6
    assert html.count('<div class="curve') >= 3


def test_a_folder_is_no_file_to_write(tmp_path):
    folder = make_run(tmp_path / "run")
    command = f"python tools/report.py {folder} --output"
    assert f"--output {tmp_path} is a folder" in one_line_error(f"{command} {tmp_path}", tmp_path)
    assert "page.pdf: expected a name in .html" in one_line_error(f"{command} {tmp_path}/page.pdf", tmp_path)
