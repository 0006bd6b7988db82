// Writes PNG files: no time, no name and no program stands in them, so that the
// same picture is always the same bytes.

import { crc32, deflateSync } from "node:zlib";

const RGB = 2;
const RGBA = 6;

const chunk = (kind, data) => {
  const body = Buffer.concat([Buffer.from(kind), data]);
  const out = Buffer.alloc(body.length + 8);
  out.writeUInt32BE(data.length);
  body.copy(out, 4);
  out.writeUInt32BE(crc32(body), body.length + 4);
  return out;
};

/** A picture of 8 bits a colour. Each row of its bytes begins with a 0, "no filter". */
export const png = (width, height, rows, alpha = false) => {
  const head = Buffer.alloc(13);
  head.writeUInt32BE(width, 0);
  head.writeUInt32BE(height, 4);
  head.set([8, alpha ? RGBA : RGB], 8);
  return Buffer.concat([Buffer.from("\x89PNG\r\n\x1a\n", "latin1"), chunk("IHDR", head), chunk("IDAT", deflateSync(rows, { level: 9 })), chunk("IEND", Buffer.alloc(0))]);
};
