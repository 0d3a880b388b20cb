"Notebooks in a real JupyterLab, driven in Chromium as a reader would: opened, run from the menu, looked at."
import json
import os
import re
import shutil
import socket
import subprocess
import sys
import time
import urllib.request

import nbformat
import pytest
from notebooks import ROOT, with_parameters

from vit_plasticity.results import read_runs
from vit_plasticity.tables import accuracy_table, read_study

SETTINGS = {"notebook-extension/tracker": {"windowingMode": "none"}, "apputils-extension/notification": {"fetchNews": "false", "checkForUpdates": False}} # every cell is in the page, and nothing is asked of the network
SHORTER = {"finetune": {"steps": 30}, "plasticity": {}, "explore": {}}

WALK = r"""
const {chromium} = require('playwright-core');
(async () => {
  const [executable, root, folder, ...names] = process.argv.slice(2), told = {};
  const browser = await chromium.launch({executablePath: executable, args: ['--no-sandbox']});
  for (const name of names) {
    const page = await browser.newPage({viewport: {width: 1300, height: 1000}}), problems = [];
    page.on('pageerror', error => problems.push(String(error)));
    await page.goto(`${root}/lab/tree/${name}.ipynb?reset`, {waitUntil: 'load'});
    const status = page.locator('#jp-main-statusbar', {hasText: '| Idle'}); // before that "Run All Cells" does nothing
    await status.waitFor({timeout: 90000});
    await page.getByRole('menuitem', {name: 'Run', exact: true}).click();
    await page.getByRole('menuitem', {name: 'Run All Cells', exact: true}).click();
    await page.waitForFunction(() => { // every cell has a number, or one has failed
      const cells = [...document.querySelectorAll('.jp-CodeCell')].filter(cell => cell.querySelector('.cm-content').textContent.trim());
      return [...document.querySelectorAll('.jp-RenderedText')].some(output => output.textContent.includes('Traceback (most recent call last)')) || cells.every(cell => /\[\d+\]/.test(cell.querySelector('.jp-InputPrompt').textContent));
    }, null, {timeout: 300000});
    await status.waitFor({timeout: 60000});
    await page.waitForTimeout(500);
    told[name] = await page.evaluate(async () => {
      const ink = async image => { // the share of pixels that are unlike the corner's
        await image.decode();
        const canvas = Object.assign(document.createElement('canvas'), {width: image.naturalWidth, height: image.naturalHeight}), context = canvas.getContext('2d');
        context.drawImage(image, 0, 0);
        const data = new Uint32Array(context.getImageData(0, 0, canvas.width, canvas.height).data.buffer);
        return data.filter(pixel => pixel != data[0]).length / data.length;
      };
      const texts = selector => [...document.querySelectorAll(selector)].map(element => element.textContent);
      return {
        printed: texts('.jp-RenderedText[data-mime-type="application/vnd.jupyter.stderr"]'), // errors, warnings, progress bars
        tables: [...document.querySelectorAll('.jp-OutputArea table')].map(table => [...table.rows].map(row => [...row.cells].map(cell => cell.textContent.trim()))),
        ink: await Promise.all([...document.querySelectorAll('.jp-OutputArea img')].map(ink)), dialogs: texts('.jp-Dialog'),
        text: [...document.querySelectorAll('.jp-MarkdownOutput')].map(element => element.innerText).join('\n'), formulas: document.querySelectorAll('mjx-container').length,
      };
    });
    told[name].problems = problems;
    const height = await page.evaluate(() => Math.max(...[...document.querySelectorAll('.jp-NotebookPanel *')].map(element => element.scrollHeight)));
    await page.setViewportSize({width: 1300, height: Math.min(height + 150, 12000)}); // the whole notebook in one picture
    await page.waitForTimeout(500);
    await page.evaluate(() => document.querySelectorAll('.jp-NotebookPanel *').forEach(element => { element.scrollTop = 0; }));
    await page.screenshot({path: `${folder}/${name}.png`});
    await page.close();
  }
  await browser.close();
  console.log(JSON.stringify(told));
})();
"""


OPEN = r"""
const {chromium} = require('playwright-core');
(async () => {
  const [executable, root, folder, ...names] = process.argv.slice(2), told = {};
  const browser = await chromium.launch({executablePath: executable, args: ['--no-sandbox']});
  const page = await browser.newPage({viewport: {width: 1300, height: 1000}});
  let problems = [];
  const tell = text => /kernel|session|debug/i.test(text) || problems.push(text); // a kernel that is ended as soon as it has started complains
  page.on('pageerror', error => tell(String(error)));
  page.on('console', message => message.type() == 'error' && tell(message.text()));
  await page.goto(`${root}/lab?reset`, {waitUntil: 'load'});
  await page.waitForFunction(() => window.jupyterapp, null, {timeout: 90000});
  await page.evaluate(() => window.jupyterapp.restored);
  for (const name of names) {
    problems = [];
    told[name] = await page.evaluate(async path => {
      const widget = await window.jupyterapp.commands.execute('docmanager:open', {path}), started = Date.now();
      await Promise.all([widget.context.ready, widget.revealed]);
      const texts = () => [...widget.node.querySelectorAll('.jp-MarkdownCell .jp-RenderedMarkdown')], stated = [...widget.content.widgets].filter(cell => cell.model.type == 'markdown').length;
      const waits = () => texts().length < stated || texts().some(text => !text.textContent.trim() || (/\$[^\s$]/.test(text.innerText) && !text.querySelector('mjx-container')));
      while (waits() && Date.now() < started + 15000) await new Promise(done => setTimeout(done, 100)); // until Markdown and mathematics are drawn
      const result = {
        cells: widget.node.querySelectorAll('.jp-Cell').length, formulas: widget.node.querySelectorAll('mjx-container').length, wrong: widget.node.querySelectorAll('mjx-merror').length, dialogs: [...document.querySelectorAll('.jp-Dialog')].map(dialog => dialog.innerText),
        images: [...widget.node.querySelectorAll('img')].map(image => image.naturalWidth), text: texts().map(text => text.innerText).join('\n'),
      };
      await widget.sessionContext.ready;
      await widget.sessionContext.shutdown(); // its kernel
      widget.context.model.dirty = false; // so that it closes unasked
      widget.close();
      return result;
    }, name);
    told[name].problems = problems;
  }
  await browser.close();
  console.log(JSON.stringify(told));
})();
"""


@pytest.fixture(scope="module")
def lab(browser, tmp_path_factory):
    "JupyterLab's folder, and a function that drives it by a script."
    chromium, modules = browser
    folder = tmp_path_factory.mktemp("lab")
    shutil.copytree(ROOT/"nbs", folder/"root/nbs", ignore=shutil.ignore_patterns(".ipynb_checkpoints")) # copies: JupyterLab saves what it ran
    for name, settings in SETTINGS.items():
        path = folder/"jupyterlab_settings_dir/@jupyterlab"/f"{name}.jupyterlab-settings"
        path.parent.mkdir(parents=True)
        path.write_text(json.dumps(settings))
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    places = {name: str(folder/name.lower()) for name in ("JUPYTER_CONFIG_DIR", "JUPYTER_RUNTIME_DIR", "IPYTHONDIR", "JUPYTERLAB_WORKSPACES_DIR", "JUPYTERLAB_SETTINGS_DIR")}
    command = [sys.executable, "-m", "jupyterlab", "--no-browser", "--allow-root", "--IdentityProvider.token=", "--LabApp.expose_app_in_browser=True", f"--ServerApp.port={port}", "--ServerApp.port_retries=0", f"--ServerApp.root_dir={folder/'root'}"]
    with open(folder/"lab.log", "w") as log: server = subprocess.Popen(command, stdout=log, stderr=log, env={name: value for name, value in os.environ.items() if name not in ("MPLBACKEND", "TQDM_DISABLE")} | places) # as for a reader
    def drive(script, *names):
        (modules/"lab.js").write_text(script)
        done = subprocess.run(["node", "lab.js", chromium, f"http://127.0.0.1:{port}", str(folder), *names], cwd=modules, capture_output=True, text=True, timeout=600)
        assert done.returncode == 0, done.stderr + (folder/"lab.log").read_text()[-2000:]
        return json.loads(done.stdout)
    for _ in range(240):
        try: urllib.request.urlopen(f"http://127.0.0.1:{port}/api", timeout=5)
        except OSError: time.sleep(0.5)
        else: break
    yield folder, drive
    server.terminate()
    server.wait(30)


@pytest.fixture(scope="module")
def seen(lab):
    "What a reader sees in each notebook that was run, and where its runs are stored."
    folder, drive = lab
    for name, values in SHORTER.items():
        more = {"out_dir": str(folder/"outputs")} if name != "explore" else {}
        (folder/"root"/f"{name}.ipynb").write_text(with_parameters(ROOT/"nbs"/f"{name}.ipynb", **values, **more), encoding="utf-8")
    nbformat.write(nbformat.v4.new_notebook(cells=[nbformat.v4.new_markdown_cell("$x^2$"), nbformat.v4.new_code_cell("1 / 0")], metadata={"kernelspec": {"name": "python3", "display_name": "python3"}}), folder/"root/fails.ipynb") # whose error must be seen
    return drive(WALK, *SHORTER, "fails"), folder/"outputs"


@pytest.mark.parametrize("name", SHORTER)
def test_runs_without_errors(seen, name):
    told = seen[0][name]
    assert not told["dialogs"] and not told["problems"], told
    assert all(re.search(r"\d+%\|.*\|", text) for text in told["printed"]), told["printed"] # progress bars alone
    assert told["tables"] and not re.search(r"\$[^\s$][^$]*\$", told["text"])


def test_an_error_would_be_seen(seen):
    assert "ZeroDivisionError" in seen[0]["fails"]["printed"][0] and seen[0]["fails"]["formulas"] == 1


@pytest.mark.parametrize("name, figures", [("finetune", 2), ("plasticity", 2), ("explore", 5)])
def test_figures_have_ink(seen, name, figures):
    ink = seen[0][name]["ink"]
    assert len(ink) == figures and all(0.01 < share < 0.9 for share in ink), ink


def column(table, title): # of a rendered table: the first cell of each row -> the column's text
    place = table[0].index(title)
    return {row[0]: row[place] for row in table[1:] if len(row) > place}


def test_tables_hold_the_stored_values(seen):
    told, outputs = seen
    summary = read_runs("finetune", "summary", outputs).iloc[0]
    lines = {row[0]: row[1] for row in told["finetune"]["tables"][0][1:]}
    assert float(lines["test_accuracy"]) == pytest.approx(summary.test_accuracy, abs=1e-6) and int(lines["component_parameters"]) == 6 * (4 * 64 * 64 + 4 * 64)
    rates = read_runs("plasticity", "rates", outputs)
    means = rates[rates.inputs == "embedding"].groupby("component").rate.mean()
    table = told["plasticity"]["tables"][0]
    rows = [dict(zip(table[0], row)) for row in table[1:]]
    assert {row["component"]: float(row["plasticity"]) for row in rows if row["measure"] == "embedding"} == pytest.approx(means.to_dict(), abs=1e-4)
    accuracy = accuracy_table(read_study(ROOT/"outputs/mini_replication")).query("dataset == 'mini/digits'").set_index("configuration")["mean"]
    shown = column(told["explore"]["tables"][0], "accuracy")
    assert {name: float(shown[name].split(" ± ")[0]) for name in ("mha", "fc1", "ln1")} == pytest.approx((100 * accuracy[["mha", "fc1", "ln1"]]).to_dict(), abs=0.051)


def test_every_notebook_opens(lab):
    "All cells, figures and formulas are drawn."
    folder, drive = lab
    paths = sorted(path.relative_to(folder/"root").as_posix() for path in (folder/"root/nbs").rglob("*.ipynb"))
    told = drive(OPEN, *paths)
    assert len(told) == len(list((ROOT/"nbs").glob("*.ipynb"))) + len(list((ROOT/"nbs/api").rglob("*.ipynb")))
    for path, page in told.items():
        cells = json.loads((folder/"root"/path).read_text(encoding="utf-8"))["cells"]
        figures = sum("image/png" in output.get("data", {}) for cell in cells for output in cell.get("outputs", [])) + (path == "nbs/index.ipynb")
        assert page["cells"] == len(cells) and len(page["images"]) == figures and all(page["images"]), (path, page)
        assert not page["problems"] and not page["dialogs"] and not page["wrong"], (path, page)
        assert not (found := re.search(r"\$[^\s$][^$\n]*\$|\\[a-zA-Z]+\{", page["text"])), (path, found[0])
    assert told["nbs/api/04_bounds.ipynb"]["formulas"] > 200
