"""The weights are transformers' own, and the page shows them in a real browser, whatever the texts hold."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest
import torch
import transformers
from matplotlib.image import imread
from safetensors.torch import load_file, save_file
from selenium import webdriver
from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.support.wait import WebDriverWait

from eval.attention import Picture, attention_weights, draw_head, main, picture, render
from eval.pictures import save_picture
from eval.pretrained import load_pretrained, pack
from preprocessing.tokenization import SPECIAL_TOKENS
from tests.eval.conftest import CONFIG, random_state
from tests.eval.minilm import MINILM
from tests.failing import REASON, fail_at
from tests.streams import stdout_to
from tests.trainer.shard_factory import save_tokenizer
from trainer.hugging_face import save_export
from trainer.model import BertForPreTraining
from trainer.packing import PackedTokens

HOSTILE = [
    "[CLS]",
    "</script><script>window.hacked = 1</script>",
    '<img src="//x" onerror="window.hacked = 1">',
    "&amp;",
]
SENTENCES = [[2, 17, 5, 60, 3], [2, 9, 9, 31, 42, 8, 3, 11, 12, 3], [2, 3]]


@pytest.mark.parametrize(
    ("change", "theirs"),
    [
        ({}, transformers.BertModel),
        ({"is_decoder": True}, transformers.BertModel),
        ({"pre_layer_norm": True}, transformers.MegatronBertModel),
    ],
)
def test_weights_are_those_of_transformers(tmp_path: Path, shards: Path, change: dict, theirs: type) -> None:
    config = dataclasses.replace(CONFIG, **change)
    state = random_state(config)
    save_export(tmp_path / "export", state, config, shards / "tokenizer", {})
    model = BertForPreTraining(config, seed=None).eval()
    model.load_state_dict(state)
    ours = attention_weights(model.double().bert, PackedTokens.from_sequences(SENTENCES))
    reference = theirs.from_pretrained(tmp_path / "export", attn_implementation="eager", dtype=torch.float64).eval()
    for ids, weights in zip(SENTENCES, ours, strict=True):  # each alone: nothing is padded, so no mask is needed
        with torch.inference_mode():
            expected = reference(torch.tensor([ids]), output_attentions=True, use_cache=False).attentions
        assert weights.shape == (2, 2, len(ids), len(ids))
        torch.testing.assert_close(weights, torch.cat(expected), rtol=0, atol=1e-6)
        torch.testing.assert_close(weights.sum(dim=-1), torch.ones_like(weights[..., 0]))


def test_weights_of_a_published_model() -> None:
    a, b = "The committee voted against the plan.", "It cost too much, they said!"
    encoded = transformers.AutoTokenizer.from_pretrained(MINILM)(a, b, return_tensors="pt")
    theirs = transformers.BertModel.from_pretrained(MINILM, attn_implementation="eager", dtype=torch.float64).eval()
    with torch.inference_mode():
        expected = torch.cat(theirs(**encoded, output_attentions=True).attentions)
    model, tokenizer = load_pretrained(MINILM)
    (weights,) = attention_weights(model.double().bert, pack([tokenizer.encode(a, b)]))
    torch.testing.assert_close(weights, expected, rtol=0, atol=1e-6)

    shown = picture(MINILM, a, b)
    assert shown.tokens[:3] + shown.tokens[-1:] == ["[CLS]", "the", "committee", "[SEP]"]
    np.testing.assert_allclose(shown.weights, expected.numpy(), rtol=0, atol=1e-5)  # in float32


def random_picture(tokens: list[str], layers: int = 3, heads: int = 2) -> Picture:
    generator = np.random.default_rng(5)
    weights = generator.dirichlet(np.ones(len(tokens)), size=(layers, heads, len(tokens)))
    return Picture(tokens, weights.astype(np.float32))


def test_a_picture_of_a_head(export: Path, tmp_path: Path) -> None:
    tokens = ["[CLS]", "$x$", "\\alpha", "<b>", "[SEP]"]
    shown = random_picture(tokens)
    axes, _ = draw_head(shown, layer=3, head=2).axes
    np.testing.assert_array_equal(axes.images[0].get_array(), shown.weights[2, 1])
    assert [label.get_text() for label in axes.get_xticklabels()] == tokens
    assert axes.get_title(loc="left") == "Layer 3, head 2"

    assert main([str(export), "w10 w11", "w12", "--output", str(tmp_path / "p" / "a.html"), "--png", "2.1"]) == 0
    assert sorted(path.name for path in (tmp_path / "p").iterdir()) == ["a-2.1.png", "a.html"]
    assert imread(tmp_path / "p" / "a-2.1.png").std() > 0


def test_dollars_are_no_formula(export: Path, tmp_path: Path) -> None:
    figure = draw_head(random_picture(["[CLS]", "a$b_{$", "[SEP]"]), layer=1, head=1)
    save_picture(figure, tmp_path / "head.png")  # matplotlib would break off at this formula
    assert [path.name for path in tmp_path.glob("*head*")] == ["head.png"]


def test_characters_that_no_font_has_are_told_in_one_line(tmp_path, capsys, recwarn):
    """Of the private use areas, for which none is meant to have a picture."""
    shown = Picture(["[CLS]", "\ue123\ue124", "\ue124"], np.full((1, 1, 3, 3), 1 / 3, np.float32))
    save_picture(draw_head(shown, 1, 1), tmp_path / "head.png")
    told = capsys.readouterr().err
    assert told.startswith(f"note: {tmp_path}/head.png: no font here has 2 of its characters, such as '\\ue123'; ")
    assert told.count("\n") == 1
    assert not recwarn.list


def test_words_in_another_encoding(export: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        main([str(export), "caf\udce9"])  # Latin-1, as Python gets it from a terminal of UTF-8
    assert "argument SENTENCE: 'caf\\udce9' is not UTF-8" in capsys.readouterr().err


def opened(browser: webdriver.Chrome, shown: Picture, folder: Path, title: str = "Attention") -> webdriver.Chrome:
    (folder / "page.html").write_text(render(shown, title), encoding="utf-8")
    browser.get_log("browser")  # of the page before
    browser.get_log("performance")
    browser.get((folder / "page.html").as_uri())
    return browser


def texts(browser: webdriver.Chrome, selector: str) -> list[str]:
    return [found.text for found in browser.find_elements(By.CSS_SELECTOR, selector)]


def chosen(browser: webdriver.Chrome) -> str:
    return browser.find_element(By.ID, "head").text


def readout(browser: webdriver.Chrome) -> str:
    return browser.find_element(By.ID, "readout").text


@pytest.mark.browser
def test_the_page_has_all_heads_and_shows_weights_under_the_mouse(browser: webdriver.Chrome, tmp_path: Path) -> None:
    shown = random_picture(["[CLS]", "cats", "sleep", "[SEP]"])
    opened(browser, shown, tmp_path)
    buttons = browser.find_elements(By.CSS_SELECTOR, "#heads button")
    assert [button.get_attribute("aria-label") for button in buttons] == [
        f"Layer {layer}, head {head}" for layer in (1, 2, 3) for head in (1, 2)
    ]
    buttons[5].click()
    assert chosen(browser) == "Layer 3, head 2"
    cells = browser.find_element(By.ID, "cells")
    side = cells.size["width"] / 4
    for source, target in ((1, 2), (3, 0), (0, 3)):
        offsets = int((target - 1.5) * side), int((source - 1.5) * side)  # from the middle
        ActionChains(browser).move_to_element_with_offset(cells, *offsets).perform()
        weight = shown.weights[2, 1, source, target]
        assert readout(browser) == f"{shown.tokens[source]} → {shown.tokens[target]}: {weight:.4f}"
        row = [item.get_attribute("title") for item in browser.find_elements(By.CSS_SELECTOR, "#text li")]
        np.testing.assert_allclose([float(text) for text in row], shown.weights[2, 1, source], atol=1e-4)


@pytest.mark.browser
def test_the_keyboard_reaches_every_head_and_weight(browser: webdriver.Chrome, tmp_path: Path) -> None:
    shown = random_picture(["[CLS]", "cats", "[SEP]"])
    opened(browser, shown, tmp_path)
    body = browser.find_element(By.TAG_NAME, "body")
    body.send_keys(Keys.TAB)
    assert browser.switch_to.active_element.get_attribute("aria-label") == "Layer 1, head 1"
    browser.switch_to.active_element.send_keys(Keys.ARROW_DOWN, Keys.ARROW_DOWN, Keys.ARROW_DOWN, Keys.ARROW_RIGHT)
    assert (chosen(browser), browser.switch_to.active_element.get_attribute("aria-pressed")) == (
        "Layer 3, head 2",
        "true",
    )
    browser.switch_to.active_element.send_keys(Keys.TAB)
    assert browser.switch_to.active_element.get_attribute("id") == "cells"
    browser.switch_to.active_element.send_keys(Keys.ARROW_DOWN, Keys.ARROW_RIGHT, Keys.ARROW_RIGHT)
    assert readout(browser) == f"cats → [SEP]: {shown.weights[2, 1, 1, 2]:.4f}"


@pytest.mark.browser
def test_no_text_becomes_markup_and_nothing_is_fetched(browser: webdriver.Chrome, tmp_path: Path) -> None:
    opened(browser, random_picture(HOSTILE), tmp_path, title=HOSTILE[1])
    assert texts(browser, "#text li") == HOSTILE
    assert texts(browser, "h1") == [HOSTILE[1]]
    assert browser.execute_script("return [window.hacked, document.scripts.length, document.images.length]") == [
        None, 3, 0,
    ]  # fmt: skip
    assert browser.get_log("browser") == []
    events = [json.loads(entry["message"])["message"] for entry in browser.get_log("performance")]
    sent = [event["params"]["request"]["url"] for event in events if event["method"] == "Network.requestWillBeSent"]
    assert {url for url in sent if not url.startswith("data:")} == {(tmp_path / "page.html").as_uri()}


@pytest.mark.browser
def test_in_the_dark_the_page_is_dark(browser: webdriver.Chrome, tmp_path: Path) -> None:
    opened(browser, random_picture(["[CLS]", "cats", "[SEP]"]), tmp_path)
    brightness = (
        "const pixel = document.getElementById('cells').getContext('2d').getImageData(0, 0, 1, 1).data;"
        "return [getComputedStyle(document.body).backgroundColor, pixel[0] + pixel[1] + pixel[2]]"
    )
    light = browser.execute_script(brightness)
    dark_mode = {"features": [{"name": "prefers-color-scheme", "value": "dark"}]}
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", dark_mode)
    try:
        WebDriverWait(browser, 10).until(lambda _: browser.execute_script(brightness)[1] != light[1])  # drawn anew
        dark = browser.execute_script(brightness)
    finally:
        browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": []})
    assert (light[0], dark[0]) == ("rgb(255, 255, 255)", "rgb(18, 22, 28)")


@pytest.mark.parametrize(
    ("stdout", "encoding"), [("/dev/full", "utf-8"), ("letters", "ascii")], ids=["nobody reads", "letters that lack"]
)
def test_a_name_that_cannot_be_shown_costs_no_picture(
    export: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], stdout: str,
    encoding: str,
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    with stdout_to(tmp_path / stdout, encoding):
        assert main([str(export), "w10", "--output", "Köpfe.html", "--png", "1.1"]) == 0
    assert capsys.readouterr().err == ""
    assert (tmp_path / "Köpfe-1.1.png").is_file()
    if stdout == "letters":
        assert (tmp_path / stdout).read_text() == "K?pfe.html\nK?pfe-1.1.png\n"


@pytest.mark.parametrize("place", ["/dev/null", "/tmp"])
def test_only_a_file_is_replaced(export: Path, capsys: pytest.CaptureFixture[str], place: str) -> None:
    assert main([str(export), "w10", "--output", place]) == 2
    assert capsys.readouterr().err == f"error: {place}: there, and no file; give the page another name\n"
    assert Path("/dev/null").is_char_device()


def test_a_picture_replaces_only_a_file_too_and_then_there_is_no_page(
    export: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    taken = tmp_path / "page-1.2.png"
    taken.mkdir()
    assert main([str(export), "w10", "--output", str(tmp_path / "page.html"), "--png", "1.1", "--png", "1.2"]) == 2
    assert capsys.readouterr().err == f"error: {taken}: there, and no file; give the page another name\n"
    assert list(tmp_path.glob("page*")) == [taken]


def test_what_can_not_be_written_is_told_with_what_to_do(
    export: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").touch()
    assert main([str(export), "w10", "--output", str(tmp_path / "file" / "page.html")]) == 2
    told = capsys.readouterr().err
    assert told.startswith(f"error: {tmp_path}/file")
    assert told.endswith("; mend that, or choose another --output\n")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--png", "3.1"], "error: there is no head 3.1: the model has layers 1 to 2, heads 1 to 2"),
        (["--png", "1.0"], "error: there is no head 1.0: the model has layers 1 to 2, heads 1 to 2"),
        (["w" * 60], "error: 59 tokens, but the model has 48 positions; give shorter texts"),
    ],
)
def test_mistakes_end_with_one_line(
    export: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], message: str
) -> None:
    if arguments[0] != "--png":
        arguments = ["? " * 57]  # [CLS], 57 and [SEP]
    output = tmp_path / "new" / "page.html"
    assert main([str(export), *(["w10"] if arguments[0] == "--png" else []), *arguments, "--output", str(output)]) == 2
    assert capsys.readouterr().err == message + "\n"
    assert not output.parent.exists()


def test_a_page_that_no_browser_likes_is_refused() -> None:
    weights = np.broadcast_to(np.float32(1 / 512), (24, 16, 512, 512))
    with pytest.raises(ValueError, match="512 tokens in 24 layers of 16 heads make a page of more than 64 MB"):
        render(Picture(["x"] * 512, weights), "large")


def test_an_export_that_can_not_be_read_for_a_moment_is_no_mistake(
    export: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file = export / "config.json"
    fail_at(monkeypatch, file)
    assert main([str(export), "w10", "--output", str(tmp_path / "page.html")]) == 1
    assert capsys.readouterr() == ("", f"error: {file}: can't be read now ({REASON}); give the same command again\n")
    assert not (tmp_path / "page.html").exists()


def test_no_export(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(tmp_path), "w10"]) == 2
    assert capsys.readouterr().err.startswith(f"error: {tmp_path / 'config.json'}: missing; ")


def test_an_export_whose_parts_do_not_fit(export: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    output = tmp_path / "page.html"
    weights = load_file(export / "model.safetensors")
    spoilt = {**weights, "bert.pooler.dense.bias": torch.full_like(weights["bert.pooler.dense.bias"], torch.nan)}
    save_file(spoilt, export / "model.safetensors", metadata={"format": "pt"})
    assert main([str(export), "w10", "--output", str(output)]) == 2
    assert "pooler.dense.bias contains NaN or infinity" in capsys.readouterr().err
    save_file(weights, export / "model.safetensors", metadata={"format": "pt"})
    save_tokenizer([*SPECIAL_TOKENS, *(f"word{i}" for i in range(99))], True, export)
    assert main([str(export), "word98", "--output", str(output)]) == 2
    assert "has the id 103, but the model's vocabulary 64 entries" in capsys.readouterr().err
    assert not output.exists()


@pytest.mark.parametrize("text", ["5", "5.", "a.b", "5.3.1", "-1.2", f"1.{'1' * 5000}"])
def test_what_is_no_head(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["export", "w10", "--png", text])
    assert f"{text!r} is not of the form LAYER.HEAD, such as 5.3" in capsys.readouterr().err


@pytest.mark.parametrize("text", ["", ".", "/"])
def test_what_is_no_file(text: str) -> None:
    with pytest.raises(SystemExit):
        main(["export", "w10", "--output", text])


def test_a_picture_of_many_tokens_is_no_larger_than_memory_allows() -> None:
    for count in (10, 300):
        width, height = draw_head(random_picture(["a"] * count), layer=1, head=1).get_size_inches()
        assert 4.0 <= height < width <= 41.0
