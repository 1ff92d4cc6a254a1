"""The HTML page in a real headless browser: what is shown, and that keys and colours work."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from html_cases import EVIL, cycle_of, hostile, one_odd, passing

from meshsim.reports.html import write_html
from meshsim.result import RunResult

webdriver = pytest.importorskip("selenium.webdriver", reason="needs selenium: pip install selenium")
from selenium.webdriver.common.action_chains import ActionChains  # noqa: E402
from selenium.webdriver.common.by import By  # noqa: E402
from selenium.webdriver.common.keys import Keys  # noqa: E402
from selenium.webdriver.support.ui import Select, WebDriverWait  # noqa: E402

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
DRIVER = shutil.which("chromedriver")
pytestmark = pytest.mark.skipif(
    CHROMIUM is None or DRIVER is None, reason="needs chromium and chromedriver on the PATH"
)
FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
    "--window-size=1400,1100",
)  # fmt: skip


@pytest.fixture(scope="module")
def chromium(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    options = webdriver.ChromeOptions()
    options.binary_location = CHROMIUM
    for flag in (*FLAGS, f"--user-data-dir={tmp_path_factory.mktemp('profile')}"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    driver = webdriver.Chrome(options=options, service=webdriver.ChromeService(DRIVER))
    yield driver
    driver.quit()


@pytest.fixture
def show(chromium: Any, tmp_path: Path) -> Iterator[Callable[..., Any]]:
    """Open a page about some runs, in a light or dark system; at the end nothing may be in the console."""

    def opened(*results: RunResult, run: int | None = None, system: str = "light") -> Any:
        path = tmp_path / "page.html"
        write_html(path, results)
        feature = {"name": "prefers-color-scheme", "value": system}
        chromium.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [feature]})
        chromium.get("about:blank")
        chromium.get(path.as_uri() + ("" if run is None else f"#run-{run}"))
        if results:
            WebDriverWait(chromium, 20).until(
                lambda d: d.execute_script("return document.querySelector('main h2') !== null")
            )
        return chromium

    chromium.get_log("browser")
    yield opened
    chromium.execute_script("try { localStorage.clear() } catch {}")
    assert chromium.get_log("browser") == []


def text(driver: Any, selector: str) -> str:
    return str(driver.find_element(By.CSS_SELECTOR, selector).text)


def ranks_with(driver: Any, kind: str) -> list[int]:
    found = driver.find_elements(By.CSS_SELECTOR, f".square.{kind}")
    return [int(square.get_attribute("data-rank")) for square in found]


def press(driver: Any, *keys: str) -> None:
    driver.switch_to.active_element.send_keys(*keys)


def focus(driver: Any, selector: str) -> None:
    driver.execute_script("document.querySelector(arguments[0]).focus()", selector)


def drawn(driver: Any) -> tuple[int, int]:
    """Rows and calls that the timeline's last frame painted."""
    WebDriverWait(driver, 20).until(
        lambda d: d.execute_script("return document.querySelector('canvas').dataset.drawn")
    )
    rows, calls = driver.execute_script(
        "const { rows, drawn } = document.querySelector('canvas').dataset; return [rows, drawn]"
    )
    return int(rows), int(calls)


def scrolls(driver: Any) -> bool:
    script = """const box = document.querySelector('.timeline');
    return box.scrollWidth > box.clientWidth || box.scrollHeight > box.clientHeight"""
    return bool(driver.execute_script(script))


def is_painted(driver: Any) -> bool:
    """Whether the timeline has anything on it, after the next frames."""
    script = """const done = arguments[0];
    requestAnimationFrame(() => requestAnimationFrame(() => requestAnimationFrame(() => setTimeout(() => {
      const canvas = document.querySelector('canvas');
      const { data } = canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height);
      done(data.some((value) => value > 0));
    }))))"""
    return bool(driver.execute_async_script(script))


def test_texts_of_users_are_shown_and_not_run(show: Callable[..., Any]) -> None:
    driver = show(hostile())
    assert driver.title == "meshsim: tp=2 on fake, raised"
    assert driver.find_elements(By.CSS_SELECTOR, "img") == []
    assert text(driver, ".summary") == EVIL
    assert EVIL in text(driver, "#rank")
    assert text(driver, ".scenario th") == EVIL


def test_nothing_is_fetched(show: Callable[..., Any]) -> None:
    driver = show(passing("tp=2", 2, 1))
    assert driver.execute_script("return performance.getEntriesByType('resource').map((e) => e.name)") == []


def test_the_grid_works_by_keyboard(show: Callable[..., Any]) -> None:
    driver = show(passing("tp=2", 2, 1), one_odd(2, "dp=2", 1), passing("tp=2", 2, 1, backend="gloo"))
    assert text(driver, "main h2") == "dp=2"  # the first that failed
    focus(driver, "a.cell[data-run='1']")
    press(driver, Keys.ARROW_UP, Keys.NULL)
    press(driver, Keys.ARROW_RIGHT)
    press(driver, Keys.ENTER)
    WebDriverWait(driver, 10).until(lambda d: text(d, "main h2") == "tp=2")
    assert "gloo world" in text(driver, ".facts")
    assert "tp=2 on gloo, passed" in driver.execute_script(
        "return document.getElementById('announce').textContent"
    )
    stops = driver.find_elements(By.CSS_SELECTOR, "a.cell[tabindex='0']")
    assert [stop.get_attribute("data-run") for stop in stops] == ["2"]


def test_the_grid_is_filtered(show: Callable[..., Any]) -> None:
    driver = show(passing("tp=2", 2, 1), one_odd(2, "dp=2", 1), passing("tp=4", 4, 1))

    def shown() -> list[str]:
        rows = driver.find_elements(By.CSS_SELECTOR, "tr[data-row]")
        return [row.find_element(By.CSS_SELECTOR, "th").text for row in rows if row.is_displayed()]

    Select(driver.find_element(By.ID, "show")).select_by_value("failed")
    assert shown() == ["dp=2"]
    Select(driver.find_element(By.ID, "show")).select_by_value("")
    driver.find_element(By.ID, "find").send_keys("tp= passed")
    assert shown() == ["tp=2", "tp=4"]
    driver.find_element(By.ID, "find").send_keys(" nothing")
    assert shown() == []
    assert driver.find_element(By.ID, "none-found").is_displayed()


def test_a_ranks_group_lights_up_on_focus_and_on_hover(show: Callable[..., Any]) -> None:
    driver = show(passing("dp=2,tp=2,pp=2", 8, 1))
    focus(driver, ".mesh")
    assert ranks_with(driver, "lit") == [0, 1]  # tp is innermost: neighbours
    press(driver, Keys.ARROW_DOWN)
    assert ranks_with(driver, "lit") == [2, 3]
    axes = Select(driver.find_element(By.CSS_SELECTOR, "#mesh select"))
    assert [option.text for option in axes.options[:3]] == ["pp (2)", "dp = fsdp_shard (2)", "tp (2)"]
    axes.select_by_visible_text("pp (2)")
    ActionChains(driver).move_to_element(driver.find_element(By.ID, "rank-5")).perform()
    assert ranks_with(driver, "lit") == [1, 5]  # pp is outermost: half the world apart
    assert text(driver, "#mesh-note").startswith("rank 5 (pp 1, dp 0, tp 1): its pp group is 1, 5")


def test_each_group_has_its_own_colour(show: Callable[..., Any]) -> None:
    driver = show(passing("dp=2,tp=2", 4, 1))

    def colours() -> list[str]:
        script = (
            "return [...document.querySelectorAll('.square')].map((s) => getComputedStyle(s).backgroundColor)"
        )
        return list(driver.execute_script(script))

    a, b, c, d = colours()
    assert a == b != c == d
    Select(driver.find_element(By.CSS_SELECTOR, "#mesh select")).select_by_visible_text("dp = fsdp_shard (2)")
    a, b, c, d = colours()
    assert a == c != b == d


def test_odd_and_waiting_ranks_are_marked(show: Callable[..., Any]) -> None:
    driver = show(one_odd(8, "dp=4,tp=2", odd=5))
    assert (ranks_with(driver, "odd"), ranks_with(driver, "late")) == ([5], [0, 1, 2, 3, 4, 6, 7])
    assert text(driver, "#rank h3") == "Rank 5"
    label = driver.find_element(By.ID, "rank-5").get_attribute("aria-label")
    assert label == "rank 5, dp 2, tp 1, at fault, returned"
    lines = [row.text for row in driver.find_elements(By.CSS_SELECTOR, "#lines tbody tr")]
    assert any("train.py:30" in line and "not the ranks at fault" in line for line in lines)


def test_a_cycle_is_drawn(show: Callable[..., Any]) -> None:
    driver = show(cycle_of(8, "tp=8"))
    ring = driver.find_element(By.CSS_SELECTOR, "svg.ring")
    edges = ", ".join(f"{rank} waits for {(rank + 1) % 8}" for rank in range(8))
    assert ring.get_attribute("aria-label") == f"Cycle: {edges}"
    assert len(ring.find_elements(By.CSS_SELECTOR, "path.arrow")) == 8
    assert [node.text for node in ring.find_elements(By.CSS_SELECTOR, ".ring-node text")] == list("01234567")
    items = driver.find_elements(By.CSS_SELECTOR, "#cycle li")
    assert "waits in recv from 4" in items[3].text
    assert "train.py:20" in items[3].text
    items[3].find_element(By.CSS_SELECTOR, "button").click()
    assert text(driver, "#rank h3") == "Rank 3"


def test_a_long_cycle_is_cut(show: Callable[..., Any]) -> None:
    driver = show(cycle_of(64, "tp=64"))
    nodes = [node.text for node in driver.find_elements(By.CSS_SELECTOR, ".ring-node text")]
    assert nodes == [*map(str, range(35)), "+29"]


def test_the_timeline_works_by_keyboard(show: Callable[..., Any]) -> None:
    driver = show(one_odd(4, "dp=2,tp=2", odd=1, calls=2))
    focus(driver, ".timeline")
    assert text(driver, "#timeline-told").startswith("rank 1 · all_reduce number 1 on tp (0, 1) · SUM")
    press(driver, Keys.END)
    assert text(driver, "#timeline-told").startswith("rank 1 · all_reduce number 2 on tp (0, 1)")
    press(driver, Keys.ARROW_DOWN)
    press(driver, Keys.ARROW_RIGHT)
    told = text(driver, "#timeline-told")
    assert told.startswith("rank 2 · barrier number 3 on world (0-3)")
    assert "never completed" in told
    assert "train.py:30" in told
    press(driver, Keys.ENTER)
    assert text(driver, "#rank h3") == "Rank 2"


def test_the_timeline_by_time_has_calls_under_the_pointer(show: Callable[..., Any]) -> None:
    driver = show(passing("tp=2", 2, 4))
    Select(driver.find_element(By.CSS_SELECTOR, "#timeline select")).select_by_value("time")
    assert drawn(driver) == (2, 8)
    canvas = driver.find_element(By.CSS_SELECTOR, "canvas")
    # Calls last from 0, 1, 2, 3 s for half a second: at 1.25 s of 3.5 s there is the second.
    labels = 26
    across = labels + (canvas.size["width"] - labels - 4) * 1.25 / 3.5
    first_row = 33
    from_middle = (round(across - canvas.size["width"] / 2), first_row - canvas.size["height"] // 2)
    ActionChains(driver).move_to_element_with_offset(canvas, *from_middle).click().perform()
    assert text(driver, "#timeline-told").startswith("rank 0 · all_reduce number 2")


def test_a_thousand_ranks_are_drawn_by_what_is_in_view(show: Callable[..., Any]) -> None:
    driver = show(one_odd(1024, "dp=128,tp=8", odd=517, calls=20))
    assert len(driver.find_elements(By.CSS_SELECTOR, ".square")) == 1024
    rows, calls = drawn(driver)
    assert 10 < rows < 100
    assert 0 < calls <= rows * 21
    focus(driver, ".timeline")
    press(driver, Keys.PAGE_DOWN)
    assert text(driver, "#timeline-told").startswith("rank 537 ")
    label = driver.switch_to.active_element.get_attribute("aria-label")
    # 20 calls of everyone, and the barrier of all but one.
    assert label == "Timeline of 1,024 ranks, 21,503 calls"
    Select(driver.find_elements(By.CSS_SELECTOR, "#timeline select")[1]).select_by_value("all")
    WebDriverWait(driver, 20).until(lambda d: drawn(d)[0] == 1024)
    # Several ranks share a line of pixels, and one of them is drawn.
    assert drawn(driver)[1] < 1024 * 20
    assert not scrolls(driver)
    assert is_painted(driver)


def background(driver: Any) -> str:
    return str(driver.execute_script("return getComputedStyle(document.body).backgroundColor"))


def test_dark_and_light_follow_the_system_and_the_switch(show: Callable[..., Any]) -> None:
    run = passing("tp=2", 2, 1)
    light, dark = background(show(run)), background(show(run, system="dark"))
    assert light != dark
    driver = show(run, system="dark")
    driver.find_element(By.CSS_SELECTOR, "input[value=light]").click()
    assert background(driver) == light
    driver.find_element(By.CSS_SELECTOR, "input[value=dark]").click()
    assert background(driver) == dark
    driver.find_element(By.CSS_SELECTOR, "input[value=system]").click()
    assert background(driver) == dark


# Each visible element that holds text itself, with its colour and the first opaque colour behind it.
TEXTS = """
const opaque = (element) => {
  for (let at = element; at; at = at.parentElement) {
    const colour = getComputedStyle(at).backgroundColor;
    if (!/, 0\\)$|transparent/.test(colour)) return colour;
  }
  return "rgb(255, 255, 255)";
};
const found = [];
for (const element of document.querySelectorAll("body *")) {
  const own = [...element.childNodes].some((node) => node.nodeType === 3 && node.textContent.trim());
  if (!own || !element.checkVisibility()) continue;
  if (element.closest("svg, script, style, .skip, .unseen, option")) continue;
  found.push([element.className || element.tagName, getComputedStyle(element).color, opaque(element)]);
}
return found;
"""


def luminance(colour: str) -> float:
    """The relative luminance of WCAG 2."""
    channels = [float(part) / 255 for part in re.findall(r"[\d.]+", colour)[:3]]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(one: str, other: str) -> float:
    dark, light = sorted((luminance(one), luminance(other)))
    return (light + 0.05) / (dark + 0.05)


@pytest.mark.parametrize("system", ["light", "dark"])
def test_texts_have_contrast(show: Callable[..., Any], system: str) -> None:
    warned = passing("dp=2,tp=5", 10, 2)
    driver = show(one_odd(16, "dp=8,tp=2", 5), hostile(), warned, system=system)
    texts = driver.execute_script(TEXTS)
    assert len(texts) > 60
    weak = [(name, a, b, round(contrast(a, b), 2)) for name, a, b in texts if contrast(a, b) < 4.5]
    assert weak == []


def test_everything_to_operate_has_a_role_and_a_name(show: Callable[..., Any]) -> None:
    driver = show(cycle_of(8, "dp=4,tp=2"), hostile(), run=0)
    nodes = driver.execute_cdp_cmd("Accessibility.getFullAXTree", {})["nodes"]
    roles = (
        "button",
        "link",
        "combobox",
        "listbox",
        "option",
        "application",
        "searchbox",
        "radio",
        "checkbox",
        "region",
        "image",
        "grid",
    )
    named = [
        (node["role"]["value"], node.get("name", {}).get("value", ""))
        for node in nodes
        if not node["ignored"]
    ]
    assert {"button", "listbox", "option", "application", "image", "grid", "main", "navigation"} <= {
        r for r, _ in named
    }
    assert [role for role, name in named if role in roles and not name] == []
    focusable = [
        n
        for n in nodes
        if any(p["name"] == "focusable" and p["value"]["value"] for p in n.get("properties", ()))
    ]
    assert {n["role"]["value"] for n in focusable} & {"generic", "none"} == set()
