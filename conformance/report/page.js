"use strict";
// A click on a cell shows its cases; filters change the counts. Text of a report is set only as text.
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const { outcomes, columns, rows, cases, calls, letters, details, texts } = data;
  const AT_ONCE = 100;
  // the marks in a cell, in the order that html.py writes
  const MARKS = [["p", ""], ["b", "≈"], ["f", "✗"], ["h", "!"], ["d", "d"], ["u", "u"]];
  const search = document.getElementById("search");
  const found = document.getElementById("found");
  const boxes = [...document.querySelectorAll("#tools input[type=checkbox]")];
  const box = document.getElementById("matrix");
  const table = box.querySelector("table");
  const lines = [...table.querySelectorAll("tr[data-row]")];
  const ofRow = rows.map(() => []);
  cases.forEach(([row], n) => ofRow[row].push(n));
  const buttons = lines.map(() => []);
  let opened = null; // [row, column]
  let current = [0, 0]; // the one cell that Tab reaches

  function make(tag, properties = {}, ...children) {
    const node = Object.assign(document.createElement(tag), properties);
    node.append(...children);
    return node;
  }
  const cssOf = (letter) => outcomes[letter][0].replace(" ", "-");

  // ------------------------------------------------------------ the filters
  let shown = () => true;
  function readFilters() {
    const words = search.value.toLowerCase().split(/\s+/).filter(Boolean);
    const wanted = new Set(boxes.filter((box) => box.checked).map((box) => box.value));
    const named = cases.map(([, id]) => words.every((word) => id.toLowerCase().includes(word)));
    shown = (n, k) => named[n] && wanted.has(letters[k][n]);
  }
  const casesOf = (row, k) => ofRow[row].filter((n) => letters[k][n] !== "." && shown(n, k));
  function countsOf(numbers, k) {
    const counts = {};
    for (const n of numbers) counts[letters[k][n]] = (counts[letters[k][n]] || 0) + 1;
    return counts;
  }
  const inWords = (counts) =>
    MARKS.filter(([letter]) => counts[letter]).map(([letter]) => `${counts[letter]} ${outcomes[letter][0]}`).join(", ");

  function refresh() {
    readFilters();
    let matching = 0;
    let all = 0;
    lines.forEach((line, row) => {
      let any = false;
      columns.forEach((column, k) => {
        const numbers = casesOf(row, k);
        any ||= numbers.length > 0;
        // the outcome of a whole run stands in each of its columns, and counts once
        const counted = row !== data.run || column.first;
        if (counted) {
          matching += numbers.length;
          all += ofRow[row].filter((n) => letters[k][n] !== ".").length;
        }
        if (buttons[row][k]) fill(buttons[row][k], row, k, countsOf(numbers, k));
      });
      line.hidden = !any;
    });
    found.textContent = matching === all ? `${all.toLocaleString("en")} results`
      : matching ? `${matching.toLocaleString("en")} of ${all.toLocaleString("en")} results` : "No case matches.";
    if (opened && lines[opened[0]].hidden) close(false);
    else if (opened) fillDrawer();
    if (lines[current[0]]?.hidden) pointAt(...(next(current[0], current[1], 1, 0) || next(current[0], current[1], -1, 0) || current));
  }

  function fill(button, row, k, counts) {
    const parts = MARKS.filter(([letter]) => counts[letter]).flatMap(([letter, mark]) => {
      return [" ", make("span", { className: cssOf(letter), textContent: mark + counts[letter] })];
    }).slice(1);
    button.replaceChildren(...(parts.length ? parts : [make("span", { className: "none", textContent: "·" })]));
    button.setAttribute("aria-label", `${columns[k].name}, ${rows[row]}: ${inWords(counts) || "none"}`);
  }

  // ------------------------------------------------------------ moving
  function pointAt(row, k) {
    buttons[current[0]]?.[current[1]]?.setAttribute("tabindex", "-1");
    current = [row, k];
    buttons[row]?.[k]?.setAttribute("tabindex", "0");
  }
  // The next cell that can be opened in a direction, past the gaps; null at the edge.
  function next(row, k, down, right) {
    for (row += down, k += right; row >= 0 && row < lines.length && k >= 0 && k < columns.length; row += down, k += right) {
      if (!lines[row].hidden && buttons[row][k]) return [row, k];
    }
    return null;
  }
  const STEPS = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] };
  function target(key, row, k) {
    if (key in STEPS) return next(row, k, ...STEPS[key]);
    if (key === "Home") return next(row, -1, 0, 1);
    if (key === "End") return next(row, columns.length, 0, -1);
    return null;
  }
  table.addEventListener("keydown", (event) => {
    if (event.key === "Escape" && opened) {
      close(true);
      event.preventDefault();
      return;
    }
    const cell = event.target.closest?.("button[data-k]");
    if (!cell || event.altKey || event.ctrlKey || event.metaKey) return;
    if (!(event.key in STEPS) && event.key !== "Home" && event.key !== "End") return;
    event.preventDefault(); // the box must not scroll as well
    const to = target(event.key, Number(cell.dataset.row), Number(cell.dataset.k));
    if (to) {
      pointAt(...to);
      buttons[to[0]][to[1]].focus();
    }
  });

  // ------------------------------------------------------------ an open cell
  function toggle(row, k) {
    const same = opened && opened[0] === row && opened[1] === k;
    if (opened) close(false);
    pointAt(row, k);
    if (same) return;
    opened = [row, k];
    const drawer = make("div", { className: "drawer", id: "drawer" });
    drawer.setAttribute("role", "region");
    drawer.setAttribute("aria-label", `Cases of ${columns[k].name}, ${rows[row]}`);
    const cell = make("td", { colSpan: columns.length + 1 }, drawer);
    lines[row].after(make("tr", { className: "panel" }, cell));
    fitDrawer();
    buttons[row][k].setAttribute("aria-expanded", "true");
    buttons[row][k].setAttribute("aria-controls", "drawer");
    fillDrawer();
  }
  // Make the drawer as wide as the visible part of the matrix.
  function fitDrawer() {
    const drawer = document.getElementById("drawer");
    if (drawer) drawer.style.width = `${box.clientWidth}px`;
  }
  function close(focus) {
    const [row, k] = opened;
    opened = null;
    table.querySelector(".panel").remove();
    buttons[row][k].setAttribute("aria-expanded", "false");
    buttons[row][k].removeAttribute("aria-controls");
    if (focus) buttons[row][k].focus();
  }
  function fillDrawer() {
    const [row, k] = opened;
    const numbers = casesOf(row, k).sort((a, b) => rank(b, k) - rank(a, k) || a - b);
    const button = make("button", { type: "button", className: "plain", textContent: "Close" });
    button.addEventListener("click", () => close(true));
    const heading = `${columns[k].name} · ${rows[row]} · ${inWords(countsOf(numbers, k)) || "no case matches"}`;
    const list = make("ul");
    const drawer = document.getElementById("drawer");
    drawer.replaceChildren(make("header", {}, make("h3", { textContent: heading }), button), list);
    more(list, numbers, k, 0);
  }
  const rank = (n, k) => "pbdufh".indexOf(letters[k][n]); // the worst cases come first

  function more(list, numbers, k, begin) {
    const part = numbers.slice(begin, begin + AT_ONCE);
    list.append(...part.map((n) => make("li", {}, caseOf(n, k))));
    const rest = numbers.length - begin - part.length;
    if (!rest) return;
    const button = make("button", { type: "button", className: "plain", textContent: `Show ${Math.min(rest, AT_ONCE)} of ${rest} more` });
    button.addEventListener("click", () => {
      const at = list.children.length;
      button.remove();
      more(list, numbers, k, begin + AT_ONCE);
      list.children[at].querySelector("summary").focus();
    });
    list.after(button);
  }
  function caseOf(n, k) {
    const letter = letters[k][n];
    const told = details[k][n] || {};
    const mark = make("span", { className: cssOf(letter), textContent: `${outcomes[letter][1]} ${outcomes[letter][0]}` });
    const summary = make("summary", {}, mark, " ", make("code", { textContent: cases[n][1] }));
    if ("reason" in told) summary.append(" ", make("span", { className: "why", textContent: texts[told.reason].split("\n", 1)[0].slice(0, 200) }));
    const node = make("details", {}, summary);
    node.addEventListener("toggle", () => {
      if (node.open && !node.querySelector("dl")) node.append(facts(n, k, told));
    });
    return node;
  }
  function facts(n, k, told) {
    const list = make("dl");
    const add = (name, text) => list.append(make("dt", { textContent: name }), make("dd", {}, make("pre", { textContent: text })));
    if (calls[n]) add("call", calls[n]);
    for (const [field, text] of Object.entries(told)) add(field, texts[text]);
    const elsewhere = {};
    columns.forEach((column, other) => {
      if (other !== k && letters[other][n] !== ".") (elsewhere[letters[other][n]] ||= []).push(column.name);
    });
    for (const [letter] of MARKS) {
      if (elsewhere[letter]) add(`${outcomes[letter][0]} in`, elsewhere[letter].join(", "));
    }
    return list;
  }

  // ------------------------------------------------------------ make the cells of the page open
  lines.forEach((line, row) => {
    [...line.querySelectorAll("td")].forEach((cell, k) => {
      if (!ofRow[row].some((n) => letters[k][n] !== ".")) return;
      const button = make("button", { type: "button", tabIndex: -1 }, ...cell.childNodes);
      Object.assign(button.dataset, { row, k });
      button.setAttribute("aria-expanded", "false");
      button.addEventListener("click", () => toggle(row, k));
      cell.className += " open-able";
      cell.replaceChildren(button);
      buttons[row][k] = button;
    });
  });
  const first = lines.findIndex((_, row) => buttons[row].some(Boolean));
  if (first >= 0) pointAt(first, buttons[first].findIndex(Boolean));
  new ResizeObserver(fitDrawer).observe(box);
  document.getElementById("tools").hidden = false;
  document.getElementById("keys").hidden = false;
  document.getElementById("tools").addEventListener("submit", (event) => event.preventDefault());
  document.getElementById("tools").addEventListener("input", refresh);
  refresh();
})();
