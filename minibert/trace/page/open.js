"use strict";
/* Unpacks the payload, and runs page.js, which is in it: the description in JSON, then the numbers. */
(async () => {
const place = document.getElementById("payload"), wait = document.getElementById("wait");
wait.hidden = false;
if (!window.DecompressionStream) {
  wait.textContent = "This browser cannot unpack the numbers. Open the page in Chrome or Edge 103, Firefox 113, Safari 16.4, or a later version.";
  return;
}
const given = place.textContent, codes = new Uint8Array(128), packed = new Uint8Array(Math.floor((4 * given.length) / 5));
place.textContent = "";
[..."0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz!#$%.()*+-;,=>?@^_`{|}~"].forEach((one, i) => { codes[one.charCodeAt(0)] = i; });
for (let i = 0, to = 0; i < given.length; i += 5) {
  let four = 0;
  for (let k = i; k < i + 5; k++) four = 85 * four + (k < given.length ? codes[given.charCodeAt(k)] : 84);
  for (let shift = 24; shift >= 0 && to < packed.length; shift -= 8) packed[to++] = four / 2 ** shift;
}
const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("deflate-raw"));
const unpacked = new Uint8Array(await new Response(stream).arrayBuffer());
const split = 4 + new DataView(unpacked.buffer).getUint32(0, true);
const { script, ...about } = JSON.parse(new TextDecoder().decode(unpacked.subarray(4, split)));
/* The content policy has the digest of this script too, so the browser runs no other. */
window.page = { about, bytes: unpacked.subarray(split) };
document.body.append(Object.assign(document.createElement("script"), { textContent: script }));
})();
