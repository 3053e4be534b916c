const byId = (id) => document.getElementById(id);
const content = JSON.parse(byId("content").textContent);
const { width, height, tile: TILE, levels: LEVELS, classes, numbers, scores, windows } = content;
const boxes = Float32Array.from(content.boxes), total = scores.length; // by falling scores
const canvas = byId("scan"), pen = canvas.getContext("2d");
const MOST_TILES = 250, MOST_LABELS = 250; // in memory, and at once on the screen
const NAMED = 36, CLOSEST = 16; // px of the screen: a box's longer side from which on it has a label, and a pixel's
const DOT = 3; // px of the screen: what is smaller is drawn so large
const GREY = opaque([150, 150, 150]), WHITE = opaque([255, 255, 255]);
let view = { scale: 1, x: 0, y: 0 }; // px of the screen for one of the image, and what is at the upper left corner
let ratio = 1, least = 0, chosen = -1, off = new Set();

function opaque([red, green, blue]) { return (0xff000000 | (blue << 16) | (green << 8) | red) >>> 0; }

const clamp = (value, low, high) => Math.min(Math.max(value, low), high);
const all = () => Math.min(canvas.clientWidth / width, canvas.clientHeight / height);
const isShown = (n) => scores[n] >= least && !off.has(numbers[n]);
const textOf = (n) => `${classes[numbers[n]].name} ${(scores[n] / 1000).toFixed(2)}`;

// Tiles, those that were drawn last at the end.
const tiles = new Map();

function tileAt(level, column, row) {
  const source = `${content.folder}/${level}/${column}_${row}.jpg`;
  const image = tiles.get(source) || new Image();
  if (!image.src) {
    image.onload = redraw;
    image.src = source;
  }
  tiles.delete(source);
  tiles.set(source, image);
  return image;
}

function forget() {
  for (const [source, image] of tiles) {
    if (tiles.size <= MOST_TILES) return;
    if (!image.complete) image.src = "";
    tiles.delete(source);
  }
}

function drawTiles() {
  const level = clamp(Math.round(-Math.log2(view.scale * ratio)), 0, LEVELS - 1), side = TILE * 2 ** level;
  const right = Math.min(width, view.x + canvas.clientWidth / view.scale);
  const bottom = Math.min(height, view.y + canvas.clientHeight / view.scale);
  for (let row = Math.floor(Math.max(0, view.y) / side); row * side < bottom; row++) {
    for (let column = Math.floor(Math.max(0, view.x) / side); column * side < right; column++) {
      drawTile(level, column, row);
    }
  }
}

// Until a tile is there, that part of a coarser one.
function drawTile(level, column, row) {
  for (let up = 0; level + up < LEVELS; up++) {
    const image = tileAt(level + up, column >> up, row >> up);
    if (!image.naturalWidth) continue;
    const part = TILE / 2 ** up, left = (column % 2 ** up) * part, top = (row % 2 ** up) * part;
    const across = Math.min(part, image.naturalWidth - left), down = Math.min(part, image.naturalHeight - top);
    const side = TILE * 2 ** level, pixel = 2 ** (level + up);
    const [x0, y0] = onScreen(column * side, row * side);
    const [x1, y1] = onScreen(column * side + across * pixel, row * side + down * pixel);
    pen.drawImage(image, left, top, across, down, x0, y0, x1 - x0, y1 - y0);
    return;
  }
}

// In px of the device, rounded, so that neighbours leave no gap.
function onScreen(x, y) {
  const scale = view.scale * ratio;
  return [Math.round((x - view.x) * scale), Math.round((y - view.y) * scale)];
}

// Outlines are set pixel by pixel: of 100,000 that takes a few milliseconds.
const layer = document.createElement("canvas"), ink = layer.getContext("2d");
let data = null, pixels = null, wide = 0, high = 0;

function drawBoxes() {
  if (wide !== canvas.width || high !== canvas.height) {
    [wide, high] = [layer.width, layer.height] = [canvas.width, canvas.height];
    data = ink.createImageData(wide, high);
    pixels = new Uint32Array(data.data.buffer);
  }
  pixels.fill(0);
  if (byId("grid").checked) for (const window of windows) outline(...window, GREY, 1);
  const colours = classes.map(({ colour }) => opaque(colour)), labelled = [];
  let count = 0;
  for (let n = total - 1; n >= 0; n--) { // the best are drawn last
    if (!isShown(n)) continue;
    count++;
    const at = 4 * n;
    const [left, top, right, bottom] = [boxes[at], boxes[at + 1], boxes[at + 2], boxes[at + 3]];
    const isSeen = outline(left, top, right, bottom, colours[numbers[n]], n === chosen ? 4 : 2);
    if (isSeen && Math.max(right - left, bottom - top) * view.scale >= NAMED) labelled.push(n);
  }
  if (chosen >= 0 && isShown(chosen)) outline(...boxes.subarray(4 * chosen, 4 * chosen + 4), WHITE, 1);
  ink.putImageData(data, 0, 0);
  pen.drawImage(layer, 0, 0);
  byId("count").textContent = `${count.toLocaleString("en")} of ${total.toLocaleString("en")} objects`;
  labelled.slice(-MOST_LABELS).forEach(drawLabel);
}

// Returns whether some of it is on the screen.
function outline(left, top, right, bottom, colour, thick) {
  const scale = view.scale * ratio, dot = DOT * ratio;
  const x0 = Math.round((left - view.x) * scale), y0 = Math.round((top - view.y) * scale);
  const x1 = Math.max(Math.round((right - view.x) * scale), x0 + dot);
  const y1 = Math.max(Math.round((bottom - view.y) * scale), y0 + dot);
  if (x1 <= 0 || y1 <= 0 || x0 >= wide || y0 >= high) return false;
  const line = Math.max(1, Math.round((Math.min(x1 - x0, y1 - y0) < 8 * dot ? 1 : thick) * ratio));
  bar(x0, y0, x1, y0 + line, colour);
  bar(x0, y1 - line, x1, y1, colour);
  bar(x0, y0 + line, x0 + line, y1 - line, colour);
  bar(x1 - line, y0 + line, x1, y1 - line, colour);
  return true;
}

function bar(left, top, right, bottom, colour) {
  const into = pixels, first = Math.max(left, 0), last = Math.min(right, wide), end = Math.min(bottom, high);
  for (let y = Math.max(top, 0); y < end; y++) {
    for (let at = y * wide + first; at < y * wide + last; at++) into[at] = colour;
  }
}

function drawLabel(n) {
  const [x, y] = onScreen(boxes[4 * n], boxes[4 * n + 1]), text = textOf(n);
  const [red, green, blue] = classes[numbers[n]].colour;
  const line = 16 * ratio, top = Math.max(0, y - line), left = Math.max(0, x);
  pen.fillStyle = `rgb(${red} ${green} ${blue})`;
  pen.fillRect(left, top, pen.measureText(text).width + 6 * ratio, line);
  pen.fillStyle = 0.3 * red + 0.6 * green + 0.1 * blue > 140 ? "#000" : "#fff";
  pen.fillText(text, left + 3 * ratio, top + 12 * ratio);
}

// The longest of 1, 2, 5, 10, ... px of the image that fits.
function drawScale() {
  const most = 120 / view.scale, ten = 10 ** Math.floor(Math.log10(Math.max(1, most)));
  const length = ten * [5, 2, 1].find((times) => times === 1 || times * ten <= most);
  const along = length * view.scale * ratio, left = 12 * ratio, y = canvas.height - 14 * ratio;
  const text = `${length.toLocaleString("en")} px`;
  pen.fillStyle = "rgb(0 0 0 / 0.6)";
  pen.fillRect(left - 6 * ratio, y - 22 * ratio, Math.max(along, pen.measureText(text).width) + 12 * ratio, 30 * ratio);
  pen.fillStyle = "#fff";
  pen.fillRect(left, y, along, 3 * ratio);
  pen.fillText(text, left, y - 6 * ratio);
}

function draw() {
  ratio = window.devicePixelRatio || 1;
  canvas.width = Math.max(1, Math.round(canvas.clientWidth * ratio));
  canvas.height = Math.max(1, Math.round(canvas.clientHeight * ratio));
  pen.font = `${12 * ratio}px system-ui, sans-serif`;
  pen.imageSmoothingEnabled = view.scale * ratio < 3;
  drawTiles();
  drawBoxes();
  drawScale();
  forget();
}

let isAsked = false;

function redraw() {
  if (isAsked) return;
  isAsked = true;
  requestAnimationFrame(() => { isAsked = false; draw(); });
}

// Something of the image stays in the middle.
function moveBy(x, y) {
  const across = canvas.clientWidth / view.scale / 2, down = canvas.clientHeight / view.scale / 2;
  view.x = clamp(view.x - x / view.scale, -across, width - across);
  view.y = clamp(view.y - y / view.scale, -down, height - down);
  redraw();
}

// What is at (x, y) px of the screen stays there.
function zoom(factor, x = canvas.clientWidth / 2, y = canvas.clientHeight / 2) {
  const scale = clamp(view.scale * factor, all() / 2, Math.max(CLOSEST, all()));
  view.x += x / view.scale - x / scale;
  view.y += y / view.scale - y / scale;
  view.scale = scale;
  moveBy(0, 0);
}

function showAll() {
  const scale = all();
  view = { scale, x: (width - canvas.clientWidth / scale) / 2, y: (height - canvas.clientHeight / scale) / 2 };
  redraw();
}

// The smallest of what is shown at a place of the image, with a finger's room around it.
function objectAt(x, y) {
  const room = 4 / view.scale;
  let best = -1, smallest = Infinity;
  for (let n = 0; n < total; n++) {
    const [left, top, right, bottom] = [boxes[4 * n], boxes[4 * n + 1], boxes[4 * n + 2], boxes[4 * n + 3]];
    const area = (right - left) * (bottom - top);
    const isThere = x >= left - room && x <= right + room && y >= top - room && y <= bottom + room;
    if (isThere && area < smallest && isShown(n)) [best, smallest] = [n, area];
  }
  return best;
}

function choose(n) {
  chosen = n;
  const [left, top, right, bottom] = Array.from(boxes.subarray(4 * n, 4 * n + 4), Math.round);
  byId("chosen").textContent = n < 0 ? "Nothing is there."
    : `${textOf(n)}, from ${left}, ${top} to ${right}, ${bottom} px`;
  redraw();
}

// Mouse, pen and fingers, by their ids.
const held = new Map();
let moved = false;

function placeOf(event) {
  const { left, top } = canvas.getBoundingClientRect();
  return [event.clientX - left, event.clientY - top];
}

// The middle of one or two, and how far apart two are.
function grip() {
  const [[x, y], [otherX, otherY]] = held.size > 1 ? [...held.values()] : [...held.values(), ...held.values()];
  return { x: (x + otherX) / 2, y: (y + otherY) / 2, spread: Math.hypot(x - otherX, y - otherY) };
}

canvas.addEventListener("pointerdown", (event) => {
  moved = held.size > 0;
  held.set(event.pointerId, placeOf(event));
});
window.addEventListener("pointermove", (event) => {
  if (!held.has(event.pointerId)) return;
  const before = grip(), [x, y] = held.get(event.pointerId), now = placeOf(event);
  if (!moved && Math.hypot(now[0] - x, now[1] - y) < 4) return;
  moved = true;
  held.set(event.pointerId, now);
  const after = grip();
  moveBy(after.x - before.x, after.y - before.y);
  if (before.spread && after.spread) zoom(after.spread / before.spread, after.x, after.y);
});
for (const kind of ["pointerup", "pointercancel"]) {
  window.addEventListener(kind, (event) => {
    if (!held.delete(event.pointerId) || moved || kind === "pointercancel") return;
    const [x, y] = placeOf(event);
    choose(objectAt(view.x + x / view.scale, view.y + y / view.scale));
  });
}
canvas.addEventListener("wheel", (event) => {
  event.preventDefault();
  const step = event.deltaMode ? 40 * event.deltaY : event.deltaY; // some count lines
  zoom(Math.exp(-clamp(step, -300, 300) / 400), ...placeOf(event));
}, { passive: false });
canvas.addEventListener("dblclick", (event) => zoom(2, ...placeOf(event)));

const KEYS = {
  "+": () => zoom(1.5), "=": () => zoom(1.5), "-": () => zoom(1 / 1.5), 0: showAll,
  ArrowLeft: () => moveBy(80, 0), ArrowRight: () => moveBy(-80, 0),
  ArrowUp: () => moveBy(0, 80), ArrowDown: () => moveBy(0, -80),
};
window.addEventListener("keydown", (event) => {
  const isBrowsers = event.ctrlKey || event.metaKey || event.altKey;
  const isSliders = event.target instanceof HTMLInputElement && event.key.startsWith("Arrow");
  if (isBrowsers || isSliders || !(event.key in KEYS)) return;
  event.preventDefault();
  KEYS[event.key]();
});
byId("closer").addEventListener("click", KEYS["+"]);
byId("farther").addEventListener("click", KEYS["-"]);
byId("all").addEventListener("click", showAll);
byId("grid").addEventListener("change", redraw);
byId("least").addEventListener("input", ({ target }) => {
  least = Number(target.value);
  byId("from").textContent = (least / 1000).toFixed(2);
  redraw();
});

function listClasses() {
  const counts = classes.map(() => 0);
  for (const number of numbers) counts[number]++;
  const found = classes.map((each, number) => ({ ...each, number })).filter(({ number }) => counts[number]);
  byId("classes").replaceChildren(...found.map(({ name, colour, number }) => {
    const line = document.createElement("li"), label = document.createElement("label");
    const box = document.createElement("input"), swatch = document.createElement("i");
    [box.type, box.checked] = ["checkbox", true];
    box.addEventListener("change", () => { box.checked ? off.delete(number) : off.add(number); redraw(); });
    swatch.style.background = `rgb(${colour.join(" ")})`;
    label.append(box, swatch, `${name} (${counts[number].toLocaleString("en")})`);
    line.append(label);
    return line;
  }));
}

// Where the window has another size, all stays all, and else the corner stays.
let wasAll = 0;
new ResizeObserver(() => {
  if (!wasAll || view.scale === wasAll) showAll();
  else moveBy(0, 0);
  wasAll = all();
}).observe(canvas);
listClasses();
showAll();
