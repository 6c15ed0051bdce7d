// Draws the charts with uPlot, and shows the turns of each game one at a time.

// ---------------------------------------------------------------- charts

const probe = document.body.appendChild(document.createElement("i"));
probe.hidden = true;
// The colour of a class of the style sheet, which depends on the reader's system.
const colour = (name) => { probe.className = name; return getComputedStyle(probe).color; };
const faded = (name, alpha) => colour(name).replace("rgb", "rgba").replace(")", `, ${alpha})`);

const text = (amount, options) => amount.toLocaleString("en", options);
const say = (amount, shares = false, digits = shares ? 3 : 4) => {
  if (shares) return `${text(100 * amount, { maximumSignificantDigits: digits })}%`;
  const size = Math.abs(amount);
  const short = size === 0 || (size >= 1e-3 && size < 1e15);
  if (!short) return Number(amount.toPrecision(digits)).toExponential();
  const notation = size < 1e6 ? "standard" : "compact";
  const whole = size < 1e6 ? Math.ceil(Math.log10(size + 1)) : 0;
  return text(amount, { notation, maximumSignificantDigits: Math.max(digits, whole) });
};

const axis = (settings) => ({
  stroke: colour("soft"),
  font: "11px system-ui, sans-serif",
  ticks: { show: false },
  grid: { stroke: colour("rule"), width: 1 },
  ...settings,
});
// Labels with as many digits as tell neighbours apart.
const labels = (shares) => (plot, ticks, index, space, step) => {
  const highest = Math.max(...ticks.map(Math.abs));
  const digits = Math.min(Math.max(Math.ceil(Math.log10(highest / step)) + 2, 2), 15);
  return ticks.map((tick) => (tick === null ? "" : say(tick, shares, digits)));
};
const counts = (plot, ticks) => ticks.map((tick) => text(tick));
const room = (plot, texts) => 12 + 6.5 * Math.max(3, ...(texts ?? []).map((text) => text.length));
const whole = [1, 2, 5].flatMap((step) => Array.from({ length: 12 }, (_, n) => step * 10 ** n));
whole.sort((one, other) => one - other);

// Steps between numbers that floating point cannot tell apart would never end.
const flat = (low, high) => {
  const size = Math.max(Math.abs(low), Math.abs(high));
  return high - low <= 1e-9 * size || size < 1e-290 ? (size < 1e-290 ? 0.5 : size / 2) : 0;
};
const range = (shares) => (plot, low, high) => {
  if (low === null) return [0, 1];
  if (shares) return [0, high > 0.5 ? 1 : Math.max(high, 0.01)];
  const half = flat(low, high);
  return half ? [low - half, high + half] : uPlot.rangeNum(low, high, 0.1, true);
};

function lines({ x, shares, log, lines }) {
  // Without a pointer, the legend is about the last place at which something was measured.
  let last = 0;
  const series = [{ label: x, value: (plot, at) => text(at ?? plot.data[0]?.[last] ?? 0) }];
  const tables = [], bands = [];
  for (const { name, colour: shade, faint, xs, ys, low, high, mean } of lines) {
    const columns = [xs];
    const add = (numbers, settings) => {
      columns.push(numbers);
      return series.push({ class: "aux", width: 0, points: { show: false }, ...settings }) - 1;
    };
    const bounds = low && [add(high), add(low)];
    if (bounds) bands.push({ series: bounds, fill: faded(shade, 0.15) });
    const thin = { stroke: faded(shade, 0.35), width: 1 };
    const raw = mean ? add(ys, thin) : series.length;
    const value = (plot, amount, index, at) => {
      const here = (column) => say(plot.data[column][at ?? last], shares);
      if (plot.data[raw]?.[at ?? last] == null) return "–";
      return here(raw) + (bounds ? ` (${here(bounds[1])} to ${here(bounds[0])})` : "");
    };
    const strong = { class: null, label: name, stroke: colour(shade), width: 2, value };
    add(mean ?? ys, faint ? thin : { ...strong, points: { fill: colour(shade) } });
    tables.push(columns);
  }
  const data = uPlot.join(tables);
  const columns = data.slice(1);
  last = data[0].findLastIndex((_, place) => columns.some((column) => column[place] != null));
  return [data, {
    series,
    bands,
    scales: { x: { time: false }, y: log ? { distr: 3 } : { range: range(shares) } },
    axes: [
      axis({ incrs: whole, values: counts, size: 26, grid: { show: false } }),
      axis({ values: labels(shares), size: room, space: 28 }),
    ],
  }];
}

function strengths({ strengths: rows }) {
  const places = rows.map((_, place) => place);
  const column = (index) => rows.map((row) => row[index]);
  const [names, points, low, high] = [0, 1, 2, 3].map(column);
  const short = names.map((name) => (name.length > 30 ? `…${name.slice(-29)}` : name));
  const signed = (amount) => (amount > 0 ? "+" : "") + Math.round(amount);
  const hidden = { class: "aux", points: { show: false } };
  const about = (plot, amount, index, at) => (at == null ? "" :
    `${signed(points[at])} (${signed(low[at])} to ${signed(high[at])})`);
  return [[places, high, low, points], {
    height: 60 + 28 * rows.length,
    series: [
      { label: "policy", value: (plot, at) => (at == null ? "" : names[at]) },
      { ...hidden, fill: faded("c0", 0.35), paths: uPlot.paths.bars({ size: [0.3, 8] }) },
      { ...hidden, paths: () => null },
      { label: "Elo", stroke: colour("c0"), paths: () => null, value: about,
        points: { show: true, size: 9, fill: colour("c0") } },
    ],
    bands: [{ series: [1, 2] }],
    scales: {
      x: { time: false, ori: 1, dir: -1, range: [-0.6, rows.length - 0.4] },
      y: { ori: 0, range: (plot, least, most) => uPlot.rangeNum(least, most, 0.05, true) },
    },
    axes: [
      axis({ side: 3, splits: places, values: () => short, size: room, grid: { show: false } }),
      axis({ side: 2, values: (plot, ticks) => ticks.map(signed), size: 26, space: 70 }),
    ],
  }];
}

const drawn = new Map();  // by element: its chart, and the width that it has
function draw(element, width) {
  drawn.get(element)?.chart.destroy();
  const plot = JSON.parse(element.dataset.plot);
  const [data, options] = (plot.strengths ? strengths : lines)(plot);
  const cursor = { y: false, drag: { setScale: true, x: true, y: false } };
  const fill = (made, index) => made.series[index].stroke(made, index);
  const legend = { markers: { width: 0, fill } };
  const look = { width, height: 190, padding: [10, 12, 0, 0], cursor, legend };
  const chart = new uPlot({ ...look, ...options }, data, element);
  drawn.set(element, { chart, width });
}
// Draws again what was drawn before.
const redraw = (widthOf = (element) => element.clientWidth) => {
  for (const element of drawn.keys()) draw(element, widthOf(element));
};

// What is folded has no width, and is drawn when it opens.
const resized = new ResizeObserver((entries) => requestAnimationFrame(() => {
  for (const { target, contentRect: { width } } of entries) {
    const change = Math.abs(width - (drawn.get(target)?.width ?? 0));
    if (width && change >= 1) draw(target, Math.floor(width));
  }
}));
for (const element of document.querySelectorAll(".plot")) resized.observe(element);
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => redraw());
const paper = (on) => document.documentElement.classList.toggle("paper", on);
// A page of paper is two charts wide.
const onPaper = (element) => (element.closest(".wide") ? 660 : 320);
addEventListener("beforeprint", () => { paper(true); redraw(onPaper); });
addEventListener("afterprint", () => { paper(false); redraw(); });

// ---------------------------------------------------------------- games

// Without a script, turns are lists that open.
for (const game of document.querySelectorAll(".game")) {
  const list = game.querySelector("details");
  const turns = [...list.querySelectorAll(".turn")];
  if (!turns.length) continue;
  const controls = document.createElement("div");
  controls.className = "controls";
  controls.setAttribute("role", "group");
  controls.setAttribute("aria-label", "Turns of the game");
  const add = (tag, text, settings) => {
    const made = Object.assign(document.createElement(tag), settings);
    made.textContent = text;
    controls.append(made);
    return made;
  };
  const button = (text, act) => add("button", text, { type: "button", onclick: act });
  let place = 0, timer = null, all = false;
  const show = (wanted) => {
    place = Math.min(Math.max(wanted, 0), turns.length - 1);
    turns.forEach((turn, at) => { turn.hidden = !all && at !== place; });
    list.classList.toggle("one", !all);
    list.open = true;
    slider.value = place;
    const parts = [...turns[place].querySelector("header").childNodes];
    slider.setAttribute("aria-valuetext", parts.map((part) => part.textContent).join(", "));
    count.textContent = `${place + 1} of ${turns.length}`;
    previous.disabled = all || place === 0;
    next.disabled = all || place === turns.length - 1;
    slider.disabled = play.disabled = all;
  };
  const stop = () => { clearInterval(timer); timer = null; play.textContent = "Play"; };
  const go = (wanted) => { stop(); show(wanted); };
  const previous = button("Previous", () => go(place - 1));
  const play = button("Play", () => {
    if (timer) return stop();
    if (place === turns.length - 1) show(0);
    play.textContent = "Pause";
    timer = setInterval(() => {
      show(place + 1);
      if (place === turns.length - 1) stop();
    }, 1200);
  });
  const next = button("Next", () => go(place + 1));
  const slider = add("input", "", { type: "range", min: 0, max: turns.length - 1, value: 0 });
  slider.setAttribute("aria-label", "Turn");
  slider.oninput = () => go(Number(slider.value));
  const count = add("output", "");
  const every = button("All turns", () => {
    all = !all;
    every.setAttribute("aria-pressed", all);
    go(place);
  });
  every.setAttribute("aria-pressed", false);
  game.addEventListener("keydown", (event) => {
    const by = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (!by || all || event.target === slider || event.altKey || event.ctrlKey || event.metaKey) {
      return;
    }
    event.preventDefault();
    go(place + by);
  });
  list.before(controls);
  show(0);
}
