/* What is seen and touched: state, parts, views, the page. Text of the user only ever becomes text nodes. */

const { html, render, useState, useEffect, useLayoutEffect, useRef, useMemo } = htmPreact;

// ---- State, kept in the address so that a link leads to a view --------------------------------------------------

const VIEWS = ["sentence", "head", "steps", "toy"];
const FIRST = {
  view: "head", layer: Math.max(meta.layers.indexOf(meta.strongest?.[0]), 0), head: meta.strongest?.[1] ?? 0, mean: false, unit: "eojeol", last: false, query: T - 1,
  key: T > 2 ? 1 : 0, log: false, sink: false, table: false, step: 0, maskOff: false, scaleOff: false, positionOff: false, temperature: 1, help: false,
  lang: (navigator.language || "ko").startsWith("ko") ? "ko" : "en", theme: matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light",
};
const SHORT = { v: "view", l: "layer", h: "head", q: "query", k: "key", unit: "unit", step: "step", lang: "lang" };

function fromAddress() {
  const given = new URLSearchParams(location.hash.slice(1)), state = { ...FIRST };
  const whole = (name, most) => (/^\d+$/.test(given.get(name) ?? "") ? Math.min(Number(given.get(name)), most) : undefined);
  const layer = meta.layers.indexOf(whole("l", 1e6));
  Object.assign(state, {
    view: VIEWS.includes(given.get("v")) ? given.get("v") : state.view, layer: layer >= 0 ? layer : state.layer, head: whole("h", H - 1) ?? state.head,
    query: whole("q", T - 1) ?? state.query, key: whole("k", T - 1) ?? state.key, unit: given.get("unit") === "token" ? "token" : "eojeol", step: whole("step", 8) ?? 0,
    lang: given.get("lang") in WORDS ? given.get("lang") : state.lang, maskOff: given.get("mask") === "0",
  });
  return state;
}

function toAddress(state) {
  const pairs = Object.entries(SHORT).map(([short, name]) => [short, name === "layer" ? meta.layers[state.layer] : state[name]]);
  history.replaceState(null, "", `#${new URLSearchParams([...pairs, ["mask", state.maskOff ? 0 : 1]])}`);
}

// ---- Parts -------------------------------------------------------------------------------------------------------

const Press = ({ on, press, children, ...more }) => html`<button type="button" aria-pressed=${String(on)} onClick=${press} ...${more}>${children}</button>`;
const Choice = ({ legend, options, value, choose }) => html`<fieldset><legend>${legend}</legend>${options.map(([name, text]) =>
  html`<${Press} on=${value === name} press=${() => choose(name)}>${text}<//>`)}</fieldset>`;
const Badge = ({ children }) => html` <span class="badge">${children}</span> `;

function colours() {
  const style = getComputedStyle(document.documentElement);
  const parse = (name) => {
    const hex = style.getPropertyValue(name).trim().slice(1);
    const long = hex.length === 3 ? [...hex].map((digit) => digit + digit).join("") : hex;
    return times(3, (part) => parseInt(long.slice(2 * part, 2 * part + 2), 16));
  };
  return { low: parse("--low"), high: parse("--high"), line: style.getPropertyValue("--line"), ink: style.getPropertyValue("--ink"), accent: style.getPropertyValue("--accent") };
}
const shade = ({ low, high }, share) => low.map((part, i) => Math.round(part + (high[i] - part) * share));
const rgb = (parts) => `rgb(${parts.join(",")})`;
const bright = (parts) => (0.299 * parts[0] + 0.587 * parts[1] + 0.114 * parts[2]) > 140;
const depth = (weight, log) => (log ? Math.max(0, 1 + Math.log10(Math.max(weight, 1e-4)) / 4) : weight);

/* A vector as a strip of squares, with its digits behind a fold. */
function Strip({ name, values, words }) {
  const most = Math.max(...Array.from(values, Math.abs), 1e-9), few = Array.from(values).slice(0, 64);
  const tint = (value) => `color-mix(in srgb, ${value < 0 ? "#d55e00" : "#0072b2"} ${Math.round((100 * Math.abs(value)) / most)}%, var(--paper))`;
  return html`<div><b>${name}</b> <span class="soft">(${values.length}) ${shown(Math.min(...values))} … ${shown(Math.max(...values))}</span>
    <div class="strip" aria-hidden="true">${few.map((value) => html`<span style=${{ background: tint(value) }}></span>`)}${values.length > 64 ? " …" : ""}</div>
    <details><summary>${words.numbers}</summary><pre>${Array.from(values, shown).join("  ")}</pre></details></div>`;
}

/* A sum of products, its largest terms written out. */
function Terms({ a, b, titles, extra = 0, words, stored, name }) {
  const terms = Array.from(a, (value, i) => ({ i, a: value, b: b[i], product: value * b[i] }));
  const largest = [...terms].sort((one, other) => Math.abs(other.product) - Math.abs(one.product)).slice(0, 8);
  const sum = total(terms.map((term) => term.product)) + extra, rest = sum - total(largest.map((term) => term.product));
  return html`<div class="scroll" tabindex="0" role="region" aria-label=${name}><table><caption class="soft">${name}: ${words.terms}</caption><thead><tr><th scope="col">#</th>${[...titles, titles.join(" · ")].map((title) => html`<th scope="col">${title}</th>`)}</tr></thead><tbody>
    ${largest.map((term) => html`<tr><td>${term.i}</td><td>${shown(term.a)}</td><td>${shown(term.b)}</td><td>${shown(term.product)}</td></tr>`)}
    ${terms.length > 8 || extra ? html`<tr><th colspan="3">${words.rest}</th><td>${shown(rest)}</td></tr>` : null}
    <tr><th colspan="3">${words.sum}</th><td class="big">${shown(sum)}</td></tr>
    ${stored === undefined ? null : html`<tr><th colspan="3">${words.stored} · ${words.same} ${small(Math.abs(stored - sum))}</th><td>${shown(stored)}</td></tr>`}
  </tbody></table></div>`;
}

// ---- Views -------------------------------------------------------------------------------------------------------

const PRESETS = ["나는 사과를 맛있게 먹었다", "고양이가 강아지를 쫓았다", "강아지가 고양이를 쫓았다", "창문을 열어서 시원한 바람 맞았어"];

function Sentence({ state, set, words }) {
  return html`<h2>${words.sentence}</h2><p class="big">${meta.text}</p>${meta.about.composed ? html`<p class="note">${words.composed}</p>` : null}
    <p class="soft">${words.tokens(T, GROUPS.length)} ${words.chooseRow}</p>
    <ul class="words">${GROUPS.map((group) => html`<li><button type="button" class="eojeol" onClick=${() => set({ view: "head", query: group.end - 1 })}><b>${group.text}</b>
      ${TOKENS.slice(group.start, group.end).map((token) => html`<span class="token">${token.text}<small>${token.start} · ${meta.ids[token.start]}</small></span>`)}</button></li>`)}</ul>
    <h2>${words.more}</h2><pre tabindex="0">${PRESETS.filter((text) => text !== meta.text).map((text) => `python attend.py "${text}" -o view.html`).join("\n")}</pre>
    <h2>${words.about}</h2><p>${words.reads(meta.shape)}</p><p class="soft">${Object.entries(meta.about).filter(([name]) => name !== "composed").map(([name, value]) => `${name}: ${value}`).join(" · ")}</p>`;
}

const place = (state, by) => ({ query: by.findIndex((unit) => state.query < unit.end), key: by.findIndex((unit) => state.key < unit.end) });

function rankIn(row, key, words) {
  const rank = row.filter((weight) => weight > row[key]).length;
  return words.ranks[rank] ?? words.rank(rank + 1);
}

function spoken(by, rows, query, key, words) {
  const pair = `${by[query].text} → ${by[key].text}`;
  if (rows[query][key] === undefined) return `${pair}, ${words.masked}`;
  return `${pair}, ${fixed(100 * rows[query][key], 1)}${words === WORDS.ko ? "" : " "}${words.percent}, ${words.inRow} ${rankIn(rows[query], key, words)}`;
}

function Heatmap({ by, rows, chosen, state, set, words, canvasRef }) {
  const box = useRef(), [width, setWidth] = useState(640), count = by.length;
  useLayoutEffect(() => {
    const watch = new ResizeObserver(([entry]) => setWidth(Math.floor(entry.contentRect.width)));
    watch.observe(box.current);
    return () => watch.disconnect();
  }, []);
  const labels = count <= 128, font = "13px " + (getComputedStyle(document.documentElement).getPropertyValue("--font") || "sans-serif");
  const side = useMemo(() => {
    const pen = document.createElement("canvas").getContext("2d");
    pen.font = font;
    return labels ? Math.min(Math.ceil(Math.max(...by.map((unit) => pen.measureText(unit.text).width))) + 10, width / 3) : 4;
  }, [by, labels, width]);
  const cell = Math.max(labels ? 16 : 1, Math.min(56, Math.floor((width - side) / count))), top = labels ? side : 4;
  const size = { width: side + cell * count, height: top + cell * count };
  useLayoutEffect(() => {
    const canvas = canvasRef.current, ratio = window.devicePixelRatio || 1, pen = canvas.getContext("2d"), tint = colours();
    canvas.width = size.width * ratio; canvas.height = size.height * ratio;
    Object.assign(canvas.dataset, { cell, side, top });
    canvas.style.width = `${size.width}px`; canvas.style.height = `${size.height}px`;
    pen.scale(ratio, ratio);
    pen.fillStyle = rgb(tint.low); pen.fillRect(0, 0, size.width, size.height);
    pen.font = font; pen.textBaseline = "middle";
    for (let query = 0; query < count; query++) for (let key = 0; key < count; key++) {
      const x = side + key * cell, y = top + query * cell;
      if (rows[query][key] === undefined) {
        if (cell < 6) { pen.fillStyle = tint.line; if ((query + key) % 4 === 0) pen.fillRect(x, y, cell, cell); continue; }
        pen.strokeStyle = tint.line; pen.lineWidth = 1; pen.beginPath();
        for (let slant = 4; slant < 2 * cell; slant += 6) {
          pen.moveTo(x + Math.max(0, slant - cell), y + Math.min(slant, cell)); pen.lineTo(x + Math.min(slant, cell), y + Math.max(0, slant - cell));
        }
        pen.stroke();
        continue;
      }
      const parts = shade(tint, depth(rows[query][key], state.log));
      pen.fillStyle = rgb(parts); pen.fillRect(x, y, cell, cell);
      if (cell >= 34) {
        pen.fillStyle = bright(parts) ? "#111" : "#fff"; pen.textAlign = "center"; pen.font = font.replace("13px", "12px");
        pen.fillText(fixed(rows[query][key], 2).replace(/^0/, ""), x + cell / 2, y + cell / 2);
        pen.font = font;
      }
    }
    if (cell >= 6) {
      pen.strokeStyle = tint.line; pen.lineWidth = 1;
      for (let i = 0; i <= count; i++) {
        pen.strokeRect(side + i * cell, top, 0, cell * count); pen.strokeRect(side, top + i * cell, cell * count, 0);
      }
    }
    if (labels) by.forEach((unit, i) => {
      pen.fillStyle = tint.ink; pen.textAlign = "right";
      pen.fillText(unit.text, side - 5, top + (i + 0.5) * cell, side - 6);
      pen.save(); pen.translate(side + (i + 0.5) * cell, top - 5); pen.rotate(-Math.PI / 2); pen.textAlign = "left"; pen.fillText(unit.text, 0, 0, top - 6); pen.restore();
    });
    pen.strokeStyle = tint.accent; pen.lineWidth = 2;
    pen.strokeRect(side, top + chosen.query * cell, cell * count, cell);
    pen.lineWidth = 3; pen.strokeRect(side + chosen.key * cell + 1, top + chosen.query * cell + 1, cell - 2, cell - 2);
  });
  const go = (query, key) => set({ query: by[query].end - 1, key: by[key].end - 1 });
  const clamp = (value) => Math.max(0, Math.min(count - 1, value));
  const keyed = (event) => {
    const { query, key } = chosen;
    const moves = { ArrowUp: [query - 1, key], ArrowDown: [query + 1, key], ArrowLeft: [query, key - 1], ArrowRight: [query, key + 1], Home: [query, 0], End: [query, query] };
    if (!moves[event.key] || event.ctrlKey || event.metaKey || event.altKey) return;
    event.preventDefault();
    go(...moves[event.key].map(clamp));
  };
  const pointed = (event) => {
    const bounds = event.currentTarget.getBoundingClientRect();
    const [key, query] = [(event.clientX - bounds.left - side) / cell, (event.clientY - bounds.top - top) / cell].map(Math.floor);
    if (query >= 0 && query < count) go(query, key >= 0 && key < count ? key : chosen.key);
  };
  return html`<div class="heat" ref=${box}><div style=${{ position: "relative", width: `${size.width}px` }}><canvas ref=${canvasRef} aria-hidden="true"></canvas>
    <div class="grid" role="grid" tabindex="0" aria-label=${words.grid} aria-rowcount=${count} aria-colcount=${count} aria-activedescendant="cell" onKeyDown=${keyed} onClick=${pointed}
      onMouseMove=${pointed}>
      <div role="row" class="hidden" aria-rowindex=${chosen.query + 1}><div role="gridcell" id="cell" aria-colindex=${chosen.key + 1} aria-selected="true">${spoken(by, rows, chosen.query, chosen.key, words)}</div></div>
    </div></div></div>`;
}

function Twin({ by, rows, chosen, words }) {
  const few = by.length <= 40;
  const cells = (query) => by.map((_, key) => (rows[query][key] === undefined ? html`<td class="off">${words.masked}</td>` : html`<td class=${query === chosen.query && key === chosen.key ? "chosen" : ""}>${fixed(rows[query][key])}</td>`));
  if (!few) return html`<p class="soft">${words.ahead(by.length - chosen.query - 1)}</p>`;
  return html`<div class="scroll" tabindex="0" role="region" aria-label=${words.axes}><table id="twin"><caption class="soft">${words.axes}</caption><thead><tr><td></td>${by.map((unit) => html`<th scope="col">${unit.text}</th>`)}</tr></thead>
    <tbody>${by.map((unit, query) => html`<tr class=${query === chosen.query ? "chosen" : ""}><th scope="row">${unit.text}</th>${cells(query)}</tr>`)}</tbody></table></div>`;
}

function Row({ by, row, chosen, set, words }) {
  const order = row.length > 40 ? [...row.keys()].sort((a, b) => row[b] - row[a]).slice(0, 40) : [...row.keys()];
  const others = row.length - order.length, most = Math.max(...row);
  return html`<ul class="rows" aria-label=${`${by[chosen.query].text} →`}>${order.map((key) => html`<li class=${key === chosen.key ? "mark" : ""}><span class="name">${by[key].text}</span>
      <span class="track"><span class="fill" style=${{ display: "block", width: `${(100 * row[key]) / most}%` }}></span></span><span class="figure">${fixed(row[key])}</span></li>`)}</ul>
    ${others ? html`<p class="soft">${words.others(others, fixed(1 - total(order.map((key) => row[key]))))}</p>` : null}
    ${chosen.query < by.length - 1 ? html`<p class="soft">${words.ahead(by.length - chosen.query - 1)}</p>` : null}`;
}

/* The chosen row as lines from the looker, on the right, to the eight it looks at most. */
function Lines({ by, row, chosen }) {
  const order = [...row.keys()].sort((a, b) => row[b] - row[a]), shownKeys = (row.length > 24 ? order.slice(0, 8) : [...row.keys()]).sort((a, b) => a - b);
  const step = 24, height = step * shownKeys.length + 8, y = (i) => step * (i + 0.5) + 4, middle = height / 2, most = Math.max(...row);
  return html`<svg viewBox=${`0 0 420 ${height}`} width="100%" style=${{ maxWidth: "30rem" }} aria-hidden="true">
    ${shownKeys.map((key, i) => html`<text x="120" y=${y(i)} text-anchor="end" dominant-baseline="middle">${by[key].text.slice(0, 12)}</text>
      ${order.indexOf(key) < 8 ? html`<line x1="128" y1=${y(i)} x2="300" y2=${middle} stroke-width=${0.5 + (7 * row[key]) / most} stroke-opacity=${0.25 + (0.75 * row[key]) / most}></line>` : null}`)}
    <text x="308" y=${middle} dominant-baseline="middle">${by[chosen.query].text.slice(0, 12)}</text></svg>`;
}

function save(name, blob) {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(blob);
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 1000);
}

function csv(by, rows, state) {
  const quoted = (text) => (/[",\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text);
  const lines = by.flatMap((query, i) => by.map((key, j) => [meta.layers[state.layer], state.mean ? "mean" : state.head, i, j, quoted(query.text), quoted(key.text), rows[i][j] ?? ""].join(",")));
  return ["layer,head,query,key,query_text,key_text,weight", ...lines, ""].join("\n");
}

function Picker({ state, set, words, withMean }) {
  return html`<label>${words.layer} <select id="layer" value=${state.layer} onChange=${(event) => set({ layer: Number(event.target.value) })}>${meta.layers.map((layer, i) => html`<option value=${i}>${layer}</option>`)}</select></label>
    <label>${words.head} <select id="head" value=${withMean && state.mean ? "mean" : state.head} onChange=${(event) => set(event.target.value === "mean" ? { mean: true } : { mean: false, head: Number(event.target.value) })}>
      ${times(H, (head) => html`<option value=${head}>${head}</option>`)}${withMean ? html`<option value="mean">${words.mean}</option>` : null}</select></label>`;
}

function Head({ state, set, words }) {
  const canvas = useRef(), by = units(state.unit), chosen = place(state, by);
  const rows = headRows(state);
  let row = rows[chosen.query];
  if (state.sink && row.length > 1) row = [0, ...row.slice(1).map((weight) => weight / (1 - row[0]))];
  const name = `attention-${meta.layers[state.layer]}-${state.mean ? "mean" : state.head}`;
  return html`<div class="bar"><${Picker} state=${state} set=${set} words=${words} withMean />
      <button type="button" onClick=${() => set({ ...bestHead([...meta.layers.keys()], state.unit), mean: false })}>${words.strongest}</button>
      <button type="button" onClick=${() => set({ ...bestHead([state.layer], state.unit), mean: false })}>${words.inLayer}</button>
      <${Choice} legend=${words.unit} options=${[["eojeol", words.eojeol], ["token", words.token]]} value=${state.unit} choose=${(unit) => set({ unit })} />
      ${state.unit === "eojeol" ? html`<${Choice} legend=${words.rows} options=${[[false, words.averaged], [true, words.lastToken]]} value=${state.last} choose=${(last) => set({ last })} />` : null}</div>
    ${state.mean ? html`<p class="against">${words.meanWarning}</p>` : null}
    <div class="two"><section aria-labelledby="row"><h2 id="row">${by[chosen.query].text} →</h2><p>${words.predicts(by[chosen.query].text)}</p>
      <${Row} by=${by} row=${row} chosen=${chosen} set=${set} words=${words} />
      <p class="soft">${words.rowSum} = ${fixed(total(row))} ${Math.abs(total(row) - 1) < 1e-3 ? "✓" : "✗"} · ${words.sdpa} ${small(meta.difference)}</p>
      <div class="bar"><${Press} on=${state.sink} press=${() => set({ sink: !state.sink })}>${words.sink}<//></div>
      <${Lines} by=${by} row=${row} chosen=${chosen} /></section>
    <section aria-labelledby="map"><h2 id="map" class="number" style=${{ textAlign: "left" }}>${spoken(by, rows, chosen.query, chosen.key, words)}</h2><p class="soft">${words.axes}</p>
      <${Heatmap} by=${by} rows=${rows} chosen=${chosen} state=${state} set=${set} words=${words} canvasRef=${canvas} />
      <div class="bar"><${Choice} legend=${words.scale} options=${[[false, words.linear], [true, words.log]]} value=${state.log} choose=${(log) => set({ log })} />
        <${Press} on=${state.table} press=${() => set({ table: !state.table })}>${words.table}<//>
        <button type="button" onClick=${() => save(`${name}.csv`, new Blob([csv(by, rows, state)], { type: "text/csv" }))}>${words.csv}</button>
        <button type="button" onClick=${() => canvas.current.toBlob((blob) => save(`${name}.png`, blob))}>${words.picture}</button></div></section></div>
    ${state.table ? html`<${Twin} by=${by} rows=${rows} chosen=${chosen} words=${words} />` : null}`;
}

/* The row of one head as a table that grows by a column a step. */
function Ladder({ source, row, query, chosen, step, words, names, choose, digits }) {
  const order = source.count > 40 ? [...row.weights.keys()].sort((a, b) => row.weights[b] - row.weights[a]).slice(0, 40) : [...row.weights.keys()];
  const columns = [["q·k", row.products, 3], [words.steps[4], row.divided, 4], [words.mask, null, 5], ["exp", row.exponentials, 6], ["α", row.weights, 6]].filter(([, , from]) => step >= from);
  if (!columns.length) return null;
  const cell = ([, values, from], at) => {
    if (from >= 5 && !row.open[at]) return html`<td class="off">${values ? words.masked : "−∞"}</td>`;
    return html`<td>${values ? minus(fixed(values[at], from < 6 ? digits : 3)) : "✓"}</td>`;
  };
  return html`<div class="scroll" tabindex="0" role="region" aria-label=${`${names(query)} →`}><table class="ladder"><caption class="soft">${names(query)} →</caption><thead><tr><th scope="col">${words.looked}</th>${columns.map(([title]) => html`<th scope="col">${title}</th>`)}</tr></thead>
    <tbody>${order.map((at) => html`<tr class=${at === chosen ? "chosen" : ""}><th scope="row"><button type="button" onClick=${() => choose(at)}>${names(at)}</button></th>${columns.map((column) => cell(column, at))}</tr>`)}</tbody>
    ${step >= 6 ? html`<tfoot><tr><th scope="row">${words.sum}</th>${columns.map(([title, values]) => html`<td>${title === "exp" || title === "α" ? fixed(total(values)) : ""}</td>`)}</tr></tfoot>` : null}</table></div>`;
}

function StepBody({ source, state, row, learnt, words, query, chosen: key }) {
  const { layer, head, step } = state, names = source.names, x = normed(source, layer, query);
  const T = source.count, C = source.width, d = source.size, wide = source.heads * d;
  if (step === 0) return html`<p><${Badge}>X (${T}, ${C})<//></p><${Strip} name=${`x: ${names[query]}`} values=${x.x} words=${words} />`;
  if (step === 1) {
    if (source.bare) return html`<p class="note">${words.toyNotes[0]}</p>`;
    const plain = x.x.map((value) => (value - x.mean) / Math.sqrt(x.variance + meta.epsilon));
    return html`<p class="number" style=${{ textAlign: "left" }}>mean ${shown(x.mean)} → ${shown(total(plain) / C)} · variance ${shown(x.variance)} → ${shown(total(plain.map((value) => value ** 2)) / C)}</p>
      <p>(x₀ − mean) / √(variance + ${meta.epsilon}) · w₀ = (${shown(x.x[0])} − ${shown(x.mean)}) / ${shown(Math.sqrt(x.variance + meta.epsilon))} · ${shown(source.gain(layer)[0][0])} = <b>${shown(x.out[0])}</b></p>
      <${Strip} name="LayerNorm(x)" values=${x.out} words=${words} />`;
  }
  if (step === 2) {
    const [column, bias] = source.column(layer, head, 0), stored = source.part("q", layer, head, query);
    return html`<p><${Badge}>X (${T}, ${C})<//> · <${Badge}>W_Q (${C}, ${d})<//> = <${Badge}>Q (${T}, ${d})<//></p>
      <${Terms} titles=${["x", "W_Q"]} a=${x.out} b=${column} extra=${bias} words=${words} stored=${stored[0]} name="q₀ = Σ x · W_Q" />
      ${["q", "k", "v"].map((name) => html`<${Strip} name=${`${name}: ${names[name === "q" ? query : key]}`} values=${source.part(name, layer, head, name === "q" ? query : key)} words=${words} />`)}
      ${source.rotary ? html`<p class="note">${words.rotated(shown(query))}</p>` : null}`;
  }
  if (step === 3) return html`<p class="number big" style=${{ textAlign: "left" }}>${names[query]} · ${names[key]} = ${shown(row.products[key])}</p><${Terms} titles=${["q", "k"]} a=${row.q} b=${row.keys[key]} words=${words} name=${`q(${names[query]}) · k(${names[key]})`} />`;
  if (step === 4) return html`<p class="number big" style=${{ textAlign: "left" }}>${shown(row.products[key])} / ${state.scaleOff ? "1" : `√${d}`} = ${shown(row.divided[key])}</p>`;
  if (step === 5) return html`<p class="number big" style=${{ textAlign: "left" }}>${names[query]} → ${names[key]}: ${row.open[key] ? shown(row.divided[key]) : "−∞"}</p>`;
  if (step === 6) {
    const difference = source.bare ? 0 : Math.max(...tokenRow(layer, head, query).map((weight, at) => Math.abs(weight - learnt.weights[at])));
    return html`<p class="number big" style=${{ textAlign: "left" }}>${row.open[key] ? `${fixed(row.exponentials[key])} / ${fixed(row.sum)} = ${fixed(row.weights[key])}` : words.masked}</p>
      ${source.bare ? null : html`<p class="soft">${words.stored} · ${words.same} <span id="agreement">${small(difference)}</span></p>`}`;
  }
  if (step === 7) return html`<p><${Badge}>α (${T}, ${T})<//> · <${Badge}>V (${T}, ${d})<//> = <${Badge}>(${T}, ${d})<//></p>
    <${Terms} titles=${["α", "v₀"]} a=${row.weights} b=${row.values.map((value) => value[0])} words=${words} name="Σ α · v₀" /><${Strip} name=${`Σ α·v: ${names[query]}`} values=${row.gathered} words=${words} />`;
  if (source.bare) return html`<p class="note">${words.toyNotes[1]}</p><${Strip} name=${names[query]} values=${row.gathered} words=${words} />`;
  const every = times(source.heads, (other) => (other === head ? row : computed(source, layer, other, query, LEARNT)).gathered).flat();
  const [mixing, bias] = source.mixing(layer), after = source.after(layer, query), added = Array.from(after, (value, i) => value - x.x[i]);
  return html`<p><${Badge}>${source.heads} × (${T}, ${d})<//> → <${Badge}>(${T}, ${wide})<//> · <${Badge}>W_O (${wide}, ${C})<//> + <${Badge}>X (${T}, ${C})<//></p>
    <${Terms} titles=${["concat", "W_O"]} a=${every} b=${mixing} extra=${bias} words=${words} stored=${added[0]} name="o₀ = Σ concat · W_O" />
    <p class="number big" style=${{ textAlign: "left" }}>x₀ + o₀ = ${shown(x.x[0])} + ${shown(added[0])} = ${shown(after[0])}</p><${Strip} name="x + attention(x)" values=${after} words=${words} />`;
}

function Steps({ source, state, set, words }) {
  const query = Math.min(state.query, source.count - 1), key = Math.min(state.key, source.count - 1);
  const row = useMemo(() => computed(source, state.layer, state.head, query, state), [source, state.layer, state.head, query, state.maskOff, state.scaleOff, state.positionOff, state.temperature]);
  const learnt = useMemo(() => computed(source, state.layer, state.head, query, LEARNT), [source, state.layer, state.head, query]);
  const changed = state.maskOff || state.scaleOff || state.positionOff || state.temperature !== 1;
  const every = useMemo(() => (source.bare || state.step !== 6 || source.count > MOST_IN_MAP ? null : times(source.count, (at) => {
    const { weights, open } = computed(source, state.layer, state.head, at, state);
    return weights.map((weight, seen) => (open[seen] ? weight : undefined));
  })), [source, state.step === 6, state.layer, state.head, state.maskOff, state.scaleOff, state.positionOff, state.temperature]);
  const canvas = useRef();
  const names = (at) => (source.bare ? source.names[at] : GROUPS[groupOf(at)].end - GROUPS[groupOf(at)].start > 1 ? `${source.names[at]} (${GROUPS[groupOf(at)].text})` : source.names[at]);
  const pick = (id, value, name, text) => html`<label>${text} <select id=${id} value=${value} onChange=${(event) => set({ [name]: Number(event.target.value) })}>${times(source.count, (at) => html`<option value=${at}>${names(at)}</option>`)}</select></label>`;
  const move = (by) => set({ step: Math.max(0, Math.min(8, state.step + by)) });
  return html`<div class="bar">${source.bare ? null : html`<${Picker} state=${state} set=${set} words=${words} />`}${pick("query", query, "query", words.query)}${pick("key", key, "key", words.key)}</div>
    <fieldset class="bar"><legend>${words.switches}</legend>
      <${Press} on=${state.maskOff} press=${() => set({ maskOff: !state.maskOff })} id="mask-off">${words.maskOff}<//><${Press} on=${state.scaleOff} press=${() => set({ scaleOff: !state.scaleOff })} id="scale-off">${words.scaleOff}<//>
      ${source.rotary ? html`<${Press} on=${state.positionOff} press=${() => set({ positionOff: !state.positionOff })} id="position-off">${words.positionOff}<//>` : null}
      <label>${words.temperature} <input id="temperature" type="range" min="0.25" max="4" step="0.25" value=${state.temperature} onInput=${(event) => set({ temperature: Number(event.target.value) })} /> <span class="figure">${state.temperature}</span></label></fieldset>
    ${changed && !source.bare ? html`<p class="against">${words.against}</p>` : null}
    <ol class="steps">${words.steps.map((name, at) => html`<li><button type="button" aria-current=${at === state.step ? "step" : null} onClick=${() => set({ step: at })}>${at + 1}. ${name}</button></li>`)}</ol>
    <h2>${state.step + 1}. ${words.steps[state.step]}</h2><p>${words.one[state.step]}</p>
    ${!meta.exact && !source.bare ? html`<p class="soft">${words.approximate}</p>` : null}
    <${StepBody} source=${source} state=${state} row=${row} learnt=${learnt} words=${words} query=${query} chosen=${key} />
    <${Ladder} source=${source} row=${row} query=${query} chosen=${key} step=${state.step} words=${words} names=${names} choose=${(at) => set({ key: at })} digits=${meta.exact || source.bare ? 3 : 2} />
    ${every ? html`<h3>${words.every}</h3><p class="soft">${words.axes}</p><${Heatmap} by=${TOKENS} rows=${every} chosen=${{ query, key }} state=${state} set=${set} words=${words} canvasRef=${canvas} />
      <div class="bar"><${Press} on=${state.table} press=${() => set({ table: !state.table })}>${words.table}<//></div>
      ${state.table ? html`<${Twin} by=${TOKENS} rows=${every} chosen=${{ query, key }} words=${words} />` : null}` : null}
    <div class="bar"><button type="button" id="back" disabled=${state.step === 0} onClick=${() => move(-1)}>← ${words.previous}</button><button type="button" id="next" disabled=${state.step === 8} onClick=${() => move(1)}>${words.next} →</button></div>`;
}

const CODE = `import torch

torch.set_printoptions(precision=3, sci_mode=False)
X = torch.tensor([[1., 0, 0, 0], [0, 1, 0, 1], [0, 0, 1, 1], [0, 1, 1, 0]])
scores = X @ X.T / 4 ** 0.5
weights = scores.softmax(dim=-1)
print(weights)
print(weights @ X)`;

function Matrix({ name, numbers, columns, words, rows = TOY.names }) {
  return html`<div class="scroll" tabindex="0" role="region" aria-label=${name}><table><caption class="soft">${name}</caption><thead><tr><td></td>${columns.map((column) => html`<th scope="col">${column}</th>`)}</tr></thead>
    <tbody>${numbers.map((row, i) => html`<tr><th scope="row">${rows[i]}</th>${row.map((value) => (value === null ? html`<td class="off">${words.masked}</td>` : html`<td>${fixed(value)}</td>`))}</tr>`)}</tbody></table></div>`;
}

function Toy({ state, set, words }) {
  const own = { ...state, layer: 0, head: 0, positionOff: false };
  const rows = times(4, (query) => computed(TOY, 0, 0, query, own)), dimensions = times(4, (i) => `d${i}`);
  const covered = (pick) => rows.map((row) => pick(row).map((value, key) => (row.open[key] ? value : null)));
  return html`<p>${words.toyIntro}</p><${Steps} source=${TOY} state=${own} set=${set} words=${words} />
    <h2>${words.mask}: <span id="toy-mask">${state.maskOff ? words.switchOff : words.switchOn}</span></h2>
    <div class="bar" id="toy">${[[words.scores, covered((row) => row.divided), TOY.names], [words.weights, covered((row) => row.weights), TOY.names], [words.context, rows.map((row) => row.gathered), dimensions]].map(([name, numbers, columns]) =>
      html`<${Matrix} name=${name} numbers=${numbers} columns=${columns} words=${words} />`)}</div>
    <p class="note">${words.maskSame}</p><p class="note">${words.rounding}</p><h3>${words.code}</h3><pre tabindex="0">${CODE}</pre>`;
}

// ---- The page ----------------------------------------------------------------------------------------------------

function Page() {
  const [state, change] = useState(fromAddress), words = WORDS[state.lang], moved = useRef(false);
  const set = (more) => change((before) => ({ ...before, ...more }));
  useLayoutEffect(() => { document.documentElement.dataset.theme = state.theme; document.documentElement.lang = state.lang; change((before) => ({ ...before })); }, [state.theme, state.lang]);
  useEffect(() => { // not for every move: browsers refuse to change the address hundreds of times
    const later = setTimeout(() => toAddress(state), 200);
    return () => clearTimeout(later);
  }, [state]);
  useEffect(() => {
    if (moved.current && document.activeElement === document.body) document.getElementById(`tab-${state.view}`).focus();
    moved.current = true; // what had the focus may be gone with the view that it was in
  }, [state.view]);
  useEffect(() => {
    const led = () => change((before) => ({ ...before, ...fromAddress(), lang: before.lang, theme: before.theme }));
    addEventListener("hashchange", led);
    return () => removeEventListener("hashchange", led);
  }, []);
  useEffect(() => {
    const keyed = (event) => {
      if (event.ctrlKey || event.metaKey || event.altKey || event.target.closest("select, input")) return;
      const wrap = (value, count) => (value + count) % count;
      const acts = {
        "[": (s) => ({ head: wrap(s.head - 1, H), mean: false }), "]": (s) => ({ head: wrap(s.head + 1, H), mean: false }),
        PageUp: (s) => ({ layer: Math.max(s.layer - 1, 0) }), PageDown: (s) => ({ layer: Math.min(s.layer + 1, L - 1) }),
        e: (s) => ({ unit: s.unit === "eojeol" ? "token" : "eojeol" }), m: (s) => ({ maskOff: !s.maskOff }), s: (s) => ({ scaleOff: !s.scaleOff }), t: (s) => ({ table: !s.table }),
        "?": (s) => ({ help: !s.help }), Escape: () => ({ help: false }), ...Object.fromEntries(VIEWS.map((view, i) => [i + 1, () => ({ view })])),
      };
      if (!(event.key in acts)) return;
      event.preventDefault();
      change((before) => ({ ...before, ...acts[event.key](before) }));
    };
    addEventListener("keydown", keyed);
    return () => removeEventListener("keydown", keyed);
  }, []);
  const tab = (event) => {
    const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (!step) return;
    event.preventDefault();
    const next = (VIEWS.indexOf(state.view) + step + VIEWS.length) % VIEWS.length;
    set({ view: VIEWS[next] });
    document.getElementById(`tab-${VIEWS[next]}`).focus();
  };
  const by = units(state.unit), chosen = place(state, by);
  const said = state.view === "head" ? spoken(by, headRows(state), chosen.query, chosen.key, words) : `${words.views[VIEWS.indexOf(state.view)]}${state.view === "sentence" ? "" : `, ${words.steps[state.step]}`}`;
  const views = { sentence: Sentence, head: Head, steps: Steps, toy: Toy };
  return html`<header><h1>말씨 · ${words.title}</h1>
      <button type="button" id="language" lang=${state.lang === "ko" ? "en" : "ko"} onClick=${() => set({ lang: state.lang === "ko" ? "en" : "ko" })}>${words.language}</button>
      <button type="button" id="theme" onClick=${() => set({ theme: state.theme === "dark" ? "light" : "dark" })}>${state.theme === "dark" ? words.light : words.dark}</button>
      <button type="button" id="help" aria-expanded=${String(state.help)} onClick=${() => set({ help: !state.help })}>? ${words.help}</button></header>
    <main>${state.help ? html`<p class="note" role="note">${words.keys}</p>` : null}
      <div role="tablist" aria-label=${words.title} onKeyDown=${tab}>${VIEWS.map((view, i) => html`<button type="button" role="tab" id=${`tab-${view}`} aria-selected=${String(view === state.view)} aria-controls="panel" tabindex=${view === state.view ? 0 : -1} onClick=${() => set({ view })}>${i + 1} ${words.views[i]}</button>`)}</div>
      <div role="tabpanel" id="panel" aria-labelledby=${`tab-${state.view}`}><${views[state.view]} key=${state.view} source=${REAL} state=${state} set=${set} words=${words} /></div>
      <div class="hidden" aria-live="polite" id="said">${said}</div></main>
    <footer>${words.reads(meta.shape)} · ${words.sdpa} ${small(meta.difference)}</footer>`;
}

render(html`<${Page} />`, document.getElementById("page"));
