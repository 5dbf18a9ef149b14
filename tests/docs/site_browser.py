# SPDX-License-Identifier: Apache-2.0
"""Opens the site at a URL in a headless Chromium, and says as JSON what a reader would see. Run by the Python of .venv-docs.

python site_browser.py URL WORD...     searches for each word
"""

import json
import shutil
import sys
import tempfile

from selenium import webdriver
from selenium.webdriver.common.by import By
from selenium.webdriver.support.ui import WebDriverWait

FLAGS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--window-size=1400,1000",
]
SECONDS = 20


def main(url: str, words: list) -> None:
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        options = webdriver.ChromeOptions()
        options.binary_location = shutil.which("chromium")
        for flag in [*FLAGS, f"--user-data-dir={profile}"]:
            options.add_argument(flag)
        options.set_capability("goog:loggingPrefs", {"performance": "ALL", "browser": "ALL"})
        driver = webdriver.Chrome(options, webdriver.ChromeService(shutil.which("chromedriver")))
        try:
            print(json.dumps(seen(driver, url, words)))
        finally:
            driver.quit()


def seen(driver, url: str, words: list) -> dict:
    until = WebDriverWait(driver, SECONDS).until
    driver.get(url)
    pictures = driver.execute_script(
        "return [...document.images].map(i => [i.getAttribute('src'), i.complete && i.naturalWidth > 0])"
    )
    found, opened = {}, {}
    for word in words:
        driver.get(url)
        box = until(lambda _: driver.find_element(By.CSS_SELECTOR, ".md-search__input"))
        until(lambda _: box.is_displayed())
        box.send_keys(word)
        links = until(lambda _: driver.find_elements(By.CSS_SELECTOR, ".md-search-result__link"))
        found[word] = [link.get_attribute("href").removeprefix(url).partition("?")[0] for link in links]
        links[0].click()
        until(lambda _: driver.current_url.startswith(url + found[word][0]))
        opened[word] = until(lambda _: driver.find_element(By.TAG_NAME, "h1").text)
    requests = [json.loads(entry["message"])["message"] for entry in driver.get_log("performance")]
    # Of the site's pages, and not of the one that the browser begins with.
    asked = {
        each["params"]["request"]["url"]
        for each in requests
        if each["method"] == "Network.requestWillBeSent" and each["params"]["documentURL"].startswith(url)
    }
    assert url in asked, asked
    errors = [entry["message"] for entry in driver.get_log("browser") if entry["level"] == "SEVERE"]
    return {
        "pictures": pictures,
        "found": found,
        "opened": opened,
        "errors": errors,
        "elsewhere": sorted(each for each in asked if not each.startswith((url, "data:", "blob:"))),
    }


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
