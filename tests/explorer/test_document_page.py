"""The page as a person uses it, in Chromium: it answers at once, by keyboard too, on a small screen, in light and in dark."""

import re

import pytest
import torch

import posattn
from posattn.compiler.looped_programs import looped_program
from posattn.explorer import document, of_runs
from posattn.explorer.content import Content
from posattn.explorer.results import figures_of
from posattn.looped.offsets import edges
from posattn.tasks import TASKS
from posattn.tasks.numeric import Task, cumulative_sum, register

pytestmark = pytest.mark.xdist_group("chromium")
SMALL = {"layers": 2, "embed": 8, "width": 8}


@pytest.fixture(scope="module")
def page(visit, package):
    return visit(package, figures_of(None))


@pytest.fixture(autouse=True)
def fresh(request):
    """Every test of the shared page begins as a visitor does."""
    if "page" in request.fixturenames:
        shown = request.getfixturevalue("page")
        shown.set_viewport_size({"width": 1280, "height": 800})
        shown.reload()
        shown.wait_for_selector("html[data-ready]")


def errors(page):
    return [float(text.replace("−", "-")) for text in page.locator(".score:visible strong").all_inner_texts()]


def labels(page):
    return page.locator(".score:visible h3").all_inner_texts()


def begin(page, name="sum", scale="1"):
    """Another task, at another scale, with all its networks."""
    page.get_by_role("radio", name=TASKS[name].title).check()
    page.locator(f"#answers[data-task={name}]").wait_for()
    move(page, "#scale", scale)
    if page.locator("#others").is_visible():
        page.locator("#others").click()


def pixels(page):
    """The pictures of all attention maps, by model."""
    return page.evaluate(
        "[...document.querySelectorAll('.map-model')].map((model) => "
        "[...model.querySelectorAll('canvas')].map((canvas) => canvas.toDataURL()).join())"
    )


def move(page, selector, value):
    page.locator(selector).evaluate(
        "(slider, value) => { slider.value = value; slider.dispatchEvent(new Event('input', {bubbles: true})); }", value
    )


def test_page_is_one_small_file_without_links(package):
    html = document(package, figures_of(None), "a test")
    assert len(html.encode()) < 7_500_000  # half a megabyte is left for the figures of a full store
    assert "default-src 'none'" in html and "unsafe" not in html
    assert "src=" not in html and "href=" not in html and "@import" not in html and "url(" not in html


def test_it_opens_on_sorting_where_three_networks_differ(page):
    assert page.get_by_role("radio", name="sorting").is_checked()
    assert page.locator("#scale").input_value() == "6" and page.locator("#scale-now").inner_text() == "6.0"
    three = ["positional", "scale-exact", "standard"]
    assert labels(page) == three and page.locator(".map-model:visible h3").count() == 3
    assert page.locator("#answer-table tbody th").all_inner_texts() == ["input c x", "true answer", *three]
    positional, exact, standard = errors(page)
    assert standard > 10 * positional > 10 * exact / 2
    said = [card.locator("p").first.inner_text() for card in page.locator(".score:visible").all()]
    assert "never the numbers" in said[0] and "without biases" in said[1] and "compares the numbers" in said[2]
    assert "logarithmic" in page.locator("#answers").inner_text()
    more = page.get_by_role("button", name="Show 3 more: compiled, looped, looped compiled")
    more.click()
    assert labels(page) == [*three, "compiled", "looped", "looped, compiled"]
    page.get_by_role("button", name="Show 3 networks only").click()
    assert labels(page) == three


def test_the_scale_stays_in_sight_beside_the_maps(page):
    for width, height in ((1400, 800), (390, 640)):
        page.set_viewport_size({"width": width, "height": height})
        page.locator(".map-model").nth(2).locator(".map").last.scroll_into_view_if_needed()
        place = page.locator("#scale").bounding_box()
        assert 0 <= place["y"] < 120 and place["x"] + place["width"] <= width


def test_scale_moves_standard_attention_and_errors_but_not_positional_maps(page):
    begin(page, "sort")
    before, at_one = pixels(page), errors(page)
    move(page, "#scale", "10")
    after, at_ten = pixels(page), errors(page)
    assert [a == b for a, b in zip(before, after, strict=True)] == [True, True, False, True, True, True]
    assert "stands still" in page.locator(".moved").nth(0).inner_text()
    assert float(page.locator(".moved").nth(2).inner_text().split("moved ")[1].split()[0]) > 0.1
    positional, exact, standard, compiled, trained, looped = at_ten
    assert standard > 10 * positional and standard > 10 * at_one[2]
    assert exact == pytest.approx(10 * at_one[1], rel=0.01)  # f(c x) = c f(x)
    assert max(compiled, looped) < 1e-12 and trained < 0.1 * exact


def test_maps_reach_yellow_unless_all_are_to_have_the_same_colours(page):
    yellow = """() => [...document.querySelectorAll('.map-model:not([hidden]) canvas')].map((canvas) => {
      const { data } = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
      return Math.max(...data.filter((_, k) => k % 4 === 0));
    })"""
    assert set(page.evaluate(yellow)) == {253}  # the red of viridis' last colour
    shown = page.locator(".map .quiet").nth(2).inner_text()
    largest = posattn.pretrained("sort").attention()[1, 0].max()
    assert shown == f"0 to {largest:.2f}"
    page.locator("#stretch").uncheck()
    assert page.evaluate(yellow)[2] < 100 and page.locator(".map .quiet").nth(2).inner_text() == "0 to 1.00"


def set_length(page, n):
    page.locator("#count").fill(str(n))
    page.keyboard.press("Enter")


def test_a_list_of_any_length_is_answered_by_networks_that_take_it(page):
    begin(page)
    boxes = page.locator("#list .number")
    before = [box.input_value() for box in boxes.all()]
    page.select_option("#graph-model", label="standard")
    set_length(page, 19)
    assert [box.input_value() for box in boxes.all()][:8] == before and boxes.count() == 19
    assert labels(page) == ["looped", "looped, compiled"] and page.locator("#others").is_hidden()
    assert page.locator("#missing").inner_text() == "For lists of 8 only: positional, scale-exact, standard, compiled."
    assert page.locator("#count-choice").inner_text().split()[:5] == ["n", "=", "1", "to", "64"]  # said beside the box
    trained, exact = errors(page)
    assert trained < 1e-3 and exact < 1e-12
    shown = ["input c x", "true answer", "looped", "looped, compiled"]
    assert page.locator("#answer-table tbody th").all_inner_texts() == shown
    assert page.locator(".map-model:visible").count() == 2
    assert page.locator(".map-model:visible .map").count() == 5 * (2 + 1)
    # The graph is of a network that takes the list.
    assert page.locator("#graph-model option").all_inner_texts() == ["looped", "looped, compiled"]
    assert page.locator("#graph svg .node").count() == 19 * 6
    page.select_option("#graph-model", label="looped, compiled")
    arrows = sum(map(len, edges(looped_program("sum").layer.attention, 19)))
    assert page.locator("#graph svg line").count() == arrows
    assert "is left out" in page.locator("#graph-about").inner_text()
    page.get_by_role("button", name="Remove the last number").click()
    assert boxes.count() == 18 and page.locator("#count").input_value() == "18"
    assert page.locator("#graph-model option:checked").inner_text() == "looped, compiled"
    for wrong in ("0", "65", "2.5", "1,5", ""):
        set_length(page, wrong)
        said = page.locator("#wrong-n").inner_text()
        assert "it takes a whole number from 1 to 64. The page still shows 18." in said and boxes.count() == 18
    set_length(page, 64)
    assert page.locator("#wrong-n").is_hidden()
    assert page.get_by_role("button", name="Add a number").is_disabled() and boxes.count() == 64
    set_length(page, 1)
    assert page.get_by_role("button", name="Remove the last number").is_disabled()
    assert page.locator("#answer-table tbody tr:last-child td").first.inner_text() == f"{float(before[0]):.2f}"
    begin(page, "median")  # no network of this task takes every length
    assert boxes.count() == 8 and page.locator("#count").is_hidden()


def test_the_median_of_the_whole_list_has_networks_of_every_length_alone(page):
    begin(page, "median-total")
    for n in (8, 21):
        set_length(page, n)
        trained, exact = errors(page)
        assert trained < 0.01 and exact < 1e-12


def test_own_looped_runs_beside_one_of_a_fixed_length(visit, tmp_path):
    small = {"samples": 20, "epochs": 1, "batch": 10, "progress": False}
    fixed = posattn.ModelConfig(n=6, **SMALL)
    posattn.train("min", fixed, variable_length=(2, 3, 6), out=tmp_path / "fixed", **small)
    run = posattn.train(
        "min", posattn.ModelConfig(n=4, arch="looped", width=8), out=tmp_path / "looped", polish=0, **small
    )
    shown = visit(of_runs([tmp_path / "looped", tmp_path / "fixed"]), width=360, height=640)
    assert labels(shown) == [str(tmp_path / "fixed"), str(tmp_path / "looped"), "looped, compiled"]
    x = [0.5, -1.0, 2.0, 1.5, -1.5, 0.25, 1.0]
    set_length(shown, len(x))
    assert shown.locator("#missing").inner_text() == f"For lists of 2, 3, 6 only: {tmp_path / 'fixed'}."
    move(shown, "#scale", "1")
    for place, value in enumerate(x):
        shown.locator("#list .number").nth(place).fill(str(value))
    said = shown.locator("#answer-table tbody tr").nth(2).locator("td").all_inner_texts()
    said = [float(text.replace("−", "-")) for text in said[: len(x)]]
    assert said == pytest.approx(run.predict([x])[0, 0].tolist(), abs=0.0051)
    set_length(shown, 64)
    assert shown.evaluate("document.documentElement.scrollWidth") <= 360


def test_answers_that_are_nearly_equal_do_not_fill_the_chart_with_their_errors(page):
    begin(page, "median-total")
    for box in page.locator("#list .number").all():
        box.fill("1.7")
    names = page.locator("#answer-chart svg text").all_text_contents()
    ticks = [float(name.replace("−", "-")) for name in names if re.fullmatch(r"−?[\d.]+", name)]
    assert ticks[-8:] == list(range(1, 9))  # positions; before them the answers
    assert ticks[0] <= 1 and ticks[-9] >= 2.5 and len(set(ticks[:-8])) == len(ticks) - 8


def test_typing_and_dragging_change_answers_at_once(page):
    begin(page)
    boxes = page.locator("#list .number")
    truth = page.locator("#answer-table tr.truth td")
    for place in range(8):
        boxes.nth(place).fill("1")
    assert truth.all_inner_texts()[:8] == [f"{k}.00" for k in range(1, 9)]
    boxes.nth(0).fill("-0.5")
    assert truth.nth(7).inner_text() == "6.50"
    boxes.nth(0).fill("−.5e0")  # a minus as the page writes it, a number as calculators do
    assert truth.nth(7).inner_text() == "6.50" and page.locator("#list .wrong:visible").count() == 0
    move(page, "#list input[type=range] >> nth=0", "2")
    assert truth.nth(0).inner_text() == "2.00" and boxes.nth(0).input_value() == "2"
    boxes.nth(0).press("ArrowUp")
    assert truth.nth(0).inner_text() == "2.10" and boxes.nth(0).input_value() == "2.1"


def test_what_is_no_number_is_said_beside_its_box_and_the_picture_stays(page):
    """Typed key by key: a box of type number would drop the comma and take 15."""
    box, other = page.locator("#list .number").nth(3), page.locator("#list .number").nth(5)
    answers = page.locator("#answers .content")
    box.fill("1")
    before = answers.inner_html()
    box.press_sequentially(",5")
    problem = page.locator("#wrong-x4")
    assert problem.inner_text() == (
        "x4 is “1,5”; it takes a number from −1,000,000 to 1,000,000, with a decimal point: 1.5. The page still shows 1."
    )
    assert box.get_attribute("aria-invalid") == "true" and box.get_attribute("aria-describedby") == "wrong-x4"
    for text in ("", "-", "1e7", "abc", "0x1F", "Infinity", "1 5", "1, 5, 3"):
        other.fill(text)
        said = page.locator("#wrong-x6").inner_text()
        assert said.startswith(f"x6 is {f'“{text}”' if text else 'empty'}; it takes a number from")
        assert "decimal point" not in said
    assert answers.inner_html() == before
    # Below the row of its box, and no other number has moved away from it.
    rows = [page.locator(".entry").nth(k).bounding_box()["y"] for k in range(8)]
    below = problem.bounding_box()["y"] - rows[3]
    assert len(set(rows)) == 1 and 0 < below < page.locator(".entry").first.bounding_box()["height"] + 20
    box.fill("1.5")
    assert problem.is_hidden() and box.get_attribute("aria-invalid") == "false"
    assert page.locator("#answer-table tbody tr").first.locator("td").nth(3).inner_text() == "9.00"  # c x


def test_a_number_outside_a_programs_range_does_not_stretch_the_cards(page):
    begin(page, "sort", "6")
    heights = [card.bounding_box()["height"] for card in page.locator(".score").all()]
    page.locator("#list .number").nth(0).fill("200000")
    compiled = page.locator(".score").nth(3)
    assert compiled.locator("strong").inner_text() == "–"
    assert "takes numbers from −1,000,000 to 1,000,000" in compiled.inner_text()
    assert [card.bounding_box()["height"] for card in page.locator(".score").all()] == heights
    page.select_option("#graph-model", label="compiled")
    assert page.locator("#graph-about").inner_text() == "compiled takes numbers from −1,000,000 to 1,000,000."


def test_the_largest_numbers_do_no_harm(page):
    """Any error in the page fails a test."""
    begin(page, "maxsub", "10")
    for number in ("1e6", "-1e6"):
        page.locator("#list .number").nth(0).fill(number)
        assert page.locator("#list .wrong:visible").count() == 0
        assert not any("NaN" in text for text in page.locator(".moved").all_inner_texts())


def test_graph_has_an_arrow_for_every_weight_above_the_threshold(page):
    begin(page)
    for label, number in (("positional", 0), ("compiled", 3)):
        page.select_option("#graph-model", label=label)
        for least in (0.1, 0.55):
            move(page, "#threshold", str(least))
            maps = (posattn.pretrained("sum") if number == 0 else posattn.compile("prefix-sum", machines=8)).attention()
            arrows = int((maps.amax(dim=1) >= least).sum())
            assert page.locator("#graph svg line").count() == arrows
            assert page.locator("#graph-about").inner_text().startswith(f"{arrows} arrows")
    page.select_option("#graph-model", label="standard")
    assert "changes with the input" in page.locator("#graph-about").inner_text()


def test_program_is_stepped_through_with_its_memory(page):
    page.get_by_role("tab", name="Programs").click()
    page.select_option("#program", label="prefix-sum on 8 machines")
    boxes = page.locator("#program-input input")
    for place in range(8):
        boxes.nth(place).fill(str(place + 1))
    # After r rounds machine i holds the sum of its last 2^r numbers, or of all it has.
    for r in range(4):
        title = "Start" if r == 0 else f"Round {r} of 3: compute"
        while page.locator("#step-title").inner_text() != title:
            page.get_by_role("button", name="Forward").click()
        held = [row.locator("td").nth(0).inner_text() for row in page.locator("#memory tbody tr").all()]
        assert held == [str(sum(range(max(1, i - 2**r + 1), i + 1))) for i in range(1, 9)]
    assert "36" in page.locator("#program-answer").inner_text()
    assert "gives exactly the same" in page.locator("#program-answer").inner_text()
    assert page.get_by_role("button", name="Forward").is_disabled()
    page.get_by_role("button", name="Play").click()  # from the beginning, as it was at the end
    assert page.locator("#step-title").inner_text() == "Given"
    page.locator("#step-title", has_text="Start").wait_for()
    page.get_by_role("button", name="Pause").click()
    before = page.locator("#program-run").inner_html()
    boxes.nth(0).fill("")
    said = "Machine 1 is empty; it takes a number from −1,000,000 to 1,000,000. The page still shows 1."
    assert page.locator("#wrong-Machine-1").inner_text() == said
    assert page.locator("#program-run").inner_html() == before


def test_programs_refuse_numbers_out_of_range(page):
    page.get_by_role("tab", name="Programs").click()
    page.select_option("#program", label="word-count on 4 machines")
    page.locator("#program-input input").nth(0).fill("1.5")  # a key is a whole number
    assert "it takes a whole number from 0 to 3" in page.locator("#wrong-Machine-1-input-1").inner_text()
    assert "a whole number from 0 to 3 and a number from" in page.locator("#program-range").inner_text()
    page.get_by_role("button", name="Another input").click()
    assert page.locator("#program-input .wrong:visible").count() == 0
    page.get_by_role("button", name="Last").click()
    assert "the same" in page.locator("#program-answer").inner_text()


def test_a_program_that_breaks_says_so_and_its_last_steps_stay(page):
    page.get_by_role("tab", name="Programs").click()
    page.select_option("#program", label="list-ranking on 4 machines")
    page.locator("#program-title", has_text="distance").wait_for()
    before = page.locator("#program-run").inner_html()
    page.locator("#program-input input").nth(0).fill("0")  # a list that never ends
    assert "the last input that worked" in page.locator("#program-problem").inner_text()
    assert page.locator("#program-run").inner_html() == before
    page.locator("#program-input input").nth(0).fill("4")
    assert page.locator("#program-problem").inner_text() == ""


def test_khop_is_read_and_answered_in_letters(page):
    page.get_by_role("tab", name="Programs").click()
    page.select_option("#program", label="khop on 4 machines")
    page.locator("#program-title", has_text="k-hop").wait_for()
    boxes = page.locator("#program-input input")
    for machine, letter in enumerate("abAc"):
        boxes.nth(2 * machine).fill(letter)
        boxes.nth(2 * machine + 1).fill("1")
    held = [row.locator("td").first.inner_text() for row in page.locator("#memory tbody tr").all()]
    assert held == list("abac")
    page.get_by_role("button", name="Last").click()
    assert page.locator("#program-answer").inner_text().startswith("Answer: ~  ~  b  ~.")  # behind the earlier a is b
    assert "exactly the same" in page.locator("#program-answer").inner_text()
    assert page.locator("#memory td.output").all_inner_texts() == ["~", "~", "b", "~"]
    assert "a letter from a to z" in page.locator("#program-range").inner_text()
    boxes.nth(0).fill("7")
    assert "it takes a letter from a to z. The page still shows a." in page.locator("#programs .wrong").first.inner_text()


def test_keyboard_alone(page):
    page.get_by_role("tab", name="Answers").focus()
    page.keyboard.press("ArrowRight")
    assert page.get_by_role("tab", name="Programs").get_attribute("aria-selected") == "true"
    assert page.locator("#programs").is_visible() and not page.locator("#answers").is_visible()
    page.keyboard.press("End")
    assert page.locator("#results").is_visible()
    page.keyboard.press("Home")
    page.keyboard.press("Tab")  # into the tasks
    page.keyboard.press("ArrowRight")
    page.locator("#answers[data-task=maxsub]").wait_for()
    page.locator("#scale").focus()
    page.keyboard.press("End")
    assert page.locator("#scale-now").inner_text() == "10.0"
    width = page.locator("#scale").evaluate("(element) => getComputedStyle(element).outlineWidth")
    assert float(width.removesuffix("px")) >= 2
    page.locator(".map").first.focus()
    page.keyboard.press("Enter")
    assert page.locator("#numbers").is_visible()
    assert page.locator("#numbers-table td").count() == 81
    page.keyboard.press("Escape")
    assert not page.locator("#numbers").is_visible()
    assert page.evaluate("document.activeElement.className") == "map"


def test_nothing_is_wider_than_a_small_screen_and_all_is_named(visit, package):
    small = visit(package, figures_of(None), width=360, height=640, scheme="dark")
    for tab in ("Answers", "Programs", "Results"):
        small.get_by_role("tab", name=tab).click()
        assert small.evaluate("document.documentElement.scrollWidth") <= 360, tab
    for name in small.evaluate("[...document.querySelectorAll('#program option')].map((option) => option.value)"):
        small.get_by_role("tab", name="Programs").click()
        small.select_option("#program", name)
        assert small.evaluate("document.documentElement.scrollWidth") <= 360
    unnamed = small.evaluate(
        "[...document.querySelectorAll('input, select, button')].filter((element) => !(element.innerText || "
        "element.ariaLabel || element.labels?.length)).map((element) => element.outerHTML)"
    )
    assert unnamed == []


def test_light_and_dark_have_contrast(page):
    """Text on its ground, in both themes: at least 4.5 to 1, the usual demand; the colours of models 3 to 1."""
    script = """() => {
      const style = getComputedStyle(document.documentElement);
      const light = (name) => {
        const channels = style.getPropertyValue(name).trim().replace(/^#(.)(.)(.)$/, "#$1$1$2$2$3$3").match(/\\w\\w/g);
        const linear = (v) => (v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4);
        const [r, g, b] = channels.map((x) => linear(parseInt(x, 16) / 255));
        return 0.2126 * r + 0.7152 * g + 0.0722 * b + 0.05;
      };
      const ratio = (name) => Math.max(light(name), light("--card")) / Math.min(light(name), light("--card"));
      const models = ["--positional", "--scale-exact", "--standard", "--compiled", "--other-0", "--other-1", "--other-5"];
      return { text: ["--text", "--quiet", "--wrong"].map(ratio), models: models.map(ratio) };
    }"""
    for theme in ("light", "dark"):
        found = page.evaluate(script)
        assert min(found["text"]) >= 4.5 and min(found["models"]) >= 3, theme
        ground = page.evaluate("getComputedStyle(document.body).backgroundColor")
        page.locator("#theme").click()
        assert page.evaluate("getComputedStyle(document.body).backgroundColor") != ground


def drawn(name, panels):
    """A figure with a straight line in every panel, (title, view)."""
    line = {"label": "ours", "colour": "#000000", "marker": "o", "dash": "-", "published": []}
    line["points"] = [[1, 0.00012, 0.00011, 0.00013], [2, 0.00055, 0.0005, 0.0006]]
    about = {"ylabel": "share of letters right", "ylog": False, "yends": None, "series": [line]}
    figure = {"name": name, "title": "", "reference": "beyond the paper", "scale": "paper", "runs": "1 of 1 runs"}
    shown = [{"title": title, "view": view, **about} for title, view in panels]
    return figure | {"bars": False, "xlabel": "layers", "xlog": False, "opens": "hard", "panels": shown}


def test_figures_of_many_panels_open_with_one_view(visit):
    many = [(f"task {k}: {view}", view) for view in ("easy", "hard", "harder") for k in range(5)]
    shown = visit(Content(), [drawn("many", many), drawn("few", many[:6])], width=390)
    titles = shown.locator("#panels figcaption")
    assert titles.all_inner_texts() == [f"task {k}: hard" for k in range(5)]
    assert shown.locator("#view-choice label").all_inner_texts() == ["easy", "hard", "harder", "all 15 panels"]
    shown.get_by_role("radio", name="easy").check()
    assert titles.all_inner_texts() == [f"task {k}: easy" for k in range(5)]
    shown.get_by_role("radio", name="all 15 panels").check()
    assert titles.count() == 15
    shown.select_option("#figure", index=1)
    assert titles.count() == 6 and shown.locator("#views").is_hidden()


def test_no_text_of_a_chart_touches_another_or_is_cut_off(visit):
    """The title of the y axis and its ticks above all: shares like 0.00055 are wide."""
    script = """() => [...document.querySelectorAll("#panels svg")].flatMap((svg) => {
      const frame = svg.getBoundingClientRect();
      const boxes = [...svg.querySelectorAll("text")].map((text) => [text.textContent, text.getBoundingClientRect()]);
      const out = boxes.filter(([, b]) => b.left < frame.left - 1 || b.right > frame.right + 1);
      const touching = boxes.filter(([, a], k) => boxes.slice(k + 1).some(([, b]) =>
        a.left < b.right && b.left < a.right && a.top < b.bottom && b.top < a.bottom));
      return [...out, ...touching].map(([text]) => text);
    })"""
    figures = [drawn("one", [("task", "hard")]), *figures_of(None)]
    shown = visit(Content(), figures)
    for number, figure in enumerate(figures):
        shown.select_option("#figure", index=number)
        for width in (1400, 768, 390):
            shown.set_viewport_size({"width": width, "height": 800})
            assert shown.evaluate(script) == [], (figure["name"], width)


def test_published_lines_are_drawn_where_there_are_no_runs(page):
    page.get_by_role("tab", name="Results").click()
    page.select_option("#figure", index=0)
    assert page.locator("#panels svg").count() == 5
    dotted = page.locator("#panels svg path[stroke-dasharray]")
    assert dotted.count() == 10  # two published architectures of five tasks
    page.locator("#legend button").first.click()
    assert dotted.count() == 5
    assert page.locator("#legend button").first.get_attribute("aria-pressed") == "false"


HOSTILE = "</script><script>alert(1)</script><!--<img src=x onerror=alert(2)>{{SCRIPT}}"


@pytest.fixture
def hostile_task():
    name = HOSTILE.replace("/", "\\")
    register(Task(name, HOSTILE, cumulative_sum))
    yield name
    del TASKS[name]


def test_names_are_text_and_nothing_else(visit, tmp_path, hostile_task):
    """A run whose folder and task are called like markup: they are shown as they are, and nothing runs or loads."""
    folder = tmp_path / HOSTILE.replace("/", "\\")
    config = posattn.ModelConfig(n=3, **SMALL)
    posattn.train(hostile_task, config, members=2, samples=20, epochs=1, batch=10, out=folder, progress=False)
    content = of_runs([folder])
    shown = visit(content)  # an alert, an error or a request would fail the test
    assert shown.get_by_text(HOSTILE, exact=True).count() == 1  # the task, as a pill
    assert folder.name in shown.locator(".score h3").inner_text()
    assert shown.locator("img").count() == 0
    shown.locator(".score select").select_option("1")
    assert shown.locator(".score strong").inner_text() == "–"  # nobody told the page what the task's answer is
    assert len(shown.locator("#answer-table td").all()) > 8


def test_own_runs_of_several_lengths_and_members(visit, tmp_path):
    config = posattn.ModelConfig(n=5, arch="rope-only", **SMALL)
    small = {"samples": 50, "epochs": 1, "batch": 10, "progress": False}
    run = posattn.train("sum", config, members=3, variable_length=True, out=tmp_path / "own", **small)
    shown = visit(of_runs([tmp_path / "own"]))
    assert shown.locator(".score select option").all_inner_texts() == [f"member {k}, seed {k}" for k in range(3)]
    shown.locator(".score select").select_option("2")
    shown.select_option("#length", "4")
    move(shown, "#scale", "1")
    for place, value in enumerate(x := [0.5, -1.0, 2.0, 1.5]):
        shown.locator("#list .number").nth(place).fill(str(value))
    said = [float(text.replace("−", "-")) for text in shown.locator("#answer-table tr:last-child td").all_inner_texts()]
    assert said[:4] == pytest.approx(run.predict([x])[2, 0].tolist(), abs=0.0051)
    assert not shown.get_by_role("tab", name="Results").is_visible()  # none were given


def test_a_network_without_numbers_is_shown_as_such(visit, lively):
    """Training may diverge: weights that are no numbers give answers that are none, and no error in the page."""
    content = Content()
    model = lively(torch.float32, n=3)
    with torch.no_grad():
        model.layers[0].attention.W_Q.weight.fill_(float("nan"))
    content.compare("sum", [3], "mine", "positional", "", [(content.add(model), "member 0, seed 0, diverged")])
    shown = visit(content)
    assert shown.locator(".score strong").inner_text() == "–"
    assert shown.locator("#answer-table tr:last-child td").all_inner_texts() == ["–"] * 4


def test_an_empty_page_opens(visit):
    assert visit(Content()).get_by_role("tab", name="Answers").is_hidden()
