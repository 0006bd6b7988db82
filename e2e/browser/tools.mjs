// The coding tools that people really run, on a model of ours: Claude Code and
// Codex as e2e/tools pins them, in tmux, without any network.

import { execFileSync } from "node:child_process";
import { existsSync, mkdirSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { test } from "node:test";
import { until } from "./lib.mjs";

const modules = new URL("../../.cache/tools/node_modules/", import.meta.url).pathname;
// What the tools want to have; the scripted model asks for none.
const key = "sk-ant-local-0000000000000000000000000000";

/** A machine of a scene with a project and a model; the socket is the scene's own default server. */
export const createDesk = async (scene) => {
  const project = join(scene.home, "project");
  mkdirSync(project, { recursive: true });
  const program = join(scene.dir, "model");
  execFileSync("go", ["build", "-o", program, "./scriptedmodel/serve"], { cwd: new URL("..", import.meta.url).pathname });
  const model = scene.start(program, [], { env: process.env });
  const url = await new Promise((resolve, reject) => {
    model.lines.once("line", resolve);
    model.over.then(() => reject(new Error(`the model ended: ${model.log}`)));
  });
  let any = false;

  const desk = {
    project,
    made: (name) => existsSync(join(project, name)),
    /** Starts a program in a new session of the scene's tmux. */
    run(name, env, ...args) {
      if (!any) {
        // A server of its own first, so that no two programs start one at once.
        scene.tmux("-f", "/dev/null", "start-server", ";", "set-option", "-g", "exit-empty", "off");
        scene.later(() => scene.tmux("kill-server"));
        any = true;
      }
      scene.tmux("-f", "/dev/null", "new-session", "-d", "-s", name, "-x", "100", "-y", "40", "-c", project, ...Object.entries(env).flatMap(([k, v]) => ["-e", `${k}=${v}`]), ...args);
    },
    screen: (name) => scene.tmux("capture-pane", "-p", "-t", `=${name}:`),
    keys: (name, ...keys) => scene.tmux("send-keys", "-t", `=${name}:`, ...keys),
    shows: (name, text, ms = 30_000) => until(() => desk.screen(name).includes(text), () => `${text} in:\n${desk.screen(name)}`, ms),

    /** A Claude Code that has answered its first questions. config is where it keeps its transcripts. */
    async claude(name, ...more) {
      const config = join(scene.home, `claude-${name}`);
      mkdirSync(config, { mode: 0o700 });
      writeFileSync(
        join(config, ".claude.json"),
        JSON.stringify({ hasCompletedOnboarding: true, theme: "dark", customApiKeyResponses: { approved: [key.slice(-20)] }, projects: { [project]: { hasTrustDialogAccepted: true } } }),
        { mode: 0o600 },
      );
      desk.run(
        name,
        { ANTHROPIC_BASE_URL: url, ANTHROPIC_API_KEY: key, CLAUDE_CONFIG_DIR: config, DISABLE_AUTOUPDATER: "1", CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC: "1", CLAUDE_CODE_MAX_RETRIES: "1" },
        join(modules, "@anthropic-ai/claude-code-linux-x64/claude"), "--permission-mode", "default", ...more,
      );
      await desk.shows(name, "? for shortcuts");
      return config;
    },

    async codex(name) {
      const home = join(scene.home, `codex-${name}`);
      mkdirSync(home, { mode: 0o700 });
      writeFileSync(
        join(home, "config.toml"),
        `model = "gpt-5.1-codex"\nmodel_provider = "local"\napproval_policy = "on-request"\nsandbox_mode = "read-only"\n[features]\ndaemon_auto_start = false\n[model_providers.local]\nname = "local"\nbase_url = "${url}/v1"\nwire_api = "responses"\nenv_key = "LOCAL_KEY"\n[projects."${project}"]\ntrust_level = "trusted"\n`,
        { mode: 0o600 },
      );
      desk.run(name, { CODEX_HOME: home, LOCAL_KEY: "x" }, join(modules, ".bin/codex"));
      await desk.shows(name, "gpt-5.1-codex default");
      return home;
    },
  };
  return desk;
};

/**
 * A test that stands on the ones before it in its file: after one has failed the
 * others say so at once. A failure tells what the page and the desk showed.
 */
export const createParts = (shown) => {
  let broken = "";
  return (name, ...rest) => {
    const f = rest.pop();
    test(name, ...rest, async () => {
      if (broken) throw new Error(`not tried: "${broken}" failed`);
      broken = name;
      try {
        await f();
      } catch (e) {
        // Reporters print the stack, which holds the message as it was.
        e.stack += `\n${await shown().catch(String)}`;
        throw e;
      }
      broken = "";
    });
  };
};

/** What a person sees of the page, and of a program at the desk. */
export const seen = async (page, desk, name) => `the page:\n${await page.locator("#app").innerText()}\nthe desk:\n${desk.screen(name).trimEnd()}`;
