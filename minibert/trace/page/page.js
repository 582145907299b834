"use strict";
/* Shows the numbers of the page. It reads, sums and sorts; it does not compute a model. */
(() => {
const $ = (id) => document.getElementById(id);

/* ---- elements: text is always set as text, never as markup ---- */
const make = (tag, given = {}, ...children) => {
  const node = document.createElement(tag);
  for (const [key, value] of Object.entries(given)) {
    if (key === "class") node.className = value;
    else if (key.startsWith("on")) node.addEventListener(key.slice(2), value);
    else node.setAttribute(key, value);
  }
  node.append(...children);
  return node;
};
const fill = (node, ...children) => { node.replaceChildren(...children); return node; };
const bdi = (text) => make("bdi", { lang: "und", translate: "no" }, text);
const bar = (part) => {
  const inner = make("i");
  inner.style.width = `${Math.max(0, Math.min(1, part || 0)) * 100}%`;
  return make("span", { class: "bar", "aria-hidden": "true" }, inner);
};
const head = (...cells) => make("thead", {}, make("tr", {}, ...cells.map((cell, i) => make("th", i ? { scope: "col" } : { scope: "col", class: "start" }, cell))));

/* ---- numbers ---- */
const minus = (text) => text.replace("-", "\u2212");
const number = (x) => {
  if (Number.isNaN(x)) return "\u2013";
  if (!Number.isFinite(x)) return x > 0 ? "\u221e" : "\u2212\u221e";
  const size = Math.abs(x);
  return minus(size !== 0 && (size < 1e-3 || size >= 1e5) ? x.toExponential(2) : size >= 1000 ? x.toPrecision(3).replace(/^.*e.*$/, String(Math.round(x))) : x.toPrecision(3));
};
const cosine = (x) => (Number.isNaN(x) ? "\u2013" : minus(x.toFixed(3)));
const percent = (x) => (Number.isNaN(x) ? "\u2013" : `${(100 * x).toFixed(1)}\u00a0%`);

/* ---- the numbers: Payload in data.py says what the kinds are ---- */
const { about, bytes } = window.page;
const half = (bits) => {
  const exponent = (bits >> 10) & 31, fraction = bits & 1023, sign = bits >> 15 ? -1 : 1;
  if (exponent === 31) return fraction ? NaN : sign * Infinity;
  return sign * (exponent ? 2 ** (exponent - 15) * (1 + fraction / 1024) : 2 ** -14 * (fraction / 1024));
};
const read = (entry) => {
  if (!entry) return null;
  if (entry.data) return entry;
  const n = entry.shape.reduce((a, b) => a * b, 1), at = entry.at, data = entry.kind === "whole" ? new Int32Array(n) : new Float32Array(n);
  if (entry.kind === "f24") {
    const bits = new Uint32Array(data.buffer);
    for (let i = 0; i < n; i++) bits[i] = (bytes[at + i] << 8) | (bytes[at + n + i] << 16) | (bytes[at + 2 * n + i] << 24);
  } else {
    for (let i = 0; i < n; i++) {
      const whole = bytes[at + i] | (bytes[at + n + i] << 8);
      if (entry.kind === "whole") data[i] = whole - 1000;
      else if (entry.kind === "digits") data[i] = half(whole) / 64;
      else if (whole === 65535) data[i] = NaN;
      else data[i] = (entry.kind === "mille" ? whole : whole - 1000) / 1000;
    }
  }
  entry.data = data;
  return entry;
};
const at = (entry, ...place) => {
  if (!read(entry)) return NaN;
  let index = 0;
  place.forEach((one, i) => { index = index * entry.shape[i] + one; });
  return entry.data[index];
};

/* ---- what is chosen ---- */
const layers = about.layers, heads = about.heads;
const now = { text: 0, token: 0, other: 0, layer: 0, head: 0, mode: "raw", measure: "largest", word: "" };
const text = () => about.texts[now.text];
const size = () => text().tokens.length;
const attention = () => text().attention;
const name = (i) => text().tokens[i];
const label = (i) => `${i} ${name(i)}`;
/* The number stays before the token, whatever its direction. */
const numbered = (i, token = name(i)) => make("span", { dir: "ltr" }, `${i} `, bdi(token));

/* The shares of one row of attention: NaN where the page has no number, because it is smaller than those it has. */
const row = (layer, headNumber, token, mode = now.mode) => {
  const given = attention(), S = size(), shares = new Float64Array(S).fill(NaN);
  if (!given) return shares;
  const source = read(mode === "raw" || !given.weighted ? given.probs : given.weighted), kept = source.shape[3], columns = read(given.columns);
  const start = ((layer * heads.length + headNumber) * S + token) * kept;
  const places = columns ? columns.data.subarray(start, start + kept) : Uint32Array.from({ length: S }, (_, j) => j);
  places.forEach((j, k) => { shares[j] = source.data[start + k]; });
  return shares;
};

/* All rows of the chosen head, kept until another one is chosen. */
let kept = { key: "", rows: [], picture: null };
const matrix = () => {
  const key = [now.text, now.layer, now.head, now.mode].join();
  if (kept.key !== key) kept = { key, rows: text().tokens.map((_, i) => row(now.layer, now.head, i)), picture: null };
  return kept;
};

/* ---- colours: one hue; shares by their root, so that small ones are seen ---- */
let stops = [];
const readColours = () => {
  const style = getComputedStyle(document.documentElement);
  stops = ["--low", "--mid", "--high"].map((key) => {
    const value = parseInt(style.getPropertyValue(key).trim().slice(1), 16);
    return [value >> 16, (value >> 8) & 255, value & 255];
  });
};
const mix = (part) => {
  const x = Math.max(0, Math.min(1, part || 0)) * 2, i = x < 1 ? 0 : 1, t = x - i;
  return stops[i].map((one, c) => Math.round(one + (stops[i + 1][c] - one) * t));
};
const shade = (share) => mix(Math.sqrt(share || 0));
const ink = (rgb) => {
  const [r, g, b] = rgb.map((c) => (c / 255 <= 0.03928 ? c / 255 / 12.92 : ((c / 255 + 0.055) / 1.055) ** 2.4));
  return 0.2126 * r + 0.7152 * g + 0.0722 * b > 0.179 ? "#000000" : "#ffffff";
};
const paint = (node, rgb) => { node.style.backgroundColor = `rgb(${rgb})`; node.style.color = ink(rgb); };

/* ---- the parts of the page ---- */
/* An arc from the chosen token to each one that gets at least 1 %: above its line, or from line to line. */
const arc = $("arcs").firstElementChild;
const drawArcs = () => {
  const nodes = [...$("strip").children], shares = attention() ? matrix().rows[now.token] : [], from = nodes[now.token];
  const middle = (node) => node.offsetLeft + node.offsetWidth / 2, end = (node, below) => node.offsetTop + (below ? node.offsetHeight : 0);
  fill($("arcs"), ...ranked(shares, 24).filter((j) => j !== now.token && shares[j] >= 0.0095).reverse().map((j) => {
    const to = nodes[j], [x, z] = [middle(from), middle(to)], lines = Math.sign(to.offsetTop - from.offsetTop);
    const [y, w] = lines ? [end(from, lines > 0), end(to, lines < 0)] : [from.offsetTop, to.offsetTop];
    const [b, c] = lines ? [(y + w) / 2, (y + w) / 2] : Array(2).fill(y - Math.min(54, 14 + Math.abs(z - x) / 6));
    const path = arc.cloneNode();
    Object.entries({ d: `M${x} ${y}C${x} ${b} ${z} ${c} ${z} ${w}`, "stroke-width": 1 + 7 * shares[j], "stroke-opacity": 0.35 + 0.65 * shares[j] }).forEach((one) => path.setAttribute(...one));
    path.classList.toggle("other", j === now.other);
    return path;
  }));
};
const drawStrip = () => {
  const strip = $("strip"), shares = matrix().rows[now.token];
  if (strip.dataset.text !== String(now.text)) {
    strip.dataset.text = now.text;
    strip.dir = text().direction;
    strip.classList.toggle("long", size() > 64);
    fill(strip, ...text().tokens.map((token, i) => make("button", { type: "button", onclick: () => set({ token: i }) }, bdi(token), make("small"))));
  }
  [...strip.children].forEach((node, i) => {
    paint(node, shade(shares[i]));
    node.lastChild.textContent = attention() && shares[i] >= 0.0095 ? (100 * shares[i]).toFixed(1) : "";
    node.setAttribute("aria-pressed", i === now.token);
    node.setAttribute("aria-label", `token ${label(i)}${attention() ? `, ${percent(shares[i])} of the attention of ${name(now.token)}` : ""}`);
    node.tabIndex = i === now.token ? 0 : -1;
    node.classList.toggle("other", i === now.other);
  });
  drawArcs();
  $("text-words").textContent = `Choose a token. The arcs, the shades and the numbers say how much of its ${now.mode === "weighted" ? "weighted attention" : "attention"} the chosen token gives to each token, in percent, in the chosen layer and head.`;
  const id = text().ids ? `, id ${text().ids[now.token]}` : "";
  fill($("token-facts"), "Chosen: token ", String(now.token), " ", bdi(name(now.token)), id, ". Other token: ", String(now.other), " ", bdi(name(now.other)), ".");
};

const measures = {
  largest: "largest share, mean over tokens",
  chosen: "",
  previous: "to the token before, mean over tokens",
  next: "to the token after, mean over tokens",
  self: "to the token itself, mean over tokens",
  same: "to other tokens that are equal, mean over tokens",
  first: "",
  last: "",
};
const measure = (layer, headNumber) => {
  if (now.measure === "chosen") return row(layer, headNumber, now.token)[now.other];
  return at(attention().measures, now.mode === "raw" ? 0 : 1, layer, headNumber, about.measures.indexOf(now.measure));
};
const drawMap = () => {
  const table = $("map"), body = table.tBodies[0];
  measures.chosen = `from ${label(now.token)} to ${label(now.other)}`;
  measures.first = `to the first token, ${name(0)}, mean over tokens`;
  measures.last = `to the last token, ${name(size() - 1)}, mean over tokens`;
  fill($("measure"), ...Object.entries(measures).map(([key, words]) => make("option", { value: key }, words)));
  $("measure").value = now.measure;
  table.caption.textContent = `Percent of the ${now.mode === "weighted" ? "weighted attention" : "attention"}: ${measures[now.measure]}`;
  if (!body.rows.length) {
    fill(table.tHead, make("tr", {}, make("th", { scope: "col" }, "head"), ...heads.map((h) => make("th", { scope: "col" }, String(h)))));
    layers.forEach((l, i) => body.append(make("tr", {}, make("th", { scope: "row" }, make("span", { class: "wordy" }, "layer "), String(l)),
      ...heads.map((_, j) => make("td", {}, make("button", { type: "button", onclick: () => set({ layer: i, head: j }) }))))));
  }
  let best = [0, 0, -1];
  const many = [];
  layers.forEach((l, i) => heads.forEach((h, j) => {
    const value = measure(i, j), node = body.rows[i].cells[j + 1].firstChild, chosen = i === now.layer && j === now.head;
    if (value > best[2]) best = [l, h, value];
    if (value > 0.5) many.push(`${l}.${h}`);
    paint(node, shade(value));
    node.textContent = Number.isNaN(value) ? "\u2013" : String(Math.round(100 * value));
    node.setAttribute("aria-label", `layer ${l}, head ${h}: ${percent(value)}`);
    node.setAttribute("aria-pressed", chosen);
    node.tabIndex = chosen ? 0 : -1;
  }));
  $("map-top").textContent = best[2] < 0 ? "" : `Largest: layer ${best[0]}, head ${best[1]}, ${percent(best[2])}. ${many.length ? `More than half: ${many.length} of ${layers.length * heads.length} heads${many.length > 12 ? "" : `, layer.head ${many.join(", ")}`}` : "No head gives more than half"}.`;
};

const isWord = (token) => /^(##)?[\p{L}\p{N}]+$/u.test(token);
const ranked = (shares, count = 8) => [...shares.keys()].filter((j) => shares[j] > 0).sort((a, b) => shares[b] - shares[a] || a - b).slice(0, count);
const rankList = (list, shares, choose) => fill(list, ...ranked(shares).map((j) =>
  make("li", {}, make("button", { type: "button", onclick: () => choose(j) }, numbered(j), " ", make("span", { class: "number" }, percent(shares[j])), bar(shares[j])))));
const drawHead = () => {
  const weighted = now.mode === "weighted";
  $("head-title").textContent = `Layer ${layers[now.layer]}, head ${heads[now.head]}.`;
  $("remark").textContent = weighted
    ? `Weighted: each prob times the length of the value vector that is read there${attention().mapped ? ", after the head's part of the output map (Kobayashi et al. 2020)" : ""}; as a share of the row's sum. A token with a short vector gives little, even if its prob is large. This too says what a head reads, not what the model needs: attention is not importance.`
    : "Attention is not importance: a prob says where a head looks, not how much it takes from there or what the model needs. Compare with the weighted view.";
  const rows = matrix().rows, shares = rows[now.token];
  const [most] = ranked(shares, 1), [word] = ranked(shares, size()).filter((j) => j !== now.token && isWord(name(j)));
  if (most !== undefined) $("head-title").append(" ", numbered(now.token), " looks most at ", numbered(most), ` (${percent(shares[most])})`, ...(word === undefined || word === most ? [] : ["; of the other words, at ", numbered(word), ` (${percent(shares[word])})`]), ".");
  fill($("h-to"), numbered(now.token), " looks at");
  fill($("h-from"), numbered(now.token), " is looked at by");
  rankList($("to"), shares, (j) => set({ other: j }));
  rankList($("from"), rows.map((one) => one[now.token]), (j) => set({ other: j }));
  $("from-none").hidden = $("from").children.length > 0;
  $("from-none").textContent = attention().columns ? `No token has it among the ${attention().probs.shape[3]} largest shares of its row, which is all that the page has.` : "All shares are below 0.05\u00a0%.";
  drawGrid();
  if ($("grid-details").open) drawGridTable();
};

/* The grid: a row for each token that looks, a column for each token that is looked at. */
const place = { left: 0, top: 0, cell: 1 };
const gridPicture = (rows, S) => {
  const image = new ImageData(S, S), palette = Array.from({ length: 256 }, (_, i) => mix(i / 255));
  rows.forEach((shares, i) => shares.forEach((share, j) => {
    const rgb = palette[Math.round(255 * Math.sqrt(Math.min(1, share || 0)))], pixel = 4 * (i * S + j);
    image.data[pixel] = rgb[0];
    image.data[pixel + 1] = rgb[1];
    image.data[pixel + 2] = rgb[2];
    image.data[pixel + 3] = 255;
  }));
  const small = new OffscreenCanvas(S, S);
  small.getContext("2d").putImageData(image, 0, 0);
  return small;
};
const drawGrid = () => {
  const canvas = $("grid"), S = size(), wide = $("grid-place").clientWidth || 600, ratio = window.devicePixelRatio || 1;
  const rem = parseFloat(getComputedStyle(document.documentElement).fontSize), unit = rem / 16;
  const named = S <= 40, longest = unit * Math.min(90, 9 + 7.2 * Math.max(...text().tokens.map((token) => token.length)));
  place.left = named ? Math.min(longest, wide * 0.26) : 0;
  place.top = named ? longest : 0;
  const fit = (Math.min(wide, 760 * unit) - place.left) / S;
  place.cell = fit >= 1 ? Math.min(26 * unit, fit) : fit;
  const width = place.left + place.cell * S, height = place.top + place.cell * S;
  canvas.width = Math.max(1, Math.round(width * ratio));
  canvas.height = Math.max(1, Math.round(height * ratio));
  canvas.style.width = `${width}px`;
  canvas.style.height = `${height}px`;
  const own = matrix(), small = (own.picture ??= gridPicture(own.rows, S));
  const draw = canvas.getContext("2d"), style = getComputedStyle(document.documentElement);
  draw.setTransform(ratio, 0, 0, ratio, 0, 0);
  draw.imageSmoothingEnabled = place.cell < 1;
  draw.drawImage(small, place.left, place.top, place.cell * S, place.cell * S);
  if (named) {
    draw.font = `${Math.max(8, Math.min(13 * unit, place.cell - 2))}px ${getComputedStyle(document.body).fontFamily}`;
    draw.textBaseline = "middle";
    for (let i = 0; i < S; i++) {
      const middle = place.top + (i + 0.5) * place.cell;
      draw.fillStyle = style.getPropertyValue(i === now.token ? "--ink" : "--quiet");
      draw.textAlign = "right";
      draw.fillText(name(i), place.left - 5, middle, place.left - 6);
      draw.fillStyle = style.getPropertyValue(i === now.other ? "--ink" : "--quiet");
      draw.save();
      draw.translate(place.left + (i + 0.5) * place.cell, place.top - 5);
      draw.rotate(-Math.PI / 2);
      draw.textAlign = "left";
      draw.fillText(name(i), 0, 0, place.top - 6);
      draw.restore();
    }
  }
  draw.strokeStyle = style.getPropertyValue("--ink");
  draw.lineWidth = 1.5;
  const edge = Math.max(place.cell, 4);
  draw.strokeRect(place.left, place.top + now.token * place.cell, place.cell * S, edge);
  draw.strokeRect(place.left + now.other * place.cell, place.top + now.token * place.cell, edge, edge);
  const share = own.rows[now.token][now.other];
  canvas.setAttribute("aria-label", `Grid of the attention of layer ${layers[now.layer]}, head ${heads[now.head]}. Row ${label(now.token)}, column ${label(now.other)}: ${percent(share)}. The arrow keys move.`);
  $("grid-words").textContent = `Each row is a token that looks, each column a token that is looked at. Click a cell, or move with the arrow keys. The frame is the row of ${label(now.token)}.${attention().columns ? ` The page has the ${attention().probs.shape[3]} largest shares of each row.` : ""}`;
};
const drawLegend = () => fill($("legend"), ...[0, 0.01, 0.05, 0.2, 0.5, 1].map((share) => {
  const node = make("span", {}, `${100 * share} %`);
  paint(node, shade(share));
  return node;
}));
const drawGridTable = () => {
  const S = size(), table = $("grid-table"), all = S <= 40;
  const first = all ? head("looks", ...text().tokens.map((_, j) => numbered(j))) : head("looks", "at most at", "then at", "then at");
  const rows = text().tokens.map((_, i) => {
    const shares = matrix().rows[i];
    const cells = all ? [...shares].map((share) => make("td", {}, Number.isNaN(share) ? "\u2013" : (100 * share).toFixed(1)))
      : ranked(shares, 3).map((j) => make("td", { class: "start" }, numbered(j), ` ${percent(shares[j])}`));
    return make("tr", {}, make("th", { scope: "row" }, numbered(i)), ...cells);
  });
  fill(table, make("caption", {}, "Percent of the attention of the token in the row"), first, make("tbody", {}, ...rows));
};

const shapeOf = (shape) => {
  const sizes = { B: 1, S: size(), H: about.model.hidden, E: about.model.embedding, A: about.model.heads, F: about.model.intermediate };
  return shape.replace("(B, ", "(").replace(/^\((\w+)\)$/, "($1,)").replace(/[A-Z]/g, (letter) => sizes[letter] ?? letter);
};
const stepNumbers = (part, step, layer) => {
  const token = part === "pooler" || part === "vector" ? 0 : now.token, given = text().values[part];
  if (step.symbol === "scores" || step.symbol === "probs") {
    const keys = Array.from({ length: Math.min(about.firstKeys, size()) }, (_, j) => j), sum = number(at(attention()?.sums, layer, now.head, token));
    const value = (j) => at(attention()?.[step.symbol === "probs" ? "first" : "scores"], layer, now.head, token, j);
    return [make("p", { class: "where" }, `head ${heads[now.head]}, row of `, numbered(token)), make("p", { class: "numbers" },
      ...keys.flatMap((j) => [make("b", {}, bdi(name(j)), ` ${number(value(j))}`), " "]), size() > keys.length ? `\u2026 ${size()} numbers` : ""),
      ...(step.symbol === "probs" && attention()?.sums ? [make("p", { class: "where" }, `The same as exp(score ${sum.startsWith("\u2212") ? "+" : "\u2212"} ${sum.replace("\u2212", "")}): the log of the sum of all exp(score) is ${sum}.`)] : [])];
  }
  const place = given ? given.symbols.indexOf(step.symbol) : -1;
  if (place < 0) return [make("p", { class: "where" }, "not recorded")];
  const width = Number(/(\d+),?\)$/.exec(shapeOf(step.shape))[1]), rms = at(given.rms, layer, place, token);
  let most = 0;
  for (let k = 0; k < given.symbols.length; k++) most = Math.max(most, at(given.rms, layer, k, token) || 0);
  const first = Array.from({ length: Math.min(about.first, width) }, (_, k) => [make("b", {}, number(at(given.first, layer, place, token, k))), " "]).flat();
  return [make("p", { class: "numbers" }, ...first, `\u2026 ${width} numbers`), make("p", { class: "rms" }, `RMS ${number(rms)}`, bar(rms / most)), ...(given.notes ? [make("p", { class: "where" }, given.notes[place])] : [])];
};
const stepItem = (part, step, layer, count) => make("li", { id: `step-${count}` },
  make("div", {}, make("h4", {}, make("span", {}, `${count}.`), " ", step.symbol.replaceAll("_", " ")), make("p", {}, step.words),
    make("code", { class: "formula" }, `${step.symbol} = ${step.formula}`),
    make("p", { class: "where" }, `${step.name.replace("{i}", layers[layer])}, ${shapeOf(step.shape)}`)),
  make("div", {}, ...stepNumbers(part, step, layer), make("details", { class: "where" }, make("summary", {}, "Code: ", step.lines.map(([file, line]) => `${file}:${line}`).join(", ")), ...step.lines.map(([, , code]) => make("code", {}, code)))));
/* The parts that this page has, their steps, and how many steps are before each part. */
const shownParts = () => {
  let count = 0;
  return Object.entries(about.steps).filter(([part]) => text().values[part] || part === "layer").map(([part, steps]) => [part, steps, (count += steps.length) - steps.length]);
};
const titles = () => ({ embeddings: "The embeddings", layer: `Layer ${layers[now.layer]}`, vector: "The vector of the text", final: "The final LayerNorm", pooler: "The pooler" });
/* A box for each step. The first three of the embeddings and of a layer lie side by side; beside a layer are its residual connections. */
const drawPass = () => {
  $("pass-words").textContent = `From top to bottom, for token ${label(now.token)}; the numbers are RMS. Choose a box to read its step. State 0 comes from the embeddings, state i + 1 from layer i. The lines at the side are residual connections.`;
  const box = (part, step, count) => {
    const given = text().values[part], place = given ? given.symbols.indexOf(step.symbol) : -1, layer = part === "layer" ? now.layer : 0;
    const size = place < 0 ? NaN : at(given.rms, layer, place, part === "pooler" || part === "vector" ? 0 : now.token);
    const state = { [about.steps.embeddings.at(-1).symbol]: "state 0", output: `state ${layers[now.layer] + 1}` }[step.symbol];
    return make("a", { href: `#step-${count}` }, state ?? step.symbol.replaceAll("_", " "), ...(Number.isNaN(size) ? [] : [" ", make("small", {}, number(size))]));
  };
  fill($("pass"), ...shownParts().map(([part, steps, first]) => make("div", { class: `boxes ${part}` },
    make("h3", {}, ...(part === "layer" ? ["Layer ", ...layers.map((layer, i) => make("button", { type: "button", "aria-pressed": i === now.layer, onclick: () => { set({ layer: i }); $("pass").querySelector("[aria-pressed=true]").focus(); } }, String(layer)))] : [titles()[part]])),
    ...steps.map((step, i) => box(part, step, first + i + 1)), ...(part === "layer" ? [make("i"), make("i")] : []))));
};
const drawSteps = () => {
  $("steps-words").textContent = `The forward pass in the order of encoder.py, with the numbers of token ${label(now.token)}: the first ${about.first} features, and the RMS of all of them. x is the hidden state that comes in; W and b are the weight and bias of the module; D = ${about.model.hidden / about.model.heads} is the size of a head.`;
  const vector = about.steps.vector, remarks = {
    vector: "Texts are compared by this vector. x is the last hidden state of all tokens, and n is their number.",
    pooler: `BERT's classifiers read the pooler. ${vector ? "The vector of the text, which follows, does not use it." : "The vector of a sentence usually comes from elsewhere: models such as all-MiniLM-L6-v2 take the mean of the last hidden states of all tokens, and divide it by its length."}`,
  };
  fill($("steps"), ...shownParts().flatMap(([part, steps, first]) => [make("h3", {}, titles()[part]), ...(remarks[part] ? [make("p", { class: "quiet" }, remarks[part])] : []),
    make("ol", {}, ...steps.map((step, i) => stepItem(part, step, part === "layer" ? now.layer : 0, first + i + 1)))]));
};

const tables = about.steps.embeddings.map((step) => step.symbol).filter((symbol) => ["words", "types", "positions"].includes(symbol));
const drawEmbedding = () => {
  const given = text().embedding, ids = text().ids;
  $("tokens-section").hidden = !given && !ids;
  if ($("tokens-section").hidden) return;
  $("tokens-table").closest("details").open = size() <= 64;
  const cells = (i) => [...(ids ? [String(ids[i])] : []), ...(given ? tables.map((_, k) => (100 * at(given, i, k)).toFixed(1)) : [])];
  fill($("tokens-table"), make("caption", {}, given ? "Percent of the embedding sum, from each of the tables" : "Tokens and their ids"), head("token", ...(ids ? ["id"] : []), ...(given ? tables : [])),
    make("tbody", {}, ...text().tokens.map((_, i) => make("tr", {}, make("th", { scope: "row" }, numbered(i)), ...cells(i).map((cell) => make("td", {}, minus(cell)))))));
  markEmbedding();
};
const markEmbedding = () => {
  const given = text().embedding;
  [...($("tokens-table").tBodies[0]?.rows ?? [])].forEach((one, i) => (i === now.token ? one.setAttribute("aria-current", "true") : one.removeAttribute("aria-current")));
  fill($("tokens-summary"), ...(given ? ["The embedding of ", numbered(now.token), " is a sum of rows: ", tables.map((table, k) => `${table} ${minus((100 * at(given, now.token, k)).toFixed(1))}\u00a0%`).join(", "), "."] : []));
};

const pairCosine = (state, a, b) => {
  const given = text().cosines, S = size(), i = Math.min(a, b), j = Math.max(a, b);
  if (!given) return NaN;
  if (i === j) return 1;
  const index = given.pairs ? given.pairs.findIndex(([x, y]) => x === i && y === j) : i * S - (i * (i + 1)) / 2 + j - i - 1;
  return index < 0 ? NaN : at(given.of_pairs, state, index);
};
const drawFlow = () => {
  const given = text().cosines, values = text().values.layer;
  const size = (symbol, layer) => (values && layer >= 0 && values.symbols.includes(symbol) ? at(values.rms, layer, values.symbols.indexOf(symbol), now.token) : NaN);
  fill($("flow-words"), "Token ", numbered(now.token), ": how large the numbers are that the two halves of each layer add (RMS), and the cosine of its hidden state with the state before, with state 0, and with ", numbered(now.other), given?.pairs && Number.isNaN(pairCosine(0, now.token, now.other)) ? `. This text is long, so of cosines of two tokens the page has those between the first ${about.wordPlaces} places of a word.` : ".");
  const rows = (given?.states ?? []).map((state, i) => make("tr", {}, make("th", { scope: "row" }, String(state)),
    ...[number(size("attention_dense", layers.indexOf(state - 1))), number(size("output_dense", layers.indexOf(state - 1))), cosine(at(given.with_previous, i, now.token)), cosine(at(given.with_embeddings, i, now.token)), cosine(pairCosine(i, now.token, now.other))].map((cell) => make("td", {}, cell))));
  fill($("flow"), make("caption", {}, "Sizes (RMS), then cosines"), head("state", "attention adds", "feed forward adds", "state before", "state 0", numbered(now.other)), make("tbody", {}, ...rows));
};

const repeated = () => {
  const places = new Map(), piece = (word) => word.startsWith("##");
  text().tokens.forEach((token, i) => { if (isWord(token)) places.set(token, [...(places.get(token) ?? []), i]); });
  return new Map([...places].filter(([, found]) => found.length > 1).sort((a, b) => piece(a[0]) - piece(b[0]) || b[0].length - a[0].length));
};
const drawWords = () => {
  const given = text().cosines, words = given ? repeated() : new Map();
  $("word-choice").hidden = !words.size;
  fill($("words"));
  if (!words.size) {
    $("words-summary").textContent = given ? "No word occurs more than once in this text." : "The hidden states were not recorded.";
    return;
  }
  if (!words.has(now.word)) now.word = words.has(name(now.token)) ? name(now.token) : words.keys().next().value;
  fill($("word"), ...[...words].map(([word, found]) => make("option", { value: word }, `${word}, ${found.length} times`)));
  $("word").value = now.word;
  const all = words.get(now.word), places = all.slice(0, about.wordPlaces);
  const pairs = places.flatMap((a, i) => places.slice(i + 1).map((b) => [a, b]));
  const table = given.states.map((_, i) => pairs.map(([a, b]) => pairCosine(i, a, b)));
  const lowest = pairs.map((_, k) => Math.min(...table.map((cells) => cells[k])));
  const least = lowest.indexOf(Math.min(...lowest)), state = (k) => given.states[table.findIndex((cells) => cells[k] === lowest[k])];
  const means = table.map((cells) => cells.reduce((a, b) => a + b, 0) / cells.length), apart = means.indexOf(Math.min(...means));
  fill($("words-summary"), `${places.length < all.length ? `The first ${places.length} of its ${all.length} places: ` : ""}${pairs[least].join(" and ")} differ most, in state ${state(least)} (cosine ${cosine(lowest[least])}).`,
    ...(pairs.length > 1 ? [` The mean of all ${pairs.length} pairs is lowest in state ${given.states[apart]} (${cosine(means[apart])}).`] : []));
  fill($("words"), make("caption", {}, "Cosines; the lowest of each column is underlined"), head("state", ...pairs.map(([a, b]) => `${a}\u2013${b}`)),
    make("tbody", {}, ...table.map((cells, i) => make("tr", {}, make("th", { scope: "row" }, String(given.states[i])), ...cells.map((value, k) => make("td", value === lowest[k] ? { class: "lowest" } : {}, cosine(value)))))));
};

const drawParts = () => {
  const given = read(about.parts);
  if (!given) return;
  const [n, m] = given.shape, names = [0, 1].map((i) => about.texts[i].tokens), total = given.data.reduce((a, b) => a + b, 0);
  const best = [...given.data.keys()].sort((a, b) => Math.abs(given.data[b]) - Math.abs(given.data[a]) || a - b).slice(0, 10);
  const most = Math.abs(given.data[best[0]]);
  const sum = best.reduce((a, index) => a + given.data[index], 0);
  $("parts-section").hidden = false;
  $("parts-words").textContent = `The cosine of the two sentence vectors is ${cosine(total)}. It is the sum of ${n} \u00d7 ${m} = ${n * m} parts, one for each token of the first text with each token of the second. With mean pooling a sentence vector is the mean of the last hidden states h, so the part of tokens i and j is (h of i) \u00b7 (h of j), divided by ${n} \u00d7 ${m} and by the lengths of the two means. The ${best.length} largest parts add up to ${cosine(sum)}:`;
  const pair = (i, j) => [numbered(i, names[0][i]), " with ", numbered(j, names[1][j])];
  fill($("parts"), ...best.map((index) => make("li", {}, make("span", {}, ...pair(Math.floor(index / m), index % m)), " ", make("span", { class: "number" }, minus(given.data[index].toFixed(4))), bar(Math.abs(given.data[index]) / most))));
  const sumOf = (i) => given.data.subarray(i * m, (i + 1) * m).reduce((a, b) => a + b, 0);
  $("parts-details").addEventListener("toggle", () => fill($("parts-table"), make("caption", {}, "Parts of the cosine"), head("first text", ...names[1].map((token, j) => numbered(j, token)), "sum"),
    make("tbody", {}, ...names[0].map((token, i) => make("tr", {}, make("th", { scope: "row" }, numbered(i, token)), ...names[1].map((_, j) => make("td", {}, minus(given.data[i * m + j].toFixed(4)))), make("td", {}, minus(sumOf(i).toFixed(4))))))));
};
const drawGuesses = () => {
  const given = text().guesses;
  $("guesses-section").hidden = !given;
  if (!given) return;
  const rows = given.states.map((state, i) => make("tr", {}, make("th", { scope: "row" }, String(state)),
    ...given.words[i][now.token].map((word, k) => make("td", { class: "start" }, bdi(word), ` ${percent(at(given.probs, i, now.token, k))}`))));
  fill($("guesses"), make("caption", {}, "Token ", numbered(now.token)), head("state", "first guess", "second", "third"), make("tbody", {}, ...rows));
};
const amount = (error) => (/inf|nan/.test(error) ? 1e12 : Math.min(1e12, Number(error)));
const drawErrors = () => {
  $("errors-section").hidden = !about.errors.length;
  if (!about.errors.length) return;
  const found = new Map(), kinds = [], deep = new Set();
  about.errors.forEach(([value, error, level]) => {
    const [, layer, kind] = /^encoder\.layer\.(\d+)(.*)$/.exec(value) ?? [];
    if (layer === undefined) return;
    if (!kinds.includes(kind)) kinds.push(kind);
    deep.add(Number(layer));
    found.set(`${layer}${kind}`, [error, level]);
  });
  const columns = [...deep].sort((a, b) => a - b), most = Math.log10(Math.max(10, ...about.errors.map(([, error]) => amount(error))));
  const cellOf = (layer, kind) => {
    const [error, level] = found.get(`${layer}${kind}`) ?? ["\u2013", ""], node = make("td", {}, `${error}${level === "wrong" ? " \u2717" : ""}`);
    if (level) paint(node, mix(Math.log10(Math.max(1, amount(error))) / most));
    return node;
  };
  $("errors-map").hidden = !columns.length;
  fill($("errors-map"), make("caption", {}, "Errors inside the layers; \u2717 is wrong"), head("value", ...columns.map((layer) => `layer ${layer}`)),
    make("tbody", {}, ...kinds.map((kind) => make("tr", {}, make("th", { scope: "row" }, kind.slice(1) || "output"), ...columns.map((layer) => cellOf(layer, kind))))));
  const first = about.errors.findIndex(([, , level]) => level === "wrong");
  $("errors-words").textContent = `Errors in units of the rounding error of float32.${first < 0 ? "" : ` The first wrong value is ${about.errors[first][0]}.`}`;
  fill($("errors"), head("value", "error", "level"), make("tbody", {}, ...about.errors.map(([value, error, level], i) => make("tr", {}, make("th", { scope: "row" }, value), make("td", i === first ? { class: "lowest" } : {}, error), make("td", { class: "start" }, level)))));
};

/* ---- changes ---- */
const options = (select, names, chosen) => { fill(select, ...names.map((words, i) => make("option", { value: i }, words))); select.value = chosen; };
const speak = () => {
  if (!attention()) { $("say").textContent = "The attention was not recorded."; return; }
  const share = row(now.layer, now.head, now.token)[now.other];
  fill($("say"), `Layer ${layers[now.layer]}, head ${heads[now.head]}: `, bdi(name(now.token)), " gives ", bdi(name(now.other)), Number.isNaN(share) ? ` less than its ${read(attention().probs).shape[3]} largest shares, which the page has` : ` ${percent(share)}`);
};
/* The contents name the parts that this page has. */
const drawContents = () => document.querySelectorAll("nav a").forEach((link) => { link.hidden = $(link.hash.slice(1)).closest("section").hidden; });
const drawAll = (changes) => {
  const has = (...keys) => keys.some((key) => key in changes);
  if (attention()) {
    drawMap();
    drawHead();
  }
  ["h-heads", "h-head", "h-grid"].forEach((id) => { $(id).closest("section").hidden = !attention(); });
  drawStrip();
  if (has("text", "token", "layer")) drawPass();
  if (has("text", "token", "layer", "head")) drawSteps();
  if (has("text", "token", "other")) drawFlow();
  if (has("text")) drawEmbedding();
  else if (has("token")) markEmbedding();
  if (has("text", "token", "word")) drawWords();
  if (has("text", "token")) drawGuesses();
  drawContents();
  speak();
};
const state = ["text", "token", "other", "layer", "head", "mode"];
const set = (changes) => {
  const list = document.activeElement?.closest("#to, #from"), place = list ? [...list.children].indexOf(document.activeElement.parentNode) : -1;
  if ("token" in changes) now.word = "";
  Object.assign(now, changes);
  if ("text" in changes) Object.assign(now, start(), { word: "" }, changes);
  if ("text" in changes) {
    const names = text().tokens.map((_, i) => label(i));
    options($("token"), names, now.token);
    options($("other"), names, now.other);
  }
  state.forEach((key) => { $(key).value = now[key]; });
  $("bar-layer").textContent = `Layer ${layers[now.layer]}`;
  $("bar-head").textContent = `Head ${heads[now.head]}`;
  drawAll(changes);
  if (list && list.children.length) list.children[Math.min(place, list.children.length - 1)].firstChild.focus();
  /* The address says what is shown, for a link or a reload. A frame without an origin may not change its address. */
  if (location.protocol !== "about:") history.replaceState(null, "", `#${state.map((key) => `${key}=${now[key]}`).join("&")}`);
};
const asked = (address) => {
  const found = {}, given = new URLSearchParams(address.slice(1)), count = about.texts[Number(given.get("text"))]?.tokens.length ?? 0;
  const limits = { text: about.texts.length, token: count, other: count, layer: layers.length, head: heads.length };
  Object.entries(limits).forEach(([key, limit]) => { if (/^\d{1,6}$/.test(given.get(key)) && Number(given.get(key)) < limit) found[key] = Number(given.get(key)); });
  if (given.get("mode") === "weighted" && about.texts.some((one) => one.attention?.weighted)) found.mode = "weighted";
  return found;
};

/* At the start: [MASK], or the last place of the longest word that occurs more than once; and the head in which it looks most
   at one other word that is not beside it. */
const start = () => {
  const words = text().tokens, often = (token) => token.length > 3 && words.indexOf(token) !== words.lastIndexOf(token);
  const found = words.filter(isWord).sort((a, b) => often(b) - often(a) || b.length - a.length), least = found.filter((token) => token.length > 3).length > 1 ? 4 : 1;
  const token = words.includes("[MASK]") ? words.indexOf("[MASK]") : found.length ? words.lastIndexOf(found[0]) : 0, best = { token, other: token ? 0 : words.length - 1, layer: 0, head: 0 };
  let most = 0;
  layers.forEach((_, layer) => heads.forEach((_, head) => row(layer, head, token, "raw").forEach((share, j) => {
    if (share > most && isWord(words[j]) && words[j].length >= least && words[j] !== words[token] && Math.abs(j - token) > 1) {
      most = share;
      Object.assign(best, { other: j, layer, head });
    }
  })));
  return best;
};

["text", "token", "other", "layer", "head"].forEach((key) => $(key).addEventListener("change", () => set({ [key]: Number($(key).value) })));
["mode", "measure", "word"].forEach((key) => $(key).addEventListener("change", () => set({ [key]: $(key).value })));
const steer = (node, moves) => node.addEventListener("keydown", (event) => {
  const change = event.altKey || event.ctrlKey || event.metaKey ? null : moves(event.key);
  if (!change) return;
  event.preventDefault();
  set(change);
  node.querySelector("[aria-pressed=true]")?.focus();
});
const within = (value, count) => Math.max(0, Math.min(count - 1, value));
steer($("strip"), (key) => {
  const forward = text().direction === "rtl" ? -1 : 1, step = { ArrowRight: forward, ArrowLeft: -forward, ArrowDown: 1, ArrowUp: -1, Home: -size(), End: size() }[key];
  return step && { token: within(now.token + step, size()) };
});
steer($("map"), (key) => {
  const step = { ArrowRight: [0, 1], ArrowLeft: [0, -1], ArrowDown: [1, 0], ArrowUp: [-1, 0], Home: [0, -heads.length], End: [0, heads.length] }[key];
  return step && { layer: within(now.layer + step[0], layers.length), head: within(now.head + step[1], heads.length) };
});
steer($("grid"), (key) => {
  const step = { ArrowRight: [0, 1], ArrowLeft: [0, -1], ArrowDown: [1, 0], ArrowUp: [-1, 0], Home: [0, -size()], End: [0, size()] }[key];
  return step && { token: within(now.token + step[0], size()), other: within(now.other + step[1], size()) };
});
const cellAt = (event) => [Math.floor((event.offsetX - place.left) / place.cell), Math.floor((event.offsetY - place.top) / place.cell)];
$("grid").addEventListener("click", (event) => {
  const [x, y] = cellAt(event);
  if (x >= 0 && y >= 0 && x < size() && y < size()) set({ token: y, other: x });
});
$("grid").addEventListener("pointermove", (event) => {
  const [x, y] = cellAt(event), inside = x >= 0 && y >= 0 && x < size() && y < size();
  $("grid-here").textContent = inside ? `${label(y)} looks at ${label(x)}: ${percent(matrix().rows[y][x])}` : "";
});
$("grid").addEventListener("pointerleave", () => { $("grid-here").textContent = ""; });
$("grid-details").addEventListener("toggle", () => { if ($("grid-details").open) drawGridTable(); });
$("help").addEventListener("click", () => $("keys").showModal());
const counts = { layer: layers.length, head: heads.length };
const step = (key, by) => set({ [key]: within(now[key] + by, counts[key]) });
document.querySelectorAll("[data-step]").forEach((button) => button.addEventListener("click", () => { const [key, by] = button.dataset.step.split(" "); step(key, Number(by)); }));
document.addEventListener("keydown", (event) => {
  if (!$("question").checked || $("keys").open || event.target.closest?.("select, input") || event.ctrlKey || event.metaKey || event.altKey) return;
  const move = { l: ["layer", 1], L: ["layer", -1], h: ["head", 1], H: ["head", -1] }[event.key];
  if (event.key !== "?" && !move) return;
  event.preventDefault();
  if (move) step(...move);
  else $("keys").showModal();
});
document.addEventListener("click", (event) => {
  const there = $(event.target.closest?.("a[href^='#']")?.getAttribute("href").slice(1));
  if (!there) return;
  event.preventDefault();
  there.scrollIntoView();
  there.tabIndex = -1;
  there.focus({ preventScroll: true });
});

/* ---- the data as files: blobs of this page, no request ---- */
const save = (file, type, content) => {
  const link = make("a", { href: URL.createObjectURL(new Blob([content], { type })), download: file });
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 1000);
};
const quoted = (cell) => (/[",\r\n]/.test(cell) ? `"${cell.replaceAll('"', '""')}"` : String(cell));
/* A spreadsheet takes a cell that begins with one of these for a formula. */
const safe = (token) => (/^[=+@\t-]/.test(token) ? `'${token}` : token);
const attentionRows = function* () {
  yield ["layer", "head", "token", "token_text", "other", "other_text", "prob", "weighted"];
  for (const [l, layer] of layers.entries()) for (const [h, one] of heads.entries()) for (let i = 0; i < size(); i++) {
    const raw = row(l, h, i, "raw"), weighted = attention().weighted ? row(l, h, i, "weighted") : null;
    for (let j = 0; j < raw.length; j++) if (!Number.isNaN(raw[j])) yield [layer, one, i, safe(name(i)), j, safe(name(j)), raw[j].toFixed(3), weighted ? weighted[j].toFixed(3) : ""];
  }
};
$("save-csv").addEventListener("click", () => {
  const lines = [];
  for (const cells of attentionRows()) lines.push(cells.map((cell) => quoted(String(cell))).join(","));
  save("attention.csv", "text/csv", `${lines.join("\r\n")}\r\n`);
});
const nested = (flat, shape) => (shape.length < 2 ? flat : Array.from({ length: shape[0] }, (_, i) => {
  const part = flat.length / shape[0];
  return nested(flat.slice(i * part, (i + 1) * part), shape.slice(1));
}));
const digits = { mille: 3, cos: 3, whole: 0 };
const plain = (value) => {
  if (Array.isArray(value)) return value.map(plain);
  if (!value || typeof value !== "object") return value;
  if (value.kind && value.shape) {
    const places = digits[value.kind], short = (x) => (Number.isFinite(x) ? Number(places === undefined ? x.toPrecision(value.kind === "f24" ? 5 : 3) : x.toFixed(places)) : null);
    return nested(Array.from(read(value).data, short), value.shape);
  }
  return Object.fromEntries(Object.entries(value).map(([key, one]) => [key, plain(one)]));
};
$("save-json").addEventListener("click", () => save("page.json", "application/json", JSON.stringify(plain(about))));

let before = null;
window.addEventListener("beforeprint", () => { before = document.documentElement.dataset.theme ?? "automatic"; document.documentElement.dataset.theme = "light"; recolour(); });
window.addEventListener("afterprint", () => {
  if (before === "automatic") delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = before;
  recolour();
});
const themes = ["automatic", "light", "dark"];
$("theme").addEventListener("click", () => {
  const next = themes[(themes.indexOf(document.documentElement.dataset.theme ?? "automatic") + 1) % 3];
  if (next === "automatic") delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = next;
  $("theme").textContent = `Colours: ${next}`;
  recolour();
});
const recolour = () => { kept.key = ""; readColours(); drawLegend(); drawAll({}); drawErrors(); };
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", recolour);
let resized = 0;
window.addEventListener("resize", () => { cancelAnimationFrame(resized); resized = requestAnimationFrame(() => { drawArcs(); if (attention()) drawGrid(); }); });

const model = about.model;
$("model").textContent = `${model.layers} layers of ${model.heads} heads, ${model.hidden} features. Layers, heads and tokens are counted from 0.`;
$("about").textContent = `Written by minibert (minibert inspect TEXT -o page.html), the package minibert-numpy. Its course begins with minibert learn start mine.py. Shares are rounded to 0.1 %, cosines to 0.001, other numbers to 3 digits.${about.edited.length ? ` The forward was changed: ${about.edited.join("; ")}.` : ""}`;
$("text-label").hidden = about.texts.length < 2;
options($("text"), about.texts.map((one, i) => `${i}: ${one.tokens.slice(1, 6).join(" ")}`), 0);
options($("layer"), layers.map(String), 0);
options($("head"), heads.map(String), 0);
if (!about.texts.some((one) => one.attention?.weighted)) $("mode").lastElementChild.remove();
readColours();
drawLegend();
$("all").hidden = $("buttons").hidden = false;
$("wait").hidden = true;
set({ text: 0, ...asked(location.hash) });
drawParts();
drawErrors();
drawContents();
document.documentElement.dataset.ready = "true";
})();
