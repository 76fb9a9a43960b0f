"""The page in a real browser: it asks for nothing, every digit is Python's, and everything works by keyboard."""

import html
import json
import re
from pathlib import Path

import numpy as np
import pytest
import torch

from model.config import ModelConfig
from model.gpt import GPT
from tests.conftest import PROJECT
from view import page as pages
from view.page import page
from view.toy import steps
from view.trace import trace

CHROMIUM = Path("/usr/bin/chromium")
FLAGS = [
    "--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update", "--disable-sync",
    "--disable-quic", "--no-first-run", "--host-resolver-rules=MAP * ~NOTFOUND",
]  # fmt: skip
TEXT = "나는 사과를 맛있게 먹었다"
ABOUT = {"run": "tiny", "step": 7, "composed": False}

browsers = pytest.mark.skipif(not CHROMIUM.exists(), reason="no Chromium in /usr/bin")


def make(layers=2, heads=3, width=48, context=64, vocab_size=400, **more):
    torch.manual_seed(0)
    model = GPT(ModelConfig(layers=layers, heads=heads, width=width, context=context, **more), vocab_size)
    for parameter in model.parameters():
        parameter.data = (
            parameter.data * 6 if parameter.dim() == 2 else parameter.data + 0.3 * torch.randn_like(parameter)
        )
    return model


@pytest.fixture(scope="module")
def browser():
    from playwright.sync_api import sync_playwright

    with sync_playwright() as started:
        opened = started.chromium.launch(executable_path=str(CHROMIUM), args=FLAGS)
        yield opened
        opened.close()


@pytest.fixture
def visit(browser, tmp_path):
    """Return a way to open a page from disk; whatever it asks for or complains of fails the test."""
    contexts, faults = [], []

    def open_page(made, address="", width=1440, **settings):
        path = tmp_path / "page.html"
        path.write_text(made, encoding="utf-8")
        settings = {"locale": "ko-KR", "viewport": {"width": width, "height": 900}} | settings
        context = browser.new_context(offline=True, **settings)
        contexts.append(context)
        opened = context.new_page()
        opened.on(
            "console", lambda message: "willReadFrequently" in message.text or faults.append(message.text)
        )  # ours below
        opened.on("pageerror", lambda error: faults.append(f"error: {error}"))
        opened.on("dialog", lambda dialog: faults.append("a dialog") or dialog.dismiss())
        opened.on(
            "request", lambda asked: asked.url.startswith(path.as_uri()) or faults.append(f"asks {asked.url[:99]}")
        )
        opened.goto(path.as_uri() + address)
        opened.wait_for_selector("[role=tablist]")
        return opened

    yield open_page
    for context in contexts:
        context.close()
    assert faults == []


@pytest.fixture(scope="module", params=["rotary", pytest.param("learned", marks=pytest.mark.whole)])
def made(request, tokenizer):
    model = make(position=request.param, bias=request.param == "learned")
    traced = trace(model, tokenizer, TEXT)
    return traced, page(traced, model, ABOUT, range(2)), request.param


def cells(opened, selector):
    """Return the text of every cell of a table's body."""
    return opened.eval_on_selector_all(
        f"{selector} tbody tr", "rows => rows.map(row => [...row.querySelectorAll('td')].map(cell => cell.textContent))"
    )


def expected(weights):
    return [
        [f"{weight:.3f}" if key <= query else "가려짐" for key, weight in enumerate(row)]
        for query, row in enumerate(weights.tolist())
    ]


# What needs no browser


def test_a_policy_allows_the_pages_own_scripts_and_nothing_else(made):
    _, whole, _ = made
    policy = html.unescape(re.search(r'http-equiv="Content-Security-Policy" content="([^"]*)"', whole)[1])
    assert policy.startswith("default-src 'none'") and "unsafe" not in policy and "*" not in policy
    sources = [(pages.PARTS / name).read_text(encoding="utf-8") for name in ("vendor/htm-preact.js", "page.css")]
    for source in (*sources, pages.application()):
        assert pages.source_hash(source) in policy


def test_nothing_random_and_no_outside_address(made):
    _, whole, _ = made
    assert "Math.random" not in whole
    assert set(re.findall(r"https?://[\w.]+", whole)) <= {"http://www.w3.org"}  # names of formats, never asked for


def test_the_example_in_docs_is_of_this_application():
    whole = (PROJECT / "docs" / "attention.html").read_text(encoding="utf-8")
    assert len(whole) <= 700_000
    for name in ("vendor/htm-preact.js", *pages.SCRIPTS, "page.css"):
        assert (pages.PARTS / name).read_text(encoding="utf-8") in whole, "renew it: python docs/make.py"


def test_what_the_user_typed_never_becomes_markup(tokenizer):
    model, text = make(), "</script> {{data}} <s>"
    whole = page(trace(model, tokenizer, text), model, ABOUT, range(2))
    assert whole.count("</script>") == 3 and whole.count('id="trace"') == 1
    assert text not in whole and html.escape(text) in whole


@pytest.mark.parametrize(
    "shape, limit",
    [((4, 4, 32, 128), 0.7e6), ((6, 8, 64, 256), 3e6), ((6, 8, 256, 256), 8e6)],
)
def test_size(shape, limit):
    layers, heads, T, width = shape
    model = make(layers, heads, width, context=T, position="rotary")
    tokens = Counted(T)
    whole = page(trace(model, tokens, "글"), model, ABOUT, range(layers))
    application = sum(len((pages.PARTS / name).read_bytes()) for name in ("page.html", "page.css", *pages.SCRIPTS))
    assert application + len((pages.PARTS / "vendor" / "htm-preact.js").read_bytes()) <= 120_000
    assert len(whole.encode("utf-8")) <= limit


class Counted:
    """A tokenizer that makes so many tokens of any text."""

    def __init__(self, count):
        self.count = count

    def encode(self, text):
        return [2 + number % 97 for number in range(self.count - 1)]

    def token(self, id):
        return f"\u2581낱{id}"

    def bytes_of(self, id):
        return f" 낱{id}".encode()


# In the browser


@browsers
def test_it_opens_on_the_row_of_the_last_eojeol(made, visit):
    traced, whole, _ = made
    opened = visit(whole)
    layer, head = traced.strongest()
    assert (opened.input_value("#layer"), opened.input_value("#head")) == (str(layer), str(head))
    row = traced.attention()[layer, head, -1]
    shown = opened.eval_on_selector_all(
        ".rows li", "rows => rows.map(row => row.innerText.split('\\n').filter(x => x.trim()))"
    )
    assert [line[-1] for line in shown] == [f"{weight:.3f}" for weight in row]
    assert [line[0] for line in shown] == [group.text for group in traced.groups]
    assert "행의 합 = 1.000 ✓" in opened.inner_text("main")


@browsers
@pytest.mark.parametrize("unit", ["eojeol", "token"])
def test_every_digit_of_every_head_is_pythons(made, visit, unit):
    traced, whole, _ = made
    opened = visit(whole, f"#v=head&unit={unit}")
    opened.keyboard.press("t")
    for layer in range(2):
        opened.select_option("#layer", str(layer))
        for head in range(3):
            opened.select_option("#head", str(head))
            assert cells(opened, "#twin") == expected(traced.attention(unit)[layer, head])


@browsers
def test_eojeol_of_several_tokens_are_averaged_or_look_as_their_last_one(tokenizer, visit):
    model = make()
    traced = trace(model, tokenizer, "뷁을 쫓았다 나는")
    assert len(traced.ids) > len(traced.groups) + 3
    opened = visit(page(traced, model, ABOUT, range(2)), "#v=head&l=1&h=2")
    opened.keyboard.press("t")
    assert cells(opened, "#twin") == expected(traced.attention()[1, 2])
    opened.get_by_role("button", name="마지막 토큰").click()
    assert cells(opened, "#twin") == expected(traced.attention(last=True)[1, 2])
    assert expected(traced.attention()[1, 2]) != expected(traced.attention(last=True)[1, 2])


@browsers
def test_the_steps_arrive_at_the_stored_weights(made, visit):
    traced, whole, _ = made
    last = len(traced.ids) - 1
    opened = visit(whole, "#v=steps&step=6")
    for layer in range(2):
        opened.select_option("#layer", str(layer))
        for head in range(3):
            opened.select_option("#head", str(head))
            for query in (0, 2, last):
                opened.select_option("#query", str(query))
                assert float(opened.inner_text("#agreement")) < 2e-5
    weights = [row[-1] for row in cells(opened, "table.ladder")]
    assert weights == [f"{weight:.3f}" for weight in traced.weights[1, 2, last]]


@browsers
def test_every_entry_written_out_is_the_stored_one(made, visit):
    traced, whole, _ = made
    opened = visit(whole, f"#v=steps&l=1&h=2&q={len(traced.ids) - 1}&k=2")
    for step, stored in ((2, traced.q[1, 2, -1, 0]), (8, (traced.between - traced.before)[1, -1, 0])):
        opened.click(f"ol.steps li:nth-child({step + 1}) button")
        difference, value = opened.eval_on_selector(
            "table:has(caption) tbody tr:last-child",
            "row => [row.querySelector('th').textContent, row.querySelector('td').textContent]",
        )
        assert float(difference.split()[-1]) < 1e-4
        assert float(value.replace("−", "-")) == pytest.approx(stored, abs=5.1e-4)
    opened.click("ol.steps li:nth-child(4) button")
    q, k = (torch.from_numpy(getattr(traced, name)[None, 1]) for name in "qk")
    model = make(position=made[2], bias=made[2] == "learned")
    q, k = model.blocks[1].attention.place(q, k, 0)
    product = float(q[0, 2, -1] @ k[0, 2, 2])
    assert float(opened.inner_text("#panel p.big").split("=")[-1].replace("−", "-")) == pytest.approx(product, abs=6e-4)


@browsers
def test_switches_change_what_they_must_and_nothing_else(made, visit):
    traced, whole, position = made
    query = 3
    opened = visit(whole, f"#v=steps&step=6&l=0&h=1&q={query}")

    def columns():
        return np.array(cells(opened, "table.ladder")).T.tolist()

    before = columns()
    assert before[2][query + 1 :] == ["−∞"] * (len(traced.ids) - query - 1)
    opened.click("#mask-off")
    unmasked = columns()
    assert unmasked[:2] == before[:2] and "−∞" not in unmasked[2] and "가려짐" not in unmasked[4]
    assert "반사실" in opened.inner_text("main")
    opened.click("#mask-off")
    opened.click("#scale-off")
    unscaled = columns()
    assert unscaled[0] == before[0] == unscaled[1] and unscaled[1] != before[1] and unscaled[2] == before[2]
    opened.click("#scale-off")
    opened.fill("#temperature", "4")
    warm = columns()
    assert warm[:3] == before[:3] and warm[4] != before[4]
    opened.fill("#temperature", "1")
    assert (opened.locator("#position-off").count() == 1) == (position == "rotary")
    if position == "rotary":
        opened.click("#position-off")
        assert columns()[0] != before[0]
        opened.click("#position-off")
    assert columns() == before and "반사실" not in opened.inner_text("main")


@browsers
def test_the_map_of_the_steps_follows_the_switches(made, visit):
    traced, whole, _ = made
    opened = visit(whole, "#v=steps&step=6&l=1&h=0")
    opened.keyboard.press("t")
    assert cells(opened, "#twin") == expected(traced.attention("token")[1, 0])
    opened.click("#mask-off")
    assert "가려짐" not in str(cells(opened, "#twin"))
    opened.get_by_role("grid").focus()
    opened.keyboard.press("Home")
    assert opened.inner_text("#cell").startswith(f"{traced.tokens[-1]} → 〈시작〉, ")


@browsers
def test_layers_left_out_are_not_there(made, visit, tokenizer):
    traced, whole, position = made
    model = make(position=position, bias=position == "learned")
    cut = page(traced, model, ABOUT, [1])
    assert len(cut) < len(whole) - 5000
    opened = visit(cut, "#v=head&l=1&h=2")
    assert opened.eval_on_selector_all("#layer option", "all => all.map(one => one.textContent)") == ["1"]
    opened.keyboard.press("t")
    assert cells(opened, "#twin") == expected(traced.attention()[1, 2])


@browsers
def test_the_toy_to_the_digit(made, visit):
    opened = visit(made[1], "#v=toy")
    for mask in (True, False):
        assert opened.inner_text("#toy-mask") == ("켬" if mask else "끔")
        scores, weights, context = (cells(opened, f"#toy > div:nth-child({number})") for number in (1, 2, 3))
        truth = steps(mask)
        hidden = np.isneginf(truth.scores)
        assert weights == [
            ["가려짐" if hidden[i, j] else f"{truth.weights[i, j]:.3f}" for j in range(4)] for i in range(4)
        ]
        assert context == [[f"{value:.3f}" for value in row] for row in truth.context]
        assert [row.count("가려짐") for row in scores] == hidden.sum(axis=1).tolist()
        assert weights[3] == ["0.143", "0.235", "0.235", "0.387"] and context[3] == ["0.143", "0.622", "0.622", "0.470"]
        opened.click("#mask-off")


@browsers
def test_ties_are_rounded_as_python_rounds_them(made, visit):
    opened = visit(made[1])
    values = [0.0625, 0.1875, 0.5, 1 / 16 + 1 / 1024, 0.0005, 0.0015, 0.2345, 2.5, 0.125, 0.00048828125, 1.0]
    source = (pages.PARTS / "engine.js").read_text(encoding="utf-8")
    function = re.search(r"function fixed.*?\n}\n", source, re.S)[0]
    for digits in (1, 2, 3):
        found = opened.evaluate(
            f"values => {{ {function} return values.map(value => fixed(value, {digits})) }}", values
        )
        assert found == [f"{value:.{digits}f}" for value in values]


@browsers
@pytest.mark.parametrize("theme", ["light", "dark"])
def test_a_cell_has_the_colour_of_its_weight(made, visit, theme):
    traced, whole, _ = made
    opened = visit(whole, "#v=head&l=0&h=0&q=0&k=0", color_scheme=theme)
    assert opened.get_attribute("html", "data-theme") == theme
    weights = traced.attention()[0, 0]
    count = len(weights)
    found = opened.evaluate(
        """count => {
          const canvas = document.querySelector('.heat canvas'), pen = canvas.getContext('2d');
          const style = getComputedStyle(document.documentElement);
          const [cell, side, top] = ['cell', 'side', 'top'].map(name => Number(canvas.dataset[name]));
          const pixel = (x, y) => [...pen.getImageData(Math.round(x), Math.round(y), 1, 1).data].slice(0, 3);
          const at = (query, key) => pixel(side + (key + .2) * cell, top + (query + .2) * cell);
          const cells = [];
          for (let q = 0; q < count; q++) for (let k = 0; k <= q; k++) cells.push([q, k, at(q, k)]);
          const hatched = [];
          for (let i = 0; i < cell; i++) hatched.push(pixel(side + (count - 1) * cell + i, top + cell / 2));
          const ends = ['--low', '--high'].map(name => style.getPropertyValue(name).trim());
          return { cells, hatched, low: ends[0], high: ends[1] };
        }""",
        count,
    )

    def parsed(colour):
        digits = colour.lstrip("#")
        digits = "".join(2 * digit for digit in digits) if len(digits) == 3 else digits
        return np.array([int(digits[part : part + 2], 16) for part in (0, 2, 4)])

    low, high = parsed(found["low"]), parsed(found["high"])
    assert len({tuple(colour) for colour in found["hatched"]}) > 1  # what is masked is not the colour of a zero
    for query, key, colour in found["cells"]:
        assert np.abs(low + (high - low) * weights[query, key] - colour).max() <= 2, (query, key)


@browsers
def test_by_keyboard_alone(made, visit):
    traced, whole, _ = made
    opened = visit(whole, "#v=sentence")

    def focused():
        assert opened.evaluate("document.activeElement.matches(':focus-visible')")
        return opened.evaluate("document.activeElement.id")

    for _ in range(9):
        opened.keyboard.press("Tab")
        if focused() == "tab-sentence":
            break
    opened.keyboard.press("ArrowRight")
    assert focused() == "tab-head"
    for _ in range(20):
        opened.keyboard.press("Tab")
        if opened.evaluate("document.activeElement.getAttribute('role')") == "grid":
            break
    opened.keyboard.press("Home")
    opened.keyboard.press("ArrowRight")
    opened.keyboard.press("ArrowRight")
    weights = traced.attention()[traced.strongest()][-1]
    rank = int((weights > weights[2]).sum())
    place = ["첫째", "둘째", "셋째", "넷째", "다섯째"][rank]
    sentence = f"먹었다 → 사과를, {100 * weights[2]:.1f}퍼센트, 이 행에서 {place}"
    assert opened.inner_text("#cell") == sentence == opened.inner_text("#said")
    assert sentence in opened.get_by_role("grid").aria_snapshot()
    opened.keyboard.press("ArrowUp")
    opened.keyboard.press("ArrowUp")
    opened.keyboard.press("End")
    assert opened.inner_text("#cell").startswith("사과를 → 사과를, ")
    opened.keyboard.press("ArrowRight")
    assert opened.inner_text("#cell") == "사과를 → 맛있게, 가려짐"
    before = opened.input_value("#head")
    opened.keyboard.press("]")
    assert opened.input_value("#head") != before
    opened.keyboard.press("3")
    opened.wait_for_selector("#next")
    for _ in range(60):
        opened.keyboard.press("Tab")
        if focused() == "next":
            break
    for step in range(2, 10):
        opened.keyboard.press("Enter")
        assert opened.inner_text("#panel h2").startswith(f"{step}. ")
    opened.keyboard.press("?")
    assert "PgUp" in opened.inner_text("main")
    opened.keyboard.press("Escape")
    assert "PgUp" not in opened.inner_text("main")


@browsers
@pytest.mark.parametrize(
    "look", ["light", *(pytest.param(look, marks=pytest.mark.whole) for look in ("dark", "forced"))]
)
def test_no_violation_of_accessibility(made, visit, look):
    from axe_playwright_python.sync_playwright import Axe

    settings = {"color_scheme": "dark"} if look == "dark" else {}
    settings |= {"forced_colors": "active"} if look == "forced" else {}
    for view in ("sentence", "head", "steps", "toy"):
        for lang in ("ko", "en"):
            opened = visit(made[1], f"#v={view}&lang={lang}&step=6", bypass_csp=True, **settings)
            if view == "head":
                opened.keyboard.press("t")
            found = Axe().run(opened).response["violations"]
            assert [(rule["id"], [node["html"][:120] for node in rule["nodes"]][:3]) for rule in found] == [], (
                view,
                lang,
            )


@browsers
@pytest.mark.parametrize("view", ["sentence", "head", "steps", "toy"])
def test_a_narrow_screen_never_scrolls_sideways(made, visit, view):
    opened = visit(made[1], f"#v={view}&step=6", width=320)
    assert opened.evaluate("document.documentElement.scrollWidth") <= 320


@browsers
def test_hostile_and_unusual_text(tokenizer, visit):
    model = make(context=256)
    for text in ("<img src=x onerror=alert(1)> </script> <s>", "뷁 🙂 한", "한\n줄", "나", "{{script}} {{data}}"):
        traced = trace(model, tokenizer, text)
        opened = visit(page(traced, model, ABOUT, range(2)), "#v=sentence")
        assert opened.locator("#page img, #page script").count() == 0
        assert opened.eval_on_selector_all(".eojeol b", "all => all.map(one => one.textContent)") == [
            group.text for group in traced.groups
        ]
        for view in ("2", "3", "4"):
            opened.keyboard.press(view)
            opened.wait_for_selector("#panel h2")


@browsers
def test_the_mouse_leads_where_the_arrows_do(made, visit):
    opened = visit(made[1], "#v=head")
    box = opened.locator(".heat canvas").bounding_box()
    cell, side, top = (float(opened.get_attribute(".heat canvas", f"data-{name}")) for name in ("cell", "side", "top"))
    opened.mouse.move(box["x"] + side + 1.5 * cell, box["y"] + top + 2.5 * cell)
    assert opened.inner_text("#cell").startswith("사과를 → 나는, ")
    opened.mouse.move(box["x"] + side + 3.5 * cell, box["y"] + top + 2.5 * cell)
    assert opened.inner_text("#cell") == "사과를 → 맛있게, 가려짐"


@browsers
def test_hangul_is_drawn(made, visit):
    opened = visit(made[1])
    alike = opened.evaluate(
        """() => {
          const drawn = text => {
            const canvas = document.createElement('canvas'), pen = canvas.getContext('2d');
            pen.font = '40px ' + getComputedStyle(document.documentElement).getPropertyValue('--font');
            pen.fillText(text, 10, 60);
            return canvas.toDataURL();
          };
          return drawn('한') === drawn('\\uFFFF') || drawn('한') === drawn('글');
        }"""
    )
    assert not alike


@browsers
def test_the_address_leads_to_the_view(made, visit):
    opened = visit(made[1], "#v=steps&l=1&h=0&q=3&k=1&step=4&lang=en")
    assert opened.inner_text("#panel h2") == "5. ÷ √d"
    assert [opened.input_value(f"#{name}") for name in ("layer", "head", "query", "key")] == ["1", "0", "3", "1"]
    opened.click("#language")
    opened.wait_for_url(re.compile("lang=ko"))
    assert "step=4" in opened.url and opened.get_attribute("html", "lang") == "ko"
    opened.click("#theme")
    assert opened.get_attribute("html", "data-theme") == "dark"


@browsers
def test_what_is_saved_is_what_is_shown(made, visit, tmp_path):
    traced, whole, _ = made
    opened = visit(whole, "#v=head&l=1&h=1", accept_downloads=True)
    with opened.expect_download() as given:
        opened.get_by_role("button", name="CSV").click()
    lines = Path(given.value.path()).read_text(encoding="utf-8").splitlines()
    weights = traced.attention()[1, 1]
    assert lines[0] == "layer,head,query,key,query_text,key_text,weight" and len(lines) == 1 + weights.size
    last = lines[-1].split(",")
    assert last[:6] == ["1", "1", "4", "4", "먹었다", "먹었다"] and float(last[6]) == pytest.approx(
        weights[4, 4], abs=1e-9
    )


@pytest.mark.whole
@browsers
def test_a_long_text_stays_usable(visit):
    model = make(6, 6, 96, context=512, position="rotary")
    traced = trace(model, Counted(512), "글")
    opened = visit(page(traced, model, ABOUT, range(6)), "#unit=token")
    for view in "1234":
        opened.keyboard.press(view)
        opened.wait_for_timeout(50)
        if view != "1":
            assert opened.evaluate("document.getElementsByTagName('*').length") <= 3000
    assert json.loads(opened.evaluate("JSON.stringify(performance.now())")) > 0
