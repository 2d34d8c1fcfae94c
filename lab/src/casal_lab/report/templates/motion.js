
// Motion: the numbers come from Python (casal_lab.motion). It plays once when it is first seen, and never by itself for
// readers who asked for less motion.
{
  const still = matchMedia("(prefers-reduced-motion: reduce)");
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const [UNITS, LOST, SUCCESS, FAILURE, TALLEST] = [32768, -32768, 1, 2, 255];
  const FAR = UNITS / 12; // of a chain that may have become a copy: a longer way between two frames is not drawn
  const bytes = (text) => Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));
  const unpack = ({ shape, x, y }) => ({ shape, x: new Int16Array(bytes(x).buffer), y: new Int16Array(bytes(y).buffer) });

  const ticks = ([low, high], room) => {
    const rough = (high - low) / Math.max(room, 1);
    const ten = 10 ** Math.floor(Math.log10(rough));
    const step = ten * [1, 2, 5, 10].find((k) => k * ten >= 0.999 * rough);
    const first = Math.ceil(low / step - 1e-6);
    const places = Math.max(0, -Math.floor(Math.log10(step) + 1e-6));
    const count = Math.floor(high / step + 1e-6) - first + 1;
    return Array.from({ length: count }, (_, k) => (first + k) * step).map((at) => [at, at.toFixed(places).replace("-", "−")]);
  };

  const percent = (share) => {
    if (share > 0 && share < 5e-4) return "< 0.1 %";
    return `${(100 * share).toFixed(share > 0 && share < 0.095 ? 1 : 0)} %`;
  };

  // A canvas as sharp as the screen, its pen, and the colours of the style sheet.
  const sheet = (canvas, width, height) => {
    const ratio = devicePixelRatio || 1;
    if (canvas.width !== Math.round(width * ratio) || canvas.height !== Math.round(height * ratio)) {
      [canvas.width, canvas.height] = [Math.round(width * ratio), Math.round(height * ratio)];
      canvas.style.height = `${height}px`;
    }
    const look = getComputedStyle(canvas);
    const pen = canvas.getContext("2d");
    pen.setTransform(ratio, 0, 0, ratio, 0, 0);
    pen.clearRect(0, 0, width, height);
    pen.font = `11px ${look.fontFamily}`;
    pen.lineWidth = 1;
    return { pen, look, shade: (name) => look.getPropertyValue(name).trim() };
  };

  // An image of 8-bit shades in one colour, kept until the colour changes.
  const tinted = ({ shape: [rows, columns], values }) => {
    const shades = bytes(values);
    const kept = document.createElement("canvas");
    let last = "";
    return (colour) => {
      if (colour === last) return kept;
      last = colour;
      [kept.width, kept.height] = [columns, rows];
      const pen = kept.getContext("2d");
      pen.fillStyle = colour;
      pen.fillRect(0, 0, columns, rows);
      const image = pen.getImageData(0, 0, columns, rows);
      shades.forEach((shade, k) => (image.data[4 * k + 3] = shade));
      pen.putImageData(image, 0, 0);
      return kept;
    };
  };

  for (const motion of document.querySelectorAll(".motion")) {
    const data = JSON.parse(motion.querySelector("script").textContent);
    const [play, slider, output] = [".play", "input", "output"].map((name) => motion.querySelector(name));
    const last = data.frame_labels.length - 1;
    const hold = Math.min(Math.max(8000 / Math.max(last, 1), 50), 750); // milliseconds a frame
    const views = data.panels.map((panel, k) => {
      const box = motion.querySelectorAll(".view")[k];
      const marks = panel.marks && bytes(panel.marks);
      return { box, canvas: box.querySelector("canvas"), tally: box.querySelector(".tally"), title: panel.title, marks,
        frames: unpack(panel.frames), ghost: panel.ghost && unpack(panel.ghost), jumps: panel.jumps,
        shares: panel.shares, bars: [...box.querySelectorAll(".shares li")],
        histogram: box.querySelector(".histogram"), heights: panel.heights && bytes(panel.heights) };
    });
    const { backdrop, profile, groups } = data;
    const image = backdrop.image && tinted(backdrop.image);
    const [curve, area] = [backdrop.curve, backdrop.area].map((line) => line && unpack(line));
    const exact = profile && bytes(profile.values);
    let [at, running, before] = [still.matches ? last : 0, false, 0];

    const draw = (view) => {
      const { canvas, frames, ghost, marks, jumps } = view;
      const width = canvas.clientWidth;
      if (!width) return;
      const [left, right, high, foot] = [data.ylabel ? 46 : 26, 8, 8, data.xlabel ? 36 : 22];
      const across = width - left - right;
      const tall = data.equal
        ? (across * (data.ylim[1] - data.ylim[0])) / (data.xlim[1] - data.xlim[0])
        : Math.max(0.62 * width - high - foot, 120);
      const height = Math.round(tall + high + foot);
      const { pen, look, shade } = sheet(canvas, width, height);
      const toX = (x) => left + (across * (x - data.xlim[0])) / (data.xlim[1] - data.xlim[0]);
      const toY = (y) => high + (tall * (data.ylim[1] - y)) / (data.ylim[1] - data.ylim[0]);

      pen.fillStyle = shade("--quiet");
      pen.strokeStyle = shade("--rule");
      pen.textAlign = "center";
      for (const [x, text] of ticks(data.xlim, across / 60)) pen.fillText(text, toX(x), high + tall + 15);
      pen.fillText(data.xlabel, left + across / 2, height - 5);
      pen.textAlign = "right";
      pen.beginPath();
      for (const [y, text] of ticks(data.ylim, tall / 34)) {
        pen.fillText(text, left - 6, toY(y) + 4);
        pen.moveTo(left, Math.round(toY(y)) + 0.5);
        pen.lineTo(left + across, Math.round(toY(y)) + 0.5);
      }
      pen.stroke();
      pen.save();
      pen.translate(11, high + tall / 2);
      pen.rotate(-Math.PI / 2);
      pen.textAlign = "center";
      pen.fillText(data.ylabel, 0, 0);
      pen.restore();

      pen.save();
      pen.beginPath();
      pen.rect(left, high, across, tall);
      pen.clip();
      const wide = (q) => left + across * (0.5 + q / UNITS);
      const deep = (q) => high + tall * (0.5 - q / UNITS);
      const known = (x, y) => (x === LOST || y === LOST ? null : [wide(x), deep(y)]);
      const trace = (points) => {
        pen.beginPath();
        let down = false;
        for (const point of points) {
          if (point && down) pen.lineTo(...point);
          else if (point) pen.moveTo(...point);
          down = Boolean(point);
        }
      };
      const line = (points) => {
        trace(points);
        pen.stroke();
      };
      const places = ({ shape: [size], x, y }) => Array.from({ length: size }, (_, s) => known(x[s], y[s]));
      if (image) {
        pen.globalAlpha = 0.42;
        pen.drawImage(image(shade("--density")), left, high, across, tall);
        pen.globalAlpha = 1;
      }
      if (area) {
        trace(places(area));
        pen.closePath();
        pen.fillStyle = shade("--exact");
        pen.globalAlpha = 0.4;
        pen.fill();
        pen.globalAlpha = 1;
      }
      if (curve) {
        pen.strokeStyle = shade("--set");
        line(places(curve));
      }
      pen.fillStyle = shade("--obstacle");
      for (const [x, y, a, b] of data.shapes) {
        pen.beginPath();
        if (b === undefined) pen.ellipse(toX(x), toY(y), toX(x + a) - toX(x), toY(y) - toY(y + a), 0, 0, 2 * Math.PI);
        else pen.rect(toX(x), toY(b), toX(a) - toX(x), toY(y) - toY(b));
        pen.fill();
      }
      pen.fillStyle = shade("--ink");
      pen.textAlign = "center";
      pen.font = `600 12px ${look.fontFamily}`;
      for (const { label, at: place } of groups) if (place) pen.fillText(label, toX(place[0]), toY(place[1]) + 4);
      if (ghost) {
        const [n, size] = ghost.shape;
        pen.strokeStyle = shade("--quiet");
        pen.globalAlpha = 0.55;
        pen.setLineDash([3, 3]);
        for (let i = 0; i < n; i++) {
          line(Array.from({ length: size }, (_, s) => {
            const k = i * size + s;
            return known(ghost.x[k % ghost.x.length], ghost.y[k % ghost.y.length]);
          }));
        }
        pen.setLineDash([]);
      }
      const [, n, size = 1] = frames.shape;
      const here = Math.floor(at);
      const part = at - here;
      const ease = part * part * (3 - 2 * part);
      const ends = (values, i, s) =>
        [here, Math.min(here + 1, last)].map((f) => values[((f * n + i) * size + s) % values.length]);
      const shown = (i) => {
        const moves = Array.from({ length: size }, (_, s) => [ends(frames.x, i, s), ends(frames.y, i, s)]);
        const hop = jumps && moves.flat().some(([a, b]) => Math.abs(b - a) > FAR);
        const between = ([a, b]) => (hop || a === LOST || b === LOST ? (part < 0.5 ? a : b) : a + ease * (b - a));
        return moves.map(([x, y]) => known(between(x), between(y)));
      };
      const mark = (i) => (marks ? marks[Math.round(at) * n + i] : 0);
      const order = Array.from({ length: n }, (_, i) => i).sort((i, j) => (mark(i) === FAILURE) - (mark(j) === FAILURE));
      for (const i of order) {
        const failed = mark(i) === FAILURE;
        const points = shown(i);
        const end = points[size - 1];
        pen.strokeStyle = pen.fillStyle = failed ? shade("--failure") : look.color;
        pen.globalAlpha = size === 1 ? (n > 60 ? 0.6 : 0.85) : marks && mark(i) === 0 ? 0.5 : 0.85;
        pen.lineWidth = failed ? 1.1 : 1.6;
        if (size > 1) line(points);
        else if (end && !failed) {
          pen.beginPath();
          pen.arc(...end, Math.min(Math.max(width / 130, 1.6), 2.6), 0, 2 * Math.PI);
          pen.fill();
        }
        const inside = ([x, y]) => x >= left && x <= left + across && y >= high && y <= high + tall;
        const seen = failed && points.findLast((point) => point && inside(point));
        if (seen) {
          const [x, y] = [Math.min(seen[0], left + across - 4), seen[1]];
          pen.globalAlpha = 1;
          pen.lineWidth = 1.5;
          line([[x - 3, y - 3], [x + 3, y + 3], null, [x - 3, y + 3], [x + 3, y - 3]]);
        }
      }
      pen.restore();
    };

    // The histogram of a panel, with the exact density as a line.
    const drawHistogram = ({ histogram, heights }) => {
      const width = histogram.clientWidth;
      if (!width) return;
      const [left, right, high, tall] = [data.ylabel ? 46 : 26, 8, 4, 56];
      const across = width - left - right;
      const { pen, look, shade } = sheet(histogram, width, high + tall + 32);
      const bins = heights.length / (last + 1);
      const here = Math.floor(at);
      const step = (k) => {
        const [a, b] = [here, Math.min(here + 1, last)].map((f) => heights[f * bins + k]);
        return (tall * (a + (at - here) * (b - a))) / TALLEST;
      };
      pen.fillStyle = look.color;
      pen.globalAlpha = 0.75;
      for (let k = 0; k < bins; k++) {
        const [x, y] = [left + (across * k) / bins, step(k)];
        if (y > 0) pen.fillRect(x, high + tall - y, across / bins + 0.4, y);
      }
      pen.globalAlpha = 1;
      pen.strokeStyle = shade("--rule");
      pen.beginPath();
      pen.moveTo(left, high + tall + 0.5);
      pen.lineTo(left + across, high + tall + 0.5);
      pen.stroke();
      pen.strokeStyle = shade("--exact");
      pen.lineWidth = 1.5;
      pen.beginPath();
      exact.forEach((value, k) => {
        pen.lineTo(left + (across * k) / (exact.length - 1), high + tall - (tall * value) / TALLEST);
      });
      pen.stroke();
      pen.fillStyle = shade("--quiet");
      pen.textAlign = "center";
      const [low, top] = profile.limits;
      for (const [x, text] of ticks(profile.limits, across / 60)) {
        pen.fillText(text, left + (across * (x - low)) / (top - low), high + tall + 14);
      }
      pen.fillText(profile.label, left + across / 2, high + tall + 28);
    };

    let told = ""; // the words change with the frame, not with every picture
    const refresh = () => {
      const frame = Math.round(at);
      const label = data.frame_labels[frame];
      for (const view of views) {
        draw(view);
        if (view.heights) drawHistogram(view);
      }
      if (told === `${frame} ${running}`) return;
      told = `${frame} ${running}`;
      slider.value = frame;
      slider.setAttribute("aria-valuetext", label);
      output.textContent = label;
      play.textContent = running ? "Pause" : at >= last ? "Replay" : "Play";
      play.dataset.state = play.textContent.toLowerCase();
      for (const view of views) {
        const n = view.frames.shape[1];
        const count = (kind) => view.marks.subarray(frame * n, frame * n + n).filter((mark) => mark === kind).length;
        const sum = view.marks ? `, ${count(SUCCESS)} of ${n} succeed, ${count(FAILURE)} fail` : "";
        const shares = view.shares ? view.shares[frame] : [];
        const parts = shares.map((share, k) => `, ${groups[k].label} ${percent(share)} (exact ${percent(groups[k].exact)})`);
        view.canvas.setAttribute("aria-label", `${view.title}, ${label}${sum}${parts.join("")}`);
        shares.forEach((share, k) => {
          view.bars[k].querySelector("i").style.width = `${100 * share}%`;
          view.bars[k].querySelector(".now").textContent = percent(share);
        });
        if (view.marks) {
          view.tally.hidden = !(count(SUCCESS) + count(FAILURE));
          view.tally.firstElementChild.textContent = `✓ ${count(SUCCESS)}`;
          view.tally.lastElementChild.textContent = `✗ ${count(FAILURE)}`;
        }
      }
    };
    let real = at; // the place in time, of which only whole frames are shown without smooth motion
    const tick = (now) => {
      if (!running) return;
      real = Math.min(real + (now - before) / hold, last);
      before = now;
      at = still.matches ? Math.floor(real) : real;
      running = real < last;
      refresh();
      requestAnimationFrame(tick);
    };
    const start = () => {
      if (at >= last) at = 0;
      [real, running, before] = [at, last > 0, performance.now()];
      refresh();
      requestAnimationFrame(tick);
    };
    const stop = (frame) => {
      [running, at] = [false, Math.min(Math.max(frame, 0), last)];
      refresh();
    };
    const toggle = () => (running ? stop(Math.round(at)) : start());

    play.addEventListener("click", toggle);
    slider.addEventListener("input", () => stop(Number(slider.value)));
    motion.addEventListener("keydown", (event) => {
      const step = { ArrowLeft: -1, ArrowDown: -1, ArrowRight: 1, ArrowUp: 1 }[event.key];
      if (event.key === " " && event.target !== play) toggle();
      else if (step && [play, slider].includes(event.target)) stop(Math.round(at) + step);
      else return;
      event.preventDefault();
    });
    // A tap or click plays and pauses; a drag to the side moves through time, one up or down scrolls as ever.
    for (const { canvas } of views) {
      let from = null;
      let dragged = false;
      canvas.addEventListener("pointerdown", (event) => {
        [from, dragged] = [{ x: event.clientX, at }, false];
      });
      canvas.addEventListener("pointermove", (event) => {
        const way = from && event.buttons ? event.clientX - from.x : 0;
        if (!dragged && Math.abs(way) < 8) return;
        if (!dragged) canvas.setPointerCapture(event.pointerId);
        dragged = true;
        stop(Math.round(from.at + (1.25 * last * way) / canvas.clientWidth));
      });
      for (const name of ["pointerup", "pointercancel"]) canvas.addEventListener(name, () => (from = null));
      canvas.addEventListener("click", () => {
        slider.focus({ preventScroll: true });
        if (!dragged) toggle();
      });
    }
    new ResizeObserver(refresh).observe(motion);
    dark.addEventListener("change", refresh);
    const first = new IntersectionObserver((seen) => {
      if (!seen.some((entry) => entry.isIntersecting)) return;
      first.disconnect();
      if (!still.matches && at === 0) start();
    }, { threshold: 0.6 });
    first.observe(views[0].canvas);
    refresh();
  }
}
