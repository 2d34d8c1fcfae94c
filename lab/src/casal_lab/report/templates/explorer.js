
// The distribution of z for a Gaussian and a line: the numbers come from Python, the densities are drawn here.
{
  const data = JSON.parse(document.getElementById("explorer-data").textContent);
  const width = matchMedia("(max-width: 720px)").matches ? 380 : 900;
  const [height, left, right, low, high] = [300, 6, width - 6, 272, 10];
  const [centre, spread] = data.exact;
  const [from, to] = [centre - 4 * spread, centre + 4 * spread];
  const top = 1.8 / (spread * Math.sqrt(2 * Math.PI));
  const density = (x, [mean, sd]) => Math.exp(-0.5 * ((x - mean) / sd) ** 2) / (sd * Math.sqrt(2 * Math.PI));
  const toX = (x) => left + ((right - left) * (x - from)) / (to - from);
  const toY = (y) => low - ((low - high) * y) / top;
  const path = (moments) => {
    const points = Array.from({ length: 241 }, (_, k) => from + ((to - from) * k) / 240);
    return "M" + points.map((x) => `${toX(x).toFixed(1)} ${toY(density(x, moments)).toFixed(1)}`).join("L");
  };
  const drawing = document.getElementById("densities");
  drawing.setAttribute("viewBox", `0 0 ${width} ${height}`);
  const add = (tag, attributes, text = "") => {
    const element = document.createElementNS("http://www.w3.org/2000/svg", tag);
    for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
    element.textContent = text;
    drawing.append(element);
    return element;
  };
  add("path", { d: `${path(data.exact)}L${right} ${low}L${left} ${low}Z`, class: "exact" });
  add("line", { x1: left, x2: right, y1: low, y2: low, class: "axis" });
  for (let tick = Math.ceil(2 * from) / 2; tick <= to; tick += 0.5) {
    add("text", { x: toX(tick), y: height - 8, "text-anchor": "middle" }, tick.toFixed(1));
  }
  add("text", { x: right, y: low - 8, "text-anchor": "end" }, "z₁");

  const body = document.querySelector("#densities-table tbody");
  const rows = Object.keys(data.densities).map((name) => {
    const row = body.insertRow();
    const head = document.createElement("th");
    const label = document.createElement("label");
    const box = document.createElement("input");
    box.type = "checkbox";
    box.checked = data.shown.includes(name);
    const swatch = document.createElement("i");
    swatch.style.borderColor = data.colours[name];
    swatch.className = data.dashed.includes(name) ? "dashed" : "";
    label.append(box, swatch, name);
    head.append(label);
    row.append(head);
    const cells = [0, 1, 2].map(() => row.insertCell());
    for (const cell of cells) cell.className = "num";
    const dash = data.dashed.includes(name) ? "7 4" : "none";
    const line = add("path", { class: "density", stroke: data.colours[name], "stroke-dasharray": dash });
    return { name, row, box, cells, line };
  });
  const exact = body.insertRow();
  exact.innerHTML = '<th><label><i class="shaded"></i>exact distribution on the line</label></th>';
  for (const value of [centre.toFixed(4), spread.toFixed(4), "0"]) {
    const cell = exact.insertCell();
    cell.className = "num";
    cell.textContent = value;
  }

  const [rho, tau] = ["rho", "tau"].map((name) => document.getElementById(name));
  const refresh = () => {
    document.getElementById("rho-value").textContent = data.rho[rho.value].toPrecision(3);
    document.getElementById("tau-value").textContent = data.tau[tau.value];
    for (const { name, row, box, cells, line } of rows) {
      const moments = data.densities[name][tau.value][rho.value];
      const distance = moments && Math.hypot(moments[0] - centre, moments[1] - spread);
      const texts = moments ? [moments[0].toFixed(4), moments[1].toFixed(4), distance.toFixed(4)] : ["diverges", "–", "–"];
      row.classList.toggle("diverged", !moments);
      cells.forEach((cell, k) => (cell.textContent = texts[k]));
      line.setAttribute("d", moments ? path(moments) : "");
      line.style.display = box.checked ? "" : "none";
    }
  };
  rho.max = data.rho.length - 1;
  tau.max = data.tau.length - 1;
  rho.value = Math.round(data.rho.length / 6);
  tau.value = 0;
  for (const control of [rho, tau, ...rows.map((row) => row.box)]) control.addEventListener("input", refresh);
  refresh();
}
