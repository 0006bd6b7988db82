// Typing on phones: the known problems of terminals in browsers, each by the
// events that the keyboards send. What counts is what arrives at a program on the
// machine.

import assert from "node:assert/strict";
import { after, before, beforeEach, test } from "node:test";
import { compose, device, FIELD, fresh, insert, line, over, pair, PHONE, prompt, recorder, run, Scene, shell, shows, sleep, soft, text, until } from "./lib.mjs";

const DEL = "\x7f";
const scene = new Scene();
let d, page, cdp, where;

before(async () => {
  const up = await scene.up();
  d = await device(scene, PHONE);
  ({ page, cdp } = d);
  await pair(d, await up.link());
  where = page.url();
});
beforeEach(() => fresh(d, where));
after(() => over(scene));

/** What the program gets when act is done in the field. */
const sends = async (act, before) => {
  const r = await recorder(scene, page, before);
  try {
    await page.tap(FIELD);
    await act(r);
    await sleep(200);
    return r.got();
  } finally {
    await r.end();
  }
};

test("1: letters of a soft keyboard arrive once and in order", async () => {
  const got = await sends(async () => {
    for (const c of "hello") await soft(cdp, () => insert(cdp, c));
  });
  assert.equal(got, "hello");
});

test("1: words that are composed letter by letter arrive once", async () => {
  const got = await sends(async () => {
    for (const word of ["git", "status"]) {
      for (let i = 1; i <= word.length; i++) await soft(cdp, () => compose(cdp, word.slice(0, i)));
      await insert(cdp, word);
      await soft(cdp, () => insert(cdp, " "));
    }
  });
  assert.equal(got, "git status ");
});

test("2: a key after the caret has drifted sends no whole line again", async () => {
  const got = await sends(async () => {
    await insert(cdp, "olleh");
    await page.$eval(FIELD, (f) => f.setSelectionRange(f.value.length - 3, f.value.length - 3));
    await soft(cdp, () => insert(cdp, "X"));
  });
  assert.equal(got, "olleh" + DEL.repeat(3) + "Xleh");
});

test("3: backspace of a soft keyboard deletes, with text and without", async () => {
  const got = await sends(async () => {
    await insert(cdp, "ab");
    for (let i = 0; i < 4; i++) await soft(cdp, () => page.evaluate(() => document.execCommand("delete")));
    await insert(cdp, "c");
  });
  assert.equal(got, "ab" + DEL.repeat(4) + "c");
});

test("4: a suggestion that replaces the word takes the word back", async () => {
  const got = await sends(async () => {
    await insert(cdp, "teh");
    await page.$eval(FIELD, (f) => f.setSelectionRange(f.value.length - 3, f.value.length));
    await soft(cdp, () => insert(cdp, "the "));
  });
  assert.equal(got, "teh" + DEL.repeat(2) + "he ");
});

test("4: two spaces that become a full stop do so on the machine", async () => {
  const got = await sends(async () => {
    await insert(cdp, "ok ");
    await page.$eval(FIELD, (f) => f.setSelectionRange(f.value.length - 1, f.value.length));
    await insert(cdp, ". ");
  });
  assert.equal(got, "ok " + DEL + ". ");
});

test("5: a composed word and a space are not sent twice", async () => {
  for (const code of [32, 229]) {
    const got = await sends(async () => {
      await compose(cdp, "l");
      await compose(cdp, "ls");
      await insert(cdp, "ls");
      await Promise.all([
        cdp.send("Input.dispatchKeyEvent", { type: "rawKeyDown", windowsVirtualKeyCode: code, key: code == 32 ? " " : "Unidentified" }),
        insert(cdp, " "),
        cdp.send("Input.dispatchKeyEvent", { type: "keyUp", windowsVirtualKeyCode: code }),
      ]);
    });
    assert.equal(got, "ls ", `space as ${code}`);
  }
});

test("6: two keys of a physical keyboard, 5 ms apart, are two keys", async () => {
  const got = await sends(async () => {
    for (let i = 0; i < 20; i++) {
      for (const c of ["a", "b"]) {
        await cdp.send("Input.dispatchKeyEvent", { type: "keyDown", key: c, text: c, windowsVirtualKeyCode: c.toUpperCase().charCodeAt(0) });
        await sleep(5);
      }
      for (const c of ["a", "b"]) await cdp.send("Input.dispatchKeyEvent", { type: "keyUp", key: c, windowsVirtualKeyCode: c.toUpperCase().charCodeAt(0) });
    }
  });
  assert.equal(got, "ab".repeat(20));
});

test("11: Korean without composition events leaves no loose letters", async () => {
  // WebKit replaces the last syllable by insertText over a selection.
  const got = await sends(async () => {
    await insert(cdp, "ㅎ");
    for (const syllable of ["하", "한"]) {
      await page.$eval(FIELD, (f) => f.setSelectionRange(f.value.length - 1, f.value.length));
      await insert(cdp, syllable);
    }
  });
  assert.equal(got, "ㅎ" + DEL + "하" + DEL + "한");
});

test("12: punctuation and emoji that come without a composition arrive once", async () => {
  const got = await sends(async () => {
    for (const c of ["。", "😀", "、"]) {
      await page.$eval(
        FIELD,
        (f, c) => {
          f.value += c;
          f.dispatchEvent(new InputEvent("input", { data: c, inputType: "insertText", composed: true, bubbles: true }));
        },
        c,
      );
    }
  });
  assert.equal(got, "。😀、");
});

test("13: the Enter that confirms Japanese does not run the line", async () => {
  const got = await sends(async () => {
    await compose(cdp, "か");
    await compose(cdp, "漢");
    // Safari: the composition ends first, then the key comes as 229.
    await insert(cdp, "漢");
    await cdp.send("Input.dispatchKeyEvent", { type: "rawKeyDown", windowsVirtualKeyCode: 229, key: "Process", code: "Enter" });
    await cdp.send("Input.dispatchKeyEvent", { type: "keyUp", windowsVirtualKeyCode: 229, key: "Enter", code: "Enter" });
  });
  assert.equal(got, "漢");
});

test("13: Enter within a composition sends nothing", async () => {
  const got = await sends(async () => {
    await compose(cdp, "にほん");
    await page.$eval(FIELD, (f) => f.dispatchEvent(new KeyboardEvent("keydown", { key: "Enter", keyCode: 13, isComposing: true, bubbles: true, cancelable: true })));
    await page.$eval(FIELD, (f) => f.dispatchEvent(new InputEvent("beforeinput", { inputType: "insertLineBreak", isComposing: true, bubbles: true, cancelable: true })));
    await insert(cdp, "日本");
  });
  assert.equal(got, "日本");
});

test("13: a composition that is given up sends nothing", async () => {
  const got = await sends(async () => {
    await compose(cdp, "ni");
    await compose(cdp, "");
    await insert(cdp, "x");
  });
  assert.equal(got, "x");
});

test("14: composition happens where it can be seen", async () => {
  await page.tap(FIELD);
  await compose(cdp, "か");
  const { box, height } = await page.$eval(FIELD, (f) => ({ box: f.getBoundingClientRect().toJSON(), height: visualViewport.height }));
  assert.ok(box.height >= 24 && box.top >= 0 && box.bottom <= height, JSON.stringify({ box, height }));
  await compose(cdp, "");
});

test("15: dictation that is said again, longer, is not doubled", async () => {
  const got = await sends(async () => {
    const say = async (t) => {
      await page.$eval(FIELD, (f) => f.setSelectionRange(8, f.value.length));
      await insert(cdp, t);
    };
    await say("run the tests");
    await say("Run the tests in the morning");
  });
  assert.equal(got, "run the tests" + DEL.repeat(13) + "Run the tests in the morning");
});

test("Enter of a soft keyboard is a carriage return", async () => {
  const got = await sends(async () => {
    await insert(cdp, "ls");
    await soft(cdp, () => page.evaluate(() => document.execCommand("insertLineBreak")));
    await insert(cdp, "x");
  });
  assert.equal(got, "ls\rx");
});

test("a word is deleted at once where the keyboard does that", async () => {
  const got = await sends(async () => {
    await insert(cdp, "one two");
    await page.$eval(FIELD, (f) => f.setSelectionRange(f.value.length - 3, f.value.length));
    await page.evaluate(() => document.execCommand("delete"));
  });
  assert.equal(got, "one two" + DEL.repeat(3));
});

test("16: keys of the key row leave the focus in the field, and send what they say", async () => {
  const got = await sends(async () => {
    for (const name of ["Esc", "Tab", "Shift and Tab", "Up", "Left", "Enter", "Ctrl and C", "Page up"]) {
      await page.locator(".keyrow button", { hasNotText: "·" }).and(page.getByLabel(name, { exact: true })).tap();
      assert.ok(await page.$eval(FIELD, (f) => document.activeElement == f), `${name} took the focus`);
    }
  });
  assert.equal(got, "\x1b\t\x1b[Z\x1b[A\x1b[D\r\x03\x1b[5~");
});

test("sticky Ctrl is for one key, held Ctrl until it is tapped again", async () => {
  const ctrl = page.locator(".keyrow button", { hasText: "Ctrl" });
  const got = await sends(async () => {
    await ctrl.tap();
    await soft(cdp, () => insert(cdp, "r"));
    await soft(cdp, () => insert(cdp, "r"));
    await ctrl.tap();
    await ctrl.tap();
    await soft(cdp, () => insert(cdp, "a"));
    await soft(cdp, () => insert(cdp, "b"));
    await ctrl.tap();
    await soft(cdp, () => insert(cdp, "c"));
    await page.locator(".keyrow button", { hasText: "Alt" }).tap();
    await soft(cdp, () => insert(cdp, "f"));
  });
  assert.equal(got, "\x12r\x01\x02c\x1bf");
});

test("arrows follow the program's cursor mode", async () => {
  const got = await sends(async () => {
    await page.getByLabel("Up", { exact: true }).tap();
    await page.keyboard.press("ArrowLeft");
  }, "\\033[?1h");
  await run(page, "printf '\\033[?1l'");
  assert.equal(got, "\x1bOA\x1bOD");
});

test("a physical keyboard's Ctrl and Alt, function keys and modified arrows", async () => {
  const got = await sends(async () => {
    for (const k of ["Control+KeyC", "Alt+KeyB", "F5", "Control+ArrowLeft", "Shift+Tab", "Delete", "Escape"]) await page.keyboard.press(k);
  });
  assert.equal(got, "\x03\x1bb\x1b[15~\x1b[1;5D\x1b[Z\x1b[3~\x1b");
});

test("a password's prompt hides what is typed", async () => {
  await line(page, "clear; read -sp 'Password: ' x; echo; echo got ${#x}");
  await shows(page, /Password: $|Password:$/);
  await until(() => page.$eval(FIELD, (f) => f.classList.contains("secret")));
  await line(page, "hunter2");
  await shows(page, "got 7");
  await until(() => page.$eval(FIELD, (f) => !f.classList.contains("secret")));
  assert.ok(!(await text(page)).includes("hunter2"));
  await run(page, "clear");
});

test("what is written first is sent at once, with its line breaks, as one paste", async () => {
  const got = await sends(async () => {
    await page.getByLabel("Write first, then send").tap();
    const box = page.locator(".composer textarea");
    await box.tap();
    for (let i = 1; i <= 3; i++) await compose(cdp, "にほん".slice(0, i));
    await insert(cdp, "日本");
    await page.keyboard.press("Enter");
    await insert(cdp, "語");
    await page.getByText("Send and press Enter").tap();
    await page.getByLabel("Send every key").tap();
  }, "\\033[?2004h");
  await prompt(page);
  assert.equal(got, "\x1b[200~日本\r語\x1b[201~\r");
});
