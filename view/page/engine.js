/* Every number of the page: the trace unpacked, rows of attention, and one head computed again step by step. */

/* A number with so many decimals: exact ties go to the even digit, as in Python. */
function fixed(x, digits = 3) {
  if (Number.isInteger(x * 2 ** (digits + 1))) {
    const scaled = x * 10 ** digits, low = Math.floor(scaled);
    if (scaled - low === 0.5) return ((low % 2 ? low + 1 : low) / 10 ** digits).toFixed(digits);
  }
  return x.toFixed(digits);
}
const small = (x) => (x === 0 ? "0" : x.toExponential(0));
const minus = (text) => text.replace("-", "−");
const shown = (x) => minus(fixed(x));
const times = (count, make) => Array.from({ length: count }, (_, at) => make(at));
const total = (values) => values.reduce((sum, value) => sum + value, 0);
const dot = (a, b) => total(Array.from(a, (value, at) => value * b[at]));
const strongest = (values) => values.reduce((best, value, at) => (value > values[best] ? at : best), 0);

function half(bits) {
  const sign = bits & 0x8000 ? -1 : 1, exponent = (bits >> 10) & 31, fraction = bits & 1023;
  if (!exponent) return sign * fraction * 2 ** -24;
  return exponent === 31 ? (fraction ? NaN : sign * Infinity) : sign * (1 + fraction / 1024) * 2 ** (exponent - 15);
}

async function unpack(text) {
  const packed = Uint8Array.from(atob(text), (character) => character.charCodeAt(0));
  const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("deflate-raw"));
  const raw = await new Response(stream).arrayBuffer();
  const length = Number(new DataView(raw).getBigUint64(0, true));
  const header = JSON.parse(new TextDecoder().decode(new Uint8Array(raw, 8, length)));
  const found = { meta: JSON.parse(header.__metadata__.meta) };
  delete header.__metadata__;
  for (const [name, { dtype, shape, data_offsets: [from, to] }] of Object.entries(header)) {
    const planes = new Uint8Array(raw, 8 + length + from, to - from), size = dtype === "F32" ? 4 : 2, count = planes.length / size;
    const bytes = new ArrayBuffer(planes.length), put = new Uint8Array(bytes);
    for (let plane = 0; plane < size; plane++) for (let i = 0; i < count; i++) put[i * size + plane] = planes[plane * count + i];
    const values = dtype === "F32" ? new Float32Array(bytes) : new Uint16Array(bytes);
    found[name] = { shape, values: dtype === "F16" ? Float32Array.from(values, half) : values };
  }
  return found;
}

/* The part of an array at these first indices. */
function at(array, ...place) {
  const size = array.shape.slice(place.length).reduce((product, part) => product * part, 1);
  const start = place.reduce((sum, index, axis) => sum * array.shape[axis] + index, 0) * size;
  return array.values.subarray(start, start + size);
}

// ---- The trace ---------------------------------------------------------------------------------------------------

if (typeof DecompressionStream === "undefined") {
  document.getElementById("page").textContent = `${WORDS.ko.failed} ${WORDS.en.failed}`;
  return;
}
const file = await unpack(document.getElementById("trace").textContent);
const { meta } = file, T = meta.tokens.length, D = meta.shape.head_width, H = meta.shape.heads, L = meta.layers.length;
const GROUPS = meta.groups.map(([text, start, end]) => ({ text, start, end }));
const TOKENS = meta.tokens.map((text, place) => ({ text, start: place, end: place + 1 }));
const units = (unit) => (unit === "eojeol" ? GROUPS : TOKENS);
const groupOf = (place) => GROUPS.findIndex((group) => place < group.end);

/* What one token looks at in one head: as many weights as the mask leaves. */
function tokenRow(layer, head, row) {
  const packed = at(file.weights, layer, head).subarray((row * (row + 1)) / 2, ((row + 1) * (row + 2)) / 2);
  return Array.from(packed, (value) => (meta.fine ? value : value / 65535));
}

/* The same of a unit: what is looked at is summed, what looks is averaged or its last token. */
function unitRow(layer, head, unit, last, number) {
  const by = units(unit), query = by[number];
  if (unit === "token") return tokenRow(layer, head, number);
  const rows = times(query.end - query.start, (part) => tokenRow(layer, head, query.start + part));
  return by.slice(0, number + 1).map((key) => {
    const sums = rows.map((row) => total(row.slice(key.start, key.end)));
    return last ? sums.at(-1) : total(sums) / sums.length;
  });
}

const found = new Map();
function headRows({ layer, head, mean, unit, last }) {
  const name = [layer, mean ? "mean" : head, unit, last].join();
  if (!found.has(name)) {
    if (found.size > 20) found.clear();
    const heads = mean ? [...Array(H).keys()] : [head];
    found.set(name, units(unit).map((_, query) => {
      const rows = heads.map((each) => unitRow(layer, each, unit, last, query));
      return rows[0].map((__, key) => total(rows.map((row) => row[key])) / heads.length);
    }));
  }
  return found.get(name);
}

/* The head whose last row puts the most weight on one earlier unit, the mark left out. */
function bestHead(layers, unit) {
  let best = { layer: layers[0], head: 0 }, most = -1;
  for (const layer of layers) for (let head = 0; head < H; head++) {
    const weight = Math.max(...unitRow(layer, head, unit, false, units(unit).length - 1).slice(1, -1));
    if (weight > most) [best, most] = [{ layer, head }, weight];
  }
  return best;
}

/* What the steps are computed from: one head of the model, or the toy. */
const REAL = {
  count: T, size: D, width: meta.shape.width, heads: H, rotary: meta.position === "rotary", names: meta.tokens, bare: false,
  x: (layer, place) => at(file.before, layer, place),
  after: (layer, place) => at(file.between, layer, place),
  part: (name, layer, head, place) => at(file[name], layer, head, place),
  gain: (layer) => [at(file.norms, layer, 0, 0), at(file.norms, layer, 0, 1)],
  column: (layer, head, which) => [at(file.columns, layer, head, which), at(file.column_biases, layer, head)[which]],
  mixing: (layer) => [at(file.mixing, layer), file.mixing_biases.values[layer]],
};
const TOY_X = [[1, 0, 0, 0], [0, 1, 0, 1], [0, 0, 1, 1], [0, 1, 1, 0]];
const TOY = {
  count: 4, size: 4, width: 4, heads: 1, rotary: false, names: ["나는", "사과를", "맛있게", "먹었다"], bare: true,
  x: (_, place) => TOY_X[place], part: (_, __, ___, place) => TOY_X[place], column: () => [[1, 0, 0, 0], 0],
};

function normed(source, layer, place) {
  const x = Array.from(source.x(layer, place));
  if (source.bare) return { x, mean: 0, variance: 0, out: x };
  const mean = total(x) / x.length, variance = total(x.map((value) => (value - mean) ** 2)) / x.length;
  const [gain, shift] = source.gain(layer);
  return { x, mean, variance, out: x.map((value, i) => ((value - mean) / Math.sqrt(variance + meta.epsilon)) * gain[i] + shift[i]) };
}

/* Turn a query or key by its place: the pairs are numbers i and i + size / 2. */
function turn(vector, place) {
  const size = vector.length / 2;
  return Array.from(vector, (value, i) => {
    const pair = i % size, angle = place * 10000 ** (-pair / size);
    return value * Math.cos(angle) + (i < size ? -vector[i + size] : vector[i - size]) * Math.sin(angle);
  });
}

/* One row of one head, every number on the way. */
function computed(source, layer, head, query, options) {
  const turning = source.rotary && !options.positionOff;
  const vector = (name, place) => (turning && name !== "v" ? turn(source.part(name, layer, head, place), place) : Array.from(source.part(name, layer, head, place)));
  const q = vector("q", query), keys = times(source.count, (place) => vector("k", place));
  const products = keys.map((k) => dot(q, k));
  const divided = products.map((product) => product / (options.scaleOff ? 1 : Math.sqrt(source.size)));
  const open = divided.map((_, place) => options.maskOff || place <= query);
  const scores = divided.map((score) => score / options.temperature);
  const highest = Math.max(...scores.filter((_, place) => open[place]));
  const exponentials = scores.map((score, place) => (open[place] ? Math.exp(score - highest) : 0));
  const sum = total(exponentials), weights = exponentials.map((value) => value / sum);
  const values = times(source.count, (place) => source.part("v", layer, head, place));
  const gathered = times(source.size, (i) => total(weights.map((weight, place) => weight * values[place][i])));
  return { q, keys, products, divided, open, exponentials, sum, weights, values, gathered };
}
const MOST_IN_MAP = 128; // tokens beyond which the steps show one row alone
const LEARNT = { maskOff: false, scaleOff: false, positionOff: false, temperature: 1 };
