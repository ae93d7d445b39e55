"use strict";
// Tokens come as data and go into the page as textContent: whatever they hold, they stay text.
const { tokens, layers, heads, top: whole } = JSON.parse(document.getElementById("data").textContent);
const size = tokens.length;
const bytes = Uint8Array.from(atob(document.getElementById("weights").textContent), (c) => c.charCodeAt(0));
const weights = new Uint16Array(bytes.buffer); // [layers, heads, size, size]
const at = (layer, head, from, to) => weights[((layer * heads + head) * size + from) * size + to] / whole;
const element = (id) => document.getElementById(id);
const state = { layer: 0, head: 0, from: 0, to: 0 };
const cell = Math.max(9, Math.min(26, Math.floor(620 / size))); // pixels of the large picture

function ramp() {
  const style = getComputedStyle(document.documentElement);
  const rgb = (name) => style.getPropertyValue(name).trim().match(/\w\w/g).map((x) => parseInt(x, 16));
  const [low, high] = [rgb("--low"), rgb("--high")];
  return (weight) => low.map((value, i) => Math.round(value + (high[i] - value) * Math.sqrt(weight)));
}

function paint(canvas, layer, head, scale, colour) {
  canvas.width = canvas.height = size * scale;
  const context = canvas.getContext("2d");
  const image = context.createImageData(size * scale, size * scale);
  for (let from = 0; from < size; from++) {
    for (let to = 0; to < size; to++) {
      const [red, green, blue] = colour(at(layer, head, from, to));
      for (let y = from * scale; y < (from + 1) * scale; y++) {
        for (let x = to * scale; x < (to + 1) * scale; x++) {
          image.data.set([red, green, blue, 255], 4 * (y * size * scale + x));
        }
      }
    }
  }
  context.putImageData(image, 0, 0);
}

function label(text, parent) {
  const span = document.createElement("span");
  span.textContent = text;
  parent.append(span);
  return span;
}

function buildHeads() {
  const grid = element("heads");
  const side = Math.max(22, Math.min(44, Math.floor(640 / heads)));
  grid.style.gridTemplateColumns = `auto repeat(${heads}, ${side}px)`;
  label("", grid);
  for (let head = 0; head < heads; head++) label(head + 1, grid);
  for (let layer = 0; layer < layers; layer++) {
    label(layer + 1, grid);
    for (let head = 0; head < heads; head++) {
      const button = document.createElement("button");
      button.type = "button";
      button.dataset.layer = layer;
      button.dataset.head = head;
      button.setAttribute("aria-label", `Layer ${layer + 1}, head ${head + 1}`);
      button.title = `Layer ${layer + 1}, head ${head + 1}`;
      button.append(document.createElement("canvas"));
      grid.append(button);
    }
  }
  grid.addEventListener("click", (event) => {
    const button = event.target.closest("button");
    if (button) choose({ layer: +button.dataset.layer, head: +button.dataset.head });
  });
  grid.addEventListener("keydown", (event) => {
    const step = arrow(event);
    if (!step) return;
    choose({ layer: clamp(state.layer + step.y, layers), head: clamp(state.head + step.x, heads) });
    button(state.layer, state.head).focus();
  });
}

const button = (layer, head) => document.querySelector(`[data-layer="${layer}"][data-head="${head}"]`);
const clamp = (value, count) => Math.max(0, Math.min(count - 1, value));

function arrow(event) {
  const steps = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] };
  if (!(event.key in steps)) return null;
  event.preventDefault();
  return { x: steps[event.key][0], y: steps[event.key][1] };
}

function buildMap() {
  const [columns, rows, cells] = ["columns", "rows", "cells"].map(element);
  tokens.forEach((token, i) => {
    Object.assign(label(token, columns).style, {
      left: `${(i + 0.5) * cell}px`, bottom: "4px", transformOrigin: "0 100%", transform: "translateX(.4em) rotate(-60deg)",
    });
    Object.assign(label(token, rows).style, { right: "6px", top: `${(i + 0.5) * cell}px`, transform: "translateY(-50%)" });
  });
  const widths = [...rows.children].map((span) => span.offsetWidth);
  const longest = Math.max(...widths);
  const reach = Math.max(...widths.map((width, i) => (i + 1) * cell + 0.5 * width)); // of labels slanted by 60 degrees
  rows.style.width = `${longest + 10}px`;
  columns.style.height = `${0.87 * longest + 22}px`;
  columns.style.width = `${Math.max(size * cell, reach)}px`;
  const place = (event) => {
    const box = cells.getBoundingClientRect();
    return {
      from: clamp(Math.floor((event.clientY - box.top) / cell), size),
      to: clamp(Math.floor((event.clientX - box.left) / cell), size),
    };
  };
  cells.addEventListener("mousemove", (event) => choose(place(event)));
  cells.addEventListener("keydown", (event) => {
    const step = arrow(event);
    if (step) choose({ from: clamp(state.from + step.y, size), to: clamp(state.to + step.x, size) });
  });
}

function buildText() {
  const list = element("text");
  tokens.forEach((token, i) => {
    const item = document.createElement("li");
    item.textContent = token;
    item.addEventListener("click", () => choose({ from: i }));
    list.append(item);
  });
}

function choose(change) {
  Object.assign(state, change);
  if ("layer" in change) showHead();
  showCell();
}

function showHead() {
  const { layer, head } = state;
  document.querySelectorAll("#heads button").forEach((other) => {
    const chosen = +other.dataset.layer === layer && +other.dataset.head === head;
    other.setAttribute("aria-pressed", chosen);
    other.tabIndex = chosen ? 0 : -1; // one stop for Tab; arrows do the rest
  });
  element("head").textContent = `Layer ${layer + 1}, head ${head + 1}`;
  paint(element("cells"), layer, head, cell, ramp());
}

function showCell() {
  const { layer, head, from, to } = state;
  const weight = at(layer, head, from, to).toFixed(4);
  element("readout").textContent = `${tokens[from]} → ${tokens[to]}: ${weight}`;
  element("cells").title = element("readout").textContent;
  element("looks").textContent = `What ${tokens[from]} (token ${from + 1}) looks at`;
  const colour = ramp();
  [...element("text").children].forEach((item, i) => {
    const value = at(layer, head, from, i);
    const [red, green, blue] = colour(value);
    item.style.backgroundColor = `rgb(${red}, ${green}, ${blue})`;
    item.style.color = 0.299 * red + 0.587 * green + 0.114 * blue > 140 ? "#000" : "#fff";
    item.title = value.toFixed(4);
    item.setAttribute("aria-label", `${tokens[i]} ${value.toFixed(4)}`);
    item.setAttribute("aria-current", i === from);
  });
  [...element("rows").children].forEach((span, i) => span.classList.toggle("here", i === from));
  [...element("columns").children].forEach((span, i) => span.classList.toggle("here", i === to));
}

function showAll() {
  const colour = ramp();
  document.querySelectorAll("#heads button").forEach((other) => {
    paint(other.firstChild, +other.dataset.layer, +other.dataset.head, 1, colour);
  });
  showHead();
  showCell();
}

buildHeads();
buildMap();
buildText();
showAll();
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", showAll);
