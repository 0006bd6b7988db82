// What failed, and how many ran. With HOLDFAST_RESULTS, every test by name is
// added to that file: "pass web/live NAME", after the folder that it runs in.

import { appendFileSync } from "node:fs";
import { basename } from "node:path";
import { inspect } from "node:util";

const name = `web/${basename(process.cwd())}`;

export default async function* report(source) {
  const count = { pass: 0, fail: 0, skip: 0 };
  for await (const { type, data } of source) {
    if (type == "test:stderr") yield data.message;
    if ((type != "test:pass" && type != "test:fail") || data.details.type == "suite") continue;
    const how = type == "test:fail" ? "fail" : data.skip !== undefined || data.todo !== undefined ? "skip" : "pass";
    count[how]++;
    if (how == "fail") yield `FAIL ${data.name}\n${inspect(data.details.error?.cause ?? data.details.error)}\n`;
    if (process.env.HOLDFAST_RESULTS) appendFileSync(process.env.HOLDFAST_RESULTS, `${how} ${name} ${data.name.replace(/\s+/g, " ")}\n`);
  }
  yield `   ${name}: ${count.pass} passed, ${count.fail} failed, ${count.skip} skipped\n`;
}
