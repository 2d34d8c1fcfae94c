"use strict";

// Sorting: up, down, back to the order of the run. Cells without a number stay last.
for (const table of document.querySelectorAll("table.sortable")) {
  const body = table.tBodies[0];
  const original = [...body.rows];
  const heads = [...table.tHead.rows[0].cells];
  heads.forEach((head, column) => {
    head.querySelector("button").addEventListener("click", () => {
      const before = head.getAttribute("aria-sort");
      for (const other of heads) other.removeAttribute("aria-sort");
      if (before === "descending") {
        body.append(...original);
        return;
      }
      const sign = before === "ascending" ? -1 : 1;
      head.setAttribute("aria-sort", sign > 0 ? "ascending" : "descending");
      const numeric = original.some((row) => row.cells[column].dataset.v);
      const value = (row) => {
        const cell = row.cells[column];
        return numeric ? (cell.dataset.v ? Number(cell.dataset.v) : null) : cell.textContent;
      };
      const order = (left, right) => {
        const [a, b] = [value(left), value(right)];
        if (a === null || b === null) return (a === null) - (b === null);
        return sign * (numeric ? a - b : a.localeCompare(b));
      };
      body.append(...original.slice().sort(order));
    });
  });
}

// Methods: a pressed button shows the rows of its method in every table of the experiment.
for (const group of document.querySelectorAll(".methods")) {
  const rows = group.closest("section").querySelectorAll("tr[data-method]");
  const chips = [...group.querySelectorAll(".chip")];
  const refresh = () => {
    const off = new Set(chips.filter((c) => c.getAttribute("aria-pressed") === "false").map((c) => c.dataset.method));
    for (const row of rows) row.hidden = off.has(row.dataset.method);
  };
  group.addEventListener("click", (event) => {
    const button = event.target.closest("button");
    if (!button) return;
    if (button.dataset.all) {
      for (const chip of chips) chip.setAttribute("aria-pressed", button.dataset.all);
    } else {
      button.setAttribute("aria-pressed", String(button.getAttribute("aria-pressed") !== "true"));
    }
    refresh();
  });
}

// Pictures: fitted to the window, then twice as large.
const viewer = document.getElementById("viewer");
const stage = viewer.querySelector(".stage");
const shown = stage.querySelector("img");
const place = (large, x = 0.5, y = 0.5) => {
  stage.className = large ? "stage large" : "stage fit";
  const fitted = Math.min(innerWidth, (innerHeight * shown.dataset.ratio));
  shown.style.width = large ? `${Math.round(Math.max(2 * fitted, 900))}px` : "";
  stage.scrollTo(x * stage.scrollWidth - innerWidth / 2, y * stage.scrollHeight - innerHeight / 2);
};
for (const button of document.querySelectorAll(".zoom")) {
  button.addEventListener("click", () => {
    const image = button.querySelector("img");
    shown.src = image.src;
    shown.alt = image.alt;
    shown.dataset.ratio = image.getAttribute("width") / image.getAttribute("height");
    viewer.showModal();
    place(false);
  });
}
stage.addEventListener("click", (event) => {
  if (event.target !== shown) viewer.close();
  else place(stage.classList.contains("fit"), event.offsetX / shown.clientWidth, event.offsetY / shown.clientHeight);
});
viewer.querySelector(".close").addEventListener("click", () => viewer.close());

// Which experiment is being read.
const links = new Map([...document.querySelectorAll("nav li a")].map((link) => [link.hash.slice(1), link]));
const reading = new IntersectionObserver(
  (seen) => {
    for (const entry of seen) links.get(entry.target.id).classList.toggle("here", entry.isIntersecting);
  },
  { rootMargin: "-30% 0px -69% 0px" },
);
for (const section of document.querySelectorAll("section.experiment")) reading.observe(section);
