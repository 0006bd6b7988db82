// Draws the icons that a home screen wants as PNG, from the same shapes as
// public/icon.svg: node build/icons.mjs. They are committed, since compressors
// differ and the same sources must give the same page.

import { writeFileSync } from "node:fs";
import { png } from "./png.mjs";

const GREEN = [0x00, 0x70, 0x5a];
/** In the 64 units of icon.svg. */
const LINES = [[18, 22, 30, 32], [30, 32, 18, 42], [34, 44, 48, 44]];
const HALF = 3; // of a line's width
const RADIUS = 14;

const toLine = (x, y, [x1, y1, x2, y2]) => {
  const [dx, dy] = [x2 - x1, y2 - y1];
  const t = Math.max(0, Math.min(1, ((x - x1) * dx + (y - y1) * dy) / (dx * dx + dy * dy)));
  return Math.hypot(x - x1 - t * dx, y - y1 - t * dy);
};
const toCorner = (x, y) => {
  const q = (v) => Math.max(Math.abs(v - 32) - (32 - RADIUS), 0);
  return Math.hypot(q(x), q(y)) - RADIUS;
};

/** full: to the edges, with the drawing inside of what every mask leaves. */
const draw = (size, full) => {
  const unit = 64 / size;
  const cover = (distance) => Math.max(0, Math.min(1, 0.5 - distance / unit));
  const rows = [];
  for (let py = 0; py < size; py++) {
    const row = Buffer.alloc(1 + size * 4);
    for (let px = 0; px < size; px++) {
      let [x, y] = [(px + 0.5) * unit, (py + 0.5) * unit];
      const back = full ? 1 : cover(toCorner(x, y));
      let scale = 1;
      if (full) {
        scale = 0.78;
        [x, y] = [32 + (x - 32) / scale, 32 + (y - 32) / scale];
      }
      const front = Math.max(...LINES.map((l) => cover((toLine(x, y, l) - HALF) * scale)));
      const at = 1 + px * 4;
      for (let c = 0; c < 3; c++) row[at + c] = Math.round(GREEN[c] + (255 - GREEN[c]) * front);
      row[at + 3] = Math.round(255 * back);
    }
    rows.push(row);
  }
  return png(size, size, Buffer.concat(rows), true);
};

for (const [name, size, full] of [["icon-192", 192, false], ["icon-512", 512, false], ["icon-mask", 512, true], ["icon-touch", 180, true]]) writeFileSync(`public/${name}.png`, draw(size, full));
